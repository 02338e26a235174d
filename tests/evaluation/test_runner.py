"""One unit of evaluation: a pure function of model, images and plan. And the table that is made of many."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from contract import State
from families import FAMILIES, images
from metric_probe import Probe, Ratio
from vitreous.datasets import Sample, read_samples
from vitreous.evaluation.plan import EvaluationPlan, image_shape_of, with_batch_sizes
from vitreous.evaluation.runner import ScoredUnit, score_unit
from vitreous.metrics import Curve, EvaluationConfig, Metric
from vitreous.tracing import memory

METHODS = ["generic", "smooth(ixg, samples=2)", "tis(masks=8)", "random"]
METRICS = ["insdel(steps=6)", "srg(steps=5)", "token_insertion_aopc", "deletion(explain_class=label, steps=4)"]


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 12)


LABELS = [index % 5 for index in range(12)]


def samples(model: vt.VisionModel, x: Tensor) -> list[Sample]:
    return list(read_samples(x, model, LABELS[: len(x)]))


def plan(
    model: vt.VisionModel, methods: Sequence[str] = METHODS, metrics: Sequence[Any] = METRICS, **settings: Any
) -> EvaluationPlan:
    definitions = {str(metric): vt.get_metric(metric) for metric in metrics}
    has_labels = settings.pop("has_labels", True)
    sizes = {name: settings.pop(name, None) for name in ("batch_size", "memory_gb")}
    config = with_batch_sizes(EvaluationConfig(**settings), model, (32, 32), **sizes)
    named = {name: vt.get_method(name) for name in methods}
    return EvaluationPlan(named, definitions, image_shape_of(model, (32, 32)), config, has_labels)


def same(one: ScoredUnit, other: ScoredUnit) -> bool:
    return all(np.array_equal(parts, other.parts[cell], equal_nan=True) for cell, parts in one.parts.items())


# -- a unit ------------------------------------------------------------------------------------------------------------


def test_a_unit_is_a_function_of_its_arguments(model: vt.VisionModel, x: Tensor) -> None:
    """The same bits again, after other units, whatever torch's own generator does, and nothing left on the model."""
    group, settings = samples(model, x)[:5], plan(model)
    before = State(model.module)
    first = score_unit(model, group, settings)
    score_unit(model, samples(model, x)[5:], settings)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert same(first, score_unit(model, group, settings))
    again = vt.wrap(FAMILIES["vit"]())
    assert same(first, score_unit(again, group, plan(again)))
    before.assert_same(model.module)


def test_a_table_is_a_loop_over_units(model: vt.VisionModel, x: Tensor) -> None:
    """The numbers of evaluate are those of its units, made anywhere and put together."""
    table = vt.evaluate(model, x, METHODS, METRICS, labels=LABELS, controls=False, n_bootstrap=1, memory_gb=0.001)
    assert (table.plan["images_per_unit"], table.plan["images"]) == (table.plan["forward_batch"], 12)
    settings = plan(model, memory_gb=0.001)
    size = settings.config.images_per_unit
    assert table.plan["images_per_unit"] == size < 12, "the budget cuts the pictures into several units"
    every = samples(model, x)
    units = [score_unit(model, every[start : start + size], settings) for start in range(0, 12, size)]
    assert len(units) > 1
    for cell, parts in table.parts.items():
        np.testing.assert_array_equal(np.concatenate([item.parts[cell] for item in units]), parts)
    assert table.plan["states"] == sum(sum(item.states.values()) for item in units)


def test_the_order_of_methods_is_not_part_of_a_plan(model: vt.VisionModel, x: Tensor) -> None:
    group = samples(model, x)[:4]
    assert same(score_unit(model, group, plan(model)), score_unit(model, group, plan(model, METHODS[::-1])))


def test_sizes_are_numbers_and_in_the_record(model: vt.VisionModel, x: Tensor) -> None:
    """What the record says is enough to make the same bits again."""
    table = vt.evaluate(
        model, x, METHODS, METRICS, labels=LABELS, controls=False, n_bootstrap=1, memory_gb=0.01, batch_size=7
    )
    message = table.plan
    assert (message["memory_gb"], message["forward_batch"]) == (0.01, 7)
    assert isinstance(message["attribution_batch"], int)
    report = json.loads(json.dumps(dict(message)))
    again = vt.evaluate(
        model,
        x,
        {name: item["spec"] for name, item in report["methods"].items()},
        list(report["metrics"]),
        labels=LABELS,
        controls=False,
        n_bootstrap=1,
        memory_gb=report["memory_gb"],
        batch_size=report["forward_batch"],
    )
    assert {key: again.plan[key] for key in ("images_per_unit", "attribution_batch", "forward_batch", "memory_gb")} == {
        key: message[key] for key in ("images_per_unit", "attribution_batch", "forward_batch", "memory_gb")
    }
    for cell, scores in table.scores.items():
        np.testing.assert_array_equal(scores, again.scores[cell])


def test_the_budget_reaches_engine_and_explainers(
    model: vt.VisionModel, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, list[int]] = {"states": [], "inputs": []}
    embed = type(model).embed
    from vitreous.tracing import context as contexts

    run = contexts.run_for_targets

    class Watched(type(model)):
        def embed(self, inputs: Tensor) -> Tensor:
            sizes["states"].append(len(inputs))
            return embed(self, inputs)

    def watched(model: Any, inputs: Tensor, *remainder: Any) -> Any:
        sizes["inputs"].append(len(inputs))
        return run(model, inputs, *remainder)

    mine = vt.wrap(FAMILIES["vit"]())
    mine.__class__ = Watched
    monkeypatch.setattr(contexts, "run_for_targets", watched)

    def largest(budget: float | None) -> tuple[int, int]:
        for size in sizes.values():
            size.clear()
        vt.evaluate(mine, x, "ixg", "insertion(steps=6)", controls=False, n_bootstrap=1, memory_gb=budget)
        return max(sizes["states"]), max(sizes["inputs"])

    roomy, tight = largest(None), largest(0.0008)
    assert roomy == (32, 12)
    assert tight[0] < 4
    assert tight[1] < 4


def test_a_unit_can_be_cancelled_between_inner_batches(model: vt.VisionModel, x: Tensor) -> None:
    """While explaining and while evaluating; afterwards everything is as it was."""
    group, settings = samples(model, x)[:4], plan(model, metrics=["insdel(steps=6)"], batch_size=3)
    ticks: list[int] = []
    expected = score_unit(model, group, settings, ticks.append)
    assert sum(ticks) == sum(expected.states.values())
    assert 0 in ticks, "explaining ticks too"
    before = State(model.module)

    class Stop(Exception):
        pass

    for last in range(len(ticks)):
        seen = 0

        def on_progress(states: int, last: int = last) -> None:
            nonlocal seen
            if seen == last:
                raise Stop
            seen += 1

        with pytest.raises(Stop):
            score_unit(model, group, settings, on_progress)
        assert seen == last
        before.assert_same(model.module)
    assert same(expected, score_unit(model, group, settings))


def test_a_size_that_ran_out_of_memory_is_not_tried_again(
    model: vt.VisionModel, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the next batch nor in the next unit, and the record says so."""
    tried: list[int] = []
    embed = type(model).embed

    class Small(type(model)):
        def embed(self, inputs: Tensor) -> Tensor:
            tried.append(len(inputs))
            if len(inputs) > 5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return embed(self, inputs)

    mine = vt.wrap(FAMILIES["vit"]())
    mine.__class__ = Small
    table = vt.evaluate(
        mine, x, "random", "insertion(steps=9)", controls=False, n_bootstrap=1, batch_size=20, memory_gb=0.002
    )
    too_large = [size for size in tried if size > 5]
    assert len(too_large) <= 4, too_large
    assert table.plan["memory_ran_out"]["forward_batch"] <= 5
    simple = vt.evaluate(
        model, x, "random", "insertion(steps=9)", controls=False, n_bootstrap=1, batch_size=5, memory_gb=0.002
    )
    np.testing.assert_allclose(table["random", "insertion(steps=9)"], simple["random", "insertion(steps=9)"], atol=1e-5)
    assert "memory_ran_out" not in simple.plan


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(model: vt.VisionModel) -> None:
    """Bytes of tensors that are alive, at the most, in a run over 8 and over 64 images from a generator."""

    def run(count: int) -> int:
        most = 0

        def look(done: float, total: int | None) -> None:
            nonlocal most
            alive = {}
            for object_ in gc.get_objects():
                if issubclass(type(object_), Tensor):
                    alive[object_.untyped_storage().data_ptr()] = object_.untyped_storage().nbytes()
            most = max(most, sum(alive.values()))

        stream = (images(model, 1, seed=seed)[0] for seed in range(count))
        options: dict[str, Any] = {"controls": False, "n_bootstrap": 1, "memory_gb": 0.001}
        table = vt.evaluate(model, stream, ["ixg", "random"], ["insertion(steps=3)"], progress=look, **options)
        assert table.plan["images_per_unit"] <= 8
        return most

    run(2)
    small, large = run(8), run(64)
    assert large < 1.15 * small, (small, large)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"has_labels": True, "samples": "unlabelled"}, "input-0 has no label"),
        ({"samples": "none"}, "no images"),
        ({"has_labels": False}, "needs the true classes"),
        ({"target": "given"}, "input-0 has no target"),
    ],
)
def test_bad_units(model: vt.VisionModel, x: Tensor, change: dict[str, Any], message: str) -> None:
    change = dict(change)
    kind = change.pop("samples", "")
    group = [] if kind == "none" else samples(model, x)[:2]
    if kind == "unlabelled":
        group = [replace(item, label=None) for item in group]
    with pytest.raises(vt.VitreousError, match=message):
        score_unit(model, group, plan(model, **change))


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table(model: vt.VisionModel, x: Tensor) -> vt.ScoreTable:
    metrics: list[str | Metric] = ["insertion(steps=6)", "insdel(steps=6)", "average_drop", Ratio()]
    return vt.evaluate(model, x, ["ixg", "generic"], metrics, n_bootstrap=200)


def test_a_metric_may_aggregate_for_itself(table: vt.ScoreTable) -> None:
    """A ratio of sums: the score of all, its interval and differences, each resample aggregated in a loop."""
    from vitreous.metrics.bootstrap import resamples

    parts = table.parts["ixg", "ratio"]
    assert parts.shape == (12, 2)
    assert table.mean("ixg", "ratio") == pytest.approx(parts[:, 0].sum() / parts[:, 1].sum())
    assert table.mean("ixg", "ratio") != pytest.approx((parts[:, 0] / parts[:, 1]).mean(), rel=1e-4)
    np.testing.assert_allclose(table["ixg", "ratio"], parts[:, 0] / parts[:, 1])
    weights = np.concatenate(list(resamples(12, 200)))

    def item(name: str) -> np.ndarray:
        report = table.parts[name, "ratio"]
        sampled = [np.repeat(np.arange(12), row.astype(int)) for row in weights]
        return np.array([report[rows, 0].sum() / report[rows, 1].sum() for rows in sampled])

    low, upper = table.interval("ixg", "ratio")
    np.testing.assert_allclose([low, upper], np.quantile(item("ixg"), [0.025, 0.975]))
    gap = table.difference("ixg", "generic", "ratio")
    np.testing.assert_allclose([gap.low, gap.high], np.quantile(item("ixg") - item("generic"), [0.025, 0.975]))
    assert gap.mean == pytest.approx(table.mean("ixg", "ratio") - table.mean("generic", "ratio"))


def test_tables_keep_the_curves(model: vt.VisionModel, x: Tensor, table: vt.ScoreTable) -> None:
    curve = table.curve("ixg", "insertion(steps=6)")
    assert isinstance(curve, Curve)
    assert curve.y.shape == (12, len(curve.x))
    np.testing.assert_allclose(
        ((curve.y[:, 1:] + curve.y[:, :-1]) / 2) @ np.diff(curve.x),
        table["ixg", "insertion(steps=6)"],
    )
    np.testing.assert_allclose(curve.mean, curve.y.mean(axis=0))
    both = [table.curve("ixg", "insdel(steps=6)", name) for name in ("insertion", "deletion")]
    np.testing.assert_array_equal(both[0].y, curve.y)
    with torch.no_grad():
        chance = model.logits(x).softmax(dim=1).amax(dim=1).numpy()
    np.testing.assert_allclose(both[1].y[:, 0], chance, rtol=1e-4)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (("ixg", "average_drop"), "average_drop is not read from a curve"),
        (("ixg", "insdel(steps=6)"), "name one of insertion, deletion"),
        (("ixg", "insdel(steps=6)", "luck"), "no curve 'luck', but insertion, deletion"),
        (("igx", "insertion(steps=6)"), "did you mean"),
    ],
)
def test_curves_that_are_not_there(table: vt.ScoreTable, cell: tuple[str, ...], message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        table.curve(*cell)


def test_a_table_can_be_read_again(table: vt.ScoreTable, model: vt.VisionModel, x: Tensor, tmp_path: Any) -> None:
    metrics = ["insertion(steps=6)", "insdel(steps=6)", "token_deletion_accuracy"]
    broken = torch.randn(12, 4, 4)
    broken[3] = torch.nan
    report = vt.evaluate(model, x, {"ixg": "ixg", "bad": broken}, metrics, labels=LABELS, n_bootstrap=50)
    path = report.save(tmp_path / "table.json")
    again = vt.ScoreTable.load(path)
    assert str(again) == str(report)
    assert again.to_json() == report.to_json() == json.loads(path.read_text())
    assert again.difference("ixg", "random", "insdel(steps=6)") == report.difference("ixg", "random", "insdel(steps=6)")
    np.testing.assert_allclose(
        again.curve("bad", "insertion(steps=6)").y, report.curve("bad", "insertion(steps=6)").y, rtol=1e-6
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": "vitreous.evaluate/1"}', '{"schema": "vitreous.evaluate/2"}']
)
def test_what_is_no_table(tmp_path: Any, text: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(vt.VitreousError, match=r"t\.json"):
        vt.ScoreTable.load(tmp_path / "t.json")
    with pytest.raises(vt.VitreousError, match="missing"):
        vt.ScoreTable.load(tmp_path / "missing.json")


# -- classes -----------------------------------------------------------------------------------------------------------


def test_the_softmax_restriction_reaches_explainers(model: vt.VisionModel, x: Tensor) -> None:
    """The maps evaluated are those of the log-probability among these classes, and the prediction is one of them."""
    only = [0, 2, 3]
    probe = Probe()
    vt.evaluate(model, x, "logprob(ixg)", [probe], class_subset=only, controls=False, n_bootstrap=1)
    with torch.no_grad():
        best = torch.tensor(only)[model.logits(x)[:, only].argmax(dim=1)].tolist()
    alone = vt.get_method("logprob(ixg)").attribute(model, x, target=best, class_subset=only)
    np.testing.assert_allclose(probe.heard[0].maps("given"), alone, rtol=1e-3, atol=1e-7)
    free = vt.get_method("logprob(ixg)").attribute(model, x, target=best)
    assert not np.allclose(alone, free, rtol=1e-2)


def test_every_image_may_have_its_own_classes(model: vt.VisionModel, x: Tensor) -> None:
    """VAR's class set, image by image, in one evaluation."""
    sets = [[0, 1], [2, 3, 4], [1, 4], [0, 2, 3]] * 3
    spec = "var(ixg)"
    targets = [set_[0] for set_ in sets]
    probe = Probe()
    vt.evaluate(model, x, spec, [probe], target=targets, compare_classes=sets, controls=False, n_bootstrap=1)
    result = probe.heard[0].maps("given")
    for place, (image, own) in enumerate(zip(x, sets, strict=True)):
        alone = vt.get_method(spec).attribute(model, image[None], target=own[0], compare_classes=own)
        np.testing.assert_allclose(result[place], alone[0], rtol=1e-3, atol=1e-6)
    shared = Probe()
    vt.evaluate(model, x, spec, [shared], target=0, compare_classes=[0, 1], controls=False, n_bootstrap=1)
    alone = vt.get_method(spec).attribute(model, x, target=0, compare_classes=[0, 1])
    np.testing.assert_allclose(shared.heard[0].maps("given"), alone, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("compare_classes", "message"),
    [
        ([[0, 1]] * 11, "fewer sets of classes"),
        ([[0, 1]] * 13, "more sets of classes"),
        ("cat", "'cat'"),
        ([0, 9], "outside"),
        (3, "3"),
    ],
)
def test_bad_class_sets(model: vt.VisionModel, x: Tensor, compare_classes: Any, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        vt.evaluate(model, x, "var(ixg)", "average_drop", target=0, compare_classes=compare_classes, n_bootstrap=1)


def test_the_inner_batch_is_remembered() -> None:
    """Halved once, for good."""
    inner, tried = memory.InnerBatch(16), []

    def work(start: int, stop: int) -> int:
        tried.append(stop - start)
        if stop - start > 4:
            raise MemoryError
        return stop - start

    assert sum(inner.run(work, 20)) == 20
    assert inner.size == 4
    tried.clear()
    inner.run(work, 20)
    assert max(tried) == 4
