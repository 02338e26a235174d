"""Faithfulness by other kinds of removal: inpainted pixels (ROAD), squares of pixels, and tokens.

ROAD, remove and debias, inpaints what is removed from what is left, so that holes give nothing away. The fraction is
always the share *removed*; in the released code that of LeRF is the share kept, which mirrors its curve and leaves the
mean over a symmetric grid as it is. Pixels are ranked, never compared with a percentile, so that tied and constant maps
lose as many as any other: the latter in the order of the tie key.

A square of pixels has the mean of the map inside it; the sides of the image must be multiples of the square's. Where
tokens are removed the model runs on a shorter sequence: patch tokens are ranked after the positional embedding, prefix
tokens always stay, and of the curve's ends a sequence without patches is not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from vitreous.metrics.base import baseline_name, register_metric
from vitreous.metrics.baselines import DROP
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.pixel_removal import BOTH_ORDERS, LEAST_RELEVANT, MOST_RELEVANT, CurveMetric, OrderedRemoval
from vitreous.metrics.ranking import Array, Curve, area, equal_steps, percent_steps
from vitreous.metrics.requests import ImageShape, RankedRemoval, Request
from vitreous.registry import choice, number

_ROAD: dict[str, Any] = {
    "family": "faithfulness",
    "papers": ("rong2022consistent", "hong2025coiba"),
    "presets": {"coiba": {"explain_class": "label", "score_class": "label"}, "rong": {"steps": 10, "by": "accuracy"}},
}


@dataclass
class _Road(OrderedRemoval):
    """Shared by both orders and their difference."""

    steps: int = number(5, "[2, inf)")
    by: str = choice("probability", "accuracy")
    baseline: str = baseline_name("noisy_linear")

    def counts(self, image_shape: ImageShape) -> Sequence[int]:
        return percent_steps(image_shape.num_pixels, self.steps)[1:-1]

    def x(self, request: str, evaluation: Evaluation) -> Array:
        return np.arange(1, self.steps) / self.steps

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        return np.asarray(curve.y.mean(axis=1))


@register_metric("road_morf", **_ROAD)
@dataclass
class RoadMoRF(_Road):
    r"""ROAD: mean probability, or accuracy, with the most relevant pixels inpainted.

    .. math:: \frac{1}{J} \sum_{j=1}^{J} P(\mathrm{inpainted}_{jn/(J+1)}), \qquad J = \mathrm{steps} - 1

    Parameters
    ----------
    steps : int, default 5
        In how many equal steps all pixels would be removed; both ends are left out: 20, 40, 60 and 80 %.
    by : str, default "probability"
        Of the scored class, or ``"accuracy"``: whether the arg-max is the true class.
    baseline : str, default "noisy_linear"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. ``@coiba`` explains and scores the true class (it reports both: add ``by=accuracy``), ``@rong`` is
    accuracy from 10 to 90 %. Cost: ``steps - 1`` forwards and as many solves per map.

    References
    ----------
    Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", 2022.

    Examples
    --------
    >>> vt.get_metric("road_morf@rong").num_forwards()
    9
    """

    higher_is_better = False
    orders: ClassVar[Mapping[str, bool]] = {MOST_RELEVANT: True}


@register_metric("road_lerf", **_ROAD)
@dataclass
class RoadLeRF(_Road):
    r"""ROAD: mean probability, or accuracy, with the least relevant pixels inpainted.

    .. math:: \frac{1}{J} \sum_{j=1}^{J} P(\mathrm{inpainted}_{jn/(J+1)}), \qquad J = \mathrm{steps} - 1

    Parameters
    ----------
    steps, by, baseline, explain_class, score_class
        As for `RoadMoRF`.

    Notes
    -----
    The mirror of ``road_morf``: same grid, same presets, higher is better. Cost: ``steps - 1`` forwards and solves per
    map.

    References
    ----------
    Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", 2022.

    Examples
    --------
    >>> vt.get_metric("road_lerf").num_forwards()
    4
    """

    orders: ClassVar[Mapping[str, bool]] = {LEAST_RELEVANT: False}


@register_metric("road", aliases=("delta_road",), **_ROAD)
@dataclass
class Road(_Road):
    r"""The difference of both orders of ROAD: the least relevant should go unnoticed, the most relevant not.

    .. math:: \mathrm{LeRF} - \mathrm{MoRF}

    Parameters
    ----------
    steps, by, baseline, explain_class, score_class
        As for `RoadMoRF`.

    Notes
    -----
    pytorch-grad-cam's combined score is half of it. Cost: what both need, and nothing on top.

    References
    ----------
    Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", 2022.

    Examples
    --------
    >>> vt.get_metric("road").num_forwards()
    8
    """

    orders: ClassVar[Mapping[str, bool]] = BOTH_ORDERS


@dataclass
class _Regions(CurveMetric):
    """Shared by what removes squares: ``min(R, j ceil(R / steps))`` of R squares, from none to all."""

    region: int = number(8, "[1, inf)")
    steps: int = number(20, "[1, inf)")
    baseline: str = baseline_name("mean_channel")
    order = "morf"

    def requests(self, image_shape: ImageShape) -> Mapping[str, RankedRemoval]:
        square, unit = self.region**2, f"region:{self.region}"
        counts = [count * square for count in equal_steps(max(1, image_shape.num_pixels // square), self.steps)]
        if self.order == "lerf":
            return {"probability": RankedRemoval.insertion(self.baseline, [counts[-1] - n for n in counts], unit)}
        by = "random" if self.order == "random" else "map"
        return {"probability": RankedRemoval.deletion(self.baseline, counts, unit, by)}

    def x(self, request: str, evaluation: Evaluation) -> Array:
        size = evaluation.image_shape.num_pixels
        removal = self.requests(evaluation.image_shape)[request]
        return np.array([size - count if removal.keep else count for count in removal.counts]) / size

    def y(self, request: str, evaluation: Evaluation) -> Array:
        y = evaluation.probability(request)
        y[evaluation.left_out] = np.nan  # a random order does not depend on the map
        return y


@register_metric("region_perturbation", family="faithfulness", papers=("samek2017evaluating",))
@dataclass
class RegionPerturbation(_Regions):
    r"""Area over the perturbation curve as squares of pixels are removed.

    .. math:: \frac{1}{J + 1} \sum_{j=0}^{J} P(x) - P(x \setminus \{r_1, \dots, r_{k_j}\}),
        \qquad k_j = \min(R, j \lceil R / \mathrm{steps} \rceil)

    Parameters
    ----------
    region : int, default 8
        The side of a square in pixels.
    steps : int, default 20
        In how many equal steps all squares are removed.
    baseline : str, default "mean_channel"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    order : str, default "morf"
        The most relevant first (higher is better), ``"lerf"``, the least relevant (lower is better), or ``"random"``,
        an order of the image's own, the same for all methods: what a map has to beat.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Samek et al. remove 100 squares of 9 pixels one by one and fill them with noise; here ``steps`` equal ones lead to
    the end, on any baseline. Cost: ``steps - 1`` forwards per map, or per image in a random order.

    References
    ----------
    Samek et al., "Evaluating the Visualization of What a Deep Neural Network Has Learned", 2017.

    Examples
    --------
    >>> metric = vt.get_metric("region_perturbation(order=random)")
    >>> metric.num_forwards(), metric.num_shared_forwards()
    (0, 19)
    """

    order: str = choice("morf", "lerf", "random")

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.order != "lerf"

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        return np.asarray((curve.y[:, :1] - curve.y).mean(axis=1))


@register_metric("selectivity", family="faithfulness", papers=("montavon2018methods",))
@dataclass
class Selectivity(_Regions):
    r"""Area under the probability as the most relevant squares are removed, from none to all of them.

    .. math:: \int_0^1 P(x \setminus \{r_1, \dots, r_{tR}\})\,dt

    Parameters
    ----------
    region, steps, baseline, explain_class, score_class
        As for `RegionPerturbation`.

    Notes
    -----
    The trapezoid over the fraction removed; lower is better. Cost: none beside ``region_perturbation`` on its grid.

    References
    ----------
    Montavon, Samek and Müller, "Methods for Interpreting and Understanding Deep Neural Networks", 2018.

    Examples
    --------
    >>> vt.get_metric("selectivity(region=16)").higher_is_better
    False
    """

    higher_is_better = False


@register_metric("monotonicity", family="faithfulness", papers=("arya2019one",))
@dataclass
class Monotonicity(CurveMetric):
    r"""Share of the steps in which the probability does not fall as the most important pixels come back.

    .. math:: \frac{1}{J} \sum_{j=1}^{J} \mathbb{1}[P(\mathrm{kept}_{k_j}) \ge P(\mathrm{kept}_{k_{j-1}})]

    Parameters
    ----------
    steps : int, default 28
        As for `Insertion`.
    baseline : str, default "blur_rise"
        What stands where pixels are removed: one of ``vitreous.metrics.BASELINES``.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Cost: none beside ``insertion`` with the same steps and baseline. Arya et al. add features one by one, the least
    important first, and ask whether *every* step rises. Small steps rise by chance: compare with a random map.

    References
    ----------
    Arya et al., "One Explanation Does Not Fit All: A Toolkit and Taxonomy of AI Explainability Techniques", 2019.

    Examples
    --------
    >>> vt.get_metric("monotonicity").num_forwards() == vt.get_metric("insertion").num_forwards()
    True
    """

    steps: int = number(28, "[1, inf)")
    baseline: str = baseline_name("blur_rise")

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"probability": RankedRemoval.insertion(self.baseline, equal_steps(image_shape.num_pixels, self.steps))}

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        rises = (np.diff(curve.y, axis=1) >= 0).mean(axis=1)
        return np.where(np.isnan(curve.y).any(axis=1), np.nan, rises)


_TOKEN_REMOVAL: dict[str, Any] = {
    "family": "token removal",
    "papers": ("mehri2024skipplus",),
    "presets": {"skipplus": {"percent": True, "explain_class": "label", "score_class": "label"}},
}


@dataclass
class _TokenCurve(CurveMetric):
    """Shared by the four. With ``percent``, a score is given as SkipPLUS gives it: in percent, higher is better."""

    steps: int = number(10, "[2, inf)")
    percent: bool = False
    inserts: ClassVar[bool]
    is_gain: ClassVar[bool]  # whether a better map has a larger area

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.percent or self.is_gain

    def _grid(self, image_shape: ImageShape) -> list[tuple[int, float]]:
        """Return counts and ratios, without those that would leave no token."""
        size = image_shape.num_tokens
        ratios = [j / self.steps for j in (range(1, self.steps + 1) if self.inserts else range(self.steps))]
        points = [(round(ratio * size), ratio) for ratio in ratios]
        return [(count, ratio) for count, ratio in points if (count if self.inserts else size - count) > 0]

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        counts = [count for count, _ in self._grid(image_shape)]
        removal = RankedRemoval.insertion if self.inserts else RankedRemoval.deletion
        return {self.by: removal(DROP, counts, "token")}

    def x(self, request: str, evaluation: Evaluation) -> Array:
        return np.array([ratio for _, ratio in self._grid(evaluation.image_shape)])

    def summary(self, curve: Curve, evaluation: Evaluation) -> Array:
        y = curve.y if self.by == "accuracy" else evaluation.probability()[:, None] - curve.y
        value = area(y, curve.x)
        return value if not self.percent else 100 * (value if self.is_gain else 1 - value)


@register_metric("token_deletion_accuracy", **_TOKEN_REMOVAL)
@dataclass
class TokenDeletionAccuracy(_TokenCurve):
    r"""Area under top-1 accuracy as the most important tokens leave the sequence.

    .. math:: \frac{1}{0.9} \int_0^{0.9} \mathbb{1}[\arg\max f(x \setminus \mathrm{top}_\rho) = y]\,d\rho

    Parameters
    ----------
    steps : int, default 10
        In how many equal steps all tokens would leave.
    percent : bool, default False
        Give scores as SkipPLUS does: in percent, and 100 less them where lower would be better.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    Lower is better. ``@skipplus`` explains and scores the true class, in percent. Cost: nine forwards per map on
    sequences of 10 to 90 %, about four and a half of whole ones.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", 2024.

    Examples
    --------
    >>> vt.get_metric("token_deletion_accuracy@skipplus").higher_is_better
    True
    """

    by, inserts, is_gain = "accuracy", False, False


@register_metric("token_insertion_accuracy", **_TOKEN_REMOVAL)
@dataclass
class TokenInsertionAccuracy(_TokenCurve):
    r"""Area under top-1 accuracy with only the most important tokens in the sequence.

    .. math:: \frac{1}{0.9} \int_{0.1}^1 \mathbb{1}[\arg\max f(\mathrm{top}_\rho) = y]\,d\rho

    Parameters
    ----------
    steps, percent, explain_class, score_class
        As for `TokenDeletionAccuracy`.

    Notes
    -----
    ``@skipplus`` explains and scores the true class, in percent. Cost: as ``token_deletion_accuracy``.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", 2024.

    Examples
    --------
    >>> vt.get_metric("token_insertion_accuracy").needs_labels
    True
    """

    by, inserts, is_gain = "accuracy", True, True


@register_metric("token_deletion_aopc", **_TOKEN_REMOVAL)
@dataclass
class TokenDeletionAOPC(_TokenCurve):
    r"""Area over the probability as the most important tokens leave the sequence.

    .. math:: \frac{1}{0.9} \int_0^{0.9} P(x) - P(x \setminus \mathrm{top}_\rho)\,d\rho

    Parameters
    ----------
    steps, percent, explain_class, score_class
        As for `TokenDeletionAccuracy`.

    Notes
    -----
    ``@skipplus`` explains and scores the true class, in percent; its formula has the predicted class
    (``score_class=pred``). Cost: none beside ``token_deletion_accuracy``.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", 2024.

    Examples
    --------
    >>> table = vt.evaluate(model, images[:1], "ixg", "token_deletion_aopc", n_bootstrap=10, controls=False)
    >>> table.curve("ixg", "token_deletion_aopc").y.shape
    (1, 10)
    """

    inserts, is_gain = False, True


@register_metric("token_insertion_aopc", **_TOKEN_REMOVAL)
@dataclass
class TokenInsertionAOPC(_TokenCurve):
    r"""Area over the probability with only the most important tokens in the sequence.

    .. math:: \frac{1}{0.9} \int_{0.1}^1 P(x) - P(\mathrm{top}_\rho)\,d\rho

    Parameters
    ----------
    steps, percent, explain_class, score_class
        As for `TokenDeletionAccuracy`.

    Notes
    -----
    Lower is better. ``@skipplus`` explains and scores the true class and reports 100 less the score, so that higher is
    better. Cost: none beside ``token_insertion_accuracy``.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", 2024.

    Examples
    --------
    >>> vt.get_metric("token_insertion_aopc").higher_is_better
    False
    """

    inserts, is_gain = True, False
