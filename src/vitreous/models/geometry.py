"""Where the input of a transform lies in a photograph: measured, by showing it where each pixel comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from vitreous.models.preprocess import Box

__all__ = ["measure_region"]

Array = np.ndarray[Any, np.dtype[np.float64]]
_LEAST = 8
"""Pixels along a side below which nothing is measured: nearly all of them are at an edge."""
_NOISE = 4 / 255
"""How far a colour may be off: bytes are rounded, and a filter overshoots."""


def measure_region(function: Callable[[Image.Image], Array], width: int, height: int) -> Box | None:
    """Return where the input lies in a photograph of this size, to less than a pixel of the input.

    ``function`` makes ``[3, H, W]``, colours from 0 to 1, of a photograph. It is shown a ramp of grey that rises along
    one side of the photograph, and the same ramp falling. The difference of the two says where a pixel comes from,
    whatever colour a transform fills its margins with, and is zero in those; their sum is white, unless they were
    cropped by what is in them. A line is fitted to the difference, away from the edges of the photograph, where a
    filter has no neighbours to ask. None if it is no line, as of what is mirrored, turned or bent, or if the photograph
    is too small to tell.
    """
    if min(width, height) < _LEAST:
        return None
    across, down = (_ramps(function, width, height, axis) for axis in (1, 0))
    inside = (np.abs(across[0]) > 0.02) | (np.abs(down[0]) > 0.02)  # zero in both: a margin, and the very centre
    if not inside.any() or any(np.quantile(np.abs(total - 1)[inside], 0.9) > _NOISE for _, total in (across, down)):
        return None
    columns, rows = _ends(across[0] / 2 + 0.5, inside, width), _ends(down[0].T / 2 + 0.5, inside.T, height)
    return None if columns is None or rows is None else (columns[0], rows[0], columns[1], rows[1])


def _ramps(function: Callable[[Image.Image], Array], width: int, height: int, axis: int) -> tuple[Array, Array]:
    """Return difference and sum of what is made of a rising and a falling ramp of grey, each from 0 to 1."""
    length, other = (height, width) if axis == 0 else (width, height)
    golden = np.arange(other) * 0.6180339887498949 % 1  # what bytes round away is spread evenly over the other side
    ramp = np.floor(255 * (np.arange(length) + 0.5) / length + golden[:, None]).clip(0, 255).astype(np.uint8)
    ramp = ramp.T if axis == 0 else ramp
    rising, falling = (
        function(Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2))).mean(axis=0) for grey in (ramp, 255 - ramp)
    )
    return rising - falling, rising + falling


def _ends(share: Array, inside: np.ndarray[Any, np.dtype[np.bool_]], length: int) -> tuple[float, float] | None:
    """Fit a line to how far along the photograph each column comes from; return the photograph's pixels at its ends."""
    at = np.arange(share.shape[1]) + 0.5
    count = inside.sum(axis=0)
    mean = np.where(inside, share, 0).sum(axis=0) / count.clip(1)
    slope, start = 1 / length, 0.0
    for _ in range(3):  # the slope says how wide a filter is
        margin = 3 * max(1 / length, slope)
        fit = (2 * count >= count.max()) & (mean > margin) & (mean < 1 - margin)
        if fit.sum() < 3:
            return None
        slope, start = np.polyfit(at[fit], mean[fit], 1)
        if slope <= 0:
            return None
    bent = np.abs(share - (start + slope * at))[:, fit][inside[:, fit]]
    if np.quantile(bent, 0.9) > (1 / length + slope + _NOISE) / 2:
        return None
    return float(start * length), float((start + slope * share.shape[1]) * length)
