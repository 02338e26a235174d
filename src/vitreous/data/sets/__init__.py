"""Sources of data by one word each: what a benchmark file names, listed without opening a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitreous.data.sets import cifar, coco, folders, funnybirds, hub, imagenet, mura, quads, segmented, tables
from vitreous.data.sets.choose import CHOICES, chosen
from vitreous.data.sets.kinds import KINDS, Found, Kind, find_kind, register_source
from vitreous.data.sets.quads import GridSource
from vitreous.data.sets.rendered import ELSEWHERE, rendered
from vitreous.data.sets.source import DataSource, Entry, Unreadable
from vitreous.errors import ImageError, SpellingError, one_line

__all__ = [
    "CHOICES",
    "DataSource",
    "Entry",
    "Found",
    "GridSource",
    "Kind",
    "Unreadable",
    "open_source",
    "register_source",
    "rendered",
    "source_words",
]

# importing them adds their words
_BUILT_IN = (cifar, coco, folders, funnybirds, hub, imagenet, mura, quads, segmented, tables)


def source_words() -> tuple[str, ...]:
    """The words that ``open_source`` knows here and now."""
    return tuple(sorted(KINDS))


def open_source(
    word: str,
    path: str | Path | None = None,
    *,
    images: int = 0,
    choose: str = "first",
    seed: int = 0,
    listed: Iterable[str] | str | Path | None = None,
    size: int | None = None,
    **more: Any,
) -> DataSource:
    """List a source of data and choose of it: all pictures with ``images=0``, else as many.

    ``choose``: the ``"first"``, ``"random"`` ones, as many ``"per-class"``, or those ``"listed"`` (names, or a file of
    them). ``size`` is the side of pictures that are rendered. ``more`` are options of the word's own, such as
    ``split``. A layout that does not fit is an ``ImageError`` that says what was expected and what was found.
    """
    kind = find_kind(word, ELSEWHERE)
    found = kind.open(path, **({} if size is None else {"size": size}), **more)
    twice = next((name for name, times in Counter(each.name for each in found.entries).items() if times > 1), None)
    if twice is not None:
        raise ImageError(f"{word}: two pictures are called {one_line(twice)}")
    where = None if path is None else Path(path).expanduser()
    if found.make is None:
        taken = chosen(word, found.entries, images, choose, seed, listed)
        return DataSource(word, tuple(taken), where, found.classes, found.names, found.note)
    if choose == "per-class":
        raise SpellingError(f"{word} cannot choose per-class: each of its pictures shows several")
    usable = chosen(word, found.entries, 0, "listed" if choose == "listed" else "first", seed, listed)
    return found.make(usable, images, seed)
