"""Other public data sets: CIFAR-10 and CIFAR-100, MURA, and those of Hugging Face's ``datasets``."""

from __future__ import annotations

import importlib
import os
import pickle
import re
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitreous import io as disk
from vitreous.datasets.annotations import Array
from vitreous.datasets.catalog import Listing, register_source
from vitreous.datasets.dataset import Entry
from vitreous.datasets.files import check_folder, describe, first_existing, images_below, misfit, read_lines
from vitreous.datasets.images import open_image
from vitreous.errors import ImageError, one_line
from vitreous.registry import check_choice

_PIXELS = 3 * 32 * 32


class _Cifar(NamedTuple):
    name: str
    classes: int
    files: dict[str, tuple[str, ...]]
    """By split; the binary ones end in .bin."""
    folders: tuple[str, str]
    labels: bytes
    names: tuple[str, bytes, str]
    """The pickle of the class names and their key in it, and the text file."""
    label_bytes: int


_CIFAR10 = _Cifar(
    "cifar10",
    10,
    {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))},
    ("cifar-10-batches-py", "cifar-10-batches-bin"),
    b"labels",
    ("batches.meta", b"label_names", "batches.meta.txt"),
    1,
)
_CIFAR100 = _Cifar(
    "cifar100",
    100,
    {"test": ("test",), "train": ("train",)},
    ("cifar-100-python", "cifar-100-binary"),
    b"fine_labels",
    ("meta", b"fine_label_names", "fine_label_names.txt"),
    2,  # the second one is the fine label
)


@register_source("cifar10")
def cifar10(path: Path, split: str = "test") -> Listing:
    """CIFAR-10, ``cifar-10-batches-py`` or ``cifar-10-batches-bin``; 32 x 32 pixels."""
    return _cifar(_CIFAR10, path, split)


@register_source("cifar100")
def cifar100(path: Path, split: str = "test") -> Listing:
    """CIFAR-100 with its fine labels, ``cifar-100-python`` or ``cifar-100-binary``; 32 x 32 pixels."""
    return _cifar(_CIFAR100, path, split)


def _cifar(version: _Cifar, path: Path, split: str) -> Listing:
    check_choice("split", split, ("test", "train"))
    files = version.files[split]
    expected = f"{files[0]} or {files[0]}.bin, itself or in {' or '.join(version.folders)}"
    check_folder(version.name, path, expected)
    places = [path, *(path / folder for folder in version.folders)]
    entries: list[Entry] = []
    for name in files:
        file = first_existing(*(place / (name + ending) for place in places for ending in ("", ".bin")))
        if file is None:
            raise misfit(version.name, expected, f"there is no {name}; {describe(path)}", path)
        pixels, labels = (_read_binary if file.suffix == ".bin" else _read_batch)(version, file)
        if len(pixels) != len(labels) or not all(0 <= label < version.classes for label in labels):
            expected = f"a class below {version.classes} for each image"
            raise misfit(version.name, expected, "it has other labels", file)
        for row, label in zip(pixels, labels, strict=True):
            entries.append(Entry(f"{split}-{len(entries):05d}", label=label, opener=partial(_to_image, row)))
    return Listing(entries, names=_class_names(version, places), note=f"labels of {', '.join(files)}")


def _to_image(row: Array) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0)))


def _read_binary(version: _Cifar, file: Path) -> tuple[Array, list[int]]:
    rows, length = np.fromfile(file, np.uint8), version.label_bytes + _PIXELS
    if not rows.size or rows.size % length:
        raise misfit(version.name, f"rows of {length} bytes", f"it has {rows.size}", file)
    rows = rows.reshape(-1, length)
    return rows[:, version.label_bytes :], rows[:, version.label_bytes - 1].tolist()


def _read_batch(version: _Cifar, file: Path) -> tuple[Array, list[int]]:
    batch = read_pickle(version.name, file)
    columns = batch if isinstance(batch, dict) else {}
    pixels: Any = columns.get(b"data")
    labels: Any = columns.get(version.labels)
    are_pixels = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (_PIXELS,)
    if not are_pixels or not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        actual = ", ".join(sorted(map(str, batch))[:5]) if isinstance(batch, dict) else type(batch).__name__
        expected = f"data of [n, {_PIXELS}] bytes and {version.labels.decode()}"
        raise misfit(version.name, expected, f"it has {actual}", file)
    return pixels, labels


def _class_names(version: _Cifar, places: list[Path]) -> tuple[str, ...]:
    pickled, key, text = version.names
    file = first_existing(*(place / name for place in places for name in (pickled, text)))
    if file is None:
        return ()
    if file.suffix == ".txt":
        return tuple(line.strip() for line in read_lines(version.name, file) if line.strip())
    content = read_pickle(version.name, file)
    names = content.get(key) if isinstance(content, dict) else None
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names or ())


# -- pickles -----------------------------------------------------------------------------------------------


def _empty_array(*_: Any) -> Array:
    """Make the empty array that a pickle then fills."""
    return np.empty(0, np.int8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Undo how newer pickles of the old protocol write bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it has bytes in {encoding!r:.20}")
    return text.encode("latin1")


_SAFE_NAMES: dict[tuple[str, str], Callable[..., Any] | type] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    """Loads arrays of numbers and nothing else: a pickle is a program, and this one cannot name what it would run."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _SAFE_NAMES:
            raise pickle.UnpicklingError(f"it wants {module}.{name}, which no image needs")
        return _SAFE_NAMES[module, name]


def read_pickle(source: str, path: Path) -> Any:
    """Return what a pickle of numbers, text and arrays holds; anything else is refused by name."""
    try:
        with disk.open_file(path) as file:
            return _ArrayUnpickler(file, encoding="bytes").load()
    except Exception as error:  # foreign bytes can break a reader anywhere
        actual = one_line(str(error))[:120] or type(error).__name__
        raise misfit(source, "a pickle of plain arrays", actual, path) from None


# -- MURA --------------------------------------------------------------------------------------------------

_STUDY = re.compile(r"(?:^|.*/)patient([0-9]+)/study[0-9]+_(positive|negative)/[^/]+", re.S)
_EXPECTED = "MURA-v1.1: valid/XR_*/patient*/study*_positive or _negative/image*.png"


@register_source("mura")
def mura(path: Path, split: str = "valid") -> Listing:
    """MURA-v1.1, the validation split unless ``split`` or the path says ``train``; groups are patients.

    Labels are 0 (negative) and 1 (positive).
    """
    check_folder("mura", path, _EXPECTED)
    root = first_existing(path / "MURA-v1.1" / split, path / split)
    if root is None:
        if first_existing(path / "MURA-v1.1", path / "train", path / "valid"):  # the other split is no answer
            raise misfit("mura", _EXPECTED.replace("valid", split), describe(path), path)
        root = path
    entries = []
    for file in images_below(root):
        name = file.relative_to(root).as_posix()
        study = _STUDY.fullmatch(name)
        if study is None:
            raise misfit("mura", _EXPECTED, f"it holds {one_line(name)}", root)
        entries.append(Entry(name, file, label=int(study[2] == "positive"), group=int(study[1])))
    if not entries:
        raise misfit("mura", _EXPECTED, describe(root), root)
    return Listing(entries, names=("negative", "positive"), note=f"labels are names of studies, split {root.name}")


# -- Hugging Face ------------------------------------------------------------------------------------------


@register_source("hf")
def hf(path: Path, split: str | None = None, image: str | None = None, label: str | None = None) -> Listing:
    """A data set by name, or a folder of one; ``image`` and ``label`` name its columns where these are unusual."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise ImageError("hf: the package datasets is not installed: pip install datasets") from None
    table = _load_table(datasets, path, split)
    image_column = _find_column(table, path, image, ("image", "img", "pixel_values"), True)
    label_column = _find_column(table, path, label, ("label", "labels", "fine_label"), False)
    if not len(table):
        raise misfit("hf", "images", "it is empty", path)
    raw = table.cast_column(image_column, datasets.Image(decode=False))  # a broken image must not end the listing
    labels = [None] * len(table) if label_column is None else list(table[label_column])
    entries = [
        Entry(f"{index:06d}", label=value, opener=partial(_open_cell, raw, image_column, index))
        for index, value in enumerate(value if isinstance(value, int | str) else None for value in labels)
    ]
    names = tuple(getattr(table.features.get(label_column), "names", None) or ())
    return Listing(entries, names=names, note=f"labels of column {label_column}" if label_column else "no labels")


def _find_column(table: Any, path: Path, name: str | None, usual: tuple[str, ...], is_needed: bool) -> Any:
    columns = list(table.column_names)
    column = name or next((candidate for candidate in usual if candidate in columns), None)
    if column in columns or (column is None and not is_needed):
        return column
    raise misfit("hf", f"a column {name or ' or '.join(usual)}", f"its columns are {', '.join(columns[:6])}", path)


def _load_table(datasets: Any, path: Path, split: str | None) -> Any:
    try:
        if any(os.path.isfile(path / name) for name in ("dataset_info.json", "dataset_dict.json")):
            table = datasets.load_from_disk(str(path))
        else:
            table = datasets.load_dataset(path.as_posix())
    except Exception as error:  # it raises whatever its readers and its connection raise
        why = one_line(str(error))[:160] or type(error).__name__
        raise ImageError(f"hf: {path} is no folder of save_to_disk, nor can it be had by name: {why}") from None
    if not isinstance(table, dict):
        return table
    if split is None and len(table) == 1:
        return next(iter(table.values()))
    if split not in table:
        raise misfit("hf", f"the split {split}" if split else "one split", f"it has {', '.join(table)}", path)
    return table[split]


def _open_cell(table: Any, column: str, index: int) -> Image.Image:
    cell = table[index][column]
    if isinstance(cell, Image.Image):
        return cell.convert("RGB")
    return open_image(cell["path"] if cell.get("bytes") is None else BytesIO(cell["bytes"]))
