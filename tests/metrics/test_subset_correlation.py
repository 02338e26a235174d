"""Random subsets removed one at a time, the model called directly, formulas written out; what linear models score."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from linear_model import Linear, noise, pooled
from metric_probe import Probe
from vitreous.metrics import ImageShape, Masks

SMALL = "subsets=12"
NAMES = ("infidelity", "faithfulness_correlation", "sensitivity_n", "mu_fidelity")


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 3)


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return noise(3, 32, 32, seed=9)


def actual(model: vt.VisionModel, x: Tensor, maps: Any, name: str, **options: Any) -> np.ndarray:
    return vt.evaluate(model, x, {"it": maps}, name, controls=False, n_bootstrap=2, **options)["it", name]


def masks_of(model: vt.VisionModel, x: Tensor, name: str) -> list[np.ndarray]:
    """The masks of each size as the pool drew them, ``[B, count, h, w]``."""
    requests = vt.get_metric(name).requests(ImageShape((32, 32), (4, 4))).values()
    probe = Probe(asked=[request for request in requests if isinstance(request, Masks)])
    vt.evaluate(model, x, {"it": noise(len(x), 4, 4)}, [probe], controls=False, n_bootstrap=1)
    return [probe.heard[0].masks(request) for request in probe.asked]


def outputs(model: vt.VisionModel, image: Tensor) -> Tensor:
    with torch.no_grad():
        return model.module(image[None])[0]


def measured(
    model: vt.VisionModel, image: Tensor, values: Tensor, masks: np.ndarray, baseline: Tensor, logit: bool
) -> tuple[list[float], list[float]]:
    """For each mask ``[h, w]``, the sum of the map's pixels under it, and what the model loses."""
    clean = outputs(model, image)
    scored = int(clean.argmax())

    def read(logits: Tensor) -> float:
        return float(logits[scored] if logit else logits.softmax(0)[scored])

    sums, losses = [], []
    for mask in masks:
        built, total = image.clone(), 0.0
        for row in range(32):
            for column in range(32):
                cell = (row + 0.5) * mask.shape[0] / 32, (column + 0.5) * mask.shape[1] / 32
                if mask[math.floor(cell[0]), math.floor(cell[1])]:
                    built[:, row, column] = baseline[:, row, column]
                    total += float(values[row, column])
        sums.append(total)
        losses.append(read(clean) - read(outputs(model, built)))
    return sums, losses


def mean_colour(image: Tensor) -> Tensor:
    return image.mean(dim=(1, 2), keepdim=True).expand_as(image)


@pytest.mark.parametrize("output", ["logit", "probability"])
@pytest.mark.parametrize("normalise", ["true", "false"])
def test_infidelity(model: vt.VisionModel, x: Tensor, maps: Tensor, output: str, normalise: str) -> None:
    """Captum's formula with its optimal scaling, or without."""
    name = f"infidelity({SMALL}, output={output}, normalise={normalise})"
    sampled, scores = masks_of(model, x, name), actual(model, x, maps, name)
    assert [int(item[0, 0].sum()) for item in sampled] == [1, 2, 3, 6], "5, 10, 20 and 40 % of 16"
    for i, image in enumerate(x):
        all_masks = np.concatenate([item[i] for item in sampled])
        s, d = map(np.array, measured(model, image, maps[i], all_masks, mean_colour(image), output == "logit"))
        if normalise == "true":
            beta = np.mean(s * d) / np.mean(s * s)
            expected = beta**2 * np.mean(s * s) - 2 * beta * np.mean(s * d) + np.mean(d * d)
        else:
            expected = np.mean((s - d) ** 2)
        assert scores[i] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_infidelity_with_the_product_of_difference_and_map(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """``I^T a`` with ``I = x - x~``, the mean over channels, pixel by pixel."""
    name = f"infidelity({SMALL}, reading=product, normalise=false, baseline=black)"
    sampled, scores = masks_of(model, x, name), actual(model, x, maps, name)
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in (model.preprocess.mean, model.preprocess.std))
    for i, image in enumerate(x):
        black = (-mean / std).expand_as(image)
        all_masks = np.concatenate([item[i] for item in sampled])
        s, d = map(np.array, measured(model, image, maps[i] * (image - black).mean(dim=0), all_masks, black, True))
        assert scores[i] == pytest.approx(np.mean((s - d) ** 2), rel=1e-3)


def test_faithfulness_correlation(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """The mean over sizes of Pearson's correlation at each."""
    name = f"faithfulness_correlation({SMALL})"
    sampled, scores = masks_of(model, x, name), actual(model, x, maps, name)
    for i, image in enumerate(x):
        item = [stats.pearsonr(*measured(model, image, maps[i], m[i], mean_colour(image), False))[0] for m in sampled]
        assert scores[i] == pytest.approx(np.mean(item), abs=1e-3)


def test_sensitivity_n(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    name = f"sensitivity_n({SMALL}, steps=3)"
    sampled = masks_of(model, x, name)
    assert [int(item[0, 0].sum()) for item in sampled] == [1, 4, 13], "from 1 to 0.8 * 16 in equal ratios"
    table = vt.evaluate(model, x, {"it": maps}, name, controls=False, n_bootstrap=2)
    curve = table.curve("it", name)
    np.testing.assert_allclose(curve.x, [1 / 16, 4 / 16, 13 / 16])
    for i, image in enumerate(x):
        item = [stats.pearsonr(*measured(model, image, maps[i], m[i], mean_colour(image), True))[0] for m in sampled]
        np.testing.assert_allclose(curve.y[i], item, atol=1e-3)
        assert table["it", name][i] == pytest.approx(np.mean(item), abs=1e-3)
    usual = vt.get_metric("sensitivity_n").requests(ImageShape((224, 224), (14, 14))).values()
    assert [round(request.draw.share * 196) for request in usual] == [1, 2, 3, 5, 9, 17, 29, 51, 89, 157]
    assert all(request.n == 100 for request in usual)


def test_mu_fidelity(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """Nine cells do not divide 32 pixels; each pixel belongs to one."""
    name = "mu_fidelity(subsets=20)"
    (sampled,), scores = masks_of(model, x, name), actual(model, x, maps, name)
    assert sampled.shape == (3, 20, 9, 9)
    for i, image in enumerate(x):
        s, d = measured(model, image, maps[i], sampled[i], torch.zeros_like(image), True)
        assert scores[i] == pytest.approx(stats.spearmanr(s, d)[0], abs=2e-3)
    full = masks_of(model, x, "mu_fidelity")[0]
    assert full.shape == (3, 200, 9, 9)
    assert full.mean() == pytest.approx(0.2, abs=0.01)
    assert len({int(item.sum()) for item in full[0]}) > 5, "how many go differs"


def test_tokens_leave_the_sequence(model: vt.VisionModel, x: Tensor) -> None:
    maps, name = noise(3, 4, 4, seed=2), f"sensitivity_n({SMALL}, steps=2, unit=token)"
    sampled, scores = masks_of(model, x, name), actual(model, x, maps, name)
    for i, image in enumerate(x):
        item = []
        clean = outputs(model, image)
        scored = int(clean.argmax())
        for masks in sampled:
            sums, losses = [], []
            for mask in masks[i]:
                keep = torch.from_numpy(np.flatnonzero(~mask.flatten()))
                with torch.no_grad():
                    tokens = model.embed(image[None])
                    tokens = torch.cat(
                        [tokens[:, : model.num_prefix_tokens], tokens[:, keep + model.num_prefix_tokens]], dim=1
                    )
                    left = model.forward_head(model.forward_blocks(tokens, keep=keep[None]))[0, scored]
                sums.append(float(maps[i][torch.from_numpy(mask)].sum()))
                losses.append(float(clean[scored] - left))
            item.append(stats.pearsonr(sums, losses)[0])
        assert scores[i] == pytest.approx(np.mean(item), abs=1e-3)


# -- section 7 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["zero_norm", "mean_channel"])
def test_a_linear_model_explained_by_its_own_contributions(baseline: str) -> None:
    """``a = w (x - b)``: the loss is the sum removed, in every subset."""
    weights, x = noise(3, 8, 8, seed=1), noise(4, 3, 8, 8, seed=2)
    model = Linear(weights)
    blank = torch.zeros_like(x) if baseline == "zero_norm" else x.mean(dim=(2, 3), keepdim=True)
    contributions = (weights * (x - blank)).sum(dim=1)
    for name in ("infidelity", "infidelity(normalise=false)", "faithfulness_correlation(output=logit)", *NAMES[2:]):
        text = name.replace(")", "") + (", " if "(" in name else "(") + f"baseline={baseline}, score_class=pred)"
        metric = vt.get_metric(text)
        _, evaluation = pooled(model, x, contributions, [text])
        parts, curves = metric.read(evaluation)
        scores = parts[:, 0]
        explained = (weights * x).flatten(1).sum(dim=1) > 0  # class 0 has no logit to lose
        if name.startswith("infidelity"):
            np.testing.assert_allclose(scores[explained], 0, atol=1e-8)
        elif name == "mu_fidelity":
            assert (scores[explained] > 0.99).all(), "ranks of what is nearly equal may round"
        else:
            np.testing.assert_allclose(curves["correlation"].y[explained], 1, atol=1e-6)
        assert explained.any()


def test_scale(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """Only infidelity without its scaling sees how large a map is."""
    for name in (f"infidelity({SMALL})", f"faithfulness_correlation({SMALL})", "mu_fidelity(subsets=12)"):
        one, seven = (actual(model, x, factor * maps, name) for factor in (1, 7))
        np.testing.assert_allclose(one, seven, rtol=1e-6, atol=1e-9)
    simple = f"infidelity({SMALL}, normalise=false)"
    assert not np.allclose(actual(model, x, maps, simple), actual(model, x, 7 * maps, simple), rtol=0.1)


# -- contracts -----------------------------------------------------------------------------------------


def test_degenerate_maps(model: vt.VisionModel, x: Tensor) -> None:
    maps = noise(3, 4, 4)
    maps[0], maps[1], maps[2, 0, 0] = 0.3, 0.0, math.nan
    for name in ("faithfulness_correlation", "sensitivity_n(steps=3)", "mu_fidelity", "infidelity"):
        scores = actual(model, x, maps, name)
        assert np.isnan(scores).tolist() == [False, False, True], name
        if name.startswith(("faith", "sens")):
            assert scores[:2].tolist() == [0, 0]
    assert actual(model, x, maps, "mu_fidelity")[1] == 0
    for name in ("faithfulness_correlation(undefined=exclude)", "sensitivity_n(steps=3, undefined=exclude)"):
        assert np.isnan(actual(model, x, maps, name)).all()
    assert np.isnan(actual(model, x, maps, "mu_fidelity(undefined=exclude)")).tolist() == [False, True, True]


def test_a_zero_map_explains_nothing_of_the_losses(model: vt.VisionModel, x: Tensor) -> None:
    name = f"infidelity({SMALL})"
    scores, sampled = actual(model, x, torch.zeros(3, 4, 4), name), masks_of(model, x, name)
    for i, image in enumerate(x):
        masks = np.concatenate([item[i] for item in sampled])
        _, losses = measured(model, image, torch.zeros(32, 32), masks, mean_colour(image), True)
        assert scores[i] == pytest.approx(np.mean(np.square(losses)), rel=1e-4)
    other = noise(3, 4, 4, seed=5)
    assert (actual(model, x, other, name) <= scores + 1e-9).all(), "no map is worse, once it is scaled"


def test_forwards_are_shared(model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """By all methods, and by metrics that ask for the same sizes."""

    def states(methods: dict[str, Tensor], *names: str) -> int:
        return int(vt.evaluate(model, x, methods, list(names), controls=False, n_bootstrap=1).plan["states"])

    one, two = {"a": maps}, {"a": maps, "b": -maps}
    alone = states(one, "infidelity")
    assert alone == 3 * (1 + 4 * 128)
    assert states(two, "infidelity", "faithfulness_correlation", "infidelity(normalise=false)") == alone
    every = states(one, *NAMES)
    assert every == alone + 3 * (8 * 100 + 200), "of ten sizes on sixteen patches, eight are different"
    assert states(two, *NAMES) == every
    shared = "sensitivity_n(subsets=128, steps=1)"  # single patches, of which infidelity has as many
    assert states(one, "infidelity", shared) == alone
    for name in NAMES:
        assert vt.get_metric(name).num_forwards() == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("infidelity(sizes='5,none')", "sizes='5,none' must be percentages"),
        ("infidelity(sizes='0')", "sizes='0' must be percentages"),
        ("faithfulness_correlation(sizes='100')", "sizes='100' must be percentages"),
        ("infidelity(subsets=1)", "subsets=1 must be at least 2"),
        ("infidelity(unit=word)", "unit='word' is not one of pixel, token"),
        ("sensitivity_n(unit=token, baseline=black)", "unit=token replaces no pixel: baseline=black"),
        ("infidelity(reading=product, unit=token)", "reading=product needs the difference of two images"),
        ("infidelity(reading=product, baseline=uniform_norm)", "and baseline=uniform_norm has none"),
        ("mu_fidelity(share=1)", "share=1 must lie between 0 and 1"),
        ("mu_fidelity(cells=1)", "cells=1 must be at least 2"),
        ("mu_fidelity(output=odds)", "output='odds' is not one of logit, probability"),
        ("sensitivity_n(undefined=one)", "undefined='one' is not one of zero, exclude"),
    ],
)
def test_bad_parameters(spec: str, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        vt.get_metric(spec)
