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
from vitreous.metrics.base import Metric, MetricInfo, MetricResult, get_metric, list_metrics, register_metric
from vitreous.metrics.baselines import SUBSTRATES, Baseline
from vitreous.metrics.batch_runner import BatchRunner
from vitreous.metrics.bootstrap import Bin, Difference, Interval, bins, difference, intervals
from vitreous.metrics.config import EvaluationConfig
from vitreous.metrics.curves import Curve
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.evaluator import Evaluator, Maps
from vitreous.metrics.requests import (
    AnnotationRequest,
    GivenMasks,
    Images,
    ImageShape,
    Masks,
    Measured,
    RandomMasks,
    RankedRemoval,
    Reattribution,
    RenderedStates,
    Request,
    WithoutParts,
)

__all__ = [
    "SUBSTRATES",
    "Evaluation",
    "EvaluationConfig",
    "Bin",
    "Curve",
    "Difference",
    "RenderedStates",
    "BatchRunner",
    "Reattribution",
    "ImageShape",
    "GivenMasks",
    "Images",
    "MetricInfo",
    "Interval",
    "Maps",
    "Masks",
    "Measured",
    "Metric",
    "Request",
    "Evaluator",
    "RandomMasks",
    "MetricResult",
    "RankedRemoval",
    "Baseline",
    "AnnotationRequest",
    "WithoutParts",
    "bins",
    "difference",
    "intervals",
    "get_metric",
    "list_metrics",
    "register_metric",
]
