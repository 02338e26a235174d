"""Faithfulness by random subsets: is what the model loses what the map says it should?

Random subsets ``S`` of the patches are removed, drawn from the image's content. They know no map, so all methods share
their forwards, and all metrics that ask for subsets of the same size. ``f(x) - f(x \\ S)`` is what the model loses, and
the sum of the map over ``S`` what it should lose; pixel maps are summed into patches first. With ``unit=token`` the
patches leave the sequence instead of turning into the substrate.

A correlation is undefined where all sums, or all losses, are equal: it counts as 0 (``undefined=zero``), or leaves the
image without a score (``undefined=exclude``). Subsets of one size have equal sums on any constant map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitreous.errors import SpecError, VitreousError
from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.baselines import DROP, SUBSTRATES, baseline_images, check_baseline
from vitreous.metrics.curves import Array, Curve
from vitreous.metrics.ranking import patched
from vitreous.metrics.requests import Images, ImageShape, Masks, Measured, RandomMasks, Request
from vitreous.metrics.similarity import dead, pearson, spearman
from vitreous.models import Preprocess, VisionModel
from vitreous.registry import check_at_least, check_choice
from vitreous.tracing.prng import PRNGKey

if TYPE_CHECKING:
    from vitreous.metrics.evaluation import Evaluation

__all__ = ["FaithfulnessCorrelation", "Infidelity", "MuFidelity", "RandomCells", "SensitivityN"]

_SUBSTRATE = "mean_channel"
_UNDEFINED = ("zero", "exclude")


@dataclass(frozen=True)
class RandomCells:
    """Masks in which every cell of a grid goes with the same probability, drawn for every image by its content."""

    count: int
    probability: float
    cells: tuple[int, int]

    def __call__(self, draws: PRNGKey, image_shape: ImageShape) -> Tensor:
        return draws.uniform(self.count, *self.cells) < self.probability


@dataclass(frozen=True)
class _Bare:
    """Makes the bare substrate of an image, one that depends on the image alone."""

    baseline: str

    def __call__(self, inputs: Tensor, preprocess: Preprocess, draws: PRNGKey) -> Tensor:
        return baseline_images(self.baseline, inputs, preprocess, 0).expand_as(inputs)[:, None]


def _removed(model: VisionModel, inputs: Tensor, made: Tensor) -> Tensor:
    """Return what removing each pixel takes away, the mean over channels, ``[B, H * W]``."""
    return (inputs - made[:, 0]).mean(dim=1).flatten(1)


@dataclass
class _Subsets(Metric):
    """Shared by all: what the model loses under some masks, in logits or probabilities."""

    subsets: int = 128
    baseline: str = _SUBSTRATE
    output: str = "logit"

    def check(self) -> None:
        check_at_least("subsets", self.subsets, 2)
        check_baseline(self.baseline)
        check_choice("output", self.output, ("logit", "probability"))

    def _losses(self, answers: Evaluation, need: Masks) -> Array:
        """Return ``f(x) - f(x without each mask)``, ``[B, count]``."""
        if self.output == "logit":
            clean, left = (
                answers.clean_logit(self.score_class, self.explain_class),
                answers.logit(need, self.explain_class, self.score_class),
            )
        else:
            clean = np.exp(answers.clean(self.score_class, self.explain_class))
            left = np.exp(answers.log_probability(need, self.explain_class, self.score_class))
        return np.asarray(clean[:, None] - left)


@dataclass
class _Patches(_Subsets):
    """Shared by subsets of patches, each of an exact size."""

    unit: str = "pixel"

    def check(self) -> None:
        super().check()
        check_choice("unit", self.unit, ("pixel", "token"))
        if self.unit == "token" and self.baseline != _SUBSTRATE:
            raise SpecError(f"unit=token paints nothing: baseline={self.baseline} has no meaning")

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return self._masks(image_shape)

    def _sizes(self, patches: int) -> Sequence[float]:
        """Return how many patches the subsets hold."""
        raise VitreousError(f"{self.info.name} must say how large its subsets are")

    def _masks(self, image_shape: ImageShape) -> list[Masks]:
        """Return one need for each size, the smallest first."""
        patches, baseline = image_shape.size("token"), DROP if self.unit == "token" else self.baseline
        counts = sorted({min(max(1, round(size)), patches - 1) for size in self._sizes(patches)})
        return [Masks(baseline, RandomMasks(self.subsets, k / patches), self.subsets, self.unit) for k in counts]


@dataclass
class _Correlation(_Patches):
    """Shared by both Pearson correlations: one for each size, and their mean."""

    undefined: str = "zero"
    x_axis = "share of patches in a subset"

    def check(self) -> None:
        super().check()
        check_choice("undefined", self.undefined, _UNDEFINED)

    def score(self, answers: Evaluation) -> Array:
        return np.asarray(self.curves(answers)["correlation"].y.mean(axis=1))

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        needs = self._masks(answers.image_shape)
        values = answers.values(self.explain_class, "token")
        values = values - values.min(axis=(1, 2), keepdims=True)  # at one size no difference, but no rounding either
        found = [
            _defined(pearson, _sums(answers, need, values), self._losses(answers, need), self.undefined)
            for need in needs
        ]
        shares = np.array([answers.masks(need)[0, 0].mean() for need in needs])
        return {"correlation": Curve(shares, np.stack(found, axis=1))}


@register_metric("infidelity", family="faithfulness", papers=("yeh2019fidelity",))
@dataclass
class Infidelity(_Patches):
    """Mean over subsets of ``(sum of the map over S - loss)^2``, the map scaled as fits best.

    ``min_b E[(b s - d)^2] = E[d^2] - E[s d]^2 / E[s^2]`` with sums s and losses d; ``normalise=false`` takes the map as
    it is (b = 1), and grows with the square of its values. A zero map has ``E[d^2]``. ``reading=removed``: the map
    holds contributions, so ``I^T a`` is their sum over ``S``, and ``a = w (x - b)`` of a linear model scores 0.
    ``reading=product``: it holds slopes, and ``I^T a`` sums ``a`` times the mean over channels of ``x - b``. Lower is
    better. Cost: ``subsets`` forwards for each size and image, none per map.
    """

    higher_is_better = False
    sizes: str = "5,10,20,40"
    normalise: bool = True
    reading: str = "removed"

    def check(self) -> None:
        super().check()
        _percentages(self.sizes)
        check_choice("reading", self.reading, ("removed", "product"))
        known = SUBSTRATES[self.baseline]
        if self.reading == "product" and (self.unit == "token" or known.random or known.imputes):
            what = "unit=token" if self.unit == "token" else f"baseline={self.baseline}"
            raise SpecError(f"reading=product needs the difference of two pictures, and {what} has none to offer")

    def _sizes(self, patches: int) -> Sequence[float]:
        return [share * patches / 100 for share in _percentages(self.sizes)]

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        masks = super().requests(image_shape)
        return masks if self.reading == "removed" else [*masks, self._difference()]

    def score(self, answers: Evaluation) -> Array:
        values, image_shape = answers.values(self.explain_class, "token"), answers.image_shape
        if self.reading == "product":
            taken = answers.measured(self._difference()).reshape(-1, *image_shape.pixels)
            values = patched(answers.values(self.explain_class, "pixel") * taken, image_shape.tokens)
        needs = self._masks(image_shape)
        sums = np.concatenate([_sums(answers, need, values) for need in needs], axis=1)
        losses = np.concatenate([self._losses(answers, need) for need in needs], axis=1)
        if not self.normalise:
            return np.asarray(((sums - losses) ** 2).mean(axis=1))
        squares, products = (sums**2).mean(axis=1), (sums * losses).mean(axis=1)
        scale = np.divide(products, squares, out=np.zeros(len(sums)), where=squares != 0)
        return np.asarray(((scale[:, None] * sums - losses) ** 2).mean(axis=1))

    def _difference(self) -> Measured:
        return Measured(Images(f"bare {self.baseline}", _Bare(self.baseline), 1), _removed)


@register_metric("faithfulness_correlation", family="faithfulness", papers=("bhatt2020evaluating",))
@dataclass
class FaithfulnessCorrelation(_Correlation):
    """Pearson correlation, over subsets of one size, of the map's sum and the loss; the mean over the sizes.

    Sizes are percentages of the patches. Bhatt et al. take one size, on features of any kind; across sizes the number
    removed would correlate by itself. Higher is better, from -1 to 1. Cost: ``subsets`` forwards for each size and
    image, none per map; those of ``infidelity``.
    """

    output: str = "probability"
    sizes: str = "5,10,20,40"

    def check(self) -> None:
        super().check()
        _percentages(self.sizes)

    def _sizes(self, patches: int) -> Sequence[float]:
        return [share * patches / 100 for share in _percentages(self.sizes)]


@register_metric("sensitivity_n", family="faithfulness", papers=("ancona2018towards",))
@dataclass
class SensitivityN(_Correlation):
    """Pearson correlation of the map's sum over ``n`` patches and the loss, as ``n`` grows; the mean of the curve.

    ``steps`` sizes from 1 to 80 % of the patches in equal ratios, 100 subsets each. A linear model's own contributions
    score 1 at every ``n``. Higher is better. Cost: ``steps * subsets`` forwards per image, none per map.
    """

    subsets: int = 100
    steps: int = 10

    def check(self) -> None:
        super().check()
        check_at_least("steps", self.steps, 1)

    def _sizes(self, patches: int) -> Sequence[float]:
        return [float(each) for each in np.geomspace(1, max(1.0, 0.8 * patches), self.steps)]


@register_metric("mu_fidelity", family="faithfulness", papers=("fel2022xplique", "bhatt2020evaluating"))
@dataclass
class MuFidelity(_Subsets):
    """Spearman correlation of the map's sum over random cells and the loss, on a grid of 9 x 9 over the picture.

    Every cell goes with probability ``share``, so the number of cells varies and counts: a constant map scores what
    their number does, a zero map 0. Maps are enlarged to the pixels and summed into cells. Higher is better. Cost:
    ``subsets`` forwards per image, none per map.
    """

    subsets: int = 200
    baseline: str = "zero_norm"
    cells: int = 9
    share: float = 0.2
    undefined: str = "zero"

    def check(self) -> None:
        super().check()
        check_choice("undefined", self.undefined, _UNDEFINED)
        check_at_least("cells", self.cells, 2)
        if not 0 < self.share < 1:
            raise SpecError(f"share={self.share:g} must lie between 0 and 1")

    def requests(self, image_shape: ImageShape) -> Sequence[Masks]:
        draw = RandomCells(self.subsets, self.share, (self.cells, self.cells))
        return [Masks(self.baseline, draw, self.subsets)]

    def score(self, answers: Evaluation) -> Array:
        (need,) = self.requests(answers.image_shape)
        fine = answers.values(self.explain_class, "pixel")
        down, across = (_membership(side, self.cells) for side in answers.image_shape.pixels)
        values = down @ fine @ across.T
        size = np.abs(values).sum(axis=(1, 2), keepdims=True)
        values = np.divide(values, size, out=np.zeros_like(values), where=size != 0)
        sums = _sums(answers, need, values).round(12)  # the order of summation makes no ranks
        return _defined(spearman, sums, self._losses(answers, need), self.undefined)


def _percentages(sizes: str) -> list[float]:
    """Return the shares that a text such as ``"5,10"`` names."""
    try:
        shares = [float(word) for word in sizes.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 100 for share in shares):
        raise SpecError(f"sizes={sizes!r} must be percentages between 0 and 100, such as '5,10,20,40'")
    return shares


def _sums(answers: Evaluation, need: Masks, values: Array) -> Array:
    """Return the sum over every mask ``[B, count]`` of values ``[B, h, w]`` on its grid."""
    masks = answers.masks(need)
    return np.asarray(masks.reshape(*masks.shape[:2], -1) @ values.reshape(len(values), -1, 1))[..., 0]


def _membership(pixels: int, cells: int) -> Array:
    """Return which cell every pixel of a side belongs to, ``[cells, pixels]``."""
    owner = (2 * np.arange(pixels) + 1) * cells // (2 * pixels)
    return np.asarray(owner == np.arange(cells)[:, None], np.float64)


def _defined(formula: Callable[[Array, Array], Array], sums: Array, losses: Array, undefined: str) -> Array:
    """Return a correlation for each image; 0 or NaN where it is undefined, NaN where a map was left out."""
    one, other = sums[..., None], losses[..., None]
    found: Any = formula(one, other)
    if undefined == "exclude":
        found = np.where(dead(one) | dead(other), nan, found)
    return np.where(np.isnan(sums).any(axis=1), nan, found)
