r"""Faithfulness by subsets: is what the model loses what the map says it should?

Random subsets ``S`` of the patches are removed, drawn from the image's content. They do not depend on a map, so all
methods share their forwards, and all metrics that request subsets of the same size. ``d = f(x) - f(x \ S)`` is what
the model loses, and ``s``, the sum of the map over ``S``, what it should lose; pixel maps are summed into patches
first. With ``unit=token`` the patches leave the sequence instead of turning into the baseline. Annotated parts of an
image are subsets too.

A correlation is undefined where all sums, or all losses, are equal: it counts as 0 (``undefined=zero``), or leaves the
image without a score (``undefined=exclude``). Subsets of one size have equal sums on any constant map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vitreous.errors import SpecError
from vitreous.metrics.base import Metric, baseline_name, register_metric
from vitreous.metrics.baselines import BASELINES, DROP
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array, Curve, patched, ratio
from vitreous.metrics.requests import (
    AnnotationRequest,
    Images,
    ImageShape,
    Masks,
    Measured,
    RandomMasks,
    Request,
    WithoutParts,
)
from vitreous.metrics.similarity import dead, pearson, spearman
from vitreous.models import Preprocess, VisionModel
from vitreous.registry import choice, number
from vitreous.tracing.prng import PRNGKey

_BASELINE = "mean_channel"


@dataclass(frozen=True)
class RandomCells:
    """Masks in which every cell of a grid is removed with the same probability, drawn by the image's content."""

    n: int
    probability: float
    cells: tuple[int, int]

    def __call__(self, key: PRNGKey, image_shape: ImageShape) -> Tensor:
        return key.uniform(self.n, *self.cells) < self.probability


@dataclass(frozen=True)
class _FullyRemoved:
    """Makes the baseline of an image, one that depends on the image alone."""

    baseline: str

    def __call__(self, inputs: Tensor, preprocess: Preprocess, key: PRNGKey) -> Tensor:
        return BASELINES[self.baseline].make(inputs, preprocess, 0).expand_as(inputs)[:, None]


def _difference(model: VisionModel, inputs: Tensor, others: Tensor) -> Tensor:
    """Return what removing each pixel takes away, the mean over channels, ``[B, H * W]``."""
    return (inputs - others[:, 0]).mean(dim=1).flatten(1)


@dataclass
class _Patches(Metric):
    """Shared by subsets of patches, each of an exact size."""

    subsets: int = number(128, "[2, inf)")
    baseline: str = baseline_name(_BASELINE)
    output: str = choice("logit", "probability")
    unit: str = choice("pixel", "token")

    def check(self) -> None:
        if self.unit == "token" and self.baseline != _BASELINE:
            raise SpecError(f"unit=token replaces no pixel: baseline={self.baseline} has no meaning")

    def num_patches(self, patches: int) -> Sequence[float]:
        """Return how many patches the subsets hold."""
        raise NotImplementedError

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        """Return one request for each size, the smallest first."""
        patches, removed = image_shape.num_tokens, DROP if self.unit == "token" else self.baseline
        sizes = sorted({min(max(1, round(size)), patches - 1) for size in self.num_patches(patches)})
        return {
            f"{size} patches": Masks(removed, RandomMasks(self.subsets, size / patches), self.subsets, self.unit)
            for size in sizes
        }


@dataclass
class _Correlation(_Patches):
    """Shared by both Pearson correlations: one for each size, and their mean."""

    undefined: str = choice("zero", "exclude")
    x_axis = "share of patches in a subset"

    def score(self, evaluation: Evaluation) -> Array:
        return np.asarray(self.curves(evaluation)["correlation"].y.mean(axis=1))

    def curves(self, evaluation: Evaluation) -> Mapping[str, Curve]:
        values = evaluation.maps("token")
        values = values - values.min(axis=(1, 2), keepdims=True)  # at one size no difference, but no rounding either
        correlations = [
            _defined(pearson, _sums(evaluation, name, values), evaluation.loss(name, self.output), self.undefined)
            for name in evaluation.requests
        ]
        shares = np.array([evaluation.masks(name)[0, 0].mean() for name in evaluation.requests])
        return {"correlation": Curve(shares, np.stack(correlations, axis=1))}


@dataclass
class _SizedPatches(_Patches):
    """Shared by those whose sizes are percentages of the patches."""

    sizes: str = "5,10,20,40"

    def check(self) -> None:
        super().check()
        _percentages(self.sizes)

    def num_patches(self, patches: int) -> Sequence[float]:
        return [share * patches / 100 for share in _percentages(self.sizes)]


@register_metric("infidelity", family="faithfulness", papers=("yeh2019fidelity",))
@dataclass
class Infidelity(_SizedPatches):
    r"""Mean squared difference of what the map says a subset is worth and what the model loses without it.

    .. math:: \min_\beta \mathbb{E}_S\big[(\beta s - d)^2\big]
        = \mathbb{E}[d^2] - \frac{\mathbb{E}[s d]^2}{\mathbb{E}[s^2]}

    Parameters
    ----------
    subsets : int, default 128
        How many subsets of each size are drawn.
    baseline : str, default "mean_channel"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    output : str, default "logit"
        Of what the model loses: the scored class's logit, or its ``"probability"``.
    unit : str, default "pixel"
        Remove the patches' pixels, or with ``"token"`` the tokens from the sequence.
    sizes : str, default "5,10,20,40"
        Sizes of the subsets, in percent of the patches.
    normalise : bool, default True
        Scale the map as fits best; otherwise ``beta`` is 1, and the score grows with the square of the map's values.
    reading : str, default "removed"
        The map holds contributions, so that ``s`` is their sum over ``S`` and ``a = w (x - b)`` of a linear model
        scores 0; with ``"product"`` it holds slopes, and ``s`` sums ``a`` times the mean over channels of ``x - b``.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. A zero map has ``E[d^2]``. Cost: ``subsets`` forwards for each size and image, none per map.

    References
    ----------
    Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", 2019.

    Examples
    --------
    >>> metric = vt.get_metric("infidelity(subsets=16)")
    >>> metric.num_forwards(), metric.num_shared_forwards()
    (0, 64)
    """

    higher_is_better = False
    normalise: bool = True
    reading: str = choice("removed", "product")

    def check(self) -> None:
        super().check()
        random = BASELINES[self.baseline].random or BASELINES[self.baseline].imputes
        if self.reading == "product" and (self.unit == "token" or random):
            setting = "unit=token" if self.unit == "token" else f"baseline={self.baseline}"
            raise SpecError(f"reading=product needs the difference of two images, and {setting} has none to offer")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        masks = super().requests(image_shape)
        if self.reading == "removed":
            return masks
        without_pixels = Images(f"bare {self.baseline}", _FullyRemoved(self.baseline), 1)
        return {**masks, "difference": Measured(without_pixels, _difference)}

    def score(self, evaluation: Evaluation) -> Array:
        values, image_shape = evaluation.maps("token"), evaluation.image_shape
        if self.reading == "product":
            difference = evaluation.numbers("difference").reshape(-1, *image_shape.pixels)
            values = patched(evaluation.maps("pixel") * difference, image_shape.tokens)
        names = [name for name in evaluation.requests if name != "difference"]
        sums = np.concatenate([_sums(evaluation, name, values) for name in names], axis=1)
        losses = np.concatenate([evaluation.loss(name, self.output) for name in names], axis=1)
        if not self.normalise:
            return np.asarray(((sums - losses) ** 2).mean(axis=1))
        squares, products = (sums**2).mean(axis=1), (sums * losses).mean(axis=1)
        scale = np.divide(products, squares, out=np.zeros(len(sums)), where=squares != 0)
        return np.asarray(((scale[:, None] * sums - losses) ** 2).mean(axis=1))


@register_metric("faithfulness_correlation", family="faithfulness", papers=("bhatt2020evaluating",))
@dataclass
class FaithfulnessCorrelation(_SizedPatches, _Correlation):
    r"""Pearson correlation, over subsets of one size, of the map's sum and the loss; the mean over the sizes.

    .. math:: \mathrm{corr}_{|S| = k}\Big(\sum_{i \in S} a_i,\; P(x) - P(x \setminus S)\Big)

    Parameters
    ----------
    subsets, baseline
        As for `Infidelity`.
    output : str, default "probability"
        Of what the model loses: the scored class's probability, or its ``"logit"``.
    unit : str, default "pixel"
        As for `Infidelity`.
    undefined : str, default "zero"
        What a correlation is where all sums or losses are equal: 0, or with ``"exclude"`` no score.
    sizes : str, default "5,10,20,40"
        As for `Infidelity`.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    From -1 to 1. Bhatt et al. take one size, on features of any kind; across sizes the number removed would correlate
    by itself. Cost: ``subsets`` forwards for each size and image, none per map; those of ``infidelity``.

    References
    ----------
    Bhatt, Weller and Moura, "Evaluating and Aggregating Feature-based Model Explanations", 2020.

    Examples
    --------
    >>> vt.get_metric("faithfulness_correlation(sizes='20')").num_shared_forwards()
    128
    """

    output: str = choice("probability", "logit")


@register_metric("sensitivity_n", family="faithfulness", papers=("ancona2018towards",))
@dataclass
class SensitivityN(_Correlation):
    r"""Pearson correlation of the map's sum over ``n`` patches and the loss, the mean over growing ``n``.

    .. math:: \mathrm{corr}_{|S| = n}\Big(\sum_{i \in S} a_i,\; f(x) - f(x \setminus S)\Big)

    Parameters
    ----------
    subsets : int, default 100
        How many subsets of each size are drawn.
    baseline, output, unit
        As for `Infidelity`.
    undefined : str, default "zero"
        As for `FaithfulnessCorrelation`.
    steps : int, default 10
        How many sizes there are, from 1 to 80 % of the patches in equal ratios.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    From -1 to 1. A linear model's own contributions score 1 at every ``n``. Cost: ``steps * subsets`` forwards per
    image, none per map.

    References
    ----------
    Ancona et al., "Towards better understanding of gradient-based attribution methods for Deep Neural Networks", 2018.

    Examples
    --------
    >>> vt.get_metric("sensitivity_n").num_shared_forwards()
    1000
    """

    subsets: int = number(100, "[2, inf)")
    steps: int = number(10, "[1, inf)")

    def num_patches(self, patches: int) -> Sequence[float]:
        return list(np.geomspace(1, max(1.0, 0.8 * patches), self.steps))


@register_metric("mu_fidelity", family="faithfulness", papers=("fel2022xplique", "bhatt2020evaluating"))
@dataclass
class MuFidelity(Metric):
    r"""Spearman correlation of the map's sum over random cells and the loss.

    .. math:: \rho_S\Big(\sum_{i \in S} a_i,\; f(x) - f(x \setminus S)\Big)

    Parameters
    ----------
    subsets : int, default 200
        How many subsets are drawn.
    baseline : str, default "zero_norm"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    output : str, default "logit"
        As for `Infidelity`.
    cells : int, default 9
        Rows and columns of the grid over the image.
    share : float, default 0.2
        The probability with which every cell is removed.
    undefined : str, default "zero"
        As for `FaithfulnessCorrelation`.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    The number of cells varies and counts: a constant map scores what their number does, a zero map 0. Maps are enlarged
    to the pixels and summed into cells. Cost: ``subsets`` forwards per image, none per map.

    References
    ----------
    Fel et al., "Xplique: A Deep Learning Explainability Toolbox", 2022.

    Examples
    --------
    >>> vt.evaluate(model, images[:1], "ixg", "mu_fidelity(subsets=8)", n_bootstrap=10, controls=False).metrics
    ('mu_fidelity(subsets=8)',)
    """

    subsets: int = number(200, "[2, inf)")
    baseline: str = baseline_name("zero_norm")
    output: str = choice("logit", "probability")
    cells: int = number(9, "[2, inf)")
    share: float = 0.2
    undefined: str = choice("zero", "exclude")

    def check(self) -> None:
        if not 0 < self.share < 1:
            raise SpecError(f"share={self.share:g} must lie between 0 and 1")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        draw = RandomCells(self.subsets, self.share, (self.cells, self.cells))
        return {"cells": Masks(self.baseline, draw, self.subsets)}

    def score(self, evaluation: Evaluation) -> Array:
        rows, columns = (_membership(side, self.cells) for side in evaluation.image_shape.pixels)
        values = rows @ evaluation.maps("pixel") @ columns.T
        size = np.abs(values).sum(axis=(1, 2), keepdims=True)
        values = np.divide(values, size, out=np.zeros_like(values), where=size != 0)
        sums = _sums(evaluation, "cells", values).round(12)  # the order of summation makes no ranks
        return _defined(spearman, sums, evaluation.loss("cells", self.output), self.undefined)


@register_metric("part_correlation", family="ground truth", builds_on=("hesse2023funnybirds",))
@dataclass
class PartCorrelation(Metric):
    r"""Rank correlation of what a map gives to the annotated parts and what the model loses without each of them.

    .. math:: \rho_p\Big(\sum_{i \in p} a_i,\; f(x) - f(x \setminus p)\Big)

    Parameters
    ----------
    baseline : str, default "mean_channel"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    output : str, default "logit"
        Of what the model loses: the scored class's logit, or its ``"log_probability"``.
    least : int, default 3
        How many parts an image must show to have a score.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    0 where the map gives all parts the same. FunnyBirds' single deletion does the same with parts that are rendered
    away. Cost: a forward per part and image, shared by all methods.

    References
    ----------
    Builds on Hesse, Schaub-Meyer and Roth, "FunnyBirds: A Synthetic Vision Dataset for a Part-Based Analysis of
    Explainable AI Methods", 2023.

    Examples
    --------
    >>> vt.get_metric("part_correlation").annotation_kinds
    ('parts',)
    """

    baseline: str = baseline_name("mean_channel")
    output: str = choice("logit", "log_probability")
    least: int = number(3, "[2, inf)")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"parts": WithoutParts(self.baseline)}

    def score(self, evaluation: Evaluation) -> Array:
        maps, losses = evaluation.maps("pixel"), evaluation.loss_without_parts("parts", self.output)
        scores = np.full(len(maps), np.nan)
        for image, (annotation, values, loss) in enumerate(zip(evaluation.annotations, maps, losses, strict=True)):
            if len(loss) >= self.least and not np.isnan(values).any():
                sums = np.array([values[np.asarray(annotation.parts[name], bool)].sum() for name in loss])
                scores[image] = spearman(sums[None, None], np.array(list(loss.values()))[None, None])[0]
        return scores


@register_metric("shortcut", family="ground truth", builds_on=("geirhos2020shortcut",))
@dataclass
class Shortcut(Metric):
    r"""Share of the positive attribution that lies on an annotated part.

    .. math:: \frac{\sum_{p \in \mathrm{part}} \max(0, a_p)}{\sum_p \max(0, a_p)}

    Parameters
    ----------
    part : str, default "marker"
        The name of the part.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Higher: the map shows the part. That is good where the model is known to look there, as ``world-shortcut`` does at
    the marker, and says nothing where it does not look. Ignored pixels count for nothing. A map without positive values
    scores 0; an image without the part, or in which none of it is visible, has no score. Cost: no forwards.

    References
    ----------
    Builds on Geirhos et al., "Shortcut Learning in Deep Neural Networks", 2020.

    Examples
    --------
    >>> vt.get_metric("shortcut").annotation_kinds
    ('parts',)
    """

    part: str = "marker"

    def check(self) -> None:
        if not isinstance(self.part, str) or not self.part.strip():
            raise SpecError(f"part={self.part!r} is not the name of a part")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"parts": AnnotationRequest("parts")}

    def score(self, evaluation: Evaluation) -> Array:
        maps = evaluation.maps("pixel")
        scores = np.full(len(maps), np.nan)
        for image, (annotation, values) in enumerate(zip(evaluation.annotations, maps, strict=True)):
            mask = np.asarray(annotation.parts.get(self.part, False), bool)
            if mask.any() and not np.isnan(values).any():
                mass = np.maximum(values, 0)
                if annotation.ignore is not None:
                    mass = np.where(annotation.ignore, 0, mass)
                scores[image] = ratio(mass[mask].sum(), mass.sum())
        return scores


def _percentages(sizes: str) -> list[float]:
    """Return the shares that a text such as ``"5,10"`` names."""
    try:
        shares = [float(word) for word in sizes.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 100 for share in shares):
        raise SpecError(f"sizes={sizes!r} must be percentages between 0 and 100, such as '5,10,20,40'")
    return shares


def _sums(evaluation: Evaluation, request: str, values: Array) -> Array:
    """Return the sum over every mask ``[B, n]`` of values ``[B, h, w]`` on its grid."""
    masks = evaluation.masks(request)
    return np.asarray(masks.reshape(*masks.shape[:2], -1) @ values.reshape(len(values), -1, 1))[..., 0]


def _membership(pixels: int, cells: int) -> Array:
    """Return which cell every pixel of a side belongs to, ``[cells, pixels]``."""
    cell = (2 * np.arange(pixels) + 1) * cells // (2 * pixels)
    return np.asarray(cell == np.arange(cells)[:, None], np.float64)


def _defined(formula: Callable[[Array, Array], Array], sums: Array, losses: Array, undefined: str) -> Array:
    """Return a correlation for each image; 0 or NaN where it is undefined, NaN where a map was left out."""
    first, second = sums[..., None], losses[..., None]
    is_undefined = np.isnan(sums).any(axis=1)
    if undefined == "exclude":
        is_undefined |= dead(first) | dead(second)
    return np.where(is_undefined, np.nan, formula(first, second))
