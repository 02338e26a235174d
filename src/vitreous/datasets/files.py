"""Images and annotations in folders and tables: bare and class folders, masks, CSV and JSON files, and the pets."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import io as disk
from vitreous.datasets.annotations import Annotation, mask_annotation, read_mask
from vitreous.datasets.catalog import Listing, register_source
from vitreous.datasets.class_tables import index_of_wnid
from vitreous.datasets.dataset import Entry
from vitreous.datasets.images import LoadedImage, is_image_name, scene_masks
from vitreous.errors import ImageError, one_line, reason
from vitreous.models import Box

_MAX_BYTES = 2**31
_MASK_SUFFIXES = {".bmp", ".gif", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
"""Endings of masks; a JPEG would blur their edges."""


# -- looking into folders ----------------------------------------------------------------------------------


def misfit(source: str, expected: str, actual: str, path: Path) -> ImageError:
    """Say in one line that a layout does not fit: what was expected, what was found, for which source."""
    return ImageError(f"{source}: {one_line(str(path))} should hold {expected}, but {actual}")


def check_folder(source: str, path: Path, expected: str) -> Path:
    """Return a folder that is there."""
    if not os.path.isdir(path):
        raise misfit(source, expected, "it is a file" if os.path.exists(path) else "there is no such folder", path)
    return path


def first_existing(*paths: Path) -> Path | None:
    """Return the first of some files or folders that is there."""
    return next((path for path in paths if os.path.exists(path)), None)


def images_in(folder: Path) -> list[Path]:
    """Return the images of one folder in the order of their names; links that lead nowhere are among them."""
    masks = scene_masks(folder)
    return [
        path
        for path, is_dir in _contents(folder)
        if not is_dir and is_image_name(path.name) and not path.name.startswith(".") and path.name not in masks
    ]


def images_below(folder: Path) -> list[Path]:
    """Return the images of a folder and of those inside it, a folder that is linked twice only once."""
    return list(_walk(folder, {os.path.realpath(folder)}))


def _walk(folder: Path, visited: set[str]) -> Iterator[Path]:
    yield from images_in(folder)
    for inner in folders_in(folder):
        real = os.path.realpath(inner)
        if real not in visited:
            visited.add(real)
            yield from _walk(inner, visited)


def folders_in(folder: Path) -> list[Path]:
    """Return the folders inside one, in the order of their names."""
    return [path for path, is_dir in _contents(folder) if is_dir and not path.name.startswith(".")]


def describe(folder: Path) -> str:
    """Say in a few words what is in a folder."""
    contents = _contents(folder)
    if not contents:
        return "it is empty"
    first = ", ".join(one_line(path.name) + "/" * is_dir for path, is_dir in contents[:3])
    return f"it holds {first}" + (f" and {len(contents) - 3} more" if len(contents) > 3 else "")


def _contents(folder: Path) -> list[tuple[Path, bool]]:
    """Return what is in a folder by name, and whether it is a folder: one question to the disk, not one for each."""
    try:
        with os.scandir(folder) as entries:
            return [
                (folder / name, is_dir) for name, is_dir in sorted((entry.name, _is_dir(entry)) for entry in entries)
            ]
    except OSError as error:
        raise ImageError(f"the folder {folder} cannot be read: {reason(error)}") from None


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reported when it is opened
        return False


def read_json(source: str, path: Path) -> Any:
    """Return what a JSON file holds."""
    return disk.read_json(path, _MAX_BYTES, what=f"{source}: ", error=ImageError)


def read_lines(source: str, path: Path) -> list[str]:
    """Return the lines of a text file."""
    return disk.read_text(path, _MAX_BYTES, what=f"{source}: ", error=ImageError).splitlines()


# -- folders as sources ------------------------------------------------------------------------------------


@register_source("folder")
def folder(path: Path) -> Listing:
    """Images of one folder, without labels."""
    files = images_in(check_folder("folder", path, "images"))
    if not files:
        inside = next((inner for inner in folders_in(path) if images_below(inner)), None)
        hint = f"they are in folders inside it such as {one_line(inside.name)}; use imagefolder" if inside else None
        raise misfit("folder", "images", hint or describe(path), path)
    return Listing([Entry(file.name, file) for file in files])


@register_source("imagefolder")
def imagefolder(path: Path) -> Listing:
    """One folder for each class; its name is the label, a WordNet id or an index."""
    entries = [
        Entry(file.relative_to(path).as_posix(), file, label=inner.name)
        for inner, files in class_folders("imagefolder", path, "one folder of images for each class")
        for file in files
    ]
    names = tuple(inner.name for inner in folders_in(path))  # an empty one has its place in the order too
    wnids = sum(index_of_wnid(name) is not None for name in names)
    note = f"labels are {len(names)} folders" + (f", {wnids} of ImageNet" if wnids else "")
    return Listing(entries, names=names, note=note)


def class_folders(source: str, path: Path, expected: str) -> list[tuple[Path, list[Path]]]:
    """Return the folders that hold images, and these."""
    folders = [(inner, images_below(inner)) for inner in folders_in(check_folder(source, path, expected))]
    if not any(files for _, files in folders):
        raise misfit(source, expected, describe(path), path)
    return [(inner, files) for inner, files in folders if files]


@register_source("masks")
def images_with_masks(path: Path) -> Listing:
    """Images with a mask each: ``images/`` and ``masks/`` with equal names, or one beside the other.

    Beside ``x.jpg`` that is ``x.png``, ``x_mask.png``, ``x-mask.png`` or ``x.mask.png``.
    """
    expected = "images with a mask each: images/ and masks/, or x.jpg beside x.png or x_mask.png"
    check_folder("masks", path, expected)
    if os.path.isdir(path / "images") and os.path.isdir(path / "masks"):
        images, by_stem = images_in(path / "images"), _by_stem(images_in(path / "masks"))
    else:
        images = images_in(path)
        by_stem = _by_stem([file for file in images if file.suffix.lower() in _MASK_SUFFIXES])
    masks = {image: _mask_of(image, by_stem) for image in images}
    taken = set(masks.values())
    entries = [Entry(image.name, image, mask=mask) for image, mask in masks.items() if image not in taken]
    unmasked = [entry.name for entry in entries if entry.mask is None]
    if unmasked:
        others = f", nor have {len(unmasked) - 1} others" if len(unmasked) > 1 else ""
        raise misfit("masks", expected, f"{one_line(unmasked[0])} has none{others}", path)
    if not entries:
        raise misfit("masks", expected, describe(path), path)
    return Listing(entries)


def _by_stem(paths: Sequence[Path]) -> dict[str, list[Path]]:
    by_stem: dict[str, list[Path]] = {}
    for path in paths:
        by_stem.setdefault(path.stem, []).append(path)
    return by_stem


def _mask_of(image: Path, by_stem: Mapping[str, list[Path]]) -> Path | None:
    for ending in ("", "_mask", "-mask", ".mask"):
        masks = [mask for mask in by_stem.get(image.stem + ending, ()) if mask != image]
        if len(masks) > 1:
            names = " and ".join(one_line(mask.name) for mask in masks)
            expected = f"one mask for {one_line(image.name)}"
            raise misfit("masks", expected, f"{names} are both named like it", image.parent)
        if masks:
            return masks[0]
    return None


# -- tables ------------------------------------------------------------------------------------------------

_UNITS = ("pixels", "fractions")
_COLUMNS = "file, and of label, boxes, unit, mask, group what there is"


@register_source("csv")
def csv_table(path: Path) -> Listing:
    """A CSV file with columns file, label, boxes, unit, mask, group; only file is needed."""
    text = disk.read_text(_check_file("csv", path, "a CSV file"), _MAX_BYTES, what="csv: ", error=ImageError)
    try:
        lines = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
        rows = [{key: cell for key, cell in row.items() if key is not None and cell not in (None, "")} for row in lines]
    except (ValueError, csv.Error) as error:
        raise ImageError(f"csv: {path} cannot be read: {reason(error)}") from None
    columns = list(lines.fieldnames or ())
    if "file" not in columns:
        actual = f"its columns are {', '.join(map(one_line, columns[:6]))}" if columns else "it is empty"
        raise misfit("csv", f"columns {_COLUMNS}", actual, path)
    return _table_listing(path, _table_entries("csv", path, [{**row, **_parse_cells(row, path)} for row in rows]))


def _parse_cells(row: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Read the cells of a CSV file: numbers are numbers, boxes a JSON list or four numbers with ; between boxes."""
    cells: dict[str, Any] = {}
    for name in ("label", "group"):
        if row.get(name, "").strip().lstrip("-").isdecimal():
            cells[name] = int(row[name])
    text = row.get("boxes")
    if text is None:
        return cells
    if not text.lstrip().startswith("["):
        return {**cells, "boxes": [part.split() for part in text.split(";") if part.strip()]}
    try:
        boxes = json.loads(text)
    except (ValueError, RecursionError):
        actual = f"those of {one_line(row.get('file', '?'))} are {text!r:.60}"
        raise misfit("csv", "boxes as 'left top right bottom; …' or a JSON list", actual, path) from None
    return {**cells, "boxes": [boxes] if boxes and not isinstance(boxes[0], list) else boxes}


@register_source("json")
def json_table(path: Path) -> Listing:
    """A JSON list of {file, label, boxes, unit, mask, group}, or {"unit": …, "images": that list}."""
    return read_table("json", _check_file("json", path, "a JSON file"))


@register_source("pets")
def pets(path: Path) -> Listing:
    """A folder of pets and their trimaps with a table of the folder's name beside it: 1 animal, 2 ground, 3 border."""
    table = path if path.suffix.lower() == ".json" else table_beside(path)
    if table is None or not os.path.isfile(table):
        actual = describe(path.parent) if os.path.isdir(path.parent) else "there is no such folder"
        raise misfit("pets", f"images, trimaps and, beside it, {path.name}.json", actual, path)
    listing = read_table("pets", table)
    entries = []
    for entry in listing.entries:
        if entry.mask is None or entry.label is None:
            raise misfit("pets", "a trimap and a label for every image", f"{one_line(entry.name)} lacks one", table)
        entries.append(replace(entry, annotate=partial(mask_annotation, path=entry.mask, trimap=True)))
    return replace(listing, entries=entries)


def table_beside(folder: Path) -> Path | None:
    """Return the JSON file that is named like a folder, beside it or in it."""
    return first_existing(folder.parent / f"{folder.name}.json", folder / f"{folder.name}.json")


def _check_file(source: str, path: Path, expected: str) -> Path:
    if not os.path.isfile(path):
        raise misfit(source, expected, "it is a folder" if os.path.isdir(path) else "there is no such file", path)
    return path


def read_table(source: str, path: Path) -> Listing:
    """Return the images of a JSON table."""
    table = read_json(source, path)
    rows = table.get("images") if isinstance(table, dict) else table
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise misfit(source, f"a list of tables with {_COLUMNS}", f"it is {table!r:.60}", path)
    if isinstance(table, dict) and table.get("unit") is not None:
        rows = [{"unit": table["unit"], **row} for row in rows]
    return _table_listing(path, _table_entries(source, path, rows))


def _table_listing(path: Path, entries: Sequence[Entry]) -> Listing:
    names = sorted({entry.label for entry in entries if isinstance(entry.label, str)})
    entries = [replace(entry, boxes=entry.boxes or None) for entry in entries]
    return Listing(entries, names=tuple(names), note=f"labels and regions of {path.name}")


def _table_entries(source: str, path: Path, rows: Sequence[Any]) -> list[Entry]:
    """Boxes whose unit nobody states are fractions if no number of the whole table is above 1, else pixels."""
    if not rows:
        raise misfit(source, "a line for each image", "there is none", path)
    entries: dict[str, Entry] = {}
    for row in rows:
        _check_row(source, row, path)
        if row["file"] in entries:
            raise misfit(source, "every image once", f"{one_line(row['file'])} is there twice", path)
        entries[row["file"]] = Entry(
            row["file"],
            _beside_table(path, row["file"]),
            label=row.get("label"),
            boxes=_check_boxes(source, row, path),
            mask=_beside_table(path, str(row["mask"])) if row.get("mask") else None,
            group=row.get("group"),
        )
    boxes = chain.from_iterable(entry.boxes or () for entry in entries.values())
    unit = "fractions" if max(chain.from_iterable(boxes), default=0) <= 1 else "pixels"
    is_relative = [row.get("unit", unit) == "fractions" for row in rows]
    return [replace(entry, is_relative=own) for entry, own in zip(entries.values(), is_relative, strict=True)]


def _beside_table(path: Path, name: str) -> Path:
    """Return where a file of a table is: beside the table, or in a folder named like it."""
    return first_existing(path.parent / name, path.with_suffix("") / name) or path.parent / name


def _check_row(source: str, row: Any, path: Path) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("file"), str):
        raise misfit(source, f"a list of tables with {_COLUMNS}", f"one is {row!r:.80}", path)
    checks: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
        ("unit", "a unit of pixels or fractions", lambda unit: unit in _UNITS),
        ("group", "whole numbers as groups", lambda group: type(group) is int),
        ("label", "a class index or a word as label", lambda label: isinstance(label, str) or type(label) is int),
    )
    for key, expected, is_valid in checks:
        if row.get(key) is not None and not is_valid(row[key]):
            raise misfit(source, expected, f"that of {one_line(row['file'])} is {row[key]!r:.40}", path)


def _check_boxes(source: str, row: Mapping[str, Any], path: Path) -> tuple[Box, ...] | None:
    if row.get("boxes") is None:
        return None
    try:
        boxes = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in row["boxes"])
        is_valid = all(math.isfinite(sum(box)) and box[0] <= box[2] and box[1] <= box[3] for box in boxes)
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        actual = f"those of {one_line(row['file'])} are {row['boxes']!r:.60}"
        raise misfit(source, "boxes as (left, top, right, bottom)", actual, path)
    return boxes


# -- annotations -------------------------------------------------------------------------------------------

Annotate = Callable[[LoadedImage], Annotation]


def load_annotations(
    path: str | Path, *, trimap: bool | None = None, ignore: int | None = None
) -> Callable[[LoadedImage], Annotation]:
    """Read where objects are, from a folder of masks or a JSON file.

    Parameters
    ----------
    path : str or Path
        A folder of masks that are named like the images, or a JSON file: ``{file: boxes}``, a list of
        ``{"file": …, "boxes": …}`` or ``{"file": …, "mask": …}``, or a ``scenes.json``. Boxes are (left, top, right,
        bottom): pixels of the photograph, or fractions of its width and height where no number of the file is above 1.
        In a mask everything but zero is inside; colours are numbers, red + 256 green + 65536 blue.
    trimap : bool, optional
        Whether masks have 1 inside, 2 outside and 3 where nobody knows. By default a mask is read so if its numbers are
        several of 1, 2 and 3 and no others, since all of it would be inside.
    ignore : int, optional
        The number of pixels in masks that count for nothing.

    Returns
    -------
    callable
        A function of the image that returns its ``Annotation``: what ``evaluate(annotations=…)`` takes.

    Raises
    ------
    ImageError
        If the file or a mask cannot be read, or does not know the image.

    Examples
    --------
    >>> _ = (tmp_path / "boxes.json").write_text('{"input-0": [[0, 0, 0.5, 1]]}')
    >>> annotations = vt.load_annotations(tmp_path / "boxes.json")
    """
    path = Path(path)
    return _masks_in(path, trimap, ignore) if os.path.isdir(path) else _rows_of(path, trimap, ignore)


def _masks_in(folder: Path, trimap: bool | None, ignore: int | None) -> Annotate:
    by_stem = _by_stem([file for file, _ in _contents(folder) if file.suffix.lower() in _MASK_SUFFIXES])
    if not by_stem:
        raise ImageError(f"no masks in the folder {folder}: they are images named like the others, and no JPEGs")
    return lambda image: mask_annotation(image, _mask_named_like(image, by_stem, folder), trimap, ignore)


def _rows_of(path: Path, trimap: bool | None, ignore: int | None) -> Annotate:
    segments, by_name = _read_annotations(path)

    def annotate(image: LoadedImage) -> Annotation:
        entry = by_name.get(image.name) or by_name.get(Path(image.name).stem)
        if entry is None or (entry.mask is None and entry.boxes is None):
            raise ImageError(f"{path} has no annotation of {image.name}")
        if entry.mask is None:
            return entry.box_annotation(image)
        name = entry.mask.relative_to(path.parent)
        mask = next(filter(os.path.isfile, (entry.mask, (image.path or path).parent / name)), None)
        if mask is None:
            raise ImageError(f"the mask {name} of {image.name} is neither beside {path} nor beside the image")
        return _scene_annotation(image, mask, segments) if segments else mask_annotation(image, mask, trimap, ignore)

    return annotate


def _read_annotations(path: Path) -> tuple[Mapping[str, int], dict[str, Entry]]:
    """Return the segments of scenes, none for other files, and entries by name and by name without folder or ending."""
    table = read_json("annotations", path)
    segments: Mapping[str, int] = {}
    if isinstance(table, dict) and isinstance(table.get("scenes"), list):
        segments, table = table.get("owners", {}), table["scenes"]
    elif isinstance(table, dict):
        table = [{"file": name, **_annotation_row(value)} for name, value in table.items()]
    by_name: dict[str, Entry] = {}
    for entry in _table_entries("annotations", path, table if isinstance(table, list) else []):
        by_name[entry.name] = by_name[Path(entry.name).name] = entry
        by_name.setdefault(Path(entry.name).stem, entry)
    return segments, by_name


def _annotation_row(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {"mask": value} if isinstance(value, str) else {"boxes": value}


def _mask_named_like(image: LoadedImage, by_stem: Mapping[str, list[Path]], folder: Path) -> Path:
    own = None if image.path is None else image.path.resolve()
    masks = [mask for mask in by_stem.get(Path(image.name).stem, ()) if mask.resolve() != own]
    if len(masks) != 1:
        actual = f"{' and '.join(mask.name for mask in masks)} both are" if masks else "none is"
        raise ImageError(f"of the masks in {folder}, {actual} named like {image.name}")
    return masks[0]


def _scene_annotation(image: LoadedImage, mask: Path, segments: Mapping[str, int]) -> Annotation:
    """The creature and its parts, and nothing of the ground, the objects, the marker or a companion."""
    others = ("ground", "object", "marker", "companion")
    own = {name: number for name, number in segments.items() if not name.startswith(others)}
    numbers = read_mask(mask)
    parts = {name: numbers == number for name, number in own.items()}
    return Annotation.of_photo(image, np.isin(numbers, list(own.values())), parts=parts)
