"""CIFAR-10 and CIFAR-100 as they are handed out: pickles that are read without running them, or binary files.

MURA: radiographs whose study is positive (abnormal) or negative by the name of its folder.

Hugging Face data sets: a folder that ``save_to_disk`` wrote, or a name that the ``datasets`` package finds.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous import io as disk
from vitreous.datasets.annotations import Array
from vitreous.datasets.dataset import Entry, Found, source_kind
from vitreous.datasets.files import content, first_there, folder_at, misfit, pictures_below, read_lines
from vitreous.datasets.images import open_photo
from vitreous.errors import ImageError, one_line
from vitreous.registry import check_choice

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
    if not sound or not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
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


__all__: list[str] = []

_STUDY = re.compile(r"(?:^|.*/)patient([0-9]+)/study[0-9]+_(positive|negative)/[^/]+", re.S)
_EXPECTED = "MURA-v1.1: valid/XR_*/patient*/study*_positive or _negative/image*.png"


@source_kind("mura")
def mura(path: Path, split: str = "valid") -> Found:
    """MURA-v1.1, the validation split unless ``split`` or the path says ``train``; groups are patients.

    Labels are 0 (negative) and 1 (positive).
    """
    folder_at("mura", path, _EXPECTED)
    root = first_there(path / "MURA-v1.1" / split, path / split) or path
    if root is path and first_there(path / "MURA-v1.1", path / "train", path / "valid"):  # the other split is no answer
        raise misfit("mura", _EXPECTED.replace("valid", split), content(path), path)
    entries = []
    for each in pictures_below(root):
        name = each.relative_to(root).as_posix()
        told = _STUDY.fullmatch(name)
        if told is None:
            raise misfit("mura", _EXPECTED, f"it holds {one_line(name)}", root)
        entries.append(Entry(name, each, label=int(told[2] == "positive"), group=int(told[1])))
    if not entries:
        raise misfit("mura", _EXPECTED, content(root), root)
    return Found(entries, names=("negative", "positive"), note=f"labels are names of studies, split {root.name}")


_PICTURES = ("image", "img", "pixel_values")
_LABELS = ("label", "labels", "fine_label")


@source_kind("hf")
def hf(path: Path, split: str | None = None, image: str | None = None, label: str | None = None) -> Found:
    """A data set by name, or a folder of one; ``image`` and ``label`` name its columns where these are unusual."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise ImageError("hf: the package datasets is not installed: pip install datasets") from None
    table = _table(datasets, path, split)
    columns = list(table.column_names)
    shown = image or next((each for each in _PICTURES if each in columns), None)
    if shown is None or shown not in columns:
        expected = f"a column {image or ' or '.join(_PICTURES)}"
        raise misfit("hf", expected, f"its columns are {', '.join(columns[:6])}", path)
    named = label or next((each for each in _LABELS if each in columns), None)
    if named is not None and named not in columns:
        raise misfit("hf", f"a column {named}", f"its columns are {', '.join(columns[:6])}", path)
    labels = [None] * len(table) if named is None else list(table[named])
    words = tuple(getattr(table.features.get(named), "names", None) or ()) if named is not None else ()
    raw = table.cast_column(shown, datasets.Image(decode=False))  # a broken picture must not end the listing
    entries = [
        Entry(
            f"{place:06d}",
            label=told if isinstance(told, int | str) else None,
            opener=partial(_read, raw, shown, place),
        )
        for place, told in enumerate(labels)
    ]
    if not entries:
        raise misfit("hf", "pictures", "it is empty", path)
    return Found(entries, names=words, note=f"labels of column {named}" if named else "no labels")


def _table(datasets: Any, path: Path, split: str | None) -> Any:
    try:
        if any(os.path.isfile(path / name) for name in ("dataset_info.json", "dataset_dict.json")):
            found = datasets.load_from_disk(str(path))
        else:
            found = datasets.load_dataset(path.as_posix())
    except Exception as error:  # it raises whatever its readers and its connection raise
        said = one_line(str(error))[:160] or type(error).__name__
        raise ImageError(f"hf: {path} is no folder of save_to_disk, nor can it be had by name: {said}") from None
    if not isinstance(found, dict):
        return found
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise misfit("hf", f"the split {split}" if split else "one split", f"it has {', '.join(found)}", path)
    return found[split]


def _read(table: Any, column: str, place: int) -> Image.Image:
    told = table[place][column]
    if isinstance(told, Image.Image):
        return told.convert("RGB")
    if told.get("bytes") is not None:
        return open_photo(BytesIO(told["bytes"]))
    return open_photo(told["path"])
