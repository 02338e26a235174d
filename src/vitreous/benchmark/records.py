"""Files that may be of others, as records: JSON of bounded size and depth, and dataclasses with every value checked.

Every complaint is one line that names the file, the key and the value.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous import io as disk
from vitreous.errors import VitreousError, nearest, one_line

__all__ = ["Checker", "parse_json", "read_json"]

T = TypeVar("T")

_MOST_BYTES = 2**30
_FREE_VALUES, _LEAST_BYTES = 2**20, 6  # each further value has a line of its own in what is written here
_MOST_DEPTH = 64
_MOST_INTEGER = 2**63
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


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
        layer = [own for value in layer for own in (value.values() if isinstance(value, dict) else value)]
    return data


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no finite number")


class Checker:
    """Makes records of the data of one file. ``strict`` files, written by hand, have no blank texts.

    Their whole numbers become floats where a number is asked for; data of a run stay as they are, since their digests
    are of the text.
    """

    def __init__(self, path: str | Path, *, strict: bool = False) -> None:
        self.path, self.strict = path, strict

    def wrong(self, key: str, value: Any, complaint: str) -> VitreousError:
        shown = one_line(repr(value))
        shown = shown if len(shown) < 120 else shown[:117] + "..."
        return VitreousError(f"{self.path}: {key} = {shown}: {complaint}")

    def record(
        self,
        kind: type[T],
        data: Any,
        where: str = "",
        also: Sequence[str] = (),
        filled: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> T:
        """Return a dataclass with the fields of a table; ``filled`` are those that are at hand already."""
        if not isinstance(data, dict):
            raise self.wrong(where or "the file", data, "must be a table")
        hints, fields = get_type_hints(kind), dataclasses.fields(kind)  # type: ignore[arg-type]
        names = [field.name for field in fields]
        dot = f"{where}." if where else ""
        for key, value in data.items():
            if key not in names:
                options = (*names, *also)
                raise self.wrong(f"{dot}{one_line(key)}", value, f"unknown key{nearest(key, options)}")
        for field in fields:
            is_there = field.name in data or field.name in filled
            if field.default is MISSING and field.default_factory is MISSING and not is_there:
                raise VitreousError(f"{self.path}: {dot}{field.name} is missing")
        return kind(**{key: self.value(value, hints[key], f"{dot}{key}") for key, value in data.items()}, **filled)

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
            return {name: self.value(own, inner[1], f"{key}.{one_line(name)}") for name, own in value.items()}
        if dataclasses.is_dataclass(kind):
            return self.record(kind, value, key)  # type: ignore[arg-type]
        return self._plain(value, kind, key)

    def _tuple(self, value: Any, inner: tuple[Any, ...], key: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise self.wrong(key, value, "must be a list")
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise self.wrong(key, value, f"must have {len(kinds)} values")
        pairs = enumerate(zip(value, kinds, strict=True))
        return tuple(self.value(own, kind, f"{key}[{number}]") for number, (own, kind) in pairs)

    def _plain(self, value: Any, kind: Any, key: str) -> Any:
        if kind is float and type(value) is int and abs(value) < _MOST_INTEGER:
            return float(value) if self.strict else value
        if type(value) is not kind or (self.strict and kind is str and not value.strip()):
            blank = ", and not empty" if value == "" else ""
            raise self.wrong(key, value, f"must be {_WORDS[kind]}{blank}")
        if kind is float and not math.isfinite(value):
            raise self.wrong(key, value, "must be finite")
        if kind is int and abs(value) >= _MOST_INTEGER:
            raise self.wrong(key, value, "is too large")
        return value
