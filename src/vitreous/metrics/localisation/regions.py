"""The map cut in two, and the overlap of its upper part ``A`` with the region ``R``.

The default is ``A = {a > 0}`` of the raw map: what VAR's published numbers imply. Its text has the positive part of the
map blurred by a Gaussian of 11 x 11 pixels first, which is ``@var_text``; it states neither the deviation nor how the
map is cut. Beside every number belongs that of the whole image, ``rho`` being the share of the region: IoU ``rho``,
precision ``rho``, recall 1, F1 ``2 rho / (1 + rho)``. It is what the ``constant`` row of a table shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitreous.metrics.curves import Array
from vitreous.metrics.localisation.shared import Localisation, Place, above_mean, blurred, check_blur, share
from vitreous.metrics.registry import register
from vitreous.words import check_choice

__all__ = ["RegionF1", "RegionIoU", "RegionPrecision", "RegionRecall", "binarised", "otsu"]

_BINARISE = ("positive", "mean", "otsu", "quantile")
_PRESETS: dict[str, dict[str, Any]] = {"var": {}, "var_text": {"kernel": 11}}
_COMMON: dict[str, Any] = {"family": "localisation", "papers": ("walter2025now",), "presets": _PRESETS}


@dataclass
class _Cut(Localisation):
    """Shared by the four. ``binarise`` says what ``A`` is, ``kernel`` how wide the map is blurred before (1: not)."""

    binarise: str = "positive"
    kernel: int = 1
    sigma: float = 2.0

    def check(self) -> None:
        super().check()
        check_choice("binarise", self.binarise, _BINARISE)
        check_blur(self.kernel, self.sigma)

    def _counts(self, place: Place) -> tuple[int, int, int]:
        """Return the sizes of ``A and R``, ``A`` and ``R``."""
        if self.kernel > 1:
            place = replace(place, map=blurred(place.map, self.kernel, self.sigma))
        upper, inside = place.inner(binarised(place, self.binarise)), place.inside
        return int((upper & inside).sum()), int(upper.sum()), int(inside.sum())


def binarised(place: Place, how: str) -> Array:
    """Return where a map is in its upper part, ``[H, W]``.

    ``positive``: above 0. ``mean``: above its mean. ``otsu``: above the threshold that sets the two parts furthest
    apart. ``quantile``: at least the ``|R|``-th largest value. The first three look at the whole map.
    """
    if how == "positive":
        return np.asarray(place.map > 0)
    if how == "mean":
        return above_mean(place.map)[1]
    if how == "otsu":
        return np.asarray(place.map > otsu(place.map))
    values, size = place.values, int(place.inside.sum())
    return np.asarray(place.map >= np.partition(values, len(values) - size)[len(values) - size])


def otsu(values: Array) -> float:
    """Return the value that those above it differ from most: the largest variance between both parts.

    Every value is tried, no histogram is made. Of a constant map it is the value itself.
    """
    ordered = np.sort(values, axis=None)
    below = np.flatnonzero(np.diff(ordered)) + 1  # how many are not above each possible threshold
    if not len(below):
        return float(ordered[-1])
    lower, total = np.cumsum(ordered - ordered[0])[below - 1], (ordered - ordered[0]).sum()
    apart = lower / below - (total - lower) / (len(ordered) - below)
    return float(ordered[below[np.argmax(below * (len(ordered) - below) * apart**2)] - 1])


@register("region_iou", aliases=("iou",), **_COMMON)
@dataclass
class RegionIoU(_Cut):
    """Intersection over union of the map's upper part and the region: ``|A and R| / |A or R|``.

    ``binarise``: ``positive`` (``a > 0``), ``mean``, ``otsu`` or ``quantile`` (the ``|R|`` largest). With ``kernel``
    above 1 the positive part of the map is blurred before it is cut, by a Gaussian of ``kernel`` x ``kernel`` pixels
    and deviation ``sigma``, as for ``region_attribution``. Empty ``A``: 0; the whole image: ``rho``. A threshold at 0
    rewards zeroing pixels and nothing else. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        both, upper, region = self._counts(place)
        return share(both, upper + region - both)


@register("region_precision", **_COMMON)
@dataclass
class RegionPrecision(_Cut):
    """Share of the map's upper part that lies in the region: ``|A and R| / |A|``.

    ``binarise`` and ``kernel`` as for ``region_iou``. Empty ``A``: 0; the whole image: ``rho``. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        both, upper, _ = self._counts(place)
        return share(both, upper)


@register("region_recall", **_COMMON)
@dataclass
class RegionRecall(_Cut):
    """Share of the region that the map's upper part covers: ``|A and R| / |R|``.

    ``binarise`` and ``kernel`` as for ``region_iou``. Empty ``A``: 0; the whole image: 1. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        both, _, region = self._counts(place)
        return share(both, region)


@register("region_f1", aliases=("f1",), **_COMMON)
@dataclass
class RegionF1(_Cut):
    """Harmonic mean of precision and recall of the map's upper part: ``2 |A and R| / (|A| + |R|)``.

    ``binarise`` and ``kernel`` as for ``region_iou``. Empty ``A``: 0; the whole image: ``2 rho / (1 + rho)``. Cost: no
    forwards.
    """

    def measure(self, place: Place) -> float:
        both, upper, region = self._counts(place)
        return share(2 * both, upper + region)
