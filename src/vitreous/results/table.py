"""What an evaluation is once it is made: scores of every image, and everything that is read from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import io as disk
from vitreous.errors import VitreousError, nearest
from vitreous.metrics.base import Metric, as_parts, check_widths, get_metric
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
from vitreous.results import table_plots
from vitreous.results.storage import (
    ResultBase,
    add_degenerate,
    comma_separated,
    estimate_text,
    from_plain,
    latex,
    markdown,
    number_text,
    text_rows,
    to_plain,
)

_RESAMPLING = ("n_bootstrap", "seed", "groups")


@dataclass(frozen=True, eq=False)
class ScoreRecord:
    """The scores of some images by one method in one metric: parts ``[n, P]``, and the curves behind them."""

    method: str
    metric: str
    seed: int
    images: tuple[str, ...]
    parts: Array
    curves: Mapping[str, Curve] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class ScoreTable(ResultBase):
    """Methods in rows, metrics in columns, and behind each cell what every image has to say.

    Made by ``vt.evaluate``. Prints means with their 95 % intervals and shows itself in a notebook;
    ``table["ixg", "insertion"]`` are the scores of every image.

    Parameters
    ----------
    images, methods, metrics : tuple of str
        Names.
    parts : dict of array
        By method and metric ``[n, P]``: what scores are made of, NaN where an image has no score.
    definitions : dict of Metric
        The metrics by name, which make scores of the parts.
    degenerate : dict of dict of int
        How many maps of each method are constant, zero or not finite.
    confidence : dict of array
        The probability of the predicted (``"pred"``) and true (``"label"``) class of each clean image.
    curves : dict of dict of Curve
        By method and metric: what scores were read from.
    plan : dict
        How the numbers were made.
    n_bootstrap : int, default 10000
        Resamples of the intervals.
    seed : int, default 0
        Of the bootstrap.
    groups : tuple of int, optional
        Which images are resampled together: the cells of one grid, say.
    seed_sd : dict of float
        By method and metric: the standard deviation between the scores of single seeds, where several are averaged.

    Examples
    --------
    >>> table = vt.evaluate(model, images, "ixg", "insertion(steps=4)", controls=False, n_bootstrap=50)
    >>> table["ixg", "insertion(steps=4)"].shape
    (4,)
    >>> print(table.to_csv().splitlines()[0])
    method,metric,mean,low,high,images
    """

    schema = "vitreous.evaluate/2"
    noun = "table"

    images: tuple[str, ...]
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    parts: Mapping[tuple[str, str], Array]
    definitions: Mapping[str, Metric]
    degenerate: Mapping[str, Mapping[str, int]]
    confidence: Mapping[str, Array]
    curves: Mapping[tuple[str, str], Mapping[str, Curve]] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    n_bootstrap: int = SAMPLES
    seed: int = 0
    groups: tuple[int, ...] | None = None
    seed_sd: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def __getitem__(self, cell: tuple[str, str]) -> Array:
        for name, names, noun in zip(cell, (self.methods, self.metrics), ("method", "metric"), strict=True):
            if name not in names:
                raise VitreousError(f"no {noun} {name!r} in this table{nearest(name, names)}")
        return self.scores[cell]

    @classmethod
    def from_records(
        cls,
        records: Iterable[ScoreRecord],
        images: Mapping[str, str],
        methods: tuple[str, ...],
        definitions: Mapping[str, Metric],
        *,
        widths: Mapping[str, int],
        **details: Any,
    ) -> ScoreTable:
        """Return the table of some records; an image without a record of a cell has NaN there.

        ``images`` are the names of the rows by what records call them, ``widths`` how many parts each metric has.
        """
        rows = {image: row for row, image in enumerate(images)}
        cells = [(method, metric) for method in methods for metric in definitions]
        parts = {cell: np.full((len(rows), widths[cell[1]]), np.nan) for cell in cells}
        curves: dict[tuple[str, str], dict[str, Curve]] = {cell: {} for cell in cells}
        for record in records:
            cell = record.method, record.metric
            chosen = [index for index, image in enumerate(record.images) if image in rows]
            places = [rows[record.images[index]] for index in chosen]
            check_widths(record.metric, [parts[cell], record.parts])
            parts[cell][places] = record.parts[chosen]
            for name, curve in record.curves.items():
                empty = Curve(curve.x, np.full((len(rows), len(curve.x)), np.nan))
                curves[cell].setdefault(name, empty).y[places] = curve.y[chosen]
        return cls(tuple(images.values()), methods, tuple(definitions), parts, definitions, curves=curves, **details)

    @cached_property
    def scores(self) -> dict[tuple[str, str], Array]:
        """One score per image, ``[n]``, by method and metric."""
        return {cell: self.definitions[cell[1]].per_image(parts) for cell, parts in self.parts.items()}

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Which way is up, by metric."""
        return {name: self.definitions[name].higher_is_better for name in self.metrics}

    @property
    def meta_verdicts(self) -> dict[str, Verdict | None]:
        """What the shipped meta-evaluation found about each metric; ``None`` for those that it has not seen."""
        return {name: verdict(metric) for name, metric in self.definitions.items()}

    def mean(self, method: str, metric: str) -> float:
        """Return the score of all images that have one: for most metrics, the mean."""
        self[method, metric]
        return float(self._means[method, metric])

    def interval(self, method: str, metric: str) -> Interval:
        """Return the 95 % bootstrap interval of that score, aggregated anew in every resample."""
        self[method, metric]
        return self._intervals[method, metric]

    def best(self, metric: str) -> str:
        """Return the method with the best mean."""
        means = {method: self.mean(method, metric) for method in self.methods}
        finite = {method: mean for method, mean in means.items() if not math.isnan(mean)}
        if not finite:
            raise VitreousError(f"no method has a score in {metric}")
        pick = max if self.higher_is_better[metric] else min
        return pick(finite, key=lambda method: finite[method])

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
        (first, aggregate), (second, _) = (
            self.definitions[metric].cell(self.parts[name, metric]) for name in (one, other)
        )
        return difference(first, second, aggregate, samples=self.n_bootstrap, seed=self.seed, groups=self.groups)

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
        """Return the scores by the model's confidence.

        Parameters
        ----------
        method, metric : str
            The cell.
        count : int, default 20
            How many bins.
        by : {"width", "mass"}, default "width"
            Bins of equal width, or of equally many images.
        confidence : {"pred", "label"}, default "pred"
            In the predicted or the true class.
        relative : bool, default False
            Divide every score by the confidence.

        Returns
        -------
        list of Bin
            With mean and 95 % bootstrap interval each.
        """
        if confidence not in self.confidence:
            raise VitreousError(f"confidence={confidence!r} is not one of {', '.join(self.confidence)}")
        scores, levels = self[method, metric], self.confidence[confidence]
        return bins(
            scores, levels, count, by, relative=relative, samples=self.n_bootstrap, seed=self.seed, groups=self.groups
        )

    @cached_property
    def _cells(self) -> list[Cell]:
        return [self.definitions[metric].cell(parts) for (_, metric), parts in self.parts.items()]

    @cached_property
    def _means(self) -> dict[tuple[str, str], float]:
        ones = np.ones((1, len(self.images)))
        scores = [float(aggregate(parts, ones)[0]) for parts, aggregate in self._cells]
        return dict(zip(self.parts, scores, strict=True))

    @cached_property
    def _intervals(self) -> dict[tuple[str, str], Interval]:
        resamples = resampled(self._cells, self.n_bootstrap, self.seed, self.groups)
        return {cell: interval(column) for cell, column in zip(self.parts, resamples.T, strict=True)}

    # -- files and text --------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """How many methods, metrics and images there are."""
        return f"{len(self.methods)} methods, {len(self.metrics)} metrics, {len(self.images)} images"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        metrics = [
            {"name": name, "higher_is_better": self.higher_is_better[name], "verdict": verdict and verdict.verdict}
            for name, verdict in self.meta_verdicts.items()
        ]
        methods = [
            {
                "name": method,
                "degenerate": dict(self.degenerate[method]),
                "scores": {metric: self._cell_json(method, metric) for metric in self.metrics},
            }
            for method in self.methods
        ]
        return {
            "schema": self.schema,
            "plan": dict(self.plan),
            "images": list(self.images),
            "metrics": metrics,
            "methods": methods,
            "confidence": to_plain(self.confidence),
            "resampling": to_plain({name: getattr(self, name) for name in _RESAMPLING}),
        }

    def _cell_json(self, method: str, metric: str) -> dict[str, Any]:
        values, parts = self[method, metric], self.parts[method, metric]
        curves = self.curves.get((method, metric), {})
        cell = {
            "mean": self.mean(method, metric),
            "interval": self.interval(method, metric),
            "images": int((~np.isnan(values)).sum()),
            "per_image": values,
        }
        if self.seed_sd:
            cell["seed_sd"] = self.seed_sd[method, metric]
        if parts.shape[1] > 1:
            cell["parts"] = parts
        if curves:  # seven digits are all that the model's own numbers have
            cell["curves"] = {
                name: {"x": curve.x, "y": [[float(f"{value:.7g}") for value in row] for row in curve.y.tolist()]}
                for name, curve in curves.items()
            }
        return dict(to_plain(cell))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ScoreTable:
        """Return the table whose ``to_json`` this is; its metrics must be registered here."""
        names = [row["name"] for row in data["metrics"]]
        groups = data["resampling"]["groups"]
        cells = {(row["name"], name): cell for row in data["methods"] for name, cell in row["scores"].items()}
        return cls(
            images=tuple(data["images"]),
            methods=tuple(row["name"] for row in data["methods"]),
            metrics=tuple(names),
            parts={
                key: as_parts(np.array(cell.get("parts", cell["per_image"]), np.float64)) for key, cell in cells.items()
            },
            definitions={name: get_metric(data["plan"]["metrics"][name]["spec"]) for name in names},
            degenerate={row["name"]: row["degenerate"] for row in data["methods"]},
            confidence=from_plain(Mapping[str, Array], data["confidence"]),
            curves={key: from_plain(Mapping[str, Curve], cell.get("curves", {})) for key, cell in cells.items()},
            plan=data["plan"],
            seed_sd={key: from_plain(float, cell["seed_sd"]) for key, cell in cells.items() if "seed_sd" in cell},
            **{**data["resampling"], "groups": groups and tuple(groups)},
        )

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False, overwrite: bool = False) -> str:
        """Return one line per method and metric.

        Parameters
        ----------
        path : str or Path, optional
            Also write it here.
        per_image : bool, default False
            One line per image, method and metric instead.
        overwrite : bool, default False
            Replace what is there.
        """
        text = comma_separated(self.long_rows(per_image))
        if path is not None:
            disk.write_file(Path(path), text.encode(errors="surrogateescape"), overwrite=overwrite)
        return text

    def _file_csv(self) -> str:
        return self.to_csv(per_image=True)

    def to_pandas(self, *, per_image: bool = False) -> Any:
        """Return a data frame with one row per method and metric, or per image too; pandas has to be installed."""
        try:
            import pandas
        except ImportError:
            raise VitreousError("to_pandas needs pandas, which is not installed; to_csv does without") from None
        head, *rows = self.long_rows(per_image)
        return pandas.DataFrame(rows, columns=head)

    def to_markdown(self, *, per_image: bool = False) -> str:
        """Return the table as printed, means with their intervals, in Markdown; or the score of every image."""
        return markdown(self._text_rows(per_image))

    def to_latex(self, *, per_image: bool = False) -> str:
        """Return the table as printed, means with their intervals, as a LaTeX ``tabular``; or every image's score."""
        return latex(self._text_rows(per_image))

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
        """Return a matplotlib figure.

        Parameters
        ----------
        kind : str, optional
            ``"curves"``, ``"bins"``, ``"bars"``, ``"sweep"``, ``"histogram"``, ``"matrix"`` or ``"radar"``; by default
            curves where they were kept and bars elsewhere.
        metric : str, optional
            The metric to draw; needed where there are several.
        methods : sequence of str, optional
            Some of the methods; all by default.
        path : str or Path, optional
            Also write it here, as ``.svg``, ``.pdf`` or ``.png``.
        overwrite : bool, default False
            Replace what is there.
        **options
            Those of the kind: see the manual's page on figures.
        """
        return table_plots.plot(self, kind, metric, methods, path, overwrite, options)

    def save_figures(self, folder: str | Path, *, overwrite: bool = False) -> list[str]:
        """Write bars, curves and bins of every metric into a new folder, as SVG; return the names of the files."""
        return table_plots.save_figures(self, folder, overwrite=overwrite)

    def rows(self) -> list[list[str]]:
        """Return the table as printed: means with their intervals, and what meta-evaluation says of the metrics."""
        rows, last = [["method"], *([method] for method in self.methods)], ["meta-evaluation"]
        for metric, shipped in self.meta_verdicts.items():
            rows[0].append(f"{metric} {'↑' if self.higher_is_better[metric] else '↓'}")
            last.append(shipped.verdict if shipped else "")
            for row, method in zip(rows[1:], self.methods, strict=True):
                row.append(estimate_text(self.mean(method, metric), self.interval(method, metric), ".4f"))
            if self.seed_sd:
                rows[0].append("between seeds")
                last.append("")
                for row, method in zip(rows[1:], self.methods, strict=True):
                    row.append(number_text(self.seed_sd[method, metric], ".4f"))
        add_degenerate(rows, "degenerate maps", self.degenerate)
        return [*rows, [*last, *[""] * (len(rows[0]) - len(last))]] if any(last[1:]) else rows

    def _text_rows(self, per_image: bool) -> list[list[str]]:
        return text_rows(self.long_rows(True)) if per_image else self.rows()

    def long_rows(self, per_image: bool) -> list[list[Any]]:
        """Return one row per method and metric, or per image, method and metric, with a head."""
        if per_image:
            scores = [
                [image, method, metric, value]
                for (method, metric), values in self.scores.items()
                for image, value in zip(self.images, values.tolist(), strict=True)
            ]
            return [["image", "method", "metric", "score"], *scores]
        head = ["method", "metric", "mean", "low", "high", "images", *(["seed_sd"] if self.seed_sd else [])]
        rows: list[list[Any]] = [head]
        for cell, values in self.scores.items():
            deviation = [self.seed_sd[cell]] if self.seed_sd else []
            rows.append([*cell, self.mean(*cell), *self.interval(*cell), int((~np.isnan(values)).sum()), *deviation])
        return rows
