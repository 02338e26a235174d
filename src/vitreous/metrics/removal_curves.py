"""ROAD, remove and debias: what is removed is filled in from what is left, so that holes give nothing away.

Removed are ``floor(j n / steps)`` of n pixels for ``j`` from 1 to ``steps - 1``, the most relevant first (MoRF) or the
least relevant first (LeRF). A fraction is always the share *removed*; in the released code that of LeRF is the share
kept, which mirrors its curve and leaves the mean over a symmetric grid as it is. Pixels are ranked, never compared with
a percentile, so that tied and constant maps lose as many as any other: the latter in the order of the tie key.

Faithfulness by regions: squares of pixels are removed whole, and a picture that comes back step by step.

A square has the mean of the map inside it. Squares larger than a patch, or that cut patches, test other borders than
those the model knows; the sides of the picture must be multiples of the square's.

Faithfulness by removed tokens: the model runs on a shorter sequence, nothing is painted over.

Patch tokens are ranked after the positional embedding, prefix tokens always stay. Removed or kept are
``round(rho N)`` of N tokens, ``rho`` in steps of a tenth; one end of the curve is the whole image, the other one, a
sequence without patches, is not run. A constant map is ranked by the tie key; one that is not finite has no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.baselines import DROP, check_baseline
from vitreous.metrics.curves import Array, Curve, area, equal_steps, percent_steps
from vitreous.metrics.requests import ImageShape, RankedRemoval, Request
from vitreous.registry import check_at_least, check_choice

if TYPE_CHECKING:
    from vitreous.metrics.evaluation import Evaluation

__all__ = [
    "Monotonicity",
    "RegionPerturbation",
    "Road",
    "RoadLeRF",
    "RoadMoRF",
    "Selectivity",
    "TokenDeletionAOPC",
    "TokenDeletionAccuracy",
    "TokenInsertionAOPC",
    "TokenInsertionAccuracy",
]

_PRESETS = {"coiba": {"explain_class": "label", "score_class": "label"}, "rong": {"steps": 10, "by": "accuracy"}}
_ROAD: dict[str, Any] = {
    "family": "faithfulness",
    "papers": ("rong2022consistent", "hong2025coiba"),
    "presets": _PRESETS,
}
_MOST, _LEAST = "most relevant first", "least relevant first"


@dataclass
class _Road(Metric):
    """Shared by both orders and their difference."""

    steps: int = 5
    by: str = "probability"
    baseline: str = "noisy_linear"

    def check(self) -> None:
        check_at_least("steps", self.steps, 2)
        check_choice("by", self.by, ("probability", "accuracy"))
        check_baseline(self.baseline)

    @property
    def needs_labels(self) -> bool:
        return self.by == "accuracy" or super().needs_labels

    def _most(self, image_shape: ImageShape) -> RankedRemoval:
        return Request.removed(self.baseline, self._counts(image_shape))

    def _least(self, image_shape: ImageShape) -> RankedRemoval:
        size = image_shape.size("pixel")
        return Request.kept(self.baseline, [size - count for count in self._counts(image_shape)])

    def _counts(self, image_shape: ImageShape) -> tuple[int, ...]:
        return percent_steps(image_shape.size("pixel"), self.steps)[1:-1]

    def _curve(self, answers: Evaluation, need: RankedRemoval) -> Curve:
        fractions = np.arange(1, self.steps) / self.steps
        if self.by == "accuracy":
            return Curve(fractions, answers.correct(need, self.explain_class))
        return Curve(fractions, np.exp(answers.log_probability(need, self.explain_class, self.score_class)))


@register_metric("road_morf", **_ROAD)
@dataclass
class RoadMoRF(_Road):
    """Mean probability, or accuracy, with 20, 40, 60 and 80 % of the pixels gone, the most relevant first.

    ``steps=10`` removes 10 to 90 %; ``by=accuracy`` compares the arg-max with the true class. ``@coiba`` explains and
    scores the true class (it reports both: add ``by=accuracy``), ``@rong`` is accuracy from 10 to 90 %. Lower is
    better. Cost: ``steps - 1`` forwards and as many solves per map.
    """

    higher_is_better = False

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._most(image_shape)]

    def score(self, answers: Evaluation) -> Array:
        return np.asarray(self.curves(answers)[_MOST].y.mean(axis=1))

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        return {_MOST: self._curve(answers, self._most(answers.image_shape))}


@register_metric("road_lerf", **_ROAD)
@dataclass
class RoadLeRF(_Road):
    """Mean probability, or accuracy, with 20, 40, 60 and 80 % of the pixels gone, the least relevant first.

    The mirror of ``road_morf``: same grid, same presets, higher is better. Cost: ``steps - 1`` forwards and solves per
    map.
    """

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._least(image_shape)]

    def score(self, answers: Evaluation) -> Array:
        return np.asarray(self.curves(answers)[_LEAST].y.mean(axis=1))

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        return {_LEAST: self._curve(answers, self._least(answers.image_shape))}


@register_metric("road", aliases=("delta_road",), **_ROAD)
@dataclass
class Road(_Road):
    """The difference of both orders, ``road_lerf - road_morf``: the least relevant should go unnoticed, the most not.

    pytorch-grad-cam's combined score is half of it. Higher is better. Cost: what both need, and nothing on top.
    """

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._least(image_shape), self._most(image_shape)]

    def score(self, answers: Evaluation) -> Array:
        least, most = (curve.y.mean(axis=1) for curve in self.curves(answers).values())
        return np.asarray(least - most)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        least, most = self.requests(answers.image_shape)
        return {_LEAST: self._curve(answers, least), _MOST: self._curve(answers, most)}


@dataclass
class _Regions(Metric):
    """Shared by what removes squares: ``min(R, j ceil(R / steps))`` of R squares, from none to all."""

    region: int = 8
    steps: int = 20
    baseline: str = "mean_channel"

    def check(self) -> None:
        check_at_least("region", self.region, 1)
        check_at_least("steps", self.steps, 1)
        check_baseline(self.baseline)

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [self._need(image_shape)]

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        need = self._need(answers.image_shape)
        y = np.exp(answers.log_probability(need, self.explain_class, self.score_class))
        y[np.isnan(answers.values(self.explain_class)).all(axis=(1, 2))] = np.nan  # a random order knows no maps
        size = answers.image_shape.size("pixel")
        gone = [size - count if need.keep else count for count in need.counts]
        return {"probability": Curve(np.array(gone) / size, y)}

    def _need(self, image_shape: ImageShape) -> RankedRemoval:
        return Request.removed(self.baseline, self._counts(image_shape), f"region:{self.region}")

    def _counts(self, image_shape: ImageShape) -> list[int]:
        square = self.region**2
        return [count * square for count in equal_steps(max(1, image_shape.size("pixel") // square), self.steps)]


@register_metric("region_perturbation", family="faithfulness", papers=("samek2017evaluating",))
@dataclass
class RegionPerturbation(_Regions):
    """AOPC over regions: mean of ``P(x) - P(x_k)`` with the k most relevant squares gone, none and all included.

    ``order=morf`` takes the most relevant first (higher is better), ``lerf`` the least relevant (lower is better), and
    ``random`` a random order of the image's own, the same for all methods: what a map has to beat. Samek et al. remove
    100 squares of 9 pixels one by one and fill them with noise; here ``steps`` equal ones lead to the end, on any
    substrate. Cost: ``steps - 1`` forwards per map, or per image in a random order.
    """

    order: str = "morf"

    def check(self) -> None:
        super().check()
        check_choice("order", self.order, ("morf", "lerf", "random"))

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.order != "lerf"

    def _need(self, image_shape: ImageShape) -> RankedRemoval:
        counts, unit = self._counts(image_shape), f"region:{self.region}"
        if self.order == "lerf":
            return Request.kept(self.baseline, [counts[-1] - count for count in counts], unit)
        return Request.removed(self.baseline, counts, unit, "random" if self.order == "random" else "map")

    def score(self, answers: Evaluation) -> Array:
        probability = self.curves(answers)["probability"].y
        return np.asarray((probability[:, :1] - probability).mean(axis=1))


@register_metric("selectivity", family="faithfulness", papers=("montavon2018methods",))
@dataclass
class Selectivity(_Regions):
    """Area under ``P`` as the most relevant squares go, from none to all of them: how fast the model lets go.

    The trapezoid over the fraction removed. Lower is better. Cost: none beside ``region_perturbation`` on its grid.
    """

    higher_is_better = False

    def score(self, answers: Evaluation) -> Array:
        curve = self.curves(answers)["probability"]
        return area(curve.y, curve.x)


@register_metric("monotonicity", family="faithfulness", papers=("arya2019one",))
@dataclass
class Monotonicity(Metric):
    """Share of the steps in which ``P(kept_k)`` does not fall as the most important pixels come back.

    On the grid of ``insertion``. Arya et al. add features one by one, the least important first, and ask whether
    *every* step rises. Small steps rise by chance: compare with a random map. Higher is better. Cost: none beside
    ``insertion`` with the same steps and substrate.
    """

    steps: int = 28
    baseline: str = "blur_rise"

    def check(self) -> None:
        check_at_least("steps", self.steps, 1)
        check_baseline(self.baseline)

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        return [Request.kept(self.baseline, equal_steps(image_shape.size("pixel"), self.steps))]

    def score(self, answers: Evaluation) -> Array:
        curve = self.curves(answers)["probability"].y
        rises = (np.diff(curve, axis=1) >= 0).mean(axis=1)
        return np.where(np.isnan(curve).any(axis=1), np.nan, rises)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        (need,) = self.requests(answers.image_shape)
        y = np.exp(answers.log_probability(need, self.explain_class, self.score_class))
        return {"probability": Curve(np.array(need.counts) / answers.image_shape.size("pixel"), y)}


_SKIPPLUS = {"skipplus": {"percent": True, "explain_class": "label", "score_class": "label"}}
_TOKEN_REMOVAL: dict[str, Any] = {"family": "token removal", "papers": ("mehri2024skipplus",), "presets": _SKIPPLUS}


@dataclass
class _TokenCurve(Metric):
    """Shared by the four. With ``percent``, a score is given as SkipPLUS gives it: in percent, up is better."""

    steps: int = 10
    percent: bool = False
    inserts: ClassVar[bool]
    rises: ClassVar[bool]
    """Whether a better map has a larger area."""

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.percent or self.rises

    def check(self) -> None:
        check_at_least("steps", self.steps, 2)

    def requests(self, image_shape: ImageShape) -> Sequence[RankedRemoval]:
        counts, _ = self._grid(image_shape)
        return [Request.kept(DROP, counts, "token") if self.inserts else Request.removed(DROP, counts, "token")]

    def _grid(self, image_shape: ImageShape) -> tuple[list[int], Array]:
        """Return counts and ratios, without those that would leave no token."""
        size = image_shape.size("token")
        ratios = [j / self.steps for j in (range(1, self.steps + 1) if self.inserts else range(self.steps))]
        points = [(round(rho * size), rho) for rho in ratios]
        points = [(k, rho) for k, rho in points if (k if self.inserts else size - k) > 0]
        return [k for k, _ in points], np.array([rho for _, rho in points])

    def _area(self, answers: Evaluation, curve: Array) -> Array:
        value = area(curve, self._grid(answers.image_shape)[1])
        if not self.percent:
            return value
        return 100 * (value if self.rises else 1 - value)


@dataclass
class _TokenAccuracy(_TokenCurve):
    needs_correctness: ClassVar[bool] = True

    def score(self, answers: Evaluation) -> Array:
        return self._area(answers, self.curves(answers)["accuracy"].y)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        (need,) = self.requests(answers.image_shape)
        return {"accuracy": Curve(self._grid(answers.image_shape)[1], answers.correct(need, self.explain_class))}


@dataclass
class _TokenAOPC(_TokenCurve):
    def score(self, answers: Evaluation) -> Array:
        clean = np.exp(answers.clean(self.score_class, self.explain_class))
        return self._area(answers, clean[:, None] - self.curves(answers)["probability"].y)

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        (need,) = self.requests(answers.image_shape)
        y = np.exp(answers.log_probability(need, self.explain_class, self.score_class))
        return {"probability": Curve(self._grid(answers.image_shape)[1], y)}


@register_metric("token_deletion_accuracy", **_TOKEN_REMOVAL)
@dataclass
class TokenDeletionAccuracy(_TokenAccuracy):
    """Area under top-1 accuracy as the most important tokens leave the sequence, 0 to 90 %.

    ``@skipplus`` explains and scores the true class and reports 100 - x, so that up is better. Cost: nine forwards per
    map on sequences of 10 to 90 %, about four and a half whole ones.
    """

    inserts, rises = False, False


@register_metric("token_insertion_accuracy", **_TOKEN_REMOVAL)
@dataclass
class TokenInsertionAccuracy(_TokenAccuracy):
    """Area under top-1 accuracy with only the most important tokens in the sequence, 10 to 100 %.

    ``@skipplus`` explains and scores the true class, in percent. Cost: as ``token_deletion_accuracy``.
    """

    inserts, rises = True, True


@register_metric("token_deletion_aopc", **_TOKEN_REMOVAL)
@dataclass
class TokenDeletionAOPC(_TokenAOPC):
    """Area under ``P(x) - P(x without the most important tokens)``, 0 to 90 % of them gone.

    ``@skipplus`` explains and scores the true class, in percent; its formula has the predicted class
    (``score_class=pred``). Cost: none beside ``token_deletion_accuracy``.
    """

    inserts, rises = False, True


@register_metric("token_insertion_aopc", **_TOKEN_REMOVAL)
@dataclass
class TokenInsertionAOPC(_TokenAOPC):
    """Area under ``P(x) - P(only the most important tokens)``, 10 to 100 % of them there.

    ``@skipplus`` explains and scores the true class and reports 100 - x, so that up is better. Cost: none beside
    ``token_insertion_accuracy``.
    """

    inserts, rises = True, False
