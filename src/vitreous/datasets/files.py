"""Looking into folders: which files are pictures, which folders there are, and how to say that a layout is another.

Folders of pictures: bare ones, class folders, and pictures with masks beside them.

Tables of pictures: CSV and JSON files with labels, boxes and masks, and the pets that come as one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.datasets.annotations import Annotation, _of_mask
from vitreous.datasets.class_tables import Label, index_of_wnid
from vitreous.datasets.dataset import Entry, Found, source_kind
from vitreous.datasets.images import _SUFFIXES, LoadedImage, scene_masks
from vitreous.errors import ImageError, one_line
from vitreous.models import Box

__all__ = [
    "class_folders",
    "first_there",
    "folder_at",
    "folders",
    "is_picture",
    "misfit",
    "pictures_below",
    "pictures_in",
    "read_json",
    "table_beside",
]

_MOST_BYTES = 2**31


def misfit(word: str, expected: str, found: str, path: Path) -> ImageError:
    """Say in one line that a layout does not fit: what was expected, what was found, for which word."""
    return ImageError(f"{word}: {one_line(str(path))} should hold {expected}, but {found}")


def folder_at(word: str, path: Path, expected: str) -> Path:
    """Return a folder that is there."""
    if not os.path.isdir(path):
        raise misfit(word, expected, "it is a file" if os.path.exists(path) else "there is no such folder", path)
    return path


def first_there(*places: Path) -> Path | None:
    """Return the first of some files or folders that is there."""
    return next((position for position in places if os.path.exists(position)), None)


def is_picture(name: str) -> bool:
    """Whether a file is a picture by its ending; names that begin with a dot are none."""
    return not name.startswith(".") and Path(name).suffix.lower() in _SUFFIXES


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of one folder in the order of their names; links that lead nowhere are among them."""
    others = scene_masks(folder)
    return [
        path for path, is_dir in _inside(folder) if not is_dir and is_picture(path.name) and path.name not in others
    ]


def pictures_below(folder: Path) -> list[Path]:
    """Return the pictures of a folder and of those inside it, a folder that is linked twice only once."""
    return list(_walk(folder, {os.path.realpath(folder)}))


def folders(folder: Path) -> list[Path]:
    """Return the folders inside one, in the order of their names."""
    return [path for path, is_dir in _inside(folder) if is_dir and not path.name.startswith(".")]


def content(folder: Path) -> str:
    """Say in a few words what is in a folder."""
    inside = _inside(folder)
    if not inside:
        return "it is empty"
    some = ", ".join(one_line(path.name) + "/" * is_dir for path, is_dir in inside[:3])
    return f"it holds {some}" + (f" and {len(inside) - 3} more" if len(inside) > 3 else "")


def read_json(word: str, path: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads(disk.read_file(path, _MOST_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise ImageError(f"{word}: {path} cannot be read: {one_line(error.strerror or str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{word}: {path} is no JSON: {one_line(str(error))[:200]}") from None


def read_lines(word: str, path: Path) -> list[str]:
    """Return the lines of a text file."""
    try:
        return disk.read_file(path, _MOST_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{word}: {path} cannot be read: {one_line(said)}") from None


def _inside(folder: Path) -> list[tuple[Path, bool]]:
    """Return what is in a folder by name, and whether it is a folder: one question to the disk, not one for each."""
    try:
        with os.scandir(folder) as inside:
            found = sorted((each.name, _is_dir(each)) for each in inside)
        return [(folder / name, is_dir) for name, is_dir in found]
    except OSError as error:
        raise ImageError(f"the folder {folder} cannot be read: {one_line(error.strerror or str(error))}") from None


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: told when it is opened
        return False


def _walk(folder: Path, seen: set[str]) -> Iterator[Path]:
    yield from pictures_in(folder)
    for each in folders(folder):
        real = os.path.realpath(each)
        if real not in seen:
            seen.add(real)
            yield from _walk(each, seen)


_MASK_ENDS = ("", "_mask", "-mask", ".mask")


@source_kind("folder")
def folder(path: Path) -> Found:
    """Pictures of one folder, without labels."""
    expected = "pictures"
    files = pictures_in(folder_at("folder", path, expected))
    if not files:
        inside = next((each for each in folders(path) if pictures_below(each)), None)
        hint = f"they are in folders inside it such as {one_line(inside.name)}; use imagefolder" if inside else None
        raise misfit("folder", expected, hint or content(path), path)
    return Found([Entry(file.name, file) for file in files])


@source_kind("imagefolder")
def imagefolder(path: Path) -> Found:
    """One folder for each class; its name is the label, a WordNet id or an index."""
    found = class_folders("imagefolder", path, "one folder of pictures for each class")
    names = tuple(each.name for each in folders(path))  # an empty one has its place in the order too
    entries = [
        Entry(file.relative_to(path).as_posix(), file, label=inside.name) for inside, files in found for file in files
    ]
    known = sum(index_of_wnid(name) is not None for name in names)
    return Found(
        entries, names=names, note=f"labels are {len(names)} folders" + (f", {known} of ImageNet" * bool(known))
    )


def class_folders(word: str, path: Path, expected: str) -> list[tuple[Path, list[Path]]]:
    """Return the folders that hold pictures, and these."""
    inside = folders(folder_at(word, path, expected))
    found = [(each, pictures_below(each)) for each in inside]
    if not any(files for _, files in found):
        raise misfit(word, expected, content(path), path)
    return [(each, files) for each, files in found if files]


@source_kind("masks")
def images_with_masks(path: Path) -> Found:
    """Pictures with a mask each: ``images/`` and ``masks/`` with equal names, or one beside the other.

    Beside ``x.jpg`` that is ``x.png``, ``x_mask.png``, ``x-mask.png`` or ``x.mask.png``.
    """
    expected = "pictures with a mask each: images/ and masks/, or x.jpg beside x.png or x_mask.png"
    folder_at("masks", path, expected)
    apart = os.path.isdir(path / "images") and os.path.isdir(path / "masks")
    shown = pictures_in(path / "images" if apart else path)
    stems: dict[str, list[Path]] = {}
    for each in pictures_in(path / "masks") if apart else shown:
        if apart or each.suffix.lower() not in (".jpg", ".jpeg"):
            stems.setdefault(each.stem, []).append(each)
    found = {each: _mask_of(each, stems) for each in shown}
    taken = {mask for mask in found.values() if mask is not None}
    bare = [each for each, mask in found.items() if mask is None and each not in taken]
    if bare:
        what = f"{one_line(bare[0].name)} has none" + (f", nor have {len(bare) - 1} others" if len(bare) > 1 else "")
        raise misfit("masks", expected, what, path)
    pairs = [(each, mask) for each, mask in found.items() if mask is not None and each not in taken]
    if not pairs:
        raise misfit("masks", expected, content(path), path)
    return Found([Entry(each.name, each, mask=mask) for each, mask in pairs])


def _mask_of(picture: Path, stems: dict[str, list[Path]]) -> Path | None:
    for end in _MASK_ENDS:
        found = [each for each in stems.get(picture.stem + end, ()) if each != picture]
        if len(found) > 1:
            names = " and ".join(one_line(each.name) for each in found)
            raise misfit(
                "masks", f"one mask for {one_line(picture.name)}", f"{names} are both named like it", picture.parent
            )
        if found:
            return found[0]
    return None


_UNITS = ("pixels", "fractions")
_COLUMNS = "file, and of label, boxes, unit, mask, group what there is"


@source_kind("csv")
def of_csv(path: Path) -> Found:
    """A CSV file with columns file, label, boxes, unit, mask, group; only file is needed."""
    table = _file("csv", path, "a CSV file")
    try:
        text = disk.read_file(table, _MOST_BYTES).decode("utf-8-sig")
        lines = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
        rows = [{k: v for k, v in row.items() if k is not None and v not in (None, "")} for row in lines]
        columns = list(lines.fieldnames or ())
    except (OSError, ValueError, csv.Error) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"csv: {path} cannot be read: {one_line(said)}") from None
    if "file" not in columns:
        held = f"its columns are {', '.join(map(one_line, columns[:6]))}" if columns else "it is empty"
        raise misfit("csv", f"columns {_COLUMNS}", held, path)
    return _found("csv", table, [{**row, **_parsed(row, table)} for row in rows])


@source_kind("json")
def of_json(path: Path) -> Found:
    """A JSON list of {file, label, boxes, unit, mask, group}, or {"unit": …, "images": that list}."""
    return _of_json("json", _file("json", path, "a JSON file"))


@source_kind("pets")
def pets(path: Path) -> Found:
    """A folder of pets and their trimaps with a table of the folder's name beside it: 1 animal, 2 ground, 3 border."""
    table = path if path.suffix.lower() == ".json" else table_beside(path)
    if table is None or not os.path.isfile(table):
        where = content(path.parent) if os.path.isdir(path.parent) else "there is no such folder"
        raise misfit("pets", f"pictures, trimaps and, beside it, {path.name}.json", where, path)
    found = _of_json("pets", table)
    bare = next((entry for entry in found.entries if entry.mask is None or entry.label is None), None)
    if bare is not None:
        raise misfit("pets", "a trimap and a label for every picture", f"{one_line(bare.name)} lacks one", table)
    entries = [replace(entry, known=partial(_trimap, entry.mask)) for entry in found.entries if entry.mask is not None]
    return replace(found, entries=entries)


def table_beside(folder: Path) -> Path | None:
    """Return the JSON file that is named like a folder, beside it or in it."""
    return first_there(folder.parent / f"{folder.name}.json", folder / f"{folder.name}.json")


def _trimap(mask: Path, picture: LoadedImage) -> Annotation:
    return _of_mask(picture, mask, True, None)


def _file(word: str, path: Path, expected: str) -> Path:
    if not os.path.isfile(path):
        raise misfit(word, expected, "it is a folder" if os.path.isdir(path) else "there is no such file", path)
    return path


def _of_json(word: str, table: Path) -> Found:
    told = read_json(word, table)
    unit = told.get("unit") if isinstance(told, dict) else None
    rows = told.get("images") if isinstance(told, dict) else told
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("file"), str) for row in rows
    ):
        raise misfit(word, f"a list of tables with {_COLUMNS}", f"it is {told!r:.60}", table)
    return _found(word, table, rows if unit is None else [{"unit": unit, **row} for row in rows])


def _found(word: str, table: Path, rows: Sequence[Mapping[str, Any]]) -> Found:
    """Boxes whose unit nobody states are fractions if no number of the whole table is above 1, else pixels."""
    if not rows:
        raise misfit(word, "a line for each picture", "there is none", table)
    boxes = [_boxes(word, row, table) for row in rows]
    small = all(value <= 1 for each in boxes if each for box in each for value in box)
    entries: dict[str, Entry] = {}
    for row, own in zip(rows, boxes, strict=True):
        name, unit = str(row["file"]), row.get("unit", "fractions" if small else "pixels")
        if unit not in _UNITS:
            raise misfit(word, "a unit of pixels or fractions", f"that of {one_line(name)} is {unit!r:.40}", table)
        if name in entries:
            raise misfit(word, "every picture once", f"{one_line(name)} is there twice", table)
        group = row.get("group")
        if group is not None and (isinstance(group, bool) or not isinstance(group, int)):
            raise misfit(word, "whole numbers as groups", f"that of {one_line(name)} is {group!r:.40}", table)
        entries[name] = Entry(
            name,
            _place(table, name),
            label=_label(word, row.get("label"), name, table),
            boxes=own or None,
            shares=unit == "fractions",
            mask=_place(table, str(row["mask"])) if row.get("mask") else None,
            group=group,
        )
    words = sorted({entry.label for entry in entries.values() if isinstance(entry.label, str)})
    return Found(list(entries.values()), names=tuple(words), note=f"labels and regions of {table.name}")


def _place(table: Path, name: str) -> Path:
    """Return where a file of a table is: beside the table, or in a folder named like it."""
    return first_there(table.parent / name, table.with_suffix("") / name) or table.parent / name


def _label(word: str, told: Any, name: str, table: Path) -> Label | None:
    if told is None or isinstance(told, str) or (isinstance(told, int) and not isinstance(told, bool)):
        return told
    raise misfit(word, "a class index or a word as label", f"that of {one_line(name)} is {told!r:.40}", table)


def _boxes(word: str, row: Mapping[str, Any], table: Path) -> tuple[Box, ...] | None:
    told = row.get("boxes")
    if told is None:
        return None
    try:
        boxes = tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in told)
        sound = all(math.isfinite(sum(box)) and box[0] <= box[2] and box[1] <= box[3] for box in boxes)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        said = f"those of {one_line(str(row['file']))} are {told!r:.60}"
        raise misfit(word, "boxes as (left, top, right, bottom)", said, table)
    return boxes


def _parsed(row: Mapping[str, str], table: Path) -> dict[str, Any]:
    """Read the cells of a CSV file: numbers are numbers, boxes a JSON list or four numbers with ; between boxes."""
    found: dict[str, Any] = {}
    for name in ("label", "group"):
        if row.get(name, "").strip().lstrip("-").isdecimal():
            found[name] = int(row[name])
    told = row.get("boxes")
    if told is not None:
        try:
            whole = json.loads(told) if told.lstrip().startswith("[") else None
            one = isinstance(whole, list) and bool(whole) and not isinstance(whole[0], list)
            found["boxes"] = [part.split() for part in told.split(";") if part.strip()] if whole is None else whole
            found["boxes"] = [whole] if one else found["boxes"]
        except (ValueError, RecursionError):
            said = f"those of {one_line(row.get('file', '?'))} are {told!r:.60}"
            raise misfit("csv", "boxes as 'left top right bottom; …' or a JSON list", said, table) from None
    return found
