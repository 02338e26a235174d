"""The words for sources, and what opens each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.data.sets.source import DataSource, Entry
from vitreous.errors import ImageError, SpellingError, nearest

__all__ = ["KINDS", "Found", "Kind", "find_kind", "register_source", "source_kind"]


@dataclass(frozen=True, eq=False)
class Found:
    """What a kind of source finds: every entry, before any is chosen.

    ``make`` builds the source where its pictures are made of several entries: it is handed these, how many pictures
    are wanted and the seed, and chooses itself. The ``entries`` of what it returns are the pictures that it makes.
    """

    entries: Sequence[Entry]
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    note: str = ""
    make: Callable[..., DataSource] | None = None


@dataclass(frozen=True)
class Kind:
    """A word, and the function that opens what it means: of a path, or of nothing where all is rendered."""

    word: str
    opener: Callable[..., Found] = field(repr=False)
    needs_path: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """What can be asked for beside the path."""
        return tuple(inspect.signature(self.opener).parameters)[1:]

    def open(self, path: str | Path | None, **more: Any) -> Found:
        """Find what is there."""
        if self.needs_path and path is None:
            raise ImageError(f"{self.word}: where is it? give a path")
        for name in more:
            if name not in self.options:
                takes = f"; it takes {', '.join(self.options)}" if self.options else ""
                raise SpellingError(f"{self.word} takes no {name}{takes}")
        return self.opener(None if path is None else Path(path).expanduser(), **more)


KINDS: dict[str, Kind] = {}


def register_source(word: str, opener: Callable[..., Found], *, needs_path: bool = True) -> None:
    """Add a word. ``opener`` takes the path, then its own options by name, and returns what is ``Found``."""
    if word in KINDS:
        raise SpellingError(f"two sources are called {word!r}")
    KINDS[word] = Kind(word, opener, needs_path)


def source_kind(word: str, **how: bool) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Register the function below as what opens a word."""

    def registered(opener: Callable[..., Found]) -> Callable[..., Found]:
        register_source(word, opener, **how)
        return opener

    return registered


def find_kind(word: str, elsewhere: dict[str, str]) -> Kind:
    """Return a kind of source by its word; ``elsewhere`` says what to do about words that others add."""
    if word in KINDS:
        return KINDS[word]
    if word in elsewhere:
        raise ImageError(f"{word}: {elsewhere[word]}")
    raise SpellingError(f"unknown source {word!r}{nearest(word, [*KINDS, *elsewhere])}")
