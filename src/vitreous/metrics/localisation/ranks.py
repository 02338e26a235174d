"""Do the pixels that a map ranks first lie in the region?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vitreous.metrics.localisation.shared import Localisation, Place, tie_groups, top_hits
from vitreous.metrics.registry import register
from vitreous.words import at_least, check_choice

__all__ = ["LocalisationAUC", "RelevanceRank", "TopKIntersection"]


@dataclass
class _Top(Localisation):
    """Shared by both: ``ties=expected`` is the mean over all orders of equal values, ``random`` a seeded one."""

    ties: str = field(default="expected", kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def check(self) -> None:
        super().check()
        check_choice("ties", self.ties, ("expected", "random"))
        at_least("seed", self.seed, 0)

    def _hits(self, place: Place, count: int) -> float:
        return top_hits(place.values, place.inside, count, self.ties, self.seed)


@register("relevance_rank", family="localisation", aliases=("rra",), papers=("arras2022clevr",))
@dataclass
class RelevanceRank(_Top):
    """Relevance rank accuracy: of as many top-ranked pixels as the region has, the share that lies in it.

    ``|top-|R| and R| / |R|``. Equal values: ``ties=expected`` (the mean over all their orders) or ``random`` (a key
    from ``seed``, the same for all maps). A constant map has ``rho``. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        size = int(place.inside.sum())
        return self._hits(place, size) / size


@register(
    "top_k_intersection",
    family="localisation",
    aliases=("top_k",),
    papers=("theiner2022interpretable",),
    presets={"quantus": {"k": 1000}},
)
@dataclass
class TopKIntersection(_Top):
    """Share of the ``k`` top-ranked pixels that lie in the region.

    Of all pixels where there are fewer than ``k``; at best ``|R| / k`` where the region is smaller. Ties as for
    ``relevance_rank``; a constant map has ``rho``. Cost: no forwards.
    """

    k: int = 1000

    def check(self) -> None:
        super().check()
        at_least("k", self.k, 1)

    def measure(self, place: Place) -> float:
        count = min(self.k, len(place.values))
        return self._hits(place, count) / count


@register("localisation_auc", family="localisation", aliases=("auroc",), papers=("fawcett2006introduction",))
@dataclass
class LocalisationAUC(Localisation):
    """Area under the ROC curve: how often a pixel of the region is above one outside, equal values being half.

    A constant map, or chance, has 0.5. No score where the region is everything. Cost: no forwards.
    """

    def measure(self, place: Place) -> float:
        hits, sizes = tie_groups(place.values, place.inside)
        misses = sizes - hits
        below = misses.sum() - np.cumsum(misses)
        if not misses.sum():
            return float("nan")
        return float((hits * (below + misses / 2)).sum() / (hits.sum() * misses.sum()))
