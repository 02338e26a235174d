"""The map as a segmentation: accuracy, intersection over union and average precision.

The first three follow Chefer's protocol: the map is scaled to 0 .. 1 and the object is where it is strictly above its
mean. A constant map has its object nowhere. They are defined for empty regions too.

The map cut in two, and the overlap of its upper part ``A`` with the region ``R``.

The default is ``A = {a > 0}`` of the raw map: what VAR's published numbers imply. Its text has the positive part of the
map blurred by a Gaussian of 11 x 11 pixels first, which is ``@var_text``; it states neither the deviation nor how the
map is cut. Beside every number belongs that of the whole image, ``rho`` being the share of the region: IoU ``rho``,
precision ``rho``, recall 1, F1 ``2 rho / (1 + rho)``. It is what the ``constant`` row of a table shows.

Do the pixels that a map ranks first lie in the region?

Known parts: does a map weigh them as the model does, and does it show the shortcut that a model is known to take?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from vitreous.errors import SpecError
from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.baselines import check_baseline
from vitreous.metrics.curves import Array
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.localization import (
    Localisation,
    Place,
    above_mean,
    average_precision,
    blurred,
    check_blur,
    share,
    sums,
    tie_groups,
    top_hits,
)
from vitreous.metrics.requests import AnnotationRequest, ImageShape, Request, WithoutParts
from vitreous.metrics.similarity import spearman
from vitreous.registry import check_at_least, check_choice

__all__ = [
    "AveragePrecision",
    "LocalisationAUC",
    "MeanAP",
    "MeanIoU",
    "PartCorrelation",
    "PixelAccuracy",
    "RegionF1",
    "RegionIoU",
    "RegionPrecision",
    "RegionRecall",
    "RelevanceRank",
    "Shortcut",
    "TopKIntersection",
    "binarised",
    "otsu",
]

_CHEFER = {"explain_class": "pred", "interpolation": "bilinear"}
_SEGMENTATION: dict[str, Any] = {
    "family": "localisation",
    "papers": ("chefer2021transformer", "wu2024tokentm"),
    "presets": {"chefer": _CHEFER, "vtranm": _CHEFER},
}


@register_metric("pixel_accuracy", **_SEGMENTATION)
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


@register_metric("mean_iou", aliases=("miou",), **_SEGMENTATION)
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


@register_metric("mean_ap", aliases=("map",), **_SEGMENTATION)
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


@register_metric(
    "average_precision",
    family="localisation",
    aliases=("ap",),
    papers=("mehri2024skipplus",),
    presets={"skipplus": {"explain_class": "label"}},
)
@dataclass
class AveragePrecision(Localisation):
    """Area under precision over recall of the map's values against the region, in steps; the mean over images.

    ``sum_g precision_g (recall_g - recall_{g-1})`` over groups of equal values, the largest first; token maps are
    enlarged by ``nearest``. A constant map has the share of the region, as random ones have on average; no matter how
    a map is shifted or scaled. Cost: no forwards.
    """

    interpolation: str = field(default="nearest", kw_only=True)

    def measure(self, place: Place) -> float:
        return average_precision(place.values, place.inside)


_BINARISE = ("positive", "mean", "otsu", "quantile")
_PRESETS: dict[str, dict[str, Any]] = {"var": {}, "var_text": {"kernel": 11}}
_REGIONS: dict[str, Any] = {"family": "localisation", "papers": ("walter2025now",), "presets": _PRESETS}


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


@register_metric("region_iou", aliases=("iou",), **_REGIONS)
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


@register_metric("region_precision", **_REGIONS)
@dataclass
class RegionPrecision(_Cut):
    """Share of the map's upper part that lies in the region: ``|A and R| / |A|``.

    ``binarise`` and ``kernel`` as for ``region_iou``. Empty ``A``: 0; the whole image: ``rho``. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        both, upper, _ = self._counts(place)
        return share(both, upper)


@register_metric("region_recall", **_REGIONS)
@dataclass
class RegionRecall(_Cut):
    """Share of the region that the map's upper part covers: ``|A and R| / |R|``.

    ``binarise`` and ``kernel`` as for ``region_iou``. Empty ``A``: 0; the whole image: 1. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        both, _, region = self._counts(place)
        return share(both, region)


@register_metric("region_f1", aliases=("f1",), **_REGIONS)
@dataclass
class RegionF1(_Cut):
    """Harmonic mean of precision and recall of the map's upper part: ``2 |A and R| / (|A| + |R|)``.

    ``binarise`` and ``kernel`` as for ``region_iou``. Empty ``A``: 0; the whole image: ``2 rho / (1 + rho)``. Cost: no
    forwards.
    """

    def measure(self, place: Place) -> float:
        both, upper, region = self._counts(place)
        return share(2 * both, upper + region)


@dataclass
class _Top(Localisation):
    """Shared by both: ``tie_breaking=expected`` is the mean over all orders of equal values, ``random`` one of them."""

    tie_breaking: str = field(default="expected", kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def check(self) -> None:
        super().check()
        check_choice("tie_breaking", self.tie_breaking, ("expected", "random"))
        check_at_least("seed", self.seed, 0)

    def _hits(self, place: Place, count: int) -> float:
        return top_hits(place.values, place.inside, count, self.tie_breaking, self.seed)


@register_metric("relevance_rank", family="localisation", aliases=("rra",), papers=("arras2022clevr",))
@dataclass
class RelevanceRank(_Top):
    """Relevance rank accuracy: of as many top-ranked pixels as the region has, the share that lies in it.

    ``|top-|R| and R| / |R|``. Equal values: ``tie_breaking=expected`` (the mean over all their orders) or ``random`` (a
    key from ``seed``, the same for all maps). A constant map has ``rho``. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        size = int(place.inside.sum())
        return self._hits(place, size) / size


@register_metric(
    "top_k_intersection",
    family="localisation",
    aliases=("top_k",),
    papers=("theiner2022interpretable",),
    presets={"quantus": {"k": 1000}},
)
@dataclass
class TopKIntersection(_Top):
    """Share of the ``k`` top-ranked pixels that lie in the region.

    Of all pixels where there are fewer than ``k``; at best ``|R| / k`` where the region is smaller. Ties as for
    ``relevance_rank``; a constant map has ``rho``. Cost: no forwards.
    """

    k: int = 1000

    def check(self) -> None:
        super().check()
        check_at_least("k", self.k, 1)

    def measure(self, place: Place) -> float:
        count = min(self.k, len(place.values))
        return self._hits(place, count) / count


@register_metric("localisation_auc", family="localisation", aliases=("auroc",), papers=("fawcett2006introduction",))
@dataclass
class LocalisationAUC(Localisation):
    """Area under the ROC curve: how often a pixel of the region is above one outside, equal values being half.

    A constant map, or chance, has 0.5. No score where the region is everything. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        hits, sizes = tie_groups(place.values, place.inside)
        misses = sizes - hits
        below = misses.sum() - np.cumsum(misses)
        if not misses.sum():
            return float("nan")
        return float((hits * (below + misses / 2)).sum() / (hits.sum() * misses.sum()))


@register_metric("shortcut", family="ground truth", builds_on=("geirhos2020shortcut",))
@dataclass
class Shortcut(Metric):
    """Share of the positive attribution that lies on a known part: ``sum_part max(a, 0) / sum max(a, 0)``.

    Higher: the map shows the part. That is good where the model is known to look there, as ``world-shortcut`` does at
    the marker (Geirhos et al. 2020 on shortcuts), and says nothing where it does not look. The values are those of the
    map at the pixels; ignored pixels count for nothing. A map without positive values scores 0. An image without the
    part, or in which none of it is seen, has no score. Cost: no states.
    """

    part: str = "marker"

    def check(self) -> None:
        if not isinstance(self.part, str) or not self.part.strip():
            raise SpecError(f"part={self.part!r} is not the name of a part")

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [AnnotationRequest("parts")]

    def score(self, answers: Evaluation) -> Array:
        maps = answers.values(self.explain_class, grid="pixel")
        scores = np.full(len(maps), np.nan)
        for place, (truth, values) in enumerate(zip(answers.annotations(), maps, strict=True)):
            mask = truth.parts.get(self.part)
            if mask is None or not np.any(mask) or np.isnan(values).any():
                continue
            mass = np.maximum(values, 0)
            if truth.ignore is not None:
                mass = np.where(truth.ignore, 0, mass)
            total = mass.sum()
            scores[place] = mass[np.asarray(mask, bool)].sum() / total if total > 0 else 0.0
        return scores


@register_metric("part_correlation", family="ground truth", builds_on=("hesse2023funnybirds",))
@dataclass
class PartCorrelation(Metric):
    """Rank correlation between what a map gives to the known parts and what the model loses without each of them.

    ``spearman(sum_part a, v(x) - v(x without the part))`` over the parts that are seen, at least ``least`` of them; the
    part's pixels are replaced by the substrate, ``v`` is the ``logit`` of the scored class or its ``log_probability``.
    Higher is better. FunnyBirds' single deletion (Hesse et al. 2023) does the same with parts that are rendered away.
    0 where the map gives all parts the same; an image with fewer parts has no score. Cost: a forward per part and
    image, shared by all methods.
    """

    baseline: str = "mean_channel"
    output: str = "logit"
    least: int = 3

    def check(self) -> None:
        check_baseline(self.baseline)
        check_choice("output", self.output, ("logit", "log_probability"))
        check_at_least("least", self.least, 2)

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [AnnotationRequest("parts"), WithoutParts(self.baseline)]

    def score(self, answers: Evaluation) -> Array:
        maps = answers.values(self.explain_class, grid="pixel")
        clean = answers.clean_logit if self.output == "logit" else answers.clean
        whole = clean(self.score_class, self.explain_class)
        rows = answers.without(WithoutParts(self.baseline), self.score_class, self.explain_class, self.output)
        scores = np.full(len(maps), np.nan)
        for place, (truth, values, left) in enumerate(zip(answers.annotations(), maps, rows, strict=True)):
            if len(left) < self.least or np.isnan(values).any():
                continue
            given = np.array([values[np.asarray(truth.parts[name], bool)].sum() for name in left])
            lost = np.array([whole[place] - value for value in left.values()])
            scores[place] = spearman(given[None, None], lost[None, None])[0]
        return scores
