"""Means with intervals, of all methods and by the model's confidence; counts; and lines with bands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError
from vitreous.viz.canvas import INK, SOFT_INK
from vitreous.viz.plots import style
from vitreous.viz.plots.style import SIZE, SMALL, Figure, LineStyle, line_height, number, shorten, text, widest

Floats = NDArray[np.float64]
_THIN = "#b9bdc5"
_ROW = 0.17  # inches of a method
_GAP = 0.14  # inches between a panel and the axis of the next


@dataclass(frozen=True)
class Mean:
    """A mean with its interval; NaN where there is none. ``count`` values were averaged; few of them are thin."""

    value: float
    lower: float
    upper: float
    count: int = 0
    thin: bool = False


def limits(values: Sequence[Any], zero: bool = False, room: float = 0.06) -> tuple[float, float]:
    """Return a range that holds all finite values, with a little room; with ``zero``, zero too."""
    flat = np.concatenate([np.zeros(0), *(np.ravel(np.asarray(value, np.float64)) for value in values)])
    flat = flat[np.isfinite(flat)]
    lower, upper = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 1.0)
    if zero:
        lower, upper = min(lower, 0.0), max(upper, 0.0)
    span = upper - lower or max(abs(upper), 1.0) * 0.1
    return (lower - room * span if lower else 0.0), upper + room * span


# -- bars ----------------------------------------------------------------------------------------------


def bars(
    means: Mapping[str, Mean],
    title: str = "",
    note: str = "",
    *,
    higher_is_better: bool = True,
    styles: Mapping[str, LineStyle] | None = None,
    width: str | float = "column",
) -> Figure:
    """Draw one bar from zero for every method, the best on top, with its interval and its number."""
    if not means:
        raise VitreousError("there are no means to draw")
    styles = styles or style.line_styles(list(means))
    scored = [name for name, mean in means.items() if not math.isnan(mean.value)]
    scored.sort(key=lambda name: means[name].value, reverse=higher_is_better)
    names = scored + [name for name in means if name not in scored]
    inches, height = style.to_inches(width), _ROW * len(names)
    short = [shorten(name, 0.42 * inches) for name in names]
    texts = _same_decimals([means[name].value for name in scored]) + ["no score"] * (len(names) - len(scored))
    left = widest(short) + 0.12
    room = inches - left - widest(texts) - 0.1
    figure, top = style.new_figure(inches, 0.05 + height + 0.24, title, note)
    ax = style.axes(figure, left, top + 0.05, room, height, frame="bottom")
    ax.set_ylim(len(names) - 0.5, -0.5)
    ends = [end for name in scored for end in (means[name].value, means[name].lower, means[name].upper)]
    ax.set_xlim(*limits(ends, zero=True, room=0.04))
    style.ticks(ax, "y", range(len(names)), short)
    ax.tick_params(axis="y", length=0)
    style.ruled_ticks(ax, "x")
    style.line(ax, [0, 0], ax.get_ylim(), SOFT_INK, zorder=3, label="_zero", scalex=False, scaley=False)
    options: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "ha": "left", "va": "center_baseline"}
    for row, (name, string) in enumerate(zip(names, texts, strict=True)):
        mean, colour = means[name], styles[name].colour
        if name in scored:
            ax.barh(row, mean.value, 0.62, color=colour, alpha=0.35, linewidth=0, label=name, zorder=2)
            style.line(ax, [mean.lower, mean.upper], [row, row], colour, 1.6, zorder=4, label="_interval")
        text(ax, 1 + 0.06 / room, row, string, SMALL, INK if name in scored else SOFT_INK, **options)
    return figure


def _same_decimals(values: Sequence[float]) -> list[str]:
    """Return numbers with as many decimals each: three digits of the largest."""
    largest = max((abs(value) for value in values), default=0.0)
    decimals = 2 - math.floor(math.log10(largest)) if largest > 0 else 2
    if not -3 <= decimals <= 6:
        return [number(float(f"{value:.3g}")) for value in values]
    return [f"{value:.{max(0, decimals)}f}".replace("-", "−") for value in values]


# -- bins ----------------------------------------------------------------------------------------------


def bins(
    edges: Sequence[float],
    means: Mapping[str, Sequence[Mean]],
    title: str = "",
    note: str = "",
    *,
    x_label: str = "confidence of the model",
    y_label: str = "",
    styles: Mapping[str, LineStyle] | None = None,
    width: str | float = "page",
) -> Figure:
    """Draw the means of every method bin by bin, and below them how many values each bin holds.

    Thin bins are pale on grey. ``edges`` are where the bins begin and, last, where they end.
    """
    names, count = list(means), len(edges) - 1
    if count < 1 or {len(row) for row in means.values()} != {count}:
        raise VitreousError(f"every method needs a mean in each of the {max(0, count)} bins")
    styles, inches = styles or style.line_styles(names), style.to_inches(width)
    scale = limits([(mean.value, mean.lower, mean.upper) for mean in chain(*means.values())])
    marks, columns = style.nice_ticks(*scale), list(zip(*means.values(), strict=True))
    counts = [max(mean.count for mean in column) for column in columns]
    thin = [any(mean.thin for mean in column) for column in columns]
    label_height = line_height(SIZE) + 0.03
    left = widest([*map(number, marks), str(max(counts))]) + 0.12 + label_height
    room, heights, gap = inches - left - 0.2, (1.6, 0.35), 0.08
    below = 0.38 + style.legend_height(names, inches)
    figure, top = style.new_figure(inches, 0.05 + heights[0] + gap + heights[1] + below, title, note)
    upper_ax = style.axes(figure, left, top + 0.05, room, heights[0], frame="left")
    lower_ax = style.axes(figure, left, top + 0.05 + heights[0] + gap, room, heights[1])
    for ax, string in ((upper_ax, y_label), (lower_ax, "images")):
        ax.set_xlim(0, count)
        style.label(ax, "y", string)
        ax.yaxis.set_label_coords(-(left - label_height) / room, 0.5)
    upper_ax.set_ylim(*scale)
    style.ruled_ticks(upper_ax, "y")
    for index, name in enumerate(names):
        shift = 0.5 + (index - (len(names) - 1) / 2) * min(0.16, 0.7 / len(names))
        _draw_bins(upper_ax, shift, means[name], styles[name], name)
    _draw_counts(upper_ax, lower_ax, counts, thin)
    texts = _fewest_digits(edges)
    step = math.ceil((count + 1) * (widest(texts) + 0.08) / room)
    style.ticks(lower_ax, "x", range(0, count + 1, step), texts[::step])
    style.label(lower_ax, "x", x_label)
    style.legend(figure, styles, names, lines=False)
    return figure


def _draw_counts(upper_ax: Any, ax: Any, counts: Sequence[int], thin: Sequence[bool]) -> None:
    """Draw how many values each bin holds, and grey behind thin bins."""
    for index, (count, is_thin) in enumerate(zip(counts, thin, strict=True)):
        if count and is_thin:
            upper_ax.axvspan(index, index + 1, facecolor=_THIN, edgecolor="none", alpha=0.25, linewidth=0, zorder=0.4)
    most, middles = max(counts), [index + 0.5 for index in range(len(counts))]
    colours = [_THIN if is_thin else SOFT_INK for is_thin in thin]
    ax.bar(middles, counts, 0.8, color=colours, alpha=0.6, linewidth=0)
    ax.set_ylim(0, 1.05 * max(most, 1))
    style.ticks(ax, "y", sorted({0, most}), [str(value) for value in sorted({0, most})])


def _draw_bins(ax: Any, shift: float, means: Sequence[Mean], look: LineStyle, name: str) -> None:
    x = [index + shift for index in range(len(means))]
    y = [mean.value for mean in means]
    style.line(ax, x, y, look.colour, 0.5, dashes=look.dashes, alpha=0.5, label=name, zorder=2)
    for position, mean in zip(x, means, strict=True):
        if not math.isnan(mean.value):
            pale: dict[str, Any] = {"alpha": 0.45 if mean.thin else 1.0, "label": "_bin"}
            style.line(ax, [position, position], [mean.lower, mean.upper], look.colour, 1, zorder=3, **pale)
            style.line(ax, [position], [mean.value], look.colour, 0, look.marker, markersize=2.8, zorder=4, **pale)


def _fewest_digits(edges: Sequence[float]) -> list[str]:
    """Return edges with the fewest digits that tell them apart."""
    for digits in (2, 3, 4, 5):
        texts = [number(float(f"{edge:.{digits}g}")) for edge in edges]
        if len(set(texts)) == len(set(edges)):
            break
    return texts


# -- counts --------------------------------------------------------------------------------------------


def histogram(
    counts: Sequence[float],
    names: Sequence[str],
    title: str = "",
    note: str = "",
    *,
    x_label: str = "",
    width: str | float = "column",
) -> Figure:
    """Draw how often each of some events happened, with the number over every bar."""
    if len(counts) != len(names) or not len(counts):
        raise VitreousError(f"{len(counts)} counts do not fit {len(names)} names")
    if any(not count >= 0 for count in counts):
        raise VitreousError(f"counts are at least zero, not {min(counts)}")
    inches = style.to_inches(width)
    figure, top = style.new_figure(inches, 0.17 + 1.2 + 0.2 + line_height(SIZE) * bool(x_label), title, note)
    ax = style.axes(figure, 0.08, top + 0.17, inches - 0.16, 1.2, frame="bottom")
    ax.set(xlim=(-0.6, len(counts) - 0.4), ylim=(0, max(*counts, 1)))
    ax.bar(range(len(counts)), list(counts), 0.7, color=style.line_styles([""])[""].colour, alpha=0.75, linewidth=0)
    bar, short = (inches - 0.16) / len(counts), [shorten(name, 0.8) for name in names]
    step = max(1, math.ceil(widest(short) / (bar - 0.04))) if bar > 0.05 else 10
    style.ticks(ax, "x", range(0, len(names), step), short[::step])
    ax.tick_params(axis="y", length=0)
    for index, count in enumerate(counts) if bar > 0.14 else ():
        text(ax, index, count, number(count), SMALL, SOFT_INK, ha="center", va="bottom", clip_on=False)
    if x_label:
        style.label(ax, "x", x_label)
    return figure


# -- lines ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Series:
    """``y`` over ``x`` under a name, with a band from ``lower`` to ``upper`` where they are given; NaN leaves a gap."""

    name: str
    x: Floats
    y: Floats
    lower: Floats | None = None
    upper: Floats | None = None

    def __post_init__(self) -> None:
        for values in (self.y, self.lower, self.upper):
            if values is not None and np.shape(values) != np.shape(self.x):
                raise VitreousError(f"{self.name}: {np.shape(values)} values do not fit {np.shape(self.x)} places")


@dataclass(frozen=True)
class LinePanel:
    """Some lines on one pair of axes: a title, what the axes show, and the levels that lines are compared with.

    ``markers`` puts a point on every value. ``x_ticks`` are those of the x axis, if not round numbers.
    """

    title: str
    lines: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    note: str = ""
    markers: bool = False
    levels: Sequence[Series] = ()
    x_ticks: Sequence[float] = ()

    @property
    def series(self) -> list[Series]:
        return [*self.lines, *self.levels]


def lines(
    panels: Sequence[LinePanel],
    title: str = "",
    note: str = "",
    *,
    styles: Mapping[str, LineStyle] | None = None,
    width: str | float | None = None,
    height: float = 1.75,
) -> Figure:
    """Draw panels side by side; up to six lines are named at their ends, more in a legend below."""
    if not any(panel.lines for panel in panels):
        raise VitreousError("there are no lines to draw")
    names = list(dict.fromkeys(series.name for panel in panels for series in panel.series))
    styles = styles or style.line_styles(names)
    inches = style.to_inches(("column" if len(panels) == 1 else "page") if width is None else width)
    has_legend = len(names) > style.MAX_NAMED_LINES
    scales, lefts = zip(*(_scale(panel, panels) for panel in panels), strict=True)
    right = 0.08 if has_legend else style.names_width(names) + 0.12
    room = (inches - sum(lefts) - right - _GAP * (len(panels) - 1)) / len(panels)
    if room < 0.5:
        raise VitreousError(f"{len(panels)} panels do not fit into {inches:g} inches; choose a larger width")
    titles = line_height(SIZE) + line_height() * any(panel.note for panel in panels) + 0.02
    titles *= any(panel.title for panel in panels)
    below = 0.2 + line_height(SIZE) * any(panel.x_label for panel in panels)
    below += style.legend_height(names, inches) if has_legend else 0.0
    figure, top = style.new_figure(inches, 0.06 + titles + height + below, title, note)
    x = 0.0
    for panel, scale, left in zip(panels, scales, lefts, strict=True):
        ax = style.axes(figure, x + left, top + 0.06 + titles, room, height)
        _draw_panel(ax, panel, scale, styles)
        _write_titles(ax, panel, height)
        x += left + room + _GAP
    if has_legend:
        style.legend(figure, styles, names)
    else:
        finite = [(series.name, series.y[np.isfinite(series.y)]) for series in panels[-1].series]
        ends = [(name, float(values[-1]), float(values.mean())) for name, values in finite if len(values)]
        style.names_at_ends(ax, ends, styles, room, height)
    return figure


def _scale(panel: LinePanel, panels: Sequence[LinePanel]) -> tuple[tuple[float, float], float]:
    """Return the range of a panel and of all that show the same quantity, and the inches left of its axes."""
    alike = [other for other in panels if other is panel or panel.y_label == other.y_label != ""]
    series = [line for other in alike for line in other.series]
    scale = limits([values for line in series for values in (line.y, line.lower, line.upper) if values is not None])
    numbers = widest([number(mark) for mark in style.nice_ticks(*scale)])
    return scale, numbers + 0.12 + (line_height(SIZE) + 0.03 if panel.y_label else 0.0)


def _draw_panel(ax: Any, panel: LinePanel, scale: tuple[float, float], styles: Mapping[str, LineStyle]) -> None:
    ax.set_ylim(*scale)
    x = np.concatenate([series.x for series in panel.lines])
    lower, upper = float(np.nanmin(x)), float(np.nanmax(x))
    margin = 0.5 if upper == lower else 0.04 * (upper - lower) if panel.markers else 0.0
    ax.set_xlim(lower - margin, upper + margin)
    style.ruled_ticks(ax, "y")
    style.ticks(ax, "x", list(panel.x_ticks) or style.nice_ticks(lower, upper))
    for level in panel.levels:  # one value, all the way across
        band = [None if values is None else values[[0, 0]] for values in (level.lower, level.upper)]
        ends = Series(level.name, np.array([lower - margin, upper + margin]), level.y[[0, 0]], *band)
        _draw_series(ax, ends, styles[level.name], False)
    for series in panel.lines:
        _draw_series(ax, series, styles[series.name], panel.markers or len(series.x) == 1)


def _write_titles(ax: Any, panel: LinePanel, height: float) -> None:
    for axis, string in (("x", panel.x_label), ("y", panel.y_label)):
        if string:
            style.label(ax, axis, string)
    above, options = 1 + 0.05 / height, {"transform": ax.transAxes, "ha": "left", "va": "bottom"}
    if panel.note:
        text(ax, 0, above, panel.note, SMALL, SOFT_INK, **options)
        above += line_height() / height
    if panel.title:
        text(ax, 0, above, panel.title, **options)


def _draw_series(ax: Any, series: Series, look: LineStyle, has_markers: bool) -> None:
    if series.lower is not None and series.upper is not None:
        alpha = 0.10 if look.is_control else 0.15
        ax.fill_between(series.x, series.lower, series.upper, color=look.colour, alpha=alpha, linewidth=0, zorder=1)
    width, zorder = (0.9, 2) if look.is_control else (1.3, 3)
    marker = "o" if has_markers else "none"
    style.line(ax, series.x, series.y, look.colour, width, marker, look.dashes, label=series.name, zorder=zorder)
