"""How alike two maps are: rank and linear correlation, cosine, structural similarity; and CKA for whole sets of maps.

All take two stacks of maps ``[B, h, w]`` and return one number per pair, ``[B]``, from -1 to 1. A map that is constant
or not finite is like no other: its similarity is 0, and it is ``dead``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from vitreous.errors import MapError
from vitreous.methods.ops import mean_ranks
from vitreous.metrics.ranking import Array

_WINDOW, _SIGMA = 11, 1.5
_TINY = np.finfo(np.float64).tiny


def spearman(one: Array, other: Array) -> Array:
    """Spearman's rank correlation; equal values share their mean rank."""
    return _compared(lambda a, b: _correlation(_ranks(a), _ranks(b)), one, other)


def rank_correlation(one: Array, other: Array) -> Array:
    """Spearman's rank correlation of rows ``[B, n]``; NaN where one is constant or not finite."""
    first, second = one[:, None], other[:, None]
    return np.where(dead(first) | dead(second), np.nan, spearman(first, second))


def abs_spearman(one: Array, other: Array) -> Array:
    """Spearman's rank correlation of the absolute values."""
    return spearman(np.abs(one), np.abs(other))


def pearson(one: Array, other: Array) -> Array:
    """Pearson's correlation: the cosine of the maps less their means."""
    return _compared(_correlation, one, other)


def cosine(one: Array, other: Array) -> Array:
    """``<a, b> / (|a| |b|)``, of the values as they are: the only one here that sees where zero is."""
    return _compared(_cosine, one, other)


def ssim(one: Array, other: Array) -> Array:
    """Mean structural similarity (Wang et al. 2004) of maps that are scaled to 0 .. 1 each.

    ``(2 m_a m_b + 0.01^2) (2 c_ab + 0.03^2) / ((m_a^2 + m_b^2 + 0.01^2) (v_a + v_b + 0.03^2))`` with means, variances
    and covariance under a Gaussian window of 11 x 11 and deviation 1.5, averaged over all places. Borders are
    reflected, the outermost value repeated. On a smaller grid the window is the largest odd one that fits.
    """
    return _compared(_ssim, one, other)


def _ssim(one: Array, other: Array) -> Array:
    c1, c2 = 0.01**2, 0.03**2
    a, b = _scaled(one), _scaled(other)
    mean_a, mean_b = _window(a), _window(b)
    variances = _window(a * a) - mean_a**2 + _window(b * b) - mean_b**2
    covariance = _window(a * b) - mean_a * mean_b
    top = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    bottom = (mean_a**2 + mean_b**2 + c1) * (variances + c2)
    return np.asarray((top / bottom).mean(axis=(1, 2)))


SIMILARITIES: Mapping[str, Callable[[Array, Array], Array]] = {
    "spearman": spearman,
    "abs_spearman": abs_spearman,
    "pearson": pearson,
    "cosine": cosine,
    "ssim": ssim,
}


def similarity(by: str, one: Array, other: Array) -> Array:
    """Return the similarity of maps ``one`` with ``other``; NaN where ``one`` was left out (NaN everywhere)."""
    if one.shape != other.shape:
        raise MapError(f"maps of {list(one.shape)} cannot be compared with maps of {list(other.shape)}")
    return np.where(np.isnan(one).all(axis=(1, 2)), np.nan, SIMILARITIES[by](one, other))


def dead(maps: Array) -> Array:
    """Return which maps are constant or not finite, ``[B]``."""
    flat = maps.reshape(len(maps), -1)
    return np.asarray(~np.isfinite(flat).all(axis=1) | (flat == flat[:, :1]).all(axis=1))


def cka(one: Array, other: Array, weights: Array | None = None) -> Array:
    """Linear centred kernel alignment (Kornblith et al. 2019) of two sets of maps of the same images, ``[r]``.

    ``|X^T Y|^2 / (|X^T X| |Y^T Y|)`` with images in the rows and each column centred, by its Gram matrices. One number
    for all images, from 0 to 1; with fewer images than places it is too high. ``weights`` ``[r, n]`` count every image
    so often. NaN where fewer than two images have both maps, or where all maps of one set are the same.
    """
    rows = [maps.reshape(len(maps), -1).astype(np.float64) for maps in (one, other)]
    valid = np.asarray(np.isfinite(np.concatenate(rows, axis=1)).all(axis=1))
    counts = (np.ones((1, len(valid))) if weights is None else weights)[:, valid]
    undefined = np.full(len(counts), np.nan)
    if counts.shape[1] < 2:
        return undefined
    x, y = (centred @ centred.T for centred in (row[valid] - row[valid].mean(axis=0) for row in rows))
    bottom = np.sqrt(np.maximum(_aligned(counts, x, x) * _aligned(counts, y, y), 0))
    rounding = 1e-12 * np.linalg.norm(x) * np.linalg.norm(y)
    return np.asarray(np.divide(_aligned(counts, x, y), bottom, out=undefined, where=bottom > rounding))


def _aligned(counts: Array, one: Array, other: Array) -> Array:
    """Return the sum of the products of two Gram matrices ``[n, n]``, centred as each row of counts ``[r, n]`` says."""
    total = np.maximum(counts.sum(axis=1), 1)[:, None]
    a, b = (counts @ gram / total for gram in (one, other))
    products = (counts @ (one * other)) * counts
    means = (counts * a).sum(axis=1) * (counts * b).sum(axis=1)
    return np.asarray((products - 2 * total * counts * a * b).sum(axis=1) + means)


def gaussian_blur(maps: Array, reach: int, sigma: float, border: str) -> Array:
    """Return maps ``[B, h, w]`` under a Gaussian that is cut off at ``reach``; ``border`` as in ``numpy.pad``."""
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    weights /= weights.sum()
    for axis in (1, 2):
        pads = [(reach, reach) if axis == padded else (0, 0) for padded in range(3)]
        larger, length = np.pad(maps, pads, mode=border), maps.shape[axis]  # type: ignore[call-overload]
        maps = sum(w * np.take(larger, range(at, at + length), axis=axis) for at, w in enumerate(weights))
    return maps


def _window(maps: Array) -> Array:
    """SSIM's window, or the largest odd one that fits, borders reflected with their outermost value."""
    return gaussian_blur(maps, (min(_WINDOW, *maps.shape[1:]) - 1) // 2, _SIGMA, "symmetric")


def _ranks(maps: Array) -> Array:
    return np.asarray(mean_ranks(torch.from_numpy(np.ascontiguousarray(maps, np.float64))))


def _correlation(one: Array, other: Array) -> Array:
    return _cosine(*(maps - maps.mean(axis=(1, 2), keepdims=True) for maps in (one, other)))


def _cosine(one: Array, other: Array) -> Array:
    one, other = (maps / np.maximum(np.abs(maps).max(axis=(1, 2), keepdims=True), _TINY) for maps in (one, other))
    products = [(a * b).sum(axis=(1, 2)) for a, b in ((one, other), (one, one), (other, other))]
    sizes = np.sqrt(products[1] * products[2])
    return np.asarray(np.divide(products[0], sizes, out=np.zeros(len(one)), where=sizes > 0))


def _scaled(maps: Array) -> Array:
    least, most = maps.min(axis=(1, 2), keepdims=True), maps.max(axis=(1, 2), keepdims=True)
    return np.asarray(np.divide(maps - least, most - least, out=np.zeros_like(maps, np.float64), where=most > least))


def _compared(formula: Callable[[Array, Array], Array], one: Array, other: Array) -> Array:
    """Return the value of a formula where neither map is dead, and 0 elsewhere."""
    alive = ~(dead(one) | dead(other))
    values = np.zeros(len(one))
    if alive.any():
        values[alive] = formula(*(np.asarray(maps[alive], np.float64) for maps in (one, other)))
    return values
