"""Robustness: how far the map moves when the image hardly does.

The noisy copies ``x'`` have every value moved by U[-radius, radius] in normalised space; they belong to the image, and
all methods and metrics get the same ones. ``a`` is the map as it is, on its own grid. A map of a noisy copy that is not
finite leaves its image without a score. To be stable is not to be right: a constant map never moves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array
from vitreous.metrics.requests import Images, ImageShape, Measured, Reattribution, Request
from vitreous.metrics.similarity import spearman
from vitreous.models import Preprocess, VisionModel
from vitreous.registry import number
from vitreous.tracing.prng import PRNGKey


@dataclass(frozen=True)
class NoisyCopies:
    """Copies of an image with noise of a ``level`` in the model's normalised space.

    Every value is moved by U[-level, level], or, if ``normal``, by normal noise whose deviation is ``level`` times the
    range of the image's values.
    """

    n: int
    level: float
    normal: bool = False

    def __call__(self, images: Tensor, preprocess: Preprocess, key: PRNGKey) -> Tensor:
        keys = [key.at(copy) for copy in range(self.n)]
        draws = [(key.normal if self.normal else key.uniform)(*images.shape[1:]) for key in keys]
        noise, flat = torch.stack(draws, dim=1), images.flatten(1)
        if not self.normal:
            return images[:, None] + self.level * (2 * noise - 1).to(images)
        deviation = self.level * (flat.amax(dim=1) - flat.amin(dim=1)).view(-1, 1, 1, 1, 1)
        return images[:, None] + deviation * noise.to(images)


def noisy_copies(n: int, level: float, normal: bool = False) -> Images:
    """Return a request for noisy copies."""
    return Images("normal noise" if normal else "uniform noise", NoisyCopies(n, level, normal), n)


_SMALLEST = 1e-6  # what stands for a zero in a denominator, in the definitions of relative stability


def input_distance(model: VisionModel, images: Tensor, copies: Tensor) -> Tensor:
    """Return ``|x' - x|``."""
    return _norm(copies.double() - images[:, None].double())


def relative_input_distance(model: VisionModel, images: Tensor, copies: Tensor) -> Tensor:
    """Return ``|(x' - x) / x|``, each value divided by the image's own."""
    own = images[:, None].double()
    return _norm((copies.double() - own) / _not_zero(own))


def logit_distance(model: VisionModel, images: Tensor, copies: Tensor) -> Tensor:
    """Return ``|f(x') - f(x)|`` of all logits."""
    logits = [model.logits(_with_image(*pair)).double() for pair in zip(images, copies, strict=True)]
    return torch.stack([(logit[1:] - logit[0]).norm(dim=1) for logit in logits])


def token_distance(model: VisionModel, images: Tensor, copies: Tensor) -> Tensor:
    """Return ``|(L(x') - L(x)) / L(x)|`` of all tokens L as they leave the last block, prefix tokens included."""
    shared, distances = model.shared_copy(), []
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        for pair in zip(images, copies, strict=True):
            tokens = shared.forward_blocks(shared.embed(shared.cast(_with_image(*pair)))).double()
            distances.append(((tokens[1:] - tokens[:1]) / _not_zero(tokens[:1])).flatten(1).norm(dim=1))
    return torch.stack(distances)


def _norm(moved: Tensor) -> Tensor:
    norm: Tensor = moved.flatten(2).norm(dim=2)
    return norm


def _not_zero(values: Tensor) -> Tensor:
    return torch.where(values == 0, _SMALLEST, values)


def _with_image(image: Tensor, copies: Tensor) -> Tensor:
    """Return the image and its copies in one batch: a distance of the noise, not of how a batch is cut."""
    return torch.cat([image[None], copies])


@dataclass
class _Noisy(Metric):
    """Shared by all: noisy copies, their maps, and perhaps a distance of each from the image."""

    higher_is_better = False
    samples: int = number(10, "[1, inf)")
    radius: float = number(0.02, "[0, inf)")
    unchanged: bool = False
    is_worst: ClassVar[bool] = True  # whether the largest of all copies counts, or their mean
    measures: ClassVar[tuple[Callable[[VisionModel, Tensor, Tensor], Tensor], ...]] = ()  # distances of copy and image

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        copies = noisy_copies(self.samples, self.radius)
        requests: dict[str, Request] = {"maps": Reattribution(copies)}
        if self.unchanged:
            requests["copies"] = copies
        for measure in self.measures:
            requests["distance"] = Measured(copies, measure)
        return requests

    def score(self, evaluation: Evaluation) -> Array:
        maps = evaluation.maps()
        noisy = evaluation.reattributions("maps").astype(np.float64).reshape(len(maps), self.samples, -1)
        noisy[~np.isfinite(noisy).all(axis=2)] = np.nan
        moved = self.distance(maps.reshape(len(maps), 1, -1), noisy, evaluation)
        lost = np.isnan(moved).any(axis=1)
        if self.unchanged:
            moved = np.where(evaluation.correct("copies", "pred") > 0, moved, np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of images without any such copy: NaN is meant
            scores = (np.nanmax if self.is_worst else np.nanmean)(moved, axis=1)
        return np.where(lost, np.nan, scores)

    def distance(self, maps: Array, noisy: Array, evaluation: Evaluation) -> Array:
        """Return how far the maps of the copies ``[B, samples, n]`` are from the map ``[B, 1, n]``."""
        raise NotImplementedError


@dataclass
class _Sensitivity(_Noisy):
    """Shared by what measures the distance of maps, by default relative to the map's own size."""

    standardise: bool = False

    def distance(self, maps: Array, noisy: Array, evaluation: Evaluation) -> Array:
        if self.standardise:
            maps, noisy = _standardised(maps), _standardised(noisy)
        return self.relative(np.linalg.norm(noisy - maps, axis=2), np.linalg.norm(maps, axis=2), evaluation)

    def relative(self, moved: Array, size: Array, evaluation: Evaluation) -> Array:
        return np.asarray(moved / np.where(size == 0, 1, size))


def _standardised(maps: Array) -> Array:
    """Return maps ``[..., n]`` with mean 0 and deviation 1; zero where a map is constant."""
    flat = maps.max(axis=-1, keepdims=True) == maps.min(axis=-1, keepdims=True)
    deviation = maps.std(axis=-1, keepdims=True)
    return np.where(flat, 0, (maps - maps.mean(axis=-1, keepdims=True)) / np.where(deviation > 0, deviation, 1))


_QUANTUS = {"samples": 200, "radius": 0.2}


@register_metric(
    "max_sensitivity",
    family="robustness",
    papers=("yeh2019fidelity", "englebert2023explaining"),
    presets={"tis": {"explain_class": "label"}, "quantus": _QUANTUS},
)
@dataclass
class MaxSensitivity(_Sensitivity):
    r"""How far the map moves under noise, at most.

    .. math:: \max_j \frac{\lVert a(x'_j) - a(x) \rVert}{\lVert a(x) \rVert}

    Parameters
    ----------
    samples : int, default 10
        How many noisy copies of the image are explained.
    radius : float, default 0.02
        How far each value is moved at most, in normalised space.
    unchanged : bool, default False
        Leave out copies with another prediction.
    standardise : bool, default False
        Take mean and deviation out of each map first; a constant one becomes zero.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is more stable; a zero map is divided by 1. A scaled map has the same score, a shifted one has not: maps with
    a large offset look stable whatever their structure, so standardise. The maximum grows with ``samples``: compare
    equal ones. ``@tis`` explains the true class; ``@quantus`` has 200 copies of radius 0.2. Cost: ``samples``
    explanations per map.

    References
    ----------
    Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", 2019.

    Examples
    --------
    >>> name = "max_sensitivity(samples=2)"
    >>> bool((vt.evaluate(model, images[:2], "ixg", name, n_bootstrap=10, controls=False)["ixg", name] > 0).all())
    True
    """


@register_metric("average_sensitivity", family="robustness", papers=("yeh2019fidelity",), presets={"quantus": _QUANTUS})
@dataclass
class AverageSensitivity(_Sensitivity):
    r"""How far the map moves under noise, on average.

    .. math:: \frac{1}{J} \sum_j \frac{\lVert a(x'_j) - a(x) \rVert}{\lVert a(x) \rVert}

    Parameters
    ----------
    samples, radius, unchanged, standardise, explain_class, score_class
        As for `MaxSensitivity`.

    Notes
    -----
    The mean does not grow with ``samples``. Lower is more stable. Cost: none beside ``max_sensitivity``.

    References
    ----------
    Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", 2019.

    Examples
    --------
    >>> vt.get_metric("average_sensitivity").num_reattributions()
    10
    """

    is_worst = False


@register_metric("rank_sensitivity", family="robustness", builds_on=("yeh2019fidelity",))
@dataclass
class RankSensitivity(_Noisy):
    r"""How far the order of the map moves under noise, from 0 to 2.

    .. math:: 1 - \frac{1}{J} \sum_j \rho\big(a(x'_j), a(x)\big)

    Parameters
    ----------
    samples, radius, unchanged, explain_class, score_class
        As for `MaxSensitivity`.

    Notes
    -----
    Spearman's correlation: neither scale nor offset of a map plays a part. Lower is more stable; a constant map has no
    order and scores 1. Cost: none beside ``max_sensitivity``.

    References
    ----------
    Builds on Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", 2019.

    Examples
    --------
    >>> vt.get_metric("rank_sensitivity").higher_is_better
    False
    """

    is_worst = False

    def distance(self, maps: Array, noisy: Array, evaluation: Evaluation) -> Array:
        distances = [1 - spearman(maps, noisy[:, [copy]]) for copy in range(self.samples)]
        lost = np.isnan(noisy).any(axis=2) | np.isnan(maps).any(axis=2)
        return np.where(lost, np.nan, np.stack(distances, axis=1))


@register_metric("local_lipschitz", family="robustness", papers=("alvarezmelis2018robustness",))
@dataclass
class LocalLipschitz(_Sensitivity):
    r"""How fast the map moves with the image, at most.

    .. math:: \max_j \frac{\lVert a(x'_j) - a(x) \rVert}{\lVert x'_j - x \rVert}

    Parameters
    ----------
    samples, radius, unchanged, standardise, explain_class, score_class
        As for `MaxSensitivity`.

    Notes
    -----
    Lower is more stable. The scale of the map is in it: compare methods with ``standardise=true`` only. A copy that is
    the image itself (``radius=0``) counts 0. Cost: none beside ``max_sensitivity``.

    References
    ----------
    Alvarez-Melis and Jaakkola, "On the Robustness of Interpretability Methods", 2018.

    Examples
    --------
    >>> vt.get_metric("local_lipschitz(standardise=true)").num_reattributions()
    10
    """

    measures = (input_distance,)

    def relative(self, moved: Array, size: Array, evaluation: Evaluation) -> Array:
        distance = evaluation.numbers("distance")
        return np.asarray(moved / np.where(distance > 0, distance, np.inf))


@dataclass
class _RelativeStability(_Noisy):
    """Shared by the three: the relative change of the map per change of something else."""

    unchanged: bool = True

    def distance(self, maps: Array, noisy: Array, evaluation: Evaluation) -> Array:
        moved = np.linalg.norm((noisy - maps) / np.where(maps == 0, _SMALLEST, maps), axis=2)
        return np.asarray(moved / np.maximum(evaluation.numbers("distance"), _SMALLEST))


@register_metric("relative_input_stability", family="robustness", aliases=("ris",), papers=("agarwal2022rethinking",))
@dataclass
class RelativeInputStability(_RelativeStability):
    r"""Relative change of the map per relative change of the image, at most.

    .. math:: \max_j \frac{\lVert (a(x'_j) - a(x)) / a(x) \rVert}{\max(\lVert (x'_j - x) / x \rVert, 10^{-6})}

    Parameters
    ----------
    samples, radius
        As for `MaxSensitivity`.
    unchanged : bool, default True
        Leave out copies with another prediction; without any other there is no score.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is more stable. Fractions are taken value by value, a zero in the denominator is 1e-6, norms are Euclidean.
    One value of the map near zero dominates the norm, so scores span many powers of ten. Cost: ``samples`` explanations
    per map, and ``samples`` forwards that all methods share.

    References
    ----------
    Agarwal et al., "Rethinking Stability for Attribution-based Explanations", 2022.

    Examples
    --------
    >>> metric = vt.get_metric("ris")
    >>> metric.num_reattributions(), metric.num_shared_forwards()
    (10, 10)
    """

    measures = (relative_input_distance,)


@register_metric("relative_output_stability", family="robustness", aliases=("ros",), papers=("agarwal2022rethinking",))
@dataclass
class RelativeOutputStability(_RelativeStability):
    r"""Relative change of the map per change of the logits, at most.

    .. math:: \max_j \frac{\lVert (a(x'_j) - a(x)) / a(x) \rVert}{\max(\lVert f(x'_j) - f(x) \rVert, 10^{-6})}

    Parameters
    ----------
    samples, radius, unchanged, explain_class, score_class
        As for `RelativeInputStability`.

    Notes
    -----
    Over all logits f, which are not divided by their own; all else as in ``relative_input_stability``. Cost: as there,
    and ``samples + 1`` forwards more.

    References
    ----------
    Agarwal et al., "Rethinking Stability for Attribution-based Explanations", 2022.

    Examples
    --------
    >>> vt.get_metric("ros").unchanged
    True
    """

    measures = (logit_distance,)


@register_metric(
    "relative_representation_stability", family="robustness", aliases=("rrs",), papers=("agarwal2022rethinking",)
)
@dataclass
class RelativeRepresentationStability(_RelativeStability):
    r"""Relative change of the map per relative change of the model's representation of the image, at most.

    .. math:: \max_j \frac{\lVert (a(x'_j) - a(x)) / a(x) \rVert}{\max(\lVert (L(x'_j) - L(x)) / L(x) \rVert, 10^{-6})}

    Parameters
    ----------
    samples, radius, unchanged, explain_class, score_class
        As for `RelativeInputStability`.

    Notes
    -----
    L are all tokens as they leave the last block; all else as in ``relative_input_stability``. Cost: as there, and
    ``samples + 1`` forwards more.

    References
    ----------
    Agarwal et al., "Rethinking Stability for Attribution-based Explanations", 2022.

    Examples
    --------
    >>> vt.get_metric("rrs").higher_is_better
    False
    """

    measures = (token_distance,)
