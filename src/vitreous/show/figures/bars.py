"""Means with intervals: of all methods, and by the model's confidence; and counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.errors import VitreousError

from .curves import limits
from .heads import head, head_height, key, key_height
from .style import (
    INK,
    SIZE,
    SMALL,
    SOFT_INK,
    Figure,
    Look,
    axes,
    height_of,
    label,
    line,
    looks,
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

__all__ = ["Mean", "bars", "bins", "histogram"]

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
    ticks(made, "x", marks, [number(each) for each in marks])
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
    largest = max((abs(each) for each in values), default=0.0)
    decimals = 2 - math.floor(math.log10(largest)) if largest > 0 else 2
    if not -3 <= decimals <= 6:
        return [number(float(f"{each:.3g}")) for each in values]
    return [f"{each:.{max(0, decimals)}f}".replace("-", "−") for each in values]


def _apart(edges: Sequence[float]) -> list[str]:
    """Return edges with the fewest digits that tell them apart."""
    for digits in (2, 3, 4, 5):
        words = [number(float(f"{each:.{digits}g}")) for each in edges]
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
    left = max([wide(number(each), SMALL) for each in marks] + [wide(str(max(holds)), SMALL)]) + 0.12
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
    ticks(upper, "y", marks, [number(each) for each in marks])
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
    step = math.ceil((count + 1) * (max(wide(each, SMALL) for each in words) + 0.08) / room)
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
