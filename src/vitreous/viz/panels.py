"""Many maps side by side, on scales that the picture itself states; and pictures of what methods return beside maps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitreous.viz.canvas import INK, SOFT_INK, Sheet, draw_lines, line_height, shorten, stacked, wrap
from vitreous.viz.colormap import (
    TIGHT,
    Bytes,
    Floats,
    Scale,
    Sharing,
    colour_bars,
    from_oklab,
    number,
    percentile_name,
    statement,
)
from vitreous.viz.overlays import LUMA, Mode, overlay, resized, upsample

TILE = 320
"""The longer side of an image in a panel, unless another is asked for."""
_LEAST_TEXT = 12


@dataclass(frozen=True, eq=False)  # arrays have no single truth value, so a cell equals only itself
class Cell:
    """One tile: an image, the map drawn on it (None: just the image), and what is written around it.

    `signed` says whether values below zero mean the opposite of those above; None: if there are any. Where they do
    not, the map is drawn from low to high.
    """

    image: Image.Image
    map: NDArray[Any] | None
    title: str
    note: str = ""
    group: str = ""
    signed: bool | None = None

    @property
    def is_signed(self) -> bool:
        if self.map is None or self.signed is not None:
            return bool(self.signed)
        values = np.asarray(self.map)
        return bool((values[np.isfinite(values)] < 0).any())

    def key(self, sharing: Sharing) -> Hashable:
        """Return what cells that share a scale have in common."""
        return {"group": self.group, "panel": None, "each": id(self)}[sharing]


@dataclass(frozen=True)
class _Lengths:
    """All lengths in pixels, in proportion to the tile."""

    tile: int
    gap: int
    heading: int
    title: int
    small: int
    width: int

    @classmethod
    def of(cls, tile: int, columns: int, zoom: float) -> _Lengths:
        gap = max(round(8 * zoom), tile // 12)
        # the sizes of text of which so many lines are as high as a tile
        heading, title, small = (max(round(_LEAST_TEXT * zoom), round(tile / lines)) for lines in (14, 17, 21))
        return cls(tile, gap, heading, title, small, gap + columns * (tile + gap))

    def column(self, index: int) -> int:
        return self.gap + index * (self.tile + self.gap)


def panel(rows: Sequence[Sequence[Cell]], *arguments: Any, **options: Any) -> Image.Image:
    """A labelled grid on white, in pixels; what may follow the rows is that of `sheet`."""
    return sheet(rows, *arguments, **options).image()


def sheet(
    rows: Sequence[Sequence[Cell]],
    caption: str = "",
    percentile: float = 99.0,
    tile: int = TILE,
    scale: Sharing = "each",
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
    _check_sheet(rows, tile, scale, titles, zoom)
    columns = max(len(row) for row in rows)
    lengths = _Lengths.of(round(tile * zoom), columns, zoom)
    scales = _scales([cell for row in rows for cell in row], percentile, scale)
    is_relative = len(scales) > 1

    def draw(cell: Cell) -> tuple[Image.Image, list[str], list[str]]:
        own = scales.get(cell.key(scale))
        image = resized(cell.image, lengths.tile)
        if cell.map is not None and own is not None:
            image = overlay(image, cell.map, own, alpha, None, mode)
        note = " · ".join(filter(None, [cell.note, *_remarks(cell, own, is_relative)]))
        return image, wrap(cell.title, lengths.title, lengths.tile, 2), wrap(note, lengths.small, lengths.tile, 3)

    headings = titles or [""] * len(rows)
    parts = [_row(list(map(draw, row)), heading, lengths) for heading, row in zip(headings, rows, strict=True) if row]
    bars = colour_bars(scales.values(), is_relative, lengths.tile, lengths.small)
    parts += [_beside(bars[start : start + columns], lengths) for start in range(0, len(bars), columns)]
    if caption:
        parts.append(_paragraph(caption, lengths.title, INK, lengths))
    if scales:
        text = statement(scales.values(), percentile, scale, mode)
        parts.append(_paragraph(text, lengths.small, SOFT_INK, lengths))
    return stacked(parts, lengths.width, lengths.gap)


def _check_sheet(rows: Sequence[Sequence[Cell]], tile: int, scale: Any, titles: Sequence[str], zoom: float) -> None:
    if not any(rows):
        raise ValueError("a panel needs at least one cell")
    if scale not in ("each", "group", "panel"):
        hint = f"; zoom={scale} multiplies all sizes" if isinstance(scale, int | float) else ""
        raise ValueError(f"scale must be 'each', 'group' or 'panel', not {scale!r}{hint}")
    if tile < 48:
        raise ValueError(f"a tile needs at least 48 pixels, not {tile!r}")
    if not 0.1 <= zoom <= 10:
        raise ValueError(f"zoom must be between 0.1 and 10, not {zoom!r}")
    if titles and len(titles) != len(rows):
        raise ValueError(f"{len(titles)} titles do not fit {len(rows)} rows")


def _scales(cells: Sequence[Cell], percentile: float, sharing: Sharing) -> dict[Hashable, Scale]:
    """One scale for the maps of each key; it is signed if that is so of any of its cells, or of its group."""
    together: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        if cell.map is not None:
            together.setdefault(cell.key(sharing), []).append(cell)
    groups = {cell.group for cell in cells if cell.group and cell.is_signed}  # one method, one kind of colours
    return {
        key: Scale.of(
            [cell.map for cell in sharing_cells if cell.map is not None],
            percentile,
            any(cell.is_signed or cell.group in groups for cell in sharing_cells),
        )
        for key, sharing_cells in together.items()
    }


def _remarks(cell: Cell, scale: Scale | None, is_relative: bool) -> list[str]:
    """What has to be known to read this tile: its clip value, and whether something is odd about its map."""
    if cell.map is None or scale is None:
        return []
    values, remarks = np.asarray(cell.map), []
    num_missing = int(values.size - np.isfinite(values).sum())
    if is_relative and scale.percentile > 0:
        remarks.append(f"1 = {number(scale.limit)}" + (" (maximum)" if scale.percentile == 100 else ""))
    if scale.floor:
        remarks.append(scale.begins)
    if not np.nan_to_num(values, posinf=0.0, neginf=0.0).any():
        remarks.append("zero everywhere")
    if num_missing:
        remarks.append(f"{num_missing} of {values.size} not finite (grey)")
    return remarks


def _row(tiles: Sequence[tuple[Image.Image, list[str], list[str]]], heading: str, lengths: _Lengths) -> Sheet:
    """Titles stand on their tiles, notes hang under them; the row is as high as its highest member."""
    lines = wrap(heading, lengths.heading, lengths.width - 2 * lengths.gap, 2)
    start = len(lines) * line_height(lengths.heading) + (TIGHT if lines else 0)
    above = start + max(len(title) for _, title, _ in tiles) * line_height(lengths.title)
    middle = max(image.height for image, _, _ in tiles)
    below = max(len(note) for _, _, note in tiles) * line_height(lengths.small)
    page = Sheet(lengths.width, above + TIGHT + middle + (TIGHT + below if below else 0))
    page.write((lengths.gap, 0), lines, lengths.heading)
    for index, (image, title, note) in enumerate(tiles):
        x = lengths.column(index)
        page.write((x, above - len(title) * line_height(lengths.title)), title, lengths.title)
        page.paste(image, (x + (lengths.tile - image.width) // 2, above + TIGHT))
        page.write((x, above + middle + 2 * TIGHT), note, lengths.small, SOFT_INK)
    return page


def _beside(parts: Sequence[Sheet], lengths: _Lengths) -> Sheet:
    page = Sheet(lengths.width, max(part.height for part in parts))
    for index, part in enumerate(parts):
        page.put(part, (lengths.column(index), 0))
    return page


def _paragraph(text: str, size: int, ink: str, lengths: _Lengths) -> Sheet:
    lines = wrap(text, size, lengths.width - 2 * lengths.gap, 24)
    page = Sheet(lengths.width, max(1, len(lines) * line_height(size)))
    page.write((lengths.gap, 0), lines, size, ink)
    return page


# -- which class owns which patch ----------------------------------------------------------------------

_DIM = 0.8  # brightness of the grey photograph under the colours
_CLEAR = 0.05  # the excess from which a patch counts as owned


def class_colours(count: int) -> Bytes:
    """`count` colours, `[count, 3]`: hues of one lightness around the circle, alternately paler if there are many."""
    hues = np.radians(30.0 + 360.0 * np.arange(count) / count)
    pale = np.where((count > 6) & (np.arange(count) % 2 == 1), 1.0, 0.0)
    lightness, chroma = 0.66 + 0.16 * pale, 0.155 - 0.06 * pale
    lab = np.stack([lightness, chroma * np.cos(hues), chroma * np.sin(hues)], axis=-1)
    return np.rint(255 * from_oklab(lab)).astype(np.uint8)


def excess(distribution: NDArray[Any]) -> Floats:
    """How far the largest of K shares `[K, ...]` is above an equal share: 0 at 1 / K, 1 where one class has it all."""
    shares = np.asarray(distribution, np.float64)
    equal = 1 / len(shares)
    return np.asarray(np.clip((shares.max(axis=0) - equal) / (1 - equal), 0.0, 1.0))


def lead(maps: NDArray[Any]) -> Floats:
    """How far the largest of K maps `[K, ...]` is above their mean."""
    values = np.asarray(maps, np.float64)
    return np.asarray(values.max(axis=0) - values.mean(axis=0))


def strength(maps: NDArray[Any]) -> Floats:
    """The lead as an opacity: 1 - (1 - u)^2 with u the lead over its 99th percentile, clipped."""
    ahead = lead(maps)
    return np.asarray(1 - (1 - np.clip(ahead / Scale.of([ahead], signed=False).limit, 0.0, 1.0)) ** 2)


def owner_overlay(
    image: Image.Image, distribution: NDArray[Any], strength: NDArray[Any] | None = None, alpha: float = 0.9
) -> Image.Image:
    """The photograph in grey, tinted by the class with the largest share, the more the further it is ahead.

    With e the excess and s the strength of the evidence, from 0 to 1 and 1 everywhere if not given, the opacity is
    alpha * (1 - (1 - e)^2) * s. Shares `[K, h, w]` and strength `[h, w]` are enlarged bilinearly before
    the owner of a pixel is found.
    """
    shares = np.stack([upsample(share, image.size) for share in _checked(distribution)])
    colour = class_colours(len(shares))[shares.argmax(axis=0)].astype(np.float64)
    grey = np.asarray(image.convert("RGB"), np.float64) @ LUMA
    under = np.repeat(_DIM * grey[..., None], 3, axis=-1)
    opacity = alpha * (1 - (1 - excess(shares)[..., None]) ** 2)
    if strength is not None:
        opacity = opacity * np.clip(upsample(strength, image.size), 0.0, 1.0)[..., None]
    tinted = under * colour / np.maximum(colour.max(axis=-1, keepdims=True), 1.0)  # keeps light and shade
    blended = (1 - opacity) * under + opacity * (0.45 * tinted + 0.55 * colour)
    return Image.fromarray(np.rint(blended).astype(np.uint8))


def owners(
    image: Image.Image,
    distribution: NDArray[Any],
    maps: NDArray[Any],
    names: Sequence[str],
    caption: str = "",
    tile: int = TILE,
) -> Image.Image:
    """The image, who owns which patch, what is discriminative, what is shared, and a legend, side by side.

    `distribution` and `maps` are `[K, h, w]`, `names` the K classes, the explained one first. Let e be the excess of
    the largest share and m the largest map, both patch by patch: discriminative is e m, shared is (1 - e) m, where m
    is above zero. They are drawn on one scale and together are m. The colours of owners are as strong as the lead of
    the strongest class over the mean of all, on a scale of its own: who wins a patch where all are alike does not
    matter. (A lead is the same for logits and log-probabilities; the maps themselves are not.)
    """
    shares, evidence = _checked(distribution), _checked(maps)
    if len(names) != len(shares) or evidence.shape != shares.shape:
        raise ValueError(f"{len(names)} names, {list(shares.shape)} shares and {list(evidence.shape)} maps do not fit")
    most, above, ahead = np.maximum(evidence.max(axis=0), 0.0), excess(shares), lead(evidence)
    owner = np.where(above > _CLEAR, shares.argmax(axis=0), -1)
    total = float(ahead.sum()) or 1.0
    owned = [float(ahead[owner == index].sum()) / total for index in range(len(names))]
    overlaid, legend = owner_overlay(image, shares, strength(evidence)), _legend(names, owned, tile)
    row = [
        Cell(image, None, "what the model saw"),
        Cell(overlaid, None, "who owns which patch", "grey: little evidence, or a tie"),
        Cell(image, above * most, "discriminative", "speaks for one class", group="evidence", signed=False),
        Cell(image, (1 - above) * most, "shared", "speaks for several alike", group="evidence", signed=False),
        Cell(legend, None, "classes", "share of the evidence that each owns; the rest is shared"),
    ]
    return panel([row], caption, tile=tile, scale="group")


def _legend(names: Sequence[str], owned: Sequence[float], tile: int) -> Image.Image:
    """Colour, name and share of each class, as many as fit; the explained class first."""
    size = max(12, tile // 19)
    swatch = line_height(size)
    step = round(2.15 * swatch)
    legend = Image.new("RGB", (tile, tile), "white")
    draw = ImageDraw.Draw(legend)
    room = max(1, tile // step)
    count = len(names) if len(names) <= room else room - 1
    for index, colour in enumerate(class_colours(len(names))[:count]):
        y, left = index * step, swatch + size // 2 + 2
        draw.rounded_rectangle((0, y + 2, swatch, y + 2 + swatch), radius=swatch // 4, fill=tuple(map(int, colour)))
        share = f"{100 * owned[index]:.0f} %" + (", explained" if index == 0 else "")
        draw_lines(draw, (left, y), wrap(names[index], size, tile - left, 1), size, INK)
        draw_lines(draw, (left, y + line_height(size)), [share], size, SOFT_INK)
    if count < len(names):
        more = shorten(f"and {len(names) - count} more", size, tile)
        draw_lines(draw, (0, count * step), [more], size, SOFT_INK)
    return legend


def _checked(values: NDArray[Any]) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 3 or len(array) < 2 or 0 in array.shape:
        raise ValueError(f"shares and maps have the shape [K, h, w] with K at least 2, not {list(array.shape)}")
    return array


# -- map times input -----------------------------------------------------------------------------------


def times_input(image: Image.Image, map: NDArray[Any], scale: Scale | None = None) -> Image.Image:
    """The pixels of the image times the part of the map above zero: `image * clip(map / limit, 0, 1)`.

    The limit is that of `scale`, the 99th percentile of the part above zero if not given; cells are clipped at zero,
    then enlarged bilinearly. What is not finite is black.
    """
    limit = (scale or above_zero(map)).limit
    values = np.maximum(np.asarray(map, np.float64), 0.0)
    light = np.nan_to_num(np.clip(upsample(values, image.size) / limit, 0.0, 1.0))
    return Image.fromarray(np.rint(np.asarray(image.convert("RGB"), np.float64) * light[..., None]).astype(np.uint8))


def above_zero(map: NDArray[Any], percentile: float = 99.0) -> Scale:
    """The scale of what is above zero in a map. It begins at zero whatever the map: a product has no other place."""
    scale = Scale.of([np.maximum(np.asarray(map, np.float64), 0.0)], percentile, signed=False)
    return replace(scale, low=0.0, floor=0.0)


def before_and_after(
    image: Image.Image,
    before: NDArray[Any],
    after: NDArray[Any],
    titles: tuple[str, str],
    caption: str = "",
    tile: int = TILE,
) -> Image.Image:
    """The image, and the same times two maps of it, each on a scale of its own that is written under it."""
    pairs = zip(titles, (before, after), strict=True)
    products = [Cell(times_input(image, map), None, title, _brightness(map)) for title, map in pairs]
    row = [Cell(image, None, "what the model saw"), *products]
    rule = (
        "Pixels times the part of the map above zero, enlarged bilinearly: black where nothing speaks for the class. "
        "Each map has its own scale; light and dark of the photograph remain, so a dark object stays dark."
    )
    return panel([row], f"{caption}. {rule}" if caption else rule, tile=tile)


def _brightness(map: NDArray[Any]) -> str:
    scale = above_zero(map)
    if not (np.nan_to_num(np.asarray(map, np.float64)) > 0).any():
        return "nothing above zero"
    where = f" ({percentile_name(scale.percentile)})" if scale.percentile else ""
    return f"full brightness from {number(scale.limit)}{where}"


# -- pictures of extras --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExtraPicture:
    """A picture of what a method returns beside its map: `draw` gets the explanation and the side of a tile."""

    name: str
    title: str
    needs: tuple[str, ...]
    """Names of the extras that it shows."""
    draw: Callable[[Any, int], Image.Image]
    made_by: str = ""
    """A method that returns them, with `{}` for the one it is put around."""


def _owners(explanation: Any, tile: int) -> Image.Image:
    """The distribution of `var`: who owns which patch, what is discriminative and what is shared."""
    e = explanation
    is_class = e.extras["classes"] >= 0
    shares, maps = (e.extras[name][is_class].numpy() for name in ("distribution", "maps"))
    return owners(e.image, shares, maps, e.class_names, e.source_line, tile)


def _times_input(explanation: Any, tile: int) -> Image.Image:
    """How VAR's paper shows transformers: the image times the base's own map, and times what `var` leaves of it."""
    e = explanation
    titles = f"{e.class_names[0]}: the base alone", f"{e.class_names[0]}: with var"
    return before_and_after(e.image, e.extras["maps"][0].numpy(), e.map.numpy(), titles, e.source_line, tile)


_OF_VAR = ("distribution", "maps", "classes")
EXTRAS = {
    "owners": ExtraPicture("owners", "Who owns which patch", _OF_VAR, _owners, "var({})"),
    "times_input": ExtraPicture("times_input", "Map times input", _OF_VAR, _times_input, "var({})"),
}
"""By their names, which are also those of their files."""


def pictures_of(extras: Mapping[str, Any]) -> list[ExtraPicture]:
    """The pictures that these extras allow."""
    return [extra for extra in EXTRAS.values() if all(need in extras for need in extra.needs)]
