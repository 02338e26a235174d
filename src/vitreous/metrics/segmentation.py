"""The map as a segmentation: accuracy, intersection over union, average precision, and the ranks of pixels.

Pixel accuracy, mean IoU and mean AP follow Chefer's protocol: the map is scaled to 0 .. 1 and the object is where it is
strictly above its mean. A constant map has its object nowhere. They are defined for empty regions too.

The metrics of regions cut the map in two and compare its upper part ``A`` with the region ``R``. The default is ``A =
{a > 0}`` of the raw map: what VAR's published numbers imply. Its text blurs the positive part of the map by a Gaussian
of 11 x 11 pixels first, which is ``@var_text``; it states neither the deviation nor how the map is cut. Beside every
number belongs that of the whole image, the row ``constant`` of a table: with ``rho`` the share of the region it is
``rho`` for IoU and precision, 1 for recall, ``2 rho / (1 + rho)`` for F1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitreous.metrics.base import odd_number, register_metric
from vitreous.metrics.localization import Localisation, LocatedMap, above_mean, average_precision, blurred, top_hits
from vitreous.metrics.ranking import Array, ratio
from vitreous.registry import choice, number

_CHEFER = {"explain_class": "pred", "interpolation": "bilinear"}
_SEGMENTATION: dict[str, Any] = {
    "family": "localisation",
    "papers": ("chefer2021transformer", "wu2024tokentm"),
    "presets": {"chefer": _CHEFER, "vtranm": _CHEFER},
}


def weighted_sums(parts: Array, weights: Array) -> Array:
    """Return the weighted sums of all parts ``[r, P]`` over the images that have them."""
    valid = ~np.isnan(parts).any(axis=1)
    return np.asarray(weights[:, valid] @ parts[valid])


@register_metric("pixel_accuracy", **_SEGMENTATION)
@dataclass
class PixelAccuracy(Localisation):
    r"""Share of pixels that are correctly called object or background.

    The object is where the map is above its mean.

    .. math:: \frac{1}{n} \sum_p \mathbb{1}\big[\mathbb{1}[a_p > \bar a] = \mathbb{1}[p \in R]\big]

    Parameters
    ----------
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    Over a data set: all correct pixels by all pixels that count, not a mean over images. A constant map calls all
    background: ``1 - rho``. Cost: no forwards.

    References
    ----------
    Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", 2021.

    Examples
    --------
    >>> vt.get_metric("pixel_accuracy@chefer").explain_class
    'pred'
    """

    needs_inside = False
    num_parts = 2

    def measure(self, located: LocatedMap) -> Sequence[float]:
        _, is_object = above_mean(located.map)
        return (located.inner(is_object) == located.inside).sum(), located.counted.sum()

    def per_image(self, parts: Array) -> Array:
        return np.asarray(parts[:, 0] / parts[:, 1])

    def aggregate(self, parts: Array, weights: Array) -> Array:
        correct, counted = weighted_sums(parts, weights).T
        return np.asarray(np.divide(correct, counted, out=np.full(len(correct), np.nan), where=counted > 0))


@register_metric("mean_iou", aliases=("miou",), **_SEGMENTATION)
@dataclass
class MeanIoU(Localisation):
    r"""Mean over background and object of the intersection over union, the sums over all images of a data set.

    .. math:: \frac{1}{2} \sum_{c \in \{0, 1\}} \frac{\sum_x |A_c \cap R_c|}{\sum_x |A_c \cup R_c|}

    Parameters
    ----------
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    ``A_1`` is where the map is above its mean, ``A_0`` where not. Of a single image it is the same with its own counts;
    a class that neither map nor annotation has is 0, as in the released code. A constant map calls all background: ``(1
    - rho) / 2``. Cost: no forwards.

    References
    ----------
    Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", 2021.

    Examples
    --------
    >>> vt.get_metric("miou").spec
    'mean_iou'
    """

    needs_inside = False
    num_parts = 4

    def measure(self, located: LocatedMap) -> Sequence[float]:
        is_object, inside = located.inner(above_mean(located.map)[1]), located.inside
        both, either, size = (is_object & inside).sum(), (is_object | inside).sum(), len(inside)
        return size - either, size - both, both, either

    def per_image(self, parts: Array) -> Array:
        return _mean_ratio(parts)

    def aggregate(self, parts: Array, weights: Array) -> Array:
        return _mean_ratio(weighted_sums(parts, weights))


def _mean_ratio(counts: Array) -> Array:
    """Return the mean of both ratios, NaN where nothing was counted."""
    intersections, unions = counts[:, ::2], counts[:, 1::2]
    ratios = np.divide(intersections, unions, out=np.zeros_like(intersections), where=unions > 0)
    return np.where((unions > 0).any(axis=1), ratios.mean(axis=1), np.nan)


@register_metric("mean_ap", aliases=("map",), **_SEGMENTATION)
@dataclass
class MeanAP(Localisation):
    r"""Average precision of the scores of background and object together.

    .. math:: \mathrm{AP}\big([1 - m, m],\; [\bar R, R]\big), \qquad m = \frac{a - \min a}{\max a - \min a}

    Parameters
    ----------
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    Chefer's "mAP": one list of twice as many scores as pixels, so half of it is right by chance, and a constant map,
    both of whose scores are 0, has 0.5. Far above ``average_precision``: never compare the two. Cost: no forwards.

    References
    ----------
    Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", 2021.

    Examples
    --------
    >>> vt.get_metric("map").spec
    'mean_ap'
    """

    needs_inside = False

    def measure(self, located: LocatedMap) -> float:
        values = located.inner(above_mean(located.map)[0])
        background = 1 - values if located.map.min() < located.map.max() else values
        return average_precision(
            np.concatenate([background, values]), np.concatenate([~located.inside, located.inside])
        )


@register_metric(
    "average_precision",
    family="localisation",
    aliases=("ap",),
    papers=("mehri2024skipplus",),
    presets={"skipplus": {"explain_class": "label"}},
)
@dataclass
class AveragePrecision(Localisation):
    r"""Area under precision over recall of the map's values against the region, in steps; the mean over images.

    .. math:: \sum_g \mathrm{precision}_g\, (\mathrm{recall}_g - \mathrm{recall}_{g-1})

    Parameters
    ----------
    explain_class, score_class, region
        See `Localisation`.
    interpolation : str, default "nearest"
        See `Localisation`.

    Notes
    -----
    Over groups of equal values, the largest first. A constant map has the share of the region, as random ones have on
    average; no matter how a map is shifted or scaled. Cost: no forwards.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", 2024.

    Examples
    --------
    >>> vt.get_metric("average_precision").interpolation
    'nearest'
    """

    interpolation: str = choice("nearest", "given", "bilinear", kw_only=True)

    def measure(self, located: LocatedMap) -> float:
        return average_precision(located.values, located.inside)


_REGIONS: dict[str, Any] = {
    "family": "localisation",
    "papers": ("walter2025now",),
    "presets": {"var": {}, "var_text": {"kernel": 11}},
}


@dataclass
class _Binarised(Localisation):
    """Shared by the four."""

    binarise: str = choice("positive", "mean", "otsu", "quantile")
    kernel: int = odd_number(1)
    sigma: float = number(2.0, "[1e-3, inf)")

    def measure(self, located: LocatedMap) -> float:
        if self.kernel > 1:
            located = replace(located, map=blurred(located.map, self.kernel, self.sigma))
        upper, inside = located.inner(binarised(located, self.binarise)), located.inside
        return self.overlap(int((upper & inside).sum()), int(upper.sum()), int(inside.sum()))

    def overlap(self, both: int, upper: int, region: int) -> float:
        """Return the score from the sizes of ``A and R``, ``A`` and ``R``."""
        raise NotImplementedError


def binarised(located: LocatedMap, binarise: str) -> Array:
    """Return where a map is in its upper part, ``[H, W]``.

    ``positive``: above 0. ``mean``: above its mean. ``otsu``: above the threshold that sets the two parts furthest
    apart. ``quantile``: at least the ``|R|``-th largest value. The first three look at the whole map.
    """
    if binarise == "positive":
        return np.asarray(located.map > 0)
    if binarise == "mean":
        return above_mean(located.map)[1]
    if binarise == "otsu":
        return np.asarray(located.map > otsu(located.map))
    index = len(located.values) - int(located.inside.sum())
    return np.asarray(located.map >= np.partition(located.values, index)[index])


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
class RegionIoU(_Binarised):
    r"""Intersection over union of the map's upper part and the region.

    .. math:: \frac{|A \cap R|}{|A \cup R|}

    Parameters
    ----------
    binarise : str, default "positive"
        The upper part ``A``: values above 0, above the ``"mean"``, above the threshold of ``"otsu"``, or with
        ``"quantile"`` the ``|R|`` largest.
    kernel : int, default 1
        Above 1, the positive part of the map is blurred first by a Gaussian of so many rows and columns.
    sigma : float, default 2.0
        The deviation of the Gaussian in pixels.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    Empty ``A``: 0; the whole image: ``rho``. A threshold at 0 rewards zeroing pixels and nothing else. Cost: no
    forwards.

    References
    ----------
    Walter, Vreeken and Fischer, "Now you see Me! Attribution Distributions Reveal What is Truly Important for a
    Prediction", 2025.

    Examples
    --------
    >>> vt.get_metric("iou@var_text").spec
    'region_iou(kernel=11)'
    """

    def overlap(self, both: int, upper: int, region: int) -> float:
        return ratio(both, upper + region - both)


@register_metric("region_precision", **_REGIONS)
@dataclass
class RegionPrecision(_Binarised):
    r"""Share of the map's upper part that lies in the region.

    .. math:: \frac{|A \cap R|}{|A|}

    Parameters
    ----------
    binarise, kernel, sigma, explain_class, score_class, region, interpolation
        As for `RegionIoU`.

    Notes
    -----
    Empty ``A``: 0; the whole image: ``rho``. Cost: no forwards.

    References
    ----------
    Walter, Vreeken and Fischer, "Now you see Me! Attribution Distributions Reveal What is Truly Important for a
    Prediction", 2025.

    Examples
    --------
    >>> vt.get_metric("region_precision(binarise=mean)").binarise
    'mean'
    """

    def overlap(self, both: int, upper: int, region: int) -> float:
        return ratio(both, upper)


@register_metric("region_recall", **_REGIONS)
@dataclass
class RegionRecall(_Binarised):
    r"""Share of the region that the map's upper part covers.

    .. math:: \frac{|A \cap R|}{|R|}

    Parameters
    ----------
    binarise, kernel, sigma, explain_class, score_class, region, interpolation
        As for `RegionIoU`.

    Notes
    -----
    Empty ``A``: 0; the whole image: 1. Cost: no forwards.

    References
    ----------
    Walter, Vreeken and Fischer, "Now you see Me! Attribution Distributions Reveal What is Truly Important for a
    Prediction", 2025.

    Examples
    --------
    >>> vt.get_metric("region_recall").num_forwards()
    0
    """

    def overlap(self, both: int, upper: int, region: int) -> float:
        return ratio(both, region)


@register_metric("region_f1", aliases=("f1",), **_REGIONS)
@dataclass
class RegionF1(_Binarised):
    r"""Harmonic mean of precision and recall of the map's upper part.

    .. math:: \frac{2\, |A \cap R|}{|A| + |R|}

    Parameters
    ----------
    binarise, kernel, sigma, explain_class, score_class, region, interpolation
        As for `RegionIoU`.

    Notes
    -----
    Empty ``A``: 0; the whole image: ``2 rho / (1 + rho)``. Cost: no forwards.

    References
    ----------
    Walter, Vreeken and Fischer, "Now you see Me! Attribution Distributions Reveal What is Truly Important for a
    Prediction", 2025.

    Examples
    --------
    >>> vt.get_metric("f1").spec
    'region_f1'
    """

    def overlap(self, both: int, upper: int, region: int) -> float:
        return ratio(2 * both, upper + region)


@dataclass
class _TopRanked(Localisation):
    """Shared by both: ``tie_breaking=expected`` is the mean over all orders of equal values, ``random`` one of them."""

    tie_breaking: str = choice("expected", "random", kw_only=True)
    seed: int = number(0, "[0, inf)", kw_only=True)

    def _share(self, located: LocatedMap, count: int) -> float:
        return top_hits(located.values, located.inside, count, self.tie_breaking, self.seed) / count


@register_metric("relevance_rank", family="localisation", aliases=("rra",), papers=("arras2022clevr",))
@dataclass
class RelevanceRank(_TopRanked):
    r"""Relevance rank accuracy: of as many top-ranked pixels as the region has, the share that lies in it.

    .. math:: \frac{|\mathrm{top}_{|R|}(a) \cap R|}{|R|}

    Parameters
    ----------
    explain_class, score_class, region, interpolation
        See `Localisation`.
    tie_breaking : str, default "expected"
        Of equal values, the mean over all their orders, or with ``"random"`` the order of a seeded key.
    seed : int, default 0
        The seed of the key, which is the same for all maps.

    Notes
    -----
    A constant map has the share of the region. Cost: no forwards.

    References
    ----------
    Arras, Osman and Samek, "CLEVR-XAI: A Benchmark Dataset for the Ground Truth Evaluation of Neural Network
    Explanations", 2022.

    Examples
    --------
    >>> vt.get_metric("rra(tie_breaking=random)").seed
    0
    """

    def measure(self, located: LocatedMap) -> float:
        return self._share(located, int(located.inside.sum()))


@register_metric(
    "top_k_intersection",
    family="localisation",
    aliases=("top_k",),
    papers=("theiner2022interpretable",),
    presets={"quantus": {"k": 1000}},
)
@dataclass
class TopKIntersection(_TopRanked):
    r"""Share of the ``k`` top-ranked pixels that lie in the region.

    .. math:: \frac{|\mathrm{top}_k(a) \cap R|}{k}

    Parameters
    ----------
    k : int, default 1000
        How many pixels, or all where there are fewer.
    explain_class, score_class, region, interpolation, tie_breaking, seed
        As for `RelevanceRank`.

    Notes
    -----
    At best ``|R| / k`` where the region is smaller; a constant map has the share of the region. Cost: no forwards.

    References
    ----------
    Theiner, Müller-Budack and Ewerth, "Interpretable Semantic Photo Geolocation", 2022.

    Examples
    --------
    >>> vt.get_metric("top_k(k=100)").spec
    'top_k_intersection(k=100)'
    """

    k: int = number(1000, "[1, inf)")

    def measure(self, located: LocatedMap) -> float:
        return self._share(located, min(self.k, len(located.values)))
