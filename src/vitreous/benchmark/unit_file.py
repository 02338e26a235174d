"""The file of a unit: arrays and a description as an ``.npz`` file, read as if anybody could have written it.

Members are not compressed, so that none is larger than the file; an array has as many bytes as its shape says. What a
unit says must fit its arrays, and be about the unit that the file is named after.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitreous.benchmark.records import Checker, parse_json
from vitreous.benchmark.units import Unit
from vitreous.errors import VitreousError, one_line

__all__ = ["DamagedUnit", "Found", "check_unit", "packed", "read_unit", "unpacked"]

Found = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""The arrays of a unit, and what is to be said about them."""

_SAID = "said.json"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LEAST_MEMBER = 30  # bytes of a member beside its content: none lies over another
_MOST_SAID = 2**26


class DamagedUnit(Exception):
    """The content of a unit's file is not what was written; unlike a file that cannot be opened, it is made again."""


def packed(arrays: Mapping[str, NDArray[Any]], said: Mapping[str, Any]) -> bytes:
    """Return arrays and words as the bytes of one ``.npz`` file."""
    words = np.frombuffer(json.dumps(said, allow_nan=True, default=str).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, **dict(arrays), **{_SAID: words})  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(content: bytes) -> Found:
    """Return the arrays and words of such a file; every member's checksum is verified as it is read."""
    return read_unit(io.BytesIO(content), len(content))


def read_unit(file: BinaryIO, size: int, names: Iterable[str] | None = None) -> Found:
    """Return all arrays of an open file of ``size`` bytes, or some, and its words; damage is a ``DamagedUnit``.

    An array that a file lacks is a ``KeyError``. Whatever the file itself raises while it is read is a
    ``VitreousError``, and no damage.
    """
    wanted = None if names is None else tuple(names)
    try:
        with zipfile.ZipFile(_Readable(file)) as archive:
            members = _members(archive, size)
            said = _words(members, archive)
            if wanted is None:
                wanted = tuple(name for name in members if name != _SAID)
            there = [name for name in wanted if name in members]
            arrays = {name: _array(archive, members[name]) for name in there}
    except (VitreousError, DamagedUnit):
        raise
    except MemoryError:
        raise VitreousError("does not fit into memory") from None
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise DamagedUnit(one_line(f"{error or type(error).__name__}"[:200])) from None
    missing = next((name for name in wanted if name not in arrays), None)
    if missing is not None:
        raise KeyError(missing)
    return arrays, said


class _Readable:
    """An open file whose own errors are told from those of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tell, self.seekable = file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise VitreousError(one_line(f"cannot be read: {error.strerror or error}")) from None

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)  # beyond its ends: the content says so

    def close(self) -> None:
        """Stay open: the caller closes it."""


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of a file by their names, once it is clear that they are no more than the file."""
    members: dict[str, zipfile.ZipInfo] = {}
    whole = 0
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename or name in members or member.flag_bits & 1:
            raise DamagedUnit(f"{one_line(member.filename[:100])} is no array of a unit")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise DamagedUnit(f"{one_line(member.filename[:100])} is compressed, which units are not")
        whole += member.file_size + _LEAST_MEMBER
        members[name] = member
    if whole > size:
        raise DamagedUnit(f"its arrays have {whole} bytes, more than the file")
    return members


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        header = _HEADERS.get(npy.read_magic(file))
        if header is None:
            raise DamagedUnit(f"{member.filename} is no array")
        shape, turned, dtype = header(file)
        if dtype.kind not in "biuf" or any(length < 0 for length in shape):
            raise DamagedUnit(f"{member.filename} holds no numbers")
        content = file.read()  # to the end of the member, where its checksum is compared
    if math.prod(shape) * dtype.itemsize != len(content):
        raise DamagedUnit(f"{member.filename} has {len(content)} bytes, which its shape {list(shape)} has not")
    return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if turned else "C")


def _words(members: Mapping[str, zipfile.ZipInfo], archive: zipfile.ZipFile) -> dict[str, Any]:
    if _SAID not in members or members[_SAID].file_size > _MOST_SAID:
        raise DamagedUnit("it does not say what it holds")
    said = parse_json(_array(archive, members[_SAID]).tobytes(), finite=False)
    if not isinstance(said, dict):
        raise DamagedUnit("what it says is no table")
    return said


# -- whether it is the unit that it should be --------------------------------------------------------------


@dataclass(frozen=True)
class _Said:
    """What units say that is read again, and of which kind it is."""

    pictures: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)
    raised: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    spellings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    seconds: float = 0.0
    explaining: float = 0.0
    costs: tuple[Mapping[str, float], ...] = ()
    device: str = ""
    hardware: str = ""
    threads: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    retried: tuple[str, ...] = ()
    inner: int = 1
    states: int = 1
    audit: Mapping[str, Any] | None = None


def check_unit(found: Found, name: str, planned: Unit | None = None, *, whole: bool = True) -> None:
    """Refuse what is not the unit ``name``, which was ``planned`` so; ``whole``: all of its arrays must be there."""
    arrays, said = found
    check = Checker(f"unit {name}")
    try:
        unit = Unit.from_json(said.get("unit"), check, "unit")
        words = check.record(_Said, {each.name: said[each.name] for each in fields(_Said) if each.name in said})
    except VitreousError as error:
        raise DamagedUnit(str(error).partition(": ")[2]) from None
    if unit.id != name:
        raise DamagedUnit(f"it holds the unit {unit.id}")
    if planned is not None and unit != _with_number(planned, unit.setting):
        raise DamagedUnit("it says that it holds other pictures, methods or metrics than were planned")
    if any(not {"own", "shared", "maps"} >= cost.keys() for cost in words.costs):
        raise DamagedUnit("its costs are no seconds of methods")
    told = [*words.pictures, *words.unreadable, *words.unsure]
    if len(set(words.pictures)) < len(words.pictures) or not set(told) <= set(unit.pictures):
        raise DamagedUnit("its pictures are not those of the unit")
    if words.spellings and len(words.spellings) != len(unit.methods):
        raise DamagedUnit("it has not one spelling for each method")
    _check_arrays(arrays, unit, len(words.pictures), whole)


def _with_number(unit: Unit, number: int) -> Unit:
    return Unit(unit.id, number, unit.seed, unit.pictures, unit.methods, unit.modes, unit.metrics)


def _check_arrays(arrays: Mapping[str, NDArray[Any]], unit: Unit, count: int, whole: bool) -> None:
    """Refuse arrays that are not one row for each of ``count`` pictures."""
    if whole and count:
        methods, metrics = range(len(unit.methods)), range(len(unit.metrics))
        needed = [f"parts/{i}/{j}" for i in methods for j in metrics] if unit.judges else []
        needed += [f"{kind}/{i}{end}" for i in methods for mode in unit.modes for kind, end in _of_mode(mode)]
        missing = next((name for name in needed if name not in arrays), None)
        if missing is not None:
            raise DamagedUnit(f"it lacks {missing}")
    for name, values in arrays.items():
        kind, _, rest = name.partition("/")
        pattern, dimensions, numbers = _LAYOUT.get(kind, (None, 0, ""))
        if pattern is None:
            continue
        rows = kind != "maps" and not name.endswith("/x")
        if (
            not pattern.fullmatch(rest)
            or values.ndim != dimensions - name.endswith("/x")
            or (values.size and values.dtype.kind not in numbers)
            or (rows and len(values) != count)
        ):
            raise DamagedUnit(f"{one_line(name[:100])} does not fit its {count} pictures")
    for name, values in arrays.items():
        if name.startswith("rows/"):
            maps = arrays.get(f"maps/{name.split('/')[1]}")
            most = math.inf if maps is None else len(maps)
            if len(values) and not 0 <= values.min() <= values.max() < most:
                raise DamagedUnit(f"{name} names maps that are not there")
        if name.startswith("curve/") and name.endswith("/y"):
            steps = arrays.get(f"{name.removesuffix('/y')}/x")
            if whole and (steps is None or len(steps) != values.shape[1]):
                raise DamagedUnit(f"{one_line(name[:100])} has not one value for each step")


def _of_mode(mode: str) -> tuple[tuple[str, str], ...]:
    return ("maps", ""), ("rows", f"/{mode}")


_LAYOUT = {
    "maps": (re.compile(r"[0-9]+"), 3, "fiu"),
    "rows": (re.compile(r"[0-9]+/[a-z]+"), 1, "iu"),
    "classes": (re.compile(r"[a-z]+"), 1, "iu"),
    "confidence": (re.compile(r".+"), 1, "f"),
    "flags": (re.compile(r"[0-9]+/.+"), 1, "iu"),
    "parts": (re.compile(r"[0-9]+/[0-9]+"), 2, "biuf"),
    "curve": (re.compile(r"[0-9]+/[0-9]+/[0-9]+/.*/?[xy]", re.DOTALL), 2, "biuf"),
}
"""What follows the first word of an array's name, its dimensions, and the kinds of its numbers."""
