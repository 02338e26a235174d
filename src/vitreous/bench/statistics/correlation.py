"""Do two metrics put the methods in the same order? Spearman's rank correlation over methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from vitreous.metrics.bootstrap import interval, resampled
from vitreous.metrics.similarity import rank_correlation
from vitreous.results import Table

__all__ = ["Correlation", "correlations"]

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


def correlations(table: Table) -> tuple[Correlation, ...]:
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
