"""Agreement between methods, or between the layers of one: how alike their maps of the same images are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from vitreous.errors import SpecError, VitreousError
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.explainers import named
from vitreous.methods import Method, get_method
from vitreous.metrics import Evaluation, Metric, MetricInfo
from vitreous.metrics.bootstrap import Cell, interval, mean, resampled
from vitreous.metrics.ranking import Array
from vitreous.metrics.similarity import SIMILARITIES, cka, similarity
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress
from vitreous.registry import check_choice
from vitreous.results import ScoreTable
from vitreous.results.diagnostics import Agreement

__all__ = ["agreement", "best_layers", "layer_methods"]


def agreement(
    model: VisionModel | nn.Module,
    data: Any,
    methods: Any,
    by: str = "spearman",
    *,
    grid: str = "token",
    target: Any = "pred",
    labels: Any = None,
    output: str | None = None,
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    n_bootstrap: int = 1000,
    seed: int = 0,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> Agreement:
    """Return how alike the maps of several methods are, for every pair of them, with bootstrap intervals over images.

    ``by``: ``spearman``, ``abs_spearman``, ``pearson``, ``cosine`` or ``ssim``, whose mean over the images is taken, or
    ``cka``, one number for all images. Maps are compared on the ``token`` grid (pixels summed into patches) or the
    ``pixel`` grid (coarser maps enlarged). ``methods``, ``data`` and all else are those of ``evaluate``; for the layers
    of one method give ``layer_methods(method, model)``. Cost: the maps; all of them are held at once.
    """
    check_choice("by", by, (*SIMILARITIES, "cka"))
    check_choice("grid", grid, ("token", "pixel"))
    if len(named(methods)) < 2:
        raise VitreousError(f"agreement needs at least two methods, got {len(named(methods))}")
    asked: dict[str, Any] = {
        "target": target,
        "labels": labels,
        "output": output,
        "class_subset": class_subset,
        "compare_classes": compare_classes,
    }
    how: dict[str, Any] = {"seed": seed, "memory_gb": memory_gb, "progress": progress, "n_bootstrap": n_bootstrap}
    table = evaluate(model, data, methods, _Kept(grid=grid), controls=False, **asked, **how)
    maps = [_maps(table.parts[name, table.metrics[0]]) for name in table.methods]
    count = len(maps)
    pairs = [(i, j) for i in range(count) for j in range(i, count)]
    if by == "cka":
        cells = [_cka_cell(maps[i], maps[j]) for i, j in pairs]
    else:
        cells = [(_similarities(by, maps[i], maps[j])[:, None], mean) for i, j in pairs]
    resamples, ones = resampled(cells, n_bootstrap, seed), np.ones((1, len(table.images)))
    ends = [interval(column) for column in resamples.T]
    whole = [float(aggregate(parts, ones)[0]) for parts, aggregate in cells]
    return Agreement(
        table.methods,
        table.images,
        by,
        grid,
        matrix=_square(pairs, np.array(whole)),
        low=_square(pairs, np.array([end.low for end in ends])),
        high=_square(pairs, np.array([end.high for end in ends])),
        per_image=None if by == "cka" else _square(pairs, np.stack([parts[:, 0] for parts, _ in cells], axis=-1)),
        plan={**table.plan, "metrics": {}, "resampling": {"n_bootstrap": n_bootstrap, "seed": seed}},
    )


def layer_methods(of: str | Method, model: VisionModel | nn.Module) -> dict[str, Method]:
    """Return one method at every layer of a model, by name: ``layer 0`` and so on.

    Any method with a ``layer`` of its own can be moved: ``iba``, ``raw_attention``, ``gradcam`` and all CAMs, ``ixg``,
    ``decompx`` … Layers where it has nothing to see are left out.
    """
    how, seen = get_method(of), wrap(model)
    if "layer" not in {parameter.name for parameter in how.info.parameters}:
        raise SpecError(f"{how.spec} has no layer that could be another one")
    layers = [layer for layer in range(seen.depth) if not how.has_layer_choice or how.at_layer(seen, layer) is not None]
    moved: Any = how
    return {f"layer {layer}": replace(moved, layer=layer) for layer in layers}


def best_layers(table: ScoreTable, metric: str) -> dict[str, float]:
    """Return for how many images each method (or layer) has the best score; equal ones share an image evenly.

    Images for which no method has a score count for none.
    """
    scores = np.stack([table[name, metric] for name in table.methods], axis=1)
    scores = scores[~np.isnan(scores).all(axis=1)]
    if not table.higher_is_better[metric]:
        scores = -scores
    best = scores == np.nanmax(scores, axis=1, keepdims=True) if len(scores) else scores
    shares = (best / np.maximum(best.sum(axis=1, keepdims=True), 1)).sum(axis=0)
    return dict(zip(table.methods, shares.tolist(), strict=True))


@dataclass
class _Kept(Metric):
    """The maps themselves as parts: rows and columns of their grid, then every value. Cost: none."""

    grid: str = "token"

    def score(self, evaluation: Evaluation) -> Array:
        values = evaluation.maps(self.grid)
        size = np.tile(np.array(values.shape[1:], np.float64), (len(values), 1))
        return np.concatenate([size, values.reshape(len(values), -1)], axis=1)


_Kept.info = MetricInfo("maps", "agreement", _Kept)


def _maps(parts: Array) -> Array:
    height, width = parts[0, :2].astype(int)
    return parts[:, 2:].reshape(len(parts), height, width)


def _similarities(by: str, one: Array, other: Array) -> Array:
    """Return the similarity of every pair; NaN where either map was left out."""
    return np.where(np.isnan(other).all(axis=(1, 2)), np.nan, similarity(by, one, other))


def _cka_cell(one: Array, other: Array) -> Cell:
    rows = [each.reshape(len(each), -1) for each in (one, other)]
    return np.concatenate(rows, axis=1), partial(_cka, width=rows[0].shape[1])


def _cka(parts: Array, weights: Array, width: int) -> Array:
    return cka(parts[:, :width, None], parts[:, width:, None], weights)


def _square(pairs: Sequence[tuple[int, int]], values: Array) -> Array:
    """Return a symmetric matrix ``[..., M, M]`` of the values ``[..., pairs]``."""
    count = max(j for _, j in pairs) + 1
    made = np.empty((*values.shape[:-1], count, count))
    for place, (i, j) in enumerate(pairs):
        made[..., i, j] = made[..., j, i] = values[..., place]
    return made
