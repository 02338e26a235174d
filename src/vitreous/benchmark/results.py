"""The results of a run, finished or not: in Python, as sentences, and as the files of a report."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import ImageSource, Options
from vitreous.benchmark.protocol import Protocol, read
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.errors import VitreousError, one_line
from vitreous.progress import Progress, track_progress
from vitreous.registry.defaults import display_name
from vitreous.results import ScoreTable
from vitreous.results.storage import comma_separated, html_table

PROTOCOL_FILE = "protocol.json"
"""The whole protocol as it was run, which `vitreous bench run` takes."""
_LEGEND = "Means with 95 % intervals. Better than random: * 5 %, ** 1 %, *** 0.1 %; ≈ not told apart from it, ▾ worse."
_SHARED = "◆ the method asks about pictures changed as the metric changes them."


class BenchmarkResults(Sequence[ModelResult]):
    """One result for each model and data set: its ``table``, ``statistics`` and ``scores``.

    At a prompt and in a notebook it shows means with intervals and the signs of the report.

    Parameters
    ----------
    run : Path
        The folder of the run.
    results : sequence of ModelResult
        What is known about each model on each data set.
    """

    def __init__(self, run: Path, results: Sequence[ModelResult]) -> None:
        self.run, self.results = run, tuple(results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: Any) -> Any:
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
        rows = _score_rows(self._full, by_seed=False) if per_image else _mean_rows(self._full)
        text = comma_separated(rows) if self._full else ""
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
    return html_table([head, *rows], f"{result.name}, {len(table.images)} pictures")


def run_benchmark(
    protocol: str | Path | Protocol,
    out: str | Path,
    *,
    data: str | Mapping[str, str] | None = None,
    images: int | None = None,
    device: str = "auto",
    threads: int = 1,
    workers: int | None = None,
    memory_gb: float | None = None,
    checkpoint: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> BenchmarkResults:
    """Run a protocol, or go on where its run stopped, and return the results.

    Parameters
    ----------
    protocol : str, Path or Protocol
        A name of ``vitreous bench list``, or a TOML file.
    out : str or Path
        The folder of the run; one that is there is resumed or extended.
    data : str or mapping, optional
        Where the images are: one place, or one for each label of a data set.
    images : int, optional
        How many images; those of the protocol by default.
    device : str, default "auto"
        Where the models run.
    threads : int, default 1
        Threads of each worker, part of the plan.
    workers : int, optional
        How many processes share the work; one per GPU, or per core up to eight, by default.
    memory_gb : float, optional
        A budget in GiB.
    checkpoint : mapping, optional
        Files of weights by the label of a model.
    progress : callable or bool, optional
        A function of done and total units, or ``True`` for a bar on standard error.

    Returns
    -------
    BenchmarkResults

    Raises
    ------
    VitreousError
        Where the protocol, its images or models cannot be read, or are not those that the run was begun with.

    Examples
    --------
    >>> _ = (tmp_path / "mine.toml").write_text('''
    ... schema = "vitreous.protocol/1"
    ... title = "Two scenes"
    ... models = [{ label = "world", name = "world" }]
    ... data = { source = "world", split = "test", images = 2 }
    ... evaluation = { metrics = ["gini"], controls = false }
    ... methods = { saliency = "saliency" }
    ... ''')
    >>> results = vt.run_benchmark(tmp_path / "mine.toml", tmp_path / "run", workers=1)
    >>> results.table().metrics
    ('gini',)
    """
    from vitreous.benchmark.executors import run

    parsed = protocol if isinstance(protocol, Protocol) else read(protocol)
    options = Options(data, device, threads, memory_gb, images, checkpoint)
    bench = BenchmarkRun(parsed, out, options)
    bench.prepare()
    with track_progress(progress, "units") as on_progress:
        run(bench, workers=workers, progress=on_progress)
    return load_run(out)


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

    Examples
    --------
    >>> _ = (tmp_path / "mine.toml").write_text('''
    ... schema = "vitreous.protocol/1"
    ... title = "Two scenes"
    ... models = [{ label = "world", name = "world" }]
    ... data = { source = "world", split = "test", images = 2 }
    ... evaluation = { metrics = ["gini"], controls = false }
    ... methods = { saliency = "saliency" }
    ... ''')
    >>> _ = vt.run_benchmark(tmp_path / "mine.toml", tmp_path / "run", workers=1)
    >>> vt.load_run(tmp_path / "run").table().methods
    ('saliency',)
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
        lookups = {dataset.label: dataset.images for dataset in bench.datasets}
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
    scores = _score_rows(full, by_seed=True)
    texts = {
        "scores.csv": comma_separated(scores),
        "table.csv": comma_separated(_mean_rows(full)),
        "table.md": "\n".join(f"## {result.name}\n\n{result.table.to_markdown()}" for result in full),
        "table.tex": "\n".join(f"% {result.name}\n{result.table.to_latex()}" for result in full),
        PROTOCOL_FILE: json.dumps(results[0].protocol.to_json(), indent=1, allow_nan=False) + "\n",
        "statistics.json": json.dumps([_statistics(result) for result in full], indent=1, allow_nan=False) + "\n",
        "units.csv": comma_separated(_unit_rows(results)),
    }
    for kind in ("unreadable", "uncertain"):
        left_out = [(scores, getattr(scores, kind)) for scores in (result.scores for result in results)]
        rows = [[scores.data, scores.label, *item] for scores, reasons in left_out for item in reasons.items()]
        texts |= {f"{kind}.csv": comma_separated([["data", "model", "image", "reason"], *rows])} if rows else {}
    files = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
    parquet = _to_parquet(scores)
    return files if parquet is None else {**files, "scores.parquet": parquet}


def _statistics(result: ModelResult) -> dict[str, Any]:
    return {"data": result.scores.data, "model": result.scores.label, **result.statistics.to_json()}


def _unit_rows(results: Sequence[ModelResult]) -> list[list[Any]]:
    """Return one row per unit: what it is of, and who did it."""
    rows: list[list[Any]] = [["data", "model", "unit", "kind", "seed", "pictures", "methods", "metrics", "plan"]]
    rows[0] += ["versions", "device", "threads", "seconds", "tries"]
    for scores, done in ((result.scores, done) for result in results for done in result.scores.units):
        unit, info = done.unit, done.info
        names = [scores.data, scores.label, unit.id, "scores" if unit.is_scoring else "maps"]
        size = [unit.seed, len(unit.images), "; ".join(unit.methods), "; ".join(unit.metrics)]
        origin = [done.plan.revision, done.versions, done.device, info.get("threads", "")]
        rows.append([*names, *size, *origin, f"{done.seconds:.3f}", len(info.get("retried", ())) + 1])
    return rows


def _score_rows(results: Sequence[ModelResult], by_seed: bool) -> list[list[Any]]:
    """Return one row per image, method and metric, with a head: of the tables of all seeds, or of their mean."""
    rows: list[list[Any]] = [["data", "model", "image", "method", "metric", *(["seed"] if by_seed else []), "score"]]
    for result in results:
        scores = result.scores
        tables = [([seed], table) for seed, table in zip(scores.seeds, scores.tables, strict=True)]
        for seed, table in tables if by_seed else [([], result.table)]:
            for *cell, score in table.long_rows(per_image=True)[1:]:
                rows.append([scores.data, scores.label, *cell, *seed, score])
    return rows


def _mean_rows(results: Sequence[ModelResult]) -> list[list[Any]]:
    """Return one row per method and metric, with a head."""
    has_seeds = any(result.table.seed_sd for result in results)
    rows: list[list[Any]] = [["data", "model", "method", "metric", "mean", "low", "high", "images", "paper"]]
    rows[0] += ["seed_sd"] if has_seeds else []
    for result in results:
        for method, metric, *numbers in result.table.long_rows(per_image=False)[1:]:
            published = result.published.get((method, metric))
            paper = math.nan if published is None else published.value
            deviation = [result.table.seed_sd.get((method, metric), math.nan)] if has_seeds else []
            rows.append([result.scores.data, result.scores.label, method, metric, *numbers[:4], paper, *deviation])
    return rows


def _to_parquet(rows: Sequence[Sequence[Any]]) -> bytes | None:
    """Return the scores as Parquet; ``None`` where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return None
    head, *body = rows
    columns: dict[str, Any] = {name: [row[index] for row in body] for index, name in enumerate(head)}
    columns["score"] = [None if math.isnan(score) else score for score in columns["score"]]
    types = {name: pyarrow.string() for name in head} | {"score": pyarrow.float64(), "seed": pyarrow.int64()}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, schema=pyarrow.schema(list(types.items()))), buffer, compression="zstd")
    return buffer.getvalue()
