"""Complexity: how few values a map needs. It is read from the map alone and says nothing about the model.

``a`` are the values of a map on one grid, ``n`` of them. Scores depend on the grid: the same map at the pixels is
smoother, and has more values, than at the tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitreous.metrics.base import Metric, register_metric
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import Array
from vitreous.registry import choice, number


@dataclass
class _Complexity(Metric):
    """Shared by all: the values of the map, no state, no further map."""

    grid: str = choice("own", "pixel", "token")

    def _values(self, evaluation: Evaluation) -> Array:
        values = evaluation.maps(self.grid)
        return values.reshape(len(values), -1)


@register_metric(
    "gini",
    family="complexity",
    aliases=("sparseness",),
    papers=("chalasani2020concise", "englebert2023explaining"),
    presets={
        "tis": {"grid": "pixel", "explain_class": "label", "normalization": "shift"},
        "quantus": {"normalization": "abs"},
    },
)
@dataclass
class Gini(_Complexity):
    r"""Gini index of the values: how unevenly the attribution is spread.

    .. math:: \frac{\sum_{i=1}^n (2 i - n - 1)\, a_{(i)}}{n \sum_i a_i}, \qquad a_{(1)} \le \dots \le a_{(n)}

    Parameters
    ----------
    grid : str, default "own"
        The map's own, ``"pixel"`` (enlarged) or ``"token"`` (pixels of a patch summed).
    normalization : str, default "shift_negative"
        The index is defined for values that are not negative: subtract the minimum of a map that has negative values,
        ``"shift"`` that of every map (TIS, as released), ``"abs"`` take absolute values (Quantus), ``"relu"`` the
        positive part.
    offset : float, default 1e-7
        Added to every value, as published code does: maps whose values are near it look flat.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    0 where all values are the same (also all zero), ``(n - 1) / n`` where one has everything. Higher is sparser, which
    is not better. Cost: one sort.

    References
    ----------
    Chalasani et al., "Concise Explanations of Neural Networks using Adversarial Training", 2020.

    Examples
    --------
    >>> table = vt.evaluate(model, images[:2], {"ramp": np.arange(128.0).reshape(2, 8, 8)}, "gini", controls=False)
    >>> table["ramp", "gini"].round(2).tolist()
    [0.34, 0.11]
    """

    normalization: str = choice("shift_negative", "shift", "abs", "relu")
    offset: float = number(1e-7, "[0, inf)")

    def score(self, evaluation: Evaluation) -> Array:
        values = self._values(evaluation)
        if self.normalization in ("shift_negative", "shift"):
            lowest = values.min(axis=1, keepdims=True)
            values = values - (np.minimum(lowest, 0) if self.normalization == "shift_negative" else lowest)
        else:
            values = np.abs(values) if self.normalization == "abs" else np.maximum(values, 0)
        values = np.sort(values + self.offset, axis=1)
        count = values.shape[1]
        total = count * values.sum(axis=1)
        weighted = values @ (2 * np.arange(1, count + 1) - count - 1.0)
        index = np.divide(weighted, total, out=np.zeros_like(weighted), where=total != 0)
        return np.where(values[:, 0] == values[:, -1], 0, index)


@register_metric("entropy", family="complexity", aliases=("complexity",), papers=("bhatt2020evaluating",))
@dataclass
class Entropy(_Complexity):
    r"""Entropy of the shares of the values, in nats.

    .. math:: -\sum_i p_i \ln p_i, \qquad p_i = \frac{|a_i|}{\sum_j |a_j|}

    Parameters
    ----------
    grid, explain_class, score_class
        As for `Gini`.

    Notes
    -----
    0 where one value has everything, ``ln n`` where all are the same; a zero map has ``ln n`` too, by definition. Lower
    is simpler, which is not better. Cost: no forwards.

    References
    ----------
    Bhatt, Weller and Moura, "Evaluating and Aggregating Feature-based Model Explanations", 2020.

    Examples
    --------
    >>> maps = {"flat": np.ones((1, 8, 8))}
    >>> table = vt.evaluate(model, images[:1], maps, "entropy", controls=False)
    >>> bool(table["flat", "entropy"][0] == np.log(64))
    True
    """

    higher_is_better = False

    def score(self, evaluation: Evaluation) -> Array:
        values = np.abs(self._values(evaluation))
        total = values.sum(axis=1, keepdims=True)
        shares = values / np.where(total == 0, 1, total)
        logs = np.log(np.where(shares == 0, 1, shares))
        return np.where(total[:, 0] == 0, math.log(values.shape[1]), -(shares * logs).sum(axis=1))


@register_metric("effective_complexity", family="complexity", papers=("nguyen2020quantitative",))
@dataclass
class EffectiveComplexity(_Complexity):
    r"""How many values count.

    .. math:: \left|\{i : |a_i| > \epsilon\}\right|

    Parameters
    ----------
    grid : str, default "own"
        As for `Gini`.
    threshold : float, default 1e-5
        What a value has to exceed.
    relative : bool, default False
        Multiply the threshold by the map's largest absolute value: only then can maps of different scales be compared.
    explain_class, score_class : str
        See `Metric`.

    Notes
    -----
    A zero map has none. Lower is simpler, which is not better. Cost: no forwards.

    References
    ----------
    Nguyen and Rodríguez Martínez, "On Quantitative Aspects of Model Interpretability", 2020.

    Examples
    --------
    >>> maps = {"one": np.eye(8)[None]}
    >>> table = vt.evaluate(model, images[:1], maps, "effective_complexity", controls=False)
    >>> table["one", "effective_complexity"].tolist()
    [8.0]
    """

    higher_is_better = False
    threshold: float = number(1e-5, "[0, inf)")
    relative: bool = False

    def score(self, evaluation: Evaluation) -> Array:
        values = np.abs(self._values(evaluation))
        largest = values.max(axis=1, keepdims=True) if self.relative else 1.0
        return np.where(np.isnan(values).any(axis=1), np.nan, (values > self.threshold * largest).sum(axis=1))
