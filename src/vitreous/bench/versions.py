"""Which code made a number: the version of Vitreous and of what it runs with, as plans and units record them.

Units are known by what they measure, not by the code that measures. So a run that another version goes on with keeps
what it has and adds to it; that this happened is said when it does, and told unit by unit in the report.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.judge.foreign import Foreign
from vitreous.methods import Method

__all__ = ["mixed", "versions"]

_ROOMS = ("data", "judge", "methods", "metrics", "models", "passes", "words", "world")
"""Where a change of the code can change a number."""


def versions(hows: Mapping[str, Method | Foreign] | None = None) -> dict[str, str]:
    """Return the version of Vitreous, of torch, and of the packages that methods of others come from."""
    found = {"vitreous": _own(), "torch": str(torch.__version__)}
    for text, how in (hows or {}).items():
        for package in _packages(text, how):
            offered = _offered(package)
            if offered is not None:
                found[package] = offered
    return found


@cache
def _own() -> str:
    """The version with a digest of the code: between two releases, it alone tells that something changed."""
    root, told = Path(__file__).parents[1], hashlib.blake2b(digest_size=4)
    for file in sorted(each for room in _ROOMS for each in (root / room).rglob("*.py")):
        told.update(file.relative_to(root).as_posix().encode() + file.read_bytes().replace(b"\r\n", b"\n"))
    return f"{__version__} ({told.hexdigest()})"


def _packages(text: str, how: Method | Foreign) -> set[str]:
    """Return the packages that a method is from, but for our own."""
    if isinstance(how, Method):
        places = {type(part).__module__ for part in how.parts()}
    else:
        places = {text.partition(":")[0]} if how.live else set()
    return {place.partition(".")[0] for place in places} - {"vitreous"}


def _offered(package: str) -> str | None:
    """Return the version that a package says it has, if it says any."""
    told = getattr(sys.modules.get(package), "__version__", None)
    if told is None:
        try:
            told = metadata.version(package)
        except (metadata.PackageNotFoundError, ValueError):
            return None
    return str(told)


def mixed(units: Iterable[Mapping[str, Any] | None], here: Mapping[str, str]) -> str:
    """Return in a line which finished units are from other versions than those here; nothing where none is.

    ``units`` are what finished units say. Another torch is no other version: it changes last digits, as devices do.
    """
    known = Counter(
        (package, version)
        for said in units
        for package, version in (said or {}).get("versions", {}).items()
        if package != "torch" and version != here.get(package, version)
    )
    told = [f"{count} units were done by {package} {version}" for (package, version), count in known.items()]
    now = ", ".join(f"{package} {here[package]}" for package in dict.fromkeys(package for package, _ in known))
    return f"{', '.join(told)}, and what is left will be by {now}" if told else ""
