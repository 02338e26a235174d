"""What an evaluation is once it is made: scores of every image, and everything that is read from them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import disk
from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bins import Bin, bins
from vitreous.metrics.bootstrap import SAMPLES, Difference, Interval, difference, intervals
from vitreous.metrics.curves import Array

__all__ = ["SCHEMA", "Table"]

SCHEMA = "vitreous.score/1"


@dataclass(frozen=True, eq=False)
class Table:
    """Methods in rows, metrics in columns, and behind each cell one score per image.

    ``scores[method, metric]`` is ``[n]``, NaN where an image has no score. ``higher_is_better`` is by metric,
    ``degenerate`` counts constant, zero and non-finite maps by method. ``confidence`` holds the probability of the
    predicted (``"pred"``) and true (``"label"``) class of each clean image. ``plan`` records how the numbers were made.
    """

    images: tuple[str, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    scores: Mapping[tuple[str, str], Array]
    higher_is_better: Mapping[str, bool]
    degenerate: Mapping[str, Mapping[str, int]]
    confidence: Mapping[str, Array]
    plan: Mapping[str, Any] = field(default_factory=dict)
    samples: int = SAMPLES
    seed: int = 0

    def mean(self, method: str, metric: str) -> float:
        """Return the mean over the images that have a score."""
        there = self[method, metric]
        there = there[~np.isnan(there)]
        return float(there.mean()) if len(there) else math.nan

    def interval(self, method: str, metric: str) -> Interval:
        """Return the 95 % bootstrap interval of the mean."""
        self[method, metric]
        return self._intervals[method, metric]

    def difference(self, one: str, other: str, metric: str) -> Difference:
        """Return the paired difference ``one - other`` with its interval and p-value."""
        return difference(self[one, metric], self[other, metric], samples=self.samples, seed=self.seed)

    def z(self, method: str, metric: str, against: str = "random") -> float:
        """Return how many standard errors a method lies above another, image by image; NaN where that is undefined."""
        gaps = self[method, metric] - self[against, metric]
        gaps = gaps[~np.isnan(gaps)]
        error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        return float(gaps.mean() / error) if error > 0 else math.nan

    def bins(
        self,
        method: str,
        metric: str,
        count: int = 20,
        by: str = "width",
        confidence: str = "pred",
        relative: bool = False,
    ) -> list[Bin]:
        """Return the scores by the model's confidence: see ``vitreous.metrics.bins``."""
        if confidence not in self.confidence:
            raise VitreousError(f"confidence={confidence!r} is not one of {', '.join(self.confidence)}")
        asked: dict[str, Any] = {"relative": relative, "samples": self.samples, "seed": self.seed}
        return bins(self[method, metric], self.confidence[confidence], count, by, **asked)

    def best(self, metric: str) -> str:
        """Return the method with the best mean."""
        means = {method: self.mean(method, metric) for method in self.methods}
        there = {method: mean for method, mean in means.items() if not math.isnan(mean)}
        if not there:
            raise VitreousError(f"no method has a score in {metric}")
        pick = max if self.higher_is_better[metric] else min
        return pick(there, key=lambda method: there[method])

    def __getitem__(self, cell: tuple[str, str]) -> Array:
        """Return the per-image scores of a method in a metric."""
        for word, known, what in zip(cell, (self.methods, self.metrics), ("method", "metric"), strict=True):
            if word not in known:
                raise VitreousError(f"no {what} {word!r} in this table{nearest(word, known)}")
        return self.scores[cell]

    @cached_property
    def _intervals(self) -> dict[tuple[str, str], Interval]:
        cells = list(self.scores)
        found = intervals(np.stack([self.scores[cell] for cell in cells], axis=1), samples=self.samples, seed=self.seed)
        return dict(zip(cells, found, strict=True))

    # -- files and text --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        return {
            "schema": SCHEMA,
            "plan": dict(self.plan),
            "images": list(self.images),
            "metrics": [{"name": m, "higher_is_better": self.higher_is_better[m]} for m in self.metrics],
            "methods": [
                {
                    "name": method,
                    "degenerate": dict(self.degenerate[method]),
                    "scores": {metric: self._cell(method, metric) for metric in self.metrics},
                }
                for method in self.methods
            ],
            "confidence": {name: _plain(values) for name, values in self.confidence.items()},
        }

    def to_csv(self) -> str:
        """Return one line per image, method and metric."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(["image", "method", "metric", "score"])
        for (method, metric), values in self.scores.items():
            for image, value in zip(self.images, values.tolist(), strict=True):
                lines.writerow([image, method, metric, "" if math.isnan(value) else repr(value)])
        return text.getvalue()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the table as ``.json`` or ``.csv``, whole or not at all."""
        path = Path(path)
        if path.suffix not in (".json", ".csv"):
            raise VitreousError(f"{path} must end in .json or .csv")
        whole = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        text = self.to_csv() if path.suffix == ".csv" else whole
        disk.write_file(path, text.encode(errors="surrogateescape"), overwrite=overwrite)
        return path

    def __str__(self) -> str:
        head = ["method", *(f"{metric} {'↑' if self.higher_is_better[metric] else '↓'}" for metric in self.metrics)]
        strange = any(sum(counts.values()) for counts in self.degenerate.values())
        rows = [[method, *(self._text(method, metric) for metric in self.metrics)] for method in self.methods]
        if strange:
            head.append("degenerate maps")
            for row, method in zip(rows, self.methods, strict=True):
                row.append(", ".join(f"{n} {name}" for name, n in self.degenerate[method].items() if n))
        return _aligned([head, *rows])

    def _text(self, method: str, metric: str) -> str:
        low, high = self.interval(method, metric)
        mean = self.mean(method, metric)
        return "-" if math.isnan(mean) else f"{mean:.4f} [{low:.4f}, {high:.4f}]"

    def _cell(self, method: str, metric: str) -> dict[str, Any]:
        values = self[method, metric]
        low, high = self.interval(method, metric)
        return {
            "mean": _number(self.mean(method, metric)),
            "interval": [_number(low), _number(high)],
            "images": int((~np.isnan(values)).sum()),
            "per_image": _plain(values),
        }


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _plain(values: Array) -> list[float | None]:
    return [_number(value) for value in values.tolist()]
