"""What the last full meta-evaluation says about each metric: data that stands beside every table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.metrics.base import Metric, get_metric

VERDICTS = ("fails", "blind", "passes", "not tried")
"""What a meta-evaluation may say of a metric, bad news first."""


@dataclass(frozen=True)
class Verdict:
    """The result of a meta-evaluation of one metric, and how large it was.

    ``metric`` is the spec that was tried; where that is not the requested one, ``note`` says so.
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
    """Return what the shipped meta-evaluation says about a metric: with these settings, or with others and a note.

    ``None`` for a metric that was in none. A spec that means nothing is an error, as everywhere.
    """
    metric, data = get_metric(spec), shipped()
    name, rows = metric.info.name, data["metrics"]
    for tried in (metric.spec, name, *(row for row in rows if row.partition("(")[0] == name)):
        if tried in rows:
            note = "" if tried == metric.spec else f"tried as {tried}, not as {metric.spec}"
            return Verdict(tried, **rows[tried], note=note)
    return None


@cache
def shipped() -> dict[str, Any]:
    """Return the verdicts of the package, read when they are first needed."""
    data: dict[str, Any] = json.loads(Path(__file__).with_name("verdicts.json").read_text(encoding="utf-8"))
    return data
