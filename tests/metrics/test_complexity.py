"""Complexity against golden numbers, and against loops over every value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import SpecError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


def score(model: vt.VisionModel, maps: Any, metric: str) -> np.ndarray:
    maps = torch.as_tensor(maps)
    table = vt.evaluate(model, images(model, len(maps)), {"it": maps}, metric, controls=False, n_bootstrap=2)
    return table["it", metric]


def large(kind: str) -> Tensor:
    """Maps of 224 x 224 values; metrics of values never look at the image."""
    n = 224 * 224
    flat = torch.zeros(n, dtype=torch.float64)
    if kind == "constant":
        flat += 0.3
    elif kind == "one":
        flat[777] = 1
    elif kind == "ramp":
        flat = torch.arange(n, dtype=torch.float64)
    return flat.view(1, 224, 224)


@pytest.mark.parametrize(("kind", "gini"), [("constant", 0), ("zero", 0), ("one", 0.99498), ("ramp", 0.3333)])
def test_golden_gini(model: vt.VisionModel, kind: str, gini: float) -> None:
    assert score(model, large(kind), "gini")[0] == pytest.approx(gini, abs=1e-4 if kind == "ramp" else 1e-5)


def test_gini_of_one_place(model: vt.VisionModel) -> None:
    n = 224 * 224
    assert score(model, large("one"), "gini(offset=0)")[0] == pytest.approx((n - 1) / n, abs=1e-12)
    assert score(model, large("zero"), "gini(offset=0)")[0] == 0
    tiny = score(model, large("one") * 1e-9, "gini")[0]
    assert tiny < 0.01, "values near the offset look flat"


@pytest.mark.parametrize(("kind", "nats"), [("constant", 10.823), ("zero", 10.823), ("one", 0)])
def test_golden_entropy(model: vt.VisionModel, kind: str, nats: float) -> None:
    assert score(model, large(kind), "entropy")[0] == pytest.approx(nats, abs=5e-4)
    if kind != "one":
        small = torch.full((1, 14, 14), 0.0 if kind == "zero" else 2.0)
        assert score(model, small, "entropy")[0] == pytest.approx(5.278, abs=5e-4)


def slow_gini(values: list[float], method: str) -> float:
    """Half the mean absolute difference of all pairs over the mean."""
    if method == "shift" or (method == "shift_negative" and min(values) < 0):
        values = [value - min(values) for value in values]
    elif method == "abs":
        values = [abs(value) for value in values]
    elif method == "relu":
        values = [max(value, 0.0) for value in values]
    values = [value + 1e-7 for value in values]
    pairs = sum(abs(a - b) for a in values for b in values)
    return pairs / (2 * len(values) * sum(values))


def slow_entropy(values: list[float]) -> float:
    total = sum(map(abs, values))
    return -sum(abs(v) / total * math.log(abs(v) / total) for v in values if v)


@pytest.fixture(scope="module")
def signed() -> Tensor:
    maps = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(5))
    maps[1] = maps[1].abs() + 1  # nothing to shift
    maps[2] = maps[2].clamp(min=0)
    return maps


@pytest.mark.parametrize("method", ["shift_negative", "shift", "abs", "relu"])
def test_gini(model: vt.VisionModel, signed: Tensor, method: str) -> None:
    expected = [slow_gini(item.flatten().double().tolist(), method) for item in signed]
    np.testing.assert_allclose(score(model, signed, f"gini(normalization={method})"), expected, atol=1e-9)


def test_gini_of_tis_subtracts_the_minimum_of_every_map(model: vt.VisionModel, signed: Tensor) -> None:
    """As the release does (``shift: true``), whatever the sign; the plain index leaves a positive map as it is."""
    fine = torch.nn.functional.interpolate(signed[:, None], size=(32, 32), mode="bilinear")[:, 0]
    table = vt.evaluate(model, images(model, 4), {"it": fine}, ["gini@tis", "gini"], labels=[0] * 4, n_bootstrap=2)
    expected = [slow_gini(item.flatten().double().tolist(), "shift") for item in fine]
    np.testing.assert_allclose(table["it", "gini@tis"], expected, atol=1e-6)
    simple = [slow_gini(item.flatten().double().tolist(), "") for item in fine[1:3]]
    np.testing.assert_allclose(table["it", "gini"][1:3], simple, atol=1e-6)
    assert expected[1] > simple[0] + 0.1


def test_entropy_and_effective_complexity(model: vt.VisionModel, signed: Tensor) -> None:
    expected = [slow_entropy(item.flatten().double().tolist()) for item in signed]
    np.testing.assert_allclose(score(model, signed, "entropy"), expected, atol=1e-9)
    counts = [sum(abs(v) > 0.5 for v in item.flatten().tolist()) for item in signed]
    assert score(model, signed, "effective_complexity(threshold=0.5)").tolist() == counts
    share = [sum(abs(v) > 0.1 * float(item.abs().max()) for v in item.flatten().tolist()) for item in signed]
    assert score(model, signed, "effective_complexity(threshold=0.1, relative=true)").tolist() == share
    assert score(model, torch.zeros(1, 4, 4), "effective_complexity(threshold=0)")[0] == 0


@pytest.mark.parametrize("metric", ["gini", "entropy", "effective_complexity"])
def test_grids(model: vt.VisionModel, signed: Tensor, metric: str) -> None:
    """The same map is another one at the pixels; at the tokens a map of tokens is itself."""
    fine = torch.nn.functional.interpolate(signed[:, None], size=(32, 32), mode="bilinear")[:, 0]
    pixel = score(model, signed, f"{metric}(grid=pixel)")
    np.testing.assert_allclose(pixel, score(model, fine, metric), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(score(model, signed, f"{metric}(grid=token)"), score(model, signed, metric))
    summed = fine.view(4, 4, 8, 4, 8).sum(dim=(2, 4))
    token = score(model, fine, f"{metric}(grid=token)")
    np.testing.assert_allclose(token, score(model, summed, metric), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("metric", ["gini", "entropy", "effective_complexity"])
def test_scale_shift_and_broken_maps(model: vt.VisionModel, signed: Tensor, metric: str) -> None:
    positive = signed.abs() + 0.1
    simple = score(model, positive, metric)
    np.testing.assert_allclose(score(model, 7 * positive, metric), simple, atol=1e-5)
    if metric != "effective_complexity":
        assert not np.allclose(score(model, positive + 3, metric), simple, atol=1e-2)
    broken = positive.clone()
    broken[2, 0, 0] = torch.nan
    assert np.isnan(score(model, broken, metric)).tolist() == [False, False, True, False]


def test_no_model_is_asked(model: vt.VisionModel) -> None:
    assert vt.get_metric("sparseness") == vt.get_metric("gini")
    assert vt.get_metric("complexity") == vt.get_metric("entropy")
    for name in ("gini", "entropy", "effective_complexity"):
        metric = vt.get_metric(name)
        assert metric.num_forwards() == metric.num_shared_forwards() == metric.num_reattributions() == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gini(normalization=cut)", "normalization='cut' is not one of shift_negative, shift, abs, relu"),
        ("gini(grid=none)", "grid"),
        ("entropy(grid=fine)", "grid='fine' is not one of own, pixel, token"),
        ("gini(offset=-1)", "offset=-1.0 must be at least 0"),
        ("effective_complexity(threshold=-1)", "threshold=-1.0 must be at least 0"),
    ],
)
def test_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        vt.get_metric(spec)
