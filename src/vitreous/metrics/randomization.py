"""Randomisation: a map that explains a model must change when the model's weights, or the class, become others.

The stages of a model, counted from its output, are the head, the final norm, every block and the embeddings (see
``vitreous.models.randomize``): its depth + 3. The class that is explained stays the same under random weights. A map
that is constant, or not finite under random weights, is like no other: its similarity is 0, and the second part of
every score counts such maps. These are checks to pass or to fail: a constant map passes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array, Curve
from vitreous.metrics.requests import Images, ImageShape, Reattribution, Request
from vitreous.metrics.robustness import noisy_copies
from vitreous.metrics.similarity import SIMILARITIES, dead, similarity
from vitreous.models import VisionModel
from vitreous.models.randomize import INITS, NORMS, STAGES_AROUND, randomised, stages
from vitreous.registry import choice, number


@dataclass(frozen=True)
class Randomised:
    """The model with some stages randomised, by their number from the output."""

    stages: tuple[int, ...]
    seed: int = 0
    norms: str = "reset"
    init: str = "fixed"

    def __call__(self, model: VisionModel) -> VisionModel:
        names = stages(model)
        return randomised(model, [names[stage] for stage in self.stages], self.seed, norms=self.norms, init=self.init)


@dataclass
class _RandomWeights(Metric):
    """Shared by what explains randomised models."""

    norms: str = choice(*NORMS)
    init: str = choice(*INITS)

    def _under(self, chosen: Sequence[int], seed: int, images: Images | None = None) -> Reattribution:
        return Reattribution(images, Randomised(tuple(sorted(chosen)), seed, self.norms, self.init))


@dataclass
class _Cascade(_RandomWeights):
    """Shared by the two that go through the stages of a model one after the other."""

    similarity: str = choice(*SIMILARITIES)
    order: str = choice("top_down", "bottom_up", "independent")
    seeds: int = number(3, "[1, inf)")
    higher_is_better = False
    x_axis = "share of stages randomised"

    def copies(self) -> Images | None:
        """Return the images whose maps are compared, if not the image itself."""
        return None

    def _cascade(self, image_shape: ImageShape) -> list[list[Reattribution]]:
        """Return for every seed the maps at every step."""
        count = image_shape.depth + STAGES_AROUND
        order = list(range(count))[:: -1 if self.order == "bottom_up" else 1]
        steps = [order[step : step + 1] if self.order == "independent" else order[: step + 1] for step in range(count)]
        return [[self._under(chosen, seed, self.copies()) for chosen in steps] for seed in range(self.seeds)]

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        trained: dict[str, Request] = {} if self.copies() is None else {"trained": Reattribution(self.copies())}
        cascade = enumerate(self._cascade(image_shape))
        return trained | {f"seed {s}, step {j}": again for s, steps in cascade for j, again in enumerate(steps)}

    def trained(self, evaluation: Evaluation) -> Array:
        """Return the maps of the trained model."""
        return evaluation.maps()

    def _similarities(self, evaluation: Evaluation) -> tuple[Array, Array]:
        """Return the similarity at every step ``[seeds, steps, B]``, and which random maps are dead."""

        def compare() -> tuple[Array, Array]:
            trained, cascade = self.trained(evaluation), self._cascade(evaluation.image_shape)
            maps = [[_averaged(evaluation, request) for request in steps] for steps in cascade]
            similarities = [[similarity(self.similarity, trained, random) for random in row] for row in maps]
            return np.array(similarities), np.array([[dead(random) for random in row] for row in maps])

        return evaluation.computed(self.spec, compare)  # scores and curves are read from the same similarities

    def score(self, evaluation: Evaluation) -> Array:
        similarities, lost = self._similarities(evaluation)
        return np.stack([similarities.mean(axis=(0, 1)), lost.sum(axis=(0, 1))], axis=1)

    def curves(self, evaluation: Evaluation) -> Mapping[str, Curve]:
        trained = self.trained(evaluation)
        start = similarity(self.similarity, trained, trained)
        lines = np.concatenate([start[None], self._similarities(evaluation)[0].mean(axis=0)]).T
        return {self.similarity: Curve(np.arange(lines.shape[1]) / (lines.shape[1] - 1), lines)}


def _averaged(evaluation: Evaluation, request: str | Reattribution) -> Array:
    return np.asarray(evaluation.reattributions(request).mean(axis=1, dtype=np.float64))


@register_metric(
    "mprt",
    family="randomisation",
    aliases=("cascading_randomisation", "sanity_check"),
    papers=("adebayo2018sanity", "binder2023shortcomings", "walter2025now"),
    presets={"var": {}},
)
@dataclass
class MPRT(_Cascade):
    r"""Model parameter randomisation test: similarity of the map to those of ever more randomised models.

    .. math:: \frac{1}{J} \sum_{j=1}^{J} \mathrm{sim}(a, a_j), \qquad J = \mathrm{depth} + 3

    Parameters
    ----------
    norms : str, default "reset"
        What becomes of the norms' weights: where training begins, ``"permute"`` their own values, or ``"keep"`` them.
    init : str, default "fixed"
        The deviation of random weights: 0.02, or with ``"own"`` that of the trained tensor.
    similarity : str, default "spearman"
        ``"abs_spearman"``, ``"pearson"``, ``"cosine"`` or ``"ssim"`` instead: see ``vitreous.metrics.similarity``.
    order : str, default "top_down"
        At step j the j stages nearest to the output are random; ``"bottom_up"`` those nearest to the input,
        ``"independent"`` the j-th alone.
    seeds : int, default 3
        How many random models there are for each step.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better, but it is a check to pass, no ranking: top-down randomisation keeps the scale of activations, and
    maps that say nothing pass. The curve is over the share of randomised stages and starts with the trained model.
    ``@var``: Spearman from the output down; ``similarity=pearson`` and ``cosine`` are its others. Cost:
    ``(depth + 3) seeds`` explanations per map.

    References
    ----------
    Adebayo et al., "Sanity Checks for Saliency Maps", 2018.

    Examples
    --------
    >>> vt.get_metric("mprt(seeds=1)").num_reattributions()
    15
    """


@register_metric("smprt", family="randomisation", aliases=("smooth_mprt",), papers=("hedstrom2024fresh",))
@dataclass
class SmoothMPRT(_Cascade):
    r"""``mprt`` of maps that are averaged over noisy copies of the image.

    .. math:: \frac{1}{J} \sum_{j=1}^{J} \mathrm{sim}\Big(\frac{1}{N} \sum_i a(x'_i),\;
        \frac{1}{N} \sum_i a_j(x'_i)\Big)

    Parameters
    ----------
    norms, init, similarity
        As for `MPRT`.
    order : str, default "bottom_up"
        As for `MPRT`.
    seeds : int, default 1
        As for `MPRT`.
    samples : int, default 50
        How many noisy copies, ``N``.
    level : float, default 0.1
        The deviation of their normal noise, in ranges ``max - min`` of the image.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    The paper then divides each map by the root of its mean square, which no similarity here can see. Cost:
    ``samples (1 + (depth + 3) seeds)`` explanations per map: all of them are held until the images are evaluated.

    References
    ----------
    Hedström et al., "A Fresh Look at Sanity Checks for Saliency Maps", 2024.

    Examples
    --------
    >>> vt.get_metric("smprt(samples=2)").num_reattributions()
    32
    """

    order: str = choice("bottom_up", "top_down", "independent")
    seeds: int = number(1, "[1, inf)")
    samples: int = number(50, "[1, inf)")
    level: float = number(0.1, "[0, inf)")

    def copies(self) -> Images:
        return noisy_copies(self.samples, self.level, normal=True)

    def trained(self, evaluation: Evaluation) -> Array:
        maps = _averaged(evaluation, "trained")
        maps[evaluation.left_out] = np.nan
        return maps


@register_metric("emprt", family="randomisation", aliases=("efficient_mprt",), papers=("hedstrom2024fresh",))
@dataclass
class EfficientMPRT(_RandomWeights):
    r"""How much more complex the map becomes when all weights are random.

    .. math:: \frac{E(a_{\mathrm{random}}) - E(a)}{E(a)}, \qquad E(a) = -\sum_b p_b \ln p_b

    Parameters
    ----------
    norms, init
        As for `MPRT`.
    bins : int, default 100
        Of the histogram ``p`` of the map's values, of equal width from the lowest to the highest.
    seeds : int, default 3
        How many random models there are.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Higher is better. A constant map has ``E = 0``: the score is 0 then, by definition. One value far away widens all
    bins and lowers E. Cost: ``seeds`` explanations per map.

    References
    ----------
    Hedström et al., "A Fresh Look at Sanity Checks for Saliency Maps", 2024.

    Examples
    --------
    >>> vt.get_metric("emprt").num_reattributions()
    3
    """

    bins: int = number(100, "[2, inf)")
    seeds: int = number(3, "[1, inf)")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        everything = range(image_shape.depth + STAGES_AROUND)
        return {f"seed {seed}": self._under(everything, seed) for seed in range(self.seeds)}

    def score(self, evaluation: Evaluation) -> Array:
        maps = [evaluation.reattributions(name)[:, 0] for name in evaluation.requests]
        before = histogram_entropy(evaluation.maps(), self.bins)
        after = np.mean([histogram_entropy(random, self.bins) for random in maps], axis=0)
        rise = np.divide(after - before, before, out=np.zeros_like(before), where=before > 0)
        rise[evaluation.left_out] = np.nan
        return np.stack([rise, np.sum([dead(random) for random in maps], axis=0)], axis=1)


@register_metric("random_logit", family="randomisation", papers=("sixt2020explanations",))
@dataclass
class RandomLogit(Metric):
    r"""Similarity of the map to that of another class of the same image.

    .. math:: \mathrm{sim}(a_c, a_{c'})

    Parameters
    ----------
    contrast : str, default "random"
        The other class is drawn for each image, or is the ``"runner-up"``.
    similarity : str, default "spearman"
        As for `MPRT`.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. A method whose map does not depend on the class scores 1. Similar classes share evidence, so that
    ``contrast=runner-up`` asks for more than ``random``, and neither should be expected to reach 0. Cost: one
    explanation per map.

    References
    ----------
    Sixt, Granz and Landgraf, "When Explanations Lie: Why Many Modified BP Attributions Fail", 2020.

    Examples
    --------
    >>> table = vt.evaluate(model, images[:2], "rollout", "random_logit", n_bootstrap=10, controls=False)
    >>> table["rollout", "random_logit"].round(6).tolist()
    [1.0, 1.0]
    """

    higher_is_better = False
    contrast: str = choice("random", "runner-up")
    similarity: str = choice(*SIMILARITIES)

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"other class": Reattribution(target=self.contrast)}

    def score(self, evaluation: Evaluation) -> Array:
        other = evaluation.reattributions("other class")[:, 0]
        return np.stack([similarity(self.similarity, evaluation.maps(), other), dead(other)], axis=1)


def histogram_entropy(maps: Array, bins: int) -> Array:
    """Return the entropy of the values of each map ``[B, h, w]`` in nats; 0 where a map is constant or not finite."""
    entropies = np.zeros(len(maps))
    for row in np.flatnonzero(~dead(maps)):
        counts, _ = np.histogram(maps[row].astype(np.float64), bins)
        shares = counts[counts > 0] / counts.sum()
        entropies[row] = -(shares * np.log(shares)).sum()
    return entropies
