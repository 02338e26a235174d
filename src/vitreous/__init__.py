"""Vitreous: look inside any vision transformer, unmodified, and see what made it decide.

    import vitreous as vt
    view = vt.load("timm/vit_base_patch16_224")
    e = vt.explain(view, "photo.jpg", method="generic", target="tabby")
    e.show()

Everything is imported when it is first used, so ``import vitreous`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitreous import world
    from vitreous.api import compare, explain, explain_each, question
    from vitreous.benchmark.results import Results, results_of
    from vitreous.datasets import Truth, image_files, read_regions
    from vitreous.decision_report import why
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.evaluation.agreement import agreement, best_layers, layer_methods
    from vitreous.evaluation.checks import check
    from vitreous.evaluation.diagnostics import doctor
    from vitreous.evaluation.evaluate import evaluate
    from vitreous.evaluation.funnybirds import funnybirds
    from vitreous.evaluation.meta_evaluation import trial
    from vitreous.methods import Method, effort, method, methods, register
    from vitreous.metrics import Metric, metric, metrics
    from vitreous.models import Preprocess, View, load, models, view
    from vitreous.results import Archive, Checkup, Comparison, Explanation, Question, Table
    from vitreous.results.diagnostics import Agreement, Trial
    from vitreous.results.funnybirds import Birds
    from vitreous.results.pages import page
    from vitreous.tracing.statistics import Statistics
    from vitreous.tracing.statistics_collect import statistics

__version__ = "0.1.0"

__all__ = [
    "Agreement",
    "Archive",
    "Birds",
    "Checkup",
    "Comparison",
    "Explanation",
    "Method",
    "Metric",
    "Preprocess",
    "Question",
    "Results",
    "Statistics",
    "Table",
    "Trial",
    "Truth",
    "View",
    "VitreousError",
    "VitreousWarning",
    "__version__",
    "agreement",
    "best_layers",
    "check",
    "compare",
    "doctor",
    "effort",
    "evaluate",
    "explain",
    "explain_each",
    "funnybirds",
    "image_files",
    "layer_methods",
    "load",
    "method",
    "methods",
    "metric",
    "metrics",
    "models",
    "page",
    "question",
    "read_regions",
    "register",
    "results_of",
    "statistics",
    "trial",
    "view",
    "why",
    "world",
]

_ROOMS = ("methods", "metrics", "models")  # packages that list their content when called
_HOMES = {
    "Agreement": "results.diagnostics",
    "Archive": "results",
    "Birds": "results.funnybirds",
    "Checkup": "results",
    "Comparison": "results",
    "Explanation": "results",
    "Method": "methods",
    "Metric": "metrics",
    "Preprocess": "models",
    "Question": "results",
    "Results": "benchmark.results",
    "Statistics": "tracing.statistics",
    "Table": "results",
    "Trial": "results.diagnostics",
    "Truth": "datasets",
    "View": "models",
    "VitreousError": "errors",
    "VitreousWarning": "errors",
    "agreement": "evaluation.agreement",
    "best_layers": "evaluation.agreement",
    "check": "evaluation.checks",
    "compare": "api",
    "doctor": "evaluation.diagnostics",
    "effort": "methods",
    "evaluate": "evaluation.evaluate",
    "explain": "api",
    "explain_each": "api",
    "funnybirds": "evaluation.funnybirds",
    "image_files": "datasets",
    "layer_methods": "evaluation.agreement",
    "load": "api",
    "method": "api",
    "metric": "metrics",
    "page": "results.pages",
    "question": "api",
    "read_regions": "datasets",
    "register": "methods",
    "results_of": "benchmark.results",
    "statistics": "tracing.statistics_collect",
    "trial": "evaluation.meta_evaluation",
    "view": "api",
    "why": "decision_report",
}


def _complete() -> None:
    """Hand the rooms what they cannot know: those above them do that when they are imported."""
    importlib.import_module("vitreous.api")


def __getattr__(name: str) -> Any:
    if name in _ROOMS or name == "world" or _HOMES.get(name) == "results":
        _complete()
    if name in _ROOMS or name == "world":
        return importlib.import_module(f"vitreous.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"vitreous.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'vitreous' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
