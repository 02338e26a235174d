"""Uncertainty of a mean: the bootstrap over images, the same resamples for every method and metric.

B resamples of n images are a ``B x n`` matrix of multinomial weights; a metric aggregates the parts of every image
again for each row, and for a mean that is one product. Images without a score (NaN) weigh nothing. Differences of two
methods are paired: of the same images in every resample, which removes the variance between images (Koehn 2004; Efron
and Tibshirani 1993). Rows that belong together (the cells of one grid, two classes of one image) are drawn together.

Difficulty bins: any score by the model's confidence in the clean image (CoIBA).

Confidence bounds what insertion minus deletion can reach, so bins compare images, not explanations: ``relative``
divides every score by the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from vitreous.errors import VitreousError
from vitreous.metrics.ranking import Array
from vitreous.tracing.prng import PRNGKey

SAMPLES = 10_000
_BLOCK = 2**22  # weights held at a time
_CACHED = 2**20  # weights that are worth keeping for the next column

Aggregate = Callable[[Array, Array], Array]
"""Takes parts ``[n, P]`` and weights ``[r, n]``, and returns one score for each row of weights."""
Cell = tuple[Array, Aggregate]
"""The parts of every image, and what makes one score of them."""
Groups = Sequence[int] | None
"""Which images belong together, by a number for each; ``None`` if each stands for itself."""


class Interval(NamedTuple):
    """A percentile interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The mean paired difference of two methods, its interval, and a two-sided p-value (see ``p_value``)."""

    mean: float
    low: float
    high: float
    p: float
    images: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def members(rows: int, groups: Groups) -> Array:
    """Return which unit each row belongs to, ``[rows]``, counted from 0: itself, or its group."""
    member = np.arange(rows) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if len(member) != rows:
        raise VitreousError(f"{len(member)} groups for {rows} images")
    return np.asarray(member)


def resamples(images: int, samples: int = SAMPLES, seed: int = 0, groups: Groups = None) -> Iterator[Array]:
    """Yield the weights of the images in some resamples, ``[r, n]``, until there are ``samples`` of them.

    ``groups`` says which images belong together: they are drawn as one.
    """
    if samples < 1:
        raise VitreousError(f"n_bootstrap={samples} must be at least 1")
    if not images:
        raise VitreousError("there are no scores to resample")
    member = members(images, groups)
    units = int(member.max()) + 1
    block = max(1, _BLOCK // images)
    for start in range(0, samples, block):
        rows = min(samples - start, block)
        weights = (_cached_weights if rows * units <= _CACHED else _weights)(units, start, rows, seed)
        yield weights if groups is None else weights[:, member]


def _weights(units: int, start: int, rows: int, seed: int) -> Array:
    """Return how often each unit is drawn in some resamples, ``[rows, units]``; nobody may write into it."""
    key = PRNGKey.of(seed, "bootstrap")
    indices = PRNGKey(key.keys.expand(rows)).at(torch.arange(start, start + rows)).below(units, units)
    ones = torch.ones(rows, units, dtype=torch.float64)
    weights = torch.zeros_like(ones).scatter_add_(1, indices, ones).numpy()
    weights.flags.writeable = False
    return np.asarray(weights)


_cached_weights = lru_cache(maxsize=4)(_weights)  # many small columns, such as bins, are resampled alike


def mean(parts: Array, weights: Array) -> Array:
    """Return the weighted mean of the first part ``[r]`` over the images that have it."""
    return means(parts[:, :1], weights).reshape(-1)


def means(scores: Array, weights: Array) -> Array:
    """Return the weighted mean ``[r, c]`` of every column of ``[n, c]`` over the images that have a score."""
    valid = ~np.isnan(scores)
    total = weights @ np.where(valid, scores, 0.0)
    count = weights @ valid.astype(np.float64)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def resampled(cells: Sequence[Cell], samples: int = SAMPLES, seed: int = 0, groups: Groups = None) -> Array:
    """Return the score of every cell in each resample, ``[samples, c]``, aggregated again; NaN where it has none."""
    averaged = [column for column, (_, aggregate) in enumerate(cells) if aggregate is mean]
    blocks = []
    for weights in resamples(len(cells[0][0]), samples, seed, groups):
        block = np.empty((len(weights), len(cells)))
        if averaged:  # all means in one product
            block[:, averaged] = means(np.stack([cells[column][0][:, 0] for column in averaged], axis=1), weights)
        for column, (parts, aggregate) in enumerate(cells):
            if aggregate is not mean:
                block[:, column] = aggregate(parts, weights)
        blocks.append(block)
    return np.concatenate(blocks)


def intervals(
    scores: Array, level: float = 0.95, samples: int = SAMPLES, seed: int = 0, groups: Groups = None
) -> list[Interval]:
    """Return the percentile interval of the mean of every column of ``[n, c]``."""
    aggregates = resampled([(column[:, None], mean) for column in scores.T], samples, seed, groups)
    return [interval(column, level) for column in aggregates.T]


def interval(scores: Array, level: float = 0.95) -> Interval:
    """Return the percentile interval of resampled scores; NaN where there are none."""
    if not 0 < level < 1:
        raise VitreousError(f"level={level} must lie between 0 and 1")
    valid = scores[~np.isnan(scores)]
    ends = (math.nan, math.nan) if not len(valid) else np.quantile(valid, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(*ends)


def difference(
    one: Array,
    other: Array,
    aggregate: Aggregate = mean,
    level: float = 0.95,
    samples: int = SAMPLES,
    seed: int = 0,
    groups: Groups = None,
) -> Difference:
    """Return the score of ``one`` less that of ``other``, ``[n]`` or parts ``[n, P]``, over the images with both."""
    one, other = (np.asarray(parts, np.float64).reshape(len(parts), -1) for parts in (one, other))
    valid: Array = np.isfinite(np.concatenate([one, other], axis=1)).all(axis=1)
    if not valid.any():
        raise VitreousError("no image has both scores")
    pair = [np.where(valid[:, None], parts, np.nan) for parts in (one, other)]
    scores = resampled([(parts, aggregate) for parts in pair], samples, seed, groups)
    gaps = scores[:, 0] - scores[:, 1]
    gaps = gaps[~np.isnan(gaps)]
    p = p_value(gaps, len(np.unique(members(len(valid), groups)[valid])))
    first, second = (float(aggregate(parts, np.ones((1, len(parts))))[0]) for parts in pair)
    return Difference(first - second, *interval(gaps, level), p, int(valid.sum()))


def p_value(gaps: Array, units: int) -> float:
    """Return a two-sided p-value from the differences ``[B]`` of some resamples of so many units.

    ``2 (tail + 1) / (B + 1)``, tail the resamples on the rarer side of zero; never below ``2 ** (1 - units)``,
    which is how often all of them lie on one side if either side is as likely. One image proves nothing: resamples of
    it are all the same.
    """
    tail = min(int((gaps <= 0).sum()), int((gaps >= 0).sum()))
    return min(1.0, max(2 * (tail + 1) / (len(gaps) + 1), 2.0 ** (1 - units)))


def clustered_error(gaps: Array, groups: Groups = None) -> float:
    """Return the standard error of the mean of ``[n]``, rows of a group taken as one; NaN from fewer than two units.

    ``sqrt(G / (G - 1) sum_g (sum_{i in g} (d_i - mean))^2) / n`` with G groups; each row a group, ``s / sqrt(n)``.
    """
    valid = np.isfinite(gaps)
    units = np.unique(members(len(gaps), groups)[valid], return_inverse=True)[1]
    count = int(units.max()) + 1 if len(units) else 0
    if count < 2:
        return math.nan
    gaps = gaps[valid]
    sums = np.bincount(units, weights=gaps - gaps.mean())
    return float(np.sqrt(count / (count - 1) * (sums**2).sum()) / len(gaps))


THIN = 20
"""A bin with fewer images says little."""


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies in ``low .. high``; the upper end belongs to the last bin only.

    ``count`` images have a score; mean and interval are NaN where none has.
    """

    low: float
    high: float
    count: int
    mean: float
    interval: Interval

    @property
    def thin(self) -> bool:
        """Whether there are too few images to rely on."""
        return self.count < THIN

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"thin": self.thin}


def bins(
    scores: Array,
    confidence: Array,
    count: int = 20,
    by: str = "width",
    *,
    relative: bool = False,
    samples: int = SAMPLES,
    seed: int = 0,
    groups: Groups = None,
) -> list[Bin]:
    """Return ``count`` bins of equal ``width`` over 0 .. 1, or of equal ``mass`` (as many images in each).

    Bins of equal mass cut the images in order of confidence; where there are fewer images than bins, one each. Images
    of a group that fall into one bin are resampled together.
    """
    scores, confidence = np.asarray(scores, np.float64), np.asarray(confidence, np.float64)
    if count < 1:
        raise VitreousError(f"{count} bins are too few")
    if scores.shape != confidence.shape or scores.ndim != 1:
        raise VitreousError(f"{scores.shape} scores and {confidence.shape} confidences do not belong together")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise VitreousError("confidences must lie between 0 and 1")
    if by not in _CUTS:
        raise VitreousError(f"by={by!r} is not one of {', '.join(_CUTS)}")
    if relative:
        scores = np.divide(scores, confidence, out=np.full_like(scores, np.nan), where=confidence > 0)
    member = members(len(scores), groups)
    filled = []
    for low, high, images in _CUTS[by](confidence, count):
        images = images[~np.isnan(scores[images])]
        average, spread = math.nan, Interval(math.nan, math.nan)
        if len(images):
            together = None if groups is None else member[images].tolist()
            (spread,) = intervals(scores[images][:, None], samples=samples, seed=seed, groups=together)
            average = float(scores[images].mean())
        filled.append(Bin(float(low), float(high), len(images), average, spread))
    return filled


Cut = tuple[float, float, Array]
"""Both ends of a bin, and the images in it."""


def _equal_width(confidence: Array, count: int) -> list[Cut]:
    edges, index = np.linspace(0, 1, count + 1), np.minimum((confidence * count).astype(int), count - 1)
    return [(edges[i], edges[i + 1], np.flatnonzero(index == i)) for i in range(count)]


def _equal_mass(confidence: Array, count: int) -> list[Cut]:
    order = np.argsort(confidence, kind="stable")
    parts = [part for part in np.array_split(order, min(count, len(order))) if len(part)]
    return [(confidence[part[0]], confidence[part[-1]], part) for part in parts]


_CUTS = {"width": _equal_width, "mass": _equal_mass}
