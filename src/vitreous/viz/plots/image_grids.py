"""A matrix as a heat map, several scores of several methods around one centre, and rows of small images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.viz.canvas import INK, SOFT_INK
from vitreous.viz.colormap import DIVERGING, Scale, from_oklab, to_oklab
from vitreous.viz.overlays import heatmap
from vitreous.viz.plots import style
from vitreous.viz.plots.style import FAINT, SMALL, Figure, LineStyle, line_height, number, shorten, text, widest

Array = NDArray[Any]

# -- matrix --------------------------------------------------------------------------------------------

_AMBER = ((0.98, 0.012, 85.0), (0.84, 0.13, 80.0), (0.52, 0.12, 58.0))  # lightness, chroma, hue
_GREY = 0.62


def matrix(
    values: Any,
    names: Sequence[str],
    title: str = "",
    note: str = "",
    *,
    limits: tuple[float, float] | None = None,
    axis_label: str = "",
    width: str | float = "column",
) -> Figure:
    """Draw a square matrix; amber from 0 to 1, or blue to red from -1 to 1 where a value is below zero.

    The number stands in every cell that is large enough for it. ``limits`` are the values of the two ends.
    """
    table = np.asarray(values, np.float64)
    if table.shape != (len(names), len(names)) or not len(names):
        raise VitreousError(f"a matrix of shape {list(table.shape)} does not fit {len(names)} names")
    lower, upper = _matrix_limits(table, limits)
    inches, count = style.to_inches(width), len(names)
    short = [shorten(name, 0.3 * inches) for name in names]
    label_height = line_height() + 0.06 if axis_label else 0.0
    left = widest(short) + 0.1 + label_height
    cell = (inches - left - 0.5) / count
    side, is_upright = cell * count, widest(short) > 0.9 * cell
    below = (widest(short) if is_upright else line_height()) + 0.12 + label_height
    figure, top = style.new_figure(inches, 0.05 + side + below, title, note)
    ax = style.axes(figure, left, top + 0.05, side, side)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.set(xlim=(0, count), ylim=(count, 0))
    colours = _matrix_colours(table, lower, upper)
    _draw_cells(ax, colours, 0.5 if cell > 0.1 else 0.0)
    step = max(1, int(np.ceil(line_height() / cell)))
    for axis in "xy":
        style.ticks(ax, axis, (np.arange(0, count, step) + 0.5).tolist(), short[::step])
        if axis_label:
            style.label(ax, axis, axis_label)
    ax.tick_params(axis="both", length=0)
    ax.tick_params(axis="x", rotation=90 if is_upright else 0)
    _draw_numbers(ax, table, colours, cell)
    _draw_bar(style.axes(figure, left + side + 0.1, top + 0.05, 0.08, side), lower, upper)
    return figure


def _matrix_limits(table: Array, limits: tuple[float, float] | None) -> tuple[float, float]:
    finite = table[np.isfinite(table)]
    lower, upper = limits or (-1.0 if bool((finite < 0).any()) else 0.0, 1.0)
    if not lower < upper or (len(finite) and (finite.min() < lower - 1e-9 or finite.max() > upper + 1e-9)):
        span = f"{finite.min():g} to {finite.max():g}"
        raise VitreousError(f"values from {span} lie outside the limits {lower:g} to {upper:g}")
    if lower < 0 and lower != -upper:
        raise VitreousError(f"limits {lower:g} to {upper:g} on both sides of zero must be as far from it as each other")
    return lower, upper


def _matrix_colours(values: Array, lower: float, upper: float) -> NDArray[np.float64]:
    """Return RGB in 0 .. 1; grey where a value is not finite."""
    position = np.clip((values - lower) / (upper - lower), 0, 1)
    is_finite = np.isfinite(position)
    position = np.where(is_finite, position, 0.0)
    if lower < 0:
        rgb = DIVERGING[np.rint(1 + 254 * position).astype(int)] / 255
    else:
        lightness, chroma, hue = np.array(_AMBER).T
        columns = (lightness, chroma * np.cos(np.radians(hue)), chroma * np.sin(np.radians(hue)))
        rgb = from_oklab(np.stack([np.interp(position, (0.0, 0.5, 1.0), column) for column in columns], axis=-1))
    return np.where(is_finite[..., None], rgb, _GREY)


def _draw_cells(ax: Any, colours: NDArray[np.float64], gap: float) -> None:
    """Draw squares, not an image: they stay sharp."""
    from matplotlib.collections import PolyCollection

    rows, columns = colours.shape[:2]
    corners = [[(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for y in range(rows) for x in range(columns)]
    flat = colours.reshape(-1, 3)
    edges: Any = "white" if gap else flat
    ax.add_collection(PolyCollection(corners, facecolors=flat, edgecolors=edges, linewidths=gap or 0.2))


def _draw_numbers(ax: Any, values: Array, colours: NDArray[np.float64], cell: float) -> None:
    strings = [[re.sub(r"^(−?)0\.", r"\1.", _two_digits(value)) for value in row] for row in values]
    size = SMALL * min(1.0, cell / (max(map(widest, strings)) * 1.15))
    if size < 4:
        return
    is_dark = to_oklab(colours)[..., 0] < 0.66
    for (y, x), dark in np.ndenumerate(is_dark):
        ink = "white" if dark else INK
        text(ax, x + 0.5, y + 0.5, strings[y][x], size, ink, ha="center", va="center_baseline")


def _two_digits(value: float) -> str:
    return f"{value:.2f}".replace("-", "−") if np.isfinite(value) else "–"


def _draw_bar(ax: Any, lower: float, upper: float) -> None:
    steps = np.linspace(lower, upper, 65)
    colours = _matrix_colours(((steps[1:] + steps[:-1]) / 2)[:, None], lower, upper)
    ax.set(xlim=(0, 1), ylim=(lower, upper))
    for below, above, (colour,) in zip(steps[:-1], steps[1:], colours, strict=True):
        ax.axhspan(below, above, facecolor=tuple(colour), edgecolor=tuple(colour), linewidth=0.3)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.yaxis.tick_right()
    style.ticks(ax, "y", [lower, (lower + upper) / 2, upper])
    ax.tick_params(axis="y", length=2, color=SOFT_INK, labelleft=False, labelright=True, left=False, right=True)


# -- radar ---------------------------------------------------------------------------------------------

_AWAY = 0.07  # inches from the rim to a name
_RINGS = (0.25, 0.5, 0.75, 1.0)


def radar(
    dimensions: Sequence[str],
    values: Mapping[str, Sequence[float]],
    title: str = "",
    note: str = "",
    *,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    styles: Mapping[str, LineStyle] | None = None,
    width: str | float = "column",
) -> Figure:
    """Draw one outline per method; every axis goes from 0 in the centre to 1 at the rim, and says so.

    A value that is NaN leaves a gap. ``intervals`` are drawn along the axes.
    """
    _check_radar(dimensions, values)
    names, inches, count = list(values), style.to_inches(width), len(dimensions)
    styles = styles or style.line_styles(names)
    labels = [style.wrap(dimension, 0.24 * inches) or [""] for dimension in dimensions]
    angles = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    reach = np.minimum(1.0, 1.5 * np.abs(np.cos(angles)))  # a name above or below stands half inside
    margin = max(widest(rows) * part for rows, part in zip(labels, reach, strict=True)) + 0.12
    radius = min(inches / 2 - margin, 1.5)
    heights = [_label_heights(np.sin(angle), len(rows), radius) for rows, angle in zip(labels, angles, strict=True)]
    half = line_height() / 2 + 0.02
    above = max(0.05, max(rows[0] for rows in heights) + half - radius)
    below = max(0.05, half - min(rows[-1] for rows in heights) - radius) + 0.04 + style.legend_height(names, inches)
    figure, top = style.new_figure(inches, 0.05 + above + 2 * radius + below, title, note)
    ax = style.axes(figure, inches / 2 - radius, top + 0.05 + above, 2 * radius, 2 * radius, frame="")
    ax.set(xlim=(-1, 1), ylim=(-1, 1))
    _draw_rings(ax, angles)
    for angle, rows, row_heights in zip(angles, labels, heights, strict=True):
        _draw_axis(ax, angle, rows, row_heights, radius)
    for index, name in enumerate(names):
        _draw_outline(ax, angles, np.asarray(values[name], np.float64), styles[name], name)
        for angle, span in zip(angles, (intervals or {}).get(name, ()), strict=False):
            _draw_span(ax, angle, span, styles[name].colour, (index - (len(names) - 1) / 2) * 0.03)
    style.legend(figure, styles, names)
    return figure


def _check_radar(dimensions: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    if len(dimensions) < 3:
        raise VitreousError(f"a radar needs at least three dimensions, not {len(dimensions)}")
    if not values:
        raise VitreousError("there are no methods to draw")
    for name, row in values.items():
        if len(row) != len(dimensions):
            raise VitreousError(f"{name} has {len(row)} values for {len(dimensions)} dimensions")
        for value in row:
            if value < 0 or value > 1:
                raise VitreousError(f"{name} has {value:g}, and a radar goes from 0 to 1")


def _draw_rings(ax: Any, angles: Array) -> None:
    closed = np.append(angles, angles[0])
    for ring in _RINGS:
        colour, width = (SOFT_INK, 0.6) if ring == 1 else (FAINT, 0.5)
        x, y = ring * np.cos(closed), ring * np.sin(closed)
        style.line(ax, x, y, colour, width, label="_ring", clip_on=False, zorder=0.5)
    between = (angles[0] + angles[1]) / 2
    inside = np.cos(np.pi / len(angles))  # where the straight rings are between two axes
    for ring in (0.0, 0.5, 1.0):
        x, y = ring * inside * np.cos(between), ring * inside * np.sin(between)
        mark = text(ax, x, y, number(ring), SMALL - 1, SOFT_INK, ha="center", va="center", zorder=5)
        # its padding is counted in the size of the text
        mark.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.8})


def _draw_axis(ax: Any, angle: float, rows: Sequence[str], heights: Sequence[float], radius: float) -> None:
    x, y = np.cos(angle), np.sin(angle)
    style.line(ax, [0, x], [0, y], FAINT, 0.5, label="_axis", clip_on=False, zorder=0.5)
    side = "center" if abs(x) < 0.15 else "left" if x > 0 else "right"
    for row, height in zip(rows, heights, strict=True):
        text(ax, x * (1 + _AWAY / radius), height / radius, row, SMALL, ha=side, va="center", clip_on=False)


def _label_heights(y: float, count: int, radius: float) -> list[float]:
    """Return how many inches above the centre the lines of a name stand, at the height ``y`` of the rim."""
    above = (count - 1) / 2 * (1 + (np.sign(y) if abs(y) > 0.3 else 0.0))  # lines above the position itself
    return [float((radius + _AWAY) * y + (above - row) * line_height()) for row in range(max(1, count))]


def _draw_outline(ax: Any, angles: Array, values: Array, look: LineStyle, name: str) -> None:
    closed, around = np.append(values, values[0]), np.append(angles, angles[0])
    x, y = closed * np.cos(around), closed * np.sin(around)
    width = 0.9 if look.is_control else 1.3
    style.line(ax, x, y, look.colour, width, "o", look.dashes, markersize=2.4, clip_on=False, zorder=3, label=name)
    if not look.is_control and np.isfinite(values).all():
        ax.fill(x, y, color=look.colour, alpha=0.06, linewidth=0, zorder=1)


def _draw_span(ax: Any, angle: float, span: tuple[float, float], colour: str, shift: float) -> None:
    (x, dx), (y, dy) = (np.cos(angle), -np.sin(angle) * shift), (np.sin(angle), np.cos(angle) * shift)
    options: dict[str, Any] = {"alpha": 0.6, "label": "_span", "clip_on": False, "zorder": 2}
    style.line(ax, [end * x + dx for end in span], [end * y + dy for end in span], colour, 0.8, **options)


# -- rows of images ------------------------------------------------------------------------------------

_DPI = 300  # of an image in a figure
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
    """Draw one row of images per method, what the columns are above them, and a note under each image."""
    notes = notes or {}
    _check_strips(rows, columns, notes)
    count, inches = max(len(row) for row in rows.values()), style.to_inches(width)
    names = [shorten(name, 0.2 * inches) for name in rows]
    left = widest(names) + 0.13 if any(names) else 0.05
    tile = (inches - left - 0.05 - _GAP * (count - 1)) / count
    if tile < 0.12:
        raise VitreousError(f"{count} pictures do not fit into a row of {inches:g} inches; choose fewer, or a width")
    heights = [max(image.height / image.width for image in row) * tile for row in rows.values()]
    head, under = line_height() * bool(columns) + 0.03, line_height() * bool(notes) + _GAP
    figure, top = style.new_figure(inches, head + sum(heights) + under * len(heights), title, note)
    total, top = figure.get_size_inches()[1], top + head
    middles = [left + index * (tile + _GAP) + tile / 2 for index in range(count)]

    def write(x: float, y: float, string: str, ink: str = INK, ha: str = "center", va: str = "top") -> None:
        text(figure, x / inches, 1 - y / total, string, SMALL, ink, ha=ha, va=va)

    def write_row(y: float, strings: Sequence[str], ink: str = INK, va: str = "top") -> None:
        for middle, string in zip(middles, strings, strict=False):
            write(middle, y, shorten(string, tile + _GAP), ink, va=va)

    write_row(top - 0.03, columns, SOFT_INK, "bottom")
    for name, short, height in zip(rows, names, heights, strict=True):
        write(left - 0.08, top + height / 2, short, ha="right", va="center")
        for middle, image in zip(middles, rows[name], strict=False):
            _draw_image(figure, image.convert("RGB"), middle - tile / 2, top, tile)
        write_row(top + height + 0.015, notes.get(name, ()))
        top += height + under
    return figure


def _check_strips(
    rows: Mapping[str, Sequence[Image.Image]], columns: Sequence[str], notes: Mapping[str, Sequence[str]]
) -> None:
    if not rows or not all(len(row) for row in rows.values()):
        raise VitreousError("there are no pictures to draw")
    for name, row in notes.items():
        if name not in rows or len(row) != len(rows[name]):
            raise VitreousError(f"the notes of {name!r} do not fit its pictures")
    if columns and len(columns) != (count := max(len(row) for row in rows.values())):
        raise VitreousError(f"{len(columns)} names do not fit {count} columns of pictures")


def _draw_image(figure: Figure, image: Image.Image, left: float, top: float, width: float) -> None:
    height = width * image.height / image.width
    size = (max(1, round(width * _DPI)), max(1, round(height * _DPI)))
    if size[0] < image.width:
        image = image.resize(size, Image.Resampling.LANCZOS)
    ax = style.axes(figure, left, top, width, height, frame="")
    # embedded as it is: matplotlib would otherwise draw it anew in the few dots of a screen
    ax.imshow(np.asarray(image), interpolation="none", aspect="auto", origin="upper")


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

    Every map has a scale of its own, the 99th percentile of ``|value|``: positions are compared, not sizes.
    """
    images: dict[str, list[Image.Image]] = {}
    for name, row in rows.items():
        maps = [np.asarray(values, np.float64) for values in row]
        is_signed = (signed or {}).get(name)
        is_signed = any((values < 0).any() for values in maps) if is_signed is None else is_signed
        images[name] = [heatmap(values, Scale.of([values], 99.0, is_signed), (160, 160)) for values in maps]
    notes = {name: [_two_digits(value) for value in row] for name, row in (similarity or {}).items()}
    return strips(images, stages, notes, title, note, width=width)
