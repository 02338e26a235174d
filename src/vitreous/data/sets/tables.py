"""Tables of pictures: CSV and JSON files with labels, boxes and masks, and the pets that come as one."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitreous import disk
from vitreous.data.known import _of_mask
from vitreous.data.pictures import Picture
from vitreous.data.sets.kinds import Found, source_kind
from vitreous.data.sets.labels import Label
from vitreous.data.sets.listing import content, first_there, misfit, read_json
from vitreous.data.sets.source import Entry
from vitreous.data.truth import Truth
from vitreous.errors import ImageError, one_line
from vitreous.models import Box

__all__ = ["table_beside"]

_MOST_BYTES = 2**31
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
    bare = next((each for each in found.entries if each.mask is None or each.label is None), None)
    if bare is not None:
        raise misfit("pets", "a trimap and a label for every picture", f"{one_line(bare.name)} lacks one", table)
    entries = [replace(each, known=partial(_trimap, each.mask)) for each in found.entries if each.mask is not None]
    return replace(found, entries=entries)


def table_beside(folder: Path) -> Path | None:
    """Return the JSON file that is named like a folder, beside it or in it."""
    return first_there(folder.parent / f"{folder.name}.json", folder / f"{folder.name}.json")


def _trimap(mask: Path, picture: Picture) -> Truth:
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
    words = sorted({each.label for each in entries.values() if isinstance(each.label, str)})
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
