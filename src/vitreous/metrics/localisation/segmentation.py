"""The map as a segmentation: accuracy, intersection over union and average precision.

The first three follow Chefer's protocol: the map is scaled to 0 .. 1 and the object is where it is strictly above its
mean. A constant map has its object nowhere. They are defined for empty regions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from vitreous.metrics.curves import Array
from vitreous.metrics.localisation.shared import Localisation, Place, above_mean, average_precision, sums
from vitreous.metrics.registry import register

__all__ = ["AveragePrecision", "MeanAP", "MeanIoU", "PixelAccuracy"]

_CHEFER = {"explain": "pred", "upsample": "bilinear"}
_COMMON: dict[str, Any] = {
    "family": "localisation",
    "papers": ("chefer2021transformer", "wu2024tokentm"),
    "presets": {"chefer": _CHEFER, "vtranm": _CHEFER},
}


@register("pixel_accuracy", **_COMMON)
@dataclass
class PixelAccuracy(Localisation):
    """Share of pixels that are rightly called object or ground, the object being where the map is above its mean.

    Over a data set: all right pixels by all pixels that count, not a mean over images. A constant map calls all ground:
    ``1 - rho``, ``rho`` being the share of the region. Cost: no forwards.
    """

    needs_inside = False
    parts: ClassVar[int] = 2

    def measure(self, place: Place) -> Sequence[float]:
        _, object_ = above_mean(place.map)
        return (place.inner(object_) == place.inside).sum(), place.counted.sum()

    def per_image(self, parts: Array) -> Array:
        return np.asarray(parts[:, 0] / parts[:, 1])

    def aggregate(self, parts: Array, weights: Array) -> Array:
        right, counted = sums(parts, weights).T
        return np.asarray(np.divide(right, counted, out=np.full(len(right), np.nan), where=counted > 0))


@register("mean_iou", aliases=("miou",), **_COMMON)
@dataclass
class MeanIoU(Localisation):
    """Mean over ground and object of ``sum |A and R| / sum |A or R|``, the sums over all images of a data set.

    ``A`` is where the map is above its mean (object) or not (ground). Of a single image it is the same with its own
    counts; a class that neither map nor truth has is 0, as in the released code. A constant map calls all ground:
    ``(1 - rho) / 2``. Cost: no forwards.
    """

    needs_inside = False
    parts: ClassVar[int] = 4

    def measure(self, place: Place) -> Sequence[float]:
        object_, inside = place.inner(above_mean(place.map)[1]), place.inside
        both, either = (object_ & inside).sum(), (object_ | inside).sum()
        size = len(inside)
        return size - either, size - both, both, either

    def per_image(self, parts: Array) -> Array:
        return _mean_ratio(parts)

    def aggregate(self, parts: Array, weights: Array) -> Array:
        return _mean_ratio(sums(parts, weights))


def _mean_ratio(counts: Array) -> Array:
    """Return the mean of both ratios, NaN where nothing was counted."""
    common, whole = counts[:, ::2], counts[:, 1::2]
    ratio = np.divide(common, whole, out=np.zeros_like(common), where=whole > 0)
    return np.where((whole > 0).any(axis=1), ratio.mean(axis=1), np.nan)


@register("mean_ap", aliases=("map",), **_COMMON)
@dataclass
class MeanAP(Localisation):
    """Average precision of the scores ``[1 - m, m]`` of ground and object together, ``m`` the map scaled to 0 .. 1.

    Chefer's "mAP": one list of twice as many scores as pixels, so half of it is right by chance, and a constant map,
    both of whose scores are 0, has 0.5. Far above ``average_precision``: never compare the two. Cost: no forwards.
    """

    needs_inside = False

    def measure(self, place: Place) -> float:
        values = place.inner(above_mean(place.map)[0])
        ground = 1 - values if place.map.min() < place.map.max() else values
        return average_precision(np.concatenate([ground, values]), np.concatenate([~place.inside, place.inside]))


@register(
    "average_precision",
    family="localisation",
    aliases=("ap",),
    papers=("mehri2024skipplus",),
    presets={"skipplus": {"explain": "label"}},
)
@dataclass
class AveragePrecision(Localisation):
    """Area under precision over recall of the map's values against the region, in steps; the mean over images.

    ``sum_g precision_g (recall_g - recall_{g-1})`` over groups of equal values, the largest first; token maps are
    enlarged by ``nearest``. A constant map has the share of the region, as random ones have on average; no matter how
    a map is shifted or scaled. Cost: no forwards.
    """

    upsample: str = field(default="nearest", kw_only=True)

    def measure(self, place: Place) -> float:
        return average_precision(place.values, place.inside)
