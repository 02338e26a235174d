"""Where bottlenecks are: which layers share a grid, from which patches are read, which places are neighbours."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.errors import MapError, ModelError
from vitreous.methods.base import Method, resolve_layer
from vitreous.models import View

__all__ = ["Blur", "grid_after", "last_read", "layers_of", "refuse_unread", "stage_of"]

_LEAST_GRID = 14  # rows and columns of the stage of a hierarchical model that is looked at, if there is such a one


def grid_after(view: View, layer: int) -> tuple[int, int]:
    """Return rows and columns of what leaves a block."""
    return view.grid(layer=layer + 1) if layer + 1 < view.depth else view.last_grid()


def stage_of(view: View) -> range:
    """Return the layers of one grid: all, or the last stage of at least 14 x 14 tokens, or else the longest."""
    stages = _stages(view)
    fine = [stage for stage, grid in stages if min(grid) >= _LEAST_GRID]
    return fine[-1] if fine else max((stage for stage, _ in stages), key=lambda stage: (len(stage), stage.start))


def layers_of(view: View, start: int | None, stop: int | None, third: int) -> tuple[int, ...]:
    """Return layers ``start .. stop - 1`` inside one stage; what is not given follows from the model."""
    end = None if stop is None else stop + view.depth if stop < 0 else stop
    known = start if start is not None else None if end is None else end - 1
    stage, stages = stage_of(view), _stages(view)
    if len(stages) > 1 and known is not None:
        known = resolve_layer(view, known)
        stage = next(each for each, _ in stages if known in each)
    first = stage.start + third if start is None else resolve_layer(view, start)
    last = stage.stop if end is None else end
    if not first < last <= view.depth:
        raise ModelError(f"layers {first} .. {last} are none: start must be below stop, stop at most {view.depth}")
    if first not in stage or last - 1 not in stage:
        raise ModelError(f"layers {first} .. {last} of {view.name} lie on several grids; stay inside one stage")
    return tuple(range(first, last))


def last_read(view: View) -> int:
    """Return the last block from whose output patches still reach the class."""
    return view.depth - (2 if view.pooling.kind in ("token", "pair") else 1)


def refuse_unread(method: Method, view: View, layer: int) -> None:
    """Refuse a layer from whose output no patch reaches the class."""
    if layer > last_read(view):
        raise MapError(
            f"{method.info.name}: in {view.name} patches do not reach the class from the output of block {layer}; "
            f"use a layer below it"
        )


def _stages(view: View) -> list[tuple[range, tuple[int, int]]]:
    """Return the layers of each grid, with the grid: of what enters a block, or leaves it where no stream does."""
    if view.stream:
        stages = view.stages or (range(view.depth),)
        return [(stage, view.grid(layer=stage.start)) for stage in stages]
    grids = [grid_after(view, layer) for layer in range(view.depth)]
    parts = [(grid, list(group)) for grid, group in groupby(range(view.depth), key=grids.__getitem__)]
    return [(range(part[0], part[-1] + 1), grid) for grid, part in parts]


class Blur(NamedTuple):
    """A Gaussian over the places of a grid ``[h, w]``, row by row and column by column; a prefix stays as it is.

    ``down`` ``[h, h]`` and ``across`` ``[w, w]`` take weighted means: the kernel ends at ``round(2 sigma)`` places to
    either side, and what lies beyond an edge is the mirror image of what is inside.
    """

    down: Tensor
    across: Tensor
    prefix: int

    @classmethod
    def of(cls, sigma: float, grid: tuple[int, int], prefix: int, like: Tensor) -> Blur | None:
        """Return the blur of a grid; none where it would change nothing."""
        reach = round(2 * sigma)
        if reach == 0:
            return None
        down, across = (_means(side, sigma, reach).to(like) for side in grid)
        return cls(down, across, prefix)

    def __call__(self, values: Tensor) -> Tensor:
        """Return ``[B, N, C]`` blurred."""
        high, wide = len(self.down), len(self.across)
        places = values[:, self.prefix :].reshape(len(values), high, wide, -1)
        smooth = torch.einsum("ih,jw,bhwc->bijc", self.down, self.across, places).flatten(1, 2)
        return torch.cat([values[:, : self.prefix], smooth], dim=1) if self.prefix else smooth


def _means(side: int, sigma: float, reach: int) -> Tensor:
    """Return the Gaussian weights of all places in a row for each of them, ``[side, side]``."""
    steps = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (steps.double() / sigma) ** 2)
    period = max(1, 2 * (side - 1))
    read = (torch.arange(side)[:, None] + steps).remainder(period)
    read = torch.minimum(read, period - read) if side > 1 else torch.zeros_like(read)
    return torch.zeros(side, side, dtype=torch.float64).scatter_add_(
        1, read, (weights / weights.sum()).expand(side, -1)
    )
