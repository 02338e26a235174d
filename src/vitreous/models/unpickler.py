"""Reading torch files that hold more than tensors, without ever running or importing what they name.

A pickle is a program: it names things of other modules and has them called. Here the names mean what the table below
says: tensors are put together by this file's own functions, a few plain containers are themselves, and every other
name is an inert class of its own that takes whatever it is given and keeps nothing. Nothing is looked up by name.
"""

from __future__ import annotations

import os
import pickle
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

_OLD_MAGIC, _OLD_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001

_DTYPES = {name: var for name, var in vars(torch).items() if isinstance(var, torch.dtype)}
_STORAGES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "ComplexDoubleStorage": torch.complex128, "ComplexFloatStorage": torch.complex64,
    "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16, "CharStorage": torch.int8,
    "ByteStorage": torch.uint8, "BoolStorage": torch.bool, "UntypedStorage": torch.uint8,
}  # fmt: skip


class Stub:
    """What stands for anything else in a file: it can be made, called, filled and given a state, and does nothing."""

    name = "something"
    """What the file calls it."""

    def __new__(cls, *_: Any, **__: Any) -> Stub:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Stub:
        return self

    append = extend = add = __setitem__ = __setstate__ = __call__


class _Rebuild:
    """Puts a tensor together; torch refuses one that reaches beyond its numbers. A file cannot change this object."""

    __slots__ = ()

    def __call__(self, flat: Tensor, offset: int, size: Any, stride: Any, *_: Any) -> Tensor:
        return flat.as_strided(tuple(size), tuple(stride), offset)


class _RebuildTyped(_Rebuild):
    """The same for numbers whose kind comes last."""

    __slots__ = ()

    def __call__(self, flat: Tensor, offset: int, size: Any, stride: Any, *options: Any) -> Tensor:
        return super().__call__(flat.view(options[2]), offset, size, stride)


class _RebuildParameter:
    __slots__ = ()

    def __call__(self, values: Any, *_: Any) -> Any:
        return values


_NAMES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _Rebuild(),
    ("torch._utils", "_rebuild_tensor_v2"): _Rebuild(),
    ("torch._utils", "_rebuild_tensor_v3"): _RebuildTyped(),
    ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
    ("torch._utils", "_rebuild_parameter_with_state"): _RebuildParameter(),
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
    **{(home, name): dtype for name, dtype in _STORAGES.items() for home in ("torch", "torch.storage")},
    **{(home, kind.__name__): kind for kind in (set, frozenset) for home in ("builtins", "__builtin__")},
}


class _Unpickler(pickle.Unpickler):
    """Knows the names of ``_NAMES``; ``storage(dtype, key, count)`` gives the numbers behind tensors."""

    def __init__(self, file: Any, storage: Callable[[torch.dtype, str, int], Tensor] | None = None) -> None:
        super().__init__(file, encoding="utf-8")
        self.storage = storage

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        return type("Stub", (Stub,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Tensor:
        what, dtype, key, _, count, *model = pid
        if what != "storage" or not isinstance(dtype, torch.dtype) or self.storage is None:
            raise pickle.UnpicklingError("it refers to something that is no storage of numbers")
        if any(view is not None for view in model):
            raise pickle.UnpicklingError("its storages are views of others; save it with a newer torch")
        return self.storage(dtype, str(key), int(count))


def unpickle(path: Path) -> Any:
    """Return what a torch file holds, tensors on the CPU, with a ``Stub`` for every other thing."""
    with open(path, "rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
        file.seek(0)
        return _zipped(file) if zipped else _old(file)


def _zipped(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        (table,) = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        folder = table.removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.namelist() and archive.read(order).decode() != sys.byteorder:
            raise pickle.UnpicklingError(f"its numbers are {archive.read(order).decode()}-endian")
        storages: dict[str, Tensor] = {}

        def storage(dtype: torch.dtype, key: str, count: int) -> Tensor:
            if key not in storages:
                entry = archive.getinfo(f"{folder}data/{key}")
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise pickle.UnpicklingError("its numbers are compressed, as torch never saves them")
                storages[key] = _numbers(archive.read(entry), dtype, count)
            return storages[key].view(dtype)

        with archive.open(table) as pickled:
            return _Unpickler(pickled, storage).load()


def _old(file: BinaryIO) -> Any:
    """Read the format of before torch 1.6: four pickles, then the numbers one after another."""
    if _Unpickler(file).load() != _OLD_MAGIC or _Unpickler(file).load() != _OLD_PROTOCOL:
        raise pickle.UnpicklingError("it is no file of torch's")
    system = _Unpickler(file).load()
    if system.get("little_endian", True) != (sys.byteorder == "little"):
        raise pickle.UnpicklingError("its numbers are of the other byte order")
    storages: dict[str, Tensor] = {}
    size = os.fstat(file.fileno()).st_size

    def storage(dtype: torch.dtype, key: str, count: int) -> Tensor:
        if key not in storages:
            held = sum(numbers.nbytes for numbers in storages.values())
            if not 0 <= count * dtype.itemsize <= size - held:
                raise pickle.UnpicklingError("its numbers are more than the file can hold")
            storages[key] = torch.empty(count, dtype=dtype)
        return storages[key]

    content = _Unpickler(file, storage).load()
    for key in _Unpickler(file).load():
        flat = storages[str(key)]
        count = int.from_bytes(file.read(8), sys.byteorder)
        flat.copy_(_numbers(file.read(min(count, len(flat)) * flat.dtype.itemsize), flat.dtype, len(flat)))
    return content


def _numbers(data: bytes, dtype: torch.dtype, count: int) -> Tensor:
    if len(data) < count * dtype.itemsize:
        raise pickle.UnpicklingError("it ends too early")
    return torch.frombuffer(bytearray(data), dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)
