"""Where something is written: the target, the private place beside it, its lock, and what is ours.

Writing: drafts of folders that are published by one rename, and files.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.errors import VitreousError, one_line
from vitreous.io.paths import safe_name

__all__ = [
    "Busy",
    "Content",
    "Draft",
    "MANIFESTS",
    "check_file",
    "check_folder",
    "discard",
    "folder",
    "holds",
    "leftovers",
    "lock",
    "lock_of",
    "manifest_of",
    "named",
    "new_folder",
    "private",
    "recover",
    "refuse_file",
    "refuse_folder",
    "same",
    "told",
    "write_file",
]

MANIFESTS = ("manifest.json", "scenes.json")
PATIENCE = 60.0  # seconds to wait for another writer
_MOST_MANIFEST = 2**26  # bytes
_LITTER = {".DS_Store", "Thumbs.db", "desktop.ini"}  # left in every folder by the systems that show it


class Busy(VitreousError):
    """Another process is writing there."""


def check_file(path: str | Path, overwrite: bool = False) -> Path:
    """Return where a file will be written; complain now about what would fail after the work. Nothing is left there."""
    with told(path):
        place = named(path)
        refuse_file(path, place, overwrite)
        _prove(place)
    return place


def check_folder(path: str | Path, overwrite: bool = False) -> Path:
    """The same for a folder of results."""
    with told(path):
        place = named(path)
        refuse_folder(path, place, overwrite)
        _prove(place)
    return place


def manifest_of(folder: str | Path) -> dict[str, Any] | None:
    """Return the manifest of a folder that was written here; ``None`` for any other."""
    for name in MANIFESTS:
        path = Path(folder) / name
        try:
            if path.stat().st_size > _MOST_MANIFEST:
                continue
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(manifest, dict) and str(manifest.get("schema")).startswith("vitreous."):
            return manifest
    return None


def holds(folder: str | Path) -> list[str]:
    """Return what a folder holds that was not written here."""
    manifest = manifest_of(folder) or {}
    listed = manifest.get("files")
    ours = {str(name) for name in listed} if isinstance(listed, list) else set()
    return sorted(path.name for path in Path(folder).iterdir() if path.name not in ours | _LITTER)


@contextmanager
def lock(path: str | Path, patience: float = PATIENCE) -> Iterator[None]:
    """Be the only writer of a target; a second one waits, and says so in a line if its patience ends.

    Folders that are missing on the way to it are made, and taken away again if nothing comes of it.
    """
    place = named(path)
    with told(path), _parents(place), _locked(path, place, patience):
        yield


@contextmanager
def _locked(path: str | Path, place: Path, patience: float) -> Iterator[None]:
    file = lock_of(place)
    end = time.monotonic() + patience
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            while not _acquired(handle):
                if time.monotonic() >= end:
                    raise Busy(f"another process is writing {path}; wait for it, or choose another place")
                time.sleep(0.01)
            if same(handle, file):  # the writer before may have taken the file away
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.unlink(file)
                return
        finally:
            os.close(handle)


def named(path: str | Path) -> Path:
    """Return the true place of a target, links followed; refuse what is no name of its own."""
    if Path(path).name in ("", ".."):
        raise VitreousError(f"{str(path)!r} is not the name of something new")
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise VitreousError(one_line(f"could not write {path}: {error}")) from None


@contextmanager
def _parents(place: Path) -> Iterator[None]:
    """Make the folders that lead to a target; those that are still empty after a failure go away again."""
    missing = [parent for parent in place.parents if not os.path.lexists(parent)]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                os.rmdir(each)
        raise


def refuse_folder(path: str | Path, place: Path, overwrite: bool) -> None:
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise VitreousError(f"could not write {path}: it is a file, and not replaced by a folder of results")
    foreign = holds(place)
    if not foreign and manifest_of(place) is None:
        return  # empty
    if not overwrite:
        raise VitreousError(f"{path} is there already; choose another place or allow overwriting")
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise VitreousError(f"{path} is not replaced: it holds {foreign[0]}{more}, which was not written here")


def refuse_file(path: str | Path, place: Path, overwrite: bool) -> None:
    if place.is_dir():
        raise VitreousError(f"could not write {path}: it is a folder")
    if os.path.lexists(place) and not place.is_file():  # such as a device, which root could replace
        raise VitreousError(f"could not write {path}: it is no regular file, and not replaced by one")
    if os.path.lexists(place) and not overwrite:
        raise VitreousError(f"{path} is there already; choose another place or allow overwriting")


def _prove(place: Path) -> None:
    """Learn whether the target can be written: its name, and a file without one beside it or its parents."""
    with suppress(FileNotFoundError):
        os.lstat(place)
    while not os.path.lexists(place.parent):
        place = place.parent
    with tempfile.TemporaryFile(dir=place.parent):
        pass


def _key(place: Path) -> str:
    return hashlib.blake2b(os.fsencode(place.name), digest_size=8).hexdigest()


def lock_of(place: Path) -> Path:
    return place.with_name(f".vitreous-{_key(place)}.lock")


def private(place: Path) -> Path:
    """Return a name beside the target that no other writer has."""
    return place.with_name(f".vitreous-{_key(place)}-{secrets.token_hex(4)}")


def leftovers(place: Path) -> list[Path]:
    name = re.compile(rf"\.vitreous-{_key(place)}-[0-9a-f]{{8}}")
    try:
        return [place.parent / each for each in os.listdir(place.parent) if name.fullmatch(each)]
    except OSError:
        return []


def _acquired(handle: int) -> bool:
    """Take the lock of an open file if it is free; where there are no locks, a rename still leaves one whole result."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
    return True


def same(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


@contextmanager
def told(path: str | Path) -> Iterator[None]:
    """Turn what the system says into one line that names the target."""
    try:
        yield
    except OSError as error:
        raise VitreousError(one_line(f"could not write {path}: {error.strerror or error}")) from error


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
