"""Lines with bands: perturbation curves, and scores against a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError

from .heads import MOST_DIRECT, head, head_height, key, key_height, key_width, names_at_ends
from .style import (
    SIZE,
    SMALL,
    SOFT_INK,
    Figure,
    Look,
    axes,
    height_of,
    label,
    looks,
    nice,
    number,
    page,
    rules,
    text,
    ticks,
    wide,
    width_of,
)
from .style import line as stroke

__all__ = ["Line", "Panel", "limits", "lines"]

Floats = NDArray[np.float64]
_GAP = 0.14  # inches between a panel and the axis of the next


@dataclass(frozen=True, eq=False)
class Line:
    """``y`` over ``x`` under a name, with a band from ``low`` to ``high`` where they are given; NaN leaves a gap."""

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None

    def __post_init__(self) -> None:
        for each in (self.y, self.low, self.high):
            if each is not None and np.shape(each) != np.shape(self.x):
                raise VitreousError(f"{self.name}: {np.shape(each)} values do not fit {np.shape(self.x)} places")


@dataclass(frozen=True)
class Panel:
    """Some lines on one pair of axes: a title, what the axes show, and the levels that lines are compared with.

    ``marks`` puts a point on every value. ``places`` are the ticks of the x axis, if not round numbers.
    """

    title: str
    lines: Sequence[Line]
    across: str = ""
    up: str = ""
    note: str = ""
    marks: bool = False
    levels: Sequence[Line] = ()
    places: Sequence[float] = ()


def limits(values: Sequence[Any], zero: bool = False, room: float = 0.06) -> tuple[float, float]:
    """Return a range that holds all finite values, with a little room; with ``zero``, zero too."""
    flat = np.concatenate([np.ravel(np.asarray(each, np.float64)) for each in values]) if values else np.zeros(0)
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    span = high - low or max(abs(high), 1.0) * 0.1
    return (low - room * span if low else 0.0), high + room * span


def lines(
    panels: Sequence[Panel],
    title: str = "",
    note: str = "",
    *,
    look: Mapping[str, Look] | None = None,
    width: str | float | None = None,
    height: float = 1.75,
) -> Figure:
    """Draw panels side by side; up to six lines are named at their ends, more in a legend below."""
    if not panels or not any(panel.lines for panel in panels):
        raise VitreousError("there are no lines to draw")
    names = list(dict.fromkeys(line.name for panel in panels for line in (*panel.lines, *panel.levels)))
    look = looks(names) if look is None else look
    across = width_of(("column" if len(panels) == 1 else "page") if width is None else width)
    direct = len(names) <= MOST_DIRECT
    scales = [_scale([each for each in panels if each is panel or panel.up == each.up != ""]) for panel in panels]
    left = [_left(panel, scale) for panel, scale in zip(panels, scales, strict=True)]
    right = key_width(names) + 0.12 if direct else 0.08
    room = (across - sum(left) - right - _GAP * (len(panels) - 1)) / len(panels)
    if room < 0.5:
        raise VitreousError(f"{len(panels)} panels do not fit into {across:g} inches; choose a larger width")
    top = head_height(title, note, across) + 0.06
    titles = height_of(SIZE) + height_of(SMALL) * any(panel.note for panel in panels)
    titles = titles + 0.02 if any(panel.title for panel in panels) else 0.0
    below = 0.2 + height_of(SIZE) * any(panel.across for panel in panels)
    legend = 0.0 if direct else key_height(names, across)
    figure = page(across, top + titles + height + below + legend)
    head(figure, title, note)
    at = 0.0
    for number_, (panel, scale) in enumerate(zip(panels, scales, strict=True)):
        at += left[number_]
        made = axes(figure, at, top + titles, room, height)
        _draw(made, panel, scale, look, height)
        if direct and number_ == len(panels) - 1:
            ends = [_end(line, look) for line in (*panel.lines, *panel.levels)]
            names_at_ends(made, [end for end in ends if np.isfinite(end[2])], room, height)
        at += room + _GAP
    if not direct:
        key(figure, look, names)
    return figure


def _end(line: Line, look: Mapping[str, Look]) -> tuple[str, Look, float, float]:
    known = line.y[np.isfinite(line.y)]
    last, mean = (float(known[-1]), float(known.mean())) if len(known) else (np.nan, np.nan)
    return line.name, look[line.name], last, mean


def _scale(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return the range of panels that show the same thing."""
    lines = [line for panel in panels for line in (*panel.lines, *panel.levels)]
    values = [each for line in lines for each in (line.y, line.low, line.high)]
    return limits([each for each in values if each is not None])


def _left(panel: Panel, scale: tuple[float, float]) -> float:
    marks = max(wide(number(each), SMALL) for each in nice(*scale))
    return marks + 0.12 + (height_of(SIZE) + 0.03 if panel.up else 0.0)


def _draw(made: Any, panel: Panel, scale: tuple[float, float], look: Mapping[str, Look], height: float) -> None:
    made.set_ylim(*scale)
    marks = nice(*scale)
    ticks(made, "y", marks, [number(each) for each in marks])
    places = np.concatenate([line.x for line in panel.lines])
    low, high = float(np.nanmin(places)), float(np.nanmax(places))
    margin = 0.04 * (high - low) if panel.marks else 0.0
    if high == low:
        margin = 0.5
    made.set_xlim(low - margin, high + margin)
    rules(made, "y", marks)
    below = list(panel.places) or nice(low, high)
    ticks(made, "x", below, [number(each) for each in below])
    for line in panel.levels:
        _line(made, line, look[line.name], False, np.array([low - margin, high + margin]))
    for line in panel.lines:
        _line(made, line, look[line.name], panel.marks or len(line.x) == 1)
    if panel.across:
        label(made, "x", panel.across)
    if panel.up:
        label(made, "y", panel.up)
    above = 1 + 0.05 / height
    how: dict[str, Any] = {"transform": made.transAxes, "ha": "left", "va": "bottom"}
    if panel.note:
        text(made, 0, above, panel.note, SMALL, SOFT_INK, **how)
        above += height_of(SMALL) / height
    if panel.title:
        text(made, 0, above, panel.title, **how)


def _line(made: Any, line: Line, look: Look, marks: bool, over: Floats | None = None) -> None:
    x, y, low, high = line.x, line.y, line.low, line.high
    if over is not None:  # one value for all places
        x, y = over, np.repeat(y[:1], 2)
        low, high = (None if each is None else np.repeat(each[:1], 2) for each in (low, high))
    if low is not None and high is not None:
        made.fill_between(x, low, high, color=look.colour, alpha=0.10 if look.quiet else 0.15, linewidth=0, zorder=1)
    how: dict[str, Any] = {"stroke": look.stroke, "mark": "o" if marks else "none", "zorder": 2 if look.quiet else 3}
    stroke(made, x, y, look.colour, 0.9 if look.quiet else 1.3, label=line.name, **how)
