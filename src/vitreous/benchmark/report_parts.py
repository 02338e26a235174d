"""The critical-difference diagram: mean ranks with Nemenyi's reach, and bars over what is not told apart.

The small pieces of a report page: the document, tables that sort, numbers and pictures. Every text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from PIL import Image

from vitreous.benchmark.ranking import Ranks
from vitreous.benchmark.significance import LEVEL
from vitreous.html import STYLE as HOUSE
from vitreous.registry.defaults import BASELINES, known_as

__all__ = [
    "Cell",
    "card",
    "cells",
    "diagram",
    "document",
    "escape",
    "interval",
    "jpeg",
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
        kind = "mark" if name not in BASELINES else "grey"
        shown = known_as(name)
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


STYLE = (
    HOUSE
    + """
main { max-width: 1180px; }
html { scroll-behavior: smooth; }
nav { display: flex; flex-wrap: wrap; gap: 6px; margin: 0 0 28px; }
nav a, .chip { border: 1px solid var(--line); background: var(--card); border-radius: 99px; padding: 3px 13px;
  font-size: 14px; color: var(--ink); text-decoration: none; }
nav a:hover { border-color: var(--soft); }
a { color: var(--against); }
section { scroll-margin-top: 16px; }
section > h2 { font-size: 22px; } h3 { font-size: 16px; margin: 0 0 8px; overflow-wrap: anywhere; }
section > .note { margin: 0 0 14px; max-width: 60em; }
.part { border-top: 2px solid var(--line); padding-top: 26px; margin-top: 52px; }
.part > h2 { font-size: 26px; }
.scroll { overflow-x: auto; margin: 0 -18px; padding: 0 18px; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 8px 12px; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-top: 0; color: var(--soft); font-weight: 600; vertical-align: bottom; line-height: 1.35; }
thead small { display: block; font-weight: 400; font-size: 12px; }
tbody th { font-weight: 600; }
tbody th > div { width: max-content; max-width: 16em; overflow-wrap: anywhere; }
td { max-width: 36em; overflow-wrap: break-word; }
td.n, th.n { text-align: right; white-space: nowrap; } thead th.n { white-space: normal; }
tr.quiet th, tr.quiet td { color: var(--soft); font-weight: 400; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--against); }
th[aria-sort] button { color: var(--ink); }
th[aria-sort=ascending] button::after { content: " ▴"; } th[aria-sort=descending] button::after { content: " ▾"; }
td small, tbody th small { display: block; font-weight: 400; color: var(--soft); font-size: 12px; line-height: 1.4; }
td b { font-weight: 700; } .up { color: var(--for); } .down { color: var(--against); }
sup { font-size: 11px; line-height: 0; color: var(--soft); font-weight: 400; margin-left: 2px; }
abbr { text-decoration: none; cursor: help; }
.whisker { display: block; width: 104px; height: 10px; margin: 3px 0 1px auto; }
svg text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg .soft { fill: var(--soft); font-size: 12px; } svg .axis { stroke: var(--line); } svg .mark { fill: var(--for); }
svg .grey { fill: var(--rest); } svg .reach { stroke: var(--rest); stroke-width: 3; }
svg .tie { stroke: var(--ink); stroke-width: 3; stroke-linecap: round; } svg .tick { stroke: var(--soft); }
.diagram { width: 100%; height: auto; display: block; }
.plot { background: #fff; border-radius: 10px; }
@media (prefers-color-scheme: dark) { .card img.plot { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; } }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); }
.tiles figure { margin: 0; } figcaption { font-size: 13px; color: var(--soft); line-height: 1.4; margin-top: 6px;
  overflow-wrap: anywhere; } figcaption b { color: var(--ink); display: block; }
details > summary { cursor: pointer; font-weight: 600; padding: 8px 0; overflow-wrap: anywhere; }
details + details { border-top: 1px solid var(--line); }
.heat td { text-align: center; min-width: 4.6em; } .heat td[style] { color: var(--ink); }
dl { display: grid; grid-template-columns: minmax(6em, max-content) minmax(0, 1fr); gap: 6px 18px; margin: 0;
  font-size: 14px; } dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.gap { margin-top: 20px; } .even > .wide { grid-column: 1 / -1; }
@media (max-width: 760px) { .scroll { margin: 0 -18px; } th, td { padding: 7px 9px; }
  tbody th > div { max-width: 8em; }
  tbody th, thead th:first-child { position: sticky; left: -18px; background: var(--card); }
  .tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
@media print { nav { display: none; } tr, figure { break-inside: avoid; } }
"""
)

SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.dataset.first || "ascending", other = first === "ascending" ? "descending" : "ascending";
      const way = head.getAttribute("aria-sort") === first ? other : first, sign = way === "ascending" ? 1 : -1;
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way);
      const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (one, two) => {
        const a = key(one), b = key(two);
        if (a === "" || b === "") return (a === "") - (b === "");
        const numbers = !isNaN(a) && !isNaN(b);
        return sign * (numbers ? a - b : a.localeCompare(b));
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
"""


def document(title: str, inside: str) -> str:
    """Return a page that fetches nothing and runs no script but its own."""
    allowed = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{inside}
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


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
    for number, (first, *rest) in enumerate(rows):
        soft = ' class="quiet"' if number < len(quiet) and quiet[number] else ""
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


def number(value: float, digits: int = 3) -> str:
    """Return a number with a true minus, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def interval(low: float, high: float, digits: int = 3) -> str:
    return "" if math.isnan(low) else f"{number(low, digits)} to {number(high, digits)}"


def jpeg(picture: Image.Image, side: int = 176) -> str:
    """Return a thumbnail as a ``data:`` address."""
    ratio = side / max(picture.size)
    size = max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio))
    held = io.BytesIO()
    picture.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(held, "JPEG", quality=86, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode("ascii")
