"""Complexity: how few places a map needs. It is read from the map alone and says nothing about the model.

``a`` are the values of a map on one grid, ``n`` of them. Scores depend on the grid: the same map at the pixels is
smoother, and has more places, than at the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.curves import Array
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.requests import ImageShape, Request
from vitreous.registry import check_at_least, check_choice

__all__ = ["EffectiveComplexity", "Entropy", "Gini"]


@dataclass
class _OfValues(Metric):
    """Shared by all: no state, no further map."""

    grid: str = "own"

    def check(self) -> None:
        check_choice("grid", self.grid, ("own", "pixel", "token"))

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return []

    def _values(self, answers: Evaluation) -> Array:
        values = answers.values(self.explain_class, self.grid)
        return values.reshape(len(values), -1)


@register_metric(
    "gini",
    family="complexity",
    aliases=("sparseness",),
    papers=("chalasani2020concise", "englebert2023explaining"),
    presets={
        "tis": {"grid": "pixel", "explain_class": "label", "normalization": "shift"},
        "quantus": {"normalization": "abs"},
    },
)
@dataclass
class Gini(_OfValues):
    """Gini index of the values: ``sum_i (2 i - n - 1) a_(i) / (n sum_i a_i)``, a in ascending order, i from 1.

    0 where all are the same (also all zero), ``(n - 1) / n`` where one has everything. The index is defined for values
    that are not negative: ``normalization=shift_negative`` subtracts the minimum of a map that has negative values,
    ``shift`` that of every map (TIS, as released), ``abs`` takes absolute values (Quantus), ``relu`` the positive part.
    ``offset`` is added to every value, as published code does: maps whose values are near it look flat. Higher is
    sparser, which is not better. Cost: one sort.
    """

    normalization: str = "shift_negative"
    offset: float = 1e-7

    def check(self) -> None:
        super().check()
        check_choice("normalization", self.normalization, ("shift_negative", "shift", "abs", "relu"))
        check_at_least("offset", self.offset, 0)

    def score(self, answers: Evaluation) -> Array:
        values = self._values(answers)
        if self.normalization in ("shift_negative", "shift"):
            lowest = values.min(axis=1, keepdims=True)
            values = values - (np.minimum(lowest, 0) if self.normalization == "shift_negative" else lowest)
        else:
            values = np.abs(values) if self.normalization == "abs" else np.maximum(values, 0)
        values = np.sort(values + self.offset, axis=1)
        count = values.shape[1]
        total = count * values.sum(axis=1)
        weighted = values @ (2 * np.arange(1, count + 1) - count - 1.0)
        found = np.divide(weighted, total, out=np.zeros_like(weighted), where=total != 0)
        return np.where(values[:, 0] == values[:, -1], 0, found)


@register_metric("entropy", family="complexity", aliases=("complexity",), papers=("bhatt2020evaluating",))
@dataclass
class Entropy(_OfValues):
    """Entropy of the shares of the places in nats: ``-sum_i p_i ln p_i``, ``p = |a| / sum |a|``.

    0 where one place has everything, ``ln n`` where all are the same; a zero map has ``ln n`` too, by definition. Lower
    is simpler, which is not better. Cost: none.
    """

    higher_is_better = False

    def score(self, answers: Evaluation) -> Array:
        values = np.abs(self._values(answers))
        total = values.sum(axis=1, keepdims=True)
        shares = values / np.where(total == 0, 1, total)
        logs = np.log(np.where(shares == 0, 1, shares))
        return np.where(total[:, 0] == 0, math.log(values.shape[1]), -(shares * logs).sum(axis=1))


@register_metric("effective_complexity", family="complexity", papers=("nguyen2020quantitative",))
@dataclass
class EffectiveComplexity(_OfValues):
    """How many places count: the number of values with ``|a| > threshold``.

    ``relative`` takes the threshold times the map's largest absolute value: only then can maps of different scales be
    compared. A zero map has none. Lower is simpler, which is not better. Cost: none.
    """

    higher_is_better = False
    threshold: float = 1e-5
    relative: bool = False

    def check(self) -> None:
        super().check()
        check_at_least("threshold", self.threshold, 0)

    def score(self, answers: Evaluation) -> Array:
        values = np.abs(self._values(answers))
        most = values.max(axis=1, keepdims=True) if self.relative else 1.0
        return np.where(np.isnan(values).any(axis=1), np.nan, (values > self.threshold * most).sum(axis=1))
