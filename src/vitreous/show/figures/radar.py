"""Several scores of several methods around one centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitreous.errors import VitreousError

from .heads import head, head_height, key, key_height, wrapped
from .style import FAINT, SMALL, SOFT_INK, Figure, Look, axes, height_of, line, looks, number, page, text, wide
from .style import width_of as inches_of

__all__ = ["radar"]

_AWAY = 0.07  # inches from the rim to a name
_RINGS = (0.25, 0.5, 0.75, 1.0)


def radar(
    dimensions: Sequence[str],
    values: Mapping[str, Sequence[float]],
    title: str = "",
    note: str = "",
    *,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    look: Mapping[str, Look] | None = None,
    width: str | float = "column",
) -> Figure:
    """Draw one outline per method; every axis goes from 0 in the centre to 1 at the rim, and says so.

    A value that is NaN leaves a gap. ``intervals`` are drawn along the axes.
    """
    count = len(dimensions)
    if count < 3:
        raise VitreousError(f"a radar needs at least three dimensions, not {count}")
    if not values:
        raise VitreousError("there are no methods to draw")
    for name, row in values.items():
        if len(row) != count:
            raise VitreousError(f"{name} has {len(row)} values for {count} dimensions")
        outside = [each for each in row if each < 0 or each > 1]
        if outside:
            raise VitreousError(f"{name} has {outside[0]:g}, and a radar goes from 0 to 1")
    names = list(values)
    look = looks(names) if look is None else look
    inches = inches_of(width)
    words = [wrapped(each, 0.24 * inches) or [""] for each in dimensions]
    turns = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    across = [max((wide(row, SMALL) for row in each), default=0.0) for each in words]
    beside = max(each * min(1.0, 1.5 * abs(np.cos(turn))) for each, turn in zip(across, turns, strict=True)) + 0.12
    radius = min(inches / 2 - beside, 1.5)
    heights = [_heights(np.sin(turn), len(each), radius) for each, turn in zip(words, turns, strict=True)]
    half = height_of(SMALL) / 2 + 0.02
    over = max(0.05, max(each[0] for each in heights) + half - radius)
    under = max(0.05, half - min(each[-1] for each in heights) - radius)
    top = head_height(title, note, inches) + 0.05 + over
    figure = page(inches, top + 2 * radius + under + 0.04 + key_height(names, inches))
    head(figure, title, note)
    made = axes(figure, inches / 2 - radius, top, 2 * radius, 2 * radius, frame=False)
    made.set_xlim(-1, 1)
    made.set_ylim(-1, 1)
    _web(made, turns, words, radius)
    for place, name in enumerate(names):
        _outline(made, turns, np.asarray(values[name], np.float64), look[name], name)
        if intervals is not None and name in intervals:
            shift = (place - (len(names) - 1) / 2) * 0.03
            _spans(made, turns, intervals[name], look[name], shift)
    key(figure, look, names)
    return figure


def _web(made: Any, turns: Any, words: Sequence[Sequence[str]], radius: float) -> None:
    closed = np.append(turns, turns[0])
    plain: dict[str, Any] = {"clip_on": False, "zorder": 0.5}
    for ring in _RINGS:
        colour, thick = (SOFT_INK, 0.6) if ring == 1 else (FAINT, 0.5)
        line(made, ring * np.cos(closed), ring * np.sin(closed), colour, thick, label="_ring", **plain)
    for turn, word in zip(turns, words, strict=True):
        line(made, [0, np.cos(turn)], [0, np.sin(turn)], FAINT, 0.5, label="_axis", **plain)
        x, y = np.cos(turn), np.sin(turn)
        side = "center" if abs(x) < 0.15 else "left" if x > 0 else "right"
        for row, height in zip(word, _heights(y, len(word), radius), strict=True):
            text(made, x * (1 + _AWAY / radius), height / radius, row, SMALL, ha=side, va="center", clip_on=False)
    between = (turns[0] + turns[1]) / 2
    inside = np.cos(np.pi / len(turns))  # where the straight rings are between two axes
    for ring in (0.0, 0.5, 1.0):
        place = (ring * inside * np.cos(between), ring * inside * np.sin(between))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8}
        mark = text(made, *place, number(ring), SMALL - 1, SOFT_INK, ha="center", va="center", zorder=5)
        mark.set_bbox(box)  # its padding is counted in the size of the text


def _heights(y: float, lines: int, radius: float) -> list[float]:
    """Return how many inches above the centre the lines of a name stand, at the height ``y`` of the rim."""
    up = (lines - 1) / 2 * (1 + (np.sign(y) if abs(y) > 0.3 else 0.0))  # lines above the place itself
    return [float((radius + _AWAY) * y + (up - row) * height_of(SMALL)) for row in range(max(1, lines))]


def _outline(made: Any, turns: Any, row: Any, look: Look, name: str) -> None:
    closed, angle = np.append(row, row[0]), np.append(turns, turns[0])
    x, y = closed * np.cos(angle), closed * np.sin(angle)
    how: dict[str, Any] = {"stroke": look.stroke, "mark": "o", "size": 2.4, "clip_on": False, "zorder": 3}
    line(made, x, y, look.colour, 0.9 if look.quiet else 1.3, label=name, **how)
    if not look.quiet and np.isfinite(row).all():
        made.fill(x, y, color=look.colour, alpha=0.06, linewidth=0, zorder=1)


def _spans(made: Any, turns: Any, spans: Sequence[tuple[float, float]], look: Look, shift: float) -> None:
    for turn, (low, high) in zip(turns, spans, strict=True):
        along, aside = np.array([np.cos(turn), np.sin(turn)]), np.array([-np.sin(turn), np.cos(turn)]) * shift
        (x0, y0), (x1, y1) = low * along + aside, high * along + aside
        how: dict[str, Any] = {"alpha": 0.6, "label": "_span", "clip_on": False, "zorder": 2}
        line(made, [x0, x1], [y0, y1], look.colour, 0.8, **how)
