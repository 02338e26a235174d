"""Localisation: whether the relevance lies where it should: in the region, in an image's own cell of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from typing import ClassVar

import numpy as np
import torch

from vitreous.errors import SpecError
from vitreous.metrics.base import Metric, odd_number, register_metric
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array, order, ratio
from vitreous.metrics.requests import AnnotationRequest, ImageShape, Request
from vitreous.metrics.similarity import gaussian_blur
from vitreous.registry import choice, number

_ROUNDING = 1e-12  # of the largest value: a quantile that is one of the values may come out a little above it


@dataclass(frozen=True, eq=False)
class LocatedMap:
    """One map at the pixels, and where the object is; only ``counted`` pixels matter. All are ``[H, W]``."""

    map: Array
    region: Array
    counted: Array

    def inner(self, array: Array) -> Array:
        """Return the counted pixels of an array ``[H, W]``."""
        return np.asarray(array[self.counted])

    @property
    def values(self) -> Array:
        """The map at the counted pixels, ``[n]``."""
        return self.inner(self.map)

    @property
    def inside(self) -> Array:
        """Which of the counted pixels are in the region, ``[n]``."""
        return self.inner(self.region)

    def share(self, mass: Array, minimum: float = 0.0) -> float:
        """Return the share of a mass ``[n]`` that lies in the region; 0 where there is no more than ``minimum``."""
        return ratio(mass[self.inside].sum(), mass.sum(), minimum)


@dataclass
class Localisation(Metric):
    """Base of the family: compares the map at the pixels with the annotated region.

    Ignored pixels count for nothing. Images have no score (NaN) where the map is not finite, all is ignored, or, unless
    the metric says otherwise, the region is empty.

    Parameters
    ----------
    explain_class, score_class : str
        See `Metric`.
    region : str, default "any"
        The mask, else the boxes, else the parts; or only the ``"mask"``, the ``"boxes"`` or the ``"parts"``.
    interpolation : str, default "given"
        How token maps are enlarged: as the evaluation says, ``"bilinear"`` or ``"nearest"``.
    """

    region: str = choice("any", "mask", "boxes", "parts", kw_only=True)
    interpolation: str = choice("given", "bilinear", "nearest", kw_only=True)
    needs_inside: ClassVar[bool] = True
    num_parts: ClassVar[int] = 1

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"region": AnnotationRequest("region" if self.region == "any" else self.region)}

    def score(self, evaluation: Evaluation) -> Array:
        maps = evaluation.maps("pixel", None if self.interpolation == "given" else self.interpolation)
        scores = np.full((len(maps), self.num_parts), np.nan)
        for image, (values, annotation) in enumerate(zip(maps, evaluation.annotations, strict=True)):
            region = annotation.region(self.region, evaluation.image_shape.pixels)
            counted = np.ones_like(region) if annotation.ignore is None else ~np.asarray(annotation.ignore, bool)
            is_scored = (region & counted).any() if self.needs_inside else counted.any()
            if is_scored and np.isfinite(values).all():
                scores[image] = self.measure(LocatedMap(values, region, counted))
        return scores

    def measure(self, located: LocatedMap) -> float | Sequence[float]:
        """Return the score of one map, or its parts."""
        raise NotImplementedError


def blurred(values: Array, kernel: int, sigma: float) -> Array:
    """Return the positive part of a map under a Gaussian of ``kernel`` x ``kernel`` pixels, reflected at its edges."""
    return np.asarray(gaussian_blur(np.maximum(values, 0)[None], kernel // 2, sigma, "reflect")[0])


def above_mean(values: Array) -> tuple[Array, Array]:
    """Return a map scaled to 0 .. 1, and where it is above its mean; a constant one is 0, and above it nowhere."""
    smallest, largest = values.min(), values.max()
    if smallest == largest:
        return np.zeros_like(values), np.zeros(values.shape, bool)
    scaled = (values - smallest) / (largest - smallest)
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

    Equal values come in the order of a seeded key (``random``), or the mean over all orders is taken (``expected``).
    """
    if ties == "random":
        ordered = order(torch.from_numpy(values.copy())[None], "random", seed)[0, :count].numpy()
        return float(inside[ordered].sum())
    hits, sizes = tie_groups(values, inside)
    taken = np.clip(count - (np.cumsum(sizes) - sizes), 0, sizes)
    return float((hits * taken / sizes).sum())


def dilated(mask: Array, radius: float) -> Array:
    """Return the pixels of a mask and those whose centres are closer to one of them than ``radius``."""
    height, width = mask.shape
    grown = mask.copy()
    for down in range(ceil(radius)):
        squared = radius**2 - down**2
        reach = isqrt(ceil(squared) - 1) if squared > 0 else -1  # the largest whole number whose square is below
        if reach < 0 or down >= height:
            break
        sums = np.cumsum(np.pad(mask, ((0, 0), (reach + 1, reach))), axis=1, dtype=np.int32)
        wider = sums[:, 2 * reach + 1 :] > sums[:, :width]
        grown[down:] |= wider[: height - down]
        grown[: height - down] |= wider[down:]
    return np.asarray(grown)


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
    r"""Whether the largest value of the map lies in the region, or close to it.

    .. math:: \mathbb{1}\big[\min_{r \in R} \lVert \arg\max_p a_p - r \rVert < \mathrm{tolerance}\big]

    Parameters
    ----------
    tolerance : float, default 0.0
        How close in pixels is a hit; 0 means inside.
    tie_breaking : str, default "expected"
        Of several largest values, the share that hits, the ``"first"`` in reading order, or ``"any"`` of them.
    largest : float, default 1.0
        Regions of this share of the image or more are not counted: the default leaves out those that cannot be missed.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    Constant maps have their share under ``expected``. Cost: no forwards.

    References
    ----------
    Zhang et al., "Top-Down Neural Attention by Excitation Backprop", 2018.

    Examples
    --------
    >>> boxes = [vt.Annotation(boxes=[(0, 0, 32, 32)])]
    >>> table = vt.evaluate(model, images[:1], "ixg", "pointing_game", annotations=boxes, controls=False)
    >>> table["ixg", "pointing_game"].shape
    (1,)
    """

    tolerance: float = number(0.0, "[0, inf)")
    tie_breaking: str = choice("expected", "first", "any")
    largest: float = number(1.0, "[1e-9, inf)")

    def measure(self, located: LocatedMap) -> float:
        if located.region.mean() >= self.largest:
            return float("nan")
        goal = located.inner(dilated(located.region & located.counted, self.tolerance))
        hits = goal[located.values == located.values.max()]
        return float({"expected": hits.mean(), "first": hits[0], "any": hits.any()}[self.tie_breaking])


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
    r"""Share of the map's energy that lies in the region.

    .. math:: \frac{\sum_{p \in R} e_p}{\sum_p e_p}, \qquad e = |a|

    Parameters
    ----------
    energy : str, default "abs"
        Of absolute values, or with ``"relu"`` of positive ones.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    0 without any energy. A constant map has the share of the region: large regions score high. Cost: no forwards.

    References
    ----------
    Wang et al., "Score-CAM: Score-Weighted Visual Explanations for Convolutional Neural Networks", 2020.

    Examples
    --------
    >>> vt.get_metric("energy_pointing_game").annotation_kinds
    ('region',)
    """

    energy: str = choice("abs", "relu")

    def measure(self, located: LocatedMap) -> float:
        return located.share(np.abs(located.values) if self.energy == "abs" else np.maximum(located.values, 0))


@register_metric("relevance_mass", family="localisation", aliases=("rma",), papers=("arras2022clevr",))
@dataclass
class RelevanceMass(Localisation):
    r"""Relevance mass accuracy: the share of the map's relevance that lies in the region.

    .. math:: \frac{\sum_{p \in R} a_p}{\sum_p a_p}

    Parameters
    ----------
    of : str, default "positive"
        Of the positive part, which the definition needs to stay between 0 and 1, of the ``"absolute"`` values, or
        ``"signed"``, which may leave that range.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    0 where the sum of all is 0. A constant positive map has the share of the region. Cost: no forwards.

    References
    ----------
    Arras, Osman and Samek, "CLEVR-XAI: A Benchmark Dataset for the Ground Truth Evaluation of Neural Network
    Explanations", 2022.

    Examples
    --------
    >>> vt.get_metric("relevance_mass(of=absolute)").num_forwards()
    0
    """

    of: str = choice("positive", "absolute", "signed")

    def measure(self, located: LocatedMap) -> float:
        values = located.values
        mass = {"positive": np.maximum(values, 0), "absolute": np.abs(values), "signed": values}[self.of]
        total = float(mass.sum())
        return float(mass[located.inside].sum()) / total if total else 0.0


@register_metric(
    "grid_pointing_game",
    family="localisation",
    aliases=("gridpg",),
    papers=("rao2022towards",),
    presets={"rao": {"interpolation": "bilinear"}},
)
@dataclass
class GridPointingGame(Localisation):
    r"""Share of the positive relevance for a cell's class that lies in this cell of a grid of images.

    .. math:: \frac{\sum_{p \in \mathrm{cell}} \max(0, a_p)}{\sum_p \max(0, a_p)}

    Parameters
    ----------
    least : float, default 1e-7
        The score is 0 where the sum of all is not above it.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    A constant positive map has ``1 / n^2`` on n x n cells. For grids of ``vitreous.datasets.make_grids``. Cost: no
    forwards.

    References
    ----------
    Rao, Böhle and Schiele, "Towards Better Understanding Attribution Methods", 2022.

    Examples
    --------
    >>> vt.get_metric("gridpg").spec
    'grid_pointing_game'
    """

    least: float = number(1e-7, "[0, inf)")

    def measure(self, located: LocatedMap) -> float:
        return located.share(np.maximum(located.values, 0), self.least)


@register_metric("focus", family="localisation", papers=("ariasduart2022focus",))
@dataclass
class Focus(Localisation):
    r"""Share of the positive relevance for a class that lies in the two cells of a mosaic that show this class.

    .. math:: \frac{\sum_{p \in R} \max(0, a_p)}{\sum_p \max(0, a_p)}

    Parameters
    ----------
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    ``R`` are both cells together. Nothing positive: 0; a constant positive map: 0.5. For mosaics of
    ``vitreous.datasets.make_mosaics``. Cost: no forwards.

    References
    ----------
    Arias-Duart et al., "Focus! Rating XAI Methods and Finding Biases", 2022.

    Examples
    --------
    >>> vt.get_metric("focus").higher_is_better
    True
    """

    def measure(self, located: LocatedMap) -> float:
        return located.share(np.maximum(located.values, 0))


@register_metric(
    "region_attribution", family="localisation", aliases=("ra",), papers=("walter2025now",), presets={"var": {}}
)
@dataclass
class RegionAttribution(Localisation):
    r"""Share of the blurred positive relevance that lies in the region.

    .. math:: \frac{\sum_{p \in R} (G * \max(0, a))_p}{\sum_p (G * \max(0, a))_p}

    Parameters
    ----------
    kernel : int, default 11
        Rows and columns of the Gaussian ``G``; the map is reflected at its edges.
    sigma : float, default 2.0
        Its deviation in pixels, which VAR does not state.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    VAR's RA. Nothing positive: 0; a constant positive map has the share of the region. Cost: no forwards.

    References
    ----------
    Walter, Vreeken and Fischer, "Now you see Me! Attribution Distributions Reveal What is Truly Important for a
    Prediction", 2025.

    Examples
    --------
    >>> vt.get_metric("ra(kernel=5)").spec
    'region_attribution(kernel=5)'
    """

    kernel: int = odd_number(11)
    sigma: float = number(2.0, "[1e-3, inf)")

    def measure(self, located: LocatedMap) -> float:
        return located.share(located.inner(blurred(located.map, self.kernel, self.sigma)))


@register_metric(
    "ehr",
    family="localisation",
    aliases=("effective_heat_ratio",),
    papers=("zhang2021inputiba",),
    presets={"inputiba": {"by": "points"}},
)
@dataclass
class EHR(Localisation):
    r"""Effective heat ratio: the share of the heat above a threshold that lies in the region, over all thresholds.

    .. math:: \int_0^1 \frac{\sum_{p \in R,\, m_p \ge t_q} m_p}{\sum_{m_p \ge t_q} m_p}\,dq,
        \qquad m = \frac{\max(0, a)}{\max a}

    Parameters
    ----------
    steps : int, default 10
        Thresholds ``t_q`` are the quantiles 0, 1/steps, ..., 1 of the pixels with ``m >= base``, and 0.99 at most.
    base : float, default 0.1
        What the heat of a pixel must reach.
    by : str, default "heat"
        Divide by the heat above the threshold, or with ``"points"``, as released, by the number of pixels.
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    The trapezoid over the quantiles. Nothing positive: 0; a constant positive map has the share of the region. Cost: no
    forwards.

    References
    ----------
    Zhang et al., "Fine-Grained Neural Network Explanation by Identifying Input Features with Predictive Information",
    2021.

    Examples
    --------
    >>> vt.get_metric("ehr@inputiba").by
    'points'
    """

    steps: int = number(10, "[1, inf)")
    base: float = number(0.1, "[0, inf)")
    by: str = choice("heat", "points")

    def check(self) -> None:
        if self.base > 0.99:
            raise SpecError(f"base={self.base} must be at most 0.99")

    def measure(self, located: LocatedMap) -> float:
        heat = np.maximum(located.values, 0)
        top = heat.max()
        if top == 0:
            return 0.0
        heat = np.where(heat / top >= self.base, heat / top, 0)
        quantiles = np.linspace(0, 1, self.steps + 1)
        ratios = []
        for threshold in np.minimum(np.quantile(heat[heat >= self.base], quantiles), 0.99):
            above = heat >= threshold - _ROUNDING
            total = above.sum() if self.by == "points" else heat[above].sum()
            ratios.append(heat[above & located.inside].sum() / total)
        return float((np.diff(quantiles) * (np.array(ratios[1:]) + ratios[:-1]) / 2).sum())


@register_metric("localisation_auc", family="localisation", aliases=("auroc",), papers=("fawcett2006introduction",))
@dataclass
class LocalisationAUC(Localisation):
    r"""Area under the ROC curve: how often a pixel of the region is above one outside, equal values being half.

    .. math:: \Pr_{p \in R,\, q \notin R}[a_p > a_q] + \frac{1}{2} \Pr[a_p = a_q]

    Parameters
    ----------
    explain_class, score_class, region, interpolation
        See `Localisation`.

    Notes
    -----
    A constant map, or chance, has 0.5. No score where the region is everything. Cost: no forwards.

    References
    ----------
    Fawcett, "An Introduction to ROC Analysis", 2006.

    Examples
    --------
    >>> vt.get_metric("auroc").spec
    'localisation_auc'
    """

    def measure(self, located: LocatedMap) -> float:
        hits, sizes = tie_groups(located.values, located.inside)
        misses = sizes - hits
        below = misses.sum() - np.cumsum(misses)
        if not misses.sum():
            return float("nan")
        return float((hits * (below + misses / 2)).sum() / (hits.sum() * misses.sum()))
