"""The paired randomisation test (Fisher 1935; Noreen 1989).

If two methods did not differ, their scores on an image could be swapped. So the observed difference is set beside those
under all swaps, or many random ones. Unlike the p-value of a bootstrap it is honest about few images: with five of them
it is never below 1/16.

Paired comparisons: is a method better than chance, or than one reference, on the same images?

The interval of a difference is the paired bootstrap of ``vitreous.metrics.bootstrap``, its p-value that of the
randomisation test in ``swaps``. Rows of one group are resampled and swapped together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import Aggregate, Groups, Interval, clustered_error, interval, mean, members, resampled
from vitreous.metrics.curves import Array
from vitreous.results import ScoreTable
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "Compared",
    "LEVEL",
    "POWER",
    "ROUNDING",
    "compared",
    "detectable",
    "holm",
    "pairs_of",
    "randomised",
    "swapped",
]

ROUNDING = 1e-12
"""Differences that are smaller than this, in units of what they are differences of, are none."""
_BLOCK = 2**22  # swaps held at a time


def swapped(gaps: Array, groups: Groups = None, samples: int = 10_000, seed: int = 0) -> Array:
    """Return the two-sided p-value ``[c]`` that every column of gaps ``[n, c]`` has mean zero; NaN gaps are left out.

    The share of all ways to turn the signs of units that give a mean at least as far from zero. All are tried if there
    are no more than ``samples``; otherwise so many random ones are, and the observed one is counted with them.
    """
    filled = np.where(np.isfinite(gaps), gaps, 0.0)
    member = members(len(gaps), groups)
    sums = np.zeros((int(member.max()) + 1, gaps.shape[1]))
    np.add.at(sums, member, filled)
    return randomised(len(sums), samples, seed, lambda swap: (1 - 2 * swap) @ sums, ROUNDING * abs(sums).sum(axis=0))


def randomised(units: int, samples: int, seed: int, statistic: Callable[[Array], Array], rounding: Array) -> Array:
    """Return the p-value ``[c]`` of a statistic ``[r, c]`` of swaps ``[r, units]``, which are 0 or 1."""
    observed = np.abs(statistic(np.zeros((1, units))))[0] - rounding
    every = units <= 62 and 2 ** (units - 1) <= samples
    as_far, count = np.zeros(len(observed)), 0
    for swap in _all_swaps(units) if every else _random_swaps(units, samples, seed):
        as_far += (np.abs(statistic(swap)) >= observed).sum(axis=0)
        count += len(swap)
    return as_far / count if every else (as_far + 1) / (count + 1)


def _all_swaps(units: int) -> Iterator[Array]:
    """Yield all swaps but for those that are another one's complement: they give the same, with the other sign."""
    numbers = np.arange(2 ** (units - 1))
    for part in np.array_split(numbers, max(1, len(numbers) * units // _BLOCK)):
        yield ((part[:, None] >> np.arange(units)) & 1).astype(np.float64)


def _random_swaps(units: int, samples: int, seed: int) -> Iterator[Array]:
    draws, at_once = PRNGKey.of(seed, "swaps"), max(1, _BLOCK // units)
    for start in range(0, samples, at_once):
        rows = torch.arange(start, min(samples, start + at_once))
        yield PRNGKey(draws.keys.expand(len(rows))).at(rows).below(2, units).double().numpy()


LEVEL, POWER = 0.05, 0.80
_PER_TEST = 200
"""Swaps for each test of a family, at least: the smallest p of all, corrected, is then at most 1/200."""
_STARS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))


@dataclass(frozen=True)
class Compared:
    """One method against another in one metric: ``one - other`` over the images that both have a score of.

    ``low`` and ``high``: 95 % paired bootstrap interval of this difference alone. ``p``: two-sided randomisation test;
    ``corrected``: the same after Holm, over the ``family`` tests of this metric. ``error``: the standard error, and
    ``z = difference / error``; ``detectable``: the least true difference that a test at 5 % would find four times out
    of five. ``units``: how many images, or groups of them, stand for themselves. NaN is what is undefined.
    """

    one: str
    other: str
    metric: str
    images: int
    units: int
    difference: float
    low: float
    high: float
    error: float
    z: float
    detectable: float
    p: float
    corrected: float
    family: int
    higher_is_better: bool

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

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "word": self.word}


def pairs_of(methods: Sequence[str], chance: str = "random", reference: str | None = None) -> list[tuple[str, str]]:
    """Return the tests of one metric: every method against chance, and every other one against the reference.

    Reference against chance is one test, not two. Without a method named ``chance`` only the reference is left.
    """
    if reference is not None and reference not in methods:
        raise VitreousError(f"no method {reference!r} in this table{nearest(reference, methods)}")
    first = [(name, chance) for name in methods if name != chance] if chance in methods else []
    if reference is None or reference == chance:
        return first
    return first + [(name, reference) for name in methods if name not in (chance, reference)]


def compared(
    table: ScoreTable, pairs: Sequence[tuple[str, str]], metrics: Sequence[str] | None = None
) -> list[Compared]:
    """Compare pairs of methods in some metrics, or all; the tests of one metric are the family that is corrected."""
    names = table.metrics if metrics is None else metrics
    found = [_Pair.of(table, metric, *pair) for metric in names for pair in pairs]
    tried = [pair for pair in found if pair.there.any()]
    if not tried:
        return [pair.untested for pair in found]
    # all at once: the same resamples and swaps serve every pair and metric, and making them is most of the work
    boots = resampled([cell for pair in tried for cell in pair.cells], table.samples, table.seed, table.groups)
    p = _chances(tried, table.groups, max(table.samples, _PER_TEST * len(pairs)), table.seed)
    own = {metric: [number for number, pair in enumerate(tried) if pair.metric == metric] for metric in names}
    corrected = {n: float(c) for each in own.values() for n, c in zip(each, holm(p[each]), strict=True)}
    results: dict[_Pair, Compared] = {}
    column = 0
    for number, pair in enumerate(tried):
        gaps = boots[:, column] if pair.averaged else boots[:, column] - boots[:, column + 1]
        column += len(pair.cells)
        chances = {"p": float(p[number]), "corrected": corrected[number], "family": len(own[pair.metric])}
        results[pair] = replace(_measured(pair, gaps, table.groups), **chances)  # type: ignore[arg-type]
    return [results.get(pair, pair.untested) for pair in found]


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two methods in one metric: parts of the images that both have, NaN elsewhere."""

    names: tuple[str, str]
    metric: str
    one: Array
    other: Array
    there: Array
    aggregate: Aggregate
    higher_is_better: bool

    @classmethod
    def of(cls, table: ScoreTable, metric: str, one: str, other: str) -> _Pair:
        table[one, metric], table[other, metric]
        (first, aggregate), (second, _) = (table.judges[metric].cell(table.parts[m, metric]) for m in (one, other))
        if aggregate is mean:
            first, second = first[:, :1], second[:, :1]
        there: Array = np.isfinite(np.concatenate([first, second], axis=1)).all(axis=1)
        first, second = (np.where(there[:, None], parts, np.nan) for parts in (first, second))
        return cls((one, other), metric, first, second, there, aggregate, table.higher_is_better[metric])

    @property
    def averaged(self) -> bool:
        return self.aggregate is mean

    @property
    def cells(self) -> list[tuple[Array, Aggregate]]:
        """What is resampled: for a mean, the gap of every image will do."""
        if self.averaged:
            return [(self.one - self.other, mean)]
        return [(self.one, self.aggregate), (self.other, self.aggregate)]

    @property
    def untested(self) -> Compared:
        """What is known before anything is measured."""
        nan, up = math.nan, self.higher_is_better
        return Compared(*self.names, self.metric, 0, 0, nan, nan, nan, nan, nan, nan, nan, nan, 0, up)


def _measured(pair: _Pair, gaps: Array, groups: Groups) -> Compared:
    """Return everything but the p-values; a metric that is no mean has the deviation of its resamples as error."""
    units = len(np.unique(members(len(pair.there), groups)[pair.there]))
    ones = np.ones((1, len(pair.there)))
    first, second = (float(pair.aggregate(parts, ones)[0]) for parts in (pair.one, pair.other))
    gap = first - second
    if pair.averaged:
        error = clustered_error((pair.one - pair.other)[:, 0], groups)
    else:
        error = float(np.nanstd(gaps, ddof=1)) if units > 1 else math.nan
    error = 0.0 if error <= ROUNDING * max(abs(first), abs(second)) else error  # all gaps are the same
    low, high = interval(gaps) if units > 1 else Interval(math.nan, math.nan)
    return replace(
        pair.untested,
        images=int(pair.there.sum()),
        units=units,
        difference=gap,
        low=low,
        high=high,
        error=error,
        z=gap / error if error > 0 else math.nan,
        detectable=detectable(error),
    )


def detectable(error: float, level: float = LEVEL, power: float = POWER) -> float:
    """Return the least difference that a two-sided test finds with this power, from its standard error.

    ``(z_{1 - level / 2} + z_power) error``: 2.80 errors at 5 % and 80 %. By the normal distribution, so that it is too
    small for fewer than about twenty images; NaN from an error of zero, which says nothing about other images.
    """
    if not (0 < level < 1 and 0 < power < 1):
        raise VitreousError(f"level={level}, power={power} must lie between 0 and 1")
    if error == 0:
        return math.nan
    return (NormalDist().inv_cdf(1 - level / 2) + NormalDist().inv_cdf(power)) * error


def holm(p: Array) -> Array:
    """Return p-values corrected by Holm's step-down; NaN stays, and is no test of the family.

    In ascending order ``max_{j <= i} min(1, (m - j) p_j)``, j from 0.
    """
    p = np.asarray(p, np.float64)
    tried = np.flatnonzero(~np.isnan(p))
    order = tried[np.argsort(p[tried], kind="stable")]
    steps = np.minimum(1.0, p[order] * np.arange(len(order), 0, -1))
    corrected = np.full(len(p), np.nan)
    corrected[order] = np.maximum.accumulate(steps)
    return corrected


def _chances(pairs: Sequence[_Pair], groups: Groups, samples: int, seed: int) -> Array:
    """Return the p-value of every pair: all means at once, any other aggregate by itself."""
    p = np.full(len(pairs), np.nan)
    averaged = [number for number, pair in enumerate(pairs) if pair.averaged]
    if averaged:
        gaps = np.concatenate([pairs[number].one - pairs[number].other for number in averaged], axis=1)
        p[averaged] = swapped(gaps, groups, samples, seed)
    for number, pair in enumerate(pairs):
        if not pair.averaged:
            p[number] = _swapped_parts(pair, groups, samples, seed)
    return p


def _swapped_parts(pair: _Pair, groups: Groups, samples: int, seed: int) -> float:
    """The same for a score that is no mean: of either method's parts, those that a swap gives it are aggregated."""
    there = pair.there
    member = np.unique(members(len(there), groups)[there], return_inverse=True)[1]
    parts = np.concatenate([pair.one[there], pair.other[there]])

    def gap(swap: Array) -> Array:
        taken = swap[:, member]
        first, second = (np.concatenate([1 - own, own], axis=1) for own in (taken, 1 - taken))
        return np.asarray(pair.aggregate(parts, first) - pair.aggregate(parts, second))[:, None]

    return float(randomised(int(member.max()) + 1, samples, seed, gap, np.array([ROUNDING]))[0])
