"""Windows: which patches see each other in a layer where not all do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Windows", "shifted_windows"]


class Windows(NamedTuple):
    """W windows of t places each, in the order in which the model lays them out; every patch stands at one place."""

    patches: Tensor
    """``[W, t]``: the patch of the layer's grid at each place, -1 where it is padding."""
    sees: Tensor
    """``[W, t, t]``: whether the first place may look at the second; padding neither looks nor is seen."""

    def apart(self, attention: Tensor) -> Tensor:
        """Weights ``[B W, H, t, t]`` as the model has them to ``[B, W, H, t, t]``, zero where nothing is seen.

        Half precision is widened: a product with a gradient, spread over many windows, would vanish in it.
        """
        wide = attention if attention.dtype == torch.float64 else attention.float()
        apart = wide.reshape(-1, len(self.patches), *wide.shape[1:])
        return apart.masked_fill(~self.sees.to(attention.device).unsqueeze(1), 0)

    def cut(self, row: Tensor) -> Tensor:
        """Numbers of patches ``[B, N]`` to their places ``[B, W, t]``, zero at padding."""
        return F.pad(row, (0, 1))[:, self.patches.to(row.device)]  # -1 is the zero at the end

    def paste(self, values: Tensor) -> Tensor:
        """Numbers at places ``[B, W, t]`` to their patches ``[B, N]``; those at padding are dropped."""
        flat = self.patches.flatten()
        places = flat.argsort()[int((flat < 0).sum()) :]
        return values.flatten(1)[:, places.to(values.device)]


def shifted_windows(
    grid: Sequence[int],
    window: Sequence[int],
    shift: Sequence[int],
    padded_first: bool = True,
    hidden: Tensor | None = None,
) -> Windows:
    """Return the windows of a grid that is rolled by ``-shift`` and padded at its lower and right end to whole windows.

    ``padded_first`` tells which happens before the other. Rolling brings patches of opposite edges into one window: as
    in all libraries, the last window of an axis is parted ``shift`` places from its end, and its parts do not see
    each other. ``hidden`` ``[W, t, t]`` says what is not seen instead, where a model has a mask of its own; a mask of
    fewer windows is repeated.
    """
    index = torch.arange(grid[0] * grid[1]).view(*grid)
    sides = [-(-side // size) * size for side, size in zip(grid, window, strict=True)]
    missing = (0, sides[1] - grid[1], 0, sides[0] - grid[0])
    rolled = [-by for by in shift]
    if padded_first:
        index = F.pad(index, missing, value=-1).roll(rolled, dims=(0, 1))
    else:
        index = F.pad(index.roll(rolled, dims=(0, 1)), missing, value=-1)
    patches = _cut(index, window)
    if hidden is None:
        down, across = (_parts(*facts) for facts in zip(sides, window, shift, strict=True))
        parts = _cut(3 * down[:, None] + across, window)
        hidden = parts[:, :, None] != parts[:, None]
    real, hidden = patches >= 0, hidden[torch.arange(len(patches)) % len(hidden)]
    return Windows(patches, ~hidden & real[:, :, None] & real[:, None])


def _parts(side: int, window: int, shift: int) -> Tensor:
    place = torch.arange(side)
    return (place >= side - window).long() + (place >= side - shift).long() if shift else torch.zeros_like(place)


def _cut(laid: Tensor, window: Sequence[int]) -> Tensor:
    high, wide = laid.shape
    apart = laid.view(high // window[0], window[0], wide // window[1], window[1])
    return apart.transpose(1, 2).reshape(-1, window[0] * window[1])
