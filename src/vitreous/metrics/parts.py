"""Known parts: does a map show the shortcut that a model is known to take?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.errors import SpellingError
from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array
from vitreous.metrics.registry import register
from vitreous.metrics.states.answers import Answers
from vitreous.metrics.states.need import Geometry, Need, TruthOf

__all__ = ["Shortcut"]


@register("shortcut", family="ground truth", papers=("geirhos2020shortcut",))
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
