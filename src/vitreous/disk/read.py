"""Reading a folder as it was at one time, also while another process replaces it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from vitreous.disk.places import leftovers, same
from vitreous.disk.write import recover
from vitreous.errors import VitreousError

__all__ = ["read_folder"]

_TRIES = 1000  # to read a folder that is being replaced


def read_folder(path: str | Path, names: Sequence[str], most: int = 2**32) -> dict[str, bytes]:
    """Return files of one folder as they were at one time, also while another process replaces it.

    They are read through one open folder: what takes its name afterwards is another. Names that are not there are left
    out; more than ``most`` bytes are refused.
    """
    for _ in range(_TRIES):
        recover(path)
        contents = _read_once(Path(path), names, most)
        if contents is not None:
            return contents
    raise VitreousError(f"{path} is replaced faster than it can be read")


def _read_once(folder: Path, names: Sequence[str], most: int) -> dict[str, bytes] | None:
    """``None`` if the folder was replaced meanwhile, and files of it are missing."""
    if os.open not in os.supports_dir_fd:
        return _read_files(names, lambda name: os.open(folder / name, os.O_RDONLY), most)
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        if leftovers(Path(os.path.realpath(folder))):
            return None  # a writer is at work
        raise
    try:
        contents = _read_files(names, lambda name: os.open(name, os.O_RDONLY, dir_fd=handle), most)
        return contents if len(contents) == len(names) or same(handle, folder) else None
    finally:
        os.close(handle)


def _read_files(names: Sequence[str], opened: Callable[[str], int], most: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError), open(opened(name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise VitreousError(f"{name} has {size} bytes, more than {most}")
            contents[name] = file.read(most + 1)
    return contents
