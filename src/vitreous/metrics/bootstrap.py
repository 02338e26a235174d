"""How sure a mean is: the bootstrap over images, the same resamples for every method and metric.

B resamples of n images are a ``B x n`` matrix of multinomial weights; its product with the ``n x c`` scores gives all
means at once. Images without a score (NaN) weigh nothing. Differences of two methods are paired: taken image by image,
which removes the variance between images (Koehn 2004; Efron and Tibshirani 1993).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from vitreous.errors import VitreousError
from vitreous.metrics.curves import Array
from vitreous.passes.random import Draws

__all__ = ["SAMPLES", "Difference", "Interval", "difference", "intervals", "resampled_means"]

SAMPLES = 10_000
_BLOCK = 2**22  # weights held at a time


class Interval(NamedTuple):
    """A percentile interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The mean paired difference of two methods, its interval, and a two-sided p-value."""

    mean: float
    low: float
    high: float
    p: float
    images: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def resampled_means(scores: Array, samples: int = SAMPLES, seed: int = 0) -> Array:
    """Return the mean of every column of ``[n, c]`` in each resample, ``[samples, c]``; NaN where nothing was drawn."""
    if samples < 1:
        raise VitreousError(f"samples={samples} must be at least 1")
    if not len(scores):
        raise VitreousError("there are no scores to resample")
    columns = torch.from_numpy(np.asarray(scores, np.float64))
    there = ~columns.isnan()
    both = torch.cat([columns.nan_to_num(0.0), there.double()], dim=1)
    n = len(columns)
    draws = Draws.of(seed, "bootstrap")
    means = []
    for start in range(0, samples, max(1, _BLOCK // n)):
        rows = min(samples - start, max(1, _BLOCK // n))
        drawn = Draws(draws.keys.expand(rows)).at(torch.arange(start, start + rows)).below(n, n)
        weights = torch.zeros(rows, n, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(rows, n).double())
        total, count = (weights @ both).chunk(2, dim=1)
        means.append(total / count)
    return np.asarray(torch.cat(means).numpy())


def intervals(scores: Array, level: float = 0.95, samples: int = SAMPLES, seed: int = 0) -> list[Interval]:
    """Return the percentile interval of the mean of every column of ``[n, c]``."""
    if not 0 < level < 1:
        raise VitreousError(f"level={level} must lie between 0 and 1")
    means = resampled_means(scores, samples, seed)
    return [_interval(means[:, column], level) for column in range(means.shape[1])]


def difference(one: Array, other: Array, level: float = 0.95, samples: int = SAMPLES, seed: int = 0) -> Difference:
    """Return the mean of ``one - other`` over the images that have both scores."""
    paired = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    there = paired[~np.isnan(paired)]
    if not len(there):
        raise VitreousError("no image has both scores")
    means = resampled_means(paired[:, None], samples, seed)[:, 0]
    means = means[~np.isnan(means)]
    low, high = _interval(means, level)
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    p = min(1.0, 2 * (tail + 1) / (len(means) + 1))  # never zero: so many resamples cannot tell
    return Difference(float(there.mean()), low, high, p, len(there))


def _interval(means: Array, level: float) -> Interval:
    means = means[~np.isnan(means)]
    if not len(means):
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
