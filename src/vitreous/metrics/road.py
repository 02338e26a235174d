"""ROAD, remove and debias: what is removed is filled in from what is left, so that holes give nothing away.

Removed are ``floor(j n / steps)`` of n pixels for ``j`` from 1 to ``steps - 1``, the most relevant first (MoRF) or the
least relevant first (LeRF). A fraction is always the share *removed*; in the released code that of LeRF is the share
kept, which mirrors its curve and leaves the mean over a symmetric grid as it is. Pixels are ranked, never compared with
a percentile, so that tied and constant maps lose as many as any other: the latter in the order of the tie key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array, Curve, percent_steps
from vitreous.metrics.registry import register
from vitreous.metrics.states.need import Geometry, Need, States
from vitreous.metrics.states.substrate import check_substrate
from vitreous.words import at_least, check_choice

if TYPE_CHECKING:
    from vitreous.metrics.states.answers import Answers

__all__ = ["Road", "RoadLeRF", "RoadMoRF"]

_PRESETS = {"coiba": {"explain": "label", "score": "label"}, "rong": {"steps": 10, "by": "accuracy"}}
_COMMON: dict[str, Any] = {
    "family": "faithfulness",
    "papers": ("rong2022consistent", "hong2025coiba"),
    "presets": _PRESETS,
}
_MOST, _LEAST = "most relevant first", "least relevant first"


@dataclass
class _Road(Metric):
    """Shared by both orders and their difference."""

    steps: int = 5
    by: str = "probability"
    substrate: str = "noisy_linear"

    def check(self) -> None:
        at_least("steps", self.steps, 2)
        check_choice("by", self.by, ("probability", "accuracy"))
        check_substrate(self.substrate)

    @property
    def needs_labels(self) -> bool:
        return self.by == "accuracy" or super().needs_labels

    def _most(self, geometry: Geometry) -> States:
        return Need.removed(self.substrate, self._counts(geometry))

    def _least(self, geometry: Geometry) -> States:
        size = geometry.size("pixel")
        return Need.kept(self.substrate, [size - count for count in self._counts(geometry)])

    def _counts(self, geometry: Geometry) -> tuple[int, ...]:
        return percent_steps(geometry.size("pixel"), self.steps)[1:-1]

    def _curve(self, answers: Answers, need: States) -> Curve:
        fractions = np.arange(1, self.steps) / self.steps
        if self.by == "accuracy":
            return Curve(fractions, answers.correct(need, self.explain))
        return Curve(fractions, np.exp(answers.log_probability(need, self.explain, self.score)))


@register("road_morf", **_COMMON)
@dataclass
class RoadMoRF(_Road):
    """Mean probability, or accuracy, with 20, 40, 60 and 80 % of the pixels gone, the most relevant first.

    ``steps=10`` removes 10 to 90 %; ``by=accuracy`` compares the arg-max with the true class. ``@coiba`` explains and
    scores the true class (it reports both: add ``by=accuracy``), ``@rong`` is accuracy from 10 to 90 %. Lower is
    better. Cost: ``steps - 1`` forwards and as many solves per map.
    """

    higher_is_better = False

    def needs(self, geometry: Geometry) -> Sequence[States]:
        return [self._most(geometry)]

    def read(self, answers: Answers) -> Array:
        return np.asarray(self.curves(answers)[_MOST].y.mean(axis=1))

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        return {_MOST: self._curve(answers, self._most(answers.geometry))}


@register("road_lerf", **_COMMON)
@dataclass
class RoadLeRF(_Road):
    """Mean probability, or accuracy, with 20, 40, 60 and 80 % of the pixels gone, the least relevant first.

    The mirror of ``road_morf``: same grid, same presets, higher is better. Cost: ``steps - 1`` forwards and solves per
    map.
    """

    def needs(self, geometry: Geometry) -> Sequence[States]:
        return [self._least(geometry)]

    def read(self, answers: Answers) -> Array:
        return np.asarray(self.curves(answers)[_LEAST].y.mean(axis=1))

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        return {_LEAST: self._curve(answers, self._least(answers.geometry))}


@register("road", aliases=("delta_road",), **_COMMON)
@dataclass
class Road(_Road):
    """The difference of both orders, ``road_lerf - road_morf``: the least relevant should go unnoticed, the most not.

    pytorch-grad-cam's combined score is half of it. Higher is better. Cost: what both need, and nothing on top.
    """

    def needs(self, geometry: Geometry) -> Sequence[States]:
        return [self._least(geometry), self._most(geometry)]

    def read(self, answers: Answers) -> Array:
        least, most = (curve.y.mean(axis=1) for curve in self.curves(answers).values())
        return np.asarray(least - most)

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        least, most = self.needs(answers.geometry)
        return {_LEAST: self._curve(answers, least), _MOST: self._curve(answers, most)}
