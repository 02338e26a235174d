"""Reading files that may be of others: regular ones only, and folders as they were at one time."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from vitreous.errors import VitreousError
from vitreous.io.atomic import leftovers, recover, same

__all__ = ["open_file", "read_file", "read_folder"]

_TRIES = 1000  # to read a folder that is being replaced
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "it is a folder"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a pipe, not a regular file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a regular file"),
)


def open_file(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes; anything else is an ``OSError``, and nothing waits for a writer.

    A pipe without a writer would block whoever opens it, and a device may do anything when it is opened.
    """
    _refuse_special(os.stat(path), path)
    handle = os.open(path, _FLAGS)  # without blocking, should a pipe have taken its name meanwhile
    try:
        status = os.fstat(handle)
        _refuse_special(status, path)
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {most}", str(path))
        return io.BufferedReader(io.FileIO(handle, "rb"))
    except BaseException:
        os.close(handle)
        raise


def read_file(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; anything else is an ``OSError``."""
    with open_file(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def _refuse_special(status: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        known = ((number, words) for is_kind, number, words in _KINDS if is_kind(status.st_mode))
        number, words = next(known, (errno.EINVAL, "it is a device, not a regular file"))
        raise OSError(number, words, str(path))


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
        return _read_files(names, lambda name: os.open(folder / name, _FLAGS), most)
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        if leftovers(Path(os.path.realpath(folder))):
            return None  # a writer is at work
        raise
    try:
        contents = _read_files(names, lambda name: os.open(name, _FLAGS, dir_fd=handle), most)
        return contents if len(contents) == len(names) or same(handle, folder) else None
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
