"""Many maps side by side, on scales that the picture itself states."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .colour import Scale, number
from .legend import TIGHT, Rule, bars, statement
from .overlay import Mode, overlay
from .sheet import INK, SOFT_INK, Sheet, stacked
from .text import line_height, wrap

TILE = 320
"""The longer side of a picture in a panel, unless another is asked for."""
_LEAST_TEXT = 12


@dataclass(frozen=True, eq=False)  # arrays have no single truth value, so a cell equals only itself
class Cell:
    """One tile: a picture, the map drawn on it (None: just the picture), and what is written around it.

    `signed` says whether values below zero mean the opposite of those above; None: if there are any. Where they do
    not, the map is drawn from low to high.
    """

    image: Image.Image
    map: NDArray[Any] | None
    title: str
    note: str = ""
    group: str = ""
    signed: bool | None = None


@dataclass(frozen=True)
class _Look:
    """All lengths in pixels, in proportion to the tile."""

    tile: int
    columns: int
    zoom: float

    @property
    def gap(self) -> int:
        return max(round(8 * self.zoom), self.tile // 12)

    @property
    def heading(self) -> int:
        return self._text(14)

    @property
    def title(self) -> int:
        return self._text(17)

    @property
    def small(self) -> int:
        return self._text(21)

    def _text(self, lines: int) -> int:
        """The size of text of which so many lines are as high as a tile."""
        return max(round(_LEAST_TEXT * self.zoom), round(self.tile / lines))

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
    tile: int = TILE,
    scale: Rule = "each",
    titles: Sequence[str] = (),
    zoom: float = 1.0,
) -> Image.Image:
    """A labelled grid on white, in pixels: see `sheet`."""
    return sheet(rows, caption, percentile, tile, scale, titles, zoom).image()


def sheet(
    rows: Sequence[Sequence[Cell]],
    caption: str = "",
    percentile: float = 99.0,
    tile: int = TILE,
    scale: Rule = "each",
    titles: Sequence[str] = (),
    zoom: float = 1.0,
    alpha: float = 0.55,
    mode: Mode = "bilinear",
) -> Sheet:
    """A labelled grid, with a colour bar per kind of map and a caption that states the scales.

    `scale="each"`: every map has a `Scale` of its own. `"group"`: cells of one `group` share one. Both are drawn on
    one relative bar, 1 at the limit, which is written under each tile. `"panel"`: one raw scale for everything.
    Wherever there is only one scale, the bar has the raw values. `titles` has a heading for each row, which may be
    empty. `zoom` multiplies all sizes: 2 for print. `alpha` and `mode` are those of `overlay`.
    """
    cells = [cell for row in rows for cell in row]
    if not cells:
        raise ValueError("a panel needs at least one cell")
    if scale not in ("each", "group", "panel"):
        way = f"; zoom={scale} multiplies all sizes" if isinstance(scale, int | float) else ""
        raise ValueError(f"scale must be 'each', 'group' or 'panel', not {scale!r}{way}")
    if tile < 48:
        raise ValueError(f"a tile needs at least 48 pixels, not {tile!r}")
    if not 0.1 <= zoom <= 10:
        raise ValueError(f"zoom must be between 0.1 and 10, not {zoom!r}")
    if titles and len(titles) != len(rows):
        raise ValueError(f"{len(titles)} titles do not fit {len(rows)} rows")

    look = _Look(round(tile * zoom), max(len(row) for row in rows), zoom)
    scales = _scales(cells, percentile, scale)
    relative = len(scales) > 1
    parts = []
    for heading, row in zip(titles or [""] * len(rows), rows, strict=True):
        if row:
            tiles = [_tile(cell, scales.get(_key(cell, scale)), relative, look, alpha, mode) for cell in row]
            parts.append(_row(tiles, heading, look))
    legends = bars(scales.values(), relative, look.tile, look.small)
    parts += [_beside(legends[at : at + look.columns], look) for at in range(0, len(legends), look.columns)]
    if caption:
        parts.append(_paragraph(caption, look.title, INK, look))
    if scales:
        parts.append(_paragraph(statement(scales.values(), percentile, scale, mode), look.small, SOFT_INK, look))
    return stacked(parts, look.width, look.gap)


def _key(cell: Cell, rule: Rule) -> Hashable:
    keys: dict[str, Hashable] = {"group": cell.group, "panel": None, "each": id(cell)}
    return keys[rule]


def _scales(cells: Sequence[Cell], percentile: float, rule: Rule) -> dict[Hashable, Scale]:
    """One scale for the maps of each key; it is signed if that is so of any of its cells."""
    together: dict[Hashable, list[NDArray[Any]]] = {}
    signed: dict[Hashable, bool] = {}
    groups = {cell.group for cell in cells if cell.group and _signed(cell)}  # one method, one kind of colours
    for cell in cells:
        if cell.map is not None:
            key = _key(cell, rule)
            together.setdefault(key, []).append(cell.map)
            signed[key] = signed.get(key, False) or _signed(cell) or cell.group in groups
    return {key: Scale.of(maps, percentile, signed[key]) for key, maps in together.items()}


def _signed(cell: Cell) -> bool:
    if cell.map is None or cell.signed is not None:
        return bool(cell.signed)
    values = np.asarray(cell.map)
    return bool((values[np.isfinite(values)] < 0).any())


def _remarks(cell: Cell, scale: Scale | None, relative: bool) -> list[str]:
    """What has to be known to read this tile: its clip value, and whether something is odd about its map."""
    if cell.map is None or scale is None:
        return []
    values = np.asarray(cell.map)
    missing = int(values.size - np.isfinite(values).sum())
    remarks = []
    if relative and scale.percentile > 0:
        remarks.append(f"1 = {number(scale.limit)}" + (" (maximum)" if scale.percentile == 100 else ""))
    if scale.floor:
        remarks.append(scale.begins)
    if not np.nan_to_num(values, posinf=0.0, neginf=0.0).any():
        remarks.append("zero everywhere")
    if missing:
        remarks.append(f"{missing} of {values.size} not finite (grey)")
    return remarks


def _tile(cell: Cell, scale: Scale | None, relative: bool, look: _Look, alpha: float, mode: Mode) -> _Tile:
    picture = _fitted(cell.image, look.tile)
    if cell.map is not None and scale is not None:
        picture = overlay(picture, cell.map, scale, alpha, None, mode)
    note = " · ".join([*([cell.note] if cell.note else []), *_remarks(cell, scale, relative)])
    return _Tile(picture, wrap(cell.title, look.title, look.tile, 2), wrap(note, look.small, look.tile, 3))


def _fitted(image: Image.Image, tile: int) -> Image.Image:
    factor = tile / max(image.size)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _row(tiles: Sequence[_Tile], heading: str, look: _Look) -> Sheet:
    """Titles stand on their tiles, notes hang under them; the row is as high as its highest member."""
    lines = wrap(heading, look.heading, look.width - 2 * look.gap, 2)
    start = len(lines) * line_height(look.heading) + (TIGHT if lines else 0)
    above = start + max(len(tile.title) for tile in tiles) * line_height(look.title)
    middle = max(tile.picture.height for tile in tiles)
    below = max(len(tile.note) for tile in tiles) * line_height(look.small)
    page = Sheet(look.width, above + TIGHT + middle + (TIGHT + below if below else 0))
    page.write((look.gap, 0), lines, look.heading)
    for index, tile in enumerate(tiles):
        x = look.column(index)
        page.write((x, above - len(tile.title) * line_height(look.title)), tile.title, look.title)
        page.paste(tile.picture, (x + (look.tile - tile.picture.width) // 2, above + TIGHT))
        page.write((x, above + middle + 2 * TIGHT), tile.note, look.small, SOFT_INK)
    return page


def _beside(parts: Sequence[Sheet], look: _Look) -> Sheet:
    page = Sheet(look.width, max(part.height for part in parts))
    for index, part in enumerate(parts):
        page.put(part, (look.column(index), 0))
    return page


def _paragraph(text: str, size: int, ink: str, look: _Look) -> Sheet:
    lines = wrap(text, size, look.width - 2 * look.gap, 24)
    page = Sheet(look.width, max(1, len(lines) * line_height(size)))
    page.write((look.gap, 0), lines, size, ink)
    return page
