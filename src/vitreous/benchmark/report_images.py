"""The images that a method did best and worst on, with maps; what the model was sampled on the way; and the figures.

Figures are those that a protocol asks for; without a word in the protocol: curves, and difficulty bins where there are
enough images. They need matplotlib.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.data import ImageSource
from vitreous.errors import VitreousError, one_line
from vitreous.evaluation.plan import image_shape_of
from vitreous.html import number
from vitreous.metrics import RankedRemoval
from vitreous.metrics.bootstrap import THIN
from vitreous.metrics.perturb import perturbed
from vitreous.models import VisionModel
from vitreous.registry.defaults import CONTROLS, display_name
from vitreous.results.table_plots import sweeps
from vitreous.viz import Scale, overlay, plots

_IMAGES, _MAPS, _STEPS = 3, 5, 6
_USUAL = ("curves", "bins")
_MOST_LINES = 10
_MOST_BINS = 20

Tile = tuple[Image.Image, str, str]
"""A picture, its title and the words below."""


@dataclass(frozen=True)
class ReportImages:
    """The best and worst images by heading, and strips of two of them; ``why`` says that there are none.

    An image is a row of tiles, itself and its maps, or why it cannot be shown.
    """

    text: str = ""
    why: str = ""
    blocks: Sequence[tuple[str, Sequence[list[Tile] | str]]] = ()
    strips_text: str = ""
    strips: Sequence[tuple[str, Sequence[Tile]]] = ()


def best_and_worst(result: ModelResult, source: ImageSource) -> ReportImages:
    """Return the best and worst images with maps, and strips of two of them."""
    metric = _sound_metric(result)
    order = result.order(metric)
    if not order:
        return ReportImages()
    if result.scores.data not in source.lookups:
        return ReportImages(why=source.why)
    method = result.reference if result.reference in order else order[0]
    assert method is not None
    signed = result.table[method, metric] * (1 if result.table.higher_is_better[metric] else -1)
    ranked = [int(row) for row in np.argsort(-signed, kind="stable") if not math.isnan(signed[row])]
    count = min(_IMAGES, len(ranked) // 2)
    methods = list(dict.fromkeys([method, *order]))[:_MAPS]
    best, worst = (
        [_image_row(result, source, row, methods, metric) for row in rows[:count]] for rows in (ranked, ranked[::-1])
    )
    title = display_name(method)
    text = (
        f"By {metric} of {title}; under each map its own score. Every map has its own scale: red speaks "
        "for the explained class, blue against it; maps without a sign go from dark to bright."
    )
    if result.table.seed_sd:
        text += f" Maps are those of seed {result.scores.seeds[0]}, scores the means over all seeds."
    rows = [ranked[0], ranked[-1]] if count else []
    blocks = [(f"Best for {title}", best), (f"Worst for {title}", worst)]
    return ReportImages(text, "", blocks, *_strips(result, source, method, metric, rows))


def _sound_metric(result: ModelResult) -> str:
    """Return the first metric that did not fail its meta-evaluation, or else the first."""
    for metric, verdict in result.table.meta_verdicts.items():
        if verdict is not None and verdict.verdict not in ("fails", "blind"):
            return metric
    return result.table.metrics[0]


def _image_row(result: ModelResult, source: ImageSource, row: int, methods: list[str], metric: str) -> list[Tile] | str:
    scores, table = result.scores, result.table
    try:
        image = source.image(scores.config, scores.digests[row])
    except VitreousError as error:
        return f"{table.images[row]}: {one_line(str(error))}"
    probability = table.confidence["pred"][row] if "pred" in table.confidence else math.nan
    tiles = [(image, table.images[row], "" if math.isnan(probability) else f"predicted with {probability:.2f}")]
    digits = result.column(metric).digits
    for name in methods:
        map = scores.map(scores.digests[row], name)
        if map is not None:
            value = number(float(table[name, metric][row]), digits)
            tiles.append((overlay(image, map, Scale.of([map])), display_name(name), value))
    return tiles


def _strips(
    result: ModelResult, source: ImageSource, method: str, first: str, rows: list[int]
) -> tuple[str, list[tuple[str, list[Tile]]]]:
    """Return what the model was sampled for two images, with the values of the stored curve."""
    if source.model is None or not rows:
        return "", []
    config = result.scores.config
    try:
        model = source.model(config)
    except VitreousError as error:
        return f"Strips are not sampled: {one_line(str(error))}.", []
    shape = image_shape_of(model, config.size)
    for metric in dict.fromkeys([first, *result.table.metrics]):
        for request in result.table.definitions[metric].requests(shape).values():
            if isinstance(request, RankedRemoval) and request.by == "map" and len(request.spans) > 2:
                strips = [_strip(result, source, model, method, metric, request, row) for row in rows]
                text = f"In the order of {display_name(method)}'s map, as {metric} changes the picture; "
                text += "below each, the value that the stored curve has there."
                return text, [strip for strip in strips if strip[1]]
    return "", []


def _strip(
    result: ModelResult,
    source: ImageSource,
    model: VisionModel,
    method: str,
    metric: str,
    request: RankedRemoval,
    row: int,
) -> tuple[str, list[Tile]]:
    """Return an image by its name in some of the states of a metric."""
    scores, name = result.scores, result.table.images[row]
    config, digest = scores.config, scores.digests[row]
    map = scores.map(digest, method, result.table.definitions[metric].explain_class)
    if map is None:
        return name, []
    steps = sorted({round(at) for at in np.linspace(0, len(request.spans) - 1, _STEPS)})
    sampled = replace(request, spans=tuple(request.spans[step] for step in steps))
    evaluation = config.evaluation
    states = perturbed(
        model,
        model.preprocess.to_tensor(source.image(config, digest))[None],
        torch.as_tensor(np.asarray(map))[None],
        sampled,
        interpolation=evaluation.interpolation,
        tie_breaking=evaluation.tie_breaking,
        seed=scores.seeds[0],
    )[0]
    curves = scores.tables[0].curves.get((method, metric), {}).values()
    curve = next((curve for curve in curves if len(curve.x) == len(request.spans)), None)
    total = math.prod(config.size) if request.unit == "pixel" else max(max(span) for span in request.spans)
    word = "put back" if request.keep else "removed"
    tiles = []
    for step, state, count in zip(steps, states, sampled.counts, strict=True):
        value = "" if curve is None else number(float(curve.y[row, step]), 2)
        tiles.append((model.preprocess.to_image(state), f"{count / total:.0%} {word}", value))
    return name, tiles


# -- figures -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawing:
    """A figure as a ``data:`` address with words for it."""

    uri: str
    words: str
    is_wide: bool


@dataclass(frozen=True)
class Figures:
    """The figures of a table with intervals; ``reasons`` name what could not be drawn."""

    text: str = ""
    drawings: Sequence[Drawing] = ()
    reasons: Sequence[str] = ()


@dataclass(frozen=True)
class _Plot:
    """One figure to be: what ``ScoreTable.plot`` is asked for."""

    kind: str
    metric: str | None
    methods: list[str]
    options: dict[str, Any] = field(default_factory=dict)


def draw_figures(result: ModelResult) -> Figures:
    """Return the figures that the protocol asks for, or the usual ones."""
    asked = result.protocol.layout.figures
    wanted: list[_Plot] = []
    reasons: dict[str, None] = {}
    for kind in asked or _USUAL:
        try:
            wanted += _plots(result, kind)
        except VitreousError as error:
            reasons[f"No {kind}: {error}."] = None
    if not asked:
        reasons.clear()  # what nobody asked for is not missed
    if not wanted:
        return Figures(reasons=tuple(reasons))
    try:
        plots.require()
    except VitreousError as error:
        return Figures(reasons=[f"Not drawn: {error}."])
    drawings = []
    for plot in wanted:
        try:
            drawings.append(_draw(result, plot))
        except VitreousError as error:
            reasons[f"No {plot.kind}{f' of {plot.metric}' if plot.metric else ''}: {error}."] = None
    return Figures(_figures_text(result, {plot.kind for plot in wanted}), drawings, tuple(reasons))


def _figures_text(result: ModelResult, kinds: set[str]) -> str:
    text = "Bands and lines are 95 % bootstrap intervals over the pictures."
    if {"curves", "bins", "radar"} & kinds and len(result.rows) > _MOST_LINES:
        text += f" Curves and bins have the {_MOST_LINES} methods with the best mean ranks, and random."
    return f"{text} Every bin has as many pictures, at least {THIN}." if "bins" in kinds else text


def _plots(result: ModelResult, kind: str) -> list[_Plot]:
    """Return every figure of a kind, or raise why there is none."""
    table, metrics = result.table, result.table.metrics
    if kind == "radar":
        upward = [metric for metric in metrics if table.higher_is_better[metric]]
        return [_Plot(kind, None, _fewer_methods(result, metrics[0]), {"metrics": upward})]
    if kind in ("sweep", "histogram"):
        return [_Plot(kind, metric, *sweep) for sweep in _sweeps(result) for metric in metrics]
    if kind == "curves":
        metrics = tuple(name for name in metrics if any(table.curves.get((row, name)) for row in table.methods))
        if not metrics:
            raise VitreousError("no metric here is read from a curve")
    options = _bins(result) if kind == "bins" else {}
    names = _fewer_methods if kind in ("curves", "bins") else lambda result, metric: list(table.methods)
    return [_Plot(kind, metric, names(result, metric), options) for metric in metrics]


def _draw(result: ModelResult, plot: _Plot) -> Drawing:
    figure = result.table.plot(plot.kind, plot.metric, methods=plot.methods, **plot.options)
    is_wide = figure.get_size_inches()[0] > plots.COLUMN
    buffer = io.BytesIO()
    plots.encoded(figure, "figure.svg")(buffer)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return Drawing(f"data:image/svg+xml;base64,{data}", f"{plot.kind} of {plot.metric or 'all metrics'}", is_wide)


def _bins(result: ModelResult) -> dict[str, Any]:
    """Return how images are cut by the probability of the explained class: as many in each bin, and enough."""
    count, confidence = min(_MOST_BINS, len(result.table.images) // THIN), result.table.confidence
    if count < 2:
        raise VitreousError(f"{2 * THIN} pictures are needed, and there are {len(result.table.images)}")
    kind = "label" if result.scores.config.evaluation.target == "label" and "label" in confidence else "pred"
    if kind not in confidence:
        raise VitreousError("the units of this run do not say how sure the model was")
    return {"count": count, "by": "mass", "confidence": kind}


def _sweeps(result: ModelResult) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the rows of each sweep and where they stand in it, by their specs: labels may say anything."""
    rows = {spec: label for label, spec in result.scores.config.methods.items()}
    return [
        ([rows[spec] for spec in sweep.methods], {"x": list(sweep.x), "x_label": sweep.x_label, "name": sweep.name})
        for sweep in sweeps(list(rows))
    ]


def _fewer_methods(result: ModelResult, metric: str) -> list[str]:
    """Return the best methods and random, in the table's order: more lines than these cannot be told apart."""
    best = result.order(metric)[:_MOST_LINES]
    return [name for name in result.table.methods if name in best or name in CONTROLS[:1]]
