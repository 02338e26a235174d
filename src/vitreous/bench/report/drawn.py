"""Curves and difficulty bins as pictures, by the figure code of tables; that needs matplotlib."""

from __future__ import annotations

import base64
import io
from typing import Any

from vitreous.bench.report.finding import Finding
from vitreous.bench.report.parts import card, escape, note, section
from vitreous.errors import VitreousError
from vitreous.metrics.bins import THIN
from vitreous.show import figures
from vitreous.words.defaults import BASELINES

__all__ = ["curves"]

_MOST_LINES = 10


def curves(finding: Finding, anchor: str) -> str:
    """Return curves and bins of every metric with intervals, or a line that says why there are none."""
    found = finding.table
    wanted = [(metric, kind) for metric in found.metrics for kind in _kinds(finding, metric)]
    if not wanted:
        return ""
    text = "Bands and lines are 95 % bootstrap intervals over the pictures."
    try:
        figures.require()
    except VitreousError as error:
        return section(anchor, "Curves and difficulty", "", card(note(f"Not drawn: {error}.")))
    drawn = []
    for metric, kind in wanted:
        names = _shown(finding, metric)
        figure = found.plot(kind, metric, methods=names, **_options(finding, kind))
        wide = figure.get_size_inches()[0] > figures.COLUMN
        drawn.append(card(_image(figure, f"{kind} of {metric}"), kind="wide" if wide else ""))
    left = len(found.methods) - _MOST_LINES
    if left > 0:
        text += f" The {_MOST_LINES} methods with the best mean ranks, and random."
    return section(anchor, "Curves and difficulty", text, f'<div class="grid even">{"".join(drawn)}</div>')


def _kinds(finding: Finding, metric: str) -> list[str]:
    found = finding.table
    kinds = ["curves"] if any(found.curves.get((name, metric)) for name in found.methods) else []
    return kinds + (["bins"] if _bins(finding) >= 2 and "pred" in found.confidence else [])


def _bins(finding: Finding) -> int:
    return min(10, len(finding.table.images) // THIN)


def _options(finding: Finding, kind: str) -> dict[str, Any]:
    return {"count": _bins(finding), "by": "mass"} if kind == "bins" else {}


def _shown(finding: Finding, metric: str) -> list[str]:
    """Return the best methods and random, in the table's order: more lines than these cannot be told apart."""
    best = finding.order(metric)[:_MOST_LINES]
    return [name for name in finding.table.methods if name in best or name in BASELINES[:1]]


def _image(figure: figures.Figure, words: str) -> str:
    held = io.BytesIO()
    figures.encoded(figure, "figure.svg")(held)
    data = base64.b64encode(held.getvalue()).decode("ascii")
    return f'<img class="plot" src="data:image/svg+xml;base64,{data}" alt="{escape(words)}">'
