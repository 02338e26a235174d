"""What all localisation shares: a map at the pixels beside the region that is known, and counts over ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from vitreous.errors import SpellingError, VitreousError
from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array
from vitreous.metrics.similarity import gaussian
from vitreous.metrics.states.need import Geometry, Need, TruthOf
from vitreous.metrics.states.rank import order
from vitreous.words import at_least, check_choice

if TYPE_CHECKING:
    from vitreous.metrics.states.answers import Answers

__all__ = [
    "Localisation",
    "Place",
    "above_mean",
    "average_precision",
    "blurred",
    "check_blur",
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
    upsample: str = field(default="given", kw_only=True)
    needs_inside: ClassVar[bool] = True
    parts: ClassVar[int] = 1

    def check(self) -> None:
        check_choice("region", self.region, ("any", "mask", "boxes", "parts"))
        check_choice("upsample", self.upsample, ("given", "bilinear", "nearest"))

    def needs(self, geometry: Geometry) -> Sequence[Need]:
        return [TruthOf("region" if self.region == "any" else self.region)]

    def read(self, answers: Answers) -> Array:
        maps = answers.values(self.explain, "pixel", None if self.upsample == "given" else self.upsample)
        read = np.full((len(maps), self.parts), np.nan)
        for row, (values, truth) in enumerate(zip(maps, answers.truth(), strict=True)):
            region = truth.region(self.region, answers.geometry.pixels)
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
    at_least("kernel", kernel, 1)
    at_least("sigma", sigma, 1e-3)
    if kernel % 2 == 0:
        raise SpellingError(f"kernel={kernel} must be odd")


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
