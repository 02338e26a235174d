"""The pictures that a method did best and worst on, with maps; and what the model was shown on the way.

The figures that a protocol asks for, by the figure code of tables; that needs matplotlib.

Without a word in the protocol: curves, and difficulty bins where there are enough pictures.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.benchmark.collect import Known
from vitreous.benchmark.report_parts import card, escape, note, number, section
from vitreous.benchmark.summary import Finding
from vitreous.benchmark.units import RunConfig
from vitreous.errors import VitreousError, one_line
from vitreous.html import jpeg_data_uri
from vitreous.metrics import ImageShape, RankedRemoval
from vitreous.metrics.bootstrap import THIN
from vitreous.metrics.perturb import perturbed
from vitreous.models import Preprocess, VisionModel
from vitreous.models.transforms import OWN
from vitreous.registry.defaults import CONTROLS, display_name
from vitreous.results.table_plots import sweeps
from vitreous.viz import Scale, overlay
from vitreous.viz import plots as figures

__all__ = [
    "Sight",
    "drawings",
    "pictures",
]

_EACH, _MAPS, _STEPS = 3, 5, 6


@dataclass(frozen=True)
class Sight:
    """Where photographs come from, and models for the strips; either may be missing, and ``why`` says so."""

    known: Mapping[str, Known]
    view: Callable[[RunConfig], VisionModel] | None = None
    why: str = ""

    def seen(self, setting: RunConfig, digest: str) -> Image.Image:
        """Return a picture as the model sees it."""
        known = self.known[setting.data]
        entry = known.entry(digest)
        if entry.source is not None and self.view is not None:
            model = self.view(setting)
            return model.preprocess.to_image(known.sample(digest, model).picture.tensor)
        is_own = setting.preprocess["mode"] == OWN
        how = self.view(setting).preprocess if is_own and self.view is not None else _preprocess(setting)
        photo = entry.open()
        return how.to_image(photo) if isinstance(photo, Tensor) else how.resize_and_crop(photo)[0]


def _preprocess(setting: RunConfig) -> Preprocess:
    """Return a run's preprocessing as data; that of a ``Transform`` crops the same picture, up to its rounding."""
    recorded = {name: tuple(v) if isinstance(v, list) else v for name, v in setting.preprocess.items()}
    data: dict[str, Any] = {each.name: recorded[each.name] for each in fields(Preprocess)}
    if len(data["mean"]) != 3 or data["crop"] <= 0:
        raise VitreousError(f"{setting.label}: the run does not say how pictures are prepared for it")
    return Preprocess(**data)


def pictures(finding: Finding, sight: Sight, anchor: str) -> str:
    """Return the best and worst pictures with maps, and strips of two of them."""
    metric = _sound(finding)
    order = finding.order(metric)
    if not order:
        return ""
    if finding.gathered.data not in sight.known:
        return section(anchor, "Best and worst pictures", "", card(note(f"Not shown: {sight.why}.")))
    name = finding.reference if finding.reference in order else order[0]
    assert name is not None
    turned = finding.table[name, metric] * (1 if finding.table.higher_is_better[metric] else -1)
    ranked = [int(row) for row in np.argsort(-turned, kind="stable") if not math.isnan(turned[row])]
    each = min(_EACH, len(ranked) // 2)
    shown = [name, *(other for other in order if other != name)][:_MAPS]
    blocks = []
    for word, rows in (("Best", ranked[:each]), ("Worst", ranked[len(ranked) - each :][::-1])):
        tiles = "".join(_row(finding, sight, row, shown, metric) for row in rows)
        blocks.append(card(tiles, f"{word} for {display_name(name)}"))
    text = (
        f"By {metric} of {display_name(name)}; under each map its own score. Every map has its own scale: red speaks "
        "for the explained class, blue against it; maps without a sign go from dark to bright."
    )
    if finding.table.seed_sd:
        text += f" Maps are those of seed {finding.gathered.seeds[0]}, scores the means over all seeds."
    strips = _strips(finding, sight, name, metric, [ranked[0], ranked[-1]] if each else [])
    return section(anchor, "Best and worst pictures", text, f'<div class="grid">{"".join(blocks)}{strips}</div>')


def _sound(finding: Finding) -> str:
    """Return the first metric that did not fail its trial, or else the first."""
    told = {name: each for name, each in finding.table.trial.items() if each is not None}
    good = [name for name in finding.table.metrics if name in told and told[name].verdict not in ("fails", "blind")]
    return (good or list(finding.table.metrics))[0]


def _row(finding: Finding, sight: Sight, row: int, methods: list[str], metric: str) -> str:
    gathered, found = finding.gathered, finding.table
    try:
        seen = sight.seen(gathered.setting, gathered.pictures[row])
    except VitreousError as error:
        return note(f"{found.images[row]}: {one_line(str(error))}")
    chance = found.confidence["pred"][row] if "pred" in found.confidence else math.nan
    tiles = [_tile(seen, found.images[row], "" if math.isnan(chance) else f"predicted with {chance:.2f}")]
    for name in methods:
        map = gathered.map(gathered.pictures[row], name)
        if map is not None:
            drawn = overlay(seen, map, Scale.of([map]))
            tiles.append(
                _tile(drawn, display_name(name), number(float(found[name, metric][row]), finding.digits(metric)))
            )
    return f'<div class="tiles gap">{"".join(tiles)}</div>'


def _tile(picture: Image.Image, title: str, words: str) -> str:
    told = f"<figcaption><b>{escape(title)}</b>{escape(words)}</figcaption>"
    return f'<figure><img src="{jpeg_data_uri(picture)}" alt="{escape(title)}">{told}</figure>'


def _strips(finding: Finding, sight: Sight, name: str, first: str, rows: list[int]) -> str:
    """Return what the model was shown for two pictures, with the values of the stored curve."""
    if sight.view is None or not rows:
        return ""
    try:
        model = sight.view(finding.gathered.setting)
    except VitreousError as error:
        return card(note(f"Strips are not shown: {one_line(str(error))}."), "What the model was shown")
    for metric in dict.fromkeys([first, *finding.table.metrics]):
        needs = finding.table.judges[metric].requests(_geometry(model, finding.gathered.setting)).values()
        states = [
            request
            for request in needs
            if isinstance(request, RankedRemoval) and request.by == "map" and len(request.spans) > 2
        ]
        if states:
            drawn = "".join(_strip(finding, sight, model, name, metric, states, row) for row in rows)
            text = f"In the order of {display_name(name)}'s map, as {metric} changes the picture; "
            text += "below each, the value that the stored curve has there."
            return card(note(text) + drawn, "What the model was shown")
    return ""


def _geometry(model: VisionModel, setting: RunConfig) -> ImageShape:
    probe = torch.empty(1, 3, *setting.size, dtype=model.dtype, device=model.device)
    return ImageShape(setting.size, model.grid(probe), model.depth)


def _strip(
    finding: Finding, sight: Sight, model: VisionModel, name: str, metric: str, states: list[RankedRemoval], row: int
) -> str:
    gathered, need = finding.gathered, states[0]
    map = gathered.map(gathered.pictures[row], name, finding.table.judges[metric].explain_class)
    if map is None:
        return ""
    seen = sight.seen(gathered.setting, gathered.pictures[row])
    steps = sorted({round(at) for at in np.linspace(0, len(need.spans) - 1, _STEPS)})
    some = RankedRemoval(need.unit, need.baseline, need.keep, tuple(need.spans[step] for step in steps))
    inputs, own = model.preprocess.to_tensor(seen)[None], torch.as_tensor(np.asarray(map))[None]
    setting = gathered.setting
    shown = perturbed(
        model,
        inputs,
        own,
        some,
        interpolation=setting.interpolation,
        tie_breaking=setting.tie_breaking,
        seed=gathered.seeds[0],
    )[0]
    kept = [c for c in gathered.tables[0].curves.get((name, metric), {}).values() if len(c.x) == len(need.spans)]
    whole = math.prod(setting.size) if need.unit == "pixel" else max(max(span) for span in need.spans)
    tiles = []
    for step, state, count in zip(steps, shown, some.counts, strict=True):
        value = "" if not kept else number(float(kept[0].y[row, step]), 2)
        word = "put back" if need.keep else "removed"
        tiles.append(_tile(model.preprocess.to_image(state), f"{count / whole:.0%} {word}", value))
    return f'<h3 class="gap">{escape(finding.table.images[row])}</h3><div class="tiles">{"".join(tiles)}</div>'


_USUAL = ("curves", "bins")
_MOST_LINES = 10
_MOST_BINS = 20


@dataclass(frozen=True)
class _Drawing:
    """One figure to be: what ``Table.plot`` is asked for."""

    kind: str
    metric: str | None
    methods: list[str]
    options: dict[str, Any] = field(default_factory=dict)


def drawings(finding: Finding, anchor: str) -> str:
    """Return the figures of a table with intervals; what could not be drawn is named with the reason."""
    asked = finding.protocol.figures or _USUAL
    reasons: dict[str, None] = {}
    wanted: list[_Drawing] = []
    for kind in asked:
        try:
            wanted += _wanted(finding, kind)
        except VitreousError as error:
            if finding.protocol.figures:  # what nobody asked for is not missed
                reasons[f"No {kind}: {error}."] = None
    if not wanted and not reasons:
        return ""
    try:
        figures.require()
    except VitreousError as error:
        return section(anchor, "Figures", "", card(note(f"Not drawn: {error}.")))
    drawn = []
    for each in wanted:
        try:
            drawn.append(_drawn(finding, each))
        except VitreousError as error:
            reasons[f"No {each.kind}{f' of {each.metric}' if each.metric else ''}: {error}."] = None
    text = "Bands and lines are 95 % bootstrap intervals over the pictures."
    if {"curves", "bins", "radar"}.intersection(each.kind for each in wanted) and _left(finding):
        text += f" Curves and bins have the {_MOST_LINES} methods with the best mean ranks, and random."
    if any(each.kind == "bins" for each in wanted):
        text += f" Every bin has as many pictures, at least {THIN}."
    inside = f'<div class="grid even">{"".join(drawn)}</div>' if drawn else ""
    return section(anchor, "Figures", text, inside + (card("".join(map(note, reasons)), kind="gap") if reasons else ""))


def _wanted(finding: Finding, kind: str) -> list[_Drawing]:
    """Return every figure of a kind, or raise why there is none."""
    found = finding.table
    if kind == "curves":
        kept = [m for m in found.metrics if any(found.curves.get((name, m)) for name in found.methods)]
        if not kept:
            raise VitreousError("no metric here is read from a curve")
        return [_Drawing(kind, metric, _shown(finding, metric)) for metric in kept]
    if kind == "bins":
        return [_Drawing(kind, metric, _shown(finding, metric), _bins(finding)) for metric in found.metrics]
    if kind == "radar":
        upward = [metric for metric in found.metrics if found.higher_is_better[metric]]
        return [_Drawing(kind, None, _shown(finding, found.metrics[0]), {"metrics": upward})]
    if kind in ("sweep", "histogram"):
        return [_Drawing(kind, m, names, options) for names, options in _sweeps(finding) for m in found.metrics]
    return [_Drawing(kind, metric, list(found.methods)) for metric in found.metrics]


def _drawn(finding: Finding, each: _Drawing) -> str:
    figure = finding.table.plot(each.kind, each.metric, methods=each.methods, **each.options)
    wide = figure.get_size_inches()[0] > figures.COLUMN
    return card(_image(figure, f"{each.kind} of {each.metric or 'all metrics'}"), kind="wide" if wide else "")


def _bins(finding: Finding) -> dict[str, Any]:
    """Return how pictures are cut by the probability of the explained class: as many in each bin, and enough."""
    count, kept = min(_MOST_BINS, len(finding.table.images) // THIN), finding.table.confidence
    if count < 2:
        raise VitreousError(f"{2 * THIN} pictures are needed, and there are {len(finding.table.images)}")
    whose = "label" if finding.gathered.setting.target == "label" and "label" in kept else "pred"
    if whose not in kept:
        raise VitreousError("the units of this run do not say how sure the model was")
    return {"count": count, "by": "mass", "confidence": whose}


def _sweeps(finding: Finding) -> list[tuple[list[str], dict[str, Any]]]:
    """Return the rows of each sweep and where they stand in it, by their spellings: labels may say anything."""
    rows = {spec: label for label, spec in finding.gathered.setting.methods.items()}
    return [
        ([rows[spec] for spec in sweep.methods], {"x": list(sweep.x), "across": sweep.across, "name": sweep.name})
        for sweep in sweeps(list(rows))
    ]


def _shown(finding: Finding, metric: str) -> list[str]:
    """Return the best methods and random, in the table's order: more lines than these cannot be told apart."""
    best = finding.order(metric)[:_MOST_LINES]
    return [name for name in finding.table.methods if name in best or name in CONTROLS[:1]]


def _left(finding: Finding) -> bool:
    return len(finding.rows) > _MOST_LINES


def _image(figure: figures.Figure, words: str) -> str:
    held = io.BytesIO()
    figures.encoded(figure, "figure.svg")(held)
    data = base64.b64encode(held.getvalue()).decode("ascii")
    return f'<img class="plot" src="data:image/svg+xml;base64,{data}" alt="{escape(words)}">'
