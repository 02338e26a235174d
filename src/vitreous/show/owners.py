"""Who owns which patch: a distribution over classes as a picture, with its legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .colour import Bytes, Floats, Scale, from_oklab
from .overlay import upsample
from .panel import TILE, Cell, panel
from .sheet import INK, SOFT_INK
from .text import draw_lines, line_height, shorten, wrap

_LUMA = np.array([0.299, 0.587, 0.114])
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
    chance = 1 / len(shares)
    return np.asarray(np.clip((shares.max(axis=0) - chance) / (1 - chance), 0.0, 1.0))


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
    shares = np.stack([upsample(each, image.size) for each in _checked(distribution)])
    colour = class_colours(len(shares))[shares.argmax(axis=0)].astype(np.float64)
    grey = np.asarray(image.convert("RGB"), np.float64) @ _LUMA
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
    """The picture, who owns which patch, what is discriminative, what is shared, and a legend, side by side.

    `distribution` and `maps` are `[K, h, w]`, `names` the K classes, the explained one first. Let e be the excess of
    the largest share and m the largest map, both patch by patch: discriminative is e m, shared is (1 - e) m, where m
    is above zero. They are drawn on one scale and together are m. The colours of owners are as strong as the lead of
    the strongest class over the mean of all, on a scale of its own: who wins a patch where all are alike does not
    matter. (A lead is the same for logits and log-probabilities; the maps themselves are not.)
    """
    shares, evidence = _checked(distribution), _checked(maps)
    if len(names) != len(shares) or evidence.shape != shares.shape:
        raise ValueError(f"{len(names)} names, {list(shares.shape)} shares and {list(evidence.shape)} maps do not fit")
    most, above = np.maximum(evidence.max(axis=0), 0.0), excess(shares)
    ahead = lead(evidence)
    owner = shares.argmax(axis=0)
    clear = above > _CLEAR
    total = float(ahead.sum()) or 1.0
    owned = [float(ahead[clear & (owner == k)].sum()) / total for k in range(len(names))]
    row = [
        Cell(image, None, "what the model saw"),
        Cell(
            owner_overlay(image, shares, strength(evidence)),
            None,
            "who owns which patch",
            "grey: little evidence, or a tie",
        ),
        Cell(image, above * most, "discriminative", "speaks for one class", group="evidence", signed=False),
        Cell(image, (1 - above) * most, "shared", "speaks for several alike", group="evidence", signed=False),
        Cell(_legend(names, owned, tile), None, "classes", "share of the evidence that each owns; the rest is shared"),
    ]
    return panel([row], caption, tile=tile, scale="group")


def _legend(names: Sequence[str], owned: Sequence[float], tile: int) -> Image.Image:
    """Colour, name and share of each class, as many as fit; the explained class first."""
    size = max(12, tile // 19)
    step = round(2.15 * line_height(size))
    swatch = line_height(size)
    legend = Image.new("RGB", (tile, tile), "white")
    draw = ImageDraw.Draw(legend)
    room = max(1, tile // step)
    shown = len(names) if len(names) <= room else room - 1
    for index, colour in enumerate(class_colours(len(names))[:shown]):
        y = index * step
        draw.rounded_rectangle((0, y + 2, swatch, y + 2 + swatch), radius=swatch // 4, fill=tuple(map(int, colour)))
        left = swatch + size // 2 + 2
        (name, *_) = [*wrap(names[index], size, tile - left, 1), ""]
        part = f"{100 * owned[index]:.0f} %" + (", explained" if index == 0 else "")
        draw_lines(draw, (left, y), [name], size, INK)
        draw_lines(draw, (left, y + line_height(size)), [part], size, SOFT_INK)
    if shown < len(names):
        more = shorten(f"and {len(names) - shown} more", size, tile)
        draw_lines(draw, (0, shown * step), [more], size, SOFT_INK)
    return legend


def _checked(values: NDArray[Any]) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 3 or len(array) < 2 or 0 in array.shape:
        raise ValueError(f"shares and maps have the shape [K, h, w] with K at least 2, not {list(array.shape)}")
    return array
