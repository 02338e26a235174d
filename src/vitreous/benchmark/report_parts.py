"""The critical-difference diagram: mean ranks with Nemenyi's reach, and bars over what is not told apart.

The small pieces of a report page: the document, tables that sort, numbers and pictures. Every text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from vitreous.benchmark.ranking import Ranks
from vitreous.benchmark.significance import LEVEL
from vitreous.html import interval, number, render
from vitreous.registry.defaults import CONTROLS, display_name

__all__ = [
    "Cell",
    "card",
    "cells",
    "diagram",
    "document",
    "escape",
    "interval",
    "note",
    "number",
    "section",
    "table",
    "whisker",
]

_WIDE, _ROW, _TOP, _NAMES, _RIGHT = 420, 25, 34, 150, 6
_LONGEST = 20  # letters of a name


def diagram(ranks: Ranks) -> str:
    """Return the SVG of one metric: a dot for every method, best above, and its reach of half a critical difference.

    Methods whose lines do not overlap are told apart; each bar at the right joins methods that are not.
    """
    count, tested = len(ranks.methods), ranks.p < LEVEL
    if count < 2 or not ranks.blocks:
        return ""
    ties = _NAMES + 8 + 10 * len(ranks.groups)
    left, right, bottom = ties + 8, _WIDE - _RIGHT, _TOP + _ROW * count + 6

    def at(rank: float) -> float:
        return left + 10 + (rank - 1) / (count - 1) * (right - left - 20)

    lines = []
    step = max(1, math.ceil(count / 8))
    for tick in range(1, count + 1, step):
        lines.append(f'<line class="axis" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{_TOP - 8}" y2="{bottom - 6}"/>')
        lines.append(f'<text class="soft" x="{at(tick):.1f}" y="{_TOP - 14}" text-anchor="middle">{tick}</text>')
    for row, (name, rank) in enumerate(zip(ranks.methods, ranks.mean, strict=True)):
        y = _TOP + _ROW * row + _ROW / 2
        if tested:
            reach = [max(left, at(rank - ranks.critical / 2)), min(right, at(rank + ranks.critical / 2))]
            lines.append(f'<line class="reach" x1="{reach[0]:.1f}" x2="{reach[1]:.1f}" y1="{y}" y2="{y}"/>')
        kind = "mark" if name not in CONTROLS else "grey"
        shown = display_name(name)
        cut = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST // 2]}…{shown[1 - _LONGEST // 2 :]}"
        lines.append(
            f'<circle class="{kind}" cx="{at(rank):.1f}" cy="{y}" r="5"><title>{number(rank, 2)}</title></circle>'
        )
        lines.append(f'<text x="{_NAMES}" y="{y + 4.5}" text-anchor="end">{escape(cut)}</text>')
    for place, group in enumerate(ranks.groups):
        x = _NAMES + 12 + 10 * place
        first, last = (_TOP + _ROW * ranks.methods.index(name) + _ROW / 2 for name in (group[0], group[-1]))
        lines.append(f'<line class="tie" x1="{x}" x2="{x}" y1="{first - 6}" y2="{last + 6}"/>')
    words = f"Mean ranks in {ranks.metric}: " + ", ".join(
        f"{name} {rank:.2f}" for name, rank in zip(ranks.methods, ranks.mean, strict=True)
    )
    box = f'viewBox="0 0 {_WIDE} {bottom}" role="img" aria-label="{escape(words)}"'
    return f'<svg class="diagram" {box}>{"".join(lines)}</svg>'


def whisker(mean: float, low: float, high: float, span: tuple[float, float], chance: float) -> str:
    """Return a small line from one end of an interval to the other, a dot for the mean and a tick for chance."""
    if math.isnan(mean) or not span[1] > span[0]:
        return ""

    def at(value: float) -> str:
        return f"{4 + 96 * (min(max(value, span[0]), span[1]) - span[0]) / (span[1] - span[0]):.1f}"

    tick = "" if math.isnan(chance) else f'<line class="tick" x1="{at(chance)}" x2="{at(chance)}" y1="0" y2="10"/>'
    line = "" if math.isnan(low) else f'<line class="reach" x1="{at(low)}" x2="{at(high)}" y1="5" y2="5"/>'
    dot = f'<circle class="mark" cx="{at(mean)}" cy="5" r="3"/>'
    return f'<svg class="whisker" viewBox="0 0 104 10" aria-hidden="true">{line}{tick}{dot}</svg>'


def document(title: str, inside: str) -> str:
    """Return a page that fetches nothing and runs no script but its own."""
    return render("benchmark.html", title=title, body=inside)


@dataclass(frozen=True)
class Cell:
    """One cell: HTML, what it is sorted by (empty: last), and its class; ``first`` is how a head sorts at first."""

    html: str
    value: str | float | None = None
    kind: str = ""
    first: str = ""

    def tag(self, name: str) -> str:
        known = self.value is not None and not (isinstance(self.value, float) and math.isnan(self.value))
        value = "" if self.value is None else f' data-value="{escape(str(self.value) if known else "")}"'
        kind = f' class="{escape(self.kind)}"' if self.kind else ""
        first = f' data-first="{escape(self.first)}"' if self.first else ""
        return f"<{name}{kind}{value}{first}>{self.html}</{name.split()[0]}>"


def cells(texts: Sequence[str]) -> list[Cell]:
    """Return plain texts as cells; numbers are set flush right and sort as numbers, intervals stand below them."""
    found = []
    for text in texts:
        first, bracket, rest = text.partition(" [")
        below = f"<small>[{escape(rest)}</small>" if bracket else ""
        found.append(Cell(escape(first) + below, _value(text), "n" if _value(text) is not None else ""))
    return found


def _value(text: str) -> float | None:
    try:
        return float(text.split(" ")[0].replace("−", "-")) if text else None
    except ValueError:
        return None


def table(head: Sequence[Cell], rows: Sequence[Sequence[Cell]], quiet: Sequence[bool] = (), kind: str = "sorts") -> str:
    """Return a table; the first cell of a row is its head. ``quiet`` rows are there to be compared with."""
    top = "".join(each.tag("th scope=col") for each in head)
    body = []
    for index, (first, *rest) in enumerate(rows):
        soft = ' class="quiet"' if index < len(quiet) and quiet[index] else ""
        named = replace(first, html=f"<div>{first.html}</div>")
        body.append(f"<tr{soft}>{named.tag('th scope=row')}{''.join(each.tag('td') for each in rest)}</tr>")
    inside = f"<thead><tr>{top}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody>"
    return f'<div class="scroll"><table class="{kind}">{inside}</table></div>'


def card(inside: str, heading: str = "", kind: str = "") -> str:
    head = f"<h3>{escape(heading)}</h3>" if heading else ""
    return f'<div class="card{" " + kind if kind else ""}">{head}{inside}</div>'


def section(anchor: str, heading: str, text: str, inside: str) -> str:
    """Return a section with its heading and a sentence; nothing where there is nothing in it."""
    said = note(text) if text else ""
    return f'<section id="{escape(anchor)}"><h2>{escape(heading)}</h2>{said}\n{inside}</section>' if inside else ""


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
