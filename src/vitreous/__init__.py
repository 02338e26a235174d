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
    from vitreous.api import compare, explain, explain_each, load, method, view
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.evaluation import evaluate
    from vitreous.examine import doctor
    from vitreous.explanation import Comparison, Explanation
    from vitreous.images import image_files
    from vitreous.methods import Method, methods, register
    from vitreous.metrics import Metric, Table, metric, metrics
    from vitreous.models import Preprocess, View, models

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Explanation",
    "Method",
    "Metric",
    "Preprocess",
    "Table",
    "View",
    "VitreousError",
    "VitreousWarning",
    "__version__",
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
    "register",
    "view",
    "world",
]

_ROOMS = ("methods", "metrics", "models")  # packages that list their content when called
_HOMES = {
    "Comparison": "explanation",
    "Explanation": "explanation",
    "Method": "methods",
    "Metric": "metrics",
    "Preprocess": "models",
    "Table": "metrics",
    "View": "models",
    "VitreousError": "errors",
    "VitreousWarning": "errors",
    "compare": "api",
    "doctor": "examine",
    "evaluate": "evaluation",
    "explain": "api",
    "explain_each": "api",
    "image_files": "images",
    "load": "api",
    "method": "api",
    "metric": "metrics",
    "register": "methods",
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
