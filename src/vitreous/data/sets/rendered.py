"""Pictures that are rendered when they are asked for: how rooms above this one add a word such as ``world``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PIL import Image
from torch import Tensor

from vitreous.data.pictures import Picture
from vitreous.data.sets.kinds import Found
from vitreous.data.sets.source import Entry
from vitreous.data.truth import Truth

__all__ = ["ELSEWHERE", "rendered"]

ELSEWHERE = {
    "world": "its scenes are rendered, and the part of Vitreous that does so has not added the word (register_source)",
}
"""Words that belong to rooms above this one, and what to do about them."""


def rendered(
    labels: Sequence[int],
    draw: Callable[[int], Image.Image | Tensor],
    truth: Callable[[int], Truth] | None = None,
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


def _truth(truth: Callable[[int], Truth], place: int, picture: Picture) -> Truth:
    return truth(place)
