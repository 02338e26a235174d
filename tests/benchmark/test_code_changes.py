"""Runs whose methods, metrics or models change: what changed code made is computed again, and never shown."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import MODEL
from commands import run as command
from plug_ins import HELPERS, METHOD, METRIC, PlugIns
from tiny_benchmark import bench, photos, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.store import Store, status
from vitreous.errors import VitreousError, VitreousWarning
from vitreous.models import registry

CALLABLE = "from helpers import scaled\n\ndef explain(model, inputs, classes):\n    return scaled(inputs.sum(dim=1))\n"


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIns]:
    created = PlugIns(tmp_path / "code", monkeypatch)
    created.write(mine=METHOD.format(package=""), helpers=HELPERS, measure=METRIC, others=CALLABLE)
    created.load("mine", "measure")
    yield created
    created.forget()


def change(plug_ins: PlugIns, name: str, old: str, new: str) -> None:
    plug_ins.edit(name, old, new)
    plug_ins.load("mine", "measure")


def protocol(*methods: str, images: int = 4) -> Protocol:
    return tiny(images, methods or ("mine", "raw_attention"), ("mean_value", "gini"))


def scores(out: Path, method: str, metric: str = "mean_value") -> Any:
    (result,) = collect(Store(out))
    return result.table[method, metric]


def changes(out: Path, wanted: Protocol) -> list[str]:
    """Go on with a run; return what it says about changes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ran(wanted, out)
    return [str(item.message) for item in caught if "again" in str(item.message)]


@pytest.mark.parametrize("name", ["mine", "others:explain", "smooth(mine, samples=2)"])
def test_a_method_whose_code_changed_is_computed_again(plug_ins: PlugIns, tmp_path: Path, name: str) -> None:
    out, wanted = tmp_path / "run", protocol(name, "raw_attention")
    assert not changes(out, wanted)
    before, other = scores(out, name), scores(out, "raw_attention")
    units = Store(out).finished()
    change(plug_ins, "helpers", "* 1", "* -1")
    assert changes(out, wanted) == [f"your method {name} changed: 4 units are computed again"]
    np.testing.assert_allclose(scores(out, name), -before, rtol=1e-5)
    np.testing.assert_array_equal(scores(out, "raw_attention"), other)
    store = Store(out)
    assert {unit.methods for unit in store.plans()[1].units} == {(name,)}
    assert units < store.finished()
    assert status(store).revisions[2] == f"your method {name} changed: 4 units are computed again"
    assert not changes(out, wanted)
    assert not changes(out, protocol(name, "raw_attention", images=6)), "new pictures are not computed again"


def test_a_metric_whose_code_changed_is_computed_again_from_the_same_maps(plug_ins: PlugIns, tmp_path: Path) -> None:
    out, wanted = tmp_path / "run", protocol()
    ran(wanted, out)
    before, gini = scores(out, "mine"), scores(out, "mine", "gini")
    change(plug_ins, "measure", "mean(axis=1)", "mean(axis=1) * -1")
    assert changes(out, wanted) == ["your metric mean_value changed: 2 units are computed again"]
    assert {(unit.modes, unit.metrics) for unit in Store(out).plans()[1].units} == {((), ("mean_value",))}
    np.testing.assert_allclose(scores(out, "mine"), -before)
    np.testing.assert_array_equal(scores(out, "mine", "gini"), gini)


def test_old_numbers_are_not_shown_before_the_new_ones_are_there(plug_ins: PlugIns, tmp_path: Path) -> None:
    out, wanted = tmp_path / "run", protocol()
    ran(wanted, out)
    change(plug_ins, "helpers", "* 1", "* -1")
    with pytest.warns(VitreousWarning, match="your method mine changed"):
        bench(wanted, out)
    assert np.isnan(scores(out, "mine")).all()
    assert not np.isnan(scores(out, "raw_attention")).any()


def test_units_that_were_left_are_not_done_with_other_code(plug_ins: PlugIns, tmp_path: Path) -> None:
    """Of a run that is stopped the rest is planned anew; others' cells in the same units are kept or planned too."""
    out, wanted = tmp_path / "run", protocol()
    begun = bench(wanted, out)
    with pytest.raises(KeyboardInterrupt):
        begun.work(progress=stop)
    change(plug_ins, "helpers", "* 1", "* -1")
    with pytest.raises(VitreousError, match=r"^mine is not what this run was planned with: its code"):
        bench_of(begun).work()
    assert changes(out, protocol("raw_attention")) == []
    assert not np.isnan(scores(out, "raw_attention")).any()
    assert changes(out, wanted) == ["your method mine changed: 4 units are computed again"]
    ran(wanted, tmp_path / "fresh")
    for method in ("mine", "raw_attention"):
        np.testing.assert_array_equal(scores(out, method), scores(tmp_path / "fresh", method))


def test_a_run_goes_on_without_a_method_that_is_gone(plug_ins: PlugIns, tmp_path: Path) -> None:
    out = tmp_path / "run"
    bench(protocol("mine", "raw_attention", images=2), out)
    plug_ins.forget()
    plug_ins.write(mine="raise ImportError('gone')\n", measure=METRIC)
    plug_ins.load("measure")
    bench(protocol("raw_attention", images=2), out)
    assert len(Store(out).plans()) == 1, "what is there is enough"
    bench(protocol("raw_attention", images=4), out)
    assert Store(out).plans()[1].why == "extended"


def stop(done: float, total: int | None) -> None:
    raise KeyboardInterrupt


def bench_of(begun: Any) -> Any:
    """The same run as another process opens it, without planning."""
    return type(begun)(begun.protocol, begun.store.path, begun.options)


def test_code_that_is_as_before_has_its_numbers_again(plug_ins: PlugIns, tmp_path: Path) -> None:
    out, wanted = tmp_path / "run", protocol()
    ran(wanted, out)
    before = scores(out, "mine")
    change(plug_ins, "helpers", "* 1", "* -1")
    assert len(changes(out, wanted)) == 1
    change(plug_ins, "helpers", "* -1", "* 1")
    assert changes(out, wanted) == [], "nothing has to be computed"
    np.testing.assert_array_equal(scores(out, "mine"), before)


def test_code_that_cannot_be_known_is_computed_each_time(plug_ins: PlugIns, tmp_path: Path) -> None:
    plug_ins.write(
        locked="import threading\n\ndef bind(lock):\n    def explain(m, x, c):\n        with lock:\n"
        "            return x.sum(dim=1)\n    return explain\n\nexplain = bind(threading.Lock())\n"
    )
    out, wanted = tmp_path / "run", protocol("locked:explain")
    for number in (1, 2):
        outcome = changes(out, wanted)
        assert len(Store(out).plans()) == number
    assert outcome == ["your method locked:explain may have changed: 4 units are computed again"]


ADAPTER = """
from vitreous.world.models import ADAPTER


class Mine:
    prefix = "mine"

    def accepts(self, module):
        return False

    def load(self, name, **options):
        return ADAPTER.load("world", **options)

    def models(self):
        return []

    def wrap(self, module, **facts):
        raise NotImplementedError
"""


def test_a_model_whose_factory_changed_is_computed_again(
    plug_ins: PlugIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        monkeypatch.setattr(registry, "_registered", [plug_ins.load("mine", "measure", "factory").Mine()])
        registry.adapters.cache_clear()

    plug_ins.write(factory=ADAPTER)
    load()
    out, wanted = tmp_path / "run", tiny(2, ("raw_attention",), ("gini",), name="mine/net")
    ran(wanted, out)
    plug_ins.edit("factory", '"world", **options', '"world", **dict(options)')
    load()
    assert changes(out, wanted) == ["your model world changed: 2 units are computed again"]
    assert not changes(out, wanted)
    assert not np.isnan(scores(out, "raw_attention", "gini")).any()
    monkeypatch.undo()
    registry.adapters.cache_clear()


def test_the_command_says_what_is_computed_again(plug_ins: PlugIns, tmp_path: Path) -> None:
    text = (
        'schema = "vitreous.protocol/1"\ntitle = "Tiny"\nmodels = [{label = "world", name = "world"}]\n'
        '[data]\nsource = "world"\nsplit = "test"\nimages = 2\n'
        '[evaluation]\nmetrics = ["mean_value"]\nimages_per_unit = 2\ncontrols = false\n[methods]\nmine = "mine"\n'
    )
    (tmp_path / "p.toml").write_text(text)
    arguments = ("bench", "run", tmp_path / "p.toml", "--out", tmp_path / "run", "--device", "cpu", "--workers", "1")
    assert command(*arguments).code == 0
    change(plug_ins, "helpers", "* 1", "* -1")
    outcome = command(*arguments)
    assert outcome.code == 0
    assert "vitreous: warning: your method mine changed: 2 units are computed again" in outcome.err.splitlines()
    change(plug_ins, "measure", "mean(axis=1)", "mean(axis=1) * -1")
    outcome = command(*arguments)
    assert "vitreous: warning: your metric mean_value changed: 1 unit is computed again" in outcome.err.splitlines()


def test_explanations_of_changed_code_are_made_again(plug_ins: PlugIns, tmp_path: Path) -> None:
    folder, out = photos(tmp_path / "photos", 2), tmp_path / "out"
    arguments = ("explain", folder, *MODEL, "--method", "mine", "--out", out, "--resume")
    assert command(*arguments).code == 0
    assert "2 left out: the same question is answered already" in command(*arguments).out
    old = {path: np.load(path) for path in out.rglob("map.npy")}
    change(plug_ins, "helpers", "* 1", "* -1")
    assert "left out" not in command(*arguments).out
    new = [np.load(path) for path in out.rglob("map.npy") if path not in old]
    assert len(old) == len(new) == 2
    for item in old.values():
        assert any(np.array_equal(item, -other) for other in new)
