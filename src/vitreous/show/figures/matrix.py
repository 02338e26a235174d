"""A matrix of similarities as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError

from ..colour import DIVERGING, from_oklab, to_oklab
from .heads import head, head_height
from .style import INK, SMALL, SOFT_INK, Figure, axes, height_of, label, number, page, shortened, text, ticks, wide
from .style import width_of as inches_of

__all__ = ["matrix"]

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
    for tick in made.get_xticklabels() if upright else ():
        tick.set(rotation=90)
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
    ticks(made, "y", marks, [number(each) for each in marks])
    made.tick_params(axis="y", length=2, color=SOFT_INK, labelleft=False, labelright=True, left=False, right=True)
