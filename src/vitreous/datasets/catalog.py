"""Sources of data by one word each: what a benchmark file names, listed without opening a picture.

Pictures that are rendered when they are asked for: how rooms above this one add a word such as ``world``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitreous.datasets import (
    coco,
    funnybirds,
    imagenet,
)
from vitreous.datasets import (
    files as folders,
)
from vitreous.datasets import (
    files as tables,
)
from vitreous.datasets import (
    grid_source as quads,
)
from vitreous.datasets import (
    imagenet as segmented,
)
from vitreous.datasets import (
    public as cifar,
)
from vitreous.datasets import (
    public as hub,
)
from vitreous.datasets import (
    public as mura,
)
from vitreous.datasets.annotations import Annotation
from vitreous.datasets.dataset import (
    CHOICES,
    KINDS,
    DataSource,
    Entry,
    Found,
    Kind,
    Unreadable,
    chosen,
    find_kind,
    register_source,
)
from vitreous.datasets.grid_source import GridSource
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, SpecError, one_line

__all__ = [
    "CHOICES",
    "DataSource",
    "ELSEWHERE",
    "Entry",
    "Found",
    "GridSource",
    "Kind",
    "Unreadable",
    "open_source",
    "register_source",
    "rendered_source",
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
    twice = next((name for name, times in Counter(entry.name for entry in found.entries).items() if times > 1), None)
    if twice is not None:
        raise ImageError(f"{word}: two pictures are called {one_line(twice)}")
    where = None if path is None else Path(path).expanduser()
    if found.make is None:
        taken = chosen(word, found.entries, images, choose, seed, listed)
        return DataSource(word, tuple(taken), where, found.classes, found.names, found.note)
    if choose == "per-class":
        raise SpecError(f"{word} cannot choose per-class: each of its pictures shows several")
    usable = chosen(word, found.entries, 0, "listed" if choose == "listed" else "first", seed, listed)
    return found.make(usable, images, seed)


ELSEWHERE = {
    "world": "its scenes are rendered, and the part of Vitreous that does so has not added the word (register_source)",
}
"""Words that belong to rooms above this one, and what to do about them."""


def rendered_source(
    labels: Sequence[int],
    draw: Callable[[int], Image.Image | Tensor],
    truth: Callable[[int], Annotation] | None = None,
    names: tuple[str, ...] = (),
    note: str = "",
    name: str = "scene-{:06d}",
) -> Found:
    """Return what a rendering source finds: ``draw(place)`` is a picture, ``truth(place)`` what is known about it."""
    entries = []
    for place, label in enumerate(labels):
        known = None if truth is None else partial(_truth, truth, place)
        entries.append(Entry(name.format(place), label=label, opener=partial(draw, place), known=known))
    return Found(entries, names=names, note=note)


def _truth(truth: Callable[[int], Annotation], place: int, picture: LoadedImage) -> Annotation:
    return truth(place)
