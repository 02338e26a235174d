"""What a saved explanation is read from: arrays that are held against what they should be."""

from __future__ import annotations

import io
import math
import platform
import zipfile
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

__all__ = ["MOST_BYTES", "no_number", "read_extras", "read_map", "versions"]

MOST_BYTES = 2**31  # of a file that is read


def read_map(data: bytes) -> np.ndarray[Any, Any]:
    """Return a map that means something: real, finite, ``[h, w]``; its header is held against what is there."""
    file = io.BytesIO(data)
    kind = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if kind == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if len(shape) != 2 or 0 in shape or dtype not in (np.float32, np.float64):
        raise ValueError(f"a map is [h, w] in float32 or float64, not {list(shape)} of {dtype}")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"it is not as long as {list(shape)} of {dtype}")
    flat: np.ndarray[Any, Any] = np.frombuffer(data, dtype, offset=file.tell())
    array: np.ndarray[Any, Any] = flat.reshape(shape, order="F" if fortran else "C").copy()
    if not np.isfinite(array).all():
        raise ValueError("the map has values that are not finite")
    return array


def read_extras(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(each.file_size for each in archive.infolist())
    if size > MOST_BYTES:
        raise ValueError(f"the extras take {size} bytes")
    extras = dict(np.load(io.BytesIO(data), allow_pickle=False))
    strange = [name for name, value in extras.items() if value.dtype.kind not in "fiub"]
    if strange:
        raise ValueError(f"{strange[0]} holds {extras[strange[0]].dtype}")
    return extras


def no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def versions() -> dict[str, str]:
    """Return the versions of what an explanation is made with."""
    found = {"python": platform.python_version()}
    for package in ("vitreous", "torch", "timm", "numpy", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            from vitreous import __version__

            found[package] = __version__ if package == "vitreous" else "unknown"
    return found
