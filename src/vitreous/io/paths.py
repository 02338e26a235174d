"""Names that every file system takes, and the user's cache folder, which holds what can be made again.

Nothing about the cache may ever stop a run.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
import time
import unicodedata
import warnings
from contextlib import suppress
from pathlib import Path

from vitreous.errors import VitreousWarning, one_line

_MAX_BYTES = 200  # bytes of a name; file systems take 255, and people add to names


def safe_name(text: str, otherwise: str = "image") -> str:
    """Return a name that every file system takes, as much like ``text`` as can be; ``otherwise`` if nothing is left.

    Separators, unprintable and reserved characters become dashes; dots, dashes and blanks at the ends go away, so that
    it is never ``.`` or ``..``. A name of more than 200 bytes is cut, and ends in a digest of the whole.
    """
    name = "".join(c if c.isprintable() and c not in '/\\:*?"<>|' else "-" for c in unicodedata.normalize("NFC", text))
    name = re.sub(r"-{2,}", "-", name).strip(" .-")
    if len(name.encode()) > _MAX_BYTES:
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=5).hexdigest()
        name = f"{name.encode()[: _MAX_BYTES - 11].decode(errors='ignore').rstrip(' .-')}-{digest}"
    if re.fullmatch(r"(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", name, re.IGNORECASE):  # devices, on Windows
        name = f"_{name}"
    return name or otherwise


def slug(text: str, otherwise: str = "none") -> str:
    """Return a safe name without brackets and blanks: ``logprob(plus(decompx))`` is ``logprob-plus-decompx``."""
    return safe_name(re.sub(r"[^\w.+=]+", "-", text), otherwise)


CACHE_VARIABLE = "VITREOUS_CACHE"
"""The variable of the environment that names the folder; set but empty, nothing is kept on disk."""
SIZE_VARIABLE = "VITREOUS_CACHE_SIZE"
"""The variable of the environment that says how many GiB the folder may hold."""
_DEFAULT_SIZE = 2.0  # GiB
_ENTRY = re.compile(r"world-[0-9a-f]{32}\.safetensors")
_DRAFT = re.compile(r"\.vitreous-[0-9a-f]{16}-[0-9a-f]{8}")  # what a writer that died has left: atomic.draft_path
_DAY = 86_400.0  # seconds after which no writer is still at work on a draft


def cache_folder() -> Path | None:
    """Return the folder, whether it is there or not; ``None`` where there is none, or it is switched off."""
    value = os.environ.get(CACHE_VARIABLE)
    try:
        if value is not None:
            return Path(value).expanduser().absolute() if value.strip() else None
        base = _system_cache()
    except (OSError, RuntimeError):  # nobody's home
        return None
    return base / "vitreous" if base.is_absolute() else None


def _system_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    path = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return path if path.is_absolute() else Path.home() / ".cache"


def cached(name: str) -> Path | None:
    """Return where a file of the cache is or will be; ``None`` if nothing is kept, or something else has its name."""
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / name
    try:
        return path if not os.path.lexists(path) or (path.is_file() and not path.is_symlink()) else None
    except (OSError, ValueError):
        return None


def mark_used(path: Path) -> None:
    """Note that an entry was of use just now: those that were not for longest leave first."""
    with suppress(OSError):
        os.utime(path)


def trim_cache() -> None:
    """Remove the entries that were not used for longest, until the rest fits; other files in the folder stay.

    Other processes may do the same meanwhile, or read what is removed: a reader keeps what it has open, or finds
    nothing and makes it again.
    """
    folder = cache_folder()
    if folder is None:
        return
    entries = []
    with suppress(OSError), os.scandir(folder) as listed:
        for entry in listed:
            with suppress(OSError):
                stat = entry.stat(follow_symlinks=False)
                is_old_draft = _DRAFT.fullmatch(entry.name) and stat.st_mtime < time.time() - _DAY
                if entry.is_file(follow_symlinks=False) and (is_old_draft or _ENTRY.fullmatch(entry.name)):
                    entries.append((stat.st_mtime_ns, entry.path, stat.st_size))
    excess = sum(size for _, _, size in entries) - _limit()
    for used, path, size in sorted(entries):
        if excess <= 0:
            return
        with suppress(OSError):
            if os.lstat(path).st_mtime_ns != used:  # it was of use since
                continue
            os.unlink(path)
        if not os.path.lexists(path):
            excess -= size


def _limit() -> float:
    """Return how many bytes the entries may have together."""
    text = os.environ.get(SIZE_VARIABLE, "").strip()
    try:
        size = float(text or _DEFAULT_SIZE)
    except ValueError:
        size = math.nan
    if not size >= 0:
        message = f"{SIZE_VARIABLE}={text} is not a number of GiB; the cache folder may hold {_DEFAULT_SIZE:g}"
        warnings.warn(one_line(message), VitreousWarning, stacklevel=3)
        size = _DEFAULT_SIZE
    return size * 2**30
