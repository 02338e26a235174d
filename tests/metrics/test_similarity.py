"""Similarities of maps, each written out again: scipy's correlations, SSIM window by window, CKA by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage, spatial, stats

import vitreous as vt
from vitreous.errors import MapError, SpecError
from vitreous.metrics.similarity import SIMILARITIES, cka, dead, gaussian_blur, similarity


def pairs(height: int, width: int, count: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    one = draws.normal(size=(count, height, width))
    other = 0.6 * one + draws.normal(size=(count, height, width)) + 0.4
    one[0] = one[0].round()  # ties
    other[0] = np.maximum(other[0], 0)
    return one, other


def by_scipy(by: str, a: np.ndarray, b: np.ndarray) -> float:
    if by == "spearman":
        return float(stats.spearmanr(a.ravel(), b.ravel()).statistic)
    if by == "abs_spearman":
        return float(stats.spearmanr(abs(a).ravel(), abs(b).ravel()).statistic)
    if by == "pearson":
        return float(stats.pearsonr(a.ravel(), b.ravel()).statistic)
    return 1 - float(spatial.distance.cosine(a.ravel(), b.ravel()))


@pytest.mark.parametrize("by", ["spearman", "abs_spearman", "pearson", "cosine"])
@pytest.mark.parametrize("size", [(4, 4), (14, 14), (1, 7), (30, 21)])
def test_as_scipy(by: str, size: tuple[int, int]) -> None:
    one, other = pairs(*size)
    expected = [by_scipy(by, a, b) for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(similarity(by, one, other), expected, atol=1e-12)
    np.testing.assert_allclose(similarity(by, other, one), expected, atol=1e-12)


def slow_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Place by place, each window cut out of the reflected map."""
    a, b = ((item - item.min()) / (item.max() - item.min()) for item in (a, b))
    side = min(11, *a.shape)
    side -= 1 - side % 2
    radius = side // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    window = np.exp(-(x**2 + y**2) / (2 * 1.5**2))
    window /= window.sum()
    wide_a, wide_b = (np.pad(item, radius, mode="symmetric") for item in (a, b))
    actual = []
    for row in range(a.shape[0]):
        for column in range(a.shape[1]):
            cut = (slice(row, row + side), slice(column, column + side))
            p, q = wide_a[cut], wide_b[cut]
            mp, mq = (window * p).sum(), (window * q).sum()
            vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
            cov = (window * (p - mp) * (q - mq)).sum()
            light = (2 * mp * mq + 0.0001) / (mp**2 + mq**2 + 0.0001)
            actual.append(light * (2 * cov + 0.0009) / (vp + vq + 0.0009))
    return float(np.mean(actual))


@pytest.mark.parametrize("size", [(4, 4), (7, 20), (14, 14), (24, 17)])
def test_ssim(size: tuple[int, int]) -> None:
    one, other = pairs(*size)
    expected = [slow_ssim(a, b) for a, b in zip(one, other, strict=True)]
    np.testing.assert_allclose(similarity("ssim", one, other), expected, atol=1e-12)


def test_the_window_is_scipys_gaussian() -> None:
    one, _ = pairs(24, 17)
    expected = [ndimage.gaussian_filter(item, 1.5, mode="reflect", truncate=5 / 1.5) for item in one]
    np.testing.assert_allclose(gaussian_blur(one, 5, 1.5, "symmetric"), expected, atol=1e-12)


@pytest.mark.parametrize("by", SIMILARITIES)
def test_of_itself_scaled_shifted_and_degenerate(by: str) -> None:
    one, other = pairs(6, 6)
    np.testing.assert_allclose(similarity(by, one, one), 1)
    np.testing.assert_allclose(similarity(by, 7 * one, other), similarity(by, one, other), atol=1e-12)
    shifted = np.allclose(similarity(by, one + 3, other), similarity(by, one, other), atol=1e-9)
    assert shifted == (by not in ("cosine", "abs_spearman"))
    one[0], one[1], other[2], other[3, 1, 1] = 2.5, 0, -1, np.nan
    assert dead(one).tolist() == [True, True, False, False]
    assert dead(other).tolist() == [False, False, True, True]
    assert similarity(by, one, other).tolist() == [0, 0, 0, 0]
    one[2] = np.nan
    assert np.isnan(similarity(by, one, other)).tolist() == [False, False, True, False]


def slow_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = (item.reshape(len(item), -1) for item in (x, y))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def test_cka() -> None:
    one, other = pairs(3, 4, count=9)
    np.testing.assert_allclose(cka(one, other), [slow_cka(one, other)])
    np.testing.assert_allclose(cka(one, 3 * one + 5), [1])
    counts = np.random.default_rng(1).multinomial(9, np.ones(9) / 9, size=5).astype(float)
    rows = [np.repeat(np.arange(9), count.astype(int)) for count in counts]
    np.testing.assert_allclose(cka(one, other, counts), [slow_cka(one[row], other[row]) for row in rows])
    one[4, 0, 0] = np.nan
    left = np.arange(9) != 4
    np.testing.assert_allclose(cka(one, other), [slow_cka(one[left], other[left])])
    assert np.isnan(cka(one[:1], other[:1])[0]), "one image is no set"
    assert np.isnan(cka(np.ones_like(one), other)[0])


def test_refused() -> None:
    with pytest.raises(SpecError, match="similarity='hog' is not one of spearman, abs_spearman"):
        vt.get_metric("mprt(similarity=hog)")
    with pytest.raises(MapError, match=r"\[2, 3, 3\] cannot be compared with maps of \[2, 3, 4\]"):
        similarity("pearson", np.zeros((2, 3, 3)), np.zeros((2, 3, 4)))
