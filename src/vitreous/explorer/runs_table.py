"""The table of a run as plain data: means with intervals, marks and flags, as the report prints them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vitreous.bench.report.finding import Finding
from vitreous.bench.statistics import Flag
from vitreous.explorer.runs_part import Part
from vitreous.results.records import plain
from vitreous.words.defaults import BASELINES

__all__ = ["table"]

_MOST_NAMES = 50


def table(part: Part, number: int) -> dict[str, Any]:
    """Return everything about one model and data set but what single pictures have to say."""
    finding = part.finding
    gathered = finding.gathered
    lost = {**gathered.unreadable, **gathered.unsure}
    told: dict[str, Any] = {
        "part": number,
        "name": finding.name,
        "model": gathered.label,
        "data": gathered.data,
        "images": len(finding.table.images),
        "seeds": list(gathered.seeds),
        "loaded": None if part.loaded is None else part.loaded[0],
        "pictures": part.photos is not None,
        "why": part.why,
        "reference": finding.reference,
        "missing": {"wanted": gathered.missing.wanted, "cells": gathered.missing.cells},
        "absent": list(gathered.missing.metrics),
        "left_out": [{"name": name, "why": why} for name, why in list(lost.items())[:_MOST_NAMES]],
        "left_out_count": len(lost),
    }
    if finding.empty:
        return {**told, "methods": [], "metrics": [], "cells": [], "flags": [], "notes": [], "classes": []}
    found, statistics = finding.table, finding.statistics
    return {
        **told,
        "methods": [_method(part, name) for name in found.methods],
        "metrics": [_metric(finding, metric) for metric in found.metrics],
        "cells": [[_cell(finding, name, metric) for metric in found.metrics] for name in found.methods],
        "flags": [_flag(each) for each in (*statistics.marks, *statistics.flags) if each.method not in BASELINES],
        "notes": list(statistics.notes),
        "classes": part.classes,
    }


def _method(part: Part, name: str) -> dict[str, Any]:
    finding = part.finding
    counts, cost = finding.table.degenerate[name], finding.gathered.costs.get(name)
    return {
        **part.titled(name),
        "quiet": name in BASELINES,
        "reference": name == finding.reference,
        "seconds": None if cost is None or not cost.maps else (cost.own + cost.shared) / cost.maps,
        "degenerate": ", ".join(f"{count} {kind}" for kind, count in counts.items() if count),
    }


def _metric(finding: Finding, metric: str) -> dict[str, Any]:
    found = finding.table
    ends = [value for name in found.methods for value in found.interval(name, metric) if not math.isnan(value)]
    chance = finding.statistics.chance
    trial = found.trial[metric]
    return {
        "name": metric,
        "up": found.higher_is_better[metric],
        "digits": finding.digits(metric),
        "span": [min(ends), max(ends)] if ends else None,
        "chance": plain(found.mean(chance, metric)) if chance in found.methods else None,
        "trial": None if trial is None else {"verdict": trial.verdict, "text": str(trial)},
    }


def _cell(finding: Finding, name: str, metric: str) -> dict[str, Any] | None:
    found, statistics = finding.table, finding.statistics
    mean, (low, high) = found.mean(name, metric), found.interval(name, metric)
    if math.isnan(mean):
        return None
    test = statistics.test(name, statistics.chance, metric)
    printed = finding.published.get((name, metric))
    groups = statistics.ranks[metric].groups
    shared = [each.text for each in statistics.marks if (each.method, each.metric) == (name, metric)]
    return {
        "mean": mean,
        "low": plain(low),
        "high": plain(high),
        "images": int((~np.isnan(found[name, metric])).sum()),
        "best": name == found.best(metric),
        "word": None if test is None or test.word == "not tested" else test.word,
        "stars": "" if test is None else test.stars,
        "p": None if test is None else plain(test.corrected),
        "letters": "".join(chr(ord("a") + at % 26) for at, group in enumerate(groups) if name in group),
        "mark": shared[0] if shared else None,
        "paper": None if printed is None else printed.value,
        "seed_sd": plain(found.seed_sd.get((name, metric), math.nan)),
    }


def _flag(flag: Flag) -> dict[str, str]:
    return {"kind": flag.kind, "method": flag.method, "metric": flag.metric, "text": flag.text}
