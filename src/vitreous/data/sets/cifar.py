"""CIFAR-10 and CIFAR-100 as they are handed out: pickles that are read without running them, or binary files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous import disk
from vitreous.data.sets.kinds import Found, source_kind
from vitreous.data.sets.listing import content, first_there, folder_at, misfit, read_lines
from vitreous.data.sets.source import Entry
from vitreous.data.truth import Array
from vitreous.errors import one_line
from vitreous.words import check_choice

__all__ = ["read_pickle"]

_PIXELS = 3 * 32 * 32
_FILES = {
    ("cifar10", "test"): ("test_batch",),
    ("cifar10", "train"): tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("cifar100", "test"): ("test",),
    ("cifar100", "train"): ("train",),
}
_FOLDERS = {"cifar10": ("cifar-10-batches-py", "cifar-10-batches-bin")}
_FOLDERS["cifar100"] = ("cifar-100-python", "cifar-100-binary")
_NAMES = {
    "cifar10": (("batches.meta", b"label_names"), "batches.meta.txt"),
    "cifar100": (("meta", b"fine_label_names"), "fine_label_names.txt"),
}
_CLASSES = {"cifar10": 10, "cifar100": 100}


@source_kind("cifar10")
def cifar10(path: Path, split: str = "test") -> Found:
    """CIFAR-10, ``cifar-10-batches-py`` or ``cifar-10-batches-bin``; 32 x 32 pixels."""
    return _cifar("cifar10", path, split)


@source_kind("cifar100")
def cifar100(path: Path, split: str = "test") -> Found:
    """CIFAR-100 with its fine labels, ``cifar-100-python`` or ``cifar-100-binary``; 32 x 32 pixels."""
    return _cifar("cifar100", path, split)


def _cifar(word: str, path: Path, split: str) -> Found:
    check_choice("split", split, ("test", "train"))
    files = _FILES[word, split]
    expected = f"{files[0]} or {files[0]}.bin, itself or in {' or '.join(_FOLDERS[word])}"
    folder_at(word, path, expected)
    entries: list[Entry] = []
    for name in files:
        place = first_there(*(base / (name + end) for base in _places(word, path) for end in ("", ".bin")))
        if place is None:
            raise misfit(word, expected, f"there is no {name}; {content(path)}", path)
        pixels, labels = (_binary if place.suffix == ".bin" else _pickled)(word, place)
        if len(pixels) != len(labels) or not all(0 <= label < _CLASSES[word] for label in labels):
            raise misfit(word, f"a class below {_CLASSES[word]} for each picture", "it has other labels", place)
        for row, label in zip(pixels, labels, strict=True):
            entries.append(Entry(f"{split}-{len(entries):05d}", label=label, opener=partial(_picture, row)))
    return Found(entries, names=_names(word, path), note=f"labels of {', '.join(files)}")


def _places(word: str, path: Path) -> list[Path]:
    return [path, *(path / name for name in _FOLDERS[word])]


def _picture(row: Array) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0)))


def _binary(word: str, place: Path) -> tuple[Array, list[int]]:
    labels = 1 if word == "cifar10" else 2  # the second one is the fine label
    rows = np.fromfile(place, np.uint8)
    if not rows.size or rows.size % (labels + _PIXELS):
        raise misfit(word, f"rows of {labels + _PIXELS} bytes", f"it has {rows.size}", place)
    rows = rows.reshape(-1, labels + _PIXELS)
    return rows[:, labels:], rows[:, labels - 1].tolist()


def _pickled(word: str, place: Path) -> tuple[Array, list[int]]:
    told, key = read_pickle(word, place), b"labels" if word == "cifar10" else b"fine_labels"
    pixels: Any
    labels: Any
    pixels, labels = (told.get(name) if isinstance(told, dict) else None for name in (b"data", key))
    sound = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (_PIXELS,)
    if not sound or not isinstance(labels, list) or not all(isinstance(each, int) for each in labels):
        said = ", ".join(sorted(map(str, told))[:5]) if isinstance(told, dict) else type(told).__name__
        raise misfit(word, f"data of [n, {_PIXELS}] bytes and {key.decode()}", f"it has {said}", place)
    return pixels, labels


def _names(word: str, path: Path) -> tuple[str, ...]:
    (pickled, key), text = _NAMES[word]
    place = first_there(*(base / name for base in _places(word, path) for name in (pickled, text)))
    if place is None:
        return ()
    if place.suffix == ".txt":
        return tuple(line.strip() for line in read_lines(word, place) if line.strip())
    told = read_pickle(word, place)
    names = told.get(key) if isinstance(told, dict) else None
    return tuple(each.decode() if isinstance(each, bytes) else str(each) for each in names or ())


# -- pickles -----------------------------------------------------------------------------------------------


def _array(*_: Any) -> Array:
    """Make the empty array that a pickle then fills."""
    return np.empty(0, np.int8)


def _bytes(text: str, encoding: str = "latin1") -> bytes:
    """Undo how newer pickles of the old kind write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r:.20}")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _bytes,
}


class _Unpickler(pickle.Unpickler):
    """Knows arrays of numbers and nothing else: a pickle is a program, and this one cannot name what it would run."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it wants {module}.{name}, which no picture needs")
        return _KNOWN[module, name]


def read_pickle(word: str, place: Path) -> Any:
    """Return what a pickle of numbers, text and arrays holds; anything else is refused by name."""
    try:
        with disk.open_file(place) as file:
            return _Unpickler(file, encoding="bytes").load()
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise misfit(
            word, "a pickle of plain arrays", one_line(str(error))[:120] or type(error).__name__, place
        ) from None
