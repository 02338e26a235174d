"""Results that are stored are used again for the same question, model and data, and for no other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitreous as vt
from commands import MODEL, run
from families import FAMILIES
from mutations import (
    eps,
    hook,
    identity,
    other_method,
    through_data,
)
from plug_ins import HELPERS, METHOD, METRIC, PlugIns
from run_files import SETTING
from tiny_benchmark import bench, photos, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import DataSpec, ModelSpec
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.worker import refuse_other_model
from vitreous.errors import VitreousError, VitreousWarning

# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def plug_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIns]:
    created = PlugIns(tmp_path / "code", monkeypatch)
    created.write(mine=METHOD.format(package=""), helpers=HELPERS, measure=METRIC)
    created.load("mine", "measure")
    yield created
    created.forget()


@pytest.fixture
def changed_model(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
    """Let every model that a benchmark loads be changed in a way."""
    loaded = BenchmarkRun._load

    def change_with(change: Callable[[Any], None]) -> None:
        def load(self: BenchmarkRun, spec: Any) -> vt.VisionModel:
            model = loaded(self, spec)
            change(model.module)
            return model

        monkeypatch.setattr(BenchmarkRun, "_load", load)

    return change_with


def twice_the_heads(model: Any) -> None:
    for block in model.blocks:
        block.attn.num_heads, block.attn.head_dim = 2 * block.attn.num_heads, block.attn.head_dim // 2


@pytest.mark.parametrize("change", [twice_the_heads, through_data, eps, hook, other_method])
def test_a_run_is_not_resumed_with_another_model(
    complete: Path, tmp_path: Path, changed_model: Any, change: Callable[[Any], None]
) -> None:
    before = {path: path.read_bytes() for path in complete.rglob("*") if path.is_file()}
    changed_model(change)
    with pytest.raises(VitreousError, match=r"^world has other .* than this run was begun with; choose another place"):
        bench(tiny(), complete)
    assert {path: path.read_bytes() for path in complete.rglob("*") if path.is_file()} == before


def test_a_worker_refuses_another_model_than_was_planned(tmp_path: Path, changed_model: Any) -> None:
    bench(tiny(), tmp_path / "run")
    changed_model(twice_the_heads)
    created = BenchmarkRun(
        tiny(), tmp_path / "run", Options(device="cpu")
    )  # another process, which loads the model anew
    with pytest.raises(VitreousError, match=r"^world has other structure or settings than .*; give every worker"):
        created.work()
    assert not created.store.finished()


def test_a_model_whose_hook_changed_is_computed_again(tmp_path: Path, changed_model: Any) -> None:
    changed_model(hook)
    first = ran(tiny(), tmp_path / "run").finished()
    changed_model(lambda model: model.blocks[0].register_forward_hook(lambda module, args, output: output * 3))
    with pytest.warns(VitreousWarning, match=r"^your model world changed: 4 units are computed again"):
        again = ran(tiny(), tmp_path / "run").finished()
    assert len(again) == 2 * len(first)


def models(*specs: ModelSpec, **more: Any) -> Any:
    return replace(tiny(**more), models=specs)


def test_models_of_equal_weights_and_other_preprocessing_have_their_own_numbers(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 2, 80)
    simple, other = ModelSpec("plain", "world"), ModelSpec("squashed", "world", mean=(0.2, 0.2, 0.2), crop="squash")
    data = DataSpec("folder", path=str(folder))
    ran(models(simple, other, data=data), tmp_path / "both")
    both = {result.config.label: result.table for result in collect(Store(tmp_path / "both"))}
    for spec in (simple, other):
        ran(models(spec, data=data), tmp_path / spec.label)
        (alone,) = collect(Store(tmp_path / spec.label))
        for method in ("raw_attention", "rollout"):
            (metric,) = tiny().evaluation.metrics
            np.testing.assert_array_equal(both[spec.label][method, metric], alone.table[method, metric])
    assert not np.array_equal(*(both[label]["rollout", metric] for label in ("plain", "squashed")))


@pytest.mark.parametrize("change", [{"mean": (0.2, 0.2, 0.2)}, {"crop": "squash"}, {"interpolation": "nearest"}])
def test_a_run_is_not_resumed_with_another_preprocessing(tmp_path: Path, change: Any) -> None:
    data = DataSpec("folder", path=str(photos(tmp_path / "photos", 2, 80)))
    ran(models(ModelSpec("world", "world"), data=data), tmp_path / "run")
    with pytest.raises(VitreousError, match=r"^world has other preprocessing than this run was begun with; choose"):
        bench(models(ModelSpec("world", "world", **change), data=data), tmp_path / "run")


def unit_ids(out: Path, **more: Any) -> set[str]:
    """The units of a plan of its own, before anything is done."""
    return {
        unit.id for unit in bench(tiny(methods=("mine",), metrics=("mean_value",), **more), out).store.plans()[0].units
    }


def test_units_follow_from_the_contents_of_data(plug_ins: PlugIns, tmp_path: Path) -> None:
    folder, table = photos(tmp_path / "photos", 2), tmp_path / "table.csv"

    def ids(name: str, boxes: str = "0 0 9 9", label: int = 1) -> set[str]:
        table.write_text(f"file,label,boxes\n{folder}/0000.png,{label},{boxes}\n{folder}/0001.png,2,1 1 8 8\n")
        return unit_ids(tmp_path / name, data=DataSpec("csv", path=str(table)))

    first = ids("first")
    assert ids("again") == first
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    assert ids("touched") == first
    assert ids("label", label=3) != first
    assert ids("boxes", boxes="0 0 9 8") != first
    photos(tmp_path / "more", 3)
    (folder / "0001.png").write_bytes((tmp_path / "more" / "0002.png").read_bytes())
    assert ids("pixels") != first
    folder.rename(tmp_path / "elsewhere")
    photos(tmp_path / "other", 2)


def test_units_follow_from_methods_and_metrics_and_not_from_their_order(plug_ins: PlugIns, tmp_path: Path) -> None:
    def ids(name: str, methods: Any = ("mine", "rollout"), metrics: Any = ("mean_value",), **more: Any) -> set[str]:
        created = bench(tiny(methods=methods, metrics=metrics, **more), tmp_path / name)
        return {unit.id for unit in created.store.plans()[0].units}

    first = ids("first")
    assert ids("order", ("rollout", "mine")) == first
    (tmp_path / "moved").mkdir()
    assert ids("moved/first") == first
    baseline = photos(tmp_path / "baselines", 1)
    formatted = f"gradient_shap(samples=2, background='{baseline}')"
    shap = ids("baseline", (formatted,))
    assert ids("parameter", ("mine(power=2)", "rollout")) != first
    assert ids("metric", metrics=("gini",)) != first
    assert ids("value", output="prob") != first
    for name, old, new in (
        ("helpers", "* 1", "* -1"),
        ("mine", "mean(dim=1)", "sum(dim=1)"),
        ("measure", "mean(", "sum("),
    ):
        plug_ins.edit(name, old, new)
        plug_ins.load("mine", "measure")
        changed = ids(f"changed {name}")
        assert changed != first
        plug_ins.edit(name, new, old)
        plug_ins.load("mine", "measure")
        assert ids(f"back {name}") == first
    photos(tmp_path / "other", 2)
    (baseline / "0000.png").write_bytes((tmp_path / "other" / "0001.png").read_bytes())
    assert ids("other baseline", (formatted,)) != shap


# -- the command line --------------------------------------------------------------------------------------------------


def fused(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    """Let the command line load models of timm that were changed."""
    import timm

    create = timm.create_model

    def create_changed(*args: Any, **options: Any) -> Any:
        model = create(*args, **options)
        change(model)
        return model

    monkeypatch.setattr(timm, "create_model", create_changed)


def maps(out: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in out.rglob("map.npy")}


@pytest.mark.parametrize("change", [twice_the_heads, eps, hook, through_data])
def test_explain_does_not_take_the_results_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    folder, out = photos(tmp_path / "photos", 2), tmp_path / "out"
    arguments = ("explain", folder, *MODEL, "--method", "gradient", "--target", 3, "--out", out, "--resume")
    assert run(*arguments).code == 0
    before = maps(out)
    assert "2 left out" in run(*arguments).out
    with monkeypatch.context() as patched:
        fused(patched, change)
        outcome = run(*arguments)
    assert (outcome.code, "left out" in outcome.out) == (0, False)
    assert {path: content for path, content in maps(out).items() if path in before} == before
    assert len(maps(out)) == 4
    assert "2 left out" in run(*arguments).out


PROTOCOL = """
schema = "vitreous.protocol/1"
title = "Tiny"

[[models]]
label = "net"
name = "world"
{more}
[data]
source = "world"
split = "test"
images = 2

[evaluation]
metrics = ["deletion(steps=2)"]

[methods]
"rollout" = "rollout"

[layout]
rows = "methods"
columns = ["metrics"]
"""


def test_bench_refuses_another_model_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "tiny.toml", tmp_path / "run"
    file.write_text(PROTOCOL.format(more=""))
    arguments = ("bench", "run", file, "--out", out, "--device", "cpu")
    assert run(*arguments).code == 0
    file.write_text(PROTOCOL.format(more="mean = [0.2, 0.2, 0.2]"))
    outcome = run(*arguments)
    assert outcome.code == 2, outcome.err
    assert outcome.err.strip().endswith("choose another place for the new ones")
    assert "net has other preprocessing than this run was begun with" in outcome.err
    assert "Traceback" not in outcome.err


def test_runs_of_earlier_versions_are_refused_with_the_reason() -> None:
    with pytest.raises(VitreousError, match=r"^world has another identity \(an earlier version .*\) than this run was"):
        refuse_other_model(replace(SETTING, label="world"), identity(FAMILIES["vit"]()), "choose another place")
