"""Means with intervals: of all methods, and by the model's confidence; and counts.

Lines with bands: perturbation curves, and scores against a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError
from vitreous.viz.canvas import INK, SOFT_INK
from vitreous.viz.plots.style import (
    MOST_DIRECT,
    SIZE,
    SMALL,
    Figure,
    Look,
    axes,
    head,
    head_height,
    height_of,
    key,
    key_height,
    key_width,
    label,
    line,
    looks,
    names_at_ends,
    nice,
    number,
    page,
    rules,
    shortened,
    text,
    ticks,
    wide,
    width_of,
)
from vitreous.viz.plots.style import line as stroke

__all__ = [
    "Line",
    "Mean",
    "Panel",
    "bars",
    "bins",
    "histogram",
    "limits",
    "lines",
]

_THIN = "#b9bdc5"
_ROW = 0.17  # inches of a method


@dataclass(frozen=True)
class Mean:
    """A mean with its interval; NaN where there is none. ``count`` things were averaged, and few of them are thin."""

    value: float
    low: float
    high: float
    count: int = 0
    thin: bool = False


def bars(
    means: Mapping[str, Mean],
    title: str = "",
    note: str = "",
    *,
    higher_is_better: bool = True,
    look: Mapping[str, Look] | None = None,
    width: str | float = "column",
) -> Figure:
    """Draw one bar from zero for every method, the best on top, with its interval and its number."""
    if not means:
        raise VitreousError("there are no means to draw")
    look = looks(list(means)) if look is None else look
    sign = -1 if higher_is_better else 1
    there = [name for name, mean in means.items() if not math.isnan(mean.value)]
    order = sorted(there, key=lambda name: sign * means[name].value) + [name for name in means if name not in there]
    across = width_of(width)
    names = [shortened(name, 0.42 * across, SMALL) for name in order]
    left = max(wide(name, SMALL) for name in names) + 0.12
    values = _alike([means[name].value for name in order[: len(there)]])
    written = values + ["no score"] * (len(order) - len(there))
    right = max(wide(each, SMALL) for each in written) + 0.1
    top, high = head_height(title, note, across) + 0.05, _ROW * len(order)
    figure = page(across, top + high + 0.24)
    head(figure, title, note)
    room = across - left - right
    made = axes(figure, left, top, room, high)
    made.set_ylim(len(order) - 0.5, -0.5)
    made.set_xlim(*_range([means[name] for name in there]))
    made.spines["left"].set_visible(False)
    ticks(made, "y", range(len(order)), names)
    made.tick_params(axis="y", length=0)
    marks = nice(*made.get_xlim())
    ticks(made, "x", marks, [number(mark) for mark in marks])
    rules(made, "x", marks)
    line(made, [0, 0], made.get_ylim(), SOFT_INK, zorder=3, label="_zero", scalex=False, scaley=False)
    for row, (name, words) in enumerate(zip(order, written, strict=True)):
        mean, colour = means[name], look[name].colour
        if name in there:
            made.barh(row, mean.value, 0.62, color=colour, alpha=0.35, linewidth=0, label=name, zorder=2)
            line(made, [mean.low, mean.high], [row, row], colour, 1.6, zorder=4, label="_interval")
        how: dict[str, Any] = {"transform": made.get_yaxis_transform(), "ha": "left", "va": "center_baseline"}
        text(made, 1 + 0.06 / room, row, words, SMALL, INK if name in there else SOFT_INK, **how)
    return figure


def _alike(values: Sequence[float]) -> list[str]:
    """Return numbers with as many decimals each: three digits of the largest."""
    largest = max((abs(value) for value in values), default=0.0)
    decimals = 2 - math.floor(math.log10(largest)) if largest > 0 else 2
    if not -3 <= decimals <= 6:
        return [number(float(f"{value:.3g}")) for value in values]
    return [f"{value:.{max(0, decimals)}f}".replace("-", "−") for value in values]


def _apart(edges: Sequence[float]) -> list[str]:
    """Return edges with the fewest digits that tell them apart."""
    for digits in (2, 3, 4, 5):
        words = [number(float(f"{edge:.{digits}g}")) for edge in edges]
        if len(set(words)) == len(set(edges)):
            break
    return words


def _range(means: Sequence[Mean]) -> tuple[float, float]:
    return limits([each for mean in means for each in (mean.value, mean.low, mean.high)], zero=True, room=0.04)


def bins(
    edges: Sequence[float],
    means: Mapping[str, Sequence[Mean]],
    title: str = "",
    note: str = "",
    *,
    across: str = "confidence of the model",
    up: str = "",
    look: Mapping[str, Look] | None = None,
    width: str | float = "page",
) -> Figure:
    """Draw the means of every method bin by bin, and below them how many things each bin holds.

    Thin bins are pale on grey. ``edges`` are where the bins begin and, last, where they end.
    """
    names = list(means)
    if not names or any(len(each) != len(edges) - 1 for each in means.values()) or len(edges) < 2:
        raise VitreousError(f"every method needs a mean in each of the {max(0, len(edges) - 1)} bins")
    look = looks(names) if look is None else look
    inches, count = width_of(width), len(edges) - 1
    scale = limits([[mean.value, mean.low, mean.high] for each in means.values() for mean in each])
    marks = nice(*scale)
    holds = [max(means[name][at].count for name in names) for at in range(count)]
    left = max([wide(number(mark), SMALL) for mark in marks] + [wide(str(max(holds)), SMALL)]) + 0.12
    left += height_of(SIZE) + 0.03
    top, high, low, gap = head_height(title, note, inches) + 0.05, 1.6, 0.35, 0.08
    legend = key_height(names, inches)
    figure = page(inches, top + high + gap + low + 0.38 + legend)
    head(figure, title, note)
    room = inches - left - 0.2
    upper = axes(figure, left, top, room, high)
    lower = axes(figure, left, top + high + gap, room, low)
    for made in (upper, lower):
        made.set_xlim(0, count)
    upper.set_ylim(*scale)
    upper.spines["bottom"].set_visible(False)
    ticks(upper, "y", marks, [number(mark) for mark in marks])
    label(upper, "y", up)
    for made in (upper, lower):
        made.yaxis.set_label_coords(-(left - height_of(SIZE) - 0.03) / room, 0.5)
    rules(upper, "y", marks)
    for place, name in enumerate(names):
        shift = 0.5 + (place - (len(names) - 1) / 2) * min(0.16, 0.7 / len(names))
        _binned(upper, shift, means[name], look[name], name)
    thin = [any(means[name][at].thin for name in names) for at in range(count)]
    for at in [at for at in range(count) if thin[at] and holds[at]]:
        upper.axvspan(at, at + 1, facecolor=_THIN, edgecolor="none", alpha=0.25, linewidth=0, zorder=0.4)
    colours = [_THIN if each else SOFT_INK for each in thin]
    lower.bar([at + 0.5 for at in range(count)], holds, 0.8, color=colours, alpha=0.6, linewidth=0)
    lower.set_ylim(0, 1.05 * max(max(holds), 1))
    ticks(lower, "y", [0, max(holds)] if max(holds) else [0], ["0", str(max(holds))] if max(holds) else ["0"])
    label(lower, "y", "images")
    words = _apart(edges)
    step = math.ceil((count + 1) * (max(wide(word, SMALL) for word in words) + 0.08) / room)
    shown = range(0, count + 1, step)
    ticks(lower, "x", shown, [words[at] for at in shown])
    label(lower, "x", across)
    key(figure, look, names, line=False)
    return figure


def _binned(made: Any, shift: float, means: Sequence[Mean], look: Look, name: str) -> None:
    x = [at + shift for at in range(len(means))]
    y = [mean.value for mean in means]
    line(made, x, y, look.colour, 0.5, stroke=look.stroke, alpha=0.5, label=name, zorder=2)
    for at, mean in zip(x, means, strict=True):
        if math.isnan(mean.value):
            continue
        pale: dict[str, Any] = {"alpha": 0.45 if mean.thin else 1.0, "label": "_bin"}
        line(made, [at, at], [mean.low, mean.high], look.colour, 1, zorder=3, **pale)
        line(made, [at], [mean.value], look.colour, 0, mark=look.mark, size=2.8, zorder=4, **pale)


def histogram(
    counts: Sequence[float],
    names: Sequence[str],
    title: str = "",
    note: str = "",
    *,
    across: str = "",
    width: str | float = "column",
) -> Figure:
    """Draw how often each of some things happened, with the number over every bar."""
    if len(counts) != len(names) or not len(counts):
        raise VitreousError(f"{len(counts)} counts do not fit {len(names)} names")
    if any(not each >= 0 for each in counts):
        raise VitreousError(f"counts are at least zero, not {min(counts)}")
    inches = width_of(width)
    top = head_height(title, note, inches) + 0.17
    figure = page(inches, top + 1.2 + 0.2 + height_of(SIZE) * bool(across))
    head(figure, title, note)
    made = axes(figure, 0.08, top, inches - 0.16, 1.2)
    made.spines["left"].set_visible(False)
    made.set_xlim(-0.6, len(counts) - 0.4)
    made.set_ylim(0, max(*counts, 1))
    made.bar(range(len(counts)), list(counts), 0.7, color=looks(["one"])["one"].colour, alpha=0.75, linewidth=0)
    each = (inches - 0.16) / len(counts)
    step = max(1, math.ceil(max(wide(shortened(name, 0.8, SMALL), SMALL) for name in names) / (each - 0.04)))
    shown = range(0, len(names), step) if each > 0.05 else range(0, len(names), 10)
    ticks(made, "x", shown, [shortened(names[at], 0.8, SMALL) for at in shown])
    made.tick_params(axis="y", length=0)
    if each > 0.14:
        for at, count in enumerate(counts):
            text(made, at, count, number(count), SMALL, SOFT_INK, ha="center", va="bottom", clip_on=False)
    if across:
        label(made, "x", across)
    return figure


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
    flat = np.concatenate([np.ravel(np.asarray(value, np.float64)) for value in values]) if values else np.zeros(0)
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
    return limits([value for value in values if value is not None])


def _left(panel: Panel, scale: tuple[float, float]) -> float:
    marks = max(wide(number(each), SMALL) for each in nice(*scale))
    return marks + 0.12 + (height_of(SIZE) + 0.03 if panel.up else 0.0)


def _draw(made: Any, panel: Panel, scale: tuple[float, float], look: Mapping[str, Look], height: float) -> None:
    made.set_ylim(*scale)
    marks = nice(*scale)
    ticks(made, "y", marks, [number(mark) for mark in marks])
    places = np.concatenate([line.x for line in panel.lines])
    low, high = float(np.nanmin(places)), float(np.nanmax(places))
    margin = 0.04 * (high - low) if panel.marks else 0.0
    if high == low:
        margin = 0.5
    made.set_xlim(low - margin, high + margin)
    rules(made, "y", marks)
    below = list(panel.places) or nice(low, high)
    ticks(made, "x", below, [number(each) for each in below])
    for level in panel.levels:
        _line(made, level, look[level.name], False, np.array([low - margin, high + margin]))
    for curve in panel.lines:
        _line(made, curve, look[curve.name], panel.marks or len(curve.x) == 1)
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
