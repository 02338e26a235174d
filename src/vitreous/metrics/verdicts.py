"""What the last full trial found about each metric: data that stands beside every table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.metrics.base import Metric
from vitreous.metrics.base import get_metric as metric_of

VERDICTS = ("fails", "blind", "passes", "not tried")
"""What a trial may say of a metric, bad news first."""


@dataclass(frozen=True)
class Verdict:
    """What a trial found about one metric, and how much of a trial it was.

    ``metric`` is the spelling that was tried; where that is not quite the one asked for, ``note`` says so.
    """

    metric: str
    verdict: str
    why: str
    images: int
    seeds: int
    model: str
    error_rate: float | None = None
    truth: float | None = None
    smallest_share: float | None = None
    note: str = ""

    def __str__(self) -> str:
        trial = f" ({self.images} scenes, {self.seeds} seeds of {self.model})" if self.images else ""
        return f"{self.verdict}: {self.why}{trial}{f'; {self.note}' if self.note else ''}"


def verdict(spec: str | Metric) -> Verdict | None:
    """Return what the shipped trial found about a metric: with these settings, or else with others and a note.

    ``None`` for a metric that no trial has seen. A spelling that means nothing is an error, as everywhere.
    """
    judge, told = metric_of(spec), shipped()
    rows = told["metrics"]
    if judge.spec in rows:
        return _verdict(told, judge.spec)
    for tried in (judge.info.name, *(row for row in rows if row.partition("(")[0] == judge.info.name)):
        if tried in rows:
            return _verdict(told, tried, f"tried as {tried}, not as {judge.spec}")
    return None


@cache
def shipped() -> dict[str, Any]:
    """Return the verdicts of the package, read when they are first asked for."""
    told: dict[str, Any] = json.loads(Path(__file__).with_name("verdicts.json").read_text(encoding="utf-8"))
    return told


def _verdict(told: dict[str, Any], name: str, note: str = "") -> Verdict:
    return Verdict(name, **told["metrics"][name], note=note)
