"""Metrics: what judges the maps. The state engine runs what they ask for, once; one file per family of metrics.

Third parties offer theirs under the entry-point group ``vitreous.metrics``.
"""

# Importing a family registers its metrics; the order is the order of the tables.
from vitreous.metrics import (  # noqa: F401  # isort: skip
    faithfulness,
    road,
    information,
    subsets,
    regions,
    masking,
    tokens,
    randomisation,
    robustness,
    complexity,
    parts,
    localisation,
)
from vitreous.metrics.base import Metric, Result
from vitreous.metrics.bins import Bin, bins
from vitreous.metrics.bootstrap import Difference, Interval, difference, intervals
from vitreous.metrics.curves import Curve
from vitreous.metrics.registry import Info, metric, metrics, register
from vitreous.metrics.states.answers import Answers
from vitreous.metrics.states.engine import Engine
from vitreous.metrics.states.need import (
    Drawn,
    Explained,
    Geometry,
    GivenMasks,
    Images,
    Masks,
    Measured,
    Need,
    RandomMasks,
    States,
    TruthOf,
    WithoutParts,
)
from vitreous.metrics.states.pool import Maps, Pool
from vitreous.metrics.states.substrate import SUBSTRATES, Substrate
from vitreous.words import listed_by

__all__ = [
    "SUBSTRATES",
    "Answers",
    "Bin",
    "Curve",
    "Difference",
    "Drawn",
    "Engine",
    "Explained",
    "Geometry",
    "GivenMasks",
    "Images",
    "Info",
    "Interval",
    "Maps",
    "Masks",
    "Measured",
    "Metric",
    "Need",
    "Pool",
    "RandomMasks",
    "Result",
    "States",
    "Substrate",
    "TruthOf",
    "WithoutParts",
    "bins",
    "difference",
    "intervals",
    "metric",
    "metrics",
    "register",
]

listed_by(__name__, metrics)
