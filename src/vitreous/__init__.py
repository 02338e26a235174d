"""Vitreous: look inside any vision model, unmodified, and see what made it decide.

    import vitreous as vt
    model = vt.load("timm/vit_base_patch16_224")
    e = vt.explain(model, "photo.jpg", method="generic", target="tabby")
    e.show()

Everything is imported when it is first used, so ``import vitreous`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous import world
    from vitreous.api import compare, explain, iter_explanations
    from vitreous.benchmark.results import BenchmarkResults, load_run, run_benchmark
    from vitreous.datasets import Annotation, load_annotations
    from vitreous.decision_report import Why, why
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.evaluation.checks import check
    from vitreous.evaluation.diagnostics import agreement, diagnose
    from vitreous.evaluation.evaluate import evaluate
    from vitreous.evaluation.funnybirds import funnybirds
    from vitreous.evaluation.meta_evaluation import meta_evaluate
    from vitreous.methods import Method, get_method, list_methods, recommended_method, register_method
    from vitreous.metrics import Metric, get_metric, list_metrics, register_metric
    from vitreous.models import Preprocess, VisionModel, list_models, load, register_adapter, wrap
    from vitreous.results import (
        Agreement,
        Archive,
        CheckResult,
        Comparison,
        Diagnosis,
        Explanation,
        FunnyBirdsResult,
        MetaEvaluation,
        ScoreTable,
        to_html,
    )
    from vitreous.tracing.statistics import ActivationStats
    from vitreous.tracing.statistics_collect import collect_activation_stats

__version__ = "0.1.0"

__all__ = [
    "ActivationStats",
    "Agreement",
    "Annotation",
    "Archive",
    "BenchmarkResults",
    "CheckResult",
    "Comparison",
    "Diagnosis",
    "Explanation",
    "FunnyBirdsResult",
    "MetaEvaluation",
    "Method",
    "Metric",
    "Preprocess",
    "ScoreTable",
    "VisionModel",
    "VitreousError",
    "VitreousWarning",
    "Why",
    "__version__",
    "agreement",
    "check",
    "collect_activation_stats",
    "compare",
    "diagnose",
    "evaluate",
    "explain",
    "funnybirds",
    "get_method",
    "get_metric",
    "iter_explanations",
    "list_methods",
    "list_metrics",
    "list_models",
    "load",
    "load_annotations",
    "load_run",
    "meta_evaluate",
    "recommended_method",
    "register_adapter",
    "register_method",
    "register_metric",
    "run_benchmark",
    "to_html",
    "why",
    "world",
    "wrap",
]

_MODULES = {
    "api": ("compare", "explain", "iter_explanations"),
    "benchmark.results": ("BenchmarkResults", "load_run", "run_benchmark"),
    "datasets": ("Annotation", "load_annotations"),
    "decision_report": ("Why", "why"),
    "errors": ("VitreousError", "VitreousWarning"),
    "evaluation.checks": ("check",),
    "evaluation.diagnostics": ("agreement", "diagnose"),
    "evaluation.evaluate": ("evaluate",),
    "evaluation.funnybirds": ("funnybirds",),
    "evaluation.meta_evaluation": ("meta_evaluate",),
    "methods": ("Method", "get_method", "list_methods", "recommended_method", "register_method"),
    "metrics": ("Metric", "get_metric", "list_metrics", "register_metric"),
    "models": ("Preprocess", "VisionModel", "list_models", "load", "register_adapter", "wrap"),
    "tracing.statistics": ("ActivationStats",),
    "tracing.statistics_collect": ("collect_activation_stats",),
}
"""Where public names are; those that are not here are in ``results``."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "world":
        return importlib.import_module("vitreous.world")
    if name in __all__:
        return getattr(importlib.import_module(f"vitreous.{_MODULE_OF.get(name, 'results')}"), name)
    raise AttributeError(f"module 'vitreous' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
