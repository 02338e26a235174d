"""The table of scores, the overview over several models, and the tests behind the stars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitreous.bench.report.diagram import diagram, whisker
from vitreous.bench.report.finding import Finding
from vitreous.bench.report.parts import Cell, card, cells, escape, interval, note, number, section, table
from vitreous.words.defaults import BASELINES, known_as

__all__ = ["overview", "ranks", "scores", "tests"]

_AXES = ("data", "models", "methods", "metrics")
_TRIAL = {"passes": "good", "weak": "weak", "fails": "bad", "blind": "bad"}


def scores(finding: Finding, anchor: str) -> str:
    """Return the table: means with intervals, and everything that a reader should know beside them."""
    found, statistics = finding.table, finding.statistics
    head = [Cell("method")]
    for metric in found.metrics:
        head += [_head(finding, metric), *([Cell("between seeds", kind="n")] if found.seed_sd else [])]
    strange = any(sum(counts.values()) for counts in found.degenerate.values())
    if strange:
        head.append(Cell("degenerate maps", kind="n"))
    rows = []
    for name in found.methods:
        row = [Cell(_named(finding, name), known_as(name))]
        for metric in found.metrics:
            row += [_score(finding, name, metric), *_deviation(finding, name, metric)]
        if strange:
            counts = found.degenerate[name]
            told = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
            row.append(Cell(escape(told), sum(counts.values()), "n"))
        rows.append(row)
    legend = [
        "Mean over the pictures, its 95 % bootstrap interval, and both drawn; the thin line is random's mean. "
        "Bold: the best.",
        "Red stars: better than random (* 5 %, ** 1 %, *** 0.1 %, Holm-corrected randomisation tests); "
        "≈: not told apart from it; blue ▾: worse than it.",
        "Methods that share a letter are not told apart by their mean ranks.",
    ]
    legend += [f"{each}." for each in statistics.notes if "too few" in each or "lack the score" in each]
    if found.seed_sd:
        legend.append(
            f"Every picture has the mean of its scores over {len(finding.gathered.seeds)} seeds; “between seeds” is "
            "the standard deviation of the means that each seed gives."
        )
    if statistics.marks:
        legend.append(
            "◆ The method itself asks the model about pictures changed in the way that the metric changes them."
        )
    if finding.published:
        legend.append("“Paper” is the printed number, in the metric's own unit.")
    quiet = [name in BASELINES for name in found.methods]
    inside = card(table(head, rows, quiet) + "".join(note(each) for each in legend))
    return section(anchor, "Scores", _lead(finding), inside)


def _lead(finding: Finding) -> str:
    reference = f" Others are also tested against {finding.reference}." if finding.reference else ""
    return (
        f"Higher is better where the arrow points up, lower where it points down; a click on a head sorts.{reference}"
    )


def _head(finding: Finding, metric: str) -> Cell:
    up, told = finding.table.higher_is_better[metric], finding.table.trial[metric]
    word = "not tried" if told is None else told.verdict
    kind = _TRIAL.get(word, "")
    why = "no trial has seen this metric" if told is None else str(told)
    trial = f'<small><abbr title="{escape(why)}">on trial: <span class="{kind}">{escape(word)}</span></abbr></small>'
    return Cell(
        f"{'↑' if up else '↓'}&nbsp;{escape(metric)}{trial}", kind="n", first="descending" if up else "ascending"
    )


def _named(finding: Finding, name: str) -> str:
    spelling = finding.gathered.setting.methods[name]
    title = f' title="{escape(spelling)}"' if spelling != name else ""
    reference = "<small>reference</small>" if name == finding.reference else ""
    return f"<span{title}>{escape(known_as(name))}</span>{reference}"


def _score(finding: Finding, name: str, metric: str) -> Cell:
    found, statistics = finding.table, finding.statistics
    mean, (low, high) = found.mean(name, metric), found.interval(name, metric)
    if math.isnan(mean):
        return Cell("–", "", "n")
    best = name == found.best(metric)
    digits = finding.digits(metric)
    shown = f"<b>{number(mean, digits)}</b>" if best else number(mean, digits)
    missing = int(np.isnan(found[name, metric]).sum())
    lines = [
        f"{_star(finding, name, metric)}{shown}{_letters(finding, name, metric)}{_mark(statistics.marks, name, metric)}"
    ]
    lines.append(f"<small>{interval(low, high, digits)}</small>")
    lines.append(whisker(mean, low, high, _span(finding, metric), _chance(finding, metric)))
    if missing:
        lines.append(f"<small>{len(found.images) - missing} of {len(found.images)} pictures</small>")
    cell = finding.published.get((name, metric))
    if cell is not None and cell.value is not None:
        lines.append(f"<small>paper {number(cell.value, digits)}</small>")
    return Cell("".join(lines), mean, "n")


def _deviation(finding: Finding, name: str, metric: str) -> list[Cell]:
    """Return how far the means of single seeds lie apart, where there are several."""
    deviation = finding.table.seed_sd.get((name, metric))
    return [] if deviation is None else [Cell(number(deviation, finding.digits(metric) + 1), deviation, "n")]


def _star(finding: Finding, name: str, metric: str) -> str:
    test = finding.statistics.test(name, finding.statistics.chance, metric)
    if test is None or test.word == "not tested":
        return ""
    if test.word == "not told apart":
        return '<sup title="not told apart from random">≈</sup> '
    kind, sign = ("up", test.stars) if test.word == "better" else ("down", f"▾{test.stars}")
    return f'<sup class="{kind}" title="{test.word} than random, p = {test.corrected:.2g}">{sign}</sup> '


def _letters(finding: Finding, name: str, metric: str) -> str:
    groups = finding.statistics.ranks[metric].groups
    found = [chr(ord("a") + at % 26) for at, group in enumerate(groups) if name in group]
    return f"<sup>{''.join(found)}</sup>" if found else ""


def _mark(marks: Sequence[object], name: str, metric: str) -> str:
    for each in marks:
        if (each.method, each.metric) == (name, metric):  # type: ignore[attr-defined]
            return f'<sup><abbr title="shared with the metric: {escape(each.text)}">◆</abbr></sup>'  # type: ignore[attr-defined]
    return ""


def _span(finding: Finding, metric: str) -> tuple[float, float]:
    ends = [value for name in finding.table.methods for value in finding.table.interval(name, metric)]
    there = [value for value in ends if not math.isnan(value)]
    return (min(there), max(there)) if there else (0.0, 0.0)


def _chance(finding: Finding, metric: str) -> float:
    chance = finding.statistics.chance
    return finding.table.mean(chance, metric) if chance in finding.table.methods else math.nan


def overview(findings: Sequence[Finding]) -> str:
    """Return all means in one table, laid out as the protocol says; nothing where there is only one model and set."""
    full = [each for each in findings if not each.empty]
    if len(full) < 2:
        return ""
    layout, found = full[0].protocol, list[tuple[dict[str, str], Finding]]()
    for each in full:
        place = {"models": each.gathered.label, "data": each.gathered.data}
        pairs = [(name, metric) for name in each.table.methods for metric in each.table.metrics]
        found += [({**place, "methods": name, "metrics": metric}, each) for name, metric in pairs]
    several = [axis for axis in _AXES if len({at[axis] for at, _ in found}) > 1]
    asked = [axis for axis in layout.columns if axis != layout.rows and axis in several]
    columns = [*(axis for axis in several if axis not in (*asked, layout.rows)), *asked] or ["metrics"]
    cells = {(at[layout.rows], tuple(at[axis] for axis in columns)): (at, each) for at, each in found}
    rows = list(dict.fromkeys(row for row, _ in cells))
    tops = _in_order([top for _, top in cells])
    head = [Cell(layout.rows if layout.rows == "data" else layout.rows.removesuffix("s"))]
    head += [_top(dict(zip(columns, top, strict=True)), found) for top in tops]
    body = [[Cell(escape(known_as(row))), *(_mean(cells.get((row, top))) for top in tops)] for row in rows]
    inside = card(table(head, body, [row in BASELINES for row in rows]))
    text = "Means; the best method of a model and metric is bold. Intervals stand below."
    return section("overview", "The whole table", text, inside)


def _in_order(tops: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return columns once each, those that begin alike side by side, in the order of their first appearance."""
    firsts = [list(dict.fromkeys(top[level] for top in tops)) for level in range(len(tops[0]))]
    return sorted(
        dict.fromkeys(tops), key=lambda top: [known.index(each) for known, each in zip(firsts, top, strict=True)]
    )


def _top(at: Mapping[str, str], found: Sequence[tuple[Mapping[str, str], Finding]]) -> Cell:
    """Return the head of a column: its first axis, the others below, and which way is up where that is one way."""
    ways = {
        each.table.higher_is_better[place["metrics"]]
        for place, each in found
        if at.get("metrics", place["metrics"]) == place["metrics"]
    }
    (up, *other) = ways
    words = [f"{each} {'↑' if up else '↓'}" if axis == "metrics" and not other else each for axis, each in at.items()]
    first, *rest = [escape(known_as(each)) for each in words]
    below = "".join(f"<small>{each}</small>" for each in rest)
    return Cell(first + below, kind="n", first="descending" if up else "ascending")


def _mean(cell: tuple[Mapping[str, str], Finding] | None) -> Cell:
    if cell is None:
        return Cell("–", "", "n")
    at, each = cell
    name, metric = at["methods"], at["metrics"]
    mean = each.table.mean(name, metric)
    told = number(mean, each.digits(metric))
    best = not math.isnan(mean) and name == each.table.best(metric)
    return Cell(f"<b>{told}</b>" if best else told, mean, "n")


def ranks(finding: Finding, anchor: str) -> str:
    """Return a critical-difference diagram for every metric."""
    drawn = []
    for metric, own in finding.statistics.ranks.items():
        picture = diagram(own)
        if not picture:
            continue
        told = (
            f"Friedman's p = {own.p:.2g}, critical difference {own.critical:.2f}, {own.blocks} pictures."
            if own.p < 0.05
            else (f"Friedman's p = {own.p:.2g}: the {own.blocks} pictures do not tell the methods apart.")
        )
        if own.dropped:
            told += f" {own.dropped} lack the score of some method and do not count."
        drawn.append(card(picture + note(told), metric))
    text = (
        "Every picture ranks the methods; 1 is the best. Grey lines reach half a critical difference (Nemenyi) to each "
        "side: where they do not meet, methods are told apart. An upright bar joins those that are not."
    )
    return section(anchor, "Mean ranks", text, f'<div class="grid even">{"".join(drawn)}</div>' if drawn else "")


def tests(finding: Finding, anchor: str) -> str:
    """Return the numbers behind the stars, metric by metric."""
    folded = []
    for metric in finding.table.metrics:
        head, *rows = finding.statistics.rows(metric)
        body = [
            [
                Cell(escape(known_as(row[0]))),
                *cells([text.replace("-", "−") if text != "-" else "–" for text in row[1:]]),
            ]
            for row in rows
        ]
        top = [Cell(escape(name), kind="" if name == "method" else "n") for name in head]
        folded.append(f"<details><summary>{escape(metric)}</summary>{table(top, body)}</details>")
    text = (
        "Paired differences with their 95 % intervals, Holm-corrected p-values of randomisation tests, z (the "
        "difference in standard errors) and the minimum detectable difference: a true one of this size would be found "
        "four times out of five."
    )
    notes = "".join(note(each) for each in finding.statistics.notes)
    return section(anchor, "Differences, and which could be seen", text, card("".join(folded) + notes))
