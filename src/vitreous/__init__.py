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
    from vitreous.api import compare, explain, explain_each, load, method, question, view
    from vitreous.because import why
    from vitreous.bench.results import Results, results_of
    from vitreous.data import Truth, image_files, read_regions
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.judge.agreement import agreement, best_layers, layer_methods
    from vitreous.judge.birds import funnybirds
    from vitreous.judge.check import check
    from vitreous.judge.doctor import doctor
    from vitreous.judge.evaluate import evaluate
    from vitreous.judge.trial import trial
    from vitreous.methods import Method, effort, methods, register
    from vitreous.metrics import Metric, metric, metrics
    from vitreous.models import Preprocess, View, models
    from vitreous.passes.collect import statistics
    from vitreous.passes.statistics import Statistics
    from vitreous.results import Archive, Checkup, Comparison, Explanation, Question, Table
    from vitreous.results.agreement import Agreement
    from vitreous.results.birds import Birds
    from vitreous.results.pages import page
    from vitreous.results.trial import Trial

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
    "Agreement": "results.agreement",
    "Archive": "results",
    "Birds": "results.birds",
    "Checkup": "results",
    "Comparison": "results",
    "Explanation": "results",
    "Method": "methods",
    "Metric": "metrics",
    "Preprocess": "models",
    "Question": "results",
    "Results": "bench.results",
    "Statistics": "passes.statistics",
    "Table": "results",
    "Trial": "results.trial",
    "Truth": "data",
    "View": "models",
    "VitreousError": "errors",
    "VitreousWarning": "errors",
    "agreement": "judge.agreement",
    "best_layers": "judge.agreement",
    "check": "judge.check",
    "compare": "api",
    "doctor": "judge.doctor",
    "effort": "methods",
    "evaluate": "judge.evaluate",
    "explain": "api",
    "explain_each": "api",
    "funnybirds": "judge.birds",
    "image_files": "data",
    "layer_methods": "judge.agreement",
    "load": "api",
    "method": "api",
    "metric": "metrics",
    "page": "results.pages",
    "question": "api",
    "read_regions": "data",
    "register": "methods",
    "results_of": "bench.results",
    "statistics": "passes.collect",
    "trial": "judge.trial",
    "view": "api",
    "why": "because",
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
