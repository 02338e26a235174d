"""Known parts: does a map weigh them as the model does, and does it show the shortcut that a model is known to take?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.errors import SpellingError
from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array
from vitreous.metrics.registry import register
from vitreous.metrics.similarity import spearman
from vitreous.metrics.states.answers import Answers
from vitreous.metrics.states.need import Geometry, Need, TruthOf, WithoutParts
from vitreous.metrics.states.substrate import check_substrate
from vitreous.words import at_least, check_choice

__all__ = ["PartCorrelation", "Shortcut"]


@register("shortcut", family="ground truth", builds_on=("geirhos2020shortcut",))
@dataclass
class Shortcut(Metric):
    """Share of the positive attribution that lies on a known part: ``sum_part max(a, 0) / sum max(a, 0)``.

    Higher: the map shows the part. That is good where the model is known to look there, as ``world-shortcut`` does at
    the marker (Geirhos et al. 2020 on shortcuts), and says nothing where it does not look. The values are those of the
    map at the pixels; ignored pixels count for nothing. A map without positive values scores 0. An image without the
    part, or in which none of it is seen, has no score. Cost: no states.
    """

    part: str = "marker"

    def check(self) -> None:
        if not isinstance(self.part, str) or not self.part.strip():
            raise SpellingError(f"part={self.part!r} is not the name of a part")

    def needs(self, geometry: Geometry) -> Sequence[Need]:
        return [TruthOf("parts")]

    def read(self, answers: Answers) -> Array:
        maps = answers.values(self.explain, grid="pixel")
        scores = np.full(len(maps), np.nan)
        for place, (truth, values) in enumerate(zip(answers.truth(), maps, strict=True)):
            mask = truth.parts.get(self.part)
            if mask is None or not np.any(mask) or np.isnan(values).any():
                continue
            mass = np.maximum(values, 0)
            if truth.ignore is not None:
                mass = np.where(truth.ignore, 0, mass)
            total = mass.sum()
            scores[place] = mass[np.asarray(mask, bool)].sum() / total if total > 0 else 0.0
        return scores


@register("part_correlation", family="ground truth", builds_on=("hesse2023funnybirds",))
@dataclass
class PartCorrelation(Metric):
    """Rank correlation between what a map gives to the known parts and what the model loses without each of them.

    ``spearman(sum_part a, v(x) - v(x without the part))`` over the parts that are seen, at least ``least`` of them; the
    part's pixels are replaced by the substrate, ``v`` is the ``logit`` of the scored class or its ``log_probability``.
    Higher is better. FunnyBirds' single deletion (Hesse et al. 2023) does the same with parts that are rendered away.
    0 where the map gives all parts the same; an image with fewer parts has no score. Cost: a forward per part and
    image, shared by all methods.
    """

    substrate: str = "mean_channel"
    value: str = "logit"
    least: int = 3

    def check(self) -> None:
        check_substrate(self.substrate)
        check_choice("value", self.value, ("logit", "log_probability"))
        at_least("least", self.least, 2)

    def needs(self, geometry: Geometry) -> Sequence[Need]:
        return [TruthOf("parts"), WithoutParts(self.substrate)]

    def read(self, answers: Answers) -> Array:
        maps = answers.values(self.explain, grid="pixel")
        clean = answers.clean_logit if self.value == "logit" else answers.clean
        whole = clean(self.score, self.explain)
        rows = answers.without(WithoutParts(self.substrate), self.score, self.explain, self.value)
        scores = np.full(len(maps), np.nan)
        for place, (truth, values, left) in enumerate(zip(answers.truth(), maps, rows, strict=True)):
            if len(left) < self.least or np.isnan(values).any():
                continue
            given = np.array([values[np.asarray(truth.parts[name], bool)].sum() for name in left])
            lost = np.array([whole[place] - value for value in left.values()])
            scores[place] = spearman(given[None, None], lost[None, None])[0]
        return scores
