"""Randomisation: a map that explains a model must change when the model's weights, or the class, become others.

The stages of a model, counted from its output, are the head, the final norm, every block and the embeddings (see
``vitreous.models.randomize``): its depth + 3. The class that is explained stays the same under random weights. A map
that is constant, or not finite under random weights, is like no other: its similarity is 0, and the second part of
every score counts such maps. These are checks to pass or to fail: a constant map passes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.curves import Array, Curve
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.requests import Images, ImageShape, Reattribution
from vitreous.metrics.robustness import gaussian_copies
from vitreous.metrics.similarity import check_similarity, dead, similarity
from vitreous.models import VisionModel
from vitreous.models.randomize import INITS, NORMS, STAGES_AROUND, randomised, stages
from vitreous.registry import check_at_least, check_choice

__all__ = ["MPRT", "EfficientMPRT", "RandomLogit", "Randomised", "SmoothMPRT"]

_compared: WeakKeyDictionary[Evaluation, dict[str, tuple[Array, Array]]] = WeakKeyDictionary()
"""Scores and curves are read from the same similarities."""


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
class _UnderRandomWeights(Metric):
    """Shared by what explains randomised models."""

    norms: str = "reset"
    init: str = "fixed"

    def check(self) -> None:
        check_choice("norms", self.norms, NORMS)
        check_choice("init", self.init, INITS)

    def _under(self, chosen: Sequence[int], seed: int, images: Images | None = None) -> Reattribution:
        return Reattribution(images, Randomised(tuple(sorted(chosen)), seed, self.norms, self.init))


@dataclass
class _Cascade(_UnderRandomWeights):
    """Shared by the two that go through the stages of a model one after the other."""

    similarity: str = "spearman"
    order: str = "top_down"
    seeds: int = 3
    higher_is_better = False
    x_axis = "share of stages randomised"

    def check(self) -> None:
        super().check()
        check_choice("order", self.order, ("top_down", "bottom_up", "independent"))
        check_similarity(self.similarity)
        check_at_least("seeds", self.seeds, 1)

    @property
    def _copies(self) -> Images | None:
        """The images whose maps are compared, if not the image itself."""
        return None

    def _steps(self, image_shape: ImageShape) -> list[list[int]]:
        """Return the stages that are random at every step."""
        count = image_shape.depth + STAGES_AROUND
        if self.order == "independent":
            return [[stage] for stage in range(count)]
        order = list(range(count))[:: 1 if self.order == "top_down" else -1]
        return [order[: step + 1] for step in range(count)]

    def _cascade(self, image_shape: ImageShape) -> list[list[Reattribution]]:
        steps = self._steps(image_shape)
        return [[self._under(chosen, seed, self._copies) for chosen in steps] for seed in range(self.seeds)]

    def requests(self, image_shape: ImageShape) -> Sequence[Reattribution]:
        trained = [] if self._copies is None else [Reattribution(self._copies)]
        return trained + [need for needs in self._cascade(image_shape) for need in needs]

    def _trained(self, answers: Evaluation) -> Array:
        """Return the maps of the trained model."""
        return answers.values(self.explain_class)

    def _random(self, answers: Evaluation, need: Reattribution) -> Array:
        """Return the maps of a randomised one."""
        return np.asarray(answers.explained(need, self.explain_class).mean(axis=1, dtype=np.float64))

    def _similarities(self, answers: Evaluation) -> tuple[Array, Array]:
        """Return the similarity at every step ``[seeds, steps, B]``, and which random maps are dead."""
        known = _compared.setdefault(answers, {})
        if self.spec not in known:
            known[self.spec] = self._compare(answers)
        return known[self.spec]

    def _compare(self, answers: Evaluation) -> tuple[Array, Array]:
        trained = self._trained(answers)
        maps = [[self._random(answers, need) for need in needs] for needs in self._cascade(answers.image_shape)]
        found = np.array([[similarity(self.similarity, trained, each) for each in row] for row in maps])
        return found, np.array([[dead(each) for each in row] for row in maps])

    def score(self, answers: Evaluation) -> Array:
        found, lost = self._similarities(answers)
        return np.stack([found.mean(axis=(0, 1)), lost.sum(axis=(0, 1))], axis=1)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        trained = self._trained(answers)
        start = similarity(self.similarity, trained, trained)
        lines = np.concatenate([start[None], self._similarities(answers)[0].mean(axis=0)]).T
        return {self.similarity: Curve(np.arange(lines.shape[1]) / (lines.shape[1] - 1), lines)}


@register_metric(
    "mprt",
    family="randomisation",
    aliases=("cascading_randomisation", "sanity_check"),
    papers=("adebayo2018sanity", "binder2023shortcomings", "walter2025now"),
    presets={"var": {}},
)
@dataclass
class MPRT(_Cascade):
    """Mean similarity of the map to those of the same model with its weights randomised, stage by stage.

    ``mean_j similarity(map, map_j)``: step j has the j stages nearest to the output randomised (``order=top_down``),
    those nearest to the input (``bottom_up``), or the j-th alone (``independent``), averaged over steps 1 to depth + 3
    and over seeds; the curve is over the share of randomised stages and starts with the trained model. The lower the
    better, but it is a check to pass, no ranking: top-down randomisation keeps the scale of activations, and maps that
    say nothing pass. ``@var``: Spearman from the output down; ``similarity=pearson`` and ``cosine`` are its others.
    Cost: ``(depth + 3) seeds`` explanations per map.
    """


@register_metric("smprt", family="randomisation", aliases=("smooth_mprt",), papers=("hedstrom2024fresh",))
@dataclass
class SmoothMPRT(_Cascade):
    """``mprt`` of maps that are averaged over noisy copies of the image, from the input up.

    Every map, the trained model's too, is the mean over ``samples`` copies with normal noise of ``level (max - min)``
    of the image. The paper then divides it by the root of its mean square, which no similarity here can see. Cost:
    ``samples (1 + (depth + 3) seeds)`` explanations per map: all of them are held until the images are judged.
    """

    order: str = "bottom_up"
    seeds: int = 1
    samples: int = 50
    level: float = 0.1

    def check(self) -> None:
        super().check()
        check_at_least("samples", self.samples, 1)
        check_at_least("level", self.level, 0)

    @property
    def _copies(self) -> Images:
        return gaussian_copies(self.samples, self.level)

    def _trained(self, answers: Evaluation) -> Array:
        maps = self._random(answers, Reattribution(self._copies))
        maps[np.isnan(answers.values(self.explain_class)).all(axis=(1, 2))] = np.nan
        return maps


@register_metric("emprt", family="randomisation", aliases=("efficient_mprt",), papers=("hedstrom2024fresh",))
@dataclass
class EfficientMPRT(_UnderRandomWeights):
    """How much more complex the map becomes when all weights are random: ``(E_random - E) / E``.

    E is the entropy of a histogram of the map's values, ``bins`` of equal width from its lowest to its highest value;
    the mean over seeds. The higher the better. A constant map has ``E = 0``: the score is 0 then, by definition. One
    value far away widens all bins and lowers E. Cost: ``seeds`` explanations per map.
    """

    bins: int = 100
    seeds: int = 3

    def check(self) -> None:
        super().check()
        check_at_least("bins", self.bins, 2)
        check_at_least("seeds", self.seeds, 1)

    def requests(self, image_shape: ImageShape) -> Sequence[Reattribution]:
        everything = range(image_shape.depth + STAGES_AROUND)
        return [self._under(everything, seed) for seed in range(self.seeds)]

    def score(self, answers: Evaluation) -> Array:
        trained = answers.values(self.explain_class)
        maps = [answers.explained(need, self.explain_class)[:, 0] for need in self.requests(answers.image_shape)]
        before = histogram_entropy(trained, self.bins)
        after = np.mean([histogram_entropy(map_, self.bins) for map_ in maps], axis=0)
        rise = np.divide(after - before, before, out=np.zeros_like(before), where=before > 0)
        rise[np.isnan(trained).all(axis=(1, 2))] = np.nan
        return np.stack([rise, np.sum([dead(map_) for map_ in maps], axis=0)], axis=1)


@register_metric("random_logit", family="randomisation", papers=("sixt2020explanations",))
@dataclass
class RandomLogit(Metric):
    """Similarity of the map to that of another class: drawn at random for each image, or the runner-up.

    The lower the better. A method that knows no class scores 1. Look-alikes share evidence, so that
    ``contrast=runner-up`` asks for more than ``random``, and neither should be expected to reach 0. Cost: one
    explanation per map.
    """

    higher_is_better = False
    contrast: str = "random"
    similarity: str = "spearman"

    def check(self) -> None:
        check_choice("contrast", self.contrast, ("random", "runner-up"))
        check_similarity(self.similarity)

    def requests(self, image_shape: ImageShape) -> Sequence[Reattribution]:
        return [Reattribution(target=self.contrast)]

    def score(self, answers: Evaluation) -> Array:
        (need,) = self.requests(answers.image_shape)
        other = answers.explained(need, self.explain_class)[:, 0]
        return np.stack([similarity(self.similarity, answers.values(self.explain_class), other), dead(other)], axis=1)


def histogram_entropy(maps: Array, bins: int) -> Array:
    """Return the entropy of the values of each map ``[B, h, w]`` in nats; 0 where a map is constant or not finite."""
    found = np.zeros(len(maps))
    for row in np.flatnonzero(~dead(maps)):
        counts, _ = np.histogram(maps[row].astype(np.float64), bins)
        shares = counts[counts > 0] / counts.sum()
        found[row] = -(shares * np.log(shares)).sum()
    return found
