"""What the page finds when it opens: models, methods, scenes, colours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vitreous as vt
from vitreous import show
from vitreous.errors import VitreousError
from vitreous.explorer.pictures import scenes
from vitreous.words.defaults import STEPS

if TYPE_CHECKING:
    from vitreous.explorer.asking import Desk

__all__ = ["methods_of", "start"]

_FIRST = ("generic", "gradcam", "skipplus(decompx)")
"""What stands beside the quick step when the page opens."""


def start(desk: Desk, runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return all that does not change while the server runs."""
    views = desk.models
    tables = {"signed": show.DIVERGING.tolist(), "unsigned": show.SEQUENTIAL.tolist()}
    return {
        "version": vt.__version__,
        "models": [_model(name, view) for name, view in views.items()],
        "runs": [{"id": name, "title": path.name} for name, path in runs.items()],
        "scenes": scenes(),
        "methods": methods_of(next(iter(views.values()))),
        "efforts": [
            {"name": step, "spelling": {name: vt.effort(step, view) for name, view in views.items()}} for step in STEPS
        ],
        "colours": tables,
    }


def _model(name: str, view: vt.View) -> dict[str, Any]:
    high, wide = view.grid()
    wanted = [vt.effort("quick", view), *_FIRST]
    return {
        "name": name,
        "title": name,
        "grid": [high, wide],
        "size": list(view.preprocess.size),
        "classes": max(view.classes, 2),
        "depth": view.depth,
        "heads": view.heads,
        "patches": high * wide,
        "attends": view.attends,
        "default_methods": [each for each in wanted if _refusal(vt.method(each), view) is None],
    }


def methods_of(view: vt.View) -> list[dict[str, Any]]:
    """Return every method with what it costs on this model, or why it means nothing there."""
    return [_method(info, view) for info in vt.methods()]


def _method(info: Any, view: vt.View) -> dict[str, Any]:
    example = None if info.combines else info.make()
    refused = None if example is None else _refusal(example, view)
    there = example is not None and refused is None
    return {
        "name": info.name,
        "family": info.family,
        "summary": info.summary,
        "forwards": example.forwards(view) if there and example is not None else None,
        "backwards": example.cost[1] if there and example is not None else None,
        "cost": info.cost_text,
        "class_specific": None if info.combines else info.class_specific,
        "combinator": info.combines,
        "bases": info.bases,
        "grid": "token" if example is None else example.grid,
        "aliases": list(info.aliases),
        "presets": list(info.presets),
        "slow": info.slow,
        **({} if refused is None else {"refused": refused}),
    }


def _refusal(how: vt.Method, view: vt.View) -> str | None:
    try:
        how.asks(view)
    except VitreousError as error:
        return str(error)
    return None
