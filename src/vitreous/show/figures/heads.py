"""What stands around every drawing: a title, a line under it, and names at the ends of lines or in a legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .style import INK, SIZE, SMALL, SOFT_INK, Figure, Look, height_of, shortened, text, wide

__all__ = ["MOST_DIRECT", "head", "head_height", "key", "key_height", "key_width", "names_at_ends", "wrapped"]

MOST_DIRECT = 6
"""So many lines are named at their ends; more of them in a legend."""
_LONGEST = 1.5  # inches of a name beside a line
_STROKE = 0.22  # inches of a sample of a line in a legend


def wrapped(words: str, limit: float, size: float = SMALL) -> list[str]:
    """Return words on lines of at most so many inches."""
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and wide(longer, size) <= limit:
            lines[-1] = longer
        else:
            lines.append(shortened(word, limit, size))
    return lines


def head_height(title: str, note: str, width: float) -> float:
    """Return the inches that title and note take."""
    lines = len(wrapped(note, width - 0.1)) if note else 0
    return (height_of(SIZE) if title else 0.0) + lines * height_of(SMALL) + (0.06 if title or note else 0.0)


def head(figure: Figure, title: str, note: str) -> None:
    """Write the title, and the note under it, at the top left."""
    width, height = figure.get_size_inches()
    top, left = 0.03, 0.05 / width
    if title:
        words = shortened(title, width - 0.1, SIZE, True)
        text(figure, left, 1 - top / height, words, bold=True, ha="left", va="top")
        top += height_of(SIZE)
    for line in wrapped(note, width - 0.1) if note else ():
        text(figure, left, 1 - top / height, line, SMALL, SOFT_INK, ha="left", va="top")
        top += height_of(SMALL)


def names_at_ends(
    axes: Any, ends: Sequence[tuple[str, Look, float, float]], wide: float, high: float, size: float = SMALL
) -> None:
    """Write the name of every line to the right of axes of ``wide`` times ``high`` inches.

    ``ends`` has name, look, the last value and the mean of each line. Names keep clear of each other; lines that end
    in one place are named in the order of their means.
    """
    low, top = axes.get_ylim()
    step = height_of(size) / high
    place = {name: (last - low) / (top - low) for name, _, last, _ in ends}
    order = sorted(ends, key=lambda end: (round(place[end[0]] / step), end[3]))
    spread = _apart([place[end[0]] for end in order], step)
    for (name, look, _, _), at in zip(order, spread, strict=True):
        how: dict[str, Any] = {"transform": axes.transAxes, "ha": "left", "va": "center", "clip_on": False}
        text(axes, 1 + 0.05 / wide, at, shortened(name, _LONGEST, size), size, look.colour, **how)


def _apart(places: Sequence[float], step: float) -> list[float]:
    """Return places, in order, moved until neighbours are a step apart: blocks that collide share their middle."""
    blocks: list[list[float]] = []  # sum of the wishes for the first of a block, and how many stand in it
    for place in places:
        blocks.append([place, 1])
        while len(blocks) > 1:
            (wish, many), (last, few) = blocks[-2:]
            if wish / many + many * step <= last / few:
                break
            blocks[-2:] = [[wish + last - few * many * step, many + few]]
    apart = [wish / many + number * step for wish, many in blocks for number in range(int(many))]
    lowest = step / 2  # below that are the numbers of the x axis
    for at, place in enumerate(apart):
        apart[at] = max(place, lowest)
        lowest = apart[at] + step
    return apart


def key_width(names: Sequence[str], size: float = SMALL) -> float:
    """Return the inches that names beside lines take."""
    return max((wide(shortened(name, _LONGEST, size), size) for name in names), default=0.0)


def _columns(names: Sequence[str], width: float) -> int:
    each = key_width(names) + _STROKE + 0.2
    return max(1, min(len(names), int((width - 0.1) / each)))


def key_height(names: Sequence[str], width: float) -> float:
    """Return the inches that a legend takes."""
    return -(-len(names) // _columns(names, width)) * height_of(SMALL) + 0.06


def key(figure: Figure, look: Mapping[str, Look], names: Sequence[str], line: bool = True) -> None:
    """Draw a legend along the lower edge of a figure, column by column."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    columns = _columns(names, width)
    rows = -(-len(names) // columns)
    each = key_width(names) + _STROKE + 0.2
    for at, name in enumerate(names):
        left = 0.05 + (at // rows) * each
        up = (rows - at % rows - 0.5) * height_of(SMALL) + 0.03
        sample: dict[str, Any] = {"color": look[name].colour, "linewidth": 1.2, "linestyle": look[name].stroke}
        sample |= {"marker": "none", "solid_capstyle": "butt", "dash_capstyle": "butt"}
        if not line:
            sample |= {"linestyle": "none", "marker": look[name].mark, "markersize": 3.2, "markeredgewidth": 0}
        across = [left / width, (left + _STROKE) / width] if line else [(left + _STROKE / 2) / width]
        figure.add_artist(Line2D(across, [up / height] * len(across), **sample))
        words = shortened(name, _LONGEST, SMALL)
        text(figure, (left + _STROKE + 0.05) / width, up / height, words, SMALL, INK, ha="left", va="center_baseline")
