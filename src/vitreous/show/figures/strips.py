"""Rows of small pictures: perturbed images step by step, and maps while a model is randomised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from vitreous.errors import VitreousError

from ..colour import Scale
from ..overlay import heatmap
from .heads import head, head_height
from .style import INK, SMALL, SOFT_INK, Figure, axes, height_of, page, shortened, text, wide
from .style import width_of as inches_of

__all__ = ["cascade", "strips"]

_DOTS = 300  # per inch, of a picture in a figure
_GAP = 0.04


def strips(
    rows: Mapping[str, Sequence[Image.Image]],
    columns: Sequence[str] = (),
    notes: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
    note: str = "",
    *,
    width: str | float = "page",
) -> Figure:
    """Draw one row of pictures per method, what the columns are above them, and a note under each picture."""
    if not rows or not all(len(each) for each in rows.values()):
        raise VitreousError("there are no pictures to draw")
    most = max(len(each) for each in rows.values())
    for name, each in (notes or {}).items():
        if name not in rows or len(each) != len(rows[name]):
            raise VitreousError(f"the notes of {name!r} do not fit its pictures")
    if columns and len(columns) != most:
        raise VitreousError(f"{len(columns)} names do not fit {most} columns of pictures")
    inches = inches_of(width)
    names = [shortened(name, 0.2 * inches, SMALL) for name in rows]
    left = max(wide(name, SMALL) for name in names) + 0.13 if any(names) else 0.05
    tile = (inches - left - 0.05 - _GAP * (most - 1)) / most
    if tile < 0.12:
        raise VitreousError(f"{most} pictures do not fit side by side into {inches:g} inches; choose fewer, or a width")
    pictures = {name: [each.convert("RGB") for each in row] for name, row in rows.items()}
    tall = [max(each.height / each.width for each in row) * tile for row in pictures.values()]
    line = height_of(SMALL)
    under = line if notes else 0.0
    top = head_height(title, note, inches) + (line if columns else 0.0) + 0.03
    figure = page(inches, top + sum(tall) + (under + _GAP) * len(tall))
    head(figure, title, note)
    total = figure.get_size_inches()[1]
    for at, words in enumerate(columns):
        middle = left + at * (tile + _GAP) + tile / 2
        short = shortened(words, tile + _GAP, SMALL)
        text(figure, middle / inches, 1 - (top - 0.03) / total, short, SMALL, SOFT_INK, ha="center", va="bottom")
    for place, (name, row) in enumerate(pictures.items()):
        down = 1 - (top + tall[place] / 2) / total
        text(figure, (left - 0.08) / inches, down, names[place], SMALL, INK, ha="right", va="center")
        for at, picture in enumerate(row):
            across = left + at * (tile + _GAP)
            _tile(figure, picture, across, top, tile)
            if notes and name in notes:
                below = 1 - (top + tall[place] + 0.015) / total
                words = shortened(notes[name][at], tile + _GAP, SMALL)
                text(figure, (across + tile / 2) / inches, below, words, SMALL, INK, ha="center", va="top")
        top += tall[place] + under + _GAP
    return figure


def _tile(figure: Figure, picture: Image.Image, left: float, top: float, wide: float) -> None:
    high = wide * picture.height / picture.width
    size = (max(1, round(wide * _DOTS)), max(1, round(high * _DOTS)))
    if size[0] < picture.width:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    made = axes(figure, left, top, wide, high, frame=False)
    # embedded as it is: matplotlib would otherwise draw it anew in the few dots of a screen
    made.imshow(np.asarray(picture), interpolation="none", aspect="auto", origin="upper")


def cascade(
    rows: Mapping[str, Sequence[Any]],
    stages: Sequence[str],
    similarity: Mapping[str, Sequence[float]] | None = None,
    title: str = "",
    note: str = "",
    *,
    signed: Mapping[str, bool | None] | None = None,
    width: str | float = "page",
) -> Figure:
    """Draw the maps of every method, stage by stage of a randomisation, with the similarity to the first under each.

    Every map has a scale of its own, the 99th percentile of ``|value|``: places are compared, not sizes.
    """
    pictures: dict[str, list[Image.Image]] = {}
    for name, maps in rows.items():
        own = [np.asarray(each, np.float64) for each in maps]
        both = (signed or {}).get(name)
        both = any((each < 0).any() for each in own) if both is None else both
        scales = [Scale.of([each], 99.0, both) for each in own]
        pictures[name] = [heatmap(each, scale, (160, 160)) for each, scale in zip(own, scales, strict=True)]
    said = {
        name: ["–" if not np.isfinite(each) else f"{each:.2f}".replace("-", "−") for each in row]
        for name, row in (similarity or {}).items()
    }
    return strips(pictures, stages, said or None, title, note, width=width)
