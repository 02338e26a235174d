"""The user's cache folder: what can be made again, kept between runs. Nothing here may ever stop a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["SWITCH", "cache_folder", "cached"]

SWITCH = "VITREOUS_CACHE"
"""The variable of the environment that names the folder; set but empty, nothing is kept on disk."""


def cache_folder() -> Path | None:
    """Return the folder, whether it is there or not; ``None`` where there is none, or it is switched off."""
    given = os.environ.get(SWITCH)
    try:
        if given is not None:
            return Path(given).expanduser().absolute() if given.strip() else None
        base = _usual()
    except (OSError, RuntimeError):  # nobody's home
        return None
    return base / "vitreous" if base is not None and base.is_absolute() else None


def cached(name: str) -> Path | None:
    """Return where a file of the cache is or will be; ``None`` if nothing is kept, or something else has its name."""
    folder = cache_folder()
    if folder is None:
        return None
    place = folder / name
    try:
        return place if not os.path.lexists(place) or (place.is_file() and not place.is_symlink()) else None
    except (OSError, ValueError):
        return None


def _usual() -> Path | None:
    """Return where the system wants caches."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"
