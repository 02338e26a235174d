"""Metrics: what judges the maps. The state engine runs what they ask for, once; one file per family of metrics.

Third parties offer theirs under the entry-point group ``vitreous.metrics``.
"""

# Importing a family registers its metrics; the order is the order of the tables.
from vitreous.metrics import (  # noqa: F401  # isort: skip
    pixel_removal,
    removal_curves,
    information_curves,
    subset_correlation,
    randomization,
    robustness,
    complexity,
    localization,
    segmentation,
)
from vitreous.metrics.base import Info, Metric, Result, metric, metrics, register
from vitreous.metrics.baselines import SUBSTRATES, Substrate
from vitreous.metrics.batch_runner import Engine
from vitreous.metrics.bootstrap import Bin, Difference, Interval, bins, difference, intervals
from vitreous.metrics.curves import Curve
from vitreous.metrics.evaluation import Answers
from vitreous.metrics.evaluator import Maps, Pool
from vitreous.metrics.requests import (
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
from vitreous.registry import listed_by

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
