"""Looking into folders: which files are pictures, which folders there are, and how to say that a layout is another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitreous import disk
from vitreous.data.beside import masks
from vitreous.data.pictures import _SUFFIXES
from vitreous.errors import ImageError, one_line

__all__ = ["first_there", "folder_at", "folders", "is_picture", "misfit", "pictures_below", "pictures_in", "read_json"]

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
    return next((each for each in places if os.path.exists(each)), None)


def is_picture(name: str) -> bool:
    """Whether a file is a picture by its ending; names that begin with a dot are none."""
    return not name.startswith(".") and Path(name).suffix.lower() in _SUFFIXES


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures of one folder in the order of their names; links that lead nowhere are among them."""
    others = masks(folder)
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
