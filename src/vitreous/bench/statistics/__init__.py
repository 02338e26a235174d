"""The statistics of a benchmark: pure functions of a table of scores. ``docs/bench-statistics.md`` explains each."""

from vitreous.bench.statistics.correlation import Correlation, correlations
from vitreous.bench.statistics.marks import Flag, flags, marks, own_perturbation
from vitreous.bench.statistics.paired import Compared, compared, detectable, holm, pairs_of
from vitreous.bench.statistics.ranks import Ranks, critical_difference, friedman, ranked, ranks, studentised_range
from vitreous.bench.statistics.seeds import Spread, averaged, seed_scores, spread
from vitreous.bench.statistics.summary import SCHEMA, Statistics
from vitreous.bench.statistics.swaps import swapped

__all__ = [
    "SCHEMA",
    "Compared",
    "Correlation",
    "Flag",
    "Ranks",
    "Spread",
    "Statistics",
    "averaged",
    "compared",
    "correlations",
    "critical_difference",
    "detectable",
    "flags",
    "friedman",
    "holm",
    "marks",
    "own_perturbation",
    "pairs_of",
    "ranked",
    "ranks",
    "seed_scores",
    "spread",
    "studentised_range",
    "swapped",
]
