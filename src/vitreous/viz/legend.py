"""What colours mean, beside the picture that uses them: colour bars, and a sentence or two."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np
from PIL import Image

from vitreous.viz.canvas import SOFT_INK, Sheet, line_height, width, wrap
from vitreous.viz.colormap import FLOOR, Scale, colourise, number, percentile_name

Rule = Literal["each", "group", "panel"]

TIGHT = 5  # between a picture and its own text
_FROM = f"shown from the {percentile_name(FLOOR)}"
_NARROWEST = 320  # pixels of a page with text


def bar(scale: Scale, relative: bool, wide: int, size: int, colours: str | None = None) -> Sheet:
    """A colour bar: what its ends mean, the colours, and the values at its ends and in its middle.

    A relative bar has 1 where the limit is; otherwise the values are raw.
    """
    line, thick = line_height(size), max(8, round(1.2 * size))
    page = Sheet(wide, 2 * line + thick + 2 * TIGHT)
    ends = ("against", "for") if scale.signed else ("little", "much")
    _spread(page, 0, {0.0: ends[0], 1.0: ends[1]}, size)
    low = -scale.limit if scale.signed else scale.low
    ramp = np.linspace(low, scale.limit, wide)[None].repeat(thick, axis=0)
    page.paste(Image.fromarray(colourise(ramp, scale, colours)), (0, line + TIGHT))
    if not relative:
        marks = {0.0: number(low), 0.5: number((low + scale.limit) / 2), 1.0: number(scale.limit)}
    elif scale.floor:
        marks = {0.0: percentile_name(scale.floor), 1.0: "1"}
    else:
        marks = {0.0: "-1", 0.5: "0", 1.0: "1"} if scale.signed else {0.0: "0", 0.5: "0.5", 1.0: "1"}
    _spread(page, line + thick + 2 * TIGHT, marks, size)
    return page


def _spread(page: Sheet, y: int, texts: dict[float, str], size: int) -> None:
    """Write texts at shares of the width: 0 is flush left, 1 flush right."""
    for place, text in texts.items():
        page.write((round(place * (page.width - width(text, size))), y), [text], size, SOFT_INK)


def bars(scales: Collection[Scale], relative: bool, wide: int, size: int) -> list[Sheet]:
    """One bar for each kind of scale: those that begin at zero, those that begin elsewhere, signed ones."""
    kinds = {(scale.signed, bool(scale.floor)): scale for scale in scales}
    return [bar(kinds[kind], relative, wide, size) for kind in sorted(kinds)]


def statement(scales: Collection[Scale], percentile: float, rule: Rule, mode: str = "bilinear") -> str:
    """What the colours mean, in a sentence or two."""
    if len(scales) == 1:
        (class_subset,) = scales
        said = f"Colours: {class_subset.caption()}; one scale for all maps."
    else:
        shared = rule == "group"
        alike = "" if percentile == 100 else f", like all from the {percentile_name(percentile)} of |value| on"
        said = (
            f"{'Maps of one group share a scale' if shared else 'Every map has its own scale'}: strongest patch = 1"
            f"{alike}; the value of 1 is under each picture. Compare places, not colours of different "
            f"{'groups' if shared else 'maps'}."
        )
    if any(scale.floor for scale in scales):
        said += f" Maps that sit on a large constant, or whose sign says nothing, are {_FROM}."
    drawn = "Up-sampled bilinearly" if mode == "bilinear" else "Drawn patch by patch"
    return f"{said} {drawn}; opacity grows with |value|."


def captioned(picture: Image.Image, scale: Scale, caption: str, colours: str | None = None) -> Sheet:
    """A picture with a legend and a caption under it; the page is as wide as the picture, or as a line of text."""
    wide = max(picture.width, _NARROWEST)
    size = max(12, round(max(picture.size) / 36))
    margin = max(8, size // 2)
    lines = wrap(caption, size, wide - 2 * margin, 24)
    legend = bar(scale, False, min(wide - 2 * margin, 24 * size), size, colours)
    page = Sheet(wide, picture.height + 3 * margin + legend.height + len(lines) * line_height(size))
    page.paste(picture.convert("RGB"), ((wide - picture.width) // 2, 0))
    page.put(legend, (margin, picture.height + margin))
    page.write((margin, picture.height + 2 * margin + legend.height), lines, size)
    return page
