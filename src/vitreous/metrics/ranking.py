"""From a map to an order, steps along it, and curves over these steps.

One stable sort per map; equal values come in the order of a seeded key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import MapError
from vitreous.methods import to_grid
from vitreous.models import VisionModel
from vitreous.tracing.prng import PRNGKey

Array = np.ndarray[Any, np.dtype[Any]]

FLAGS = ("", "constant", "zero", "nonfinite")
"""What can be wrong with a map, by code."""

NONFINITE = FLAGS.index("nonfinite")


def flag(maps: Tensor) -> Tensor:
    """Return for each map ``[B, h, w]`` its code in ``FLAGS``: 0 where it is sound."""
    flat = maps.flatten(1)
    finite = torch.isfinite(flat).all(dim=1)
    constant = flat.amax(dim=1) == flat.amin(dim=1)
    zero = (flat == 0).all(dim=1)
    code = constant.to(torch.int8) + (constant & zero).to(torch.int8)
    return torch.where(finite, code, torch.full_like(code, 3))


def sound(maps: Tensor, flags: Tensor) -> Tensor:
    """Return maps that can be ranked: constant ones exactly zero, so that interpolation leaves only ties.

    Values that are not finite become the lowest (NaN) or the nearest finite value of their map.
    """
    flat = _finite(maps.flatten(1))
    return torch.where(((flags == 0) | (flags == 3))[:, None], flat, torch.zeros_like(flat)).view_as(maps)


def finite(maps: Array) -> Array:
    """Return maps ``[B, h, w]`` with NaN as their lowest and infinities as their nearest finite value, or as zeros."""
    return np.asarray(_finite(torch.from_numpy(maps).flatten(1)).view(maps.shape))


def _finite(flat: Tensor) -> Tensor:
    is_finite = torch.isfinite(flat)
    lowest = torch.where(is_finite, flat, torch.inf).amin(dim=1, keepdim=True)
    highest = torch.where(is_finite, flat, -torch.inf).amax(dim=1, keepdim=True)
    return torch.where(torch.isfinite(lowest), torch.where(flat.isnan(), lowest, flat).clamp(lowest, highest), 0.0)


def ranks(values: Tensor, ties: str = "random", seed: int = 0) -> Tensor:
    """Return the rank of every entry of ``[B, n]`` in descending order, 0 for the largest, as int32."""
    ordered = order(values, ties, seed)
    places = torch.arange(values.shape[1], device=values.device, dtype=torch.int32)
    return torch.empty_like(ordered, dtype=torch.int32).scatter_(1, ordered, places.expand_as(ordered))


def order(values: Tensor, ties: str = "random", seed: int = 0) -> Tensor:
    """Return the indices of ``[B, n]`` in descending order of value; stable with respect to the tie key."""
    key = _tie_key(values.shape[1], ties, seed, values.device)
    return key[values[:, key].sort(dim=1, descending=True, stable=True).indices]


def pixel_ranks(maps: Tensor, size: tuple[int, int], upsample: str, ties: str, seed: int) -> Tensor:
    """Return the rank of every pixel, ``[B, H, W]``.

    A coarse map is interpolated (``bilinear``, half-pixel centres), or with ``nearest`` its cells are ranked and the
    pixels of a cell follow each other in reading order: a cell is removed before the next one begins.
    """
    (height, width), (rows, columns) = size, maps.shape[1:]
    if upsample == "bilinear" or (rows, columns) == size:
        return ranks(_finer(maps, size).flatten(1), ties, seed).view(-1, height, width)
    if height % rows or width % columns:
        cells = f"a map of {rows} x {columns}"
        raise MapError(f"{cells} cannot be laid on {height} x {width} pixels by nearest; use bilinear")
    tall, broad = height // rows, width // columns
    cell_ranks = ranks(maps.flatten(1), ties, seed).view(-1, rows, columns)
    inside = torch.arange(tall * broad, device=maps.device, dtype=torch.int32).view(tall, broad)
    pixels = cell_ranks.repeat_interleave(tall, 1).repeat_interleave(broad, 2)
    return pixels * (tall * broad) + inside.repeat(rows, columns)


def unit_ranks(maps: Tensor, size: tuple[int, int], unit: str, upsample: str, ties: str, seed: int) -> Tensor:
    """Return the rank of every pixel, ``[B, H, W]``; with the unit ``region:8``, squares of 8 pixels go together.

    Such a square has the mean of the enlarged map inside it, or its own value where the map has just these cells.
    """
    if unit == "pixel":
        return pixel_ranks(maps, size, upsample, ties, seed)
    side, (height, width) = int(unit.removeprefix("region:")), size
    if height % side or width % side:
        raise MapError(f"{height} x {width} pixels cannot be cut into squares of {side} pixels")
    if tuple(maps.shape[1:]) != (height // side, width // side):
        fine = torch.from_numpy(enlarged(maps.double().cpu().numpy(), size, upsample)).to(maps.device)
        maps = fine.view(-1, height // side, side, width // side, side).mean(dim=(2, 4))
    return pixel_ranks(maps, size, "nearest", ties, seed)


def enlarged(maps: Array, size: tuple[int, int], upsample: str) -> Array:
    """Return maps ``[B, h, w]`` at the pixels: ``bilinear`` with half-pixel centres, or the value of the cell."""
    if tuple(maps.shape[1:]) == size:
        return maps
    if upsample == "bilinear":
        return np.asarray(_finer(torch.from_numpy(maps), size))
    rows, columns = (np.arange(n) * cells // n for n, cells in zip(size, maps.shape[1:], strict=True))
    return np.asarray(maps[:, rows[:, None], columns])


def patched(maps: Array, grid: tuple[int, int]) -> Array:
    """Return maps ``[B, H, W]`` summed into the cells of a grid."""
    batch, height, width = maps.shape
    if height % grid[0] or width % grid[1]:
        raise MapError(f"{height} x {width} pixels cannot be summed into {grid[0]} x {grid[1]} patches")
    return np.asarray(maps.reshape(batch, grid[0], height // grid[0], grid[1], width // grid[1]).sum(axis=(2, 4)))


def token_map(maps: Tensor, model: VisionModel, inputs: Tensor) -> Tensor:
    """Return the map on the token grid: pixels are summed into patches, other grids interpolated to pixels first."""
    if tuple(maps.shape[1:]) == model.grid(inputs):
        return maps
    return to_grid(to_grid(maps, "pixel", model, inputs), "token", model, inputs)


def scaled(maps: Tensor, size: tuple[int, int], normalization: str) -> Tensor:
    """Return each map at the pixels, scaled to 0 .. 1 by its extremes; zero everywhere where it is constant.

    ``normalization``: the positive part (``relu``, on the map's own grid, as methods that end in a ReLU have it) or the
    map as it is (``minmax``).
    """
    maps = maps.double()
    fine = _finer(maps.clamp(min=0) if normalization == "relu" else maps, size)
    lowest, highest = fine.amin(dim=(1, 2), keepdim=True), fine.amax(dim=(1, 2), keepdim=True)
    return torch.where(highest > lowest, (fine - lowest) / (highest - lowest), torch.zeros_like(fine)).float()


def _finer(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate ``[B, h, w]`` bilinearly with half-pixel centres; what is equal stays equal to the last bit.

    Beyond the centres of the outermost cells values repeat: torch's own sum of weighted neighbours rounds them apart,
    and that noise would rank the corners of every map.
    """
    for axis, length in ((1, size[0]), (2, size[1])):
        cells = maps.shape[axis]
        if cells != length:
            at = (torch.arange(length, dtype=torch.float64) + 0.5) * (cells / length) - 0.5
            below = at.floor().clamp(0, cells - 1)
            weight = (at - below).clamp(0, 1).to(maps).view([-1, 1] if axis == 1 else [-1])
            start = below.long().to(maps.device)
            stop = (start + 1).clamp(max=cells - 1)
            maps = torch.lerp(maps.index_select(axis, start), maps.index_select(axis, stop), weight)
    return maps


@lru_cache(maxsize=16)
def _tie_key(size: int, ties: str, seed: int, device: torch.device) -> Tensor:
    if ties == "random":
        return PRNGKey.of(seed, "ties", device).permutation(size)[0]
    forward = torch.arange(size, device=device)
    return forward if ties == "raster" else forward.flip(0)


@dataclass(frozen=True, eq=False)
class Curve:
    """What a score is read from: ``y`` ``[n, J]``, one line per image, over the fractions ``x`` ``[J]``."""

    x: Array
    y: Array

    @property
    def mean(self) -> Array:
        """The mean line over the images that have one."""
        valid = self.y[~np.isnan(self.y).any(axis=1)]
        return valid.mean(axis=0) if len(valid) else np.full(len(self.x), np.nan)


def equal_steps(size: int, steps: int) -> tuple[int, ...]:
    """Return ``k_j = min(size, j * ceil(size / steps))`` from 0 to ``size``; the last step may be shorter."""
    width = -(-size // steps)
    return (*range(0, size, width), size)


def percent_steps(size: int, steps: int, stop: float = 1.0) -> tuple[int, ...]:
    """Return ``floor(j / steps * size)`` for ``j / steps`` from 0 to ``stop``, in whole numbers."""
    return tuple(j * size // steps for j in range(round(steps * stop) + 1))


def area(curve: Array, at: Array, rule: str = "trapezoid", normalise: bool = True) -> Array:
    """Return one number for each curve ``[B, J]`` over the abscissae ``[J]``.

    ``trapezoid``: ``sum_j (x_{j+1} - x_j) (y_j + y_{j+1}) / 2`` with the true fractions, divided by the width of the
    grid unless ``normalise`` is off. ``mean``: the mean of the points.
    """
    if rule == "mean":
        return np.asarray(curve.mean(axis=1))
    widths = np.diff(at)
    total = ((curve[:, 1:] + curve[:, :-1]) / 2) @ widths
    return np.asarray(total / widths.sum() if normalise else total)


def ratio(part: float, total: float, minimum: float = 0.0) -> float:
    """Return ``part / total``; 0 where the total is not more than ``minimum``."""
    return float(part / total) if total > minimum else 0.0
