"""Files that may be of others, as records: JSON of bounded size and depth, and dataclasses with every value checked.

From the text of a protocol file to a ``Protocol``: every key, type, choice and spec is checked. Every complaint is one
line that names the file, the key and the value.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous import io as disk
from vitreous.benchmark.protocol import SCHEMA, Protocol, Published
from vitreous.errors import VitreousError, nearest, one_line

T = TypeVar("T")

_MOST_BYTES, _MOST_PROTOCOL_BYTES = 2**30, 2**24
_FREE_VALUES, _LEAST_BYTES = 2**20, 6  # each further value has a line of its own in what is written here
_MOST_DEPTH = 64
_MOST_INTEGER = 2**63
_MOST_LISTED = 20
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def read_json(path: Path, *, most: int = _MOST_BYTES) -> Any:
    """Return what a JSON file of a run holds; without any file it is a ``FileNotFoundError``."""
    try:
        return parse_json(disk.read_file(path, most))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise VitreousError(one_line(f"{path} cannot be read: {error.strerror or error}")) from None
    except ValueError as error:
        raise VitreousError(one_line(f"{path} cannot be read: {error}"[:500])) from None


def parse_json(content: bytes, *, finite: bool = True) -> Any:
    """Return what JSON text holds; a ``ValueError`` says why it is none, or too large or deep to be one of a run.

    Values are counted before they are made: a few bytes of text can be many of memory.
    """
    values = sum(map(content.count, (b",", b"[", b"{")))
    if values > max(_FREE_VALUES, len(content) // _LEAST_BYTES):
        raise ValueError(f"it has {values} values in {len(content)} bytes, which no file of a run has")
    try:
        data = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant if finite else None)
    except RecursionError:
        raise ValueError(f"it is nested more than {_MOST_DEPTH} deep") from None
    layer, depth = [data], 0
    while layer := [value for value in layer if isinstance(value, dict | list)]:
        depth += 1
        if depth > _MOST_DEPTH:
            raise ValueError(f"it is nested more than {_MOST_DEPTH} deep")
        layer = [item for value in layer for item in (value.values() if isinstance(value, dict) else value)]
    return data


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no finite number")


# -- rules of fields: a complaint about one value, or nothing --------------------------------------------------


def _not_among(word: str, choices: Any) -> str:
    options: Collection[str] = choices() if callable(choices) else choices
    if word in options:
        return ""
    listed = ", ".join(options) if len(options) <= _MOST_LISTED else f"{len(options)} are known"
    return f"is not one of {listed}{nearest(word, options)}"


def _no_label(text: str, rule: bool) -> str:
    visible = text == "" or (text.isprintable() and text.strip())  # an empty default says that there is no label
    return "" if visible else "a label is one line of characters that can be seen"


def _twice(values: Sequence[Any], rule: bool) -> str:
    again = next((value for at, value in enumerate(values) if value in values[:at]), None)
    return "" if again is None else f"{again!r} is given twice"


_VALUE_RULES: dict[str, Callable[[Any, Any], str]] = {
    "choices": _not_among,
    "label": _no_label,
    "least": lambda number, least: "" if number >= least else f"must be at least {least}",
    "most": lambda number, most: "" if number <= most else f"must be from 1 to {most}",
    "above": lambda number, bound: "" if number > bound else f"must be above {bound}",
    "probability": lambda number, rule: "" if 0 < number <= 1 else "is a probability, above 0 and at most 1",
}
_LIST_RULES: dict[str, Callable[[Any, Any], str]] = {
    "filled": lambda values, rule: "" if values else "is empty",
    "unique": _twice,
    "channels": lambda values, rule: "" if len(values) in (0, 3) else "must be three numbers, one per channel",
}


class Checker:
    """Makes records of the data of one file. ``strict`` files, written by hand, have no blank texts.

    Their whole numbers become floats where a number is asked for; data of a run stay as they are, since their digests
    are of the text.
    """

    def __init__(self, path: str | Path, *, strict: bool = False) -> None:
        self.path, self.strict = path, strict

    def wrong(self, key: str, value: Any, complaint: str) -> VitreousError:
        text = one_line(repr(value))
        text = text if len(text) < 120 else text[:117] + "..."
        return VitreousError(f"{self.path}: {key} = {text}: {complaint}")

    def choice(self, key: str, value: str, choices: Collection[str]) -> None:
        if complaint := _not_among(value, choices):
            raise self.wrong(key, value, complaint)

    def record(self, kind: type[T], data: Any, where: str = "") -> T:
        """Return a dataclass with the fields of a table."""
        if not isinstance(data, dict):
            raise self.wrong(where or "the file", data, "must be a table")
        hints = get_type_hints(kind)
        fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        dot = f"{where}." if where else ""
        values = {}
        for key, value in data.items():
            if key not in fields:
                raise self.wrong(f"{dot}{one_line(key)}", value, f"unknown key{nearest(key, fields)}")
            values[key] = self.value(value, hints[key], f"{dot}{key}")
            self._hold(fields[key].metadata, values[key], f"{dot}{key}")
        for field in fields.values():
            if field.default is MISSING and field.default_factory is MISSING and field.name not in data:
                raise VitreousError(f"{self.path}: {dot}{field.name} is missing")
        try:
            return kind(**values)
        except VitreousError as error:
            raise VitreousError(f"{self.path}: {where}: {error}") from None

    def _hold(self, rules: Mapping[str, Any], value: Any, key: str) -> None:
        """Refuse a value that the rules of its field do not allow; without a value there is none to refuse."""
        if value is None:
            return
        for name, rule in rules.items():
            is_list_rule = name in _LIST_RULES
            hold = _LIST_RULES.get(name) or _VALUE_RULES.get(name)
            for item in value if isinstance(value, tuple) and not is_list_rule else (value,):
                if hold is not None and (complaint := hold(item, rule)):
                    raise self.wrong(key, list(item) if is_list_rule else item, complaint)

    def value(self, value: Any, kind: Any, key: str) -> Any:
        """Return a value as its field wants it."""
        origin, inner = get_origin(kind), get_args(kind)
        if kind is Any:
            return value
        if origin in (Union, types.UnionType):
            return None if value is None else self.value(value, inner[0], key)  # the other kind is None
        if origin is tuple:
            return self._tuple(value, inner, key)
        if origin is not None and issubclass(origin, Mapping):
            if not isinstance(value, dict):
                raise self.wrong(key, value, "must be a table")
            return {name: self.value(item, inner[1], f"{key}.{one_line(repr(name))}") for name, item in value.items()}
        if dataclasses.is_dataclass(kind):
            return self.record(kind, value, key)  # type: ignore[arg-type]
        return self._scalar(value, kind, key)

    def _tuple(self, value: Any, inner: tuple[Any, ...], key: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise self.wrong(key, value, "must be a list")
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise self.wrong(key, value, f"must have {len(kinds)} values")
        pairs = enumerate(zip(value, kinds, strict=True))
        return tuple(self.value(item, kind, f"{key}[{number}]") for number, (item, kind) in pairs)

    def _scalar(self, value: Any, kind: Any, key: str) -> Any:
        if type(value) is int and abs(value) >= _MOST_INTEGER:
            raise self.wrong(key, value, "is too large")
        if (type(value), kind) == (int, float):
            return float(value) if self.strict else value
        is_blank = self.strict and type(value) is str and not value.strip()
        if type(value) is not kind or is_blank:
            raise self.wrong(key, value, f"must be {_TYPE_NAMES[kind]}{', and not empty' if is_blank else ''}")
        if kind is float and not math.isfinite(value):
            raise self.wrong(key, value, "must be finite")
        return value


# -- protocols -------------------------------------------------------------------------------------------------


def read_toml_file(path: Path) -> Protocol:
    """Read a protocol that somebody wrote: everything it names must be known, and its parts must fit each other."""
    check = Checker(path, strict=True)
    data = _parse_toml(check)
    scale = check.value(data.pop("scale", 1.0), float, "scale")
    if not scale > 0:
        raise check.wrong("scale", scale, "published numbers are divided by it")
    if "name" in data:
        raise check.wrong("name", data["name"], "unknown key; a protocol is called like its file")
    protocol = _protocol(check, {"name": path.stem, **data})
    label = protocol.data.label
    published = tuple(replace(_scaled(cell, scale), data=cell.data or label) for cell in protocol.published)
    protocol = replace(protocol, published=published)
    _check_references(check, protocol)
    return protocol


def read_json_file(path: Path) -> Protocol:
    """Read the protocol of a run as its report wrote it, in JSON; it may lack rows of which there are printed cells."""
    check = Checker(path)
    try:
        data = parse_json(_content(check).encode())
    except ValueError as error:
        raise VitreousError(f"{path}: is no JSON: {one_line(str(error))}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise VitreousError(f"{path}: is no protocol of the schema {SCHEMA!r}")
    return _protocol(check, _without_gaps(data))


def protocol_from_json(data: Any, where: str = "the protocol of the run") -> Protocol:
    """Return the protocol that the manifest of a run holds as data; ``where`` is what complaints call the file."""
    if not isinstance(data, dict):
        raise VitreousError(f"{where}: is no table")
    return _protocol(Checker(where), {"schema": SCHEMA, **data})


def _protocol(check: Checker, data: Mapping[str, Any]) -> Protocol:
    """Return a protocol whose values are allowed one by one, and whose models have known rows."""
    if data.get("schema") != SCHEMA:
        raise check.wrong("schema", data.get("schema"), f"this version reads {SCHEMA}")
    protocol = check.record(Protocol, {key: value for key, value in data.items() if key != "schema"})
    rows = {**protocol.methods, **protocol.absent}
    for at, model in enumerate(protocol.models):
        for label in model.methods:
            check.choice(f"models[{at}].methods", label, rows)
        if model.resize is not None and model.resize < (model.size or 1):
            raise check.wrong(f"models[{at}].resize", model.resize, f"must be at least {model.size}")
    for where, dataset in _dataset_keys(protocol):
        if dataset.choose == "listed" and dataset.names is None:
            reason = "needs names, a text file with one picture per line"
            raise check.wrong(f"{where}.choose", dataset.choose, reason)
    return protocol


def _content(check: Checker) -> str:
    try:
        return disk.read_file(check.path, _MOST_PROTOCOL_BYTES).decode()
    except OSError as error:
        raise VitreousError(f"{check.path}: cannot be read: {error.strerror}") from None


def _parse_toml(check: Checker) -> dict[str, Any]:
    try:
        reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ModuleNotFoundError:
        raise VitreousError(f"{check.path}: needs tomli on this Python: pip install 'vitreous[bench]'") from None
    try:
        data: dict[str, Any] = reader.loads(_content(check))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise VitreousError(f"{check.path}: is no TOML: {one_line(str(error))}") from None
    return data


def _without_gaps(data: Any) -> Any:
    """Leave out what says nothing: in JSON as it is written, what has no value is null, or an empty text."""
    if isinstance(data, dict):
        return {key: _without_gaps(value) for key, value in data.items() if value is not None and value != ""}
    return [_without_gaps(value) for value in data] if isinstance(data, list) else data


def _scaled(cell: Published, scale: float) -> Published:
    if cell.value is None:
        return cell
    error = None if cell.error is None else cell.error / scale
    return replace(cell, value=cell.value / scale, printed=cell.value, error=error)


def _dataset_keys(protocol: Protocol) -> list[tuple[str, Any]]:
    return [("data", protocol.data), *((f"also[{at}]", data) for at, data in enumerate(protocol.also))]


def _check_references(check: Checker, protocol: Protocol) -> None:
    """Refuse labels and specs that nothing has, and what is there twice."""
    from vitreous.methods import get_method
    from vitreous.metrics import get_metric

    for key, labels in (("methods", protocol.methods), ("absent", protocol.absent)):
        for label in labels:
            if complaint := _no_label(label or " ", True):
                raise check.wrong(key, label, complaint)
    for label, spec in protocol.methods.items():
        _canonical(check, f"methods.{one_line(repr(label))}", spec, get_method)
        if label in protocol.absent:
            raise check.wrong("absent", label, "is one of the methods")
    specs = enumerate(protocol.evaluation.metrics)
    metrics = [_canonical(check, f"evaluation.metrics[{at}]", spec, get_metric) for at, spec in specs]
    _check_unique(check, "evaluation.metrics", metrics)
    _check_unique(check, "models", [model.label for model in protocol.models])
    _check_unique(check, "data", [data.label for data in protocol.datasets])
    for key, label, choices in _references(protocol):
        check.choice(key, label, choices)
    _check_published(check, protocol)


def _check_unique(check: Checker, key: str, values: Sequence[str]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise check.wrong(f"{key}[{index}]", value, "is given twice")


def _references(protocol: Protocol) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield every label that means something elsewhere in the protocol: its key, itself, and what it may be."""
    models, metrics = [model.label for model in protocol.models], protocol.evaluation.metrics
    if protocol.evaluation.reference is not None:
        yield "evaluation.reference", protocol.evaluation.reference, protocol.methods
    for where, data in _dataset_keys(protocol):
        yield from ((f"{where}.models", label, models) for label in data.models)
        yield from ((f"{where}.metrics", spec, metrics) for spec in data.metrics)
    yield from _published_references(protocol)


def _published_references(protocol: Protocol) -> Iterator[tuple[str, str, Collection[str]]]:
    rows, datasets = (*protocol.methods, *protocol.absent), {data.label: data for data in protocol.datasets}
    own_rows = {model.label: model.methods or rows for model in protocol.models}
    for at, cell in enumerate(protocol.published):
        where, everything = f"published[{at}]", [""] if cell.value is None else []  # of a drawn cell, nothing means all
        yield f"{where}.data", cell.data, datasets
        data = datasets[cell.data]
        yield f"{where}.metric", cell.metric, data.metrics or protocol.evaluation.metrics
        yield f"{where}.model", cell.model, [*(data.models or own_rows), *everything]
        yield f"{where}.method", cell.method, [*own_rows.get(cell.model, rows), *everything]
        yield f"{where}.over", cell.over or rows[0], rows


def _canonical(check: Checker, key: str, spec: str, parse: Any) -> str:
    try:
        return str(parse(spec).spec)
    except VitreousError as error:
        raise check.wrong(key, spec, str(error)) from None


def _check_published(check: Checker, protocol: Protocol) -> None:
    seen = set()
    for at, cell in enumerate(protocol.published):
        where, names = f"published[{at}]", (cell.data, cell.model, cell.method, cell.metric)
        if cell.value is None and cell.source is None:
            raise VitreousError(f"{check.path}: {where} has neither a value nor a source")
        if (cell.gain is None) != (cell.over is None):
            raise VitreousError(f"{check.path}: {where}.gain and {where}.over belong together")
        if names in seen:
            raise check.wrong(where, " / ".join(filter(None, names)), "is given twice")
        seen.add(names)
