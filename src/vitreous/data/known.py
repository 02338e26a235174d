"""Regions from files: folders of masks, tables of boxes and of masks, and scenes, as functions of the picture."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous import disk
from vitreous.data.pictures import Picture
from vitreous.data.truth import Array, Truth, photo_size
from vitreous.errors import ImageError, one_line

__all__ = ["read_regions"]

_MASKS = {".bmp", ".gif", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of masks; a JPEG would blur their edges."""
_TRIMAP = {1, 2, 3}
_MOST_BYTES = 2**28

Regions = Callable[[Picture], Truth]


def read_regions(path: str | Path, *, trimap: bool | None = None, ignore: int | None = None) -> Regions:
    """Return a function of the picture that gives its ``Truth``: what ``evaluate(truth=…)`` takes.

    ``path`` is a folder of masks that are named like the pictures, or a JSON file: ``{file: boxes}``, a list of
    ``{"file": …, "boxes": …}`` or ``{"file": …, "mask": …}``, or a ``scenes.json``. In a mask everything but zero is
    inside, and the pixels with the number ``ignore`` do not count (colours are red + 256 green + 65536 blue, as
    ImageNet-S has it). A ``trimap`` has 1 inside, 2 outside and ignores the rest; without a word, a mask whose numbers
    are several of 1, 2 and 3 and no others is one, since all of it would be inside. Boxes are (left, top, right,
    bottom): pixels of the photograph, or shares of its width and height where no number of the file is above 1.
    """
    path = Path(path)
    if os.path.isdir(path):
        by_stem = _folder(path)
        return lambda picture: _of_mask(picture, _named_like(by_stem, picture, path), trimap, ignore)
    told = _json(path)
    owners = told.get("owners") if isinstance(told, dict) and isinstance(told.get("scenes"), list) else None
    rows = _rows(told, path)
    shares = all(abs(value) <= 1 for row in rows.values() for box in row.get("boxes", ()) for value in box)

    def known(picture: Picture) -> Truth:
        row = rows.get(picture.name) or rows.get(Path(picture.name).stem)
        if row is None:
            raise ImageError(f"{path} has no region for {picture.name}")
        if "mask" not in row:
            wide, high = photo_size(picture) if shares else (1, 1)
            return Truth.of_photo(
                picture, boxes=[(a * wide, b * high, c * wide, d * high) for a, b, c, d in row["boxes"]]
            )
        place = _place(path, picture, row["mask"])
        return _of_scene(picture, place, owners) if owners else _of_mask(picture, place, trimap, ignore)

    return known


# -- masks -------------------------------------------------------------------------------------------------


def _folder(path: Path) -> dict[str, list[Path]]:
    by_stem: dict[str, list[Path]] = {}
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise ImageError(f"the folder {path} cannot be read: {error.strerror}") from None
    for each in (path / name for name in names):
        if each.suffix.lower() in _MASKS:
            by_stem.setdefault(each.stem, []).append(each)
    if not by_stem:
        raise ImageError(f"no masks in the folder {path}: they are images named like the pictures, and no JPEGs")
    return by_stem


def _named_like(by_stem: Mapping[str, list[Path]], picture: Picture, folder: Path) -> Path:
    own = None if picture.path is None else picture.path.resolve()
    found = [each for each in by_stem.get(Path(picture.name).stem, ()) if each.resolve() != own]
    if len(found) != 1:
        said = f"{' and '.join(each.name for each in found)} both are" if found else "none is"
        raise ImageError(f"of the masks in {folder}, {said} named like {picture.name}")
    return found[0]


def _place(table: Path, picture: Picture, name: str) -> Path:
    """Return where a mask named in a table is: beside the table or the picture, or in a folder named like the table."""
    folders = [table.parent, table.with_suffix(""), *([picture.path.parent] if picture.path else [])]
    for folder in folders:
        if os.path.isfile(folder / name):
            return folder / name
    raise ImageError(f"the mask {name} of {picture.name} is neither beside {table} nor beside the picture")


def _numbers(place: Path) -> Array:
    """Return the numbers of a mask, ``[H, W]``; those of a palette as they are, colours as one number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with disk.open_file(place) as file, Image.open(file) as opened:
                values = np.asarray(opened if opened.mode in ("1", "L", "P", "I", "I;16") else opened.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"the mask {place} cannot be read: {one_line(str(error))}") from None
    values = values.astype(np.int64)
    return values if values.ndim == 2 else values @ np.array([1, 2**8, 2**16])


def _of_mask(picture: Picture, place: Path, trimap: bool | None, ignore: int | None) -> Truth:
    numbers = _numbers(place)
    if trimap is None:
        there = set(np.unique(numbers).tolist())
        trimap = ignore is None and len(there) > 1 and there <= _TRIMAP
    if trimap:
        return Truth.of_trimap(picture, numbers)
    unsure = None if ignore is None else numbers == ignore
    inside = (numbers != 0) & (numbers != ignore)
    return Truth.of_photo(picture, inside, ignore=unsure)


def _of_scene(picture: Picture, place: Path, owners: Mapping[str, int]) -> Truth:
    """The creature and its parts, and nothing of the ground, the objects, the marker or a companion."""
    others = ("ground", "object", "marker", "companion")
    own = {name: number for name, number in owners.items() if not name.startswith(others)}
    numbers = _numbers(place)
    parts = {name: numbers == number for name, number in own.items()}
    return Truth.of_photo(picture, np.isin(numbers, list(own.values())), parts=parts)


# -- tables ------------------------------------------------------------------------------------------------


def _json(path: Path) -> Any:
    try:
        return json.loads(disk.read_file(path, _MOST_BYTES))
    except OSError as error:
        raise ImageError(f"regions {path} cannot be read: {one_line(error.strerror or str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise ImageError(f"regions {path} cannot be read: {one_line(str(error))}") from None


def _rows(told: Any, path: Path) -> dict[str, dict[str, Any]]:
    """Return what the file says about each picture, by its name and by its name without the ending."""
    if isinstance(told, dict) and isinstance(told.get("scenes"), list):
        told = told["scenes"]
    entries: Iterable[Any] = told if isinstance(told, list) else ()
    if isinstance(told, dict):
        entries = [{"file": name, **_entry(value)} for name, value in told.items()]
    rows: dict[str, dict[str, Any]] = {}
    for each in entries:
        name = each.get("file") if isinstance(each, dict) else None
        if not isinstance(name, str) or not _is_sound(each):
            raise ImageError(f"regions {path} has {each!r:.80}; it must name a file and its boxes or its mask")
        rows[name] = rows[Path(name).name] = each
        rows.setdefault(Path(name).stem, each)
    if not rows:
        raise ImageError(f"regions {path} holds no pictures: {{file: boxes}}, or a list of {{file, boxes}}")
    return rows


def _entry(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {"mask": value} if isinstance(value, str) else {"boxes": value}


def _is_sound(row: Mapping[str, Any]) -> bool:
    if isinstance(row.get("mask"), str):
        return True
    boxes = row.get("boxes")
    return isinstance(boxes, list) and all(
        isinstance(box, list)
        and len(box) == 4
        and all(isinstance(value, int | float) and np.isfinite(value) for value in box)
        for box in boxes
    )
