"""Sources of data by one name each: what a benchmark file names, listed without opening an image."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.datasets.dataset import DataSource, Entry, select_entries
from vitreous.errors import ImageError, SpecError, nearest, one_line


@dataclass(frozen=True, eq=False)
class Listing:
    """What a source lists: every entry, before any is chosen.

    ``classes`` are those that the softmax is restricted to, where the data set has fewer than the models for it;
    ``names`` the words of its labels in order; ``note`` says in a line where the labels came from. ``make`` builds the
    data set where its images are made of several entries: it takes these, how many images are wanted and the seed, and
    chooses itself. The ``entries`` of what it returns are the images that it makes.
    """

    entries: Sequence[Entry]
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    note: str = ""
    make: Callable[..., DataSource] | None = None


FORMATS: dict[str, tuple[Callable[..., Listing], bool]] = {}
"""By the name of a format or data set, the function that lists what is at a path, and whether it needs one."""


def register_source(
    name: str, *, needs_path: bool = True
) -> Callable[[Callable[..., Listing]], Callable[..., Listing]]:
    """Add a source of data: decorates a function of a path, and of options by name, that returns a ``Listing``."""

    def register(opener: Callable[..., Listing]) -> Callable[..., Listing]:
        if name in FORMATS:
            raise SpecError(f"two sources are called {name!r}")
        FORMATS[name] = opener, needs_path
        return opener

    return register


def source_names() -> tuple[str, ...]:
    """Return the names that ``open_source`` knows here and now."""
    return tuple(sorted(FORMATS))


def open_source(
    name: str,
    path: str | Path | None = None,
    *,
    images: int = 0,
    choose: str = "first",
    seed: int = 0,
    listed: Iterable[str] | str | Path | None = None,
    **options: Any,
) -> DataSource:
    """List a source of data and choose of it; no image is opened.

    Parameters
    ----------
    name : str
        The format or data set, one of ``source_names()``.
    path : str or Path, optional
        Where it is; sources that render need none.
    images : int, default 0
        How many images to take, 0 for all.
    choose : {"first", "random", "per-class", "listed"}, default "first"
        Which ones; see ``select_entries``.
    seed : int, default 0
        For ``"random"`` and ``"per-class"``.
    listed : list of str or a path, optional
        The names for ``"listed"``, or a text or JSON file of them.
    **options
        Options of the source, such as ``split``, or ``size`` for images that are rendered.

    Returns
    -------
    DataSource

    Raises
    ------
    ImageError
        If the layout does not fit; it says what was expected and what was found.
    """
    if name not in FORMATS:
        raise SpecError(f"unknown source {name!r}{nearest(name, FORMATS)}")
    opener, needs_path = FORMATS[name]
    root = None if path is None else Path(path).expanduser()
    if needs_path and root is None:
        raise ImageError(f"{name}: where is it? give a path")
    _, *names = inspect.signature(opener).parameters
    for option in options:
        if option not in names:
            raise SpecError(f"{name} takes no {option}" + (f"; it takes {', '.join(names)}" if names else ""))
    listing = opener(root, **options)
    twice = next((other for other, count in Counter(e.name for e in listing.entries).items() if count > 1), None)
    if twice is not None:
        raise ImageError(f"{name}: two images are called {one_line(twice)}")
    if listing.make is None:
        entries = select_entries(name, listing.entries, images, choose, seed, listed)
        return DataSource(name, tuple(entries), root, listing.classes, listing.names, listing.note)
    if choose == "per-class":
        raise SpecError(f"{name} cannot choose per-class: each of its images shows several")
    usable = select_entries(name, listing.entries, 0, "listed" if choose == "listed" else "first", seed, listed)
    return listing.make(usable, images, seed)
