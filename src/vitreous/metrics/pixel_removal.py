"""Faithfulness by perturbed pixels: remove what a map calls important and watch the model.

``removed_k`` is the image with its k top-ranked pixels replaced by the substrate, ``kept_k`` the substrate with the
image's k top-ranked pixels; ``P`` is the softmax probability of the scored class, ``n`` the number of pixels. A
constant map is ranked by the tie key alone, so it scores like a random order; a map that is not finite has no score.

The image under its own map: average drop, increase and gain.

``x'`` is the image faded into the substrate by ``m``, the map scaled to 0 .. 1: ``m x + (1 - m) b``. With ``zero_norm``
that is the normalised image times the map. What speaks against the class is taken away with what says nothing: ``m`` is
the positive part of the map (Chattopadhay et al. and Zhang et al., whose maps end in a ReLU), less its minimum and
divided by what is left of its maximum (Zhang et al.; the former divide by the maximum, the same wherever the minimum is
0). A map that is constant, or positive nowhere, has ``m = 0``: ``x'`` is the bare substrate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.baselines import check_baseline
from vitreous.metrics.curves import Array, Curve, area, equal_steps, percent_steps
from vitreous.metrics.requests import ImageShape, RankedRemoval, Request
from vitreous.registry import check_at_least, check_choice

if TYPE_CHECKING:
    from vitreous.metrics.evaluation import Evaluation

__all__ = [
    "AOPC",
    "AverageDrop",
    "AverageGain",
    "AverageIncrease",
    "Deletion",
    "InsDel",
    "Insertion",
    "LOdds",
    "NegativePerturbation",
    "PositivePerturbation",
    "SRG",
]

_LABEL = {"explain_class": "label", "score_class": "label"}
_TIS = {"steps": 224, "area": "mean", "start": False, **_LABEL}


@dataclass
class _InsertionDeletion(Metric):
    """Shared by insertion, deletion and their difference."""

    steps: int = 28
    area: str = "trapezoid"
    start: bool = True

    def check(self) -> None:
        check_at_least("steps", self.steps, 1)
        check_choice("area", self.area, ("trapezoid", "mean"))

    def _counts(self, image_shape: ImageShape) -> tuple[int, ...]:
        counts = equal_steps(image_shape.size("pixel"), self.steps)
        return counts if self.start or len(counts) == 2 else counts[1:]

    def _curve(self, answers: Evaluation, need: RankedRemoval) -> Curve:
        fractions = np.array(need.counts) / answers.image_shape.size("pixel")
        return Curve(fractions, np.exp(answers.log_probability(need, self.explain_class, self.score_class)))

    def _area(self, answers: Evaluation, need: RankedRemoval) -> Array:
        curve = self._curve(answers, need)
        return area(curve.y, curve.x, self.area)


@register_metric(
    "insertion",
    family="faithfulness",
    papers=("petsiuk2018rise", "hong2025coiba", "englebert2023explaining"),
    presets={
        "rise": {},
        "coiba": {"baseline": "blur_51", **_LABEL},
        "tis": {"baseline": "blur_tv", **_TIS},
    },
)
@dataclass
class Insertion(_InsertionDeletion):
    """Area under ``P(kept_k)`` as the most important pixels come back, k from 0 to n in equal steps.

    ``k_j = min(n, j ceil(n / steps))``; the trapezoid uses true fractions and is divided by their range. RISE starts
    from its blurred image; ``@coiba`` from ``blur_51``, explaining and scoring the true class; ``@tis`` takes the mean
    of the points after steps 1 to 224, for any substrate. Cost: ``steps - 1`` forwards per map.
    """

    baseline: str = "blur_rise"

    def check(self) -> None:
        super().check()
        check_baseline(self.baseline)

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [Request.kept(self.baseline, self._counts(image_shape))]

    def score(self, answers: Evaluation) -> Array:
        return self._area(answers, *self.requests(answers.image_shape))

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        return {"insertion": self._curve(answers, *self.requests(answers.image_shape))}


@register_metric(
    "deletion",
    family="faithfulness",
    papers=("petsiuk2018rise", "hong2025coiba", "englebert2023explaining"),
    presets={
        "rise": {},
        "coiba": {"baseline": "black", **_LABEL},
        "tis": {"baseline": "blur_tv", **_TIS},
    },
)
@dataclass
class Deletion(_InsertionDeletion):
    """Area under ``P(removed_k)`` as the most important pixels go, k from 0 to n in equal steps.

    Grid and area as for ``insertion``. RISE deletes to 0 in normalised space, which is grey; ``@coiba`` to black,
    explaining and scoring the true class; ``@tis`` as for insertion. Cost: ``steps - 1`` forwards per map.
    """

    higher_is_better = False
    baseline: str = "zero_norm"

    def check(self) -> None:
        super().check()
        check_baseline(self.baseline)

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [Request.removed(self.baseline, self._counts(image_shape))]

    def score(self, answers: Evaluation) -> Array:
        return self._area(answers, *self.requests(answers.image_shape))

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        return {"deletion": self._curve(answers, *self.requests(answers.image_shape))}


@register_metric(
    "insdel",
    family="faithfulness",
    aliases=("insertion_minus_deletion",),
    papers=("hong2025coiba", "englebert2023explaining"),
    presets={
        "rise": {},
        "coiba": {"insertion_baseline": "blur_51", "deletion_baseline": "black", **_LABEL},
        "tis": {"insertion_baseline": "blur_tv", "deletion_baseline": "blur_tv", **_TIS},
    },
)
@dataclass
class InsDel(_InsertionDeletion):
    """Insertion minus deletion: area under ``P(kept_k)`` less that under ``P(removed_k)``.

    CoIBA's difference; TIS computes it for each of its substrates. Cost: what both need, and nothing on top.
    """

    insertion_baseline: str = "blur_rise"
    deletion_baseline: str = "zero_norm"

    def check(self) -> None:
        super().check()
        check_baseline(self.insertion_baseline)
        check_baseline(self.deletion_baseline)

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        counts = self._counts(image_shape)
        return [Request.kept(self.insertion_baseline, counts), Request.removed(self.deletion_baseline, counts)]

    def score(self, answers: Evaluation) -> Array:
        kept, removed = self.requests(answers.image_shape)
        return self._area(answers, kept) - self._area(answers, removed)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        kept, removed = self.requests(answers.image_shape)
        return {"insertion": self._curve(answers, kept), "deletion": self._curve(answers, removed)}


@dataclass
class _Perturbation(Metric):
    """Shared by what removes shares of the pixels: ``floor(j n / steps)`` of them, ``j / steps`` up to ``stop``."""

    steps: int = 20
    baseline: str = "black"
    stop: float = 1.0

    def check(self) -> None:
        check_at_least("steps", self.steps, 1)
        check_baseline(self.baseline)
        check_at_least("stop", self.stop, 1 / self.steps)
        check_at_least("stop", -self.stop, -1)

    def _most(self, image_shape: ImageShape) -> RankedRemoval:
        return Request.removed(self.baseline, percent_steps(image_shape.size("pixel"), self.steps, self.stop))

    def _least(self, image_shape: ImageShape) -> RankedRemoval:
        """The least relevant removed: what is left is the most relevant kept."""
        size = image_shape.size("pixel")
        return Request.kept(self.baseline, [size - k for k in percent_steps(size, self.steps, self.stop)])

    def _fractions(self) -> Array:
        return np.arange(round(self.steps * self.stop) + 1) / self.steps


@dataclass
class _Accuracy(_Perturbation):
    """Shared by positive and negative perturbation."""

    normalise: bool = True
    needs_correctness: ClassVar[bool] = True

    def _accuracy(self, answers: Evaluation, need: RankedRemoval) -> Array:
        return area(answers.correct(need, self.explain_class), self._fractions(), normalise=self.normalise)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        (need,) = self.requests(answers.image_shape)
        return {"accuracy": Curve(self._fractions(), answers.correct(need, self.explain_class))}


_CHEFER = {"steps": 10, "stop": 0.9, "normalise": False}


@register_metric(
    "positive_perturbation",
    family="faithfulness",
    aliases=("positive",),
    papers=("chefer2021transformer", "wu2024tokentm"),
    presets={"vtranm": {}, "chefer": _CHEFER},
)
@dataclass
class PositivePerturbation(_Accuracy):
    """Area under top-1 accuracy as the most important pixels turn black, 0 to 100 % in steps of 5 %.

    Correctness is against the true class, whichever class is explained: ``explain_class=pred`` and
    ``explain_class=label`` are the two rows of the papers. ``@chefer`` stops at 90 % in steps of 10 % and does not
    divide by the range. Cost: ``steps - 1`` forwards per map.
    """

    higher_is_better = False

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._most(image_shape)]

    def score(self, answers: Evaluation) -> Array:
        return self._accuracy(answers, self._most(answers.image_shape))


@register_metric(
    "negative_perturbation",
    family="faithfulness",
    aliases=("negative",),
    papers=("chefer2021transformer", "wu2024tokentm"),
    presets={"vtranm": {}, "chefer": _CHEFER},
)
@dataclass
class NegativePerturbation(_Accuracy):
    """Area under top-1 accuracy as the least important pixels turn black, 0 to 100 % in steps of 5 %.

    The mirror of ``positive_perturbation``: same classes, same presets. The least relevant ``k`` removed is the most
    relevant ``n - k`` kept. Cost: ``steps - 1`` forwards per map.
    """

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._least(image_shape)]

    def score(self, answers: Evaluation) -> Array:
        return self._accuracy(answers, self._least(answers.image_shape))


@dataclass
class _Drop(_Perturbation):
    """Shared by AOPC and LOdds: a mean over the grid, the untouched image included or not."""

    include_zero: bool = True

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._most(image_shape)]

    def _curve(self, answers: Evaluation) -> Array:
        return answers.log_probability(self._most(answers.image_shape), self.explain_class, self.score_class)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        return {"log-probability": Curve(self._fractions(), self._curve(answers))}

    def _mean(self, drops: Array) -> Array:
        return np.asarray(drops[:, 0 if self.include_zero else 1 :].mean(axis=1))


@register_metric("aopc", family="faithfulness", papers=("samek2017evaluating", "wu2024tokentm"), presets={"vtranm": {}})
@dataclass
class AOPC(_Drop):
    """Mean of ``P(x) - P(removed_k)`` over the percentages removed: how far the probability falls.

    The divisor counts the untouched image, whose term is zero, unless ``include_zero`` is off. Cost: none beside
    ``positive_perturbation`` on the same grid.
    """

    def score(self, answers: Evaluation) -> Array:
        probability = np.exp(self._curve(answers))
        return self._mean(probability[:, :1] - probability)


@register_metric("lodds", family="faithfulness", papers=("wu2024tokentm",), presets={"vtranm": {}})
@dataclass
class LOdds(_Drop):
    """Mean of ``log P(removed_k) - log P(x)`` over the percentages removed; the more negative the better.

    From log-softmax, never from a clamped probability. Cost: none beside ``positive_perturbation`` on the same grid.
    """

    higher_is_better = False

    def score(self, answers: Evaluation) -> Array:
        log = self._curve(answers)
        return self._mean(log - log[:, :1])


@register_metric("srg", family="faithfulness", aliases=("abpc",), papers=("bluecher2024decoupling", "li2023m4"))
@dataclass
class SRG(_Perturbation):
    """Symmetric relevance gain: area under ``P`` with the least relevant removed first, less that with the most.

    One substrate for both orders; the area between the two perturbation curves (ABPC) is the same number. Higher is
    better. Cost: none beside positive and negative perturbation.
    """

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._least(image_shape), self._most(image_shape)]

    def score(self, answers: Evaluation) -> Array:
        least, most = (area(curve.y, curve.x) for curve in self.curves(answers).values())
        return least - most

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        names = ("least relevant first", "most relevant first")
        logs = [
            answers.log_probability(need, self.explain_class, self.score_class)
            for need in self.requests(answers.image_shape)
        ]
        return {name: Curve(self._fractions(), np.exp(log)) for name, log in zip(names, logs, strict=True)}


@dataclass
class _Masked(Metric):
    """Shared by all three: one forward per map.

    ``how`` is what of the map becomes ``m``: its positive part (``relu``), or all of it, so that the lowest value is
    taken away and the highest stays (``minmax``).
    """

    baseline: str = "zero_norm"
    normalization: str = "relu"

    def check(self) -> None:
        check_baseline(self.baseline, fades=True)
        check_choice("normalization", self.normalization, ("relu", "minmax"))

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [Request.blend(self.baseline, self.normalization)]

    def _logs(self, answers: Evaluation) -> tuple[Array, Array]:
        """Return ``log P(x)`` and ``log P(x')``."""
        masked = answers.log_probability(
            Request.blend(self.baseline, self.normalization), self.explain_class, self.score_class
        )[:, 0]
        return answers.clean(self.score_class, self.explain_class), masked


@register_metric("average_drop", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageDrop(_Masked):
    """Share of the probability that is lost under the map: ``relu(P(x) - P(x')) / P(x)``.

    ``m`` is the positive part of the map (``normalization=relu``) or all of it (``normalization=minmax``), scaled to 0
    .. 1. From the difference of log-probabilities, so that a tiny ``P(x)`` does no harm. Cost: one forward per map,
    shared with increase and gain.
    """

    higher_is_better = False

    def score(self, answers: Evaluation) -> Array:
        clean, masked = self._logs(answers)
        return np.asarray(-np.expm1(np.minimum(masked - clean, 0)))


@register_metric("average_increase", family="faithfulness", papers=("chattopadhay2018gradcampp",))
@dataclass
class AverageIncrease(_Masked):
    """Whether the probability rises under the map: 1 if ``P(x') > P(x)``, else 0.

    ``how`` as for ``average_drop``. Cost: one forward per map.
    """

    def score(self, answers: Evaluation) -> Array:
        clean, masked = self._logs(answers)
        return np.where(np.isnan(masked), np.nan, masked > clean)


@register_metric("average_gain", family="faithfulness", papers=("zhang2024opticam",))
@dataclass
class AverageGain(_Masked):
    """Share of what was left to gain that is gained: ``relu(P(x') - P(x)) / (1 - P(x))``.

    Zero where ``P(x)`` is one already. ``how`` as for ``average_drop``. Cost: one forward per map.
    """

    def score(self, answers: Evaluation) -> Array:
        clean, masked = self._logs(answers)
        left = -np.expm1(clean)
        gained = np.maximum(np.exp(masked) - np.exp(clean), 0)
        gain = np.divide(gained, left, out=np.zeros_like(gained), where=left > 0)
        return np.where(np.isnan(masked), np.nan, gain)
