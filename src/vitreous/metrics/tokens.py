"""Faithfulness by removed tokens: the model runs on a shorter sequence, nothing is painted over.

Patch tokens are ranked after the positional embedding, prefix tokens always stay. Removed or kept are
``round(rho N)`` of N tokens, ``rho`` in steps of a tenth; one end of the curve is the whole image, the other one, a
sequence without patches, is not run. A constant map is ranked by the tie key; one that is not finite has no score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array, Curve, area
from vitreous.metrics.registry import register
from vitreous.metrics.states.need import Geometry, Need, States
from vitreous.metrics.states.substrate import DROP
from vitreous.words import at_least

if TYPE_CHECKING:
    from vitreous.metrics.states.answers import Answers

__all__ = ["TokenDeletionAOPC", "TokenDeletionAccuracy", "TokenInsertionAOPC", "TokenInsertionAccuracy"]

_SKIPPLUS = {"skipplus": {"percent": True, "explain": "label", "score": "label"}}
_COMMON: dict[str, Any] = {"family": "token removal", "papers": ("mehri2024skipplus",), "presets": _SKIPPLUS}


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
        at_least("steps", self.steps, 2)

    def needs(self, geometry: Geometry) -> Sequence[States]:
        counts, _ = self._grid(geometry)
        return [Need.kept(DROP, counts, "token") if self.inserts else Need.removed(DROP, counts, "token")]

    def _grid(self, geometry: Geometry) -> tuple[list[int], Array]:
        """Return counts and ratios, without those that would leave no token."""
        size = geometry.size("token")
        ratios = [j / self.steps for j in (range(1, self.steps + 1) if self.inserts else range(self.steps))]
        points = [(round(rho * size), rho) for rho in ratios]
        points = [(k, rho) for k, rho in points if (k if self.inserts else size - k) > 0]
        return [k for k, _ in points], np.array([rho for _, rho in points])

    def _area(self, answers: Answers, curve: Array) -> Array:
        value = area(curve, self._grid(answers.geometry)[1])
        if not self.percent:
            return value
        return 100 * (value if self.rises else 1 - value)


@dataclass
class _TokenAccuracy(_TokenCurve):
    judges_labels: ClassVar[bool] = True

    def read(self, answers: Answers) -> Array:
        return self._area(answers, self.curves(answers)["accuracy"].y)

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        (need,) = self.needs(answers.geometry)
        return {"accuracy": Curve(self._grid(answers.geometry)[1], answers.correct(need, self.explain))}


@dataclass
class _TokenAOPC(_TokenCurve):
    def read(self, answers: Answers) -> Array:
        clean = np.exp(answers.clean(self.score, self.explain))
        return self._area(answers, clean[:, None] - self.curves(answers)["probability"].y)

    def curves(self, answers: Answers) -> Mapping[str, Curve]:
        (need,) = self.needs(answers.geometry)
        y = np.exp(answers.log_probability(need, self.explain, self.score))
        return {"probability": Curve(self._grid(answers.geometry)[1], y)}


@register("token_deletion_accuracy", **_COMMON)
@dataclass
class TokenDeletionAccuracy(_TokenAccuracy):
    """Area under top-1 accuracy as the most important tokens leave the sequence, 0 to 90 %.

    ``@skipplus`` explains and scores the true class and reports 100 - x, so that up is better. Cost: nine forwards per
    map on sequences of 10 to 90 %, about four and a half whole ones.
    """

    inserts, rises = False, False


@register("token_insertion_accuracy", **_COMMON)
@dataclass
class TokenInsertionAccuracy(_TokenAccuracy):
    """Area under top-1 accuracy with only the most important tokens in the sequence, 10 to 100 %.

    ``@skipplus`` explains and scores the true class, in percent. Cost: as ``token_deletion_accuracy``.
    """

    inserts, rises = True, True


@register("token_deletion_aopc", **_COMMON)
@dataclass
class TokenDeletionAOPC(_TokenAOPC):
    """Area under ``P(x) - P(x without the most important tokens)``, 0 to 90 % of them gone.

    ``@skipplus`` explains and scores the true class, in percent; its formula has the predicted class (``score=pred``).
    Cost: none beside ``token_deletion_accuracy``.
    """

    inserts, rises = False, True


@register("token_insertion_aopc", **_COMMON)
@dataclass
class TokenInsertionAOPC(_TokenAOPC):
    """Area under ``P(x) - P(only the most important tokens)``, 10 to 100 % of them there.

    ``@skipplus`` explains and scores the true class and reports 100 - x, so that up is better. Cost: none beside
    ``token_insertion_accuracy``.
    """

    inserts, rises = True, False
