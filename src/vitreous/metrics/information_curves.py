"""Performance information curves: how well does the model do on so much of the picture's information?

A picture is known at one in a hundred random pixels (drawn from its content, the same for all methods), at its corners,
and where the map is at least its ``1 - t`` quantile; the rest is interpolated linearly between them. ``t`` runs through
thirteen thresholds. Information is the size of the lossless WebP, and it and the model's performance are scaled so that
the picture without any map is 0 and the original, in 8 bits, is 1.

``>=`` reveals more than the share ``t`` of a map with ties: a constant map reveals everything at the first threshold.
Pictures on which there is nothing to measure have no score (NaN), for all methods alike: those that the model does not
recognise, those that it does just as well blurred, and those that are no larger than their blurred version.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from PIL import Image

from vitreous.errors import SpecError, VitreousError
from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.bootstrap import Cell, mean
from vitreous.metrics.curves import Array, Curve, area
from vitreous.metrics.requests import ImageShape, RenderedStates
from vitreous.registry import check_choice
from vitreous.tracing.prng import PRNGKey

if TYPE_CHECKING:
    from vitreous.metrics.evaluation import Evaluation

__all__ = ["AIC", "SIC", "THRESHOLDS", "Revealed", "blurred", "median_curve", "packed", "performance_curve"]

THRESHOLDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.13, 0.21, 0.34, 0.5, 0.75)
_POINTS = np.append(np.arange(1000) / 1000, 1.0)
_AT_ONCE = 2**19  # weights that a median looks at together


@dataclass(frozen=True)
class Revealed:
    """Draws a picture blurred but for the top of a map, once for each threshold; without a map, whole and blurred."""

    thresholds: tuple[float, ...] = THRESHOLDS
    share: float = 0.01

    def __call__(self, picture: Array, values: Array | None, key: int) -> tuple[Array, Array]:
        known = self._always(picture.shape[:2], key)
        if values is None:
            drawn = [picture, blurred(picture, known)]
        else:
            edges = np.quantile(values, [1 - threshold for threshold in self.thresholds])
            drawn = [blurred(picture, known | (values >= edge)) for edge in edges]
        return np.stack(drawn), np.array([packed(each) for each in drawn], np.float64)

    def _always(self, size: Sequence[int], key: int) -> Array:
        """Return the random pixels and the corners."""
        known = np.zeros(size, bool)
        order = PRNGKey(torch.tensor([key])).permutation(known.size)[0].numpy()
        known.flat[order[: int(self.share * known.size)]] = True
        known[[0, 0, -1, -1], [0, -1, 0, -1]] = True
        return known


def blurred(picture: Array, known: Array) -> Array:
    """Return a picture ``[H, W, 3]`` with all but the known pixels interpolated linearly on their triangulation."""
    if known.all():
        return picture
    try:
        from scipy.interpolate import LinearNDInterpolator
    except ImportError:
        raise VitreousError("aic and sic need scipy; pip install 'vitreous[bench]'") from None
    between = LinearNDInterpolator(np.argwhere(known), picture[known].astype(np.float64))(np.argwhere(~known))
    made: Array = picture.copy()
    made[~known] = np.round(np.where(np.isnan(between), picture.mean(axis=(0, 1)), between))
    return made


def packed(picture: Array) -> int:
    """Return the size of a picture in bytes, packed by WebP without loss."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "WEBP", lossless=True, quality=100)
    return file.tell()


def performance_curve(information: Array, performance: Array, monotonous: bool = True) -> Array:
    """Return performance at 1,001 levels of information, from points ``[J]`` in the order of their thresholds.

    From (0, 0) to (1, 1), linear in between; the best of what is known at one level, whatever its place in the order.
    """
    best = np.maximum.accumulate(performance) if monotonous else performance
    x, y = np.concatenate([[0.0], information, [1.0]]), np.concatenate([[0.0], best, [1.0]])
    levels, place = np.unique(x, return_inverse=True)
    top = np.zeros(len(levels))
    np.maximum.at(top, place, y)
    return np.asarray(np.interp(_POINTS, levels, top))


@dataclass
class _Information(Metric):
    """Shared by both: ``average`` is over the areas of the images, or the point-wise median of their curves."""

    confidence: float = 0.8
    monotonous: bool = True
    average: str = "mean"
    softmax: ClassVar[bool] = False
    can_exclude_images = True
    x_axis = "share of the picture's information"

    def check(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise SpecError(f"confidence={self.confidence:g} must lie between 0 and 1")
        check_choice("average", self.average, ("mean", "median"))

    def requests(self, image_shape: ImageShape) -> Sequence[RenderedStates]:
        return [RenderedStates(Revealed(), 2, "image"), RenderedStates(Revealed(), len(THRESHOLDS))]

    def score(self, answers: Evaluation) -> Array:
        levels = self._levels(answers)
        return levels if self.average == "median" else area(levels, _POINTS)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        return {"performance": Curve(_POINTS, self._levels(answers))}

    def per_image(self, parts: Array) -> Array:
        return area(parts, _POINTS) if self.average == "median" else super().per_image(parts)

    def aggregate(self, parts: Array, weights: Array) -> Array:
        return median_curve(parts, weights) if self.average == "median" else super().aggregate(parts, weights)

    def cell(self, parts: Array) -> Cell:
        return (parts, median_curve) if self.average == "median" else (parts, mean)

    def _levels(self, answers: Evaluation) -> Array:
        """Return the curve of every image, ``[B, 1001]``."""
        ends, shown = self.requests(answers.image_shape)
        (whole, bare), each = self._performance(answers, ends).T, self._performance(answers, shown)
        (size, least), sizes = answers.facts(ends, self.explain_class).T, answers.facts(shown, self.explain_class)
        usable = (whole >= self.confidence) & (bare < whole) & (least < size) & ~np.isnan(each).any(axis=1)
        levels = np.full((len(each), len(_POINTS)), np.nan)
        for image in np.flatnonzero(usable):
            information = (sizes[image] - least[image]) / (size[image] - least[image])
            performance = (each[image] - bare[image]) / (whole[image] - bare[image])
            levels[image] = performance_curve(information.clip(0, 1), performance.clip(0, 1), self.monotonous)
        return levels

    def _performance(self, answers: Evaluation, need: RenderedStates) -> Array:
        if self.softmax:
            return np.exp(answers.log_probability(need, self.explain_class, self.score_class))
        return answers.correct(need, self.explain_class, self.score_class)


_COMMON: dict[str, Any] = {"family": "faithfulness", "papers": ("kapishnikov2019xrai", "walter2025now")}
_NOTEBOOK = {"notebook": {"confidence": 0.5, "average": "median"}}


@register_metric("aic", presets={"var": {}, **_NOTEBOOK}, **_COMMON)
@dataclass
class AIC(_Information):
    """Accuracy information curve: area under "the arg-max is the scored class" over normalised information.

    The running maximum over the thresholds unless ``monotonous`` is off. Scored are images that are right when whole
    and wrong when blurred. ``average=median`` gives the area under the point-wise median of the curves, which are steps
    here. ``@var``: the library's thresholds and limits; ``@notebook``: the authors' notebook, which takes the median.
    Higher is better. Cost: 13 forwards per map and 2 per image, and some seconds of a processor to draw them.
    """


@register_metric("sic", presets=_NOTEBOOK, **_COMMON)
@dataclass
class SIC(_Information):
    """Softmax information curve: area under the scored class's probability over normalised information.

    As ``aic``, with ``P`` in place of its arg-max, scaled between the blurred and the whole picture; only images with
    ``P >= confidence`` when whole. The score of all images is the area under the point-wise median of their curves, as
    in the released code, or the mean area with ``average=mean``. Higher is better. Cost: that of ``aic``, shared.
    """

    average: str = "median"
    softmax: ClassVar[bool] = True


def median_curve(parts: Array, weights: Array) -> Array:
    """Return the area under the weighted point-wise median of curves ``[n, P]``, for each row of weights ``[r, n]``.

    Weights are counts: the median is that of the images repeated so often, the mean of the middle two where their
    number is even. Point by point and some rows at a time, so that memory stays small.
    """
    there = ~np.isnan(parts).any(axis=1)
    curves, widths = parts[there], np.diff(_POINTS)
    share = (np.append(widths, 0) + np.append(0, widths)) / 2
    orders = curves.argsort(axis=0)
    values = np.take_along_axis(curves, orders, axis=0)
    areas = np.full(len(weights), np.nan)
    rows = max(1, _AT_ONCE // max(1, len(curves)))
    for start in range(0, len(weights), rows):
        counts = np.rint(weights[start : start + rows, there]).astype(np.int64)
        total = counts.sum(axis=1)
        some = total > 0
        kind = np.int16 if total.max(initial=0) < 2**15 else np.int64  # what takes less room is counted sooner
        counts = np.ascontiguousarray(counts[some].T, kind)
        middle = [((total[some] - 1) // 2).astype(kind), (total[some] // 2).astype(kind)]
        found = np.zeros(counts.shape[1])
        for point, width in enumerate(share):
            reached = np.cumsum(counts[orders[:, point]], axis=0, dtype=kind)
            places = [(reached <= each).sum(axis=0, dtype=kind) for each in middle]
            found += width * sum(values[place, point] for place in places) / 2
        areas[start : start + rows][some] = found
    return areas
