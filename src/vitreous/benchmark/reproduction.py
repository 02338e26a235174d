"""Every printed cell of a paper beside ours, and the named causes of a deviation, worked out from facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.protocol import DataSpec, ModelSpec, Protocol, Published, read, shipped
from vitreous.benchmark.units import RunConfig
from vitreous.errors import VitreousError
from vitreous.html import number
from vitreous.methods import get_method
from vitreous.metrics import get_metric
from vitreous.metrics.similarity import rank_correlation
from vitreous.results.storage import markdown, to_plain

_IN_THE_INTERVAL = ("drawn", "the first")  # causes that the interval allows for already
_PREPROCESSING = ("size", "resize", "crop", "interpolation", "mean", "std")
_LEAST_METHODS = 3  # any two are in the same order, or in the opposite one


@dataclass(frozen=True)
class ReproducedCell:
    """A printed cell and ours. ``verdict``: ``agrees``, ``differs`` or ``no number``, with the causes in words."""

    cell: Published
    ours: float
    lower: float
    upper: float
    images: int
    verdict: str
    causes: tuple[str, ...]

    @property
    def published(self) -> float:
        """The printed number in the metric's own unit."""
        return math.nan if self.cell.value is None else self.cell.value

    @property
    def difference(self) -> float:
        return self.ours - self.published

    @property
    def brief_causes(self) -> tuple[str, ...]:
        """The causes without the name of the paper's model, which stands in the row."""
        return tuple(c.partition(" instead of ")[0] if c.startswith("other model") else c for c in self.causes)

    @property
    def words(self) -> str:
        """What is to be said about it, in a line."""
        causes = "; ".join(self.causes)
        if self.verdict == "agrees":
            return f"agrees within the interval{f', though: {causes}' if causes else ''}"
        allowed = (c.startswith("other images") and any(word in c for word in _IN_THE_INTERVAL) for c in self.causes)
        if self.verdict == "differs" and all(allowed):
            return "; ".join(filter(None, [causes, "not explained by anything else that is known"]))
        return causes

    def words_beside(self, everywhere: Sequence[str]) -> str:
        """What is to be said about it where some causes have been named for all cells."""
        if not everywhere or self.verdict == "no number":
            return self.words
        own = [cause for cause in self.brief_causes if cause not in everywhere]
        return "; ".join(["agrees within the interval" if self.verdict == "agrees" else "differs", *own])


@dataclass(frozen=True)
class OrderAgreement:
    """Spearman's correlation of our column with the paper's, over the methods that have both numbers."""

    data: str
    model: str
    metric: str
    methods: int
    value: float


@dataclass(frozen=True)
class Reproduction:
    """All cells of a protocol that the paper printed, in its order; ``figures`` says what it only draws."""

    protocol: Protocol
    lines: tuple[ReproducedCell, ...]
    agreements: tuple[OrderAgreement, ...]
    figures: tuple[str, ...]

    @classmethod
    def of(cls, results: Sequence[ModelResult], wanted: Mapping[str, Any]) -> Reproduction:
        """Set every printed cell beside ours. ``wanted`` is what the run's manifest says."""
        run = results[0].protocol
        paper = read(run.name) if run.name in shipped() else run
        lines = tuple(_reproduce(paper, cell, results, wanted) for cell in paper.cells)
        figures = dict.fromkeys(cell.source for cell in paper.published if cell.value is None and cell.source)
        return cls(paper, lines, tuple(_agreements(lines)), tuple(figures))

    @property
    def rows(self) -> list[list[str]]:
        """One row of text per cell, a head first."""
        head = ["data", "model", "method", "metric", "printed", "paper", "ours", "low", "high", "difference"]
        rows = [[*head, "images", "verdict", "why"]]
        for line in self.lines:
            cell, published = line.cell, line.published
            printed = published if cell.printed is None else cell.printed
            numbers = (printed, published, line.ours, line.lower, line.upper, line.difference)
            texts = ["" if math.isnan(value) else f"{value:.6g}" for value in numbers]
            names = [cell.data, cell.model, cell.method, cell.metric]
            rows.append([*names, *texts, str(line.images), line.verdict, line.words])
        return rows

    @property
    def summary(self) -> str:
        verdicts = [line.verdict for line in self.lines]
        return (
            f"{len(verdicts)} printed cells: {verdicts.count('agrees')} agree within our 95 % interval, "
            f"{verdicts.count('differs')} differ, {verdicts.count('no number')} have no number of ours."
        )

    @property
    def everywhere(self) -> tuple[str, ...]:
        """The causes that hold for every cell that has a number of ours, so that a page need say them once."""
        causes = [line.brief_causes for line in self.lines if line.verdict != "no number"]
        return tuple(cause for cause in causes[0] if all(cause in own for own in causes)) if len(causes) > 2 else ()

    def to_markdown(self) -> str:
        protocol = self.protocol
        text = f"# Reproduction of {protocol.name}\n\n{protocol.title}\n\n{self.summary}\n"
        text += f"\n{' '.join(protocol.note.split())}\n" if protocol.note else ""
        text += f"\nWithout printed numbers: {', '.join(self.figures)}.\n" if self.figures else ""
        text += f"\n{markdown(self.rows)}"
        if self.agreements:
            rows = [["data", "model", "metric", "methods", "rank correlation"]]
            rows += [[a.data, a.model, a.metric, str(a.methods), number(a.value, 2)] for a in self.agreements]
            text += f"\n## Our order and the paper's\n\n{markdown(rows)}"
        return text


def _agreements(lines: Sequence[ReproducedCell]) -> list[OrderAgreement]:
    columns: dict[tuple[str, str, str], list[ReproducedCell]] = {}
    for line in lines:
        if not math.isnan(line.difference):
            columns.setdefault((line.cell.data, line.cell.model, line.cell.metric), []).append(line)
    agreements = []
    for names, column in columns.items():
        if len(column) >= _LEAST_METHODS:
            ours, printed = np.array([(line.ours, line.published) for line in column]).T
            value = float(rank_correlation(ours[None], printed[None])[0])
            agreements.append(OrderAgreement(*names, len(column), value))
    return agreements


@dataclass(frozen=True)
class _Match:
    """One printed cell, and what of the run stands beside it."""

    paper: Protocol
    cell: Published
    wanted: Mapping[str, Any]
    result: ModelResult
    metric: str

    @property
    def config(self) -> RunConfig:
        return self.result.scores.config

    @property
    def spec(self) -> ModelSpec | None:
        return next((model for model in self.paper.models if model.label == self.cell.model), None)

    @property
    def data(self) -> DataSpec:
        """The data set of the paper."""
        return next(data for data in self.paper.datasets if data.label == self.cell.data)

    @property
    def run_data(self) -> DataSpec:
        label = self.result.scores.data
        return next((data for data in self.result.protocol.datasets if data.label == label), self.data)

    @property
    def images(self) -> int:
        """How many images have a score, as protocols count them: grids, photographs with several objects."""
        table = self.result.table
        there = ~np.isnan(table[self.cell.method, self.metric])
        labels = [data.label for data in self.result.protocol.datasets]
        sources = dict(zip(labels, self.wanted.get("sources", ()), strict=False))
        source: Mapping[str, Any] = sources.get(self.result.scores.data, {})
        if table.groups is None or source.get("images") == source.get("entries"):
            return int(there.sum())
        return len(set(np.array(table.groups)[there].tolist()))


def _reproduce(
    paper: Protocol, cell: Published, results: Sequence[ModelResult], wanted: Mapping[str, Any]
) -> ReproducedCell:
    """Return a printed cell with ours beside it."""
    result = _result_of(paper, cell, results)
    metric = None if result is None else _metric_of(paper, cell, result.scores.config)
    ours = lower = upper = math.nan
    images, verdict, causes = 0, "no number", _no_number(paper, cell, result, metric)
    if result is not None and metric is not None and not causes:
        match = _Match(paper, cell, wanted, result, metric)
        ours, images = result.table.mean(cell.method, metric), match.images
        lower, upper = result.table.interval(cell.method, metric)
        causes = ["no picture has a score yet"]
        if not math.isnan(ours) and cell.value is not None:
            error = cell.error or 0.0
            verdict = "agrees" if lower - error <= cell.value <= upper + error else "differs"
            causes = [text for cause in _CAUSES for text in cause(match)]
    return ReproducedCell(cell, ours, lower, upper, images, verdict, tuple(causes))


def _result_of(paper: Protocol, cell: Published, results: Sequence[ModelResult]) -> ModelResult | None:
    """Return the result of the same model, or else of the only one that is not the paper's."""
    same_data = [result for result in results if result.scores.data == cell.data]
    same = [result for result in same_data if result.scores.label == cell.model]
    labels = {model.label for model in paper.models}
    others = [result for result in same_data if result.scores.label not in labels]
    return same[0] if same else others[0] if len(others) == 1 else None


def _metric_of(paper: Protocol, cell: Published, config: RunConfig) -> str | None:
    """Return our column: the same metric, or else the only one that differs from it in counts alone.

    Where the paper prints one column of that name, the only one of ours may differ in other settings too.
    """
    if cell.metric in config.metrics:
        return cell.metric
    name = get_metric(cell.metric).info.name
    same_name = {other.metric for other in paper.cells if get_metric(other.metric).info.name == name}

    wanted = _kind(cell.metric, len(same_name) > 1)
    alike = [label for label, spec in config.metrics.items() if _kind(spec, len(same_name) > 1) == wanted]
    return alike[0] if len(alike) == 1 else None


def _kind(spec: str, with_settings: bool) -> tuple[str, dict[str, Any]]:
    """Return what a metric measures: its name, and its settings but for counts, such as how many steps there are."""
    metric = get_metric(spec)
    settings = metric.settings if with_settings else {}
    return metric.info.name, {name: value for name, value in settings.items() if type(value) not in (int, float)}


def _no_number(paper: Protocol, cell: Published, result: ModelResult | None, metric: str | None) -> list[str]:
    """Return why a cell has no number of ours; nothing where it may have one."""
    if cell.method in paper.absent:
        return [f"no method here: {paper.absent[cell.method]}"]
    if result is None:
        spec = next((model for model in paper.models if model.label == cell.model), None)
        needs = f", it requires {', '.join(spec.requires)}" if spec is not None and spec.requires else ""
        return [f"this model was not run{needs}"]
    if result.is_empty:
        return ["nothing of it is finished yet"]
    if cell.method not in result.table.methods:
        return ["this method was not run on this model"]
    return [] if metric in result.table.metrics else ["this metric was not run"]


# -- causes of a deviation -------------------------------------------------------------------------------------


def _model_causes(match: _Match) -> list[str]:
    config, spec = match.config, match.spec
    name = str(config.model.get("name", config.label))
    if spec is None or (config.label, name) != (match.cell.model, spec.name):
        return [f"other model: {name} instead of {spec.name if spec else match.cell.model}"]
    file = (match.wanted.get("checkpoint") or {}).get(config.label) or config.model.get("checkpoint")
    causes = [f"other weights: those of {file} (digest {config.fingerprint[:12]})"]
    return [*(causes if file not in (None, spec.checkpoint) else []), *_preprocessing_causes(config, spec)]


def _preprocessing_causes(config: RunConfig, spec: ModelSpec) -> list[str]:
    paper = to_plain(asdict(spec))
    values = {name: (to_plain(config.model.get(name)) or "own", paper[name] or "own") for name in _PREPROCESSING}
    changed = [f"{name} {ours} instead of {printed}" for name, (ours, printed) in values.items() if ours != printed]
    return [f"other preprocessing: {', '.join(changed)}"] if changed else []


def _image_causes(match: _Match) -> list[str]:
    data, run_data, asked = match.data, match.run_data, match.wanted.get("images")
    is_limited = bool(asked or run_data.images)
    causes = []
    if data.images and match.images < data.images:
        causes.append(f"fewer images: {match.images} instead of {data.images}")
    elif not data.images and is_limited:
        causes.append(f"fewer images: {match.images}, not all")
    if match.result.scores.unreadable:
        causes.append(f"other images: {len(match.result.scores.unreadable)} could not be read")
    if (run_data.source, run_data.split, run_data.path) != (data.source, data.split, data.path):
        causes.append(f"other images: {run_data.source} instead of {data.source}")
    elif run_data.choose == "random":
        causes.append(f"other images: drawn with seed {run_data.seed}, the paper lists none")
    elif run_data.choose == "first" and is_limited:
        causes.append("other images: the first ones, the paper lists none")
    return causes


def _method_causes(match: _Match) -> list[str]:
    ours, printed_spec = match.config.methods[match.cell.method], match.paper.methods.get(match.cell.method)
    try:
        method = get_method(ours)
    except VitreousError:
        return [f"other method: {ours} instead of {printed_spec}"] if ours != printed_spec else []
    causes = []
    if printed_spec is not None and method.spec != get_method(printed_spec).spec:
        causes.append(f"other method setting: {ours} instead of {printed_spec}")
    for component in method.components():
        statistics = str(getattr(component, "notes", {}).get("statistics", ""))
        if statistics.startswith(("world", "noise", "own")):
            causes.append(f"other statistics: noise of {component.info.name} from {statistics}")
    return causes


def _metric_causes(match: _Match) -> list[str]:
    ours, printed = (get_metric(spec).spec for spec in (match.config.metrics[match.metric], match.cell.metric))
    return [] if ours == printed else [f"other metric setting: {ours} instead of {printed}"]


def _evaluation_causes(match: _Match) -> list[str]:
    ours, paper = match.config.evaluation, match.paper.evaluation
    causes = []
    if ours.target != paper.target:
        causes.append(f"other class explained: {ours.target} instead of {paper.target}")
    if (ours.class_subset is not None) != (match.data.class_subset == "own"):
        causes.append("other softmax: over other classes")
    if ours.precision != paper.precision:
        causes.append(f"other precision: {ours.precision}")
    return causes


_CAUSES = (_model_causes, _image_causes, _method_causes, _metric_causes, _evaluation_causes)
