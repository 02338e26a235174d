"""Paired comparisons: is a method better than chance, or than one reference, on the same images?

The interval of a difference is the paired bootstrap of ``vitreous.metrics.bootstrap``, its p-value that of the paired
randomization test (Fisher 1935; Noreen 1989): if two methods did not differ, their scores on an image could be
swapped, so the observed difference is compared with those under all swaps, or many random ones. Unlike the p-value of
a bootstrap it is honest about few images: with five of them it is never below 1/16. Rows of one group are resampled
and swapped together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import torch

from vitreous.metrics.bootstrap import Aggregate, Groups, Interval, clustered_error, interval, mean, members, resampled
from vitreous.metrics.ranking import Array
from vitreous.registry.defaults import CONTROLS
from vitreous.results import ScoreTable
from vitreous.tracing.prng import PRNGKey

CHANCE = CONTROLS[0]
"""The method that all others are tested against."""
LEVEL, _POWER = 0.05, 0.80
ROUNDING = 1e-12
"""Differences that are smaller than this, in units of what they are differences of, are none."""
_BLOCK = 2**22  # swaps held at a time
_PER_TEST = 200
"""Swaps for each test of a family, at least: the smallest p of all, corrected, is then at most 1/200."""
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))


def swap_p_values(gaps: Array, groups: Groups = None, samples: int = 10_000, seed: int = 0) -> Array:
    """Return the two-sided p-value ``[c]`` that every column of gaps ``[n, c]`` has mean zero; NaN gaps are left out.

    The share of all ways to turn the signs of units that give a mean at least as far from zero. All are tried if there
    are no more than ``samples``; otherwise so many random ones are, and the observed one is counted with them.
    """
    member = members(len(gaps), groups)
    sums = np.zeros((int(member.max()) + 1, gaps.shape[1]))
    np.add.at(sums, member, np.where(np.isfinite(gaps), gaps, 0.0))
    return _p_values(len(sums), samples, seed, lambda swap: (1 - 2 * swap) @ sums, ROUNDING * abs(sums).sum(axis=0))


def _p_values(units: int, samples: int, seed: int, statistic: Callable[[Array], Array], rounding: Array) -> Array:
    """Return the p-value ``[c]`` of a statistic ``[r, c]`` of swaps ``[r, units]``, which are 0 or 1."""
    observed = np.abs(statistic(np.zeros((1, units))))[0] - rounding
    exact = units <= 62 and 2 ** (units - 1) <= samples
    as_far, count = np.zeros(len(observed)), 0
    for swap in _all_swaps(units) if exact else _random_swaps(units, samples, seed):
        as_far += (np.abs(statistic(swap)) >= observed).sum(axis=0)
        count += len(swap)
    return as_far / count if exact else (as_far + 1) / (count + 1)


def _all_swaps(units: int) -> Iterator[Array]:
    """Yield all swaps but for those that are another one's complement: they give the same, with the other sign."""
    numbers = np.arange(2 ** (units - 1))
    for part in np.array_split(numbers, max(1, len(numbers) * units // _BLOCK)):
        yield ((part[:, None] >> np.arange(units)) & 1).astype(np.float64)


def _random_swaps(units: int, samples: int, seed: int) -> Iterator[Array]:
    key, block = PRNGKey.of(seed, "swaps"), max(1, _BLOCK // units)
    for start in range(0, samples, block):
        rows = torch.arange(start, min(samples, start + block))
        yield PRNGKey(key.keys.expand(len(rows))).at(rows).below(2, units).double().numpy()


@dataclass(frozen=True)
class PairedTest:
    """One method against another in one metric: ``one - other`` over the images that both have a score of.

    ``lower`` and ``upper``: 95 % paired bootstrap interval of this difference alone. ``p``: two-sided randomization
    test;
    ``corrected``: the same after Holm, over the ``family`` tests of this metric. ``error``: the standard error, and
    ``z = difference / error``; ``detectable``: the least true difference that a test at 5 % would find four times out
    of five. ``units``: how many images, or groups of them, stand for themselves. NaN is what is undefined.
    """

    one: str
    other: str
    metric: str
    higher_is_better: bool
    images: int = 0
    units: int = 0
    difference: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    error: float = math.nan
    z: float = math.nan
    detectable: float = math.nan
    p: float = math.nan
    corrected: float = math.nan
    family: int = 0

    @property
    def word(self) -> str:
        """``better``, ``worse``, ``not told apart``, or ``not tested``: no image has both scores."""
        if math.isnan(self.corrected):
            return "not tested"
        if self.corrected >= LEVEL:
            return "not told apart"
        return "better" if (self.difference > 0) == self.higher_is_better else "worse"

    @property
    def stars(self) -> str:
        """``***`` below 0.001, ``**`` below 0.01, ``*`` below 0.05, by the corrected p."""
        return next((stars for level, stars in _STARS if self.corrected < level), "")


def pairs_of(methods: Sequence[str], reference: str | None = None) -> list[tuple[str, str]]:
    """Return the tests of one metric: every method against ``CHANCE``, and every other one against the reference.

    Reference against chance is one test, not two. Where chance is not among the methods only the reference is left.
    """
    pairs = [(name, CHANCE) for name in methods if name != CHANCE] if CHANCE in methods else []
    if reference is None or reference == CHANCE:
        return pairs
    return pairs + [(name, reference) for name in methods if name not in (CHANCE, reference)]


def compare_methods(
    table: ScoreTable, pairs: Sequence[tuple[str, str]], metrics: Sequence[str] | None = None
) -> list[PairedTest]:
    """Compare pairs of methods in some metrics, or all; the tests of one metric are the family that is corrected."""
    names = table.metrics if metrics is None else metrics
    all_pairs = [_Pair.of(table, metric, *pair) for metric in names for pair in pairs]
    tested = [pair for pair in all_pairs if pair.has_both.any()]
    if not tested:
        return [pair.untested for pair in all_pairs]
    # all at once: the same resamples and swaps serve every pair and metric, and making them is most of the work
    cells = [cell for pair in tested for cell in pair.cells]
    columns = iter(resampled(cells, table.n_bootstrap, table.seed, table.groups).T)
    gaps = {pair: next(columns) if pair.averaged else next(columns) - next(columns) for pair in tested}
    p = _pair_p_values(tested, table.groups, max(table.n_bootstrap, _PER_TEST * len(pairs)), table.seed)
    results: dict[_Pair, PairedTest] = {}
    for metric in names:
        family = np.flatnonzero([pair.untested.metric == metric for pair in tested])
        for number, corrected in zip(family, holm(p[family]), strict=True):
            pair = tested[number]
            test = replace(pair.untested, p=float(p[number]), corrected=float(corrected), family=len(family))
            results[pair] = _measure(pair, test, gaps[pair], table.groups)
    return [results.get(pair, pair.untested) for pair in all_pairs]


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two methods in one metric: parts of the images that both have, NaN elsewhere."""

    untested: PairedTest
    one: Array
    other: Array
    has_both: Array
    aggregate: Aggregate

    @classmethod
    def of(cls, table: ScoreTable, metric: str, one: str, other: str) -> _Pair:
        table[one, metric], table[other, metric]
        (first, aggregate), (second, _) = (table.definitions[metric].cell(table.parts[m, metric]) for m in (one, other))
        if aggregate is mean:
            first, second = first[:, :1], second[:, :1]
        has_both: Array = np.isfinite(np.concatenate([first, second], axis=1)).all(axis=1)
        first, second = (np.where(has_both[:, None], parts, np.nan) for parts in (first, second))
        test = PairedTest(one, other, metric, table.higher_is_better[metric])
        return cls(test, first, second, has_both, aggregate)

    @property
    def averaged(self) -> bool:
        return self.aggregate is mean

    @property
    def cells(self) -> list[tuple[Array, Aggregate]]:
        """What is resampled: for a mean, the gap of every image will do."""
        both = [(self.one, self.aggregate), (self.other, self.aggregate)]
        return [(self.one - self.other, mean)] if self.averaged else both


def _measure(pair: _Pair, test: PairedTest, gaps: Array, groups: Groups) -> PairedTest:
    """Add everything but the p-values; a metric that is no mean has the deviation of its resamples as error."""
    units = len(np.unique(members(len(pair.has_both), groups)[pair.has_both]))
    ones = np.ones((1, len(pair.has_both)))
    first, second = (float(pair.aggregate(parts, ones)[0]) for parts in (pair.one, pair.other))
    if pair.averaged:
        error = clustered_error((pair.one - pair.other)[:, 0], groups)
    else:
        error = float(np.nanstd(gaps, ddof=1)) if units > 1 else math.nan
    error = 0.0 if error <= ROUNDING * max(abs(first), abs(second)) else error  # all gaps are the same
    lower, upper = interval(gaps) if units > 1 else Interval(math.nan, math.nan)
    return replace(
        test,
        images=int(pair.has_both.sum()),
        units=units,
        difference=first - second,
        lower=lower,
        upper=upper,
        error=error,
        z=(first - second) / error if error > 0 else math.nan,
        detectable=minimum_detectable(error),
    )


def minimum_detectable(error: float) -> float:
    """Return the least difference that a two-sided test at 5 % finds with a power of 80 %, from its standard error.

    ``(z_{1 - level / 2} + z_power) error``, 2.80 errors. By the normal distribution, so that it is too small for fewer
    than about twenty images; NaN from an error of zero, which says nothing about other images.
    """
    return math.nan if error == 0 else (NormalDist().inv_cdf(1 - LEVEL / 2) + NormalDist().inv_cdf(_POWER)) * error


def holm(p: Array) -> Array:
    """Return p-values corrected by Holm's step-down: ascending, ``max_{j <= i} min(1, (m - j) p_j)``, j from 0."""
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    return corrected


def _pair_p_values(pairs: Sequence[_Pair], groups: Groups, samples: int, seed: int) -> Array:
    """Return the p-value of every pair: all means at once, any other aggregate by itself."""
    p = np.full(len(pairs), np.nan)
    averaged = np.array([pair.averaged for pair in pairs])
    if averaged.any():
        gaps = np.concatenate([pair.one - pair.other for pair in pairs if pair.averaged], axis=1)
        p[averaged] = swap_p_values(gaps, groups, samples, seed)
    p[~averaged] = [_aggregate_p_value(pair, groups, samples, seed) for pair in pairs if not pair.averaged]
    return p


def _aggregate_p_value(pair: _Pair, groups: Groups, samples: int, seed: int) -> float:
    """The same for a score that is no mean: of either method's parts, those that a swap gives it are aggregated."""
    there = pair.has_both
    member = np.unique(members(len(there), groups)[there], return_inverse=True)[1]
    parts = np.concatenate([pair.one[there], pair.other[there]])

    def gap(swap: Array) -> Array:
        swapped = swap[:, member]
        first, second = (np.concatenate([1 - weights, weights], axis=1) for weights in (swapped, 1 - swapped))
        return np.asarray(pair.aggregate(parts, first) - pair.aggregate(parts, second))[:, None]

    return float(_p_values(int(member.max()) + 1, samples, seed, gap, np.array([ROUNDING]))[0])
