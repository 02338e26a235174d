"""Map times input: the photograph itself, as bright as a map is large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .colour import Scale, number, percentile_name
from .overlay import upsample
from .panel import TILE, Cell, panel


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
    return replace(
        Scale.of([np.maximum(np.asarray(map, np.float64), 0.0)], percentile, signed=False), low=0.0, floor=0.0
    )


def before_and_after(
    image: Image.Image,
    before: NDArray[Any],
    after: NDArray[Any],
    titles: tuple[str, str],
    caption: str = "",
    tile: int = TILE,
) -> Image.Image:
    """The picture, and the same times two maps of it, each on a scale of its own that is written under it."""
    row = [Cell(image, None, "what the model saw")]
    for title, map in zip(titles, (before, after), strict=True):
        row.append(Cell(times_input(image, map), None, title, _note(map)))
    rule = (
        "Pixels times the part of the map above zero, enlarged bilinearly: black where nothing speaks for the class. "
        "Each map has its own scale; light and dark of the photograph remain, so a dark object stays dark."
    )
    return panel([row], f"{caption}. {rule}" if caption else rule, tile=tile)


def _note(map: NDArray[Any]) -> str:
    scale = above_zero(map)
    if not (np.nan_to_num(np.asarray(map, np.float64)) > 0).any():
        return "nothing above zero"
    where = f" ({percentile_name(scale.percentile)})" if scale.percentile else ""
    return f"full brightness from {number(scale.limit)}{where}"
