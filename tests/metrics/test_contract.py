"""The generic tester: what every metric must do. A new metric joins by being registered."""

from __future__ import annotations

import inspect
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from contract import State
from families import FAMILIES, images
from vitreous.errors import SpecError, TargetError
from vitreous.metrics import Evaluation, EvaluationConfig, Evaluator, ImageShape, Maps, Metric, RankedRemoval

SPELLINGS = [
    spelling
    for info in vt.list_metrics()
    for spelling in (info.name, *(f"{info.name}@{preset}" for preset in info.presets))
]
SHORT = {"steps": 12}  # 224 steps are for large images
SMALL = ImageShape((32, 32), (4, 4))
_CORNER = np.tri(32, 32, -14) > 0
_PARTS = {"marker": np.tri(32, 32, -24) > 0, "top": np.flipud(_CORNER), "right": np.fliplr(_CORNER)}
KNOWN = vt.Annotation(_CORNER, parts=_PARTS)  # corners of the image


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


def made(spec: str) -> Metric:
    metric = vt.get_metric(spec)
    return type(metric)(**(metric.settings | SHORT)) if getattr(metric, "steps", 0) > 100 else metric


@pytest.fixture(params=SPELLINGS)
def metric(request: pytest.FixtureRequest) -> Metric:
    return made(request.param)


def aggregates(metric: Metric) -> bool:
    """Whether its score of all images is something else than the mean of theirs."""
    return type(metric).aggregate is not Metric.aggregate


def maps(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, 4, generator=torch.Generator().manual_seed(seed))


def remade(x: Tensor, count: int) -> np.ndarray:
    """Maps that a metric wants to be made again, of the image and not of its place: ``[B, count, h, w]``."""
    return np.stack([(1 + copy / count) * x[:, copy % 3, ::8, ::8].float().numpy() for copy in range(count)], axis=1)


def answers(model: vt.VisionModel, metric: Metric, x: Tensor, values: Tensor, **options: Any) -> Evaluation:
    image_shape = ImageShape(tuple(x.shape[2:]), model.grid(x))
    pool = Evaluator(model, [metric], image_shape, ["pred", "label"], EvaluationConfig(**options))
    looked = pool.engine.look(x)
    labels = (x.flatten(1).sum(dim=1) * 1000).long() % 5  # of the image, not of its place
    rows = {mode: np.arange(len(x)) for mode in pool.modes}
    pool.add(x, looked, {"pred": looked.argmax(dim=1), "label": labels}, {"it": Maps(values, rows)}, [KNOWN] * len(x))
    again = {(need, mode): remade(x, need.count) for mode, needs in pool.explained.items() for need in needs}
    return pool.finish({"it": again})["it"]


def test_update_compute_reset_merge(model: vt.VisionModel, metric: Metric) -> None:
    x, values = images(model, 5), maps(5)
    with pytest.raises(vt.VitreousError, match="has seen no maps yet"):
        metric.compute()
    metric.update(answers(model, metric, x, values))
    whole = metric.compute()
    assert whole.scores.shape == whole.flags.shape == (5,)
    assert np.isfinite(whole.scores).all() or metric.can_exclude_images
    if not aggregates(metric):
        assert whole.mean == pytest.approx(np.nanmean(whole.scores))
    assert whole.degenerate == {"constant": 0, "zero": 0, "nonfinite": 0}

    metric.reset()
    one, other = metric.clone(), metric.clone()
    one.update(answers(model, metric, x[:2], values[:2]))
    other.update(answers(model, metric, x[2:4], values[2:4]))
    other.update(answers(model, metric, x[4:], values[4:]))
    one.merge(other)
    rounding = 1e-3 if getattr(metric, "percent", False) else 1e-5
    np.testing.assert_allclose(one.compute().scores, whole.scores, atol=rounding)
    assert len(other.compute().scores) == 3, "merging changed the other"
    metric.update(answers(model, metric, x[:1], values[:1]))
    assert len(metric.compute().scores) == 1, "reset forgot nothing"


def test_deterministic_and_independent(model: vt.VisionModel, metric: Metric) -> None:
    """The same again bit for bit; neighbours, batches and the dtype of the model to rounding."""
    x, values = images(model, 4), maps(4)
    first = metric.score(answers(model, metric, x, values))
    np.testing.assert_array_equal(first, metric.score(answers(model, metric, x, values)))
    back = metric.score(answers(model, metric, x.flip(0), values.flip(0)))[::-1]
    np.testing.assert_allclose(back, first, atol=1e-3 if getattr(metric, "percent", False) else 1e-5)
    small = metric.score(answers(model, metric, x, values, forward_batch=3))
    np.testing.assert_allclose(small, first, atol=1e-3 if getattr(metric, "percent", False) else 1e-5)

    model.module.double()
    try:
        double = metric.score(answers(model, metric, x.double(), values))
    finally:
        model.module.float()
    np.testing.assert_allclose(double, first, rtol=1e-3, atol=2e-3 * (100 if getattr(metric, "percent", False) else 1))


def test_nothing_is_left_behind(model: vt.VisionModel, metric: Metric) -> None:
    x, values = images(model, 2), maps(2)
    model.module.train()
    next(model.module.children()).eval()
    before, kept = State(model.module), (x.clone(), values.clone())
    try:
        answers(model, metric, x, values)
        before.assert_same(model.module)
    finally:
        model.module.eval()
    assert torch.equal(x, kept[0])
    assert torch.equal(values, kept[1])


def test_degenerate_maps(model: vt.VisionModel, metric: Metric) -> None:
    x, values = images(model, 4), maps(4)
    values[0], values[1], values[2, 1, 1] = 0.3, 0.0, math.nan
    metric.update(answers(model, metric, x, values))
    found = metric.compute()
    assert found.flags.tolist() == [1, 2, 3, 0]
    assert found.degenerate == {"constant": 1, "zero": 1, "nonfinite": 1}
    lost = np.isnan(found.scores)
    if metric.can_exclude_images:
        again = metric.clone()
        again.update(answers(model, metric, x, maps(4, seed=2)))
        np.testing.assert_array_equal(lost, np.isnan(again.compute().scores) | (found.flags == 3))
    else:
        assert lost.tolist() == [False, False, True, False]
    if not aggregates(metric):
        assert found.mean == pytest.approx(np.nanmean(found.scores))


def test_spelling_and_pickling(metric: Metric) -> None:
    again = vt.get_metric(metric.spec)
    assert again == metric
    assert again is not metric
    assert again.spec == metric.spec
    assert vt.get_metric(metric) is metric
    copy = pickle.loads(pickle.dumps(metric))
    assert copy == metric
    assert copy.spelling == metric.spec


def test_pickling_keeps_what_was_collected(model: vt.VisionModel, metric: Metric) -> None:
    metric.update(answers(model, metric, images(model, 2), maps(2)))
    copy = pickle.loads(pickle.dumps(metric))
    np.testing.assert_array_equal(copy.compute().scores, metric.compute().scores)


def test_facts(metric: Metric) -> None:
    """Paper, direction and forwards are data, and the docstring says the rest."""
    info = metric.info
    assert isinstance(metric.higher_is_better, bool)
    assert info.papers or info.builds_on
    costs = info.num_forwards + info.num_shared_forwards + info.num_reattributions
    assert costs >= 1 or not any(isinstance(need, RankedRemoval) for need in metric.requests(SMALL))
    assert len(info.summary) > 20
    assert "cost" in inspect.getdoc(info.factory).lower()
    assert set(metric.settings) == {parameter.name for parameter in info.parameters}
    for need in metric.requests(SMALL):
        if isinstance(need, RankedRemoval):
            assert all(0 <= count <= SMALL.size(need.unit) for count in need.counts)


@pytest.mark.parametrize("info", vt.list_metrics(), ids=lambda info: info.name)
def test_bad_spellings(info: Any) -> None:
    for wrong, said in {
        "explain_class=nobody": "explain_class='nobody' is not one of given, pred, label",
        "score_class=nobody": "score_class='nobody' is not one of pred, label, explained",
        "colour=red": "has no parameter 'colour'",
    }.items():
        with pytest.raises(SpecError, match=said):
            vt.get_metric(f"{info.name}({wrong})")
    with pytest.raises(SpecError, match="has no preset 'nobody'"):
        vt.get_metric(f"{info.name}@nobody")
    for parameter in info.parameters:
        if parameter.name.endswith("substrate"):
            with pytest.raises(SpecError, match=r"unknown substrate 'snow'.*zero_norm, black.*blur_51"):
                vt.get_metric(f"{info.name}({parameter.name}=snow)")
            with pytest.raises(SpecError, match="'drop' removes tokens"):
                vt.get_metric(f"{info.name}({parameter.name}=drop)")
        if parameter.name == "steps":
            with pytest.raises(SpecError, match="steps=0 must be at least"):
                vt.get_metric(f"{info.name}(steps=0)")


def test_labels_are_asked_for_by_name(model: vt.VisionModel, metric: Metric) -> None:
    x = images(model, 2)
    if not metric.needs_labels:
        assert vt.evaluate(model, x, "ixg", metric, annotations=[KNOWN] * 2, n_bootstrap=5).images == (
            "input-0",
            "input-1",
        )
        return
    with pytest.raises(TargetError, match="needs the true classes: give labels") as error:
        vt.evaluate(model, x, "ixg", metric)
    assert metric.info.name in str(error.value)


def test_other_metrics_do_not_merge() -> None:
    with pytest.raises(SpecError, match="cannot be merged"):
        vt.get_metric("insertion").merge(vt.get_metric("deletion"))
    with pytest.raises(SpecError, match="cannot be merged"):
        vt.get_metric("insertion").merge(vt.get_metric("insertion(steps=3)"))


def test_a_name_is_given_once() -> None:
    from vitreous.metrics import register_metric

    with pytest.raises(SpecError, match="two metrics are called 'abpc'"):
        register_metric("fresh", family="x", aliases=("abpc",))(type(vt.get_metric("srg")))
    with pytest.raises(SpecError, match="unknown metric 'insrtion'; did you mean insertion"):
        vt.get_metric("insrtion")
    with pytest.raises(SpecError, match="a metric is a spelling or a Metric, got int"):
        vt.get_metric(3)
    assert vt.get_metric("abpc") == vt.get_metric("srg")


def test_token_metrics_need_models_that_drop_tokens() -> None:
    from zoo import EVERY

    swin = vt.wrap(EVERY["swin"]())
    with pytest.raises(vt.VitreousError, match="cannot leave tokens out"):
        vt.evaluate(swin, images(swin, 1), "gradcam", "token_deletion_aopc")
    assert np.isfinite(vt.evaluate(swin, images(swin, 1), "gradcam", "srg", n_bootstrap=5)["gradcam", "srg"]).all()
