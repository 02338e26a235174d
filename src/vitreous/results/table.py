"""Rows of text as they are printed, and the same for a terminal, Markdown, LaTeX, CSV and notebooks.

What an evaluation is once it is made: scores of every image, and everything that is read from them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import io as disk
from vitreous.errors import VitreousError, nearest
from vitreous.metrics.base import Metric, as_parts, check_widths
from vitreous.metrics.base import get_metric as metric_of
from vitreous.metrics.bootstrap import (
    SAMPLES,
    Bin,
    Cell,
    Difference,
    Interval,
    bins,
    clustered_error,
    difference,
    interval,
    resampled,
)
from vitreous.metrics.ranking import Array, Curve
from vitreous.metrics.verdicts import Verdict, verdict
from vitreous.results import table_plots as figures
from vitreous.results.storage import plain, record, write

__all__ = [
    "SCHEMA",
    "ScoreRecord",
    "ScoreTable",
    "aligned",
    "comma_separated",
    "html_rows",
    "latex",
    "markdown",
]

Rows = Sequence[Sequence[str]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def aligned(rows: Rows) -> str:
    """Return the rows in columns of one width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def comma_separated(rows: Rows) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown(rows: Rows) -> str:
    """Return the rows as a table in Markdown, the first one its head."""
    head, *body = [[re.sub(r"([|\\`*_<])", r"\\\1", " ".join(cell.split())) for cell in row] for row in rows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def latex(rows: Rows) -> str:
    """Return the rows as a ``tabular`` that needs no package, the first one its head."""
    head, *body = [" & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def html_rows(rows: Rows, caption: str = "") -> str:
    """Return the rows for a notebook, the first one the head; every text is escaped."""
    head, *body = rows
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    rest = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{rest}</tbody></table>"


SCHEMA = "vitreous.evaluate/2"
_NUMBERS = re.compile(r"\[\s*\n([-\d.eE+,\s]|null)*\]")


@dataclass(frozen=True, eq=False)
class ScoreRecord:
    """The scores of some images by one method in one metric: parts ``[n, P]``, and the curves behind them."""

    method: str
    metric: str
    seed: int
    images: tuple[str, ...]
    parts: Array
    curves: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Methods in rows, metrics in columns, and behind each cell what every image has to say.

    ``parts[method, metric]`` is ``[n, P]``, NaN where an image has no score, and ``judges[metric]`` makes scores of
    them; ``curves[method, metric]`` is what they were read from. ``degenerate`` counts constant, zero and non-finite
    maps by method. ``confidence`` holds the probability of the predicted (``"pred"``) and true (``"label"``) class of
    each clean image. ``plan`` records how the numbers were made.
    """

    images: tuple[str, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    parts: Mapping[tuple[str, str], Array]
    judges: Mapping[str, Metric]
    degenerate: Mapping[str, Mapping[str, int]]
    confidence: Mapping[str, Array]
    curves: Mapping[tuple[str, str], Mapping[str, Curve]] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    samples: int = SAMPLES
    seed: int = 0
    groups: tuple[int, ...] | None = None
    """Which rows belong together and are resampled together: the cells of one grid, say."""
    seed_sd: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The standard deviation between the scores of single seeds, where scores are averaged over several; else empty."""

    @classmethod
    def from_records(
        cls,
        records: Iterable[ScoreRecord],
        images: Mapping[str, str],
        methods: tuple[str, ...],
        judges: Mapping[str, Metric],
        *,
        widths: Mapping[str, int],
        **details: Any,
    ) -> ScoreTable:
        """Return the table of some records; an image without a record of a cell has NaN there.

        ``images`` are the names of the rows by what records call them, ``widths`` how many parts each metric has.
        """
        rows = {image: row for row, image in enumerate(images)}
        cells = [(method, metric) for method in methods for metric in judges]
        parts = {cell: np.full((len(rows), widths[cell[1]]), np.nan) for cell in cells}
        curves: dict[tuple[str, str], dict[str, Curve]] = {cell: {} for cell in cells}
        for scores in records:
            cell = scores.method, scores.metric
            there = [at for at, image in enumerate(scores.images) if image in rows]
            places = [rows[scores.images[at]] for at in there]
            check_widths(scores.metric, [parts[cell], scores.parts])
            parts[cell][places] = scores.parts[there]
            for name, curve in scores.curves.items():
                empty = Curve(curve.x, np.full((len(rows), len(curve.x)), np.nan))
                curves[cell].setdefault(name, empty).y[places] = curve.y[there]
        return cls(tuple(images.values()), methods, tuple(judges), parts, judges, curves=curves, **details)

    @cached_property
    def scores(self) -> dict[tuple[str, str], Array]:
        """One score per image, ``[n]``, by method and metric."""
        return {cell: self.judges[cell[1]].per_image(parts) for cell, parts in self.parts.items()}

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Which way is up, by metric."""
        return {name: self.judges[name].higher_is_better for name in self.metrics}

    def mean(self, method: str, metric: str) -> float:
        """Return the score of all images that have one: for most metrics, the mean."""
        self[method, metric]
        return float(self._whole[method, metric])

    def interval(self, method: str, metric: str) -> Interval:
        """Return the 95 % bootstrap interval of that score, aggregated anew in every resample."""
        self[method, metric]
        return self._intervals[method, metric]

    def curve(self, method: str, metric: str, name: str | None = None) -> Curve:
        """Return the curve that a metric was read from; by ``name``, where there are several."""
        self[method, metric]
        curves = self.curves.get((method, metric), {})
        if not curves:
            raise VitreousError(f"{metric} is not read from a curve")
        if name is None and len(curves) > 1:
            raise VitreousError(f"{metric} is read from several curves: name one of {', '.join(curves)}")
        if name is not None and name not in curves:
            raise VitreousError(f"{metric} has no curve {name!r}, but {', '.join(curves)}")
        return curves[next(iter(curves)) if name is None else name]

    def difference(self, one: str, other: str, metric: str) -> Difference:
        """Return the paired difference ``one - other`` with its interval and p-value."""
        self[one, metric], self[other, metric]
        (first, aggregate), (second, _) = (self.judges[metric].cell(self.parts[name, metric]) for name in (one, other))
        return difference(first, second, aggregate, samples=self.samples, seed=self.seed, groups=self.groups)

    def z(self, method: str, metric: str, contrast: str = "random") -> float:
        """Return how many standard errors a method lies above another, image by image; NaN where that is undefined.

        Images of a group count as one.
        """
        gaps = self[method, metric] - self[contrast, metric]
        error = clustered_error(gaps, self.groups)
        return float(np.nanmean(gaps) / error) if error > 0 else math.nan

    def bins(
        self,
        method: str,
        metric: str,
        count: int = 20,
        by: str = "width",
        confidence: str = "pred",
        relative: bool = False,
    ) -> list[Bin]:
        """Return the scores by the model's confidence: see ``vitreous.metrics.bootstrap``."""
        if confidence not in self.confidence:
            raise VitreousError(f"confidence={confidence!r} is not one of {', '.join(self.confidence)}")
        asked: dict[str, Any] = {
            "relative": relative,
            "samples": self.samples,
            "seed": self.seed,
            "groups": self.groups,
        }
        return bins(self[method, metric], self.confidence[confidence], count, by, **asked)

    @property
    def trial(self) -> dict[str, Verdict | None]:
        """What the shipped trial of metrics found about each column; ``None`` for those that it has not seen."""
        return {name: verdict(judge) for name, judge in self.judges.items()}

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
    def _cells(self) -> list[Cell]:
        return [self.judges[metric].cell(parts) for (_, metric), parts in self.parts.items()]

    @cached_property
    def _whole(self) -> dict[tuple[str, str], float]:
        ones = np.ones((1, len(self.images)))
        scores = [float(aggregate(parts, ones)[0]) for parts, aggregate in self._cells]
        return dict(zip(self.parts, scores, strict=True))

    @cached_property
    def _intervals(self) -> dict[tuple[str, str], Interval]:
        resamples = resampled(self._cells, self.samples, self.seed, self.groups)
        return {cell: interval(column) for cell, column in zip(self.parts, resamples.T, strict=True)}

    # -- files and text --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        return {
            "schema": SCHEMA,
            "plan": dict(self.plan),
            "images": list(self.images),
            "metrics": [
                {"name": name, "higher_is_better": self.higher_is_better[name], "trial": found and found.verdict}
                for name, found in self.trial.items()
            ],
            "methods": [
                {
                    "name": method,
                    "degenerate": dict(self.degenerate[method]),
                    "scores": {metric: self._cell(method, metric) for metric in self.metrics},
                }
                for method in self.methods
            ],
            "confidence": {name: plain(values) for name, values in self.confidence.items()},
            "resampling": {"samples": self.samples, "seed": self.seed, "groups": self.groups and list(self.groups)},
        }

    @classmethod
    def load(cls, path: str | Path) -> ScoreTable:
        """Read a table that was saved as ``.json``; its metrics must be known here."""
        with record(path, SCHEMA, "table of scores") as data:
            return cls._from_json(data)

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> ScoreTable:
        names = [each["name"] for each in data["metrics"]]
        judges = {name: metric_of(data["plan"]["metrics"][name]["spec"]) for name in names}
        cells = {(each["name"], name): cell for each in data["methods"] for name, cell in each["scores"].items()}
        return cls(
            images=tuple(data["images"]),
            methods=tuple(each["name"] for each in data["methods"]),
            metrics=tuple(names),
            parts={key: as_parts(_array(cell.get("parts", cell["per_image"]))) for key, cell in cells.items()},
            judges=judges,
            degenerate={each["name"]: each["degenerate"] for each in data["methods"]},
            confidence={name: _array(values) for name, values in data["confidence"].items()},
            curves={
                key: {name: Curve(_array(c["x"]), _array(c["y"])) for name, c in cell.get("curves", {}).items()}
                for key, cell in cells.items()
            },
            plan=data["plan"],
            samples=data["resampling"]["samples"],
            seed=data["resampling"]["seed"],
            groups=tuple(data["resampling"].get("groups") or ()) or None,
            seed_sd={key: float(_array(cell["seed_sd"])) for key, cell in cells.items() if "seed_sd" in cell},
        )

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False, overwrite: bool = False) -> str:
        """Return one line per method and metric, or per image too; with a path, also write them there."""
        text = comma_separated(self._lines(per_image))
        if path is not None:
            disk.write_file(Path(path), text.encode(errors="surrogateescape"), overwrite=overwrite)
        return text

    def to_pandas(self, *, per_image: bool = False) -> Any:
        """Return a data frame with one row per method and metric, or per image too; pandas has to be installed."""
        try:
            import pandas
        except ImportError:
            raise VitreousError("to_pandas needs pandas, which is not installed; to_csv does without") from None
        head, *rows = self._lines(per_image)
        numbers = {name: float for name in head if name in ("mean", "low", "high", "score", "seed_sd")}
        frame = pandas.DataFrame(rows, columns=head).replace("", math.nan)
        return frame.astype(numbers if per_image else {**numbers, "images": int})

    def to_markdown(self, *, per_image: bool = False) -> str:
        """Return the table as printed, means with their intervals, in Markdown; or the score of every image."""
        return markdown(self._lines(True) if per_image else self._printed())

    def to_latex(self, *, per_image: bool = False) -> str:
        """Return the table as printed, means with their intervals, as a LaTeX ``tabular``; or every image's score."""
        return latex(self._lines(True) if per_image else self._printed())

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the table as ``.json`` or ``.csv`` (the score of every image), whole or not at all."""
        texts = {".json": lambda: _written(self.to_json()), ".csv": lambda: self.to_csv(per_image=True)}
        return write(path, texts, overwrite=overwrite)

    def plot(
        self,
        kind: str | None = None,
        metric: str | None = None,
        *,
        methods: Sequence[str] | None = None,
        path: str | Path | None = None,
        overwrite: bool = False,
        **options: Any,
    ) -> Any:
        """Return a matplotlib figure; with a path, also write it as ``.svg``, ``.pdf`` or ``.png``.

        ``kind``: ``curves``, ``bins``, ``bars``, ``sweep``, ``histogram``, ``matrix`` or ``radar``; without one, curves
        where they were kept and bars elsewhere. ``docs/figures.md`` shows each, and their options.
        """
        return figures.plot(self, kind, metric, methods, path, overwrite, options)

    def save_figures(self, folder: str | Path, *, overwrite: bool = False) -> list[str]:
        """Write bars, curves and bins of every metric into a new folder, as SVG; return the names of the files."""
        return figures.save_figures(self, folder, overwrite=overwrite)

    def __str__(self) -> str:
        return aligned(self._printed())

    def __repr__(self) -> str:
        return f"Table of {self._size}\n{self}"

    def _repr_html_(self) -> str:
        return html_rows(self._printed(), f"{self._size}; means with 95 % intervals")

    @property
    def _size(self) -> str:
        return f"{len(self.methods)} methods, {len(self.metrics)} metrics, {len(self.images)} pictures"

    def _printed(self) -> list[list[str]]:
        arrows = {metric: "↑" if up else "↓" for metric, up in self.higher_is_better.items()}
        more = ["between seeds"] if self.seed_sd else []
        columns = {metric: [f"{metric} {arrow}", *more] for metric, arrow in arrows.items()}
        head = ["method", *(column for metric in self.metrics for column in columns[metric])]
        strange = any(sum(counts.values()) for counts in self.degenerate.values())
        rows = [
            [method, *(text for metric in self.metrics for text in self._texts(method, metric))]
            for method in self.methods
        ]
        if strange:
            head.append("degenerate maps")
            for row, method in zip(rows, self.methods, strict=True):
                row.append(", ".join(f"{n} {name}" for name, n in self.degenerate[method].items() if n))
        trial = ["on trial"]
        for metric, found in self.trial.items():
            trial += [found.verdict if found else "", *[""] * (len(columns[metric]) - 1)]
        if any(trial[1:]):
            rows.append(trial + [""] * (len(head) - len(trial)))
        return [head, *rows]

    def _lines(self, per_image: bool) -> list[list[str]]:
        """Return one row per method and metric, or per image, method and metric, with a head; NaN is empty."""
        if per_image:
            rows = [
                [image, method, metric, _digits(value)]
                for (method, metric), values in self.scores.items()
                for image, value in zip(self.images, values.tolist(), strict=True)
            ]
            return [["image", "method", "metric", "score"], *rows]
        rows = [
            [*cell, *map(_digits, (self.mean(*cell), *self.interval(*cell))), str(int((~np.isnan(values)).sum()))]
            for cell, values in self.scores.items()
        ]
        if self.seed_sd:
            rows = [[*row, _digits(self.seed_sd[cell])] for row, cell in zip(rows, self.scores, strict=True)]
        more = ["seed_sd"] if self.seed_sd else []
        return [["method", "metric", "mean", "low", "high", "images", *more], *rows]

    def _texts(self, method: str, metric: str) -> list[str]:
        """Return a cell as printed, and the deviation between seeds where there are several."""
        low, high = self.interval(method, metric)
        mean = self.mean(method, metric)
        text = "-" if math.isnan(mean) else f"{mean:.4f} [{low:.4f}, {high:.4f}]"
        if not self.seed_sd:
            return [text]
        deviation = self.seed_sd[method, metric]
        return [text, "-" if math.isnan(deviation) else f"{deviation:.4f}"]

    def _cell(self, method: str, metric: str) -> dict[str, Any]:
        values, parts = self[method, metric], self.parts[method, metric]
        curves = self.curves.get((method, metric), {})
        low, high = self.interval(method, metric)
        return {
            "mean": _number(self.mean(method, metric)),
            "interval": [_number(low), _number(high)],
            "images": int((~np.isnan(values)).sum()),
            **({"seed_sd": _number(self.seed_sd[method, metric])} if self.seed_sd else {}),
            "per_image": plain(values),
            **({} if parts.shape[1] == 1 else {"parts": [plain(row) for row in parts]}),
            **({"curves": {name: _plain_curve(curve) for name, curve in curves.items()}} if curves else {}),
        }


def _digits(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _plain_curve(curve: Curve) -> dict[str, Any]:
    """Return a curve as lists; seven digits are all that the model's own numbers have."""
    return {"x": plain(curve.x), "y": [[_number(float(f"{value:.7g}")) for value in row] for row in curve.y.tolist()]}


def _array(values: Any) -> Array:
    return np.array(values, np.float64)


def _written(data: Any) -> str:
    """Return JSON with a line for every list of numbers."""
    text = json.dumps(data, indent=1, allow_nan=False)
    return _NUMBERS.sub(lambda found: re.sub(r"\s+", " ", found[0]).replace("[ ", "[").replace(" ]", "]"), text) + "\n"
