"""How well the model does on what a map lets through: performance information curves, and the image under its map.

For an information curve an image is shown at one in a hundred random pixels (drawn from its content, the same for all
methods), at its corners, and where the map is at least its ``1 - t`` quantile; all else is interpolated linearly
between them. ``t`` runs through thirteen thresholds. Information is the size of the lossless WebP; it and the model's
performance are scaled so that the image without any map is 0 and the original, in 8 bits, is 1.

``>=`` reveals more than the share ``t`` of a map with ties: a constant map reveals everything at the first threshold.
Images on which there is nothing to measure have no score (NaN), for all methods alike: those that the model does not
recognise, those that it does just as well blurred, and those that are no larger than their blurred version.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from vitreous.errors import SpecError, VitreousError
from vitreous.metrics.base import Metric, baseline_name, register_metric
from vitreous.metrics.bootstrap import Cell, mean
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array, Curve, area
from vitreous.metrics.requests import ImageShape, RankedRemoval, RenderedStates, Request
from vitreous.registry import choice
from vitreous.tracing.prng import PRNGKey

THRESHOLDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.13, 0.21, 0.34, 0.5, 0.75)
_POINTS = np.append(np.arange(1000) / 1000, 1.0)
_MAX_WEIGHTS = 2**19  # that a median takes at a time


@dataclass(frozen=True)
class Revealed:
    """Draws an image blurred but for the top of a map, once for each threshold; without a map, sharp and blurred."""

    thresholds: tuple[float, ...] = THRESHOLDS
    share: float = 0.01

    def __call__(self, image: Array, values: Array | None, key: int) -> tuple[Array, Array]:
        """Show the random pixels and the corners always."""
        order = PRNGKey(torch.tensor([key])).permutation(image.shape[0] * image.shape[1])[0].numpy()
        visible = np.zeros(image.shape[:2], bool)
        visible.flat[order[: int(self.share * visible.size)]] = True
        visible[[0, 0, -1, -1], [0, -1, 0, -1]] = True
        if values is None:
            states = [image, blurred(image, visible)]
        else:
            edges = np.quantile(values, [1 - threshold for threshold in self.thresholds])
            states = [blurred(image, visible | (values >= edge)) for edge in edges]
        return np.stack(states), np.array([webp_size(state) for state in states], np.float64)


def blurred(image: Array, visible: Array) -> Array:
    """Return an image ``[H, W, 3]`` with all pixels that are not shown interpolated linearly on their triangulation."""
    if visible.all():
        return image
    try:
        from scipy.interpolate import LinearNDInterpolator
    except ImportError:
        raise VitreousError("aic and sic need scipy; pip install 'vitreous[bench]'") from None
    between = LinearNDInterpolator(np.argwhere(visible), image[visible].astype(np.float64))(np.argwhere(~visible))
    filled: Array = image.copy()
    filled[~visible] = np.round(np.where(np.isnan(between), image.mean(axis=(0, 1)), between))
    return filled


def webp_size(image: Array) -> int:
    """Return the size of an image in bytes, compressed by WebP without loss."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "WEBP", lossless=True, quality=100)
    return file.tell()


def performance_curve(information: Array, performance: Array, monotonous: bool = True) -> Array:
    """Return performance at 1,001 levels of information, from points ``[J]`` in the order of their thresholds.

    From (0, 0) to (1, 1), linear in between; the best of the points at one level, whatever their order.
    """
    best = np.maximum.accumulate(performance) if monotonous else performance
    x, y = np.concatenate([[0.0], information, [1.0]]), np.concatenate([[0.0], best, [1.0]])
    levels, level = np.unique(x, return_inverse=True)
    top = np.zeros(len(levels))
    np.maximum.at(top, level, y)
    return np.asarray(np.interp(_POINTS, levels, top))


@dataclass
class _Information(Metric):
    """Shared by both: ``average`` is over the areas of the images, or the point-wise median of their curves."""

    confidence: float = 0.8
    monotonous: bool = True
    average: str = choice("mean", "median")
    softmax: ClassVar[bool] = False
    can_exclude_images = True
    x_axis = "share of the picture's information"

    def check(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise SpecError(f"confidence={self.confidence:g} must lie between 0 and 1")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {
            "ends": RenderedStates(Revealed(), 2, "image"),
            "thresholds": RenderedStates(Revealed(), len(THRESHOLDS)),
        }

    def score(self, evaluation: Evaluation) -> Array:
        levels = self._levels(evaluation)
        return levels if self.average == "median" else area(levels, _POINTS)

    def curves(self, evaluation: Evaluation) -> Mapping[str, Curve]:
        return {"performance": Curve(_POINTS, self._levels(evaluation))}

    def per_image(self, parts: Array) -> Array:
        return area(parts, _POINTS) if self.average == "median" else super().per_image(parts)

    def aggregate(self, parts: Array, weights: Array) -> Array:
        return median_curve(parts, weights) if self.average == "median" else super().aggregate(parts, weights)

    def cell(self, parts: Array) -> Cell:
        return (parts, median_curve) if self.average == "median" else (parts, mean)

    def _levels(self, evaluation: Evaluation) -> Array:
        """Return the curve of every image, ``[B, 1001]``."""
        read = evaluation.probability if self.softmax else partial(evaluation.correct, score_class=self.score_class)
        (sharp, blurry), revealed = read("ends").T, read("thresholds")
        (size, smallest), sizes = evaluation.numbers("ends").T, evaluation.numbers("thresholds")
        usable = (sharp >= self.confidence) & (blurry < sharp) & (smallest < size) & ~np.isnan(revealed).any(axis=1)
        levels = np.full((len(revealed), len(_POINTS)), np.nan)
        for image in np.flatnonzero(usable):
            information = (sizes[image] - smallest[image]) / (size[image] - smallest[image])
            performance = (revealed[image] - blurry[image]) / (sharp[image] - blurry[image])
            levels[image] = performance_curve(information.clip(0, 1), performance.clip(0, 1), self.monotonous)
        return levels


_COMMON: dict[str, Any] = {"family": "faithfulness", "papers": ("kapishnikov2019xrai", "walter2025now")}
_NOTEBOOK = {"notebook": {"confidence": 0.5, "average": "median"}}


@register_metric("aic", presets={"var": {}, **_NOTEBOOK}, **_COMMON)
@dataclass
class AIC(_Information):
    r"""Accuracy information curve: area under "the arg-max is the scored class" over normalised information.

    .. math:: \int_0^1 \max_{t:\, I(x_t) \le s} \mathbb{1}[\arg\max f(x_t) = c]\,ds

    Parameters
    ----------
    confidence : float, default 0.8
        Scored are images on which the model does at least so well; of 0 or 1, they are right or wrong here.
    monotonous : bool, default True
        Take the running maximum over the thresholds.
    average : str, default "mean"
        The mean area, or ``"median"``: the area under the point-wise median of the curves, which are steps here.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Scored are images that are right when sharp and wrong when blurred. ``@var``: the library's thresholds and limits;
    ``@notebook``: the authors' notebook, which takes the median. Cost: 13 forwards per map and 2 per image, and some
    seconds of a processor to draw them.

    References
    ----------
    Kapishnikov et al., "XRAI: Better Attributions Through Regions", 2019.

    Examples
    --------
    >>> metric = vt.get_metric("aic")
    >>> metric.num_forwards(), metric.num_shared_forwards()
    (13, 2)
    """


@register_metric("sic", presets=_NOTEBOOK, **_COMMON)
@dataclass
class SIC(_Information):
    r"""Softmax information curve: area under the scored class's probability over normalised information.

    .. math:: \int_0^1 \max_{t:\, I(x_t) \le s} \frac{P(x_t) - P(x_0)}{P(x) - P(x_0)}\,ds

    Parameters
    ----------
    confidence : float, default 0.8
        Scored are images with at least this probability when sharp.
    monotonous : bool, default True
        Take the running maximum over the thresholds.
    average : str, default "median"
        The area under the point-wise median of the curves, as in the released code, or the ``"mean"`` area.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    As ``aic``, with ``P`` in place of its arg-max, scaled between the blurred and the sharp image. Cost: that of
    ``aic``, shared.

    References
    ----------
    Kapishnikov et al., "XRAI: Better Attributions Through Regions", 2019.

    Examples
    --------
    >>> vt.get_metric("sic").average
    'median'
    """

    average: str = choice("median", "mean")
    softmax: ClassVar[bool] = True


def median_curve(parts: Array, weights: Array) -> Array:
    """Return the area under the weighted point-wise median of curves ``[n, P]``, for each row of weights ``[r, n]``.

    Weights are counts: the median is that of the images repeated so often, the mean of the middle two where their
    number is even. Point by point and some rows at a time, so that memory stays small.
    """
    valid = ~np.isnan(parts).any(axis=1)
    curves, widths = parts[valid], np.diff(_POINTS)
    shares = (np.append(widths, 0) + np.append(0, widths)) / 2
    orders = curves.argsort(axis=0)
    values = np.take_along_axis(curves, orders, axis=0)
    areas = np.full(len(weights), np.nan)
    rows = max(1, _MAX_WEIGHTS // max(1, len(curves)))
    for start in range(0, len(weights), rows):
        counts = np.rint(weights[start : start + rows, valid]).astype(np.int64)
        total = counts.sum(axis=1)
        drawn_any = total > 0
        dtype = np.int16 if total.max(initial=0) < 2**15 else np.int64  # smaller numbers are counted faster
        counts = np.ascontiguousarray(counts[drawn_any].T, dtype)
        middle = [((total[drawn_any] - 1) // 2).astype(dtype), (total[drawn_any] // 2).astype(dtype)]
        medians = np.zeros(counts.shape[1])
        for point, share in enumerate(shares):
            reached = np.cumsum(counts[orders[:, point]], axis=0, dtype=dtype)
            positions = [(reached <= half).sum(axis=0, dtype=dtype) for half in middle]
            medians += share * sum(values[position, point] for position in positions) / 2
        areas[start : start + rows][drawn_any] = medians
    return areas


@dataclass
class _Masked(Metric):
    """Shared by drop, increase and gain: the image faded into the baseline by its own map.

    What speaks against the class is removed with what says nothing: the weight is the positive part of the map
    (Chattopadhay et al. and Zhang et al., whose maps end in a ReLU), less its minimum and divided by what is left of
    its maximum (Zhang et al.; the former divide by the maximum, the same wherever the minimum is 0). A map that is
    constant, or positive nowhere, has weight 0: the model gets the bare baseline.
    """

    baseline: str = baseline_name("zero_norm", fades=True)
    normalization: str = choice("relu", "minmax")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"masked": RankedRemoval.blend(self.baseline, self.normalization)}

    def _logs(self, evaluation: Evaluation) -> tuple[Array, Array]:
        """Return ``log P(x)`` and ``log P(x')``."""
        return evaluation.log_probability(), evaluation.log_probability("masked")[:, 0]


@register_metric("average_drop", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageDrop(_Masked):
    r"""Share of the probability that is lost when the image is multiplied by its map.

    .. math:: \frac{\max(0, P(x) - P(x'))}{P(x)}, \qquad x' = m x + (1 - m) b

    Parameters
    ----------
    baseline : str, default "zero_norm"
        What the image fades into, ``b``: one of ``vitreous.metrics.BASELINES``.
    normalization : str, default "relu"
        What of the map becomes the weight ``m`` from 0 to 1: its positive part, or with ``"minmax"`` all of it, so that
        the lowest value is removed and the highest stays.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. From the difference of log-probabilities, so that a tiny ``P(x)`` does no harm. Cost: one forward
    per map, shared with increase and gain.

    References
    ----------
    Chattopadhay et al., "Grad-CAM++: Generalized Gradient-Based Visual Explanations for Deep Convolutional Networks",
    2018.

    Examples
    --------
    >>> vt.get_metric("average_drop").num_forwards()
    1
    """

    higher_is_better = False

    def score(self, evaluation: Evaluation) -> Array:
        clean, masked = self._logs(evaluation)
        return np.asarray(-np.expm1(np.minimum(masked - clean, 0)))


@register_metric("average_increase", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageIncrease(_Masked):
    r"""Whether the probability rises when the image is multiplied by its map.

    .. math:: \mathbb{1}[P(x') > P(x)]

    Parameters
    ----------
    baseline, normalization, explain_class, score_class
        As for `AverageDrop`.

    Notes
    -----
    Cost: one forward per map, shared with drop and gain.

    References
    ----------
    Chattopadhay et al., "Grad-CAM++: Generalized Gradient-Based Visual Explanations for Deep Convolutional Networks",
    2018.

    Examples
    --------
    >>> vt.get_metric("average_increase").higher_is_better
    True
    """

    def score(self, evaluation: Evaluation) -> Array:
        clean, masked = self._logs(evaluation)
        return np.where(np.isnan(masked), np.nan, masked > clean)


@register_metric("average_gain", family="faithfulness", papers=("zhang2024opticam",))
@dataclass
class AverageGain(_Masked):
    r"""Share of the possible gain in probability that is made when the image is multiplied by its map.

    .. math:: \frac{\max(0, P(x') - P(x))}{1 - P(x)}

    Parameters
    ----------
    baseline, normalization, explain_class, score_class
        As for `AverageDrop`.

    Notes
    -----
    Zero where ``P(x)`` is one already. Cost: one forward per map, shared with drop and increase.

    References
    ----------
    Zhang et al., "Opti-CAM: Optimizing Saliency Maps for Interpretability", 2024.

    Examples
    --------
    >>> vt.get_metric("average_gain(baseline=black)").num_forwards()
    1
    """

    def score(self, evaluation: Evaluation) -> Array:
        clean, masked = self._logs(evaluation)
        possible = -np.expm1(clean)
        gained = np.maximum(np.exp(masked) - np.exp(clean), 0)
        gain = np.divide(gained, possible, out=np.zeros_like(gained), where=possible > 0)
        return np.where(np.isnan(masked), np.nan, gain)
