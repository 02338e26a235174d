"""Faithfulness by removed pixels: remove what a map calls important and watch the model.

``removed_k`` is the image with its k top-ranked pixels replaced by the baseline, ``kept_k`` the baseline with the
image's k top-ranked pixels; ``P`` is the softmax probability of the scored class, ``n`` the number of pixels. A
constant map is ranked by the tie key alone, so it scores like a random order; a map that is not finite has no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from vitreous.metrics.base import Metric, baseline_name, register_metric
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array, Curve, area, equal_steps, percent_steps
from vitreous.metrics.requests import ImageShape, RankedRemoval, Request
from vitreous.registry import check_at_least, choice, number

_LABEL = {"explain_class": "label", "score_class": "label"}
_TIS = {"steps": 224, "area": "mean", "start": False, **_LABEL}
MOST_RELEVANT, LEAST_RELEVANT = "most relevant first", "least relevant first"
BOTH_ORDERS = {LEAST_RELEVANT: False, MOST_RELEVANT: True}


@dataclass
class CurveMetric(Metric):
    """Base of what is read from curves: one request for each, by the name of the curve.

    The score is one number for each curve, or the first one's less the second one's. ``by`` says what the curve is of:
    ``"probability"`` or ``"log_probability"`` of the scored class, or ``"accuracy"``, which needs true classes.
    """

    by = "probability"

    @property
    def needs_labels(self) -> bool:
        return self.by == "accuracy" or super().needs_labels

    def x(self, request: str, evaluation: Evaluation) -> Array:
        """Return what a curve runs over, ``[J]``: by default the share that is kept or removed."""
        return evaluation.fraction(request)

    def y(self, request: str, evaluation: Evaluation) -> Array:
        """Return the values of a curve, ``[B, J]``."""
        read = evaluation.correct if self.by == "accuracy" else getattr(evaluation, self.by)
        return np.asarray(read(request))

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        """Return one number for each line of a curve, ``[B]``."""
        return area(curve.y, curve.x)

    def curves(self, evaluation: Evaluation) -> Mapping[str, Curve]:
        return {name: Curve(self.x(name, evaluation), self.y(name, evaluation)) for name in evaluation.requests}

    def score(self, evaluation: Evaluation) -> Array:
        first, *others = (self.summary(curve, evaluation) for curve in self.curves(evaluation).values())
        return first - others[0] if others else first


class OrderedRemoval(CurveMetric):
    """Base of what removes pixels in one order or both: ``orders`` says of each curve if the most relevant go first."""

    baseline: str
    orders: ClassVar[Mapping[str, bool]]

    def counts(self, image_shape: ImageShape) -> Sequence[int]:
        """Return how many pixels are removed in each state."""
        raise NotImplementedError

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        counts, size = self.counts(image_shape), image_shape.num_pixels
        most = RankedRemoval.deletion(self.baseline, counts)
        least = RankedRemoval.insertion(self.baseline, [size - count for count in counts])  # the most relevant stay
        return {name: most if is_most else least for name, is_most in self.orders.items()}


@dataclass
class _InsertionDeletion(CurveMetric):
    """Shared by insertion, deletion and their difference."""

    steps: int = number(28, "[1, inf)")
    area: str = choice("trapezoid", "mean")
    start: bool = True

    def _counts(self, image_shape: ImageShape) -> tuple[int, ...]:
        counts = equal_steps(image_shape.num_pixels, self.steps)
        return counts if self.start or len(counts) == 2 else counts[1:]

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        return area(curve.y, curve.x, self.area)


@register_metric(
    "insertion",
    family="faithfulness",
    papers=("petsiuk2018rise", "hong2025coiba", "englebert2023explaining"),
    presets={"rise": {}, "coiba": {"baseline": "blur_51", **_LABEL}, "tis": {"baseline": "blur_tv", **_TIS}},
)
@dataclass
class Insertion(_InsertionDeletion):
    r"""Area under the probability as the most important pixels come back.

    .. math:: \sum_j \frac{k_{j+1} - k_j}{n}\,\frac{P(\mathrm{kept}_{k_j}) + P(\mathrm{kept}_{k_{j+1}})}{2},
        \qquad k_j = \min(n, j \lceil n / \mathrm{steps} \rceil)

    Parameters
    ----------
    steps : int, default 28
        In how many equal steps all pixels come back.
    area : str, default "trapezoid"
        ``"trapezoid"`` over true fractions, divided by their range, or the ``"mean"`` of the points.
    start : bool, default True
        Whether the bare baseline is a point of the curve.
    baseline : str, default "blur_rise"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Cost: ``steps - 1`` forwards per map. RISE starts from its blurred image; ``@coiba`` from ``blur_51``, explaining
    and scoring the true class; ``@tis`` takes the mean of the points after steps 1 to 224, for any baseline.

    References
    ----------
    Petsiuk, Das and Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", 2018.

    Examples
    --------
    >>> table = vt.evaluate(model, images[:1], "ixg", "insertion(steps=4)", n_bootstrap=10, controls=False)
    >>> len(table.curve("ixg", "insertion(steps=4)").x)
    5
    """

    baseline: str = baseline_name("blur_rise")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"insertion": RankedRemoval.insertion(self.baseline, self._counts(image_shape))}


@register_metric(
    "deletion",
    family="faithfulness",
    papers=("petsiuk2018rise", "hong2025coiba", "englebert2023explaining"),
    presets={"rise": {}, "coiba": {"baseline": "black", **_LABEL}, "tis": {"baseline": "blur_tv", **_TIS}},
)
@dataclass
class Deletion(_InsertionDeletion):
    r"""Area under the probability as the most important pixels are removed.

    .. math:: \sum_j \frac{k_{j+1} - k_j}{n}\,\frac{P(\mathrm{removed}_{k_j}) + P(\mathrm{removed}_{k_{j+1}})}{2}

    Parameters
    ----------
    steps, area, start
        As for `Insertion`.
    baseline : str, default "zero_norm"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. Cost: ``steps - 1`` forwards per map. RISE deletes to 0 in normalised space, which is grey;
    ``@coiba`` to black, explaining and scoring the true class; ``@tis`` as for insertion.

    References
    ----------
    Petsiuk, Das and Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models", 2018.

    Examples
    --------
    >>> vt.get_metric("deletion").higher_is_better
    False
    """

    higher_is_better = False
    baseline: str = baseline_name("zero_norm")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"deletion": RankedRemoval.deletion(self.baseline, self._counts(image_shape))}


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
    r"""Insertion minus deletion.

    .. math:: \int_0^1 P(\mathrm{kept}_{tn})\,dt - \int_0^1 P(\mathrm{removed}_{tn})\,dt

    Parameters
    ----------
    steps, area, start
        As for `Insertion`.
    insertion_baseline : str, default "blur_rise"
        What the image comes back on.
    deletion_baseline : str, default "zero_norm"
        What the image is deleted to.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Cost: what both need, ``2 (steps - 1)`` forwards per map, shared with them. It is CoIBA's difference; TIS computes
    it for each of its baselines.

    References
    ----------
    Hong et al., "Comprehensive Information Bottleneck for Unveiling Universal Attribution to Interpret Vision
    Transformers", 2025.

    Examples
    --------
    >>> vt.get_metric("insdel(steps=8)").num_forwards()
    14
    """

    insertion_baseline: str = baseline_name("blur_rise")
    deletion_baseline: str = baseline_name("zero_norm")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        counts = self._counts(image_shape)
        return {
            "insertion": RankedRemoval.insertion(self.insertion_baseline, counts),
            "deletion": RankedRemoval.deletion(self.deletion_baseline, counts),
        }


@dataclass
class _Perturbation(OrderedRemoval):
    """Shared by what removes shares of the pixels: ``floor(j n / steps)`` of them, ``j / steps`` up to ``stop``."""

    steps: int = number(20, "[1, inf)")
    baseline: str = baseline_name("black")
    stop: float = 1.0

    def check(self) -> None:
        check_at_least("stop", self.stop, 1 / self.steps)
        check_at_least("stop", -self.stop, -1)

    def counts(self, image_shape: ImageShape) -> Sequence[int]:
        return percent_steps(image_shape.num_pixels, self.steps, self.stop)

    def x(self, request: str, evaluation: Evaluation) -> Array:
        return np.arange(round(self.steps * self.stop) + 1) / self.steps


@dataclass
class _Accuracy(_Perturbation):
    """Shared by positive and negative perturbation."""

    normalise: bool = True
    by = "accuracy"

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        return area(curve.y, curve.x, normalise=self.normalise)


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
    r"""Area under top-1 accuracy as the most important pixels turn black.

    .. math:: \int_0^{\mathrm{stop}} \mathbb{1}[\arg\max f(\mathrm{removed}_{tn}) = y]\,dt

    Parameters
    ----------
    steps : int, default 20
        In how many equal steps all pixels are removed.
    baseline : str, default "black"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    stop : float, default 1.0
        The share of pixels removed at the end of the curve.
    normalise : bool, default True
        Whether the area is divided by the range.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. Correctness is against the true class, whichever class is explained: ``explain_class=pred`` and
    ``explain_class=label`` are the two rows of the papers. ``@chefer`` stops at 90 % in steps of 10 % and does not
    divide by the range. Cost: ``steps - 1`` forwards per map.

    References
    ----------
    Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", 2021.

    Examples
    --------
    >>> vt.get_metric("positive_perturbation@chefer").num_forwards()
    9
    """

    higher_is_better = False
    orders: ClassVar[Mapping[str, bool]] = {"accuracy": True}


@register_metric(
    "negative_perturbation",
    family="faithfulness",
    aliases=("negative",),
    papers=("chefer2021transformer", "wu2024tokentm"),
    presets={"vtranm": {}, "chefer": _CHEFER},
)
@dataclass
class NegativePerturbation(_Accuracy):
    r"""Area under top-1 accuracy as the least important pixels turn black.

    .. math:: \int_0^{\mathrm{stop}} \mathbb{1}[\arg\max f(\mathrm{kept}_{(1-t)n}) = y]\,dt

    Parameters
    ----------
    steps, baseline, stop, normalise, explain_class, score_class
        As for `PositivePerturbation`.

    Notes
    -----
    The mirror of ``positive_perturbation``: same classes, same presets, higher is better. The least relevant ``k``
    removed is the most relevant ``n - k`` kept. Cost: ``steps - 1`` forwards per map.

    References
    ----------
    Chefer, Gur and Wolf, "Transformer Interpretability Beyond Attention Visualization", 2021.

    Examples
    --------
    >>> vt.get_metric("negative").needs_labels
    True
    """

    orders: ClassVar[Mapping[str, bool]] = {"accuracy": False}


@dataclass
class _Drop(_Perturbation):
    """Shared by AOPC and LOdds: a mean over the grid, the untouched image included or not."""

    include_zero: bool = True
    by = "log_probability"
    orders: ClassVar[Mapping[str, bool]] = {"log-probability": True}

    def _mean(self, drops: Array) -> Array:
        return np.asarray(drops[:, 0 if self.include_zero else 1 :].mean(axis=1))


@register_metric("aopc", family="faithfulness", papers=("samek2017evaluating", "wu2024tokentm"), presets={"vtranm": {}})
@dataclass
class AOPC(_Drop):
    r"""Area over the perturbation curve: by how much the probability falls on average.

    .. math:: \frac{1}{J + 1} \sum_{j=0}^{J} P(x) - P(\mathrm{removed}_{k_j})

    Parameters
    ----------
    steps, baseline, stop
        As for `PositivePerturbation`.
    include_zero : bool, default True
        Whether the untouched image, whose term is zero, counts in the mean.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Cost: none beside ``positive_perturbation`` on the same grid.

    References
    ----------
    Samek et al., "Evaluating the Visualization of What a Deep Neural Network Has Learned", 2017.

    Examples
    --------
    >>> vt.get_metric("aopc(steps=10)").num_forwards()
    9
    """

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        probability = np.exp(curve.y)
        return self._mean(probability[:, :1] - probability)


@register_metric("lodds", family="faithfulness", papers=("wu2024tokentm",), presets={"vtranm": {}})
@dataclass
class LOdds(_Drop):
    r"""Log-odds: by how much the log-probability changes on average.

    .. math:: \frac{1}{J + 1} \sum_{j=0}^{J} \log P(\mathrm{removed}_{k_j}) - \log P(x)

    Parameters
    ----------
    steps, baseline, stop
        As for `PositivePerturbation`.
    include_zero : bool, default True
        Whether the untouched image, whose term is zero, counts in the mean.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    The more negative the better. From log-softmax, never from a clamped probability. Cost: none beside
    ``positive_perturbation`` on the same grid.

    References
    ----------
    Wu et al., "Token Transformation Matters: Towards Faithful Post-hoc Explanation for Vision Transformer", 2024.

    Examples
    --------
    >>> vt.get_metric("lodds").higher_is_better
    False
    """

    higher_is_better = False

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        return self._mean(curve.y - curve.y[:, :1])


@register_metric("srg", family="faithfulness", aliases=("abpc",), papers=("bluecher2024decoupling", "li2023m4"))
@dataclass
class SRG(_Perturbation):
    r"""Symmetric relevance gain: the area between the curves of both orders.

    .. math:: \int_0^1 P(\mathrm{kept}_{(1-t)n})\,dt - \int_0^1 P(\mathrm{removed}_{tn})\,dt

    Parameters
    ----------
    steps, baseline, stop
        As for `PositivePerturbation`.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    The area under ``P`` with the least relevant removed first, less that with the most; one baseline for both orders.
    The area between the two perturbation curves (ABPC) is the same number. Cost: none beside positive and negative
    perturbation, ``2 (steps - 1)`` forwards per map.

    References
    ----------
    Blücher, Vielhaben and Strodthoff, "Decoupling Pixel Flipping and Occlusion Strategy for Consistent XAI Benchmarks",
    2024.

    Examples
    --------
    >>> vt.evaluate(model, images[:2], "ixg", "srg(steps=4)", controls=False)["ixg", "srg(steps=4)"].shape
    (2,)
    """

    orders: ClassVar[Mapping[str, bool]] = BOTH_ORDERS
