"""The one module that writes to disk: whole or not at all, one writer at a time, never over what is not ours.

What is written grows in a private place beside its target (``.vitreous-…``, a name of its own for every writer) and is
published by one rename. A folder is replaced by exchanging names with the new one, and goes away only after that; where
the system cannot exchange names it steps aside first, and ``recover`` puts it back if the writer died in between. A
folder is ours if it holds a manifest of ours and nothing else than the files that the manifest lists.
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
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.errors import VitreousError, one_line

__all__ = [
    "Content",
    "Draft",
    "check_file",
    "check_folder",
    "discard",
    "folder",
    "holds",
    "lock",
    "manifest_of",
    "read_folder",
    "recover",
    "safe_name",
    "slug",
    "write_file",
]

Content = bytes | Callable[[BinaryIO], object]
"""What a file shall hold: bytes, or a function that writes them into an open file."""

LONGEST = 200  # bytes of a name; file systems take 255, and people add to names
_MANIFESTS = ("manifest.json", "scenes.json")
_MOST_MANIFEST = 2**26  # bytes
_LITTER = {".DS_Store", "Thumbs.db", "desktop.ini"}  # left in every folder by the systems that show it
_TRIES = 1000  # to read a folder that is being replaced
_PATIENCE = 60.0  # seconds to wait for another writer
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux


# -- names ---------------------------------------------------------------------------------------------


def safe_name(text: str, otherwise: str = "image") -> str:
    """Return a name that every file system takes, as much like ``text`` as can be; ``otherwise`` if nothing is left.

    Separators, unprintable and reserved characters become dashes; dots, dashes and blanks at the ends go away, so that
    it is never ``.`` or ``..``. A name of more than 200 bytes is cut, and ends in a digest of the whole.
    """
    kept = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "-" for c in unicodedata.normalize("NFC", text))
    kept = re.sub(r"-{2,}", "-", kept).strip(" .-")
    if len(kept.encode()) > LONGEST:
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=5).hexdigest()
        kept = f"{kept.encode()[: LONGEST - 11].decode(errors='ignore').rstrip(' .-')}-{digest}"
    if re.fullmatch(r"(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", kept, re.IGNORECASE):  # devices, on Windows
        kept = f"_{kept}"
    return kept or otherwise


def slug(text: str, otherwise: str = "none") -> str:
    """Return a safe name without brackets and blanks: ``logprob(plus(decompx))`` is ``logprob-plus-decompx``."""
    return safe_name(re.sub(r"[^\w.+=]+", "-", text), otherwise)


# -- looking -------------------------------------------------------------------------------------------


def manifest_of(folder: str | Path) -> dict[str, Any] | None:
    """Return the manifest of a folder that was written here; ``None`` for any other."""
    for name in _MANIFESTS:
        path = Path(folder) / name
        try:
            if path.stat().st_size > _MOST_MANIFEST:
                continue
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict) and str(found.get("schema")).startswith("vitreous."):
            return found
    return None


def holds(folder: str | Path) -> list[str]:
    """Return what a folder holds that was not written here."""
    manifest = manifest_of(folder) or {}
    listed = manifest.get("files")
    ours = {str(name) for name in listed} if isinstance(listed, list) else set()
    return sorted(each.name for each in Path(folder).iterdir() if each.name not in ours | _LITTER)


def read_folder(path: str | Path, names: Sequence[str], most: int = 2**32) -> dict[str, bytes]:
    """Return files of one folder as they were at one time, also while another process replaces it.

    They are read through one open folder: what takes its name afterwards is another. Names that are not there are left
    out; more than ``most`` bytes are refused.
    """
    for _ in range(_TRIES):
        recover(path)
        found = _read_once(Path(path), names, most)
        if found is not None:
            return found
    raise VitreousError(f"{path} is replaced faster than it can be read")


def _read_once(folder: Path, names: Sequence[str], most: int) -> dict[str, bytes] | None:
    """``None`` if the folder was replaced meanwhile, and files of it are missing."""
    if os.open not in os.supports_dir_fd:
        return _read_files(names, lambda name: os.open(folder / name, os.O_RDONLY), most)
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        if _leftovers(Path(os.path.realpath(folder))):
            return None  # a writer is at work
        raise
    try:
        found = _read_files(names, lambda name: os.open(name, os.O_RDONLY, dir_fd=handle), most)
        return found if len(found) == len(names) or _same(handle, folder) else None
    finally:
        os.close(handle)


def _read_files(names: Sequence[str], opened: Callable[[str], int], most: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError), open(opened(name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise VitreousError(f"{name} has {size} bytes, more than {most}")
            found[name] = file.read(most + 1)
    return found


def check_file(path: str | Path, overwrite: bool = False) -> Path:
    """Return where a file will be written; complain now about what would fail after the work. Nothing is left there."""
    with _told(path):
        place = _named(path)
        _refuse_file(path, place, overwrite)
        _prove(place)
    return place


def check_folder(path: str | Path, overwrite: bool = False) -> Path:
    """The same for a folder of results."""
    with _told(path):
        place = _named(path)
        _refuse_folder(path, place, overwrite)
        _prove(place)
    return place


def recover(path: str | Path) -> None:
    """Put a folder back that a writer, now dead, had moved aside in order to replace it, and clear up after it."""
    place = Path(os.path.realpath(path))
    if not _leftovers(place) and not os.path.lexists(_lock_of(place)):
        return
    patience = 0.0 if os.path.lexists(place) else _PATIENCE  # a writer may be about to put it there
    with suppress(VitreousError), lock(place, patience):  # where nothing may be written, nothing can be put back
        _put_back(place)
        _clean(place)


# -- writing -------------------------------------------------------------------------------------------


class Draft:
    """A folder that is being written: nobody sees it before it is whole."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.names: list[str] = []

    def write(self, name: str, content: Content) -> None:
        """Write one file."""
        if name != safe_name(name) or name in self.names:
            raise VitreousError(f"{name!r} is no name for a new file of a result")
        self.names.append(name)
        _write(self.place / name, content)

    def finish(self, manifest: Mapping[str, Any], name: str = "manifest.json") -> None:
        """Write the manifest, the last file: what is there with it is whole. The files are listed in it."""
        if name not in _MANIFESTS or not str(manifest.get("schema")).startswith("vitreous."):
            raise VitreousError(f"{name} with the schema {manifest.get('schema')!r} is no manifest")
        whole = {**manifest, "files": [*self.names, name]}
        self.write(name, (json.dumps(whole, indent=2, allow_nan=False) + "\n").encode())


@contextmanager
def folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Draft]:
    """Give a draft to be filled and finished; it becomes the folder ``path`` when the block ends well.

    A folder that is there already is replaced only with ``overwrite``, and only if everything in it is ours.
    """
    with _told(path):
        place = _named(path)
        with lock(place):
            _put_back(place)
            _refuse_folder(path, place, overwrite)
            _clean(place)
            private = _private(place)
            try:
                os.mkdir(private)
                new = private / "new"
                os.mkdir(new)
                draft = Draft(new)
                yield draft
                if not any(name in _MANIFESTS for name in draft.names):
                    raise VitreousError(f"{path} was not finished: it has no manifest")
                _publish(new, place, private / "old")
            finally:
                shutil.rmtree(private, ignore_errors=True)


def write_file(path: str | Path, content: Content, *, overwrite: bool = False, held: bool = False) -> Path:
    """Write one file, whole or not at all; ``held`` says that the caller has its lock. Return where it is."""
    with _told(path):
        place = _named(path)
        with _nothing() if held else lock(place):
            _refuse_file(path, place, overwrite)
            _clean(place)
            private = _private(place)
            try:
                _write(private, content)
                os.replace(private, place)
            finally:
                with suppress(OSError):
                    os.unlink(private)
    return place


def discard(path: str | Path) -> None:
    """Remove a file that its writer no longer needs: one that was written here, such as what an interruption left."""
    with _told(path), suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def lock(path: str | Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Be the only writer of a target; a second one waits, and says so in a line if its patience ends.

    Folders that are missing on the way to it are made, and taken away again if nothing comes of it.
    """
    place = _named(path)
    with _told(path), _parents(place), _locked(path, place, patience):
        yield


@contextmanager
def _locked(path: str | Path, place: Path, patience: float) -> Iterator[None]:
    file = _lock_of(place)
    end = time.monotonic() + patience
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            while not _acquired(handle):
                if time.monotonic() >= end:
                    raise VitreousError(f"another process is writing {path}; wait for it, or choose another place")
                time.sleep(0.01)
            if _same(handle, file):  # the writer before may have taken the file away
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.unlink(file)
                return
        finally:
            os.close(handle)


# -- what they are made of -----------------------------------------------------------------------------


def _named(path: str | Path) -> Path:
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
    missing = [each for each in place.parents if not os.path.lexists(each)]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):
                os.rmdir(each)
        raise


def _refuse_folder(path: str | Path, place: Path, overwrite: bool) -> None:
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


def _refuse_file(path: str | Path, place: Path, overwrite: bool) -> None:
    if place.is_dir():
        raise VitreousError(f"could not write {path}: it is a folder")
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
    for private in _leftovers(place):
        old, new = private / "old", private / "new"
        if old.is_dir() and not os.path.lexists(place):
            os.rename(new if manifest_of(new) is not None else old, place)


def _clean(place: Path) -> None:
    """Remove what dead writers of this target left; its lock is held, so none is alive."""
    for private in _leftovers(place):
        if private.is_dir() and not private.is_symlink():
            shutil.rmtree(private, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(private)


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


def _key(place: Path) -> str:
    return hashlib.blake2b(os.fsencode(place.name), digest_size=8).hexdigest()


def _lock_of(place: Path) -> Path:
    return place.with_name(f".vitreous-{_key(place)}.lock")


def _private(place: Path) -> Path:
    """Return a name beside the target that no other writer has."""
    return place.with_name(f".vitreous-{_key(place)}-{secrets.token_hex(4)}")


def _leftovers(place: Path) -> list[Path]:
    name = re.compile(rf"\.vitreous-{_key(place)}-[0-9a-f]{{8}}")
    try:
        return [place.parent / each for each in os.listdir(place.parent) if name.fullmatch(each)]
    except OSError:
        return []


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


def _same(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


@contextmanager
def _told(path: str | Path) -> Iterator[None]:
    """Turn what the system says into one line that names the target."""
    try:
        yield
    except OSError as error:
        raise VitreousError(one_line(f"could not write {path}: {error.strerror or error}")) from error


@contextmanager
def _nothing() -> Iterator[None]:
    yield
