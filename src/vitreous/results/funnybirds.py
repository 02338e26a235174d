"""What the FunnyBirds protocol has found: dimensions of every method, with intervals, and everything behind them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import SAMPLES, Difference, Interval, interval, means, p_value, resamples
from vitreous.metrics.ranking import Array
from vitreous.registry import check_choice
from vitreous.results.storage import plain, record, write
from vitreous.results.table import aligned, comma_separated, html_rows, markdown
from vitreous.viz import plots as figures

__all__ = ["AT", "COLUMNS", "SCHEMA", "FunnyBirdsResult", "Found"]

SCHEMA = "vitreous.funnybirds/1"
COLUMNS = {
    "acc": "Acc.",
    "bi": "B.I.",
    "csdc": "CSDC",
    "pc": "PC",
    "dc": "DC",
    "d": "D",
    "sd": "SD",
    "ts": "TS",
    "com": "Com.",
    "cor": "Cor.",
    "con": "Con.",
    "mean": "mean",
}
"""What is reported, with its head in a printed table. Higher is better everywhere."""
AT = ("best", "split", "fixed")
"""The threshold: the best one of all images, the best of one half of the images on the other, or a fixed one."""
DIMENSIONS = {
    "acc": "accuracy",
    "bi": "background independence",
    "csdc": "controlled synthetic data check",
    "pc": "preservation check",
    "dc": "deletion check",
    "d": "distractibility",
    "sd": "single deletion",
    "ts": "target sensitivity",
}
"""The axes of the radar, by column."""
_BY_THRESHOLD = ("csdc", "pc", "dc", "d")


@dataclass(frozen=True, eq=False)
class Found:
    """One method on every image: CSDC, PC, DC and D ``[n, 4, T + 1]`` by threshold, the fixed one last; SD and TS."""

    curves: Array
    sd: Array
    ts: Array


@dataclass(frozen=True, eq=False)
class FunnyBirdsResult:
    """Methods in rows, dimensions in columns.

    ``accuracy`` ``[n]`` and ``background`` ``[n, 2]`` (objects that matter, objects) are the model's own, ``found`` is
    what every method gets on every image, NaN where it is skipped. ``degenerate`` counts, by method, maps that are
    constant, zero or not finite, and images whose map has no positive total, where thresholds mean nothing. ``skipped``
    counts images by dimension.
    """

    images: tuple[str, ...]
    methods: tuple[str, ...]
    thresholds: Array
    fixed: float
    accuracy: Array
    background: Array
    found: Mapping[str, Found]
    degenerate: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, int]
    plan: Mapping[str, Any] = field(default_factory=dict)
    samples: int = SAMPLES
    seed: int = 0

    def score(self, method: str, column: str, at: str = "best") -> float:
        """Return one number: ``column`` is a key of ``COLUMNS``, ``at`` one of ``AT``."""
        return float(self._whole[self._method(method), self._at(at)][self._column(column)])

    def interval(self, method: str, column: str, at: str = "best") -> Interval:
        """Return its 95 % bootstrap interval over images; the best threshold is chosen anew in every resample."""
        return self._intervals[self._method(method), self._at(at)][self._column(column)]

    def difference(self, one: str, other: str, column: str = "mean", at: str = "best") -> Difference:
        """Return the paired difference ``one - other`` on the same images, with its interval and p-value."""
        place = self._column(column)
        pair = [(self._method(name), self._at(at)) for name in (one, other)]
        gap = self._whole[pair[0]][place] - self._whole[pair[1]][place]
        gaps = self._resampled[pair[0]][:, place] - self._resampled[pair[1]][:, place]
        gaps = gaps[~np.isnan(gaps)]
        if np.isnan(gap) or not len(gaps):
            raise VitreousError(f"{one} and {other} have no {column} to compare")
        return Difference(float(gap), *interval(gaps), p_value(gaps, len(self.images)), len(self.images))

    def threshold(self, method: str) -> float:
        """Return t*, the threshold at which completeness is best; NaN where it is undefined."""
        scores = _completeness(self._curves(method, np.ones((1, len(self.images))))[..., :-1])[0]
        return math.nan if np.isnan(scores).all() else float(self.thresholds[np.nanargmax(scores)])

    def per_image(self, method: str, column: str, at: float | None = None) -> Array:
        """Return what every image has ``[n]``, by threshold where there is one: at t*, or ``at`` another of them."""
        found, place = self.found[self._method(method)], list(COLUMNS)[self._column(column)]
        if place in ("acc", "sd", "ts"):
            return {"acc": self.accuracy, "sd": found.sd, "ts": found.ts}[place]
        if place == "bi":
            harmful, count = self.background.T
            return np.asarray(np.divide(count - harmful, count, out=np.full(len(count), np.nan), where=count > 0))
        if place not in _BY_THRESHOLD:
            raise VitreousError(f"{column} is made of all images together; per image there are acc to ts")
        level = self.threshold(method) if at is None else at
        levels = np.append(self.thresholds, self.fixed)
        if not np.isclose(levels, level).any():
            raise VitreousError(f"at={level} is not one of the thresholds")
        curve: Array = found.curves[:, _BY_THRESHOLD.index(place), int(np.isclose(levels, level).argmax())]
        return curve

    # -- all images together ---------------------------------------------------------------------------

    def _method(self, name: str) -> str:
        if name not in self.methods:
            raise VitreousError(f"no method {name!r} here{nearest(name, self.methods)}")
        return name

    def _column(self, name: str) -> int:
        check_choice("column", name, tuple(COLUMNS))
        return list(COLUMNS).index(name)

    def _at(self, name: str) -> str:
        check_choice("at", name, AT)
        return name

    @cached_property
    def _whole(self) -> dict[tuple[str, str], Array]:
        ones = np.ones((1, len(self.images)))
        return {key: rows[0] for key, rows in self._aggregated(ones).items()}

    @cached_property
    def _resampled(self) -> dict[tuple[str, str], Array]:
        blocks = [self._aggregated(weights) for weights in resamples(len(self.images), self.samples, self.seed)]
        return {key: np.concatenate([block[key] for block in blocks]) for key in blocks[0]}

    @cached_property
    def _intervals(self) -> dict[tuple[str, str], list[Interval]]:
        return {key: [interval(column) for column in rows.T] for key, rows in self._resampled.items()}

    def _aggregated(self, weights: Array) -> dict[tuple[str, str], Array]:
        """Return every column ``[r, 12]`` for each row of weights, by method and threshold."""
        harmful, count = (weights @ self.background).T
        free = np.divide(count - harmful, count, out=np.full(len(count), np.nan), where=count > 0)
        right = means(self.accuracy[:, None], weights)[:, 0]
        done = {}
        for method in self.methods:
            found = self.found[method]
            sd, ts = means(np.stack([found.sd, found.ts], axis=1), weights).T
            for at in AT:
                checks, com = self._checks(method, weights, at)
                done[method, at] = np.stack([right, free, *checks, sd, ts, com, sd, ts, (com + sd + ts) / 3], axis=1)
        return done

    def _checks(self, method: str, weights: Array, at: str) -> tuple[Array, Array]:
        """Return CSDC, PC, DC and D ``[4, r]``, and the completeness that they make ``[r]``."""
        if at != "split":
            curves = self._curves(method, weights)
            place = np.full(len(weights), -1) if at == "fixed" else _best(curves)
            chosen = curves[np.arange(len(weights)), :, place]
            return chosen.T, _completeness(chosen)
        halves = [weights * (np.arange(weights.shape[1]) % 2 == half) for half in (0, 1)]
        curves_of = [self._curves(method, half) for half in halves]
        both = [
            there[np.arange(len(weights)), :, _best(chosen)]
            for there, chosen in zip(curves_of, reversed(curves_of), strict=True)
        ]
        return np.mean(both, axis=0).T, np.mean([_completeness(each) for each in both], axis=0)

    def _curves(self, method: str, weights: Array) -> Array:
        curves = self.found[self._method(method)].curves
        return means(curves.reshape(len(curves), -1), weights).reshape(-1, *curves.shape[1:])

    # -- files and text --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        return {
            "schema": SCHEMA,
            "plan": dict(self.plan),
            "images": list(self.images),
            "thresholds": self.thresholds.tolist(),
            "fixed": self.fixed,
            "accuracy": plain(self.accuracy),
            "background": plain(self.background),
            "skipped": dict(self.skipped),
            "methods": [
                {
                    "name": method,
                    "threshold": plain(self.threshold(method)),
                    "degenerate": dict(self.degenerate[method]),
                    "scores": {at: {column: self._cell(method, column, at) for column in COLUMNS} for at in AT},
                    "per_image": {
                        "sd": plain(self.found[method].sd),
                        "ts": plain(self.found[method].ts),
                        **{
                            name: plain(self.found[method].curves[:, place]) for place, name in enumerate(_BY_THRESHOLD)
                        },
                    },
                }
                for method in self.methods
            ],
            "resampling": {"samples": self.samples, "seed": self.seed},
        }

    @classmethod
    def load(cls, path: str | Path) -> FunnyBirdsResult:
        """Read what was saved as ``.json``."""
        with record(path, SCHEMA, "result of FunnyBirds") as data:
            rows = {each["name"]: each["per_image"] for each in data["methods"]}
            return cls(
                images=tuple(data["images"]),
                methods=tuple(rows),
                thresholds=_array(data["thresholds"]),
                fixed=data["fixed"],
                accuracy=_array(data["accuracy"]),
                background=_array(data["background"]),
                found={
                    name: Found(
                        np.stack([_array(row[each]) for each in _BY_THRESHOLD], axis=1),
                        _array(row["sd"]),
                        _array(row["ts"]),
                    )
                    for name, row in rows.items()
                },
                degenerate={each["name"]: each["degenerate"] for each in data["methods"]},
                skipped=data["skipped"],
                plan=data["plan"],
                **data["resampling"],
            )

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``.json`` (everything) or ``.csv`` (one line per method, threshold and column)."""
        return write(path, {".json": self._json_text, ".csv": self.to_csv}, overwrite=overwrite)

    def _json_text(self) -> str:
        return json.dumps(self.to_json(), allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Return one line per method, threshold and column."""
        rows = [
            [
                method,
                at,
                column,
                *("" if math.isnan(v) else repr(v) for v in (self.score(*cell), *self.interval(*cell))),
            ]
            for method in self.methods
            for at in AT
            for column in COLUMNS
            for cell in [(method, column, at)]
        ]
        return comma_separated([["method", "at", "column", "score", "low", "high"], *rows])

    def plot(
        self,
        methods: Sequence[str] | None = None,
        *,
        at: str = "best",
        path: str | Path | None = None,
        overwrite: bool = False,
        width: str | float = "column",
    ) -> Any:
        """Return the radar of the eight dimensions as a matplotlib figure; with a path, also write it."""
        names = [self._method(method) for method in (self.methods if methods is None else methods)]
        values = {name: [self.score(name, dimension, at) for dimension in DIMENSIONS] for name in names}
        spans = {name: [self.interval(name, dimension, at) for dimension in DIMENSIONS] for name in names}
        note = f"{len(self.images)} images; higher is better; lines along the axes are 95 % bootstrap intervals."
        figure = figures.radar(list(DIMENSIONS.values()), values, "FunnyBirds", note, intervals=spans, width=width)
        if path is not None:
            figures.save(figure, path, overwrite=overwrite)
        return figure

    def to_markdown(self, at: str = "best") -> str:
        """Return the table as printed, in Markdown."""
        return markdown(self._printed(at))

    def __str__(self) -> str:
        return f"{aligned(self._printed('best'))}\n\n{aligned(self._thresholds())}\n\n{self._notes()}"

    def __repr__(self) -> str:
        return f"Birds: {len(self.methods)} methods, {len(self.images)} images\n{self}"

    def _repr_html_(self) -> str:
        return html_rows(self._printed("best"), f"{len(self.images)} images, at t*; 95 % intervals. {self._notes()}")

    def _printed(self, at: str) -> list[list[str]]:
        rows = [[method, *(self._text(method, column, at) for column in COLUMNS)] for method in self.methods]
        head = ["method", *COLUMNS.values()]
        if any(sum(counts.values()) for counts in self.degenerate.values()):
            head.append("maps")
            for row, method in zip(rows, self.methods, strict=True):
                row.append(", ".join(f"{n} {name}" for name, n in self.degenerate[method].items() if n))
        return [head, *rows]

    def _thresholds(self) -> list[list[str]]:
        """The same means with less luck in them: t* from the other half of the images, and one fixed threshold."""
        names = {"best": "at t*", "split": "split-half t*", "fixed": f"t = {self.fixed:g}"}
        head = ["method", "t*", *(f"{COLUMNS[c]} {name}" for c in ("com", "mean") for name in names.values())]
        rows = [
            [method, _short(self.threshold(method))]
            + [self._text(method, column, at) for column in ("com", "mean") for at in names]
            for method in self.methods
        ]
        return [head, *rows]

    def _notes(self) -> str:
        left_out = ", ".join(f"{n} in {what}" for what, n in self.skipped.items() if n)
        return f"{len(self.images)} images; skipped: {left_out or 'none'}"

    def _text(self, method: str, column: str, at: str) -> str:
        low, high = self.interval(method, column, at)
        score = self.score(method, column, at)
        return "-" if math.isnan(score) else f"{_short(score)} [{_short(low)}, {_short(high)}]"

    def _cell(self, method: str, column: str, at: str) -> dict[str, Any]:
        low, high = self.interval(method, column, at)
        return {"score": plain(self.score(method, column, at)), "interval": plain([low, high])}


def _completeness(curves: Array) -> Array:
    """Return ((CSDC + PC + DC) / 3 + D) / 2 of ``[r, 4, ...]``."""
    return np.asarray((curves[:, :3].mean(axis=1) + curves[:, 3]) / 2)


def _best(curves: Array) -> Array:
    """Return the place of the best threshold of each row, the first of equals; the fixed one, the last, is not one."""
    scores = _completeness(curves[..., :-1])
    return np.asarray(np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1))


def _short(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _array(values: Any) -> Array:
    return np.array(values, np.float64)
