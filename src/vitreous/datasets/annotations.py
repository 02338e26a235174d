"""Run lengths of masks, as COCO writes them: down the columns, first outside, then inside, and so on.

What is known to be true about a picture: where the object is, which boxes hold it, which parts it has.

Regions from files: folders of masks, tables of boxes and of masks, and scenes, as functions of the picture.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous import io as disk
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, one_line
from vitreous.models import Box
from vitreous.registry import check_choice

__all__ = [
    "KINDS",
    "Annotation",
    "mask_of_runs",
    "photo_size",
    "load_annotations",
    "runs_of_text",
]


def mask_of_runs(counts: str | Sequence[int], size: tuple[int, int]) -> Array:
    """Return the mask ``[H, W]`` of a list of run lengths, or of a text that packs one."""
    runs = runs_of_text(counts) if isinstance(counts, str) else [int(count) for count in counts]
    height, width = size
    if any(run < 0 for run in runs) or sum(runs) != height * width:
        raise ValueError(f"runs of {sum(runs)} pixels in an image of {height} x {width}")
    flat = np.zeros(height * width, bool)
    ends = list(accumulate(runs))
    for start, stop in zip(ends[::2], ends[1::2], strict=False):
        flat[start:stop] = True
    return np.asarray(flat.reshape(width, height).T)


def runs_of_text(text: str) -> list[int]:
    """Unpack run lengths.

    Each character holds 6 bits, counted from ``0``: five of the number, the lowest first, and one that says that more
    follow. The highest of the last five is the sign. From the fourth number on, each is the difference to the run two
    before it.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{letter!r} is no letter of packed run lengths")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("packed run lengths end in the middle of a number")
    return runs


Array = np.ndarray[Any, np.dtype[Any]]
KINDS = ("mask", "boxes", "parts")

_ORIENTATION = 0x0112


@dataclass(frozen=True, eq=False)
class Annotation:
    """What is known about one picture, in the pixels that the model sees.

    ``mask`` ``[H, W]`` is true on the object, ``boxes`` are (left, top, right, bottom), ``parts`` are masks by name,
    ``ignore`` ``[H, W]`` is true where nobody knows: such pixels count for nothing. ``Annotation.of_photo``,
    ``of_trimap`` and ``of_parts`` take the same in the pixels of the photograph, and follow its way into the model.
    """

    mask: Array | None = None
    boxes: tuple[Box, ...] = ()
    parts: Mapping[str, Array] = field(default_factory=dict)
    ignore: Array | None = None

    @classmethod
    def of_photo(
        cls,
        picture: LoadedImage,
        mask: Any = None,
        boxes: Iterable[Box] | None = None,
        parts: Mapping[str, Any] | None = None,
        ignore: Any = None,
    ) -> Annotation:
        """Take what is known in the pixels of the photograph; what the crop leaves out is gone.

        Boxes that are all left out leave an empty mask: it is known that nothing is there.
        """
        given = None if boxes is None else [_box(box, picture.name) for box in boxes]
        kept = _boxes_seen(picture, given or ())
        seen = None if mask is None else _seen(picture, mask, "mask").astype(bool)
        if seen is None and given is not None and not kept:
            seen = np.zeros(picture.tensor.shape[-2:], bool)
        return cls(
            seen,
            kept,
            {name: _seen(picture, array, name).astype(bool) for name, array in (parts or {}).items()},
            None if ignore is None else _seen(picture, ignore, "ignore").astype(bool),
        )

    @classmethod
    def of_trimap(cls, picture: LoadedImage, trimap: Any, inside: int = 1, outside: int = 2) -> Annotation:
        """Take a map of whole numbers in the pixels of the photograph: inside, outside, and all else ignored."""
        if inside == outside:
            raise ImageError(f"the trimap of {picture.name} has {inside} both inside and outside")
        numbers = _seen(picture, _whole(trimap, f"the trimap of {picture.name}"), "trimap", outside)
        return cls(numbers == inside, ignore=(numbers != inside) & (numbers != outside))

    @classmethod
    def of_parts(
        cls, picture: LoadedImage, numbers: Any, names: Mapping[str, int], ignore: int | None = None
    ) -> Annotation:
        """Take a map of whole numbers in the pixels of the photograph, and which number is which part."""
        if not names:
            raise ImageError(f"the parts of {picture.name} have no names: give {{name: number}}")
        seen = _seen(picture, _whole(numbers, f"the part map of {picture.name}"), "part map")
        if ignore is not None and ignore in names.values():
            raise ImageError(f"the part map of {picture.name} has {ignore} both as a part and as what to ignore")
        parts = {name: seen == number for name, number in names.items()}
        return cls(parts=parts, ignore=None if ignore is None else seen == ignore)

    def has(self, kind: str) -> bool:
        """Whether this kind of knowledge is there; a ``region`` can be had of any kind."""
        if kind == "region":
            return any(self.has(each) for each in KINDS)
        return self.mask is not None if kind == "mask" else bool(getattr(self, kind))

    def region(self, kind: str = "any", size: tuple[int, int] | None = None) -> Array:
        """Return where the object is, ``[H, W]``: the mask, else all boxes together, else all parts together.

        ``kind`` asks for one of these. A pixel is in a box if its centre is. ``size`` is needed where boxes are all
        that is known.
        """
        check_choice("kind", kind, ("any", *KINDS))
        there = [each for each in KINDS if self.has(each) and kind in ("any", each)]
        if not there:
            raise ImageError("there is no region: no mask, boxes or parts are known" if kind == "any" else f"no {kind}")
        if there[0] == "mask":
            return np.asarray(self.mask, bool)
        if there[0] == "parts":
            return np.asarray(np.any([np.asarray(part, bool) for part in self.parts.values()], axis=0))
        known = [each for each in (self.mask, self.ignore, *self.parts.values()) if each is not None]
        if size is None and not known:
            raise ImageError("a region of boxes has no size of its own: give size=(height, width)")
        height, width = size or known[0].shape
        rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
        inside = np.zeros((height, width), bool)
        for left, top, right, bottom in self.boxes:
            inside |= ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
        return inside

    def check(self, name: str, size: tuple[int, int]) -> None:
        """Refuse masks that are not on the pixels of the input, and boxes that are none."""
        masks = {"mask": self.mask, "ignore": self.ignore}
        for what, array in {**{k: v for k, v in masks.items() if v is not None}, **self.parts}.items():
            if np.shape(array) != size:
                raise ImageError(
                    f"the {what} of {name} is {list(np.shape(array))}, the model sees {list(size)}; see Truth.of_photo"
                )
        for box in self.boxes:
            _box(box, name)


def photo_size(picture: LoadedImage) -> tuple[int, int]:
    """Return width and height of the photograph that a picture was cut from, held upright."""
    if picture.original is not None:
        return picture.original.size
    if picture.path is None:
        raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
    with disk.open_file(picture.path) as file, Image.open(file) as opened:
        width, height = opened.size
        return (height, width) if opened.getexif().get(_ORIENTATION, 1) >= 5 else (width, height)


def _seen(picture: LoadedImage, array: Any, what: str, beyond: Any = 0) -> Array:
    """Return an array of the photograph's pixels at those that the model sees, each from the nearest one."""
    if picture.box is None:
        raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
    values, (width, height) = np.asarray(array), photo_size(picture)
    if values.shape != (height, width):
        raise ImageError(f"the {what} of {picture.name} is {list(values.shape)}, the photograph is [{height}, {width}]")
    left, top, right, bottom = picture.box
    rows, columns = (
        np.floor(start + (np.arange(length) + 0.5) * (stop - start) / length).astype(int)
        for start, stop, length in zip((top, left), (bottom, right), picture.tensor.shape[-2:], strict=True)
    )
    there = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))
    cut = values[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    return np.where(there, cut, np.asarray(beyond, values.dtype))


def _boxes_seen(picture: LoadedImage, boxes: Iterable[Box]) -> tuple[Box, ...]:
    if picture.box is None:
        raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
    height, width = picture.tensor.shape[-2:]
    left, top, right, bottom = picture.box
    across, down = width / (right - left), height / (bottom - top)
    moved = [((a - left) * across, (b - top) * down, (c - left) * across, (d - top) * down) for a, b, c, d in boxes]
    cut = [(max(0.0, a), max(0.0, b), min(float(width), c), min(float(height), d)) for a, b, c, d in moved]
    return tuple(box for box in cut if box[0] < box[2] and box[1] < box[3])


def _box(given: Any, name: str) -> Box:
    """Refuse what is no box."""
    try:
        left, top, right, bottom = (float(each) for each in given)
        sound = bool(np.isfinite([left, top, right, bottom]).all()) and left <= right and top <= bottom
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ImageError(f"a box of {name} is {given!r:.60}; it must be (left, top, right, bottom)")
    return left, top, right, bottom


def _whole(given: Any, what: str) -> Array:
    numbers = np.asarray(given)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise ImageError(f"{what} holds {numbers.dtype}, not whole numbers")
    return numbers


def as_truth(given: Any, picture: LoadedImage) -> Annotation | None:
    """Understand what a user knows about a picture: a truth, a mask, or a function of the picture that gives one."""
    known = given(picture) if callable(given) else given
    if known is None or isinstance(known, Annotation):
        truth = known
    else:
        mask = np.asarray(known)
        if mask.ndim != 2:
            raise ImageError(f"what is known about {picture.name} is {list(mask.shape)}; a mask is [H, W]")
        truth = Annotation(mask.astype(bool))
    if truth is not None:
        truth.check(picture.name, (picture.tensor.shape[-2], picture.tensor.shape[-1]))
    return truth


_MASKS = {".bmp", ".gif", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of masks; a JPEG would blur their edges."""
_TRIMAP = {1, 2, 3}
_MOST_BYTES = 2**28

Regions = Callable[[LoadedImage], Annotation]


def load_annotations(path: str | Path, *, trimap: bool | None = None, ignore: int | None = None) -> Regions:
    """Return a function of the picture that gives its ``Annotation``: what ``evaluate(truth=…)`` takes.

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

    def known(picture: LoadedImage) -> Annotation:
        row = rows.get(picture.name) or rows.get(Path(picture.name).stem)
        if row is None:
            raise ImageError(f"{path} has no region for {picture.name}")
        if "mask" not in row:
            width, height = photo_size(picture) if shares else (1, 1)
            return Annotation.of_photo(
                picture, boxes=[(a * width, b * height, c * width, d * height) for a, b, c, d in row["boxes"]]
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


def _named_like(by_stem: Mapping[str, list[Path]], picture: LoadedImage, folder: Path) -> Path:
    own = None if picture.path is None else picture.path.resolve()
    found = [each for each in by_stem.get(Path(picture.name).stem, ()) if each.resolve() != own]
    if len(found) != 1:
        said = f"{' and '.join(each.name for each in found)} both are" if found else "none is"
        raise ImageError(f"of the masks in {folder}, {said} named like {picture.name}")
    return found[0]


def _place(table: Path, picture: LoadedImage, name: str) -> Path:
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


def _of_mask(picture: LoadedImage, place: Path, trimap: bool | None, ignore: int | None) -> Annotation:
    numbers = _numbers(place)
    if trimap is None:
        there = set(np.unique(numbers).tolist())
        trimap = ignore is None and len(there) > 1 and there <= _TRIMAP
    if trimap:
        return Annotation.of_trimap(picture, numbers)
    unsure = None if ignore is None else numbers == ignore
    inside = (numbers != 0) & (numbers != ignore)
    return Annotation.of_photo(picture, inside, ignore=unsure)


def _of_scene(picture: LoadedImage, place: Path, owners: Mapping[str, int]) -> Annotation:
    """The creature and its parts, and nothing of the ground, the objects, the marker or a companion."""
    others = ("ground", "object", "marker", "companion")
    own = {name: number for name, number in owners.items() if not name.startswith(others)}
    numbers = _numbers(place)
    parts = {name: numbers == number for name, number in own.items()}
    return Annotation.of_photo(picture, np.isin(numbers, list(own.values())), parts=parts)


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
    for entry in entries:
        name = entry.get("file") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not _is_sound(entry):
            raise ImageError(f"regions {path} has {entry!r:.80}; it must name a file and its boxes or its mask")
        rows[name] = rows[Path(name).name] = entry
        rows.setdefault(Path(name).stem, entry)
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
