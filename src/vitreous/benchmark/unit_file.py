"""The file of a unit: arrays and a description as an ``.npz`` file, read as if anybody could have written it.

Members are not compressed, so that none is larger than the file; an array has as many bytes as its shape says. The
description of a unit must fit its arrays, and be of the unit that the file is named after.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitreous.benchmark.protocol_io import Checker, parse_json
from vitreous.benchmark.units import Unit, known_record
from vitreous.errors import VitreousError, one_line

Arrays = dict[str, NDArray[Any]]

_INFO = "info.json"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LEAST_MEMBER = 30  # bytes of a member beside its content: none lies over another
_MOST_INFO_BYTES = 2**26


class UnitResult(NamedTuple):
    """The arrays of a unit, and a description of them as plain data."""

    arrays: Arrays
    info: dict[str, Any]


class DamagedUnit(Exception):
    """The content of a unit's file is not what was written; unlike a file that cannot be opened, it is made again."""


def pack_unit(arrays: Mapping[str, NDArray[Any]], info: Mapping[str, Any]) -> bytes:
    """Return arrays and their description as the bytes of one ``.npz`` file."""
    text = np.frombuffer(json.dumps(info, allow_nan=True, default=str).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, **dict(arrays), **{_INFO: text})  # type: ignore[arg-type]
    return file.getvalue()


def unpack_unit(content: bytes) -> UnitResult:
    """Return the arrays and description of such a file; every member's checksum is verified as it is read."""
    return read_unit(io.BytesIO(content), len(content))


def read_unit(file: BinaryIO, size: int, names: Iterable[str] | None = None) -> UnitResult:
    """Return all arrays of an open file of ``size`` bytes, or some, and the description; damage is a ``DamagedUnit``.

    An array that a file lacks is a ``KeyError``. Whatever the file itself raises while it is read is a
    ``VitreousError``, and no damage.
    """
    try:
        with zipfile.ZipFile(_Readable(file)) as archive:
            members = _members(archive, size)
            info = _read_info(members, archive)
            wanted = members.keys() - {_INFO} if names is None else set(names)
            arrays = {name: _read_array(archive, members[name]) for name in members if name in wanted}
    except (VitreousError, DamagedUnit):
        raise
    except MemoryError:
        raise VitreousError("does not fit into memory") from None
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise DamagedUnit(one_line(f"{error or type(error).__name__}"[:200])) from None
    missing = next((name for name in wanted if name not in arrays), None)
    if missing is not None:
        raise KeyError(missing)
    return UnitResult(arrays, info)


class _Readable:
    """An open file whose own errors are told from those of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.tell, self.seekable, self.seek = file.tell, file.seekable, file.seek

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except OSError as error:
            raise VitreousError(one_line(f"cannot be read: {error.strerror or error}")) from None

    def close(self) -> None:
        """Stay open: the caller closes it."""


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of a file by their names, once it is clear that they are no more than the file."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename or name in members or member.flag_bits & 1:
            raise DamagedUnit(f"{one_line(member.filename[:100])} is no array of a unit")
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise DamagedUnit(f"{one_line(member.filename[:100])} is compressed, which units are not")
        members[name] = member
    total = sum(member.file_size + _LEAST_MEMBER for member in members.values())
    if total > size:
        raise DamagedUnit(f"its arrays have {total} bytes, more than the file")
    return members


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        header = _HEADERS.get(npy.read_magic(file))
        if header is None:
            raise DamagedUnit(f"{member.filename} is no array")
        shape, fortran, dtype = header(file)
        if dtype.kind not in "biuf" or any(length < 0 for length in shape):
            raise DamagedUnit(f"{member.filename} holds no numbers")
        content = file.read()  # to the end of the member, where its checksum is compared
    if math.prod(shape) * dtype.itemsize != len(content):
        raise DamagedUnit(f"{member.filename} has {len(content)} bytes, which its shape {list(shape)} has not")
    return np.frombuffer(bytearray(content), dtype).reshape(shape, order="F" if fortran else "C")


def _read_info(members: Mapping[str, zipfile.ZipInfo], archive: zipfile.ZipFile) -> dict[str, Any]:
    if _INFO not in members or members[_INFO].file_size > _MOST_INFO_BYTES:
        raise DamagedUnit("it does not say what it holds")
    info = parse_json(_read_array(archive, members[_INFO]).tobytes(), finite=False)
    if not isinstance(info, dict):
        raise DamagedUnit("its description is no table")
    return info


# -- whether it is the unit that it should be --------------------------------------------------------------


@dataclass(frozen=True)
class _Info:
    """The keys of a description that are read again, and of which kind they are."""

    images: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    uncertain: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    specs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    seconds: float = 0.0
    costs: tuple[Mapping[str, float], ...] = ()
    device: str = ""
    hardware: str = ""
    threads: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    retried: tuple[str, ...] = ()
    attribution_batch: int = 1
    forward_batch: int = 1
    audit: Mapping[str, Any] | None = None


def check_unit(result: UnitResult, name: str, planned: Unit | None = None, *, complete: bool = True) -> None:
    """Refuse what is not the unit ``name``, which was ``planned`` so; ``complete``: all its arrays must be there."""
    check = Checker(f"unit {name}")
    try:
        unit = Unit.from_json(result.info.get("unit"), check, "unit")
        info = known_record(check, _Info, result.info)
    except VitreousError as error:
        raise DamagedUnit(str(error).partition(": ")[2]) from None
    if unit.id != name:
        raise DamagedUnit(f"it holds the unit {unit.id}")
    if planned is not None and unit != replace(planned, config=unit.config):
        raise DamagedUnit("it says that it holds other pictures, methods or metrics than were planned")
    _check_info(info, unit)
    missing = [array for array in _needed_arrays(unit) if array not in result.arrays]
    if missing and complete and info.images:
        raise DamagedUnit(f"it lacks {missing[0]}")
    _check_shapes(result.arrays, len(info.images))
    _check_rows_and_curves(result.arrays, complete)


def _check_info(info: _Info, unit: Unit) -> None:
    if not set().union(*info.costs) <= {"own", "shared", "maps"}:
        raise DamagedUnit("its costs are no seconds of methods")
    images = {*info.images, *info.unreadable, *info.uncertain}
    if len(set(info.images)) < len(info.images) or not images <= set(unit.images):
        raise DamagedUnit("its pictures are not those of the unit")
    if len(info.specs) not in (0, len(unit.methods)):
        raise DamagedUnit("it has not one spec for each method")


def _needed_arrays(unit: Unit) -> list[str]:
    methods = range(len(unit.methods))
    if unit.is_scoring:
        return [f"parts/{i}/{j}" for i in methods for j in range(len(unit.metrics))]
    return [f"maps/{i}" for i in methods] + [f"rows/{i}/{mode}" for i in methods for mode in unit.modes]


def _check_shapes(arrays: Arrays, count: int) -> None:
    """Refuse arrays that are not one row for each of ``count`` images."""
    for name, values in arrays.items():
        kind, _, numbers = name.partition("/")
        if kind not in _LAYOUT:
            continue
        pattern, dimensions, dtypes = _LAYOUT[kind]
        is_axis = name.endswith("/x")
        fits = pattern.fullmatch(numbers) and values.ndim == dimensions - is_axis
        fits = fits and (not values.size or values.dtype.kind in dtypes)
        if not fits or (kind != "maps" and not is_axis and len(values) != count):
            raise DamagedUnit(f"{one_line(name[:100])} does not fit its {count} pictures")


def _check_rows_and_curves(arrays: Arrays, complete: bool) -> None:
    """Refuse rows of maps that are not there, and curves with another number of steps than their axis."""
    for name, values in arrays.items():
        if name.startswith("rows/"):
            maps = arrays.get(f"maps/{name.split('/')[1]}")
            most = math.inf if maps is None else len(maps)
            if len(values) and not 0 <= values.min() <= values.max() < most:
                raise DamagedUnit(f"{name} names maps that are not there")
        elif complete and name.startswith("curve/") and name.endswith("/y"):
            steps = arrays.get(f"{name.removesuffix('/y')}/x")
            if steps is None or len(steps) != values.shape[1]:
                raise DamagedUnit(f"{one_line(name[:100])} has not one value for each step")


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
