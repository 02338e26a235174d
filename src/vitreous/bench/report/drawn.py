"""The figures that a protocol asks for, by the figure code of tables; that needs matplotlib.

Without a word in the protocol: curves, and difficulty bins where there are enough pictures.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from typing import Any

from vitreous.bench.report.finding import Finding
from vitreous.bench.report.parts import card, escape, note, section
from vitreous.errors import VitreousError
from vitreous.metrics.bins import THIN
from vitreous.results.sweep import sweeps
from vitreous.show import figures
from vitreous.words.defaults import BASELINES

__all__ = ["drawings"]

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
    rows = {spelling: label for label, spelling in finding.gathered.setting.methods.items()}
    return [
        ([rows[spelling] for spelling in each.methods], {"x": list(each.x), "across": each.across, "name": each.name})
        for each in sweeps(list(rows))
    ]


def _shown(finding: Finding, metric: str) -> list[str]:
    """Return the best methods and random, in the table's order: more lines than these cannot be told apart."""
    best = finding.order(metric)[:_MOST_LINES]
    return [name for name in finding.table.methods if name in best or name in BASELINES[:1]]


def _left(finding: Finding) -> bool:
    return len(finding.rows) > _MOST_LINES


def _image(figure: figures.Figure, words: str) -> str:
    held = io.BytesIO()
    figures.encoded(figure, "figure.svg")(held)
    data = base64.b64encode(held.getvalue()).decode("ascii")
    return f'<img class="plot" src="data:image/svg+xml;base64,{data}" alt="{escape(words)}">'
