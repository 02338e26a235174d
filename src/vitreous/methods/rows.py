"""Maps that are one row of an attention matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.readout import attention_site, pad_prefix, push, read_row, start_keeps
from vitreous.models import View
from vitreous.passes import Keep, Pass, Reduce, Trace

__all__ = ["RowTerm", "mean_rows", "row_maps", "whole_row"]


class RowTerm(Method):
    """A map that is a row of one attention matrix, the one the model reads; its layer terms are that row at each block.

    With attention pooling, the last map is that of the pooling itself. Inside windows the map lies on the grid of its
    layer: in a hierarchical model the last block's is the coarsest.
    """

    layer: int
    layered = True
    reduce: ClassVar[Reduce]
    grad: ClassVar[bool] = True

    def asks(self, view: View) -> tuple[Pass, ...]:
        if self._pools(view):
            return (Pass(start_keeps(view, type(self).reduce, self.grad)),)
        return (self.ask_layers(view, (resolve_layer(view, self.layer),)),)

    def read(self, trace: Trace) -> Tensor:
        if self._pools(trace.view):
            (pool,) = trace[start_keeps(trace.view, type(self).reduce, self.grad)[0]]
            high, wide = trace.grid
            return trace.tokens_to_grid(pad_prefix(pool, high * wide + trace.view.prefix))
        return self.read_layers(trace, (resolve_layer(trace.view, self.layer),))[0]

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep(attention_site(view), type(self).reduce, tuple(layers), grad=self.grad),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        return row_maps(trace, self.ask_layers(trace.view, layers).keeps[0])

    def _pools(self, view: View) -> bool:
        return view.pooling.attends and resolve_layer(view, self.layer) == view.depth - 1


def row_maps(trace: Trace, keep: Keep) -> list[Tensor]:
    """Return one map for each layer, of what ``mean_rows`` made there."""
    rows = [whole_row(trace, kept, layer) for layer, kept in zip(keep.layers, trace[keep], strict=True)]
    return [trace.tokens_to_grid(row, layer) for layer, row in zip(keep.layers, rows, strict=True)]


def whole_row(trace: Trace, kept: Tensor, layer: int) -> Tensor:
    """Return the numbers ``[B, N]`` of a layer's tokens.

    Inside windows, matrices ``[B, W, t, t]`` give the row that the model reads, sums over one axis ``[B, W, t]`` become
    the means that they are over all tokens.
    """
    windows = trace.windows(layer)
    if windows is None:
        return kept
    if kept.ndim == 4:
        return push(read_row(trace, kept, layer), kept, windows)
    return windows.paste(kept) / math.prod(trace.grids[layer])


def mean_rows(view: View, make: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Return the row that the model reads of ``mean_h make(given)``, which treats every row alone.

    Inside windows all rows are kept: which tokens they belong to is known when the windows are put together.
    """
    if given[0].ndim == 5:
        return make(*given).mean(dim=-3)
    parts = [make(*(each[:, :, rows] for each in given)) for rows in read_rows(view, given[0])]
    return torch.stack([part.mean(dim=(1, 2)) for part in parts]).sum(dim=0)


def read_rows(view: View, attention: Tensor) -> list[slice]:
    """The rows that are read: of a block those of the pooling, of attention pooling its only one."""
    return [slice(None)] if attention.shape[2] == 1 else view.pooling.rows
