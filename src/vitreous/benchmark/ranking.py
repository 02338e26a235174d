"""Which methods are told apart, whether metrics agree, and what part of a score's uncertainty comes from seeds.

*Ranks* (Demsar 2006): every image ranks the methods, the best of them first; equal scores share their mean rank. An
image, or a group of rows that share one (the mean of its rows), is a block. Only blocks in which every method has a
score count.

*Seeds*: scores of S seeds and n images are taken as ``x_si = mean + seed_s + image_i + residual_si``, all three random.
The analysis of variance gives the mean squares and, from what they are expected to be, the three variances (Searle,
Casella and McCulloch 1992): ``residual = MS_residual``, ``seed = (MS_seed - MS_residual) / n``, ``image = (MS_image -
MS_residual) / S``. A negative estimate becomes zero, and is named. The residual holds what a seed does to one image
and not to the others (masks drawn anew for each of them): it too goes away with more seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from vitreous.benchmark.significance import LEVEL
from vitreous.errors import VitreousError
from vitreous.metrics import Metric
from vitreous.metrics.bootstrap import Groups, interval, members, resampled
from vitreous.metrics.ranking import Array, Curve
from vitreous.metrics.similarity import rank_correlation
from vitreous.results import ScoreTable

_MOST_RESAMPLES = 2_000  # of every pair of metrics: enough for two quantiles
_LEAST_METHODS = 3  # any two are in the same order, or in the opposite one


def _scipy_stats() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise VitreousError("the statistics of a run need scipy; pip install 'vitreous[bench]'") from None
    return stats


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
    chi_square: float = math.nan
    p: float = math.nan
    critical: float = math.nan
    groups: tuple[tuple[str, ...], ...] = ()

    def of(self, method: str) -> float:
        """Return the mean rank of a method; NaN if it was left out."""
        return self.mean[self.methods.index(method)] if method in self.methods else math.nan

    def letters(self, method: str) -> str:
        """Return one letter for each group that a method belongs to: methods that share one are not told apart."""
        return "".join(chr(ord("a") + at % 26) for at, group in enumerate(self.groups) if method in group)


def rank_methods(table: ScoreTable, metric: str) -> Ranks:
    """Rank the methods of a table in one metric."""
    scores = np.stack([table[name, metric] for name in table.methods], axis=1)
    has_scores = np.isfinite(scores).any(axis=0)
    names = list(np.array(table.methods, object)[has_scores])
    left_out = tuple(np.array(table.methods, object)[~has_scores])
    rows = np.where(np.isfinite(scores[:, has_scores]), scores[:, has_scores], np.nan)
    means = _block_means(rows, table.groups)
    complete = means[~np.isnan(means).any(axis=1)]
    if not names or not len(complete):
        return Ranks(metric, tuple(names), (math.nan,) * len(names), 0, len(means), left_out)
    ranks = ranks_per_image(complete, table.higher_is_better[metric])
    chi_square, p = friedman(ranks)
    critical = critical_difference(len(names), len(complete)) if len(complete) > 1 and len(names) > 1 else math.nan
    mean = ranks.mean(axis=0)
    order = np.argsort(mean, kind="stable")
    methods, values = tuple(names[at] for at in order), tuple(float(mean[at]) for at in order)
    groups = tied_groups(methods, values, critical if p < LEVEL else math.inf)
    dropped = len(means) - len(complete)
    return Ranks(metric, methods, values, len(complete), dropped, left_out, chi_square, p, critical, groups)


def _block_means(scores: Array, groups: Groups) -> Array:
    """Return the mean row of every group of ``[n, c]``; NaN where a row has none, so that columns stay paired."""
    if groups is None:
        return scores
    member = members(len(scores), groups)
    sums = np.zeros((int(member.max()) + 1, scores.shape[1]))
    np.add.at(sums, member, scores)
    return np.asarray(sums / np.bincount(member)[:, None])


def ranks_per_image(scores: Array, higher_is_better: bool = True) -> Array:
    """Return the rank of every column in each row of ``[n, k]``: 1 is the best, equal ones share their mean."""
    return np.asarray(_scipy_stats().rankdata(-scores if higher_is_better else scores, axis=1))


def friedman(ranks: Array) -> tuple[float, float]:
    """Return Friedman's chi-square of ranks ``[n, k]``, corrected for ties, and its p-value.

    ``(k - 1) n sum_j (R_j - (k + 1) / 2)^2 / v`` with R_j the mean rank and v the mean over rows of ``sum_j (r_ij - (k
    + 1) / 2)^2``, which is ``k (k^2 - 1) / 12`` without ties. Zero, and p = 1, if all are tied everywhere. NaN from
    fewer than two rows or columns. (``scipy.stats.friedmanchisquare`` refuses two methods.)
    """
    n, k = ranks.shape
    if n < 2 or k < 2:
        return math.nan, math.nan
    centred = ranks - (k + 1) / 2
    within = (centred**2).sum() / n
    if within == 0:
        return 0.0, 1.0
    chi_square = float((k - 1) * n * (centred.mean(axis=0) ** 2).sum() / within)
    return chi_square, float(_scipy_stats().chi2.sf(chi_square, k - 1))


def critical_difference(methods: int, images: int) -> float:
    """Return Nemenyi's critical difference of mean ranks: ``q / sqrt(2) sqrt(k (k + 1) / (6 n))``."""
    return studentized_range(methods) / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * images))


@cache
def studentized_range(count: int) -> float:
    """Return what the range of ``count`` standard normal numbers, two or more, exceeds with probability ``LEVEL``."""
    return float(_scipy_stats().studentized_range.isf(LEVEL, count, math.inf))


def tied_groups(methods: Sequence[str], mean: Sequence[float], critical: float) -> tuple[tuple[str, ...], ...]:
    """Return the longest runs of two or more methods, ordered by mean rank, whose ends differ by less than critical."""
    runs: list[tuple[int, int]] = []
    for start in range(len(methods)):
        stop = max(at for at in range(start, len(methods)) if at == start or mean[at] - mean[start] < critical)
        if stop > start and (not runs or stop > runs[-1][1]):
            runs.append((start, stop))
    return tuple(tuple(methods[start : stop + 1]) for start, stop in runs)


@dataclass(frozen=True)
class MetricCorrelation:
    """Spearman's correlation of the scores of ``methods`` methods in two metrics, turned so that up is better.

    ``lower`` and ``upper``: 95 % bootstrap interval over images, all scores aggregated anew. It holds for these
    methods: other methods would give another number. Noise in the scores can only blur an order, so that the interval
    of a correlation near 1 lies below it. NaN with fewer than three methods, or where all have the same score.
    """

    one: str
    other: str
    value: float
    lower: float
    upper: float
    methods: int


def correlate_metrics(table: ScoreTable) -> tuple[MetricCorrelation, ...]:
    """Return the correlation of all pairs of metrics, over the methods that have a score in both."""
    shape = len(table.metrics), len(table.methods)
    if shape[0] < 2:
        return ()
    cells = [table.definitions[m].cell(table.parts[name, m]) for m in table.metrics for name in table.methods]
    signs = np.array([1.0 if table.higher_is_better[m] else -1.0 for m in table.metrics])[:, None]
    scores = np.array([[table.mean(name, m) for name in table.methods] for m in table.metrics]) * signs
    samples = min(_MOST_RESAMPLES, table.n_bootstrap)
    resamples = resampled(cells, samples, table.seed, table.groups).reshape(-1, *shape) * signs
    units = len(table.images) if table.groups is None else len(set(table.groups))
    correlations = []
    for i, j in combinations(range(shape[0]), 2):
        both = np.isfinite(scores[[i, j]]).all(axis=0)
        value = lower = upper = math.nan
        if both.sum() >= _LEAST_METHODS:
            value = float(rank_correlation(scores[i : i + 1, both], scores[j : j + 1, both])[0])
            if units > 1:
                lower, upper = interval(rank_correlation(resamples[:, i, both], resamples[:, j, both]))
        correlation = MetricCorrelation(table.metrics[i], table.metrics[j], value, lower, upper, int(both.sum()))
        correlations.append(correlation)
    return tuple(correlations)


@dataclass(frozen=True)
class VarianceComponents:
    """The variance of the scores of a method in a metric, by where it comes from.

    ``error`` is the standard error of the mean over all these seeds and images, ``sqrt(seed / S + image / n +
    residual / (S n))``; ``share`` is the part of its square that more seeds would remove, ``(seed / S + residual / (S
    n)) / error^2``; ``share_of_one`` the same for a table of a single seed. NaN where all scores are equal.
    ``clipped`` names the variances whose estimate was below zero. ``images`` counts those (or groups) that have a score
    with every seed.
    """

    method: str
    metric: str
    seeds: int
    images: int
    mean: float
    seed: float
    image: float
    residual: float
    clipped: tuple[str, ...]

    @property
    def error(self) -> float:
        return math.sqrt(self._from_seeds(self.seeds) + self.image / self.images)

    @property
    def share(self) -> float:
        return self._share(self.seeds)

    @property
    def share_of_one(self) -> float:
        return self._share(1)

    @property
    def is_varying(self) -> bool:
        """Whether the seed changes anything that four digits show."""
        return math.sqrt(max(self.seed, self.residual)) >= 0.5e-4

    def _from_seeds(self, seeds: int) -> float:
        """The part of the squared standard error that more seeds would remove."""
        return self.seed / seeds + self.residual / (seeds * self.images)

    def _share(self, seeds: int) -> float:
        total = self._from_seeds(seeds) + self.image / self.images
        return self._from_seeds(seeds) / total if total > 0 else math.nan


def variance_components(scores: Array, method: str, metric: str, groups: Groups = None) -> VarianceComponents:
    """Return where the variance of scores ``[seeds, images]`` comes from; rows of a group are averaged first."""
    blocks = _block_means(np.where(np.isfinite(scores), scores, np.nan).T, groups)
    x = blocks[~np.isnan(blocks).any(axis=1)].T
    seeds, images = x.shape
    if seeds < 2 or images < 2:
        counts = f"{seeds} seeds and {images} images with a score in each of {method} in {metric}"
        raise VitreousError(f"{counts}: variances need two of both, at least")
    mean, by_seed, by_image = x.mean(), x.mean(axis=1, keepdims=True), x.mean(axis=0, keepdims=True)
    ms_seed = images * ((by_seed - mean) ** 2).sum() / (seeds - 1)
    ms_image = seeds * ((by_image - mean) ** 2).sum() / (images - 1)
    residual = ((x - by_seed - by_image + mean) ** 2).sum() / ((seeds - 1) * (images - 1))
    estimates = {"seed": (ms_seed - residual) / images, "image": (ms_image - residual) / seeds, "residual": residual}
    rounding = 1e-24 * float((x**2).mean())  # of numbers that are equal but for their last bits
    return VarianceComponents(
        method=method,
        metric=metric,
        seeds=seeds,
        images=images,
        mean=float(mean),
        clipped=tuple(name for name, value in estimates.items() if value < -rounding),
        **{name: 0.0 if value < rounding else float(value) for name, value in estimates.items()},
    )


def average_seeds(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Return one table whose images have the mean of their scores over seeds; ``tables`` have the same cells.

    Parts and curves of an image are averaged over the seeds with which it has a score, so that an image that lacks a
    seed still counts. ``seed_sd`` is the standard deviation (S - 1) of the scores that each seed gives to all images;
    so that it holds no difference between images, only those count here that have a score with every seed.
    """
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    parts, curves, deviations = {}, {}, {}
    for cell in first.parts:
        stacked = np.stack([table.parts[cell] for table in tables])
        there = np.stack([~np.isnan(table[cell]) for table in tables])
        parts[cell] = _mean_over_seeds(stacked, there)
        deviations[cell] = _deviation_over_seeds(first.definitions[cell[1]], stacked, there)
        curves[cell] = _mean_curves([table.curves.get(cell, {}) for table in tables])
    degenerate = {name: _most([table.degenerate.get(name, {}) for table in tables]) for name in first.methods}
    plan = {**first.plan, "seed": [table.plan.get("seed") for table in tables]}
    return replace(first, parts=parts, curves=curves, degenerate=degenerate, plan=plan, seed_sd=deviations)


def _most(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    kinds = dict.fromkeys(kind for count in counts for kind in count)
    return {kind: max(count.get(kind, 0) for count in counts) for kind in kinds}


def _mean_over_seeds(values: Array, there: Array) -> Array:
    """Return the mean ``[n, P]`` of ``[seeds, n, P]`` over the seeds that are ``there``; NaN where none is."""
    count = there.sum(axis=0)[:, None]
    total = np.where(there[:, :, None], values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def _deviation_over_seeds(metric: Metric, parts: Array, there: Array) -> float:
    """Return the standard deviation over seeds of the score of all images; NaN with fewer than two seeds."""
    begun = there.any(axis=1)  # a seed of which nothing is there yet must not hide the others
    complete = there[begun].all(axis=0)
    if begun.sum() < 2 or not complete.any():
        return math.nan
    cells = [metric.cell(values[complete]) for values in parts[begun]]
    return float(np.std([aggregate(values, np.ones((1, len(values))))[0] for values, aggregate in cells], ddof=1))


def _mean_curves(curves: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    """Return curves by name, those of an image averaged over the seeds that have one of it."""
    means = {}
    for name in dict.fromkeys(name for by_name in curves for name in by_name):
        same = [by_name[name] for by_name in curves if name in by_name]
        stacked = np.stack([curve.y for curve in same])
        means[name] = Curve(same[0].x, _mean_over_seeds(stacked, ~np.isnan(stacked).any(axis=2)))
    return means
