"""From the text of a protocol file to a ``Protocol``: every key, type, word and spelling is checked."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from vitreous import io as disk
from vitreous.benchmark.protocol import (
    CHOOSE,
    PRECISIONS,
    REQUIRES,
    SCHEMA,
    SOURCES,
    DataSpec,
    EvaluationSpec,
    ModelSpec,
    Protocol,
    Published,
)
from vitreous.benchmark.records import Checker, parse_json
from vitreous.errors import VitreousError, nearest, one_line

__all__ = ["read_file", "read_record", "recorded_protocol"]

_AXES = ("methods", "metrics", "models", "data")
_MOST_BYTES = 2**24
T = TypeVar("T")


def read_file(path: Path) -> Protocol:
    """Read one protocol file."""
    file = _File(path)
    file.told = file.toml()
    return file.protocol()


def read_record(path: Path) -> Protocol:
    """Read the protocol of a run as its report wrote it, in JSON; it may lack rows of which there are printed cells."""
    file = _File(path)
    try:
        told = parse_json(file.content().encode())
    except ValueError as error:
        raise VitreousError(f"{path}: is no JSON: {one_line(str(error))}") from None
    if not isinstance(told, dict) or told.pop("schema", None) != SCHEMA:
        raise VitreousError(f"{path}: is no protocol of the schema {SCHEMA!r}")
    file.told = _without_gaps(told)
    return file.recorded()


def recorded_protocol(data: Any, where: str) -> Protocol:
    """Return the protocol that the manifest of a run holds as data; ``where`` is what complaints call the file."""
    if not isinstance(data, dict):
        raise VitreousError(f"{where}: is no table")
    told = {key: value for key, value in data.items() if key != "schema"}
    return _File(where, told).recorded()


def _without_gaps(told: Any) -> Any:
    """Leave out what says nothing: in JSON as it is written, what has no value is null, or an empty text."""
    if isinstance(told, dict):
        return {key: _without_gaps(each) for key, each in told.items() if each is not None and each != ""}
    return [_without_gaps(each) for each in told] if isinstance(told, list) else told


@dataclass(frozen=True)
class _Layout:
    rows: str = "methods"
    columns: tuple[str, ...] = ("models", "metrics")
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Whole:
    """The keys of a file that are no tables."""

    schema: str
    title: str
    paper: str | None = None
    table: str | None = None
    note: str | None = None
    requires: tuple[str, ...] = ()
    scale: float = 1.0


_TABLES = ("models", "data", "also", "evaluation", "methods", "absent", "layout", "published")


class _File(Checker):
    """One file; complaints name it."""

    def __init__(self, path: str | Path, told: dict[str, Any] | None = None) -> None:
        super().__init__(path, strict=told is None)
        self.told: dict[str, Any] = told or {}

    def protocol(self) -> Protocol:
        told = self.told
        whole = self.record(_Whole, {key: told[key] for key in told if key not in _TABLES}, "", also=_TABLES)
        if whole.schema != SCHEMA:
            raise self.wrong("schema", whole.schema, f"this version reads {SCHEMA}")
        if not (whole.scale > 0 and math.isfinite(whole.scale)):
            raise self.wrong("scale", whole.scale, "published numbers are divided by it")
        layout = self.record(_Layout, self._table("layout"), "layout")
        data = self.record(DataSpec, self._table("data", needed=True), "data")
        cells = [replace(cell, data=cell.data or data.label) for cell in self._records(Published, "published")]
        made = Protocol(
            name=Path(self.path).stem,
            title=whole.title,
            models=self._records(ModelSpec, "models", least=1),
            data=data,
            evaluation=self.record(EvaluationSpec, self._table("evaluation", needed=True), "evaluation"),
            methods=self._texts("methods", needed=True),
            paper=whole.paper,
            table=whole.table,
            note=whole.note,
            requires=whole.requires,
            also=self._records(DataSpec, "also"),
            absent=self._texts("absent"),
            rows=layout.rows,
            columns=layout.columns,
            figures=layout.figures,
            published=tuple(_scaled(cell, whole.scale) for cell in cells),
        )
        _Check(self, made).all()
        return made

    def recorded(self) -> Protocol:
        """Return a protocol whose records are those of ``Protocol.to_json``."""
        tables = {
            "models": self._records(ModelSpec, "models", least=1),
            "data": self.record(DataSpec, self._table("data", needed=True), "data"),
            "also": self._records(DataSpec, "also"),
            "evaluation": self.record(EvaluationSpec, self._table("evaluation", needed=True), "evaluation"),
            "published": self._records(Published, "published"),
            "methods": self._texts("methods", needed=True),
            "absent": self._texts("absent"),
        }
        rest = {key: value for key, value in self.told.items() if key not in tables}
        made = self.record(Protocol, rest, "", filled=tables)
        check = _Check(self, made)
        check.words()
        for place, model in enumerate(made.models):
            check.model(f"models[{place}]", model)
        for where, data in check.sets():
            check.data(where, data)
        return made

    def choice(self, key: str, value: str, known: Sequence[str] | Mapping[str, Any]) -> None:
        if value not in known:
            said = ", ".join(known) if len(known) <= 20 else f"{len(known)} are known"
            raise self.wrong(key, value, f"is not one of {said}{nearest(value, known)}")

    def content(self) -> str:
        try:
            return disk.read_file(self.path, _MOST_BYTES).decode()
        except OSError as error:
            raise VitreousError(f"{self.path}: cannot be read: {error.strerror}") from None

    def toml(self) -> dict[str, Any]:
        try:
            reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        except ModuleNotFoundError:
            raise VitreousError(f"{self.path}: needs tomli on this Python: pip install 'vitreous[bench]'") from None
        try:
            told: dict[str, Any] = reader.loads(self.content())
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
            raise VitreousError(f"{self.path}: is no TOML: {one_line(str(error))}") from None
        return told

    def _table(self, key: str, needed: bool = False) -> dict[str, Any]:
        if key not in self.told and needed:
            raise VitreousError(f"{self.path}: [{key}] is missing")
        told = self.told.get(key, {})
        if not isinstance(told, dict):
            raise self.wrong(key, told, f"must be a table, [{key}]")
        return told

    def _texts(self, key: str, needed: bool = False) -> dict[str, str]:
        told = self._table(key, needed)
        for label, text in told.items():
            self.value(text, str, f"{key}.{one_line(repr(label))}")
        if needed and not told:
            raise VitreousError(f"{self.path}: [{key}] is empty")
        return dict(told)

    def _records(self, kind: type[T], key: str, least: int = 0) -> tuple[T, ...]:
        told = self.told.get(key, [])
        if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
            raise self.wrong(key, told, f"must be a list of tables, [[{key}]]")
        if len(told) < least:
            raise VitreousError(f"{self.path}: [[{key}]] is missing")
        return tuple(self.record(kind, each, f"{key}[{place}]") for place, each in enumerate(told))


def _scaled(cell: Published, scale: float) -> Published:
    if cell.value is None:
        return cell
    error = None if cell.error is None else cell.error / scale
    return replace(cell, value=cell.value / scale, printed=cell.value, error=error)


class _Check:
    """What a protocol's words mean, and whether its parts know each other."""

    def __init__(self, file: _File, protocol: Protocol) -> None:
        self.file, self.protocol = file, protocol
        self.labels = [model.label for model in protocol.models]
        self.known_rows = {**protocol.methods, **protocol.absent}

    def all(self) -> None:
        self.words()
        self._spellings()
        for place, model in enumerate(self.protocol.models):
            self.model(f"models[{place}]", model)
        for where, data in self.sets():
            self.data(where, data)
            for label in data.models:
                self.file.choice(f"{where}.models", label, self.labels)
            for spec in data.metrics:
                self.file.choice(f"{where}.metrics", spec, self.protocol.evaluation.metrics)
        self._once("models", self.labels)
        self._once("data", [data.label for data in (self.protocol.data, *self.protocol.also)])
        self._cells()

    def words(self) -> None:
        from vitreous.registry.citations import PAPERS
        from vitreous.results.table_plots import KINDS

        made, judge, choice = self.protocol, self.protocol.evaluation, self.file.choice
        if made.paper is not None:
            choice("paper", made.paper, PAPERS)
        for key, given, known in (
            ("requires", made.requires, tuple(REQUIRES)),
            ("layout.rows", (made.rows,), _AXES),
            ("layout.columns", made.columns, _AXES),
            ("layout.figures", made.figures, KINDS),
            ("judge.target", (judge.target,), ("pred", "label", "given")),
            ("judge.value", (judge.output,), ("logit", "prob", "logprob")),
            ("judge.precision", (judge.precision,), PRECISIONS),
            ("judge.upsample", (judge.interpolation,), ("bilinear", "nearest")),
            ("judge.ties", (judge.tie_breaking,), ("random", "raster", "reverse_raster")),
            ("judge.nonfinite", (judge.nan_policy,), ("exclude", "lowest", "raise")),
            ("judge.reference", (judge.reference,) if judge.reference and self.file.strict else (), made.methods),
        ):
            for word in given:
                choice(key, word, known)
        for key, number in (("images_per_unit", judge.images_per_unit), ("batch_size", judge.batch_size)):
            self._least(f"judge.{key}", number, 1)
        if judge.memory_gb is not None and judge.memory_gb <= 0:
            raise self.file.wrong("judge.memory", judge.memory_gb, "must be above 0, in GiB")
        for key, count in (("metrics", len(judge.metrics)), ("seeds", len(judge.seeds))):
            if not count:
                raise self.file.wrong(f"judge.{key}", [], "is empty")
        for place, seed in enumerate(judge.seeds):
            self._least(f"judge.seeds[{place}]", seed, 0)
        self._once("judge.seeds", judge.seeds)

    def _spellings(self) -> None:
        from vitreous.methods import get_method
        from vitreous.metrics import get_metric

        for key, labels in (("methods", self.protocol.methods), ("absent", self.protocol.absent)):
            for label in labels:
                self._label(key, label)
        for label in self.protocol.absent:
            if label in self.protocol.methods:
                raise self.file.wrong("absent", label, "is one of the methods")
        for label, spec in self.protocol.methods.items():
            self._understood(f"methods.{one_line(repr(label))}", spec, get_method)
        metrics = self.protocol.evaluation.metrics
        meant = [
            self._understood(f"judge.metrics[{place}]", metric, get_metric) for place, metric in enumerate(metrics)
        ]
        self._once("judge.metrics", meant)

    def _understood(self, key: str, spec: str, understand: Any) -> str:
        try:
            return str(understand(spec).spec)
        except VitreousError as error:
            raise self.file.wrong(key, spec, str(error)) from None

    def _label(self, key: str, label: str) -> None:
        if not label.isprintable() or not label.strip():
            raise self.file.wrong(key, label, "a label is one line of characters that can be seen")

    def model(self, where: str, model: ModelSpec) -> None:
        self._label(f"{where}.label", model.label)
        for word in model.requires:
            self.file.choice(f"{where}.requires", word, REQUIRES)
        for label in model.methods:
            self.file.choice(f"{where}.methods", label, self.known_rows)
        if model.crop is not None:
            self.file.choice(f"{where}.crop", model.crop, ("center", "squash", "border"))
        if model.interpolation is not None:
            self.file.choice(
                f"{where}.interpolation", model.interpolation, ("nearest", "bilinear", "bicubic", "lanczos")
            )
        self._least(f"{where}.size", model.size, 1)
        self._least(f"{where}.resize", model.resize, model.size or 1)
        for key, numbers in (("mean", model.mean), ("std", model.std)):
            if len(numbers) not in (0, 3):
                raise self.file.wrong(f"{where}.{key}", list(numbers), "must be three numbers, one per channel")

    def sets(self) -> list[tuple[str, DataSpec]]:
        return [("data", self.protocol.data), *((f"also[{n}]", each) for n, each in enumerate(self.protocol.also))]

    def data(self, where: str, data: DataSpec) -> None:
        if data.label:
            self._label(f"{where}.label", data.label)
        self.file.choice(f"{where}.source", data.source, SOURCES)
        self.file.choice(f"{where}.choose", data.choose, CHOOSE)
        for key, number in (("images", data.images), ("seed", data.seed)):
            self._least(f"{where}.{key}", number, 0)
        if data.class_subset is not None:
            self.file.choice(f"{where}.classes", data.class_subset, ("own",))
        if data.least_confidence is not None and not 0 < data.least_confidence <= 1:
            complaint = "is a probability, above 0 and at most 1"
            raise self.file.wrong(f"{where}.least_confidence", data.least_confidence, complaint)
        if data.choose == "listed" and data.names is None:
            raise self.file.wrong(f"{where}.choose", data.choose, "needs names, a text file with one picture per line")

    def _cells(self) -> None:
        sets = {data.label: data for data in (self.protocol.data, *self.protocol.also)}
        models = {model.label: model for model in self.protocol.models}
        seen = set()
        for place, cell in enumerate(self.protocol.published):
            where, empty = f"published[{place}]", cell.value is None
            if empty and cell.source is None:
                raise VitreousError(f"{self.file.path}: {where} has neither a value nor a source")
            self.file.choice(f"{where}.data", cell.data, sets)
            data = sets[cell.data]
            self.file.choice(f"{where}.metric", cell.metric, data.metrics or self.protocol.evaluation.metrics)
            for key, label, known in (
                ("model", cell.model, data.models or tuple(models)),
                ("method", cell.method, models[cell.model].methods if cell.model in models else ()),
            ):
                if label or not empty:
                    self.file.choice(f"{where}.{key}", label, known or self.known_rows)
            if (cell.gain is None) != (cell.over is None):
                raise VitreousError(f"{self.file.path}: {where}.gain and {where}.over belong together")
            if cell.over is not None:
                self.file.choice(f"{where}.over", cell.over, self.known_rows)
            names = (cell.data, cell.model, cell.method, cell.metric)
            if names in seen:
                raise self.file.wrong(where, " / ".join(filter(None, names)), "is given twice")
            seen.add(names)

    def _least(self, key: str, number: int | None, least: int) -> None:
        if number is not None and number < least:
            raise self.file.wrong(key, number, f"must be at least {least}")

    def _once(self, key: str, given: Sequence[Any]) -> None:
        for place, each in enumerate(given):
            if each in given[:place]:
                raise self.file.wrong(f"{key}[{place}]", each, "is given twice")
