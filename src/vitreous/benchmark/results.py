"""The results of a run, finished or not: in Python, as sentences, and as the files of a report."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, overload

from vitreous import io as disk
from vitreous.benchmark.cells import ScoreCell, ScoreColumn, table_cell, table_column
from vitreous.benchmark.collect import ImageLookup, RunScores, collect
from vitreous.benchmark.data import ImageSource, Options
from vitreous.benchmark.protocol import Protocol, Published
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.summary import RunStatistics
from vitreous.errors import VitreousError, nearest, one_line
from vitreous.registry.defaults import CONTROLS, display_name
from vitreous.results import ScoreTable
from vitreous.results.storage import plain
from vitreous.results.table import comma_separated, html_rows

__all__ = [
    "BenchmarkResults",
    "ModelResult",
    "describe_run",
    "describe_state",
    "load_run",
    "read_results",
    "result_files",
]

PROTOCOL_FILE = "protocol.json"
"""The whole protocol as it was run, which `vitreous bench run` takes."""
_LEGEND = "Means with 95 % intervals. Better than random: * 5 %, ** 1 %, *** 0.1 %; ≈ not told apart from it, ▾ worse."
_SHARED = "◆ the method asks about pictures changed as the metric changes them."


@dataclass(frozen=True, eq=False)
class ModelResult:
    """The scores of one model on one data set with everything that is said about them.

    ``reference`` is the row that others are tested against.
    """

    scores: RunScores
    protocol: Protocol
    reference: str | None

    @classmethod
    def of(cls, scores: RunScores, protocol: Protocol, reference: str | None = None) -> ModelResult:
        """Take the reference that is asked for, or else the protocol's, where this model has that row."""
        methods = scores.table.methods
        if reference is not None and reference not in methods:
            raise VitreousError(f"reference {reference!r} is no row of {scores.label}{nearest(reference, methods)}")
        usual = protocol.evaluation.reference
        return cls(scores, protocol, reference or (usual if usual in methods else None))

    @property
    def table(self) -> ScoreTable:
        return self.scores.table

    @property
    def name(self) -> str:
        """The model, and the data where there are several sets."""
        return f"{self.scores.label} on {self.scores.data}" if self.scores.data else self.scores.label

    @property
    def is_empty(self) -> bool:
        return not (self.table.images and self.table.metrics)

    @property
    def has_degenerate(self) -> bool:
        return any(sum(counts.values()) for counts in self.table.degenerate.values())

    @cached_property
    def statistics(self) -> RunStatistics:
        return RunStatistics.of(self.table, self.reference, seeds=self.scores.seed_scores)

    @cached_property
    def published(self) -> Mapping[tuple[str, str], Published]:
        """The printed cells of this model and data set, by method and metric."""
        names = (self.scores.label, self.scores.data)
        own = (cell for cell in self.protocol.cells if (cell.model, cell.data) == names)
        return {(cell.method, cell.metric): cell for cell in own}

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The methods that are no controls."""
        return tuple(name for name in self.table.methods if name not in CONTROLS)

    @cached_property
    def columns(self) -> tuple[ScoreColumn, ...]:
        return tuple(table_column(self.table, self.statistics, metric) for metric in self.table.metrics)

    def column(self, metric: str) -> ScoreColumn:
        return next(column for column in self.columns if column.metric == metric)

    def cell(self, method: str, metric: str) -> ScoreCell | None:
        """Return what is shown of a method in a metric; ``None`` where it has no score."""
        return table_cell(self.table, self.statistics, method, metric, self.published.get((method, metric)))

    def order(self, metric: str) -> list[str]:
        """Return the methods that are no controls and have a score, by mean rank."""
        return [name for name in self.statistics.ranks[metric].methods if name in self.rows]


class BenchmarkResults(Sequence[ModelResult]):
    """One result for each model and data set: its ``table``, ``statistics`` and ``scores``.

    At a prompt and in a notebook it shows means with intervals and the signs of the report.
    """

    def __init__(self, run: Path, results: Sequence[ModelResult]) -> None:
        self.run, self.results = run, tuple(results)

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, index: int) -> ModelResult: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ModelResult, ...]: ...

    def __getitem__(self, index: int | slice) -> ModelResult | tuple[ModelResult, ...]:
        return self.results[index]

    @property
    def lead(self) -> str:
        """What was measured, in one sentence, and how much of it is missing."""
        return f"{describe_run(self.results)} {describe_state(self.results)}".strip()

    def table(self, model: str | None = None, data: str | None = None) -> ScoreTable:
        """Return the table of a model on a data set, as ``evaluate`` gives it; name them where there are several.

        Parameters
        ----------
        model : str, optional
            The label of the model.
        data : str, optional
            The label of the data set.

        Returns
        -------
        ScoreTable

        Raises
        ------
        VitreousError
            Where no result, or several, have these names.
        """
        fits = [r for r in self.results if model in (None, r.scores.label) and data in (None, r.scores.data)]
        if len(fits) != 1:
            names = ", ".join(result.name for result in self.results)
            many = "several parts" if fits else "no part"
            raise VitreousError(f"model={model!r} and data={data!r} name {many} of this run; there is {names}")
        return fits[0].table

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False, overwrite: bool = False) -> str:
        """Return one line per model, data set, method and metric, or per image too.

        Parameters
        ----------
        path : str or Path, optional
            A file to write them to as well.
        per_image : bool, default False
            Whether every image has a line of its own.
        overwrite : bool, default False
            Whether a file that is there may be replaced.

        Returns
        -------
        str
        """
        rows: list[list[str]] = []
        for result in self._full:
            head, *body = csv.reader(io.StringIO(result.table.to_csv(per_image=per_image)))
            rows = rows or [["data", "model", *head]]
            rows[0] = max(rows[0], ["data", "model", *head], key=len)  # one may have several seeds, another one
            rows += [[result.scores.data, result.scores.label, *row] for row in body]
        text = comma_separated([[*row, *[""] * (len(rows[0]) - len(row))] for row in rows])
        if path is not None:
            disk.write_file(Path(path), text.encode(errors="surrogateescape"), overwrite=overwrite)
        return text

    @property
    def _full(self) -> list[ModelResult]:
        return [result for result in self.results if not result.is_empty]

    def __str__(self) -> str:
        several = len(self.results) > 1
        tables = [f"{result.name}\n{result.table}" if several else str(result.table) for result in self._full]
        return "\n\n".join([self.lead, *tables])

    def __repr__(self) -> str:
        return f"Results of {self.run}\n{self}"

    def _repr_html_(self) -> str:
        tables = "".join(_html_table(result) for result in self._full)
        legend = f"{_LEGEND} {_SHARED}" if any(result.statistics.shared for result in self._full) else _LEGEND
        return f"<p>{escape(self.lead)}</p>{tables}<p>{escape(legend)}</p>"


def _html_table(result: ModelResult) -> str:
    table, has_seeds = result.table, bool(result.table.seed_sd)
    head, rows = ["method"], [[display_name(name)] for name in table.methods]
    for column in result.columns:
        arrow = "↑" if column.higher_is_better else "↓"
        head += [f"{column.metric} {arrow}", *(["between seeds"] if has_seeds else [])]
        for row, name in zip(rows, table.methods, strict=True):
            cell = result.cell(name, column.metric)
            row.append("–" if cell is None else cell.text(column.digits))
            if has_seeds:
                deviation = table.seed_sd[name, column.metric]
                row.append("–" if math.isnan(deviation) else f"{deviation:.{column.digits}f}")
    return html_rows([head, *rows], f"{result.name}, {len(table.images)} pictures")


def load_run(run: str | Path, *, reference: str | None = None, data: str | None = None) -> BenchmarkResults:
    """Return the results of a benchmark run so far.

    Parameters
    ----------
    run : str or Path
        The folder of the run.
    reference : str, optional
        The row that others are tested against, if not the protocol's.
    data : str, optional
        Where the images are now, if not where the run had them: rows that show one photograph are resampled together.

    Returns
    -------
    BenchmarkResults

    Raises
    ------
    VitreousError
        Where the folder is no run, or its files cannot be read.
    """
    return BenchmarkResults(Path(run), read_results(Store.open(run), reference=reference, data=data)[0])


def read_results(
    store: Store, *, reference: str | None = None, data: str | None = None
) -> tuple[tuple[ModelResult, ...], ImageSource]:
    """Read the results of a run so far, and open its images if they are at hand; arguments as for ``load_run``."""
    wanted = (store.manifest() or {})["wanted"]
    protocol = store.protocol()
    source = _open_images(store, protocol, wanted, data)
    results = tuple(ModelResult.of(scores, protocol, reference) for scores in collect(store, source.lookups))
    if not results:
        raise VitreousError(f"{store.path} has no plan for what its run.json asks for: start it again")
    return results, source


def _open_images(store: Store, protocol: Protocol, wanted: Mapping[str, Any], data: str | None) -> ImageSource:
    """Open the images of a run, if they are at hand and still the same."""
    images, checkpoint = wanted.get("images"), wanted.get("checkpoint")
    options = Options(data=data or wanted.get("data"), device="cpu", images=images, checkpoint=checkpoint)
    try:
        bench = BenchmarkRun(protocol, store.path, options)
        lookups: dict[str, ImageLookup] = {dataset.label: dataset.images for dataset in bench.datasets}
        planned = {image for plan in store.plans() for unit in plan.units for image in unit.images}
        for dataset in bench.datasets:
            if planned.isdisjoint(dataset.images.digests):
                source = dataset.images.source.name
                return ImageSource({}, None, f"the pictures of {source} are not those that the run had")
    except (VitreousError, OSError) as error:
        return ImageSource({}, None, one_line(str(error)))
    return ImageSource(lookups, bench.worker.model)


# -- in sentences --------------------------------------------------------------------------------------------


def describe_run(results: Sequence[ModelResult]) -> str:
    """Return in one sentence what was measured."""
    first, protocol = results[0], results[0].protocol
    methods = {name for result in results for name in result.rows}
    metrics = {name for result in results for name in result.scores.config.metrics}
    models = list(dict.fromkeys(result.scores.label for result in results))
    table = max((result.table for result in results), key=lambda table: len(table.images))
    count = _count(len(table.images), "picture")
    count += f" in {_count(len(set(table.groups)), 'group')}" if table.groups is not None else ""
    explained = {"pred": "the predicted class", "label": "the true class"}
    target = explained.get(protocol.evaluation.target, "a given class")
    seeds = f"{len(first.scores.seeds)} seeds" if len(first.scores.seeds) > 1 else "one seed"
    sources = ", ".join(data.label or data.source for data in protocol.datasets)
    model = models[0] if len(models) == 1 else _count(len(models), "model")
    verdicts = f"{_count(len(metrics), 'metric')} judge{'s' * (len(metrics) == 1)} them"
    explain = f"{_count(len(methods), 'method')} explain {target} of {count} ({sources}) as seen by {model}"
    return f"{explain}, and {verdicts}; {seeds}."


def describe_state(results: Sequence[ModelResult]) -> str:
    """Return how much is finished and whether versions are mixed, in words; nothing where all is as it should."""
    sentences = []
    wanted = sum(result.scores.missing.wanted for result in results)
    missing = sum(result.scores.missing.cells for result in results)
    if missing:
        share = f"{missing} of {wanted} cells ({100 * missing / wanted:.0f} %)"
        sentences.append(f"Unfinished: {share} are missing, and this is what is there.")
        absent = sorted({name for result in results for name in result.scores.missing.metrics})
        sentences += [f"Nothing yet of {', '.join(absent)}."] if absent else []
    counts = Counter(
        done.info.get("versions", {}).get("vitreous", "unknown") for result in results for done in result.scores.units
    )
    if len(counts) > 1:
        versions = ", ".join(f"{count} of Vitreous {version}" for version, count in counts.most_common())
        sentences.append(f"Units are from several versions: {versions}; units.csv says which.")
    return " ".join(sentences)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


# -- files of a report ---------------------------------------------------------------------------------------


def result_files(results: Sequence[ModelResult]) -> dict[str, bytes]:
    """Return the tables of a report by the names of their files."""
    full = [result for result in results if not result.is_empty]
    scores = _score_rows(full)
    texts = {
        "scores.csv": comma_separated(scores),
        "table.csv": comma_separated(_mean_rows(full)),
        "table.md": "\n".join(f"## {result.name}\n\n{result.table.to_markdown()}" for result in full),
        "table.tex": "\n".join(f"% {result.name}\n{result.table.to_latex()}" for result in full),
        PROTOCOL_FILE: json.dumps(results[0].protocol.to_json(), indent=1, allow_nan=False) + "\n",
        "statistics.json": json.dumps([_statistics(result) for result in full], indent=1, allow_nan=False) + "\n",
        "units.csv": comma_separated(_unit_rows(results)),
    }
    for file, kind in (("unreadable.csv", "unreadable"), ("uncertain.csv", "uncertain")):
        rows = [
            [result.scores.data, result.scores.label, name, why]
            for result in results
            for name, why in getattr(result.scores, kind).items()
        ]
        if rows:
            texts[file] = comma_separated([["data", "model", "image", "reason"], *rows])
    files = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
    parquet = _to_parquet(scores)
    return files if parquet is None else {**files, "scores.parquet": parquet}


def _statistics(result: ModelResult) -> dict[str, Any]:
    names: dict[str, Any] = plain({"data": result.scores.data, "model": result.scores.label})
    return {**names, **result.statistics.to_json()}


def _unit_rows(results: Sequence[ModelResult]) -> list[list[str]]:
    """Return one row per unit: what it is of, and who did it."""
    rows = [["data", "model", "unit", "kind", "seed", "pictures", "methods", "metrics", "plan", "versions", "device"]]
    rows[0] += ["threads", "seconds", "tries"]
    for scores, done in ((result.scores, done) for result in results for done in result.scores.units):
        unit, info = done.unit, done.info
        names = [scores.data, scores.label, unit.id, "scores" if unit.is_scoring else "maps"]
        size = [str(unit.seed), str(len(unit.images)), "; ".join(unit.methods), "; ".join(unit.metrics)]
        origin = [str(done.plan.revision), done.versions, done.device, str(info.get("threads", ""))]
        rows.append([*names, *size, *origin, f"{done.seconds:.3f}", str(len(info.get("retried", ())) + 1)])
    return rows


def _score_rows(results: Sequence[ModelResult]) -> list[list[str]]:
    """Return one row per image, method, metric and seed, with a head; what is missing is empty."""
    rows = [["data", "model", "image", "method", "metric", "seed", "score"]]
    for scores, seed, table in (
        (r.scores, seed, table) for r in results for seed, table in zip(r.scores.seeds, r.scores.tables, strict=True)
    ):
        for (method, metric), values in table.scores.items():
            for image, value in zip(table.images, values.tolist(), strict=True):
                rows.append([scores.data, scores.label, image, method, metric, str(seed), _digits(value)])
    return rows


def _mean_rows(results: Sequence[ModelResult]) -> list[list[str]]:
    has_seeds = any(result.table.seed_sd for result in results)
    rows = [["data", "model", "method", "metric", "mean", "low", "high", "images", "paper"]]
    rows[0] += ["seed_sd"] if has_seeds else []
    for result in results:
        table = result.table
        for (method, metric), values in table.scores.items():
            numbers = (table.mean(method, metric), *table.interval(method, metric))
            images = sum(not math.isnan(value) for value in values.tolist())
            printed = result.published.get((method, metric))
            paper = "" if printed is None else repr(printed.value)
            row = [result.scores.data, result.scores.label, method, metric, *map(_digits, numbers), str(images), paper]
            deviation = table.seed_sd.get((method, metric), math.nan)
            rows.append([*row, _digits(deviation)] if has_seeds else row)
    return rows


def _digits(value: float) -> str:
    return "" if math.isnan(value) else repr(value)


def _to_parquet(rows: Sequence[Sequence[str]]) -> bytes | None:
    """Return the scores as Parquet; ``None`` where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    head, *body = rows
    columns: dict[str, Any] = {name: [row[at] for row in body] for at, name in enumerate(head)}
    columns["score"] = [float(text) if text else None for text in columns["score"]]
    columns["seed"] = [int(text) for text in columns["seed"]]
    types = {name: pyarrow.string() for name in head} | {"score": pyarrow.float64(), "seed": pyarrow.int64()}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, schema=pyarrow.schema(list(types.items()))), buffer, compression="zstd")
    return buffer.getvalue()
