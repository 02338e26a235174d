"""Cost, agreement of metrics, seeds, flags, pictures that could not be read, settings and provenance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.bench.report.finding import Finding
from vitreous.bench.report.parts import Cell, card, cells, escape, interval, note, number, section, table
from vitreous.bench.statistics import Flag
from vitreous.errors import VitreousError
from vitreous.methods import method
from vitreous.words.defaults import BASELINES, known_as

__all__ = ["agreement", "cost", "flags", "provenance", "seeds", "unreadable"]

_MOST_NAMES = 200


def cost(finding: Finding, anchor: str) -> str:
    """Return what each method costs: passes by its definition, and the seconds that were measured."""
    gathered, rows = finding.gathered, []
    costs = {name: each for name, each in gathered.costs.items() if each.maps}
    for name in finding.table.methods:
        forwards, backwards, told = _passes(gathered.setting.methods[name])
        row = [Cell(escape(known_as(name)))]
        row += [Cell("–" if math.isnan(n) else f"{n:g}", n, "n") for n in (forwards, backwards)]
        if costs:
            each = costs.get(name)
            both = (math.nan, math.nan) if each is None else (each.own + each.shared, each.own)
            times = [seconds / (1 if each is None else each.maps) for seconds in both]
            row += [Cell(_brief(seconds), seconds, "n") for seconds in times]
        rows.append([*row, Cell(escape(told))])
    names = ["method", "forwards", "backwards", *(["time per map", "its own part"] if costs else []), "in words"]
    head = [Cell(each, kind="" if each in ("method", "in words") else "n") for each in names]
    inside = table(head, rows, [name in BASELINES for name in finding.table.methods])
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


def _passes(spelling: str) -> tuple[float, float, str]:
    try:
        how = method(spelling)
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
            colour = "--for" if each.value > 0 else "--against"
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
        [Cell(escape(known_as(row[0]))), Cell(escape(row[1])), *cells(row[2:-1]), Cell(escape(row[-1]))]
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
    found = [each for each in (*finding.statistics.marks, *finding.statistics.flags) if each.method not in BASELINES]
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
    return ", ".join(known_as(name) for name in names)


def unreadable(findings: Sequence[Finding]) -> str:
    """Return the pictures that could not be read, each once, with the reason."""
    bad = {name: reason for each in findings for name, reason in each.gathered.unreadable.items()}
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
    for each in findings:
        cards.append(card(_facts(_settings(each)), each.name))
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
        "explained": f"{setting.target} class, {setting.value}",
        "ranking": f"upsample {setting.upsample}, ties {setting.ties}, non-finite maps: {setting.nonfinite}",
        "numbers": f"{setting.dtype} to explain, {setting.precision} to judge"
        + (" (audited)" if facts["audits"] else ""),
        "sizes": f"{setting.images} pictures in a unit, {setting.inner} inputs in a pass, {setting.states} states",
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
