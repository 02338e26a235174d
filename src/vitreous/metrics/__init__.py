"""Metrics: what evaluates the maps. Equal states that they request run once; one file per family of metrics.

Other packages offer theirs under the entry-point group ``vitreous.metrics``.
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
from vitreous.metrics.baselines import BASELINES, Baseline
from vitreous.metrics.batch_runner import BatchRunner, EvaluationConfig
from vitreous.metrics.bootstrap import Bin, Difference, Interval, bins, difference, intervals
from vitreous.metrics.evaluation import Evaluation, Evaluator, Maps
from vitreous.metrics.ranking import Curve
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
    num_states,
)

__all__ = [
    "BASELINES",
    "AnnotationRequest",
    "Baseline",
    "BatchRunner",
    "Bin",
    "Curve",
    "Difference",
    "Evaluation",
    "EvaluationConfig",
    "Evaluator",
    "GivenMasks",
    "ImageShape",
    "Images",
    "Interval",
    "Maps",
    "Masks",
    "Measured",
    "Metric",
    "MetricInfo",
    "MetricResult",
    "RandomMasks",
    "RankedRemoval",
    "Reattribution",
    "RenderedStates",
    "Request",
    "WithoutParts",
    "bins",
    "difference",
    "get_metric",
    "intervals",
    "list_metrics",
    "num_states",
    "register_metric",
]
