"""Writing: drafts of folders that are published by one rename, and files."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.disk.names import safe_name
from vitreous.disk.places import (
    MANIFESTS,
    PATIENCE,
    leftovers,
    lock,
    lock_of,
    manifest_of,
    named,
    private,
    refuse_file,
    refuse_folder,
    told,
)
from vitreous.errors import VitreousError

__all__ = ["Content", "Draft", "discard", "folder", "new_folder", "recover", "write_file"]

Content = bytes | Callable[[BinaryIO], object]
"""What a file shall hold: bytes, or a function that writes them into an open file."""

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux


class Draft:
    """A folder that is being written: nobody sees it before it is whole."""

    def __init__(self, place: Path, nested: bool = False) -> None:
        """``nested``: names may have folders in them."""
        self.place, self.nested = place, nested
        self.names: list[str] = []

    def write(self, name: str, content: Content) -> None:
        """Write one file."""
        parts = name.split("/") if self.nested else [name]
        if any(part != safe_name(part) for part in parts) or name in self.names:
            raise VitreousError(f"{name!r} is no name for a new file of a result")
        self.names.append(name)
        if len(parts) > 1:
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
        _write(self.place / name, content)

    def finish(self, manifest: Mapping[str, Any], name: str = "manifest.json") -> None:
        """Write the manifest, the last file: what is there with it is whole. The files are listed in it."""
        if name not in MANIFESTS or not str(manifest.get("schema")).startswith("vitreous."):
            raise VitreousError(f"{name} with the schema {manifest.get('schema')!r} is no manifest")
        whole = {**manifest, "files": [*self.names, name]}
        self.write(name, (json.dumps(whole, indent=2, allow_nan=False) + "\n").encode())


@contextmanager
def folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Draft]:
    """Give a draft to be filled and finished; it becomes the folder ``path`` when the block ends well.

    A folder that is there already is replaced only with ``overwrite``, and only if everything in it is ours.
    """
    with told(path):
        place = named(path)
        with lock(place):
            _put_back(place)
            refuse_folder(path, place, overwrite)
            _clean(place)
            beside = private(place)
            try:
                os.mkdir(beside)
                new = beside / "new"
                os.mkdir(new)
                draft = Draft(new)
                yield draft
                if not any(name in MANIFESTS for name in draft.names):
                    raise VitreousError(f"{path} was not finished: it has no manifest")
                _publish(new, place, beside / "old")
            finally:
                shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Draft]:
    """Give a draft beside ``path``; it becomes that folder when the block ends well, unless something is there.

    Where a folder holds something already, the draft goes away at the end: the block has taken what it needs of it.
    """
    with told(path):
        place = named(path)
        with lock(place):
            _clean(place)
            beside = private(place)
            try:
                os.mkdir(beside)
                os.mkdir(beside / "new")
                yield Draft(beside / "new", nested=True)
                if not os.path.lexists(place) or (place.is_dir() and not os.listdir(place)):
                    _publish(beside / "new", place, beside / "old")
            finally:
                shutil.rmtree(beside, ignore_errors=True)


def write_file(path: str | Path, content: Content, *, overwrite: bool = False, held: bool = False) -> Path:
    """Write one file, whole or not at all; ``held`` says that the caller has its lock. Return where it is."""
    with told(path):
        place = named(path)
        with nullcontext() if held else lock(place):
            refuse_file(path, place, overwrite)
            _clean(place)
            beside = private(place)
            try:
                _write(beside, content)
                os.replace(beside, place)
            finally:
                with suppress(OSError):
                    os.unlink(beside)
    return place


def discard(path: str | Path) -> None:
    """Remove a file that its writer no longer needs: one that was written here, such as what an interruption left."""
    with told(path), suppress(FileNotFoundError):
        os.unlink(path)


def recover(path: str | Path) -> None:
    """Put a folder back that a writer, now dead, had moved aside in order to replace it, and clear up after it."""
    place = Path(os.path.realpath(path))
    if not leftovers(place) and not os.path.lexists(lock_of(place)):
        return
    patience = 0.0 if os.path.lexists(place) else PATIENCE  # a writer may be about to put it there
    with suppress(VitreousError), lock(place, patience):  # where nothing may be written, nothing can be put back
        _put_back(place)
        _clean(place)


def _publish(new: Path, place: Path, aside: Path) -> None:
    """Give the new folder its name. The old one is at ``new`` or ``aside`` afterwards."""
    if not os.path.lexists(place):
        os.rename(new, place)
    elif not any(place.iterdir()):
        with suppress(OSError):
            os.rmdir(place)
        os.rename(new, place)
    elif not _exchanged(new, place):
        os.rename(place, aside)
        os.rename(new, place)


def _put_back(place: Path) -> None:
    """Undo a replacement that stopped half-way, where the system could not exchange names."""
    for beside in leftovers(place):
        old, new = beside / "old", beside / "new"
        if old.is_dir() and not os.path.lexists(place):
            os.rename(new if manifest_of(new) is not None else old, place)


def _clean(place: Path) -> None:
    """Remove what dead writers of this target left; its lock is held, so none is alive."""
    for beside in leftovers(place):
        if beside.is_dir() and not beside.is_symlink():
            shutil.rmtree(beside, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(beside)


def _write(path: Path, content: Content) -> None:
    """Write a new file down to the disk."""
    with _open(path) as file:
        if callable(content):
            content(file)
        else:
            file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _open(path: Path) -> BinaryIO:
    return open(path, "xb")


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names at once; False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here = -100  # AT_FDCWD
    return call(here, os.fsencode(one), here, os.fsencode(other), _EXCHANGE) == 0  # type: ignore[no-any-return]
