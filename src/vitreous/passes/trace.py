"""What a pass wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import TraceError
from vitreous.models import View
from vitreous.models.windows import Windows
from vitreous.passes.ask import Keep

__all__ = ["Trace"]


class Trace:
    """The answers of one pass: what was kept, layer by layer, and the logits.

    ``trace[keep]`` is the list of kept tensors in the order of ``keep.layers``; every tensor has the images first.
    """

    def __init__(self, view: View, inputs: Tensor) -> None:
        self.view = view
        self.grids = [view.grid(inputs, layer) for layer in range(view.depth)]
        self.last_grid = view.last_grid(inputs)
        self.batch = len(inputs)
        self.logits: Tensor = torch.empty(0)
        self._kept: dict[tuple[Any, ...], Tensor] = {}

    @classmethod
    def empty(cls) -> Trace:
        """Return a trace for those who keep nothing."""
        made = cls.__new__(cls)
        made.grids, made.last_grid, made.batch, made.logits, made._kept = [], (0, 0), 0, torch.empty(0), {}
        return made

    def store(self, keep: Keep, layer: int, kept: Tensor) -> None:
        self._kept[keep.key, layer] = kept

    def get(self, keep: Keep, layer: int) -> Tensor:
        return self._kept[keep.key, layer]

    def has(self, keep: Keep, layer: int | None = None) -> bool:
        layers = keep.layers if layer is None else (layer,)
        return all((keep.key, each) in self._kept for each in layers)

    def __getitem__(self, keep: Keep) -> list[Tensor]:
        for layer in keep.layers:
            if not self.has(keep, layer):
                raise TraceError(f"{keep.site} of layer {layer} was not recorded in this pass")
        return [self._kept[keep.key, layer] for layer in keep.layers]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the first block."""
        return self.grids[0]

    def grid_at(self, layer: int) -> tuple[int, int]:
        """Rows and columns of what enters a block; the layer after the last stands for what leaves the last."""
        return self.grids[layer] if layer < len(self.grids) else self.last_grid

    def tokens_to_grid(self, tokens: Tensor, layer: int = 0) -> Tensor:
        """Drop the prefix of ``[B, N]`` and lay the patches of a layer out row by row: ``[B, h, w]``."""
        high, wide = self.grid_at(layer)
        patches = tokens[:, self.view.prefix :]
        if patches.shape[1] != high * wide:
            raise TraceError(f"{patches.shape[1]} patch tokens do not fill a grid of {high} x {wide}")
        return patches.reshape(len(patches), high, wide)

    def windows(self, layer: int) -> Windows | None:
        """Which patches see each other at a layer, where not all do."""
        return self.view.windows(layer)

    def unmerged(self, row: Tensor, layer: int) -> Tensor:
        """Bring a row ``[B, N]`` over what comes out of a block to what entered it.

        Where patches were merged after the block, each gets an equal part of what their sum got: two by two, fewer at
        the lower and right edge of a grid with an odd side, so that the sum over the row stays.
        """
        fine, coarse = self.grids[layer], self.grids[min(layer + 1, len(self.grids) - 1)]
        if fine == coarse:
            return row
        into = [torch.arange(side, device=row.device) // 2 for side in fine]
        down, across = ((side - 2 * each).clamp(max=2).to(row) for side, each in zip(fine, into, strict=True))
        laid_out = row.reshape(-1, *coarse)[:, into[0]][:, :, into[1]]
        return (laid_out / (down[:, None] * across)).flatten(1)

    def copy(self) -> Trace:
        """Return a trace that holds the same answers and may be given more of its own."""
        made = Trace.__new__(Trace)
        made.view, made.grids, made.last_grid = self.view, self.grids, self.last_grid
        made.batch, made.logits = self.batch, self.logits
        made._kept = dict(self._kept)
        return made

    @classmethod
    def join(cls, parts: Sequence[Trace]) -> Trace:
        """Put the traces of several inner batches together."""
        if len(parts) == 1:
            return parts[0]
        joined = cls.__new__(cls)
        joined.view, joined.grids, joined.last_grid = parts[0].view, parts[0].grids, parts[0].last_grid
        joined.batch = sum(part.batch for part in parts)
        joined.logits = torch.cat([part.logits for part in parts])
        # the parts let go of each piece as it is joined, so that not everything exists twice
        joined._kept = {key: torch.cat([part._kept.pop(key) for part in parts]) for key in list(parts[0]._kept)}
        return joined
