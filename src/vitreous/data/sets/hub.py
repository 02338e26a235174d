"""Hugging Face data sets: a folder that ``save_to_disk`` wrote, or a name that the ``datasets`` package finds."""

from __future__ import annotations

import importlib
import os
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous.data.pictures import open_photo
from vitreous.data.sets.kinds import Found, source_kind
from vitreous.data.sets.listing import misfit
from vitreous.data.sets.source import Entry
from vitreous.errors import ImageError, one_line

__all__: list[str] = []

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
