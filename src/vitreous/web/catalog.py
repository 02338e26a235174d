"""What the page finds when it opens: models, methods, scenes, colours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vitreous as vt
from vitreous import viz as show
from vitreous.errors import VitreousError
from vitreous.methods.base import refuse_unfit  # what explain would refuse is known before it is asked for
from vitreous.registry.defaults import EFFORT_LEVELS
from vitreous.web.images import scenes
from vitreous.web.runs import titles

__all__ = ["classes_of", "methods_of", "start"]

_MOST_CLASSES = 50
_FIRST = ("generic", "gradcam", "skipplus(decompx)")
"""What stands beside the quick step when the page opens."""


def start(views: Mapping[str, vt.VisionModel], runs: Mapping[str, Path]) -> dict[str, Any]:
    """Return all that does not change while the server runs."""
    tables = {"signed": show.DIVERGING.tolist(), "unsigned": show.SEQUENTIAL.tolist()}
    return {
        "version": vt.__version__,
        "models": [_model(name, model) for name, model in views.items()],
        "runs": titles(runs),
        "scenes": scenes(),
        "methods": methods_of(next(iter(views.values()))),
        "efforts": [
            {"name": step, "spelling": {name: vt.recommended_method(step, model) for name, model in views.items()}}
            for step in EFFORT_LEVELS
        ],
        "colours": tables,
    }


def _model(name: str, model: vt.VisionModel) -> dict[str, Any]:
    height, width = model.grid()
    there = [each for each in _FIRST if _refusal(vt.get_method(each), model) is None]
    return {
        "name": name,
        "title": name,
        "grid": [height, width],
        "size": list(model.preprocess.size),
        "classes": max(model.num_classes, 2),
        "depth": model.depth,
        "heads": model.num_heads,
        "patches": height * width,
        "attends": model.attention,
        "default_methods": [EFFORT_LEVELS[0], *there],
    }


def methods_of(model: vt.VisionModel) -> list[dict[str, Any]]:
    """Return every method with what it costs on this model, or why it means nothing there."""
    return [_method(info, model) for info in vt.list_methods()]


def _method(info: Any, model: vt.VisionModel) -> dict[str, Any]:
    example = None if info.is_combinator else info.factory()
    refused = None if example is None else _refusal(example, model)
    there = example is not None and refused is None
    return {
        "name": info.name,
        "family": info.family,
        "summary": info.summary,
        "forwards": example.num_forwards(model) if there and example is not None else None,
        "backwards": example.cost[1] if there and example is not None else None,
        "cost": info.cost_text,
        "class_specific": None if info.is_combinator else info.class_specific,
        "combinator": info.is_combinator,
        "bases": info.num_bases,
        "grid": "token" if example is None else example.grid,
        "aliases": list(info.aliases),
        "presets": list(info.presets),
        "slow": info.is_slow,
        "layers": example is not None and (example.is_layerwise or example.has_layer_choice),
        **({} if refused is None else {"refused": refused}),
    }


def classes_of(model: vt.VisionModel, wanted: str) -> list[dict[str, Any]]:
    """Return the classes that fit some words best: by number, by how a name begins, by what it holds."""
    words = wanted.casefold().split()
    found = []
    for index in range(max(model.num_classes, 2)):
        label = model.label(index)
        whole = (model.class_names[index] if model.class_names and index < len(model.class_names) else label).casefold()
        if wanted.strip() == str(index):
            found.append((0, index, label))
        elif all(word in whole for word in words):
            each_begins = all(f" {word}" in f" {whole}" for word in words)
            rank = 1 if whole.startswith(" ".join(words)) else 2 if each_begins else 3
            found.append((rank, index, label))
    return [{"index": index, "label": label} for _, index, label in sorted(found)[:_MOST_CLASSES]]


def _refusal(how: vt.Method, model: vt.VisionModel) -> str | None:
    """Return why a method means nothing on a model, where that is known before it runs."""
    for part in how.components():
        if part.models == "ViT" and model.attention != "global":
            return f"{part.info.name} is not for {model.name}, whose attention does not reach everywhere"
    try:
        refuse_unfit([how], model)
        how.passes(model)
    except VitreousError as error:
        return str(error)
    return None
