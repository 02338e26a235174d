"""Many maps side by side, on scales that the picture itself states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .colour import Scale, colourise, number, percentile_name
from .overlay import overlay
from .text import draw_lines, line_height, shorten, width, wrap

Rule = Literal["group", "panel", "each"]

_INK, _SOFT_INK = "#1b1d22", "#5d626c"
_TIGHT = 5  # between a tile and its own text


@dataclass(frozen=True, eq=False)  # arrays have no single truth value, so a cell equals only itself
class Cell:
    """One tile: a picture, the map drawn on it (None: just the picture), and what is written around it."""

    image: Image.Image
    map: NDArray[Any] | None
    title: str
    note: str = ""
    group: str = ""


@dataclass(frozen=True)
class _Look:
    """All lengths in pixels, in proportion to the tile."""

    tile: int
    columns: int

    @property
    def gap(self) -> int:
        return max(8, self.tile // 12)

    @property
    def title(self) -> int:
        return max(11, round(self.tile / 16))

    @property
    def small(self) -> int:
        return max(10, round(self.tile / 18))

    def column(self, index: int) -> int:
        return self.gap + index * (self.tile + self.gap)

    @property
    def width(self) -> int:
        return self.column(self.columns)


@dataclass(frozen=True, eq=False)
class _Tile:
    picture: Image.Image
    title: list[str]
    note: list[str]


def panel(
    rows: Sequence[Sequence[Cell]],
    caption: str = "",
    percentile: float = 99.0,
    tile: int = 224,
    scale: Rule = "group",
) -> Image.Image:
    """A labelled grid on white, with a colour bar per kind of map and a caption that states the scales.

    Raw maps of different methods have different units. `scale="group"`: cells of one `group` share a `Scale`,
    and all groups are drawn on one relative bar, value / clip value, with the clip value under each tile.
    `"panel"`: one raw scale for everything. `"each"`: every map on its own. Wherever there is only one scale,
    the bar has the raw values.
    """
    cells = [cell for row in rows for cell in row]
    if not cells:
        raise ValueError("a panel needs at least one cell")
    if scale not in ("group", "panel", "each"):
        raise ValueError(f"scale must be 'group', 'panel' or 'each', not {scale!r}")
    if tile < 48:
        raise ValueError(f"a tile needs at least 48 pixels, not {tile!r}")

    look = _Look(tile, columns=max(len(row) for row in rows))
    scales = _scales(cells, percentile, scale)
    relative = len(scales) > 1
    tiles = [[_tile(cell, scales.get(_key(cell, scale)), relative, look) for cell in row] for row in rows if row]
    parts = [_row(row, look) for row in tiles]
    kinds = {chosen.signed: chosen for chosen in scales.values()}
    bars = [_bar(kinds[signed], relative, look) for signed in sorted(kinds)]
    parts += [_beside(bars[at : at + look.columns], look) for at in range(0, len(bars), look.columns)]
    if caption:
        parts.append(_paragraph(caption, look.title, _INK, look))
    if scales:
        parts.append(_paragraph(_statement(scales, percentile, scale), look.small, _SOFT_INK, look))

    canvas = Image.new("RGB", (look.width, look.gap + sum(part.height + look.gap for part in parts)), "white")
    y = look.gap
    for part in parts:
        canvas.paste(part, (0, y))
        y += part.height + look.gap
    return canvas


def _key(cell: Cell, rule: Rule) -> Hashable:
    keys: dict[str, Hashable] = {"group": cell.group, "panel": None, "each": id(cell)}
    return keys[rule]


def _scales(cells: Sequence[Cell], percentile: float, rule: Rule) -> dict[Hashable, Scale]:
    together: dict[Hashable, list[NDArray[Any]]] = {}
    for cell in cells:
        if cell.map is not None:
            together.setdefault(_key(cell, rule), []).append(cell.map)
    return {key: Scale.of(maps, percentile) for key, maps in together.items()}


def _statement(scales: dict[Hashable, Scale], percentile: float, rule: Rule) -> str:
    """What the colours mean, in a sentence or two."""
    if len(scales) == 1:
        said = f"Colours: {next(iter(scales.values())).caption()}; one scale for all maps."
    else:
        shared = rule == "group"
        said = (
            f"Colours: {'maps of one group share a scale' if shared else 'every map has its own scale'}; "
            f"1 is the {'group' if shared else 'map'}'s clip value, the {percentile_name(percentile)} of "
            "|value|, written under each tile; signed maps are zero-centred."
        )
    return f"{said} Up-sampled bilinearly; opacity grows with |value|."


def _remarks(cell: Cell, scale: Scale | None, relative: bool) -> list[str]:
    """What has to be known to read this tile: its clip value, and whether something is odd about its map."""
    if cell.map is None or scale is None:
        return []
    values = np.asarray(cell.map)
    missing = int(values.size - np.isfinite(values).sum())
    remarks = []
    if relative and scale.percentile > 0:
        remarks.append(f"1 = {number(scale.limit)}" + (" (maximum)" if scale.percentile == 100 else ""))
    if not np.nan_to_num(values, posinf=0.0, neginf=0.0).any():
        remarks.append("zero everywhere")
    if missing:
        remarks.append(f"{missing} of {values.size} not finite (grey)")
    return remarks


def _tile(cell: Cell, scale: Scale | None, relative: bool, look: _Look) -> _Tile:
    picture = _fitted(cell.image, look.tile)
    if cell.map is not None and scale is not None:
        picture = overlay(picture, cell.map, scale)
    note = " · ".join([*_remarks(cell, scale, relative), *([cell.note] if cell.note else [])])
    return _Tile(picture, wrap(cell.title, look.title, look.tile, 2), wrap(note, look.small, look.tile, 2))


def _fitted(image: Image.Image, tile: int) -> Image.Image:
    factor = tile / max(image.size)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _row(tiles: Sequence[_Tile], look: _Look) -> Image.Image:
    """Titles stand on their tiles, notes hang under them; the row is as high as its highest member."""
    above = max(len(tile.title) for tile in tiles) * line_height(look.title)
    middle = max(tile.picture.height for tile in tiles)
    below = max(len(tile.note) for tile in tiles) * line_height(look.small)
    canvas, draw = _blank(look, above + _TIGHT + middle + (_TIGHT + below if below else 0))
    for index, tile in enumerate(tiles):
        x = look.column(index)
        draw_lines(draw, (x, above - len(tile.title) * line_height(look.title)), tile.title, look.title, _INK)
        canvas.paste(tile.picture, (x + (look.tile - tile.picture.width) // 2, above + _TIGHT))
        draw_lines(draw, (x, above + middle + 2 * _TIGHT), tile.note, look.small, _SOFT_INK)
    return canvas


def _bar(scale: Scale, relative: bool, look: _Look) -> Image.Image:
    """A colour bar as wide as a tile: what it shows, the colours, and the values at its ends and middle."""
    top = 1.0 if relative else scale.limit
    low = -top if scale.signed else 0.0
    line, thick = line_height(look.small), max(8, look.tile // 18)
    bar = Image.new("RGB", (look.tile, 2 * line + thick + 2 * _TIGHT), "white")
    draw = ImageDraw.Draw(bar)
    kind, unit = "signed" if scale.signed else "unsigned", "value / clip value" if relative else "value"
    draw_lines(draw, (0, 0), [shorten(f"{kind} maps: {unit}", look.small, look.tile)], look.small, _SOFT_INK)
    ramp = np.linspace(low, top, look.tile)[None].repeat(thick, axis=0)
    bar.paste(Image.fromarray(colourise(ramp, Scale(top, scale.signed))), (0, line + _TIGHT))
    for place, value in ((0.0, low), (0.5, (low + top) / 2), (1.0, top)):
        text = number(value)
        x = round(place * (look.tile - width(text, look.small)))
        draw_lines(draw, (x, line + thick + 2 * _TIGHT), [text], look.small, _INK)
    return bar


def _beside(pictures: Sequence[Image.Image], look: _Look) -> Image.Image:
    canvas, _ = _blank(look, max(picture.height for picture in pictures))
    for index, picture in enumerate(pictures):
        canvas.paste(picture, (look.column(index), 0))
    return canvas


def _paragraph(text: str, size: int, ink: str, look: _Look) -> Image.Image:
    lines = wrap(text, size, look.width - 2 * look.gap, 24)
    canvas, draw = _blank(look, len(lines) * line_height(size))
    draw_lines(draw, (look.gap, 0), lines, size, ink)
    return canvas


def _blank(look: _Look, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    canvas = Image.new("RGB", (look.width, max(1, height)), "white")
    return canvas, ImageDraw.Draw(canvas)
