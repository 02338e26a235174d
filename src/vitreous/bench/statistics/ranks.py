"""Mean ranks over images, the Friedman test, and Nemenyi's critical difference (Demsar 2006).

Every image ranks the methods, the best of them first; equal scores share their mean rank. An image, or a group of rows
that share one (the mean of its rows), is a block. Only blocks in which every method has a score count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from vitreous.bench.statistics.paired import LEVEL
from vitreous.errors import VitreousError
from vitreous.methods.consensus import mean_ranks
from vitreous.metrics.bootstrap import Groups, members
from vitreous.metrics.curves import Array
from vitreous.results import Table

__all__ = ["Ranks", "blocks", "critical_difference", "friedman", "groups_of", "ranked", "ranks", "studentised_range"]


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


def ranked(table: Table, metric: str) -> Ranks:
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
