"""Files and folders: writing whole or not at all, one writer at a time, and reading what others may have written."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitreous.errors import VitreousError, one_line, reason
from vitreous.io.paths import safe_name

MANIFESTS = ("manifest.json", "scenes.json")
MAX_TEXT = 2**28  # bytes of a text or JSON file
_TIMEOUT = 60.0  # seconds to wait for another writer
_TRIES = 1000  # to read a folder that is being replaced
_SYSTEM_FILES = {".DS_Store", "Thumbs.db", "desktop.ini"}  # left in every folder by the systems that show it
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

Content = bytes | Callable[[BinaryIO], object]
"""What a file shall hold: bytes, or a function that writes them into an open file."""


class Busy(VitreousError):
    """Another process is writing there."""


# -- targets ---------------------------------------------------------------------------------------------------


def check_file(path: str | Path, overwrite: bool = False) -> Path:
    """Return where a file will be written; refuse now what would fail after the work. Nothing is left there."""
    return _check(path, overwrite, _refuse_file)


def check_folder(path: str | Path, overwrite: bool = False) -> Path:
    """Return where a folder of results will be written, with the same checks."""
    return _check(path, overwrite, _refuse_folder)


def _check(path: str | Path, overwrite: bool, refuse: Callable[[str | Path, Path, bool], None]) -> Path:
    with _errors_naming(path):
        target = _resolve(path)
        refuse(path, target, overwrite)
        with suppress(FileNotFoundError):
            os.lstat(target)  # a name that the file system does not take
        folder = next(parent for parent in target.parents if os.path.lexists(parent))
        with tempfile.TemporaryFile(dir=folder):
            pass
    return target


def _refuse_folder(path: str | Path, target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise VitreousError(f"could not write {path}: it is a file, and not replaced by a folder of results")
    others = unlisted_files(target)
    if not others and manifest_of(target) is None:
        return  # empty
    if not overwrite:
        raise VitreousError(f"{path} is there already; choose another place or allow overwriting")
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise VitreousError(f"{path} is not replaced: it holds {others[0]}{more}, which was not written here")


def _refuse_file(path: str | Path, target: Path, overwrite: bool) -> None:
    if target.is_dir():
        raise VitreousError(f"could not write {path}: it is a folder")
    if os.path.lexists(target) and not target.is_file():  # such as a device, which root could replace
        raise VitreousError(f"could not write {path}: it is no regular file, and not replaced by one")
    if os.path.lexists(target) and not overwrite:
        raise VitreousError(f"{path} is there already; choose another place or allow overwriting")


def manifest_of(folder: str | Path) -> dict[str, Any] | None:
    """Return the manifest of a folder that was written here; ``None`` for any other."""
    for name in MANIFESTS:
        with suppress(VitreousError):
            manifest = read_json(Path(folder) / name, 2**26)
            if isinstance(manifest, dict) and str(manifest.get("schema")).startswith("vitreous."):
                return manifest
    return None


def unlisted_files(folder: str | Path) -> list[str]:
    """Return what a folder holds that was not written here."""
    files = (manifest_of(folder) or {}).get("files")
    listed = {str(name) for name in files} if isinstance(files, list) else set()
    return sorted(path.name for path in Path(folder).iterdir() if path.name not in listed | _SYSTEM_FILES)


def _resolve(path: str | Path) -> Path:
    """Return the true place of a target, links followed; refuse what is no name of its own."""
    if Path(path).name in ("", ".."):
        raise VitreousError(f"{str(path)!r} is not the name of something new")
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise VitreousError(one_line(f"could not write {path}: {error}")) from None


@contextmanager
def _errors_naming(path: str | Path) -> Iterator[None]:
    """Turn what the system says into one line that names the target."""
    try:
        yield
    except OSError as error:
        raise VitreousError(one_line(f"could not write {path}: {error.strerror or error}")) from error


# -- locks -----------------------------------------------------------------------------------------------------


@contextmanager
def lock(path: str | Path, timeout: float = _TIMEOUT) -> Iterator[Path]:
    """Be the only writer of a target; a second one waits, and is ``Busy`` after ``timeout`` seconds.

    Folders that are missing on the way to it are made, and taken away again if nothing comes of it.
    """
    target = _resolve(path)
    with _errors_naming(path), _parents(target), _locked(path, target, timeout):
        yield target


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """Make the folders that lead to a target; those that are still empty after a failure go away again."""
    missing = [parent for parent in target.parents if not os.path.lexists(parent)]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                os.rmdir(folder)
        raise


@contextmanager
def _locked(path: str | Path, target: Path, timeout: float) -> Iterator[None]:
    file = lock_path(target)
    end = time.monotonic() + timeout
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            while not _acquired(handle):
                if time.monotonic() >= end:
                    raise Busy(f"another process is writing {path}; wait for it, or choose another place")
                time.sleep(0.01)
            if _is_same_file(handle, file):  # the writer before may have taken the file away
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.unlink(file)
                return
        finally:
            os.close(handle)


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


def _is_same_file(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def _key(target: Path) -> str:
    return hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()


def lock_path(target: Path) -> Path:
    """Return the file that is locked while ``target`` is written."""
    return target.with_name(f".vitreous-{_key(target)}.lock")


def draft_path(target: Path) -> Path:
    """Return a name beside the target that no other writer has."""
    return target.with_name(f".vitreous-{_key(target)}-{secrets.token_hex(4)}")


def find_drafts(target: Path) -> list[Path]:
    """Return what writers of this target are at work on, or have left."""
    return list(target.parent.glob(f".vitreous-{_key(target)}-{'[0-9a-f]' * 8}"))


# -- writing ---------------------------------------------------------------------------------------------------


class Draft:
    """A folder that is being written: nobody sees it before it is whole. ``nested``: names may have folders in them."""

    def __init__(self, path: Path, nested: bool = False) -> None:
        self.path, self.nested = path, nested
        self.names: list[str] = []

    def write(self, name: str, content: Content) -> None:
        """Write one file."""
        parts = name.split("/") if self.nested else [name]
        if any(part != safe_name(part) for part in parts) or name in self.names:
            raise VitreousError(f"{name!r} is no name for a new file of a result")
        self.names.append(name)
        if len(parts) > 1:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        _write(self.path / name, content)

    def finish(self, manifest: Mapping[str, Any], name: str = "manifest.json") -> None:
        """Write the manifest, the last file: what is there with it is whole. The files are listed in it."""
        if name not in MANIFESTS or not str(manifest.get("schema")).startswith("vitreous."):
            raise VitreousError(f"{name} with the schema {manifest.get('schema')!r} is no manifest")
        listed = {**manifest, "files": [*self.names, name]}
        self.write(name, (json.dumps(listed, indent=2, allow_nan=False) + "\n").encode())


@contextmanager
def folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Draft]:
    """Give a draft to be filled and finished; it becomes the folder ``path`` when the block ends well.

    A folder that is there already is replaced only with ``overwrite``, and only if everything in it was written here.
    """
    with lock(path) as target:
        _put_back(target)
        _refuse_folder(path, target, overwrite)
        with _draft(target) as draft:
            yield draft
            if not any(name in MANIFESTS for name in draft.names):
                raise VitreousError(f"{path} was not finished: it has no manifest")
            _publish(draft.path, target)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Draft]:
    """Give a draft beside ``path``; it becomes that folder when the block ends well, unless something is there.

    Where a folder holds something already, the draft goes away at the end: the block has taken what it needs of it.
    """
    with lock(path) as target, _draft(target, nested=True) as draft:
        yield draft
        if not os.path.lexists(target) or (target.is_dir() and not os.listdir(target)):
            _publish(draft.path, target)


@contextmanager
def _draft(target: Path, nested: bool = False) -> Iterator[Draft]:
    _clean(target)
    path = draft_path(target)
    try:
        os.makedirs(path / "new")
        yield Draft(path / "new", nested)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_file(path: str | Path, content: Content, *, overwrite: bool = False, held: bool = False) -> Path:
    """Write one file, whole or not at all; ``held`` says that the caller has its lock. Return where it is."""
    with _errors_naming(path), nullcontext(_resolve(path)) if held else lock(path) as target:
        _refuse_file(path, target, overwrite)
        _clean(target)
        draft = draft_path(target)
        try:
            _write(draft, content)
            os.replace(draft, target)
        finally:
            with suppress(OSError):
                os.unlink(draft)
    return target


def discard(path: str | Path) -> None:
    """Remove a file that its writer no longer needs: one that was written here, such as what an interruption left."""
    with _errors_naming(path), suppress(FileNotFoundError):
        os.unlink(path)


def recover(path: str | Path) -> None:
    """Put a folder back that a writer, now dead, had moved aside in order to replace it, and clear up after it."""
    target = Path(os.path.realpath(path))
    if not find_drafts(target) and not os.path.lexists(lock_path(target)):
        return
    timeout = 0.0 if os.path.lexists(target) else _TIMEOUT  # a writer may be about to put it there
    with suppress(VitreousError), lock(target, timeout):  # where nothing may be written, nothing can be put back
        _put_back(target)
        _clean(target)


def _publish(new: Path, target: Path) -> None:
    """Give the new folder its name. The old one is in its place or beside it afterwards."""
    if os.path.lexists(target) and not any(target.iterdir()):
        with suppress(OSError):
            os.rmdir(target)
    elif os.path.lexists(target):
        if _exchanged(new, target):
            return
        os.rename(target, new.with_name("old"))
    os.rename(new, target)


def _put_back(target: Path) -> None:
    """Undo a replacement that stopped half-way, where the system could not exchange names."""
    for draft in find_drafts(target):
        old, new = draft / "old", draft / "new"
        if old.is_dir() and not os.path.lexists(target):
            os.rename(new if manifest_of(new) is not None else old, target)


def _clean(target: Path) -> None:
    """Remove what dead writers of this target left; its lock is held, so none is alive."""
    for draft in find_drafts(target):
        if draft.is_dir() and not draft.is_symlink():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            with suppress(OSError):
                os.unlink(draft)


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
    at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return call(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0  # type: ignore[no-any-return]


# -- reading ---------------------------------------------------------------------------------------------------


def open_file(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes; anything else is an ``OSError``, and nothing waits for a writer.

    A pipe without a writer would block whoever opens it, and a device may do anything when it is opened.
    """
    _refuse_special(os.stat(path), path)
    handle = os.open(path, _READ_FLAGS)  # without blocking, should a pipe have taken its name meanwhile
    try:
        status = os.fstat(handle)
        _refuse_special(status, path)
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {most}", str(path))
        return io.BufferedReader(io.FileIO(handle, "rb"))
    except BaseException:
        os.close(handle)
        raise


def _refuse_special(status: os.stat_result, path: str | Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, "it is a folder", str(path))
    kind = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}.get(stat.S_IFMT(status.st_mode), "device")
    raise OSError(errno.EINVAL, f"it is a {kind}, not a regular file", str(path))


def read_file(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; anything else is an ``OSError``."""
    with open_file(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def read_text(
    path: str | Path, most: int = MAX_TEXT, *, what: str = "", error: type[VitreousError] = VitreousError
) -> str:
    """Return the text of a file of at most ``most`` bytes; if it has none, an ``error`` names it, after ``what``."""
    try:
        return read_file(path, most).decode("utf-8-sig")
    except (OSError, ValueError) as failure:
        raise error(one_line(f"{what}{path} cannot be read: {reason(failure)}")) from None


def read_json(
    path: str | Path,
    most: int = MAX_TEXT,
    *,
    what: str = "",
    error: type[VitreousError] = VitreousError,
    **options: Any,
) -> Any:
    """Return what a JSON file of at most ``most`` bytes holds; ``options`` are those of ``json.loads``."""
    text = read_text(path, most, what=what, error=error)
    try:
        return json.loads(text, **options)
    except (ValueError, RecursionError) as failure:
        raise error(one_line(f"{what}{path} is no JSON: {failure}")[:500]) from None


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
        return _read_files(names, lambda name: os.open(folder / name, _READ_FLAGS), most)
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        if find_drafts(Path(os.path.realpath(folder))):
            return None  # a writer is at work
        raise
    try:
        contents = _read_files(names, lambda name: os.open(name, _READ_FLAGS, dir_fd=handle), most)
        return contents if len(contents) == len(names) or _is_same_file(handle, folder) else None
    finally:
        os.close(handle)


def _read_files(names: Sequence[str], opened: Callable[[str], int], most: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for name in names:
        with suppress(FileNotFoundError), open(opened(name), "rb") as file:
            status = os.fstat(file.fileno())
            _refuse_special(status, name)
            if status.st_size > most:
                raise VitreousError(f"{name} has {status.st_size} bytes, more than {most}")
            contents[name] = file.read(most + 1)
    return contents
