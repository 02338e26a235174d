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
    from vitreous.api import (
        compare,
        explain,
        get_method,
        iter_explanations,
        list_methods,
        list_metrics,
        list_models,
        load,
        wrap,
    )
    from vitreous.api import (
        question as question,
    )
    from vitreous.benchmark.results import BenchmarkResults, load_run, run_benchmark
    from vitreous.datasets import Annotation, load_annotations
    from vitreous.datasets import image_files as image_files
    from vitreous.decision_report import Why, why
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.evaluation.agreement import agreement
    from vitreous.evaluation.agreement import best_layers as best_layers
    from vitreous.evaluation.agreement import layer_methods as layer_methods
    from vitreous.evaluation.checks import check
    from vitreous.evaluation.diagnostics import Diagnosis, diagnose
    from vitreous.evaluation.evaluate import evaluate
    from vitreous.evaluation.funnybirds import funnybirds
    from vitreous.evaluation.meta_evaluation import meta_evaluate
    from vitreous.methods import Method, recommended_method, register_method
    from vitreous.metrics import Metric, get_metric, register_metric
    from vitreous.models import Preprocess, VisionModel, register_adapter
    from vitreous.results import Archive, CheckResult, Comparison, Explanation, ScoreTable
    from vitreous.results import Question as Question
    from vitreous.results.diagnostics import Agreement, MetaEvaluation
    from vitreous.results.funnybirds import FunnyBirdsResult
    from vitreous.results.pages import to_html
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

_HOMES = {
    "ActivationStats": "tracing.statistics",
    "Agreement": "results.diagnostics",
    "Annotation": "datasets",
    "Archive": "results",
    "BenchmarkResults": "benchmark.results",
    "CheckResult": "results",
    "Comparison": "results",
    "Diagnosis": "evaluation.diagnostics",
    "Explanation": "results",
    "FunnyBirdsResult": "results.funnybirds",
    "MetaEvaluation": "results.diagnostics",
    "Method": "methods",
    "Metric": "metrics",
    "Preprocess": "models",
    "Question": "results",
    "ScoreTable": "results",
    "VisionModel": "models",
    "VitreousError": "errors",
    "VitreousWarning": "errors",
    "Why": "decision_report",
    "agreement": "evaluation.agreement",
    "best_layers": "evaluation.agreement",
    "check": "evaluation.checks",
    "collect_activation_stats": "tracing.statistics_collect",
    "compare": "api",
    "diagnose": "evaluation.diagnostics",
    "evaluate": "evaluation.evaluate",
    "explain": "api",
    "funnybirds": "evaluation.funnybirds",
    "get_method": "api",
    "get_metric": "metrics",
    "image_files": "datasets",
    "iter_explanations": "api",
    "layer_methods": "evaluation.agreement",
    "list_methods": "api",
    "list_metrics": "api",
    "list_models": "api",
    "load": "api",
    "load_annotations": "datasets",
    "load_run": "benchmark.results",
    "meta_evaluate": "evaluation.meta_evaluation",
    "question": "api",
    "recommended_method": "methods",
    "register_adapter": "models",
    "register_method": "methods",
    "register_metric": "metrics",
    "run_benchmark": "benchmark.results",
    "to_html": "results.pages",
    "why": "decision_report",
    "wrap": "api",
}


def _connect() -> None:
    """Register the bundled models and give explanations their check: the packages below ``api`` cannot import them."""
    importlib.import_module("vitreous.api")


def __getattr__(name: str) -> Any:
    if name == "world":
        _connect()
        return importlib.import_module("vitreous.world")
    if name in _HOMES:
        if _HOMES[name] == "results":
            _connect()
        return getattr(importlib.import_module(f"vitreous.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'vitreous' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
