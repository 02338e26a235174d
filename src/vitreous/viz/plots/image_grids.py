"""A matrix of similarities as a heat map.

Several scores of several methods around one centre.

Rows of small pictures: perturbed images step by step, and maps while a model is randomised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.viz.canvas import INK, SOFT_INK
from vitreous.viz.colormap import DIVERGING, Scale, from_oklab, to_oklab
from vitreous.viz.overlay import heatmap
from vitreous.viz.plots.style import (
    FAINT,
    SMALL,
    Figure,
    Look,
    axes,
    head,
    head_height,
    height_of,
    key,
    key_height,
    label,
    line,
    looks,
    number,
    page,
    shortened,
    text,
    ticks,
    wide,
    wrapped,
)
from vitreous.viz.plots.style import width_of as inches_of

__all__ = [
    "cascade",
    "matrix",
    "radar",
    "strips",
]

_AMBER = ((0.98, 0.012, 85.0), (0.84, 0.13, 80.0), (0.52, 0.12, 58.0))  # lightness, chroma, hue
_GREY = 0.62


def matrix(
    values: Any,
    names: Sequence[str],
    title: str = "",
    note: str = "",
    *,
    limits: tuple[float, float] | None = None,
    across: str = "",
    width: str | float = "column",
) -> Figure:
    """Draw a square matrix; amber from 0 to 1, or blue to red from -1 to 1 where a value is below zero.

    The number stands in every cell that is large enough for it. ``limits`` are the values of the two ends.
    """
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(names) != len(table) or not len(table):
        raise VitreousError(f"a matrix of shape {list(table.shape)} does not fit {len(names)} names")
    known = table[np.isfinite(table)]
    signed = bool((known < 0).any()) if limits is None else limits[0] < 0
    low, high = limits or ((-1.0, 1.0) if signed else (0.0, 1.0))
    if not low < high or (len(known) and (known.min() < low - 1e-9 or known.max() > high + 1e-9)):
        raise VitreousError(
            f"values from {known.min():g} to {known.max():g} lie outside the limits {low:g} to {high:g}"
        )
    if low < 0 and low != -high:
        raise VitreousError(f"limits {low:g} to {high:g} on both sides of zero must be as far from it as each other")
    inches = inches_of(width)
    short = [shortened(name, 0.3 * inches, SMALL) for name in names]
    left = max(wide(name, SMALL) for name in short) + 0.1 + (height_of(SMALL) + 0.06 if across else 0)
    cell = (inches - left - 0.5) / len(names)
    upright = max(wide(name, SMALL) for name in short) > 0.9 * cell
    below = (max(wide(name, SMALL) for name in short) if upright else height_of(SMALL)) + 0.12
    below += height_of(SMALL) + 0.06 if across else 0
    top, side = head_height(title, note, inches) + 0.05, cell * len(names)
    figure = page(inches, top + side + below)
    head(figure, title, note)
    made = axes(figure, left, top, side, side)
    made.set_xlim(0, len(names))
    made.set_ylim(len(names), 0)
    for spine in made.spines.values():
        spine.set_visible(False)
    colours = _colours(table, low, high)
    _cells(made, colours, 0.5 if cell > 0.1 else 0.0)
    every = max(1, int(np.ceil(height_of(SMALL) / cell)))
    at = range(0, len(names), every)
    for way in "xy":
        ticks(made, way, [each + 0.5 for each in at], [short[each] for each in at])
        if across:
            label(made, way, across)
    made.tick_params(axis="both", length=0)
    for on_progress in made.get_xticklabels() if upright else ():
        on_progress.set(rotation=90)
    _numbers(made, table, colours, cell)
    _bar(axes(figure, left + side + 0.1, top, 0.08, side), low, high)
    return figure


def _colours(values: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Return RGB in 0 .. 1; grey where a value is not known."""
    share = np.clip((values - low) / (high - low), 0, 1)
    known = np.isfinite(share)
    share = np.where(known, share, 0.0)
    if low < 0:
        rgb = DIVERGING[np.rint(1 + 254 * share).astype(int)] / 255
    else:
        light, chroma, hue = np.array(_AMBER).T
        angle, places = np.radians(hue), (0.0, 0.5, 1.0)
        lab = [np.interp(share, places, axis) for axis in (light, chroma * np.cos(angle), chroma * np.sin(angle))]
        rgb = from_oklab(np.stack(lab, axis=-1))
    return np.where(known[..., None], rgb, _GREY)


def _cells(made: Any, colours: NDArray[np.float64], gap: float) -> None:
    """Draw squares, not a picture: they stay sharp."""
    from matplotlib.collections import PolyCollection

    rows, columns = colours.shape[:2]
    corners = [
        [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)] for y in range(rows) for x in range(columns)
    ]  # one after the other, as the colours are
    flat = colours.reshape(-1, 3)
    edges: Any = "white" if gap else flat
    made.add_collection(PolyCollection(corners, facecolors=flat, edgecolors=edges, linewidths=gap or 0.2))


def _numbers(made: Any, values: NDArray[Any], colours: NDArray[np.float64], cell: float) -> None:
    words = [[_digits(each) for each in row] for row in values]
    widest = max(wide(each, SMALL) for row in words for each in row) * 1.15
    size = SMALL * min(1.0, cell / widest)
    if size < 4:
        return
    dark = to_oklab(colours)[..., 0] < 0.66
    for y, row in enumerate(words):
        for x, each in enumerate(row):
            ink = "white" if dark[y, x] else INK
            text(made, x + 0.5, y + 0.5, each, size, ink, ha="center", va="center_baseline")


def _digits(value: float) -> str:
    """Two digits, and the leading zero left out: .87."""
    if not np.isfinite(value):
        return "–"
    words = f"{value:.2f}".replace("-0.", "-.")
    return (words.removeprefix("0") if words.startswith("0.") else words).replace("-", "−")


def _bar(made: Any, low: float, high: float) -> None:
    steps = np.linspace(low, high, 65)
    shades = _colours(((steps[1:] + steps[:-1]) / 2)[:, None], low, high)
    made.set_xlim(0, 1)
    made.set_ylim(low, high)
    for below, above, (shade,) in zip(steps[:-1], steps[1:], shades, strict=True):
        made.axhspan(below, above, facecolor=tuple(shade), edgecolor=tuple(shade), linewidth=0.3)
    for spine in made.spines.values():
        spine.set_visible(False)
    marks = [low, (low + high) / 2, high]
    made.yaxis.tick_right()
    ticks(made, "y", marks, [number(mark) for mark in marks])
    made.tick_params(axis="y", length=2, color=SOFT_INK, labelleft=False, labelright=True, left=False, right=True)


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
    words = [wrapped(dimension, 0.24 * inches) or [""] for dimension in dimensions]
    turns = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    across = [max((wide(row, SMALL) for row in word), default=0.0) for word in words]
    beside = max(each * min(1.0, 1.5 * abs(np.cos(turn))) for each, turn in zip(across, turns, strict=True)) + 0.12
    radius = min(inches / 2 - beside, 1.5)
    heights = [_heights(np.sin(turn), len(word), radius) for word, turn in zip(words, turns, strict=True)]
    half = height_of(SMALL) / 2 + 0.02
    over = max(0.05, max(height[0] for height in heights) + half - radius)
    under = max(0.05, half - min(height[-1] for height in heights) - radius)
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


def _tile(figure: Figure, picture: Image.Image, left: float, top: float, width: float) -> None:
    height = width * picture.height / picture.width
    size = (max(1, round(width * _DOTS)), max(1, round(height * _DOTS)))
    if size[0] < picture.width:
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    made = axes(figure, left, top, width, height, frame=False)
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
        own = [np.asarray(map_, np.float64) for map_ in maps]
        both = (signed or {}).get(name)
        both = any((each < 0).any() for each in own) if both is None else both
        scales = [Scale.of([each], 99.0, both) for each in own]
        pictures[name] = [heatmap(each, scale, (160, 160)) for each, scale in zip(own, scales, strict=True)]
    said = {
        name: ["–" if not np.isfinite(each) else f"{each:.2f}".replace("-", "−") for each in row]
        for name, row in (similarity or {}).items()
    }
    return strips(pictures, stages, said or None, title, note, width=width)
