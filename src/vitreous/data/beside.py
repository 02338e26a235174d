"""Folders of scenes, as ``vitreous world render`` writes them: which of their files are no photographs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from vitreous import disk

__all__ = ["masks"]

_MOST_BYTES = 2**28


def masks(folder: Path) -> frozenset[str]:
    """Return the names of the masks that the ``scenes.json`` of a folder lists; none where there is no such file."""
    place = folder / "scenes.json"
    if not os.path.isfile(place):
        return frozenset()
    try:
        told = json.loads(disk.read_file(place, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    scenes = told.get("scenes") if isinstance(told, dict) else None
    if not isinstance(scenes, list) or not str(told.get("schema")).startswith("vitreous.scenes/"):
        return frozenset()
    return frozenset(str(each["mask"]) for each in scenes if isinstance(each, dict) and "mask" in each)
