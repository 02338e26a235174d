"""What the FunnyBirds protocol finds: dimensions of every method, with intervals, and everything behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import SAMPLES, Difference, Interval, interval, means, p_value, resamples
from vitreous.metrics.ranking import Array
from vitreous.registry import check_choice
from vitreous.results.storage import (
    ResultBase,
    add_degenerate,
    aligned,
    comma_separated,
    estimate_text,
    from_plain,
    html_table,
    markdown,
    number_text,
    to_plain,
)
from vitreous.viz import plots

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
THRESHOLD_RULES = {"best": "at t*", "split": "split-half t*", "fixed": "t = {fixed:g}"}
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
_SAME = ("plan", "images", "thresholds", "fixed", "accuracy", "background", "skipped")  # as they are in a file


@dataclass(frozen=True, eq=False)
class FunnyBirdsChecks:
    """One method on every image: CSDC, PC, DC and D ``[n, 4, T + 1]`` by threshold, the fixed one last; SD and TS."""

    curves: Array
    sd: Array
    ts: Array


@dataclass(frozen=True, eq=False, repr=False)
class FunnyBirdsResult(ResultBase):
    """Methods in rows, the dimensions of the FunnyBirds protocol in columns.

    Made by ``vt.funnybirds``. NaN stands where an image is skipped.

    Parameters
    ----------
    images, methods : tuple of str
        Names.
    thresholds : array
        Shares of a map's total ``[T]`` from which on a part is important.
    fixed : float
        The threshold reported beside the best one.
    accuracy : array
        1 where the model's prediction is right, ``[n]``.
    background : array
        How many objects matter, and how many there are, ``[n, 2]``.
    checks : dict of FunnyBirdsChecks
        What every method gets on every image.
    degenerate : dict of dict of int
        By method: maps that are constant, zero or not finite, and images whose map has no positive total, where
        thresholds mean nothing.
    skipped : dict of int
        How many images each dimension leaves out.
    plan : dict
        How it was made.
    n_bootstrap : int, default 10000
        Resamples of the intervals.
    seed : int, default 0
        Of the bootstrap.

    Examples
    --------
    >>> birds = vt.funnybirds(model, "ixg", vt.world.World(n=2), controls=False, n_bootstrap=50)
    >>> birds.methods
    ('ixg',)
    """

    schema = "vitreous.funnybirds/1"
    noun = "FunnyBirds result"

    images: tuple[str, ...]
    methods: tuple[str, ...]
    thresholds: Array
    fixed: float
    accuracy: Array
    background: Array
    checks: Mapping[str, FunnyBirdsChecks]
    degenerate: Mapping[str, Mapping[str, int]]
    skipped: Mapping[str, int]
    plan: Mapping[str, Any] = field(default_factory=dict)
    n_bootstrap: int = SAMPLES
    seed: int = 0

    def score(self, method: str, column: str, at: str = "best") -> float:
        """Return one number: ``column`` is a key of ``COLUMNS``, ``at`` one of ``"best"``, ``"split"``, ``"fixed"``."""
        return float(self._scores[self._cell(method, at)][self._column(column)])

    def interval(self, method: str, column: str, at: str = "best") -> Interval:
        """Return its 95 % bootstrap interval over images; the best threshold is chosen anew in every resample."""
        return self._intervals[self._cell(method, at)][self._column(column)]

    def difference(self, one: str, other: str, column: str = "mean", at: str = "best") -> Difference:
        """Return the paired difference ``one - other`` on the same images, with its interval and p-value."""
        index, first, second = self._column(column), self._cell(one, at), self._cell(other, at)
        gap = self._scores[first][index] - self._scores[second][index]
        gaps = self._resampled[first][:, index] - self._resampled[second][:, index]
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
        checks, name = self.checks[self._cell(method)[0]], list(COLUMNS)[self._column(column)]
        if name in ("acc", "sd", "ts"):
            return {"acc": self.accuracy, "sd": checks.sd, "ts": checks.ts}[name]
        if name == "bi":
            return _independence(*self.background.T)
        if name not in _BY_THRESHOLD:
            raise VitreousError(f"{column} is made of all images together; per image there are acc to ts")
        level = self.threshold(method) if at is None else at
        is_level = np.isclose(np.append(self.thresholds, self.fixed), level)
        if not is_level.any():
            raise VitreousError(f"at={level} is not one of the thresholds")
        curve: Array = checks.curves[:, _BY_THRESHOLD.index(name), int(is_level.argmax())]
        return curve

    # -- all images together ---------------------------------------------------------------------------

    def _cell(self, method: str, at: str = "best") -> tuple[str, str]:
        if method not in self.methods:
            raise VitreousError(f"no method {method!r} here{nearest(method, self.methods)}")
        check_choice("at", at, tuple(THRESHOLD_RULES))
        return method, at

    def _column(self, name: str) -> int:
        check_choice("column", name, tuple(COLUMNS))
        return list(COLUMNS).index(name)

    @cached_property
    def _scores(self) -> dict[tuple[str, str], Array]:
        return {cell: rows[0] for cell, rows in self._aggregated(np.ones((1, len(self.images)))).items()}

    @cached_property
    def _resampled(self) -> dict[tuple[str, str], Array]:
        blocks = [self._aggregated(weights) for weights in resamples(len(self.images), self.n_bootstrap, self.seed)]
        return {cell: np.concatenate([block[cell] for block in blocks]) for cell in blocks[0]}

    @cached_property
    def _intervals(self) -> dict[tuple[str, str], list[Interval]]:
        return {cell: [interval(column) for column in rows.T] for cell, rows in self._resampled.items()}

    def _aggregated(self, weights: Array) -> dict[tuple[str, str], Array]:
        """Return every column ``[r, 12]`` for each row of weights, by method and threshold rule."""
        independence = _independence(*(weights @ self.background).T)
        accuracy = means(self.accuracy[:, None], weights)[:, 0]
        cells = {}
        for method in self.methods:
            checks = self.checks[method]
            sd, ts = means(np.stack([checks.sd, checks.ts], axis=1), weights).T
            for at in THRESHOLD_RULES:
                rows, com = self._at_threshold(method, weights, at)
                columns = [accuracy, independence, *rows, sd, ts, com, sd, ts, (com + sd + ts) / 3]
                cells[method, at] = np.stack(columns, axis=1)
        return cells

    def _at_threshold(self, method: str, weights: Array, at: str) -> tuple[Array, Array]:
        """Return CSDC, PC, DC and D ``[4, r]``, and the completeness that they make ``[r]``."""
        rows = np.arange(len(weights))
        if at != "split":
            curves = self._curves(method, weights)
            chosen = curves[rows, :, -1 if at == "fixed" else _best(curves)]
            return chosen.T, _completeness(chosen)
        halves = [weights * (np.arange(weights.shape[1]) % 2 == half) for half in (0, 1)]
        first, second = (self._curves(method, half) for half in halves)
        both = [first[rows, :, _best(second)], second[rows, :, _best(first)]]
        return np.mean(both, axis=0).T, np.mean([_completeness(half) for half in both], axis=0)

    def _curves(self, method: str, weights: Array) -> Array:
        curves = self.checks[self._cell(method)[0]].curves
        return means(curves.reshape(len(curves), -1), weights).reshape(-1, *curves.shape[1:])

    # -- files and text --------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """How many methods and images there are."""
        return f"{len(self.methods)} methods, {len(self.images)} images"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        rows = [
            {
                "name": method,
                "threshold": self.threshold(method),
                "degenerate": self.degenerate[method],
                "scores": {
                    at: {
                        column: {"score": self.score(method, column, at), "interval": self.interval(method, column, at)}
                        for column in COLUMNS
                    }
                    for at in THRESHOLD_RULES
                },
                "per_image": {
                    "sd": self.checks[method].sd,
                    "ts": self.checks[method].ts,
                    **{name: self.checks[method].curves[:, i] for i, name in enumerate(_BY_THRESHOLD)},
                },
            }
            for method in self.methods
        ]
        return {
            "schema": self.schema,
            **to_plain({name: getattr(self, name) for name in _SAME}),
            "methods": to_plain(rows),
            "resampling": {"n_bootstrap": self.n_bootstrap, "seed": self.seed},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FunnyBirdsResult:
        """Return the result whose ``to_json`` this is."""
        checks = {}
        for row in data["methods"]:
            arrays = {name: np.array(values, np.float64) for name, values in row["per_image"].items()}
            curves = np.stack([arrays[name] for name in _BY_THRESHOLD], axis=1)
            checks[row["name"]] = FunnyBirdsChecks(curves, arrays["sd"], arrays["ts"])
        degenerate = {row["name"]: row["degenerate"] for row in data["methods"]}
        own = {"methods": tuple(checks), "checks": checks, "degenerate": degenerate, **data["resampling"]}
        hints = get_type_hints(cls)
        return cls(**own, **{name: from_plain(hints[name], data[name]) for name in _SAME})

    def to_csv(self) -> str:
        """Return one line per method, threshold and column."""
        rows: list[list[Any]] = [["method", "at", "column", "score", "low", "high"]]
        for method in self.methods:
            for at in THRESHOLD_RULES:
                for column in COLUMNS:
                    row = [method, at, column, self.score(method, column, at), *self.interval(method, column, at)]
                    rows.append(row)
        return comma_separated(rows)

    def plot(
        self,
        methods: Sequence[str] | None = None,
        *,
        at: str = "best",
        path: str | Path | None = None,
        overwrite: bool = False,
        width: str | float = "column",
    ) -> Any:
        """Return the radar of the eight dimensions as a matplotlib figure.

        Parameters
        ----------
        methods : sequence of str, optional
            Some of the methods; all by default.
        at : {"best", "split", "fixed"}, default "best"
            The threshold.
        path : str or Path, optional
            Also write it here.
        overwrite : bool, default False
            Replace what is there.
        width : str or float, default "column"
            ``"column"``, ``"page"`` or millimetres.
        """
        names = [self._cell(method, at)[0] for method in (self.methods if methods is None else methods)]
        values = {name: [self.score(name, dimension, at) for dimension in DIMENSIONS] for name in names}
        spans = {name: [self.interval(name, dimension, at) for dimension in DIMENSIONS] for name in names}
        note = f"{len(self.images)} images; higher is better; lines along the axes are 95 % bootstrap intervals."
        figure = plots.radar(list(DIMENSIONS.values()), values, "FunnyBirds", note, intervals=spans, width=width)
        if path is not None:
            plots.save(figure, path, overwrite=overwrite)
        return figure

    def to_markdown(self, at: str = "best") -> str:
        """Return the table as printed, in Markdown; ``at`` is the threshold."""
        return markdown(self.rows(at))

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{aligned(self._threshold_rows())}\n\n{self._notes}"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), f"{len(self.images)} images, at t*; 95 % intervals. {self._notes}")

    def rows(self, at: str = "best") -> list[list[str]]:
        """Return the table as printed; ``at`` is the threshold."""
        rows = [["method", *COLUMNS.values()]]
        rows += [[method, *(self._text(method, column, at) for column in COLUMNS)] for method in self.methods]
        add_degenerate(rows, "maps", self.degenerate)
        return rows

    def _threshold_rows(self) -> list[list[str]]:
        """The same means with less luck in them: t* from the other half of the images, and one fixed threshold."""
        names = [name.format(fixed=self.fixed) for name in THRESHOLD_RULES.values()]
        rows = [["method", "t*", *(f"{COLUMNS[column]} {name}" for column in ("com", "mean") for name in names)]]
        for method in self.methods:
            cells = [self._text(method, column, at) for column in ("com", "mean") for at in THRESHOLD_RULES]
            rows.append([method, number_text(self.threshold(method)), *cells])
        return rows

    @property
    def _notes(self) -> str:
        skipped = ", ".join(f"{n} in {what}" for what, n in self.skipped.items() if n)
        return f"{len(self.images)} images; skipped: {skipped or 'none'}"

    def _text(self, method: str, column: str, at: str) -> str:
        return estimate_text(self.score(method, column, at), self.interval(method, column, at))


def _independence(harmful: Array, count: Array) -> Array:
    """Return the share of objects that do not matter; NaN where there are none."""
    return np.asarray(np.divide(count - harmful, count, out=np.full(len(count), np.nan), where=count > 0))


def _completeness(curves: Array) -> Array:
    """Return ((CSDC + PC + DC) / 3 + D) / 2 of ``[r, 4, ...]``."""
    return np.asarray((curves[:, :3].mean(axis=1) + curves[:, 3]) / 2)


def _best(curves: Array) -> Array:
    """Return the index of the best threshold of each row, the first of equals; the fixed one, the last, is not one."""
    scores = _completeness(curves[..., :-1])
    return np.asarray(np.where(np.isnan(scores), -np.inf, scores).argmax(axis=1))
