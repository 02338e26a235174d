"""The word ``world`` for sources of data: scenes with labels and every part known, rendered one at a time."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from PIL import Image

from vitreous.data import Truth
from vitreous.data.sets import Found, register_source, rendered, source_words
from vitreous.models import register_adapter
from vitreous.world.adapter import ADAPTER
from vitreous.world.creatures import NAMES
from vitreous.world.files import pictures
from vitreous.world.known import truths
from vitreous.world.sets import World

__all__ = ["add_world", "scenes"]

_AT_ONCE = 32


def scenes(
    path: Path | None = None,
    size: int = 128,
    split: str = "test",
    n: int = 1000,
    start: int = 0,
    shortcut: bool = False,
) -> Found:
    """Find ``n`` scenes of a split; the pictures are as large as the model's, so that the truth is in its pixels."""

    @lru_cache(maxsize=2)
    def some(number: int) -> tuple[list[Image.Image], list[Truth]]:
        """Render neighbours together: one alone costs nearly as much."""
        first = number * _AT_ONCE
        drawn, seen = next(World(split, min(_AT_ONCE, n - first), size, start + first, shortcut).batches())
        return list(pictures(seen.images)), list(truths(drawn, seen))

    def draw(place: int) -> Image.Image:
        return some(place // _AT_ONCE)[0][place % _AT_ONCE]

    def truth(place: int) -> Truth:
        return some(place // _AT_ONCE)[1][place % _AT_ONCE]

    labels = World(split, n, size, start, shortcut).labels
    return rendered(labels, draw, truth, tuple(NAMES), note=f"scenes of the split {split} from {start} on")


def add_world() -> None:
    """Let sources of data know the word ``world``, and models the bundled ones."""
    register_adapter(ADAPTER)
    if "world" not in source_words():
        register_source("world", scenes, needs_path=False)
