"""Pointing: does the top of the map, or its energy, lie on the object?"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isqrt

import numpy as np

from vitreous.metrics.curves import Array
from vitreous.metrics.localisation.shared import Localisation, Place, share
from vitreous.metrics.registry import register
from vitreous.words import at_least, check_choice

__all__ = ["EnergyPointingGame", "PointingGame", "dilated"]


@register(
    "pointing_game",
    family="localisation",
    aliases=("pointing",),
    papers=("zhang2018topdown", "englebert2023explaining", "fong2019understanding"),
    presets={
        "tis": {"largest": 0.5, "explain": "label", "upsample": "bilinear"},
        "torchray": {"tolerance": 15.0},
    },
)
@dataclass
class PointingGame(Localisation):
    """Whether the largest value lies in the region, or closer to it than ``tolerance`` pixels.

    Of several largest values, ``ties=expected`` takes the share that hit, ``first`` the first in reading order, ``any``
    is content with one. Regions of ``largest`` of the image or more are not counted: the default leaves out those that
    cannot be missed. Constant maps have their share under ``expected``. Cost: no forwards.
    """

    tolerance: float = 0.0
    ties: str = "expected"
    largest: float = 1.0

    def check(self) -> None:
        super().check()
        at_least("tolerance", self.tolerance, 0)
        check_choice("ties", self.ties, ("expected", "first", "any"))
        at_least("largest", self.largest, 1e-9)

    def measure(self, place: Place) -> float:
        if place.region.mean() >= self.largest:
            return float("nan")
        goal = place.inner(dilated(place.region & place.counted, self.tolerance))
        values = place.values
        hits = goal[values == values.max()]
        return float(hits.mean() if self.ties == "expected" else hits[0] if self.ties == "first" else hits.any())


def dilated(mask: Array, radius: float) -> Array:
    """Return the pixels of a mask and those whose centres are closer to one of them than ``radius``."""
    high, wide = mask.shape
    grown = mask.copy()
    for down in range(ceil(radius)):
        left = radius**2 - down**2
        across = isqrt(ceil(left) - 1) if left > 0 else -1  # the largest whole number whose square is below
        if across < 0 or down >= high:
            break
        sums = np.cumsum(np.pad(mask, ((0, 0), (across + 1, across))), axis=1, dtype=np.int32)
        wider = sums[:, 2 * across + 1 :] > sums[:, :wide]
        grown[down:] |= wider[: high - down]
        grown[: high - down] |= wider[down:]
    return np.asarray(grown)


@register(
    "energy_pointing_game",
    family="localisation",
    aliases=("energy",),
    papers=("wang2020scorecam", "englebert2023explaining"),
    presets={
        "tis": {"energy": "abs", "explain": "label", "upsample": "bilinear"},
        "scorecam": {"energy": "relu"},
    },
)
@dataclass
class EnergyPointingGame(Localisation):
    """Share of the map's energy that lies in the region: ``sum_R e / sum e``, ``e`` being ``|a|`` or ``relu(a)``.

    Without any energy it is 0. A constant map has the share of the region, so large regions score high whatever the
    map. Cost: no forwards.
    """

    energy: str = "abs"

    def check(self) -> None:
        super().check()
        check_choice("energy", self.energy, ("abs", "relu"))

    def measure(self, place: Place) -> float:
        heat = np.abs(place.values) if self.energy == "abs" else np.maximum(place.values, 0)
        return share(heat[place.inside].sum(), heat.sum())
