"""Grids of counts, and curves to numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Curve:
    """What a score is read from: ``y`` ``[n, J]``, one line per image, over the fractions ``x`` ``[J]``."""

    x: Array
    y: Array

    @property
    def mean(self) -> Array:
        """The mean line over the images that have one."""
        valid = self.y[~np.isnan(self.y).any(axis=1)]
        return valid.mean(axis=0) if len(valid) else np.full(len(self.x), np.nan)


def equal_steps(size: int, steps: int) -> tuple[int, ...]:
    """Return ``k_j = min(size, j * ceil(size / steps))`` from 0 to ``size``; the last step may be shorter."""
    width = -(-size // steps)
    return (*range(0, size, width), size)


def percent_steps(size: int, steps: int, stop: float = 1.0) -> tuple[int, ...]:
    """Return ``floor(j / steps * size)`` for ``j / steps`` from 0 to ``stop``, in whole numbers."""
    return tuple(j * size // steps for j in range(round(steps * stop) + 1))


def area(curve: Array, at: Array, rule: str = "trapezoid", normalise: bool = True) -> Array:
    """Return one number for each curve ``[B, J]`` over the abscissae ``[J]``.

    ``trapezoid``: ``sum_j (x_{j+1} - x_j) (y_j + y_{j+1}) / 2`` with the true fractions, divided by the width of the
    grid unless ``normalise`` is off. ``mean``: the mean of the points.
    """
    if rule == "mean":
        return np.asarray(curve.mean(axis=1))
    widths = np.diff(at)
    total = ((curve[:, 1:] + curve[:, :-1]) / 2) @ widths
    return np.asarray(total / widths.sum() if normalise else total)
