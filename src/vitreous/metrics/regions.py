"""Faithfulness by regions: squares of pixels are removed whole, and a picture that comes back step by step.

A square has the mean of the map inside it. Squares larger than a patch, or that cut patches, test other borders than
those the model knows; the sides of the picture must be multiples of the square's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array, Curve, area, equal_steps
from vitreous.metrics.registry import register
from vitreous.metrics.states.need import Geometry, Need, States
from vitreous.metrics.states.substrate import check_substrate
from vitreous.words import at_least, check_choice

if TYPE_CHECKING:
    from vitreous.metrics.states.answers import Answers

__all__ = ["Monotonicity", "RegionPerturbation", "Selectivity"]


@dataclass
class _Regions(Metric):
    """Shared by what removes squares: ``min(R, j ceil(R / steps))`` of R squares, from none to all."""

    region: int = 8
    steps: int = 20
    substrate: str = "mean_channel"

    def check(self) -> None:
        at_least("region", self.region, 1)
        at_least("steps", self.steps, 1)
        check_substrate(self.substrate)

    def needs(self, geometry: Geometry) -> Sequence[States]:
        return [self._need(geometry)]

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        need = self._need(answers.geometry)
        y = np.exp(answers.log_probability(need, self.explain, self.score))
        y[np.isnan(answers.values(self.explain)).all(axis=(1, 2))] = np.nan  # a random order knows no maps
        size = answers.geometry.size("pixel")
        gone = [size - count if need.keep else count for count in need.counts]
        return {"probability": Curve(np.array(gone) / size, y)}

    def _need(self, geometry: Geometry) -> States:
        return Need.removed(self.substrate, self._counts(geometry), f"region:{self.region}")

    def _counts(self, geometry: Geometry) -> list[int]:
        square = self.region**2
        return [count * square for count in equal_steps(max(1, geometry.size("pixel") // square), self.steps)]


@register("region_perturbation", family="faithfulness", papers=("samek2017evaluating",))
@dataclass
class RegionPerturbation(_Regions):
    """AOPC over regions: mean of ``P(x) - P(x_k)`` with the k most relevant squares gone, none and all included.

    ``order=morf`` takes the most relevant first (higher is better), ``lerf`` the least relevant (lower is better), and
    ``random`` a random order of the image's own, the same for all methods: what a map has to beat. Samek et al. remove
    100 squares of 9 pixels one by one and fill them with noise; here ``steps`` equal ones lead to the end, on any
    substrate. Cost: ``steps - 1`` forwards per map, or per image in a random order.
    """

    order: str = "morf"

    def check(self) -> None:
        super().check()
        check_choice("order", self.order, ("morf", "lerf", "random"))

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.order != "lerf"

    def _need(self, geometry: Geometry) -> States:
        counts, unit = self._counts(geometry), f"region:{self.region}"
        if self.order == "lerf":
            return Need.kept(self.substrate, [counts[-1] - count for count in counts], unit)
        return Need.removed(self.substrate, counts, unit, "random" if self.order == "random" else "map")

    def read(self, answers: Answers) -> Array:
        probability = self.curves(answers)["probability"].y
        return np.asarray((probability[:, :1] - probability).mean(axis=1))


@register("selectivity", family="faithfulness", papers=("montavon2018methods",))
@dataclass
class Selectivity(_Regions):
    """Area under ``P`` as the most relevant squares go, from none to all of them: how fast the model lets go.

    The trapezoid over the fraction removed. Lower is better. Cost: none beside ``region_perturbation`` on its grid.
    """

    higher_is_better = False

    def read(self, answers: Answers) -> Array:
        curve = self.curves(answers)["probability"]
        return area(curve.y, curve.x)


@register("monotonicity", family="faithfulness", papers=("arya2019one",))
@dataclass
class Monotonicity(Metric):
    """Share of the steps in which ``P(kept_k)`` does not fall as the most important pixels come back.

    On the grid of ``insertion``. Arya et al. add features one by one, the least important first, and ask whether
    *every* step rises. Small steps rise by chance: compare with a random map. Higher is better. Cost: none beside
    ``insertion`` with the same steps and substrate.
    """

    steps: int = 28
    substrate: str = "blur_rise"

    def check(self) -> None:
        at_least("steps", self.steps, 1)
        check_substrate(self.substrate)

    def needs(self, geometry: Geometry) -> Sequence[States]:
        return [Need.kept(self.substrate, equal_steps(geometry.size("pixel"), self.steps))]

    def read(self, answers: Answers) -> Array:
        curve = self.curves(answers)["probability"].y
        rises = (np.diff(curve, axis=1) >= 0).mean(axis=1)
        return np.where(np.isnan(curve).any(axis=1), np.nan, rises)

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        (need,) = self.needs(answers.geometry)
        y = np.exp(answers.log_probability(need, self.explain, self.score))
        return {"probability": Curve(np.array(need.counts) / answers.geometry.size("pixel"), y)}
