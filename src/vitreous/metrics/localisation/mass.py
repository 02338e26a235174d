"""How much of a map's relevance lies where it should: in the region, in a picture's own cell of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitreous.errors import SpellingError
from vitreous.metrics.localisation.shared import Localisation, Place, blurred, check_blur, share
from vitreous.metrics.registry import register
from vitreous.words import at_least, check_choice

__all__ = ["EHR", "Focus", "GridPointingGame", "RegionAttribution", "RelevanceMass"]

_ROUNDING = 1e-12  # of the largest value: a quantile that is one of the values may come out a little above it


@register("relevance_mass", family="localisation", aliases=("rma",), papers=("arras2022clevr",))
@dataclass
class RelevanceMass(Localisation):
    """Relevance mass accuracy: the share of the map's relevance that lies in the region, ``sum_R a / sum a``.

    Of the ``positive`` part, which the definition needs to stay between 0 and 1, of the ``absolute`` values, or
    ``signed``, which may leave that range. Nothing in all: 0. A constant positive map has ``rho``. Cost: no forwards.
    """

    of: str = "positive"

    def check(self) -> None:
        super().check()
        check_choice("of", self.of, ("positive", "absolute", "signed"))

    def measure(self, place: Place) -> float:
        values = place.values
        mass = {"positive": np.maximum(values, 0), "absolute": np.abs(values), "signed": values}[self.of]
        total = float(mass.sum())
        return float(mass[place.inside].sum()) / total if total else 0.0


@register(
    "grid_pointing_game",
    family="localisation",
    aliases=("gridpg",),
    papers=("rao2022towards",),
    presets={"rao": {"upsample": "bilinear"}},
)
@dataclass
class GridPointingGame(Localisation):
    """Share of the positive relevance for a cell's class that lies in this cell of the grid.

    ``sum_cell relu(a) / sum relu(a)`` after enlarging; 0 where the whole is not above ``least``. A constant positive
    map has ``1 / n^2`` on n x n cells. For grids as ``vitreous.data.grids`` makes them. Cost: no forwards.
    """

    least: float = 1e-7

    def check(self) -> None:
        super().check()
        at_least("least", self.least, 0)

    def measure(self, place: Place) -> float:
        mass = np.maximum(place.values, 0)
        return share(mass[place.inside].sum(), mass.sum(), self.least)


@register("focus", family="localisation", papers=("ariasduart2022focus",))
@dataclass
class Focus(Localisation):
    """Share of the positive relevance for a class that lies in the two cells of a mosaic that show this class.

    ``sum_R relu(a) / sum relu(a)`` with ``R`` both cells together; nothing positive: 0; a constant positive map: 0.5.
    For mosaics as ``vitreous.data.mosaics`` makes them. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        mass = np.maximum(place.values, 0)
        return share(mass[place.inside].sum(), mass.sum())


@register("region_attribution", family="localisation", aliases=("ra",), papers=("walter2025now",), presets={"var": {}})
@dataclass
class RegionAttribution(Localisation):
    """Share of the blurred positive relevance that lies in the region: ``sum_R G*relu(a) / sum G*relu(a)``.

    ``G`` is a Gaussian of ``kernel`` x ``kernel`` pixels and deviation ``sigma``, the map reflected at its edges.
    Nothing positive: 0; a constant positive map: ``rho``. VAR's RA; it does not state the deviation. Cost: no forwards.
    """

    kernel: int = 11
    sigma: float = 2.0

    def check(self) -> None:
        super().check()
        check_blur(self.kernel, self.sigma)

    def measure(self, place: Place) -> float:
        mass = place.inner(blurred(place.map, self.kernel, self.sigma))
        return share(mass[place.inside].sum(), mass.sum())


@register(
    "ehr",
    family="localisation",
    aliases=("effective_heat_ratio",),
    papers=("zhang2021inputiba",),
    presets={"inputiba": {"by": "points"}},
)
@dataclass
class EHR(Localisation):
    """Effective heat ratio: the share of the heat above a threshold that lies in the region, over all thresholds.

    ``m = relu(a) / max relu(a)``; thresholds are the quantiles 0, 1/steps, ..., 1 of the pixels with ``m >= base``, and
    0.99 at most; the score is the trapezoid over the quantiles of ``sum_{R, m >= t} m / sum_{m >= t} m``. With
    ``by=points``, as released, the divisor is the number of pixels above. Nothing positive: 0; a constant positive
    map: ``rho``. Cost: no forwards.
    """

    steps: int = 10
    base: float = 0.1
    by: str = "heat"

    def check(self) -> None:
        super().check()
        at_least("steps", self.steps, 1)
        at_least("base", self.base, 0)
        if self.base > 0.99:
            raise SpellingError(f"base={self.base} must be at most 0.99")
        check_choice("by", self.by, ("heat", "points"))

    def measure(self, place: Place) -> float:
        heat = np.maximum(place.values, 0)
        top = heat.max()
        if top == 0:
            return 0.0
        heat = np.where(heat / top >= self.base, heat / top, 0)
        quantiles = np.linspace(0, 1, self.steps + 1)
        ratios = []
        for threshold in np.minimum(np.quantile(heat[heat >= self.base], quantiles), 0.99):
            above = heat >= threshold - _ROUNDING
            whole = above.sum() if self.by == "points" else heat[above].sum()
            ratios.append(heat[above & place.inside].sum() / whole)
        return float((np.diff(quantiles) * (np.array(ratios[1:]) + ratios[:-1]) / 2).sum())
