"""The image under its own map: average drop, increase and gain.

``x'`` is the image faded into the substrate by ``m``, the absolute map scaled to 0 .. 1: ``m x + (1 - m) b``. With
``zero_norm`` that is the normalised image times the map. A constant map has ``m = 0``: ``x'`` is the bare substrate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array
from vitreous.metrics.registry import register
from vitreous.metrics.states.need import Geometry, Need
from vitreous.metrics.states.substrate import check_substrate

if TYPE_CHECKING:
    from vitreous.metrics.states.answers import Answers

__all__ = ["AverageDrop", "AverageGain", "AverageIncrease"]


@dataclass
class _Masked(Metric):
    """Shared by all three: one forward per map."""

    substrate: str = "zero_norm"

    def check(self) -> None:
        check_substrate(self.substrate, fades=True)

    def needs(self, geometry: Geometry) -> Sequence[Need]:
        return [Need.blend(self.substrate)]

    def _logs(self, answers: Answers) -> tuple[Array, Array]:
        """Return ``log P(x)`` and ``log P(x')``."""
        masked = answers.log_probability(Need.blend(self.substrate), self.explain, self.score)[:, 0]
        return answers.clean(self.score, self.explain), masked


@register("average_drop", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageDrop(_Masked):
    """Share of the probability that is lost under the map: ``relu(P(x) - P(x')) / P(x)``.

    From the difference of log-probabilities, so that a tiny ``P(x)`` does no harm. Cost: one forward per map, shared
    with increase and gain.
    """

    higher_is_better = False

    def read(self, answers: Answers) -> Array:
        clean, masked = self._logs(answers)
        return np.asarray(-np.expm1(np.minimum(masked - clean, 0)))


@register("average_increase", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageIncrease(_Masked):
    """Whether the probability rises under the map: 1 if ``P(x') > P(x)``, else 0. Cost: one forward per map."""

    def read(self, answers: Answers) -> Array:
        clean, masked = self._logs(answers)
        return np.where(np.isnan(masked), np.nan, masked > clean)


@register("average_gain", family="faithfulness", papers=("zhang2024opticam",))
@dataclass
class AverageGain(_Masked):
    """Share of what was left to gain that is gained: ``relu(P(x') - P(x)) / (1 - P(x))``.

    Zero where ``P(x)`` is one already. Cost: one forward per map.
    """

    def read(self, answers: Answers) -> Array:
        clean, masked = self._logs(answers)
        left = -np.expm1(clean)
        gained = np.maximum(np.exp(masked) - np.exp(clean), 0)
        gain = np.divide(gained, left, out=np.zeros_like(gained), where=left > 0)
        return np.where(np.isnan(masked), np.nan, gain)
