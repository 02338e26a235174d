"""The image under its own map: average drop, increase and gain.

``x'`` is the image faded into the substrate by ``m``, the map scaled to 0 .. 1: ``m x + (1 - m) b``. With ``zero_norm``
that is the normalised image times the map. What speaks against the class is taken away with what says nothing: ``m`` is
the positive part of the map (Chattopadhay et al. and Zhang et al., whose maps end in a ReLU), less its minimum and
divided by what is left of its maximum (Zhang et al.; the former divide by the maximum, the same wherever the minimum is
0). A map that is constant, or positive nowhere, has ``m = 0``: ``x'`` is the bare substrate.
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
from vitreous.words import check_choice

if TYPE_CHECKING:
    from vitreous.metrics.states.answers import Answers

__all__ = ["AverageDrop", "AverageGain", "AverageIncrease"]


@dataclass
class _Masked(Metric):
    """Shared by all three: one forward per map.

    ``how`` is what of the map becomes ``m``: its positive part (``relu``), or all of it, so that the lowest value is
    taken away and the highest stays (``minmax``).
    """

    substrate: str = "zero_norm"
    how: str = "relu"

    def check(self) -> None:
        check_substrate(self.substrate, fades=True)
        check_choice("how", self.how, ("relu", "minmax"))

    def needs(self, geometry: Geometry) -> Sequence[Need]:
        return [Need.blend(self.substrate, self.how)]

    def _logs(self, answers: Answers) -> tuple[Array, Array]:
        """Return ``log P(x)`` and ``log P(x')``."""
        masked = answers.log_probability(Need.blend(self.substrate, self.how), self.explain, self.score)[:, 0]
        return answers.clean(self.score, self.explain), masked


@register("average_drop", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageDrop(_Masked):
    """Share of the probability that is lost under the map: ``relu(P(x) - P(x')) / P(x)``.

    ``m`` is the positive part of the map (``how=relu``) or all of it (``how=minmax``), scaled to 0 .. 1. From the
    difference of log-probabilities, so that a tiny ``P(x)`` does no harm. Cost: one forward per map, shared with
    increase and gain.
    """

    higher_is_better = False

    def read(self, answers: Answers) -> Array:
        clean, masked = self._logs(answers)
        return np.asarray(-np.expm1(np.minimum(masked - clean, 0)))


@register("average_increase", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageIncrease(_Masked):
    """Whether the probability rises under the map: 1 if ``P(x') > P(x)``, else 0.

    ``how`` as for ``average_drop``. Cost: one forward per map.
    """

    def read(self, answers: Answers) -> Array:
        clean, masked = self._logs(answers)
        return np.where(np.isnan(masked), np.nan, masked > clean)


@register("average_gain", family="faithfulness", papers=("zhang2024opticam",))
@dataclass
class AverageGain(_Masked):
    """Share of what was left to gain that is gained: ``relu(P(x') - P(x)) / (1 - P(x))``.

    Zero where ``P(x)`` is one already. ``how`` as for ``average_drop``. Cost: one forward per map.
    """

    def read(self, answers: Answers) -> Array:
        clean, masked = self._logs(answers)
        left = -np.expm1(clean)
        gained = np.maximum(np.exp(masked) - np.exp(clean), 0)
        gain = np.divide(gained, left, out=np.zeros_like(gained), where=left > 0)
        return np.where(np.isnan(masked), np.nan, gain)
