"""Metrics: what judges the maps. The state engine runs what they ask for, once; one file per family of metrics.

Third parties offer theirs under the entry-point group ``vitreous.metrics``.
"""

# Importing a family registers its metrics; the order is the order of the tables.
from vitreous.metrics import (  # noqa: F401  # isort: skip
    faithfulness,
    masking,
    tokens,
)
from vitreous.metrics.base import Metric, Result
from vitreous.metrics.bins import Bin, bins
from vitreous.metrics.bootstrap import Difference, Interval, difference, intervals
from vitreous.metrics.registry import Info, metric, metrics, register
from vitreous.metrics.states.engine import Engine
from vitreous.metrics.states.need import Geometry, Need
from vitreous.metrics.states.pool import Answers, Maps, Pool
from vitreous.metrics.states.substrate import SUBSTRATES, Substrate
from vitreous.words import listed_by

__all__ = [
    "SUBSTRATES",
    "Answers",
    "Bin",
    "Difference",
    "Engine",
    "Geometry",
    "Info",
    "Interval",
    "Maps",
    "Metric",
    "Need",
    "Pool",
    "Result",
    "Substrate",
    "bins",
    "difference",
    "intervals",
    "metric",
    "metrics",
    "register",
]

listed_by(__name__, metrics)
