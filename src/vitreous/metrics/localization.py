"""What all localisation shares: a map at the pixels beside the region that is known, and counts over ties.

Pointing: does the top of the map, or its energy, lie on the object?

How much of a map's relevance lies where it should: in the region, in a picture's own cell of a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, isqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from vitreous.errors import SpecError, VitreousError
from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.curves import Array
from vitreous.metrics.ranking import order
from vitreous.metrics.requests import AnnotationRequest, ImageShape, Request
from vitreous.metrics.similarity import gaussian
from vitreous.registry import check_at_least, check_choice

if TYPE_CHECKING:
    from vitreous.metrics.evaluation import Evaluation

__all__ = [
    "EHR",
    "EnergyPointingGame",
    "Focus",
    "GridPointingGame",
    "Localisation",
    "Place",
    "PointingGame",
    "RegionAttribution",
    "RelevanceMass",
    "above_mean",
    "average_precision",
    "blurred",
    "check_blur",
    "dilated",
    "share",
    "sums",
    "tie_groups",
    "top_hits",
]


@dataclass(frozen=True, eq=False)
class Place:
    """One map at the pixels, and where the object is; only ``counted`` pixels are looked at. All are ``[H, W]``."""

    map: Array
    region: Array
    counted: Array

    def inner(self, array: Array) -> Array:
        """Return the counted pixels of an array ``[H, W]``."""
        picked: Array = array[self.counted]
        return picked

    @property
    def values(self) -> Array:
        """The map at the counted pixels, ``[n]``."""
        return self.inner(self.map)

    @property
    def inside(self) -> Array:
        """Which of the counted pixels are in the region, ``[n]``."""
        return self.inner(self.region)


@dataclass
class Localisation(Metric):
    """Base of the family: compares the map at the pixels with the region that is known.

    ``region`` is ``any`` (the mask, else the boxes, else the parts), ``mask``, ``boxes`` or ``parts``; ``upsample`` is
    how token maps are enlarged: ``given`` (as the table says), ``bilinear`` or ``nearest``. Pixels that are ignored
    count for nothing. A picture has no score (NaN) where the map is not finite, where all is ignored, or, unless the
    metric says otherwise, where the region is empty.
    """

    region: str = field(default="any", kw_only=True)
    interpolation: str = field(default="given", kw_only=True)
    needs_inside: ClassVar[bool] = True
    parts: ClassVar[int] = 1

    def check(self) -> None:
        check_choice("region", self.region, ("any", "mask", "boxes", "parts"))
        check_choice("interpolation", self.interpolation, ("given", "bilinear", "nearest"))

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [AnnotationRequest("region" if self.region == "any" else self.region)]

    def score(self, answers: Evaluation) -> Array:
        maps = answers.values(
            self.explain_class, "pixel", None if self.interpolation == "given" else self.interpolation
        )
        read = np.full((len(maps), self.parts), np.nan)
        for row, (values, truth) in enumerate(zip(maps, answers.annotations(), strict=True)):
            region = truth.region(self.region, answers.image_shape.pixels)
            counted = np.ones_like(region) if truth.ignore is None else ~np.asarray(truth.ignore, bool)
            there = (region & counted).any() if self.needs_inside else counted.any()
            if there and np.isfinite(values).all():
                read[row] = self.measure(Place(values, region, counted))
        return read

    def measure(self, place: Place) -> float | Sequence[float]:
        """Return the score of one map, or its parts."""
        raise VitreousError(f"{self.info.name} must define measure")


def check_blur(kernel: int, sigma: float) -> None:
    """Refuse a Gaussian that is none."""
    check_at_least("kernel", kernel, 1)
    check_at_least("sigma", sigma, 1e-3)
    if kernel % 2 == 0:
        raise SpecError(f"kernel={kernel} must be odd")


def blurred(values: Array, kernel: int, sigma: float) -> Array:
    """Return the positive part of a map under a Gaussian of ``kernel`` x ``kernel`` pixels, reflected at its edges."""
    return np.asarray(gaussian(np.maximum(values, 0)[None], kernel // 2, sigma, "reflect")[0])


def share(part: float, whole: float, least: float = 0.0) -> float:
    """Return ``part / whole``; 0 where the whole is not more than ``least``."""
    return float(part / whole) if whole > least else 0.0


def sums(parts: Array, weights: Array) -> Array:
    """Return the weighted sums of all parts ``[r, P]`` over the images that have them."""
    there = ~np.isnan(parts).any(axis=1)
    return np.asarray(weights[:, there] @ parts[there])


def above_mean(values: Array) -> tuple[Array, Array]:
    """Return a map scaled to 0 .. 1, and where it is above its mean; a constant one is 0, and above it nowhere."""
    low, high = values.min(), values.max()
    if low == high:
        return np.zeros_like(values), np.zeros(values.shape, bool)
    scaled = (values - low) / (high - low)
    return scaled, scaled > scaled.mean()


def tie_groups(values: Array, inside: Array) -> tuple[Array, Array]:
    """Return for each group of equal values, the largest first, how many lie inside and how many there are."""
    ordered = np.argsort(-values)  # counts of a group do not depend on the order inside it
    ends = np.flatnonzero(np.append(np.diff(values[ordered]) != 0, True))
    hits = np.cumsum(inside[ordered])[ends]
    return np.diff(hits, prepend=0), np.diff(ends + 1, prepend=0)


def average_precision(values: Array, inside: Array) -> float:
    """Return the area under precision over recall in steps, equal values being one threshold."""
    hits, sizes = tie_groups(values, inside)
    precision = np.cumsum(hits) / np.cumsum(sizes)
    return float((precision * hits).sum() / hits.sum())


def top_hits(values: Array, inside: Array, count: int, ties: str, seed: int) -> float:
    """Return how many of the ``count`` largest values lie inside.

    Of equal values those come first that a seeded key puts first (``random``), or the mean over all orders is taken
    (``expected``).
    """
    if ties == "random":
        ordered = order(torch.from_numpy(values.copy())[None], "random", seed)[0, :count].numpy()
        return float(inside[ordered].sum())
    hits, sizes = tie_groups(values, inside)
    taken = np.clip(count - (np.cumsum(sizes) - sizes), 0, sizes)
    return float((hits * taken / sizes).sum())


@register_metric(
    "pointing_game",
    family="localisation",
    aliases=("pointing",),
    papers=("zhang2018topdown", "englebert2023explaining", "fong2019understanding"),
    presets={
        "tis": {"largest": 0.5, "explain_class": "label", "interpolation": "bilinear"},
        "torchray": {"tolerance": 15.0},
    },
)
@dataclass
class PointingGame(Localisation):
    """Whether the largest value lies in the region, or closer to it than ``tolerance`` pixels.

    Of several largest values, ``tie_breaking=expected`` takes the share that hit, ``first`` the first in reading order,
    ``any`` is content with one. Regions of ``largest`` of the image or more are not counted: the default leaves out
    those that cannot be missed. Constant maps have their share under ``expected``. Cost: no forwards.
    """

    tolerance: float = 0.0
    tie_breaking: str = "expected"
    largest: float = 1.0

    def check(self) -> None:
        super().check()
        check_at_least("tolerance", self.tolerance, 0)
        check_choice("tie_breaking", self.tie_breaking, ("expected", "first", "any"))
        check_at_least("largest", self.largest, 1e-9)

    def measure(self, place: Place) -> float:
        if place.region.mean() >= self.largest:
            return float("nan")
        goal = place.inner(dilated(place.region & place.counted, self.tolerance))
        values = place.values
        hits = goal[values == values.max()]
        return float(
            hits.mean() if self.tie_breaking == "expected" else hits[0] if self.tie_breaking == "first" else hits.any()
        )


def dilated(mask: Array, radius: float) -> Array:
    """Return the pixels of a mask and those whose centres are closer to one of them than ``radius``."""
    height, width = mask.shape
    grown = mask.copy()
    for down in range(ceil(radius)):
        left = radius**2 - down**2
        across = isqrt(ceil(left) - 1) if left > 0 else -1  # the largest whole number whose square is below
        if across < 0 or down >= height:
            break
        sums = np.cumsum(np.pad(mask, ((0, 0), (across + 1, across))), axis=1, dtype=np.int32)
        wider = sums[:, 2 * across + 1 :] > sums[:, :width]
        grown[down:] |= wider[: height - down]
        grown[: height - down] |= wider[down:]
    return np.asarray(grown)


@register_metric(
    "energy_pointing_game",
    family="localisation",
    aliases=("energy",),
    papers=("wang2020scorecam", "englebert2023explaining"),
    presets={
        "tis": {"energy": "abs", "explain_class": "label", "interpolation": "bilinear"},
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


_ROUNDING = 1e-12  # of the largest value: a quantile that is one of the values may come out a little above it


@register_metric("relevance_mass", family="localisation", aliases=("rma",), papers=("arras2022clevr",))
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


@register_metric(
    "grid_pointing_game",
    family="localisation",
    aliases=("gridpg",),
    papers=("rao2022towards",),
    presets={"rao": {"interpolation": "bilinear"}},
)
@dataclass
class GridPointingGame(Localisation):
    """Share of the positive relevance for a cell's class that lies in this cell of the grid.

    ``sum_cell relu(a) / sum relu(a)`` after enlarging; 0 where the whole is not above ``least``. A constant positive
    map has ``1 / n^2`` on n x n cells. For grids as ``vitreous.datasets.grids`` makes them. Cost: no forwards.
    """

    least: float = 1e-7

    def check(self) -> None:
        super().check()
        check_at_least("least", self.least, 0)

    def measure(self, place: Place) -> float:
        mass = np.maximum(place.values, 0)
        return share(mass[place.inside].sum(), mass.sum(), self.least)


@register_metric("focus", family="localisation", papers=("ariasduart2022focus",))
@dataclass
class Focus(Localisation):
    """Share of the positive relevance for a class that lies in the two cells of a mosaic that show this class.

    ``sum_R relu(a) / sum relu(a)`` with ``R`` both cells together; nothing positive: 0; a constant positive map: 0.5.
    For mosaics as ``vitreous.datasets.mosaics`` makes them. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        mass = np.maximum(place.values, 0)
        return share(mass[place.inside].sum(), mass.sum())


@register_metric(
    "region_attribution", family="localisation", aliases=("ra",), papers=("walter2025now",), presets={"var": {}}
)
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


@register_metric(
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
        check_at_least("steps", self.steps, 1)
        check_at_least("base", self.base, 0)
        if self.base > 0.99:
            raise SpecError(f"base={self.base} must be at most 0.99")
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
