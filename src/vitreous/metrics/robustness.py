"""Noisy copies of an image, as values that metrics ask for: equal ones are made and explained once for all of them.

Robustness: how far the map moves when the image hardly does.

The noisy copies ``x'`` have every value moved by U[-radius, radius] in normalised space; they belong to the image, and
all methods and metrics get the same ones. ``Φ`` is the map as it is, on its own grid. A map of a noisy copy that is not
finite leaves its image without a score. To be stable is not to be right: a constant map never moves.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.curves import Array
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.requests import Images, ImageShape, Measured, Reattribution, Request
from vitreous.metrics.similarity import spearman
from vitreous.models import Preprocess, VisionModel
from vitreous.registry import check_at_least
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "AverageSensitivity",
    "GaussianNoise",
    "LocalLipschitz",
    "MaxSensitivity",
    "RankSensitivity",
    "RelativeInputStability",
    "RelativeOutputStability",
    "RelativeRepresentationStability",
    "UniformNoise",
    "gaussian_copies",
    "uniform_copies",
]


@dataclass(frozen=True)
class UniformNoise:
    """Copies with every value moved by U[-radius, radius], in the model's normalised space."""

    count: int
    radius: float

    def __call__(self, images: Tensor, preprocess: Preprocess, draws: PRNGKey) -> Tensor:
        drawn = [draws.at(copy).uniform(*images.shape[1:]) for copy in range(self.count)]
        return images[:, None] + self.radius * (2 * torch.stack(drawn, dim=1) - 1).to(images)


@dataclass(frozen=True)
class GaussianNoise:
    """Copies with normal noise whose deviation is ``level`` times the range of the image's values."""

    count: int
    level: float

    def __call__(self, images: Tensor, preprocess: Preprocess, draws: PRNGKey) -> Tensor:
        drawn = [draws.at(copy).normal(*images.shape[1:]) for copy in range(self.count)]
        flat = images.flatten(1)
        deviation = self.level * (flat.amax(dim=1) - flat.amin(dim=1)).view(-1, 1, 1, 1, 1)
        return images[:, None] + deviation * torch.stack(drawn, dim=1).to(images)


def uniform_copies(count: int, radius: float) -> Images:
    """Return the noisy copies that all metrics of robustness share."""
    return Images("uniform noise", UniformNoise(count, radius), count)


def gaussian_copies(count: int, level: float) -> Images:
    """Return the noisy copies that smoothed maps are averaged over."""
    return Images("normal noise", GaussianNoise(count, level), count)


_LEAST = 1e-6
"""What stands for a zero below a fraction bar, in the definitions of relative stability."""


@dataclass
class _Noisy(Metric):
    """Shared by all: noisy copies, and their maps."""

    higher_is_better = False
    samples: int = 10
    radius: float = 0.02
    unchanged: bool = False

    def check(self) -> None:
        check_at_least("samples", self.samples, 1)
        check_at_least("radius", self.radius, 0)

    @property
    def _copies(self) -> Images:
        return uniform_copies(self.samples, self.radius)

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [Reattribution(self._copies), *([self._copies] if self.unchanged else [])]

    def _maps(self, answers: Evaluation) -> tuple[Array, Array]:
        """Return the map ``[B, 1, n]`` and those of the noisy copies ``[B, samples, n]``."""
        own, noisy = (
            answers.values(self.explain_class),
            answers.explained(Reattribution(self._copies), self.explain_class),
        )
        noisy = noisy.astype(np.float64).reshape(*noisy.shape[:2], -1)
        noisy[~np.isfinite(noisy).all(axis=2)] = np.nan
        return own.reshape(len(own), 1, -1), noisy

    def _over(self, answers: Evaluation, moved: Array, worst: bool) -> Array:
        """Return the largest or mean of ``[B, samples]``, of copies that leave the prediction as it is if asked."""
        lost = np.isnan(moved).any(axis=1)
        if self.unchanged:
            moved = np.where(answers.correct(self._copies, self.explain_class, "pred") > 0, moved, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of images without any such copy: NaN is meant
            found = (np.nanmax if worst else np.nanmean)(moved, axis=1)
        return np.where(lost, np.nan, found)


@dataclass
class _Sensitivity(_Noisy):
    """Shared by what measures the distance of maps."""

    standardise: bool = False

    def _moved(self, answers: Evaluation) -> tuple[Array, Array]:
        """Return how far the maps of the copies are away ``[B, samples]``, and how large the map is ``[B]``."""
        own, noisy = self._maps(answers)
        if self.standardise:
            own, noisy = _standardised(own), _standardised(noisy)
        return np.linalg.norm(noisy - own, axis=2), np.linalg.norm(own, axis=2)

    def _relative(self, answers: Evaluation) -> Array:
        moved, size = self._moved(answers)
        return moved / np.where(size == 0, 1, size)


_QUANTUS = {"samples": 200, "radius": 0.2}


@register_metric(
    "max_sensitivity",
    family="robustness",
    papers=("yeh2019fidelity", "englebert2023explaining"),
    presets={"tis": {"explain_class": "label"}, "quantus": _QUANTUS},
)
@dataclass
class MaxSensitivity(_Sensitivity):
    """How far the map moves at most under noise: ``max_j |Φ(x'_j) - Φ(x)| / |Φ(x)|``, divided by 1 for a zero map.

    The lower the more stable. A scaled map has the same score, a shifted one has not: maps with a large offset look
    stable whatever their structure, so ``standardise`` takes mean and deviation out of each map first (a constant one
    becomes zero). ``unchanged`` leaves out copies with another prediction. The maximum grows with ``samples``: compare
    equal ones. ``@tis`` explains the true class; ``@quantus`` has 200 copies of radius 0.2. Cost: ``samples``
    explanations per map.
    """

    def score(self, answers: Evaluation) -> Array:
        return self._over(answers, self._relative(answers), worst=True)


@register_metric("average_sensitivity", family="robustness", papers=("yeh2019fidelity",), presets={"quantus": _QUANTUS})
@dataclass
class AverageSensitivity(_Sensitivity):
    """How far the map moves on average under noise: ``mean_j |Φ(x'_j) - Φ(x)| / |Φ(x)|``.

    As ``max_sensitivity``, with the mean, which does not grow with ``samples``. Cost: nothing beside it.
    """

    def score(self, answers: Evaluation) -> Array:
        return self._over(answers, self._relative(answers), worst=False)


@register_metric("rank_sensitivity", family="robustness", builds_on=("yeh2019fidelity",))
@dataclass
class RankSensitivity(_Noisy):
    """How far the order of the map moves under noise: ``1 - mean_j Spearman(Φ(x'_j), Φ(x))``, from 0 to 2.

    Neither scale nor offset of a map plays a part. The lower the more stable; a constant map has no order and scores 1.
    Cost: nothing beside ``max_sensitivity``.
    """

    def score(self, answers: Evaluation) -> Array:
        own, noisy = self._maps(answers)
        found = [1 - spearman(own, noisy[:, [copy]]) for copy in range(self.samples)]
        lost = np.isnan(noisy).any(axis=2) | np.isnan(own).any(axis=2)
        return self._over(answers, np.where(lost, np.nan, np.stack(found, axis=1)), worst=False)


@dataclass(frozen=True)
class InputDistance:
    """``|x' - x|``; relative to the image, each value divided by the image's own."""

    relative: bool = False

    def __call__(self, model: VisionModel, images: Tensor, made: Tensor) -> Tensor:
        moved = made.double() - images[:, None].double()
        found: Tensor = (moved / _not_zero(images[:, None].double()) if self.relative else moved).flatten(2).norm(dim=2)
        return found


@register_metric("local_lipschitz", family="robustness", papers=("alvarezmelis2018robustness",))
@dataclass
class LocalLipschitz(_Sensitivity):
    """How fast the map moves with the image, at most: ``max_j |Φ(x'_j) - Φ(x)| / |x'_j - x|``.

    The scale of the map is in it: compare methods with ``standardise=true`` only. A copy that is the image itself
    (``radius=0``) counts 0. Cost: nothing beside ``max_sensitivity``.
    """

    @property
    def _distance(self) -> Measured:
        return Measured(self._copies, InputDistance())

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [*super().requests(image_shape), self._distance]

    def score(self, answers: Evaluation) -> Array:
        distance = answers.measured(self._distance)
        moved, _ = self._moved(answers)
        return self._over(answers, moved / np.where(distance > 0, distance, np.inf), worst=True)


@dataclass(frozen=True)
class LogitDistance:
    """``|f(x') - f(x)|`` of all logits."""

    def __call__(self, model: VisionModel, images: Tensor, made: Tensor) -> Tensor:
        logits = [model.logits(_with_own(own, copies)).double() for own, copies in zip(images, made, strict=True)]
        return torch.stack([(logit[1:] - logit[0]).norm(dim=1) for logit in logits])


@dataclass(frozen=True)
class TokenDistance:
    """``|(L(x') - L(x)) / L(x)|`` of all tokens L as they leave the last block, prefix tokens included."""

    def __call__(self, model: VisionModel, images: Tensor, made: Tensor) -> Tensor:
        seen, found = model.shared_copy(), []
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            for own, copies in zip(images, made, strict=True):
                tokens = seen.forward_blocks(seen.embed(seen.cast(_with_own(own, copies)))).double()
                found.append(((tokens[1:] - tokens[:1]) / _not_zero(tokens[:1])).flatten(1).norm(dim=1))
        return torch.stack(found)


@dataclass
class _RelativeStability(_Noisy):
    """Shared by the three: the relative change of the map per change of something else."""

    unchanged: bool = True
    measure: ClassVar[InputDistance | LogitDistance | TokenDistance]

    @property
    def _distance(self) -> Measured:
        return Measured(self._copies, self.measure)

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [*super().requests(image_shape), self._distance]

    def score(self, answers: Evaluation) -> Array:
        own, noisy = self._maps(answers)
        moved = np.linalg.norm((noisy - own) / np.where(own == 0, _LEAST, own), axis=2)
        return self._over(answers, moved / np.maximum(answers.measured(self._distance), _LEAST), worst=True)


@register_metric("relative_input_stability", family="robustness", aliases=("ris",), papers=("agarwal2022rethinking",))
@dataclass
class RelativeInputStability(_RelativeStability):
    """Relative change of the map per relative change of the image, at most.

    ``max_j |(Φ(x'_j) - Φ(x)) / Φ(x)| / max(|(x'_j - x) / x|, 1e-6)``: fractions are taken value by value, a zero below
    the bar is 1e-6, norms are Euclidean. Only copies that leave the prediction as it is count (``unchanged``); without
    any there is no score. One value of the map near zero rules the norm, so scores span many powers of ten. The lower
    the more stable. Cost: ``samples`` explanations per map, and ``samples`` forwards that all methods share.
    """

    measure = InputDistance(relative=True)


@register_metric("relative_output_stability", family="robustness", aliases=("ros",), papers=("agarwal2022rethinking",))
@dataclass
class RelativeOutputStability(_RelativeStability):
    """Relative change of the map per change of the logits, at most.

    ``max_j |(Φ(x'_j) - Φ(x)) / Φ(x)| / max(|f(x'_j) - f(x)|, 1e-6)`` over all logits f, which are not divided by their
    own; all else as in ``relative_input_stability``. Cost: as there, and ``samples + 1`` forwards more.
    """

    measure = LogitDistance()


@register_metric(
    "relative_representation_stability", family="robustness", aliases=("rrs",), papers=("agarwal2022rethinking",)
)
@dataclass
class RelativeRepresentationStability(_RelativeStability):
    """Relative change of the map per relative change of what the model makes of the image, at most.

    ``max_j |(Φ(x'_j) - Φ(x)) / Φ(x)| / max(|(L(x'_j) - L(x)) / L(x)|, 1e-6)``, L all tokens as they leave the last
    block; all else as in ``relative_input_stability``. Cost: as there, and ``samples + 1`` forwards more.
    """

    measure = TokenDistance()


def _standardised(maps: Array) -> Array:
    """Return maps ``[..., n]`` with mean 0 and deviation 1; zero where a map is constant."""
    flat = maps.max(axis=-1, keepdims=True) == maps.min(axis=-1, keepdims=True)
    deviation = maps.std(axis=-1, keepdims=True)
    return np.where(flat, 0, (maps - maps.mean(axis=-1, keepdims=True)) / np.where(deviation > 0, deviation, 1))


def _not_zero(values: Tensor) -> Tensor:
    return torch.where(values == 0, _LEAST, values)


def _with_own(own: Tensor, copies: Tensor) -> Tensor:
    """Return the image and its copies in one batch: a map of the noise, not of how a batch is cut."""
    return torch.cat([own[None], copies])
