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
    from vitreous.archive import Archive
    from vitreous.checkup import Checkup
    from vitreous.collect import statistics
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.evaluation import evaluate
    from vitreous.examine import doctor
    from vitreous.explanation import Comparison, Explanation
    from vitreous.identity import Question
    from vitreous.images import image_files
    from vitreous.methods import Method, methods, register
    from vitreous.metrics import Metric, Table, metric, metrics
    from vitreous.models import Preprocess, View, models
    from vitreous.passes.statistics import Statistics
    from vitreous.trust import check

__version__ = "0.1.0"

__all__ = [
    "Archive",
    "Checkup",
    "Comparison",
    "Explanation",
    "Method",
    "Metric",
    "Preprocess",
    "Question",
    "Statistics",
    "Table",
    "View",
    "VitreousError",
    "VitreousWarning",
    "__version__",
    "check",
    "compare",
    "doctor",
    "evaluate",
    "explain",
    "explain_each",
    "image_files",
    "load",
    "method",
    "methods",
    "metric",
    "metrics",
    "models",
    "question",
    "register",
    "statistics",
    "view",
    "world",
]

_ROOMS = ("methods", "metrics", "models")  # packages that list their content when called
_HOMES = {
    "Archive": "archive",
    "Checkup": "checkup",
    "Comparison": "explanation",
    "Explanation": "explanation",
    "Method": "methods",
    "Metric": "metrics",
    "Preprocess": "models",
    "Question": "identity",
    "Statistics": "passes.statistics",
    "Table": "metrics",
    "View": "models",
    "VitreousError": "errors",
    "VitreousWarning": "errors",
    "check": "trust",
    "compare": "api",
    "doctor": "examine",
    "evaluate": "evaluation",
    "explain": "api",
    "explain_each": "api",
    "image_files": "images",
    "load": "api",
    "method": "api",
    "question": "api",
    "metric": "metrics",
    "register": "methods",
    "statistics": "collect",
    "view": "api",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS or name == "world":
        return importlib.import_module(f"vitreous.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"vitreous.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'vitreous' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
