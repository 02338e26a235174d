"""Mean ranks over images, the Friedman test, and Nemenyi's critical difference (Demsar 2006).

Every image ranks the methods, the best of them first; equal scores share their mean rank. An image, or a group of rows
that share one (the mean of its rows), is a block. Only blocks in which every method has a score count.

Do two metrics put the methods in the same order? Spearman's rank correlation over methods.

How much of a score's uncertainty comes from seeds, and how much from images.

Scores of S seeds and n images are taken as ``x_si = mean + seed_s + image_i + rest_si``, all three random. The analysis
of variance gives the mean squares and, from what they are expected to be, the three variances (Searle, Casella and
McCulloch 1992): ``rest = MS_rest``, ``seed = (MS_seed - MS_rest) / n``, ``image = (MS_image - MS_rest) / S``. A
negative estimate becomes zero, and is said to have been. The rest holds what a seed does to one image and not to the
others (masks drawn anew for each of them): it too goes away with more seeds.

The numbers of a run with several seeds are those of its ``averaged`` table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import torch

from vitreous.benchmark.significance import LEVEL
from vitreous.errors import VitreousError
from vitreous.methods.combinators import mean_ranks
from vitreous.metrics import Metric
from vitreous.metrics.bootstrap import Groups, interval, members, resampled
from vitreous.metrics.curves import Array, Curve
from vitreous.metrics.similarity import rank_correlation
from vitreous.results import ScoreTable

__all__ = [
    "Correlation",
    "Ranks",
    "Spread",
    "averaged",
    "blocks",
    "correlations",
    "critical_difference",
    "friedman",
    "groups_of",
    "ranked",
    "ranks",
    "seed_scores",
    "spread",
    "studentised_range",
]


@dataclass(frozen=True)
class Ranks:
    """The mean rank of every method in one metric, best first, and who is told apart.

    ``p`` is Friedman's, by the chi-square distribution. Two methods are told apart if their mean ranks differ by at
    least ``critical``, and only if ``p`` is below 5 %; ``groups`` are the longest runs that are not. ``left_out`` are
    methods without any score; ``dropped`` is how many blocks lack the score of some method. With fewer than two blocks
    or methods nothing is tested: NaN, and one group of all.
    """

    metric: str
    methods: tuple[str, ...]
    mean: tuple[float, ...]
    blocks: int
    dropped: int
    left_out: tuple[str, ...]
    chi_square: float
    p: float
    critical: float
    groups: tuple[tuple[str, ...], ...]

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def of(self, method: str) -> float:
        """Return the mean rank of a method; NaN if it was left out."""
        return self.mean[self.methods.index(method)] if method in self.methods else math.nan


def ranked(table: ScoreTable, metric: str) -> Ranks:
    """Rank the methods of a table in one metric."""
    scores = np.stack([table[name, metric] for name in table.methods], axis=1)
    there = np.isfinite(scores).any(axis=0)
    names = [name for name, has in zip(table.methods, there, strict=True) if has]
    left_out = tuple(name for name in table.methods if name not in names)
    rows = np.where(np.isfinite(scores[:, there]), scores[:, there], np.nan)
    means = blocks(rows, table.groups)
    whole = means[~np.isnan(means).any(axis=1)]
    if not names or not len(whole):
        nothing, nan = (math.nan,) * len(names), math.nan
        return Ranks(metric, tuple(names), nothing, 0, len(means), left_out, nan, nan, nan, ())
    own = ranks(whole, table.higher_is_better[metric])
    chi_square, p = friedman(own)
    critical = critical_difference(len(names), len(whole)) if len(whole) > 1 and len(names) > 1 else math.nan
    mean = own.mean(axis=0)
    order = np.argsort(mean, kind="stable")
    ordered, places = tuple(names[at] for at in order), tuple(float(mean[at]) for at in order)
    apart = groups_of(ordered, places, critical if p < LEVEL else math.inf)
    return Ranks(metric, ordered, places, len(whole), len(means) - len(whole), left_out, chi_square, p, critical, apart)


def blocks(scores: Array, groups: Groups) -> Array:
    """Return the mean row of every group of ``[n, c]``; NaN where a row has none, so that columns stay paired."""
    if groups is None:
        return scores
    member = members(len(scores), groups)
    sums = np.zeros((int(member.max()) + 1, scores.shape[1]))
    np.add.at(sums, member, scores)
    return np.asarray(sums / np.bincount(member)[:, None])


def ranks(scores: Array, higher_is_better: bool = True) -> Array:
    """Return the rank of every column in each row of ``[n, k]``: 1 is the best, equal ones share their mean."""
    signed = np.ascontiguousarray(-scores if higher_is_better else scores, np.float64)
    shares = mean_ranks(torch.from_numpy(signed)[:, None]).numpy()[:, 0]
    return np.asarray(1 + np.round(2 * shares * (scores.shape[1] - 1)) / 2)  # whole and half ranks, without rounding


def friedman(own: Array) -> tuple[float, float]:
    """Return Friedman's chi-square of ranks ``[n, k]``, corrected for ties, and its p-value.

    ``(k - 1) n sum_j (R_j - (k + 1) / 2)^2 / v`` with R_j the mean rank and v the mean over rows of ``sum_j (r_ij - (k
    + 1) / 2)^2``, which is ``k (k^2 - 1) / 12`` without ties. Zero, and p = 1, if all are tied everywhere. NaN from
    fewer than two rows or columns.
    """
    n, k = own.shape
    if n < 2 or k < 2:
        return math.nan, math.nan
    centred = own - (k + 1) / 2
    within = (centred**2).sum() / n
    if within == 0:
        return 0.0, 1.0
    chi_square = float((k - 1) * n * (centred.mean(axis=0) ** 2).sum() / within)
    half = torch.tensor([(k - 1) / 2, chi_square / 2], dtype=torch.float64)
    return chi_square, float(torch.special.gammaincc(half[0], half[1]))


def critical_difference(methods: int, images: int, level: float = LEVEL) -> float:
    """Return Nemenyi's critical difference of mean ranks: ``q / sqrt(2) sqrt(k (k + 1) / (6 n))``."""
    if images < 1:
        raise VitreousError(f"images={images} must be at least 1")
    return studentised_range(methods, level) / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * images))


@cache
def studentised_range(count: int, level: float = LEVEL) -> float:
    """Return what the range of ``count`` standard normal numbers exceeds with this probability.

    Solves ``count integral phi(x) (Phi(x) - Phi(x - q))^(count - 1) dx = 1 - level``: no table is needed, nor scipy.
    """
    if count < 2:
        raise VitreousError(f"{count} method has no range: there must be at least 2")
    if not 0 < level < 1:
        raise VitreousError(f"level={level} must lie between 0 and 1")
    x = torch.linspace(-9, 9, 3601, dtype=torch.float64)
    density, below = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), torch.special.ndtr(x)
    low, high = 0.0, 40.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        inside = density * (below - torch.special.ndtr(x - middle)) ** (count - 1)
        low, high = (middle, high) if count * float(torch.trapezoid(inside, x)) < 1 - level else (low, middle)
    return (low + high) / 2


def groups_of(methods: Sequence[str], mean: Sequence[float], critical: float) -> tuple[tuple[str, ...], ...]:
    """Return the longest runs of two or more methods, ordered by mean rank, whose ends differ by less than critical."""
    runs: list[tuple[int, int]] = []
    for start in range(len(methods)):
        stop = max(at for at in range(start, len(methods)) if at == start or mean[at] - mean[start] < critical)
        if stop > start and (not runs or stop > runs[-1][1]):
            runs.append((start, stop))
    return tuple(tuple(methods[start : stop + 1]) for start, stop in runs)


_MOST = 2_000  # resamples of every pair of metrics: enough for two quantiles
_LEAST = 3  # methods: any two are in the same order, or in the opposite one


@dataclass(frozen=True)
class Correlation:
    """Spearman's correlation of the scores of ``methods`` methods in two metrics, turned so that up is better.

    ``low`` and ``high``: 95 % bootstrap interval over images, all scores aggregated anew. It holds for these methods:
    other methods would give another number. Noise in the scores can only blur an order, so that the interval of a
    correlation near 1 lies below it. NaN with fewer than three methods, or where all have the same score.
    """

    one: str
    other: str
    value: float
    low: float
    high: float
    methods: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def correlations(table: ScoreTable) -> tuple[Correlation, ...]:
    """Return the correlation of all pairs of metrics, over the methods that have a score in both."""
    shape = len(table.metrics), len(table.methods)
    if shape[0] < 2:
        return ()
    cells = [table.judges[m].cell(table.parts[name, m]) for m in table.metrics for name in table.methods]
    turned = np.array([1.0 if table.higher_is_better[m] else -1.0 for m in table.metrics])[:, None]
    whole = np.array([[table.mean(name, m) for name in table.methods] for m in table.metrics]) * turned
    boots = resampled(cells, min(_MOST, table.samples), table.seed, table.groups).reshape(-1, *shape) * turned
    units = len(table.images) if table.groups is None else len(set(table.groups))
    found = []
    for i, j in combinations(range(shape[0]), 2):
        both = np.isfinite(whole[[i, j]]).all(axis=0)
        value = low = high = math.nan
        if both.sum() >= _LEAST:
            value = float(rank_correlation(whole[i : i + 1, both], whole[j : j + 1, both])[0])
            if units > 1:
                low, high = interval(rank_correlation(boots[:, i, both], boots[:, j, both]))
        found.append(Correlation(table.metrics[i], table.metrics[j], value, low, high, int(both.sum())))
    return tuple(found)


@dataclass(frozen=True)
class Spread:
    """The variance of the scores of a method in a metric, by where it comes from.

    ``error`` is the standard error of the mean over all these seeds and images, ``sqrt(seed / S + image / n + rest /
    (S n))``; ``share`` is the part of its square that more seeds would remove, ``(seed / S + rest / (S n)) / error^2``;
    ``share_of_one`` the same for a table of a single seed. NaN where all scores are equal. ``clipped`` names the
    variances whose estimate was below zero. ``images`` counts those (or groups) that have a score with every seed.
    """

    method: str
    metric: str
    seeds: int
    images: int
    mean: float
    seed: float
    image: float
    rest: float
    error: float
    share: float
    share_of_one: float
    clipped: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def spread(scores: Array, method: str = "", metric: str = "", groups: Groups = None) -> Spread:
    """Return where the variance of scores ``[seeds, images]`` comes from; rows of a group are averaged first."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2:
        raise VitreousError(f"scores are [seeds, images], not {list(scores.shape)}")
    finite = np.where(np.isfinite(scores), scores, np.nan)
    units = blocks(finite.T, groups)
    x = units[~np.isnan(units).any(axis=1)].T
    seeds, images = x.shape
    if seeds < 2 or images < 2:
        of = f" of {method} in {metric}" if method else ""
        raise VitreousError(
            f"{seeds} seeds and {images} images with a score in each{of}: variances need two of both, at least"
        )
    whole, by_seed, by_image = x.mean(), x.mean(axis=1, keepdims=True), x.mean(axis=0, keepdims=True)
    of_seed = images * ((by_seed - whole) ** 2).sum() / (seeds - 1)
    of_image = seeds * ((by_image - whole) ** 2).sum() / (images - 1)
    rest = ((x - by_seed - by_image + whole) ** 2).sum() / ((seeds - 1) * (images - 1))
    raw = {"seed": (of_seed - rest) / images, "image": (of_image - rest) / seeds}
    rounding = 1e-24 * float((x**2).mean())  # of numbers that are equal but for their last bits
    seed, image, rest = (0.0 if each < rounding else float(each) for each in (*raw.values(), rest))
    return Spread(
        method=method,
        metric=metric,
        seeds=seeds,
        images=images,
        mean=float(whole),
        seed=seed,
        image=image,
        rest=rest,
        error=math.sqrt(_squared(seed, image, rest, seeds, images)),
        share=_share(seed, image, rest, seeds, images),
        share_of_one=_share(seed, image, rest, 1, images),
        clipped=tuple(name for name, each in raw.items() if each < -rounding),
    )


def _squared(seed: float, image: float, rest: float, seeds: int, images: int) -> float:
    return seed / seeds + image / images + rest / (seeds * images)


def _share(seed: float, image: float, rest: float, seeds: int, images: int) -> float:
    whole = _squared(seed, image, rest, seeds, images)
    return _squared(seed, 0.0, rest, seeds, images) / whole if whole > 0 else math.nan


def seed_scores(tables: Sequence[ScoreTable]) -> dict[tuple[str, str], Array]:
    """Return the scores ``[seeds, images]`` of every method and metric that all tables have, one table per seed."""
    if len(tables) < 2:
        raise VitreousError(f"{len(tables)} seed has no variance: there must be tables of at least two")
    return {cell: np.stack([table[cell] for table in tables]) for cell in _shared_cells(tables)}


def averaged(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Return one table whose images have the mean of their scores over seeds; ``tables`` has one for each seed.

    Parts and curves of an image are averaged over the seeds with which it has a score, so that an image that lacks a
    seed still counts. ``seed_sd`` is the standard deviation (S - 1) of the scores that each seed gives to all images;
    so that it holds no difference between images, only those count here that have a score with every seed.
    """
    if len(tables) == 1:
        return tables[0]
    first, cells = tables[0], _shared_cells(tables)
    parts, curves, deviations = {}, {}, {}
    for cell in cells:
        judge, every = first.judges[cell[1]], np.stack([table.parts[cell] for table in tables])
        there = np.stack([~np.isnan(table[cell]) for table in tables])
        parts[cell] = _mean_over_seeds(every, there)
        deviations[cell] = _deviation(judge, every, there)
        curves[cell] = _mean_curves([table.curves.get(cell, {}) for table in tables])
    counts = {name: [table.degenerate.get(name, {}) for table in tables] for name in first.methods}
    return replace(
        first,
        parts=parts,
        curves=curves,
        degenerate={
            name: {
                kind: max(own.get(kind, 0) for own in count) for kind in dict.fromkeys(k for own in count for k in own)
            }
            for name, count in counts.items()
        },
        plan={**first.plan, "seed": [table.plan.get("seed") for table in tables]},
        seed_sd=deviations,
    )


def _shared_cells(tables: Sequence[ScoreTable]) -> list[tuple[str, str]]:
    """Return the cells that all tables have; their images must be the same."""
    if any(table.images != tables[0].images for table in tables):
        raise VitreousError("tables of several seeds must have the same images, in the same order")
    return [cell for cell in tables[0].parts if all(cell in table.parts for table in tables)]


def _mean_over_seeds(values: Array, there: Array) -> Array:
    """Return the mean ``[n, P]`` of ``[seeds, n, P]`` over the seeds that are ``there``; NaN where none is."""
    count = there.sum(axis=0)[:, None]
    total = np.where(there[:, :, None], values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def _deviation(judge: Metric, parts: Array, there: Array) -> float:
    """Return the standard deviation over seeds of the score of all images; NaN with fewer than two seeds."""
    begun = there.any(axis=1)  # a seed of which nothing is there yet must not hide the others
    whole = there[begun].all(axis=0)
    if begun.sum() < 2 or not whole.any():
        return math.nan
    cells = [judge.cell(own[whole]) for own in parts[begun]]
    return float(np.std([aggregate(own, np.ones((1, len(own))))[0] for own, aggregate in cells], ddof=1))


def _mean_curves(curves: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    """Return curves by name, those of an image averaged over the seeds that have one of it."""
    found = {}
    for name in dict.fromkeys(name for own in curves for name in own):
        known = [own[name] for own in curves if name in own]
        every = np.stack([curve.y for curve in known])
        found[name] = Curve(known[0].x, _mean_over_seeds(every, ~np.isnan(every).any(axis=2)))
    return found
