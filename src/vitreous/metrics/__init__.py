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
from vitreous.metrics.base import Metric, MetricInfo, get_metric, list_metrics, register_metric
from vitreous.metrics.baselines import BASELINES
from vitreous.metrics.batch_runner import BatchRunner, EvaluationConfig
from vitreous.metrics.bootstrap import bins, difference, intervals
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
    "BatchRunner",
    "Curve",
    "Evaluation",
    "EvaluationConfig",
    "Evaluator",
    "GivenMasks",
    "ImageShape",
    "Images",
    "Maps",
    "Masks",
    "Measured",
    "Metric",
    "MetricInfo",
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
