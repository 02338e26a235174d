"""Performance information curves drawn again slowly: channel by channel, one picture and one forward at a time."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.integrate import trapezoid
from scipy.interpolate import griddata, interp1d
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.metrics.bootstrap import resamples
from vitreous.metrics.information_curves import (
    THRESHOLDS,
    Revealed,
    blurred,
    median_curve,
    performance_curve,
    webp_size,
)
from vitreous.tracing.prng import PRNGKey

ALL = "confidence=0"


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def x(model: Any) -> Tensor:
    return images(model, 6)


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(6, 32, 32, generator=torch.Generator().manual_seed(3))


def eight_bits(model: Any, image: Tensor) -> np.ndarray:
    preprocess = vt.wrap(model).preprocess
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in (preprocess.mean, preprocess.std))
    return np.round(np.clip((image * std + mean).numpy(), 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)


def logits(model: Any, picture: np.ndarray) -> np.ndarray:
    preprocess = vt.wrap(model).preprocess
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in (preprocess.mean, preprocess.std))
    pixels = torch.from_numpy(picture.transpose(2, 0, 1).astype(np.float32)) / 255
    with torch.no_grad():
        return model(((pixels - mean) / std)[None])[0].numpy()


def interpolated(picture: np.ndarray, visible: np.ndarray) -> np.ndarray:
    if visible.all():
        return picture
    built = picture.copy()
    for channel in range(3):
        plane = picture[..., channel]
        actual = griddata(
            np.argwhere(visible), plane[visible], np.argwhere(~visible), "linear", fill_value=plane.mean()
        )
        built[..., channel][~visible] = np.round(actual).astype(np.uint8)
    return built


def size(picture: np.ndarray) -> int:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="webp", lossless=True, quality=100)
    return len(file.getvalue())


def always_known(image: Tensor) -> np.ndarray:
    """One pixel in a hundred, drawn from the content of the image, and the corners."""
    key = int(PRNGKey.of_images(0, "drawn", image[None]).keys[0]) % 2**63
    order = PRNGKey(torch.tensor([key])).permutation(1024)[0].tolist()
    visible = np.zeros(1024, bool)
    visible[order[:10]] = True
    visible = visible.reshape(32, 32)
    visible[0, 0] = visible[0, 31] = visible[31, 0] = visible[31, 31] = True
    return visible


def slow(model: Any, image: Tensor, values: np.ndarray, softmax: bool, least: float, monotonous: bool) -> float:
    """The area for one image, or NaN if it is excluded."""
    picture, visible = eight_bits(model, image), always_known(image)
    with torch.no_grad():
        scored = int(model(image[None]).argmax())

    def performance(seen: np.ndarray) -> float:
        actual = logits(model, seen)
        return float(np.exp(actual - actual.max())[scored] / np.exp(actual - actual.max()).sum()) if softmax else float(
            actual.argmax() == scored
        )  # fmt: skip

    blank = interpolated(picture, visible)
    complete, low = performance(picture), performance(blank)
    if complete < least or low >= complete or size(blank) >= size(picture):
        return float("nan")
    points, best = [(0.0, 0.0), (1.0, 1.0)], 0.0
    for threshold in THRESHOLDS:
        seen = interpolated(picture, visible | (values >= np.quantile(values, 1 - threshold)))
        h = min(max((size(seen) - size(blank)) / (size(picture) - size(blank)), 0), 1)
        p = min(max((performance(seen) - low) / (complete - low), 0), 1)
        best = max(best, p)
        points.append((h, best if monotonous else p))
    top: dict[float, float] = {}
    for h, p in sorted(points):
        top[h] = max(top.get(h, 0), p)
    between = interp1d(list(top), list(top.values()))
    at = np.append(np.linspace(0, 1, 1000, endpoint=False), 1)
    return float(trapezoid(between(at), at))


def actual(model: Any, x: Tensor, maps: Any, name: str, **options: Any) -> np.ndarray:
    return vt.evaluate(model, x, {"it": maps}, name, controls=False, n_bootstrap=20, **options)["it", name]


@pytest.mark.parametrize(
    ("name", "softmax", "least", "monotonous"),
    [
        ("aic", False, 0.8, True),
        ("aic@var(monotonous=false)", False, 0.8, False),
        ("sic(confidence=0)", True, 0.0, True),
        ("sic(confidence=0, monotonous=false)", True, 0.0, False),
        ("sic@notebook", True, 0.5, True),
    ],
)
def test_curves_again(
    model: Any, x: Tensor, maps: Tensor, name: str, softmax: bool, least: float, monotonous: bool
) -> None:
    scores = actual(model, x, maps, name)
    expected = [slow(model, i, m.double().numpy(), softmax, least, monotonous) for i, m in zip(x, maps, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=2e-4)
    assert np.isfinite(scores).any()


def test_token_maps_are_enlarged(model: Any, x: Tensor) -> None:
    coarse = torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(8))
    fine = torch.nn.functional.interpolate(coarse[:, None].double(), size=(32, 32), mode="bilinear")[:, 0]
    scores = actual(model, x, coarse, f"sic({ALL})")
    expected = [slow(model, image, values.numpy(), True, 0.0, True) for image, values in zip(x, fine, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=2e-4)


def test_thresholds() -> None:
    assert len(THRESHOLDS) == 13
    assert sum(THRESHOLDS) == pytest.approx(2.26, abs=0.005)  # image areas
    metric = vt.get_metric("aic")
    assert (metric.num_forwards(), metric.num_shared_forwards()) == (13, 2)
    assert metric.confidence == vt.get_metric("aic@var").confidence == 0.8
    assert vt.get_metric("aic@notebook").confidence == 0.5


def test_exclusions_are_the_same_for_all_methods(model: Any, x: Tensor, maps: Tensor) -> None:
    methods = {"a": maps, "b": -maps, "flat": torch.ones(6, 4, 4)}
    table = vt.evaluate(model, x, methods, ["aic", "sic", f"sic({ALL})"], controls=False, n_bootstrap=5)
    for name in table.metrics:
        out = [np.isnan(table[method, name]) for method in methods]
        assert (out[0] == out[1]).all()
        assert (out[0] == out[2]).all()
    assert 0 < np.isnan(table["a", "aic"]).sum() < 6
    assert np.isnan(table["a", "sic"]).sum() > np.isnan(table["a", f"sic({ALL})"]).sum()
    assert table.plan["states"] == 6 * (1 + 2 + 3 * 13)


def test_a_constant_map_reveals_everything_at_once(model: Any, x: Tensor, maps: Tensor) -> None:
    """Its only point is (1, 1): the diagonal. A map that is not finite has no score, and no one else loses theirs."""
    flat = torch.stack([torch.full((32, 32), 0.1), torch.zeros(32, 32), *maps[2:]])
    flat[2, 3, 4] = float("nan")
    scores = actual(model, x, flat, f"sic({ALL})")
    there = ~np.isnan(actual(model, x, maps, f"sic({ALL})"))
    np.testing.assert_allclose(scores[:2][there[:2]], 0.5, atol=1e-6)
    assert there[:3].all()
    assert np.isnan(scores).tolist() == [False, False, True, *(~there[3:])]
    lowest = actual(model, x, flat, f"sic({ALL})", nan_policy="lowest")
    assert np.isfinite(lowest[2])


def test_ties_reveal_more_than_was_asked_for() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8)
    values = np.zeros((16, 16))
    values[:8] = 1
    sampled, sizes = Revealed()(picture, values, 5)
    assert sampled.shape == (13, 16, 16, 3)
    assert (sampled[:12, :8] == picture[:8]).all(), "at 0.5 %, all that is tied at the top"
    assert (sampled[0] == sampled[10]).all()
    assert (sampled[12] == picture).all(), "at 75 % the quantile is 0"
    assert sizes.tolist() == [webp_size(item) for item in sampled]
    (complete, blank), ends = Revealed()(picture, None, 5)
    assert (complete == picture).all()
    assert ends.tolist() == [webp_size(complete), webp_size(blank)]
    again, _ = Revealed()(picture, None, 6)
    assert (again[1] != blank).any(), "another picture, other pixels"


def test_one_triangulation_for_all_channels() -> None:
    """Bit for bit what three would give, and exact on what is linear."""
    generator = np.random.default_rng(1)
    picture = generator.integers(0, 255, (40, 50, 3)).astype(np.uint8)
    visible = generator.random((40, 50)) < 0.1
    visible[[0, 0, -1, -1], [0, -1, 0, -1]] = True
    np.testing.assert_array_equal(blurred(picture, visible), interpolated(picture, visible))
    row, column = np.mgrid[:40, :50]
    plane = np.stack([row * 2, column * 3, row + 2 * column], axis=2).astype(np.uint8)
    np.testing.assert_array_equal(blurred(plane, visible), plane)
    half = visible.copy()
    half[:, 25:] = False
    outside = blurred(picture, half)[:, 40]
    np.testing.assert_array_equal(outside, np.broadcast_to(np.round(picture.mean(axis=(0, 1))), (40, 3)))


@pytest.mark.parametrize("monotonous", [True, False])
def test_interpolation(monotonous: bool) -> None:
    """Levels out of order and twice the same: the best at each, whatever came first."""
    h, p = np.array([0.5, 0.2, 0.5, 0.0, 1.0]), np.array([0.3, 0.6, 0.1, 0.2, 0.4])
    curve = performance_curve(h, p, monotonous)
    assert curve.shape == (1001,)
    assert curve[0] == (0.6 if monotonous else 0.2)
    assert curve[200] == pytest.approx(0.6)
    assert curve[500] == pytest.approx(0.6 if monotonous else 0.3)
    assert curve[-1] == 1
    np.testing.assert_array_equal(curve, performance_curve(h, np.maximum.accumulate(p), True) if monotonous else curve)
    straight = performance_curve(np.zeros(0), np.zeros(0))
    np.testing.assert_allclose(straight, np.append(np.arange(1000) / 1000, 1))


# -- the median ----------------------------------------------------------------------------------------


def curves(count: int) -> np.ndarray:
    return np.sort(np.random.default_rng(2).random((count, 1001)), axis=1)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_median_of_repeated_images(count: int) -> None:
    parts = curves(count)
    at = np.append(np.linspace(0, 1, 1000, endpoint=False), 1)
    (weights,) = resamples(count, 30)
    areas = median_curve(parts, weights)
    for row, area in zip(weights, areas, strict=True):
        repeated = np.repeat(parts, row.astype(int), axis=0)
        assert area == pytest.approx(trapezoid(np.median(repeated, axis=0), at))
    sick = np.concatenate([parts, np.full((2, 1001), np.nan)])
    broad = np.concatenate([weights, np.full((30, 2), 3.0)], axis=1)
    np.testing.assert_allclose(median_curve(sick, broad), areas)
    assert np.isnan(median_curve(sick, np.concatenate([0 * weights, broad[:, count:]], axis=1))).all()


def test_median_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = curves(5)
    (weights,) = resamples(5, 40)
    complete = median_curve(parts, weights)
    monkeypatch.setattr("vitreous.metrics.information_curves._MAX_WEIGHTS", 15)
    np.testing.assert_array_equal(median_curve(parts, weights), complete)


def test_score_of_all_images(model: Any, x: Tensor, maps: Tensor) -> None:
    """The area of the median curve, or of the mean curve, which is the mean of the areas."""
    names = [f"sic({ALL})", f"sic({ALL}, average=mean)", "aic", "aic(average=median)"]
    table = vt.evaluate(model, x, {"it": maps}, names, controls=False, n_bootstrap=50)
    lines = table.curve("it", names[0])
    there = lines.y[~np.isnan(lines.y).any(axis=1)]
    assert table.mean("it", names[0]) == pytest.approx(trapezoid(np.median(there, axis=0), lines.x))
    assert table.mean("it", names[1]) == pytest.approx(trapezoid(there.mean(axis=0), lines.x))
    np.testing.assert_allclose(table["it", names[0]], table["it", names[1]])
    assert table.mean("it", names[2]) == pytest.approx(np.nanmean(table["it", names[2]]))
    for name in names:
        low, upper = table.interval("it", name)
        assert low <= table.mean("it", name) <= upper


# -- what is wrong -------------------------------------------------------------------------------------


def test_scipy_is_asked_for_by_name(model: Any, x: Tensor, maps: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.interpolate", None)
    with pytest.raises(vt.VitreousError, match=r"aic and sic need scipy; pip install 'vitreous\[bench\]'"):
        actual(model, x, maps, "aic")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("confidence=-0.1", "confidence=-0.1 must lie between 0 and 1"),
        ("confidence=1.5", "confidence=1.5 must lie between 0 and 1"),
        ("average=mode", "average='mode' is not one of median, mean"),
    ],
)
def test_bad_parameters(wrong: str, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        vt.get_metric(f"sic({wrong})")
