"""The generic tester: what every metric must do. A new metric joins by being registered."""

from __future__ import annotations

import inspect
import math
import pickle
import re
from collections.abc import Sequence
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

INFOS = {info.name: info for info in vt.list_metrics()}
SPECS = [spec for info in INFOS.values() for spec in (info.name, *(f"{info.name}@{p}" for p in info.presets))]
FEWER = {"steps": 12, "subsets": 16, "seeds": 1, "samples": 3}
"""224 steps or 200 copies are for large images."""
SMALL = ImageShape((32, 32), (4, 4))
CORNER = np.tri(32, 32, -14) > 0
PARTS = {"marker": np.tri(32, 32, -24) > 0, "top": np.flipud(CORNER), "right": np.fliplr(CORNER)}
ANNOTATION = vt.Annotation(CORNER, parts=PARTS)


def small(spec: str) -> Metric:
    metric = vt.get_metric(spec)
    fewer = {name: most for name, most in FEWER.items() if metric.settings.get(name, 0) > most}
    return type(metric)(**(metric.settings | fewer))


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(params=INFOS)
def metric(request: pytest.FixtureRequest) -> Metric:
    return small(request.param)


def random_maps(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 4, 4, generator=torch.Generator().manual_seed(seed))


def evaluations(model: vt.VisionModel, metrics: Sequence[Metric], x: Tensor, maps: Tensor, **config: Any) -> Evaluation:
    """The answers to some metrics about maps that are computed again as a function of the image, not of its place."""
    evaluator = Evaluator(model, metrics, ImageShape.of(model, x), ["pred", "label"], EvaluationConfig(**config))
    logits = evaluator.runner.forward(x)
    labels = (x.flatten(1).sum(dim=1) * 1000).long() % 5
    rows = {mode: np.arange(len(x)) for mode in evaluator.modes}
    classes = {"pred": logits.argmax(dim=1), "label": labels}
    evaluator.add(x, logits, classes, {"it": Maps(maps, rows)}, [ANNOTATION] * len(x))
    coarse = x[:, :, ::8, ::8].float().numpy()
    again = {
        (request, mode): np.stack([(1 + n / 9) * coarse[:, n % 3] for n in range(request.num_maps)], axis=1)
        for mode, requests in evaluator.reattributions.items()
        for request in requests
    }
    return evaluator.finish({"it": again})["it"]


def scores(model: vt.VisionModel, metric: Metric, x: Tensor, maps: Tensor, **config: Any) -> np.ndarray:
    return metric.read(evaluations(model, [metric], x, maps, **config))[0]


def tolerance(metric: Metric) -> float:
    return 1e-3 if getattr(metric, "percent", False) else 1e-5


def test_collecting_and_independence(model: vt.VisionModel, metric: Metric) -> None:
    """Update, compute, merge and reset; the same again bit for bit; neighbours, batches and dtype to rounding."""
    x, maps = images(model, 5), random_maps(5)
    model.module.train()
    next(model.module.children()).eval()
    before, copies = State(model.module), (x.clone(), maps.clone())
    try:
        all_five = evaluations(model, [metric], x, maps)
        before.assert_same(model.module)
    finally:
        model.module.eval()
    assert torch.equal(x, copies[0]), "the images were changed"
    assert torch.equal(maps, copies[1]), "the maps were changed"

    with pytest.raises(vt.VitreousError, match="has seen no maps yet"):
        metric.compute()
    metric.update(all_five)
    result = metric.compute()
    assert result.scores.shape == result.flags.shape == (5,)
    assert np.isfinite(result.scores).all() or metric.can_exclude_images
    if type(metric).aggregate is Metric.aggregate:
        assert result.mean == pytest.approx(np.nanmean(result.scores), nan_ok=True)
    assert result.degenerate == {"constant": 0, "zero": 0, "nonfinite": 0}
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(metric)).compute().scores, result.scores)

    first, second = metric.clone(), metric.clone()
    first.update(evaluations(model, [metric], x[:2].flip(0), maps[:2].flip(0)))
    second.update(evaluations(model, [metric], x[2:], maps[2:], forward_batch=3))
    first.merge(second)
    order = [1, 0, 2, 3, 4]
    np.testing.assert_allclose(first.compute().scores, result.scores[order], atol=tolerance(metric))
    assert len(second.compute().scores) == 3, "merging changed the other"
    metric.reset()
    metric.update(all_five)
    np.testing.assert_array_equal(metric.compute().parts, result.parts)

    model.module.double()
    try:
        double = scores(model, metric, x.double(), maps)
    finally:
        model.module.float()
    np.testing.assert_allclose(double, result.parts, rtol=1e-3, atol=200 * tolerance(metric))


def test_degenerate_maps(model: vt.VisionModel, metric: Metric) -> None:
    x, maps = images(model, 4), random_maps(4)
    maps[0], maps[1], maps[2, 1, 1] = 0.3, 0.0, math.nan
    metric.update(evaluations(model, [metric], x, maps))
    result = metric.compute()
    assert result.flags.tolist() == [1, 2, 3, 0]
    assert result.degenerate == {"constant": 1, "zero": 1, "nonfinite": 1}
    unscored = np.isnan(result.scores)
    if metric.can_exclude_images:
        again = metric.clone()
        again.update(evaluations(model, [metric], x, random_maps(4, seed=2)))
        np.testing.assert_array_equal(unscored, np.isnan(again.compute().scores) | (result.flags == 3))
    else:
        assert unscored.tolist() == [False, False, True, False]
    if type(metric).aggregate is Metric.aggregate:
        assert result.mean == pytest.approx(np.nanmean(result.scores), nan_ok=True)


@pytest.fixture(scope="module")
def together(model: vt.VisionModel) -> Evaluation:
    """The answers to every metric and preset at once."""
    return evaluations(model, [small(spec) for spec in SPECS], images(model, 4), random_maps(4))


@pytest.mark.parametrize("spec", SPECS)
def test_presets_read_what_all_requested_together(model: vt.VisionModel, together: Evaluation, spec: str) -> None:
    """A preset is a metric as well; beside all others it has the scores that it has alone."""
    metric = small(spec)
    shared = metric.read(together)[0]
    assert len(shared) == 4
    assert np.isfinite(shared).all() or metric.can_exclude_images
    if "@" in spec:
        alone = scores(model, metric, images(model, 4), random_maps(4))
        np.testing.assert_allclose(shared, alone, atol=tolerance(metric))


@pytest.mark.parametrize("spec", SPECS)
def test_spec_and_pickling(spec: str) -> None:
    metric = vt.get_metric(spec)
    again, copy = vt.get_metric(metric.spec), pickle.loads(pickle.dumps(metric))
    assert again == metric == copy
    assert again is not metric
    assert again.spec == metric.spec == copy.spec
    assert vt.get_metric(metric) is metric


@pytest.mark.parametrize("info", INFOS.values(), ids=INFOS)
def test_facts(info: Any) -> None:
    """Paper, direction and forwards are data, and the docstring says the rest."""
    metric = info.default
    requests = metric.requests(SMALL).values()
    assert isinstance(metric.higher_is_better, bool)
    assert info.papers or info.builds_on
    removals = [request for request in requests if isinstance(request, RankedRemoval)]
    assert metric.num_forwards() + metric.num_shared_forwards() >= bool(removals)
    assert all(0 <= count <= removal.size(SMALL) for removal in removals for count in removal.counts)
    assert set(metric.settings) == {parameter.name for parameter in info.parameters}


@pytest.mark.parametrize("info", INFOS.values(), ids=INFOS)
def test_docstring(info: Any) -> None:
    """One sentence, the formula, every parameter in the order of the signature, the cost, the paper, an example."""
    text = inspect.getdoc(info.factory)
    summary, remainder = text.split("\n", 1)
    assert summary == info.summary
    assert 20 < len(summary) < 120
    assert ".. math::" in remainder
    assert re.search(r"\bCost:\s", remainder)
    heads = re.findall(r"^(\w+)\n-+$", remainder, re.MULTILINE)
    assert heads == ["Parameters", "Notes", "References", "Examples"]
    described = re.search(r"Parameters\n-+\n(.*?)\n\nNotes\n", remainder, re.DOTALL)[1]
    names = [name for line in described.splitlines() if line[0] != " " for name in line.split(" : ")[0].split(", ")]
    assert names == [parameter.name for parameter in info.parameters]
    for paper in (info.papers or info.builds_on)[:1]:
        references = " ".join(re.search(r"References\n-+\n(.*?)\n\nExamples", remainder, re.DOTALL)[1].split())
        assert paper.title in references
        assert str(paper.year) in references


@pytest.mark.parametrize("info", INFOS.values(), ids=INFOS)
def test_bad_specs(info: Any) -> None:
    for wrong, message in {
        "explain_class=nobody": "explain_class='nobody' is not one of given, pred, label",
        "score_class=nobody": "score_class='nobody' is not one of pred, label, explained",
        "colour=red": "has no parameter 'colour'",
    }.items():
        with pytest.raises(SpecError, match=message):
            vt.get_metric(f"{info.name}({wrong})")
    with pytest.raises(SpecError, match="has no preset 'nobody'"):
        vt.get_metric(f"{info.name}@nobody")
    for parameter in info.parameters:
        if parameter.name.endswith("baseline"):
            with pytest.raises(SpecError, match=r"unknown baseline 'snow'.*zero_norm, black.*blur_51"):
                vt.get_metric(f"{info.name}({parameter.name}=snow)")
            with pytest.raises(SpecError, match="'drop' removes tokens"):
                vt.get_metric(f"{info.name}({parameter.name}=drop)")
        if parameter.name == "steps":
            with pytest.raises(SpecError, match="steps=0 must be at least"):
                vt.get_metric(f"{info.name}(steps=0)")


def test_labels_are_requested_by_name(model: vt.VisionModel) -> None:
    x = images(model, 2)
    metrics = [small(spec) for spec in SPECS]
    labelled = [metric for metric in metrics if metric.needs_labels]
    assert len(labelled) > 20
    for metric in labelled:
        with pytest.raises(TargetError, match=f"{metric.info.name}.* needs the true classes: give labels"):
            vt.evaluate(model, x, "ixg", metric)
    others = list({metric.spec: metric for metric in metrics if not metric.needs_labels}.values())
    table = vt.evaluate(model, x, "ixg", others, annotations=[ANNOTATION] * 2, n_bootstrap=5)
    assert table.images == ("input-0", "input-1")


def test_other_metrics_do_not_merge() -> None:
    with pytest.raises(SpecError, match="cannot be merged"):
        vt.get_metric("insertion").merge(vt.get_metric("deletion"))
    with pytest.raises(SpecError, match="cannot be merged"):
        vt.get_metric("insertion").merge(vt.get_metric("insertion(steps=3)"))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(SpecError, match="two metrics are called 'abpc'"):
        vt.register_metric("fresh", family="x", aliases=("abpc",))(type(vt.get_metric("srg")))
    with pytest.raises(SpecError, match="unknown metric 'insrtion'; did you mean insertion"):
        vt.get_metric("insrtion")
    with pytest.raises(SpecError, match="a metric is a spec or a Metric, got int"):
        vt.get_metric(3)
    assert vt.get_metric("abpc") == vt.get_metric("srg")


def test_what_was_not_requested_is_refused(model: vt.VisionModel) -> None:
    evaluation = evaluations(model, [vt.get_metric("gini")], images(model, 1), random_maps(1))
    with pytest.raises(vt.VitreousError, match="did not request"):
        evaluation.probability(RankedRemoval.deletion("black", [3]))


def test_token_metrics_need_models_that_drop_tokens() -> None:
    from zoo import ALL

    swin = vt.wrap(ALL["swin"]())
    with pytest.raises(vt.VitreousError, match="cannot leave tokens out"):
        vt.evaluate(swin, images(swin, 1), "gradcam", "token_deletion_aopc")
    assert np.isfinite(vt.evaluate(swin, images(swin, 1), "gradcam", "srg", n_bootstrap=5)["gradcam", "srg"]).all()
