"""What each method costs, where methods share passes: counted in forwards, from the unit to the page of the report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from run_files import METHODS, SETTING, add_plan, create_store, protocol, save_maps, save_scores, score_unit
from tiny_benchmark import ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.report import report
from vitreous.benchmark.store import Store
from vitreous.benchmark.units import Unit
from vitreous.datasets import read_samples
from vitreous.evaluation.plan import EvaluationPlan, ExternalExplainer, image_shape_of, with_batch_sizes
from vitreous.evaluation.runner import Attributor, Cost
from vitreous.evaluation.runner import attribute_unit as explained
from vitreous.methods import compute_attributions
from vitreous.metrics import EvaluationConfig
from vitreous.tracing import Context, Target

SPECS = ["raw_attention", "generic", "ixg", "decompx", "logprob(ixg)", "smooth(ixg, samples=3)", "random"]


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture
def forwards(model: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many inputs the model has seen so far, which is what the clock shows."""
    seen = [0]

    def count(module: Any, args: Any) -> None:
        seen[0] += len(args[0])

    handle = model.module.patch_embed.register_forward_pre_hook(count)
    monkeypatch.setattr(Attributor, "_now", lambda self: float(seen[0]))
    yield seen
    handle.remove()


def explaining(model: vt.VisionModel, methods: Any, count: int = 2, modes: Any = ("given",), **more: Any) -> Any:
    specs = {name: vt.get_method(name) for name in methods} if isinstance(methods, list) else methods
    samples = list(read_samples(images(model, count), model, [1] * count))
    config = with_batch_sizes(EvaluationConfig(**more), model, (32, 32))
    options = EvaluationPlan(specs, {"gini": vt.get_metric("gini")}, image_shape_of(model, (32, 32)), config, True)
    return explained(model, samples, options, modes)


def test_passes_are_counted_with_those_who_read_them(model: vt.VisionModel, forwards: list[int]) -> None:
    """Two pictures: plain gradients are one pass of two methods; what needs no backward rides along with the first."""
    assert explaining(model, SPECS).costs == {
        "decompx": Cost(0, 2, 2),  # the first by name, as plans have them
        "raw_attention": Cost(0, 2, 2),
        "generic": Cost(0, 2, 2),
        "ixg": Cost(0, 2, 2),
        "logprob(ixg)": Cost(2, 0, 2),
        "smooth(ixg, samples=3)": Cost(6, 0, 2),
        "random": Cost(0, 0, 2),
    }


@pytest.mark.parametrize("name", ["raw_attention", "ixg", "smooth(ixg, samples=3)"])
def test_alone_a_method_has_all_for_itself(model: vt.VisionModel, forwards: list[int], name: str) -> None:
    (actual,) = explaining(model, [name]).costs.values()
    assert actual.shared == 0
    assert actual.own == (6 if name.startswith("smooth") else 2)


def test_every_explained_class_counts(model: vt.VisionModel, forwards: list[int]) -> None:
    """The true class is explained too where it is not the predicted one: more maps, and their passes."""
    actual = explaining(model, ["ixg", "generic", "raw_attention"], 4, ("given", "label"))
    other = int((actual.classes["given"] != actual.classes["label"]).sum())
    assert other > 0
    assert actual.costs["ixg"] == Cost(0, 4 + other, 4 + other)
    assert actual.costs["raw_attention"] == Cost(0, 4, 4), "which knows no class"


def test_a_callable_is_its_own(model: vt.VisionModel, forwards: list[int]) -> None:
    def find(own: vt.VisionModel, samples: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        own.module(inputs), own.module(inputs)
        return torch.ones(len(inputs), 4, 4)

    methods = {
        "theirs": ExternalExplainer(find, "callable", True),
        "ixg": vt.get_method("ixg"),
        "generic": vt.get_method("generic"),
    }
    actual = explaining(model, methods).costs
    assert actual["theirs"] == Cost(4, 0, 2)
    assert actual["ixg"] == Cost(0, 2, 2)


def test_one_pass_at_a_time_gives_the_same_maps(model: vt.VisionModel, forwards: list[int]) -> None:
    """No pass is run for the sake of the clock, and no bit differs from passes prepared all at once."""
    explaining(model, SPECS)  # the model is verified on its first inputs
    before = forwards[0]
    actual = explaining(model, SPECS)
    taken = forwards[0] - before
    x = images(model, 2)
    target = Target(classes=actual.classes["given"].cpu())
    before = forwards[0]
    names = sorted(SPECS)
    context = Context(model, x, target, batch=actual.config.attribution_batch)
    alone = compute_attributions(context, [vt.get_method(name) for name in names])
    request = 2  # to know the predicted class
    assert taken == forwards[0] - before + request
    for name, item in zip(names, alone, strict=True):
        assert torch.equal(actual.maps[name].values, item.map), name


# -- from units to the report ------------------------------------------------------------------------------------------


def test_units_record_what_each_method_took(tmp_path: Path) -> None:
    store = ran(tiny(images=2), tmp_path / "run")
    (text,) = [store.info(unit.id) for unit in store.plans()[0].units if not unit.is_scoring]
    assert [element.keys() for element in text["costs"]] == [{"own", "shared", "maps"}] * 2
    assert all(entry["maps"] == 2 and entry["own"] > 0 for entry in text["costs"])
    assert sum(item["own"] for item in text["costs"]) + text["costs"][0]["shared"] <= text["seconds"]


def cost_section(store: Store) -> str:
    page = report(store.path).page.read_text()
    return page[page.index('id="m1-cost"') : page.index('id="settings"')]


def test_costs_are_added_up_and_shown(tmp_path: Path) -> None:
    store = create_store(tmp_path, {"protocol": protocol().to_json()})
    both = Unit.of(SETTING, 0, 0, ["a" * 8, "b" * 8], ["generic", "ours"], modes=["given"])
    third = Unit.of(SETTING, 0, 0, ["c" * 8], ["random", "generic"], modes=["given"])
    unit = score_unit("abc")
    add_plan(store, [both, third, unit])
    save_maps(store, both, {"generic": Cost(0.25, 1.0, 2), "ours": Cost(0.0, 1.0, 2)})
    save_maps(store, third, {"generic": Cost(0.5, 3.0, 1), "random": Cost(0.003, 0.0, 1)})
    save_scores(store, unit)
    (actual,) = collect(store)
    assert actual.costs == {"generic": Cost(0.75, 4.0, 3), "ours": Cost(0.0, 1.0, 2), "random": Cost(0.003, 0.0, 1)}
    rows = re.findall(r"<tr.*?</tr>", cost_section(store), re.S)[1:]
    output = [re.findall(r"<td[^>]*>(.*?)</td>", row)[2:4] for row in rows]
    assert output == [["1.6 s", "250 ms"], ["500 ms", "0.0 ms"], ["3.0 ms", "3.0 ms"]]


def test_units_that_do_not_tell_show_no_time(tmp_path: Path) -> None:
    store = create_store(tmp_path, {"protocol": protocol().to_json()})
    unit, maps = score_unit("ab"), Unit.of(SETTING, 0, 0, ["a" * 8, "b" * 8], list(METHODS), modes=["given"])
    add_plan(store, [maps, unit])
    save_maps(store, maps)
    save_scores(store, unit)
    (actual,) = collect(store)
    assert actual.costs == {}
    assert "time per map" not in cost_section(store)
