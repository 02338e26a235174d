"""The table of scores, the overview over several models, and the tests behind the stars.

Cost, agreement of metrics, seeds, flags, pictures that could not be read, settings and provenance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitreous.benchmark.report_parts import (
    Cell,
    card,
    cells,
    diagram,
    escape,
    interval,
    note,
    number,
    section,
    table,
    whisker,
)
from vitreous.benchmark.summary import Finding, Flag
from vitreous.errors import VitreousError
from vitreous.methods import get_method
from vitreous.registry.defaults import CONTROLS, display_name

__all__ = [
    "agreement",
    "cost",
    "flags",
    "overview",
    "provenance",
    "ranks",
    "scores",
    "seeds",
    "tests",
    "unreadable",
]

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
        row = [Cell(_named(finding, name), display_name(name))]
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
    quiet = [name in CONTROLS for name in found.methods]
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
    spec = finding.gathered.setting.methods[name]
    title = f' title="{escape(spec)}"' if spec != name else ""
    reference = "<small>reference</small>" if name == finding.reference else ""
    return f"<span{title}>{escape(display_name(name))}</span>{reference}"


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
    for mark in marks:
        if (mark.method, mark.metric) == (name, metric):  # type: ignore[attr-defined]
            return f'<sup><abbr title="shared with the metric: {escape(mark.text)}">◆</abbr></sup>'  # type: ignore[attr-defined]
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
    full = [finding for finding in findings if not finding.empty]
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
    body = [[Cell(escape(display_name(row))), *(_mean(cells.get((row, top))) for top in tops)] for row in rows]
    inside = card(table(head, body, [row in CONTROLS for row in rows]))
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
    first, *rest = [escape(display_name(word)) for word in words]
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
                Cell(escape(display_name(row[0]))),
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


_MOST_NAMES = 200


def cost(finding: Finding, anchor: str) -> str:
    """Return what each method costs: passes by its definition, and the seconds that were measured."""
    gathered, rows = finding.gathered, []
    costs = {name: each for name, each in gathered.costs.items() if each.maps}
    for name in finding.table.methods:
        forwards, backwards, told = _passes(gathered.setting.methods[name])
        row = [Cell(escape(display_name(name)))]
        row += [Cell("–" if math.isnan(n) else f"{n:g}", n, "n") for n in (forwards, backwards)]
        if costs:
            each = costs.get(name)
            both = (math.nan, math.nan) if each is None else (each.own + each.shared, each.own)
            times = [seconds / (1 if each is None else each.maps) for seconds in both]
            row += [Cell(_brief(seconds), seconds, "n") for seconds in times]
        rows.append([*row, Cell(escape(told))])
    names = ["method", "forwards", "backwards", *(["time per map", "its own part"] if costs else []), "in words"]
    head = [Cell(each, kind="" if each in ("method", "in words") else "n") for each in names]
    inside = table(head, rows, [name in CONTROLS for name in finding.table.methods])
    text = "Forwards and backwards per map, by definition."
    if costs:
        text += (
            " Time as measured, on average: what the method did by itself, and every pass that it shares with others "
            "of its unit, taken whole. So it is about what the method takes alone, or more: a shared pass may do more "
            "than one method needs. What two methods are both made of is counted with the first. Times therefore do "
            "not add up to those of all units, which stand below."
        )
    spent = ", ".join(f"{kind} {_time(seconds)}" for kind, seconds in gathered.seconds.items())
    return section(anchor, "Cost", text, card(inside + note(f"All units: {spent}.")))


def _brief(seconds: float) -> str:
    """Return a short time."""
    if math.isnan(seconds):
        return "–"
    size, unit = (seconds, "s") if seconds >= 1 else (1000 * seconds, "ms")
    if 0 < size < 0.05:
        return "< 0.1 ms"
    return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"


def _passes(spec: str) -> tuple[float, float, str]:
    try:
        how = get_method(spec)
    except VitreousError:  # maps of others, or a plugin that is not here
        return math.nan, math.nan, "not ours"
    return (*how.cost, "" if how.info.cost_note == "base" else how.info.cost_note)


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def agreement(finding: Finding, anchor: str) -> str:
    """Return the rank correlation of every two metrics."""
    found = {(c.one, c.other): c for c in finding.statistics.correlations}
    names = list(finding.table.metrics)
    if not found or all(math.isnan(c.value) for c in found.values()):
        return ""
    rows = []
    for one in names:
        row = [Cell(escape(one))]
        for other in names:
            each = found.get((one, other)) or found.get((other, one))
            if each is None or math.isnan(each.value):
                row.append(Cell("" if one == other else "–"))
                continue
            colour = "--for" if each.value > 0 else "--contrast"
            mixed = f"background:color-mix(in srgb, var({colour}) {abs(each.value) * 45:.0f}%, transparent)"
            inside = f"{number(each.value, 2)}<small>{interval(each.low, each.high, 2)}</small>"
            row.append(Cell(f'<div style="{mixed};border-radius:8px;padding:4px 6px">{inside}</div>'))
        rows.append(row)
    head = [Cell("")] + [Cell(escape(name)) for name in names]
    count = max(c.methods for c in found.values())
    text = (
        f"Spearman's correlation of the scores of {count} methods in two metrics, turned so that up is better, with "
        "its 95 % interval: red, the same order; blue, the opposite one. It holds for these methods."
    )
    return section(anchor, "Do the metrics agree?", text, card(table(head, rows, kind="heat")))


def seeds(finding: Finding, anchor: str) -> str:
    """Return how much of the uncertainty comes from seeds, and how much from pictures."""
    head, *rows = finding.statistics.seed_rows()
    drawn = [row for row in rows if not (float(row[4]) == 0 and float(row[6]) == 0)]
    if not rows:
        return ""
    top = [Cell(escape(name), kind="n" if at > 1 else "") for at, name in enumerate(head)]
    body = [
        [Cell(escape(display_name(row[0]))), Cell(escape(row[1])), *cells(row[2:-1]), Cell(escape(row[-1]))]
        for row in drawn
    ]
    still = len(rows) - len(drawn)
    text = (
        f"{len(finding.gathered.seeds)} seeds. The share of seeds is the part of the squared standard error "
        "that more seeds would remove. In the tables above every image has the mean of its scores over the seeds."
    )
    more = note(f"{still} of {len(rows)} cells do not depend on the seed at all and are left out.") if still else ""
    return section(anchor, "Seeds apart from pictures", text, card((table(top, body) if drawn else "") + more))


def flags(finding: Finding, anchor: str) -> str:
    """Return marks and flags in words, what is said of several methods or metrics once."""
    found = [each for each in (*finding.statistics.marks, *finding.statistics.flags) if each.method not in CONTROLS]
    for name, reasons in finding.gathered.raised.items():
        picture, why = next(iter(reasons.items()))
        found.append(Flag("failed", name, "", f"on {len(reasons)} pictures, such as {picture}: {why}"))
    if not found:
        return ""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for each in found:
        methods.setdefault((each.kind, each.text, each.metric), []).append(each.method)
    metrics: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (kind, text, metric), names in methods.items():
        metrics.setdefault((kind, text, tuple(names)), []).append(metric)
    body = [
        [kind, _several(names, finding.rows), _several(columns, finding.table.metrics), text]
        for (kind, text, names), columns in metrics.items()
    ]
    top = [Cell(name) for name in ("what", "methods", "metrics", "why")]
    rows = [[Cell(escape(text)) for text in row] for row in body]
    return section(anchor, "Worth knowing", "What to bear in mind before believing a cell.", card(table(top, rows)))


def _several(names: Sequence[str], every: Sequence[str]) -> str:
    """Return names in a row, or that it is all of them; one that is empty stands for all."""
    if "" in names or (len(every) > 1 and set(names) == set(every)):
        return "all"
    return ", ".join(display_name(name) for name in names)


def unreadable(findings: Sequence[Finding]) -> str:
    """Return the pictures that could not be read, each once, with the reason."""
    bad = {name: reason for finding in findings for name, reason in finding.gathered.unreadable.items()}
    if not bad:
        return ""
    rows = [[Cell(escape(name)), Cell(escape(reason))] for name, reason in list(bad.items())[:_MOST_NAMES]]
    more = note(f"And {len(bad) - _MOST_NAMES} more; unreadable.csv has them all.") if len(bad) > _MOST_NAMES else ""
    text = f"{len(bad)} pictures could not be read. They are left out everywhere."
    return section(
        "unreadable", "Pictures that could not be read", text, card(table([Cell("picture"), Cell("why")], rows) + more)
    )


def provenance(findings: Sequence[Finding], wanted: Mapping[str, Any], version: str) -> str:
    """Return settings and where every number comes from."""
    protocol, cards = findings[0].protocol, []
    facts = {
        "protocol": protocol.name + (f", {protocol.paper}, {protocol.table}" if protocol.paper else ""),
        "note": protocol.note or "",
        "data": "; ".join(_source(each) for each in wanted.get("sources", ())),
        "begun with": f"vitreous {version}",
    }
    cards.append(card(_facts(facts), "Run"))
    for finding in findings:
        cards.append(card(_facts(_settings(finding)), finding.name))
    return section("settings", "Settings and provenance", "", f'<div class="grid even">{"".join(cards)}</div>')


def _source(told: Mapping[str, Any]) -> str:
    more = f", {told['note']}" if told.get("note") else ""
    return f"{told.get('source')}: {told.get('images')} pictures, digest {str(told.get('digest'))[:12]}{more}"


def _settings(finding: Finding) -> dict[str, str]:
    setting, facts = finding.gathered.setting, finding.gathered.facts
    how = setting.preprocess
    revisions = facts["revisions"].items()
    unsure = len(finding.gathered.unsure)
    return {
        "model": str(setting.model.get("name", setting.label)),
        "weights": f"digest {setting.fingerprint[:16]}"
        + (f", {setting.model['checkpoint']}" if setting.model.get("checkpoint") else ""),
        "pictures": f"{how.get('size')} pixels, crop {how.get('crop')} ({how.get('mode')}), {how.get('interpolation')}",
        "left out": f"{unsure} pictures to whose true class the model gives less than {setting.least_confidence:g}"
        if setting.least_confidence is not None
        else "",
        "explained": f"{setting.target} class, {setting.output}",
        "ranking": f"upsample {setting.interpolation}, ties {setting.tie_breaking}, "
        f"non-finite maps: {setting.nan_policy}",
        "numbers": f"{setting.dtype} to explain, {setting.precision} to judge"
        + (" (audited)" if facts["audits"] else ""),
        "sizes": f"{setting.images_per_unit} pictures in a unit, {setting.attribution_batch} inputs in a pass, "
        f"{setting.forward_batch} states",
        "plan": "; ".join(f"revision {n} ({each['why']}): {each['units']} units" for n, each in revisions),
        "retried": f"{facts['retried']} units, after a failure or the loss of a worker" if facts["retried"] else "",
        "ran on": ", ".join(f"{name} ({count} units)" for name, count in facts["devices"].items()),
        "threads": ", ".join(f"{name} ({count} units)" for name, count in facts["threads"].items()),
        "versions": "; ".join(f"{name} ({count} units)" for name, count in facts["versions"].items()),
        "methods": ", ".join(name if name == how else f"{name} = {how}" for name, how in setting.methods.items()),
        "metrics": ", ".join(name if name == how else f"{name} = {how}" for name, how in setting.metrics.items()),
    }


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    return f"<dl>{rows}</dl>"
