"""Attention alone: maps that say where the model looks, whatever the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.readout import head_mean, mean_row, pad_prefix, push, start_keeps, start_row
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Trace

__all__ = ["RawAttention", "Rollout"]


@register("raw_attention", family="attention", papers=("dosovitskiy2021image",), class_specific=False, cost=(1, 0))
@dataclass(frozen=True)
class RawAttention(Method):
    """The attention of one block, averaged over heads.

    ``mean_h A_l[CLS, patches]``; the mean over the patch rows where the model averages them. With attention pooling,
    the last block's map is the pooling's own attention. Layer term: the same row of each block.
    """

    layer: int = -1
    layered = True

    def ask(self, view: View) -> Pass:
        if self._pools(view):
            return Pass(start_keeps(view, head_mean, False))
        return self.ask_layers(view, (resolve_layer(view, self.layer),))

    def read(self, trace: Trace) -> Tensor:
        if self._pools(trace.view):
            (pool,) = trace[start_keeps(trace.view, head_mean, False)[0]]
            high, wide = trace.grid
            return trace.tokens_to_grid(pad_prefix(pool.flatten(1), high * wide + trace.view.prefix))
        return self.read_layers(trace, (resolve_layer(trace.view, self.layer),))[0]

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep("attention", mean_row, tuple(layers)),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        rows = trace[Keep("attention", mean_row, tuple(layers))]
        return [trace.tokens_to_grid(row, layer) for layer, row in zip(layers, rows, strict=True)]

    def _pools(self, view: View) -> bool:
        return view.pooling.attends and resolve_layer(view, self.layer) == view.depth - 1


@register("rollout", family="attention", papers=("abnar2020quantifying",), class_specific=False, cost=(1, 0))
@dataclass(frozen=True)
class Rollout(Method):
    """Attention multiplied through the blocks, half of each passing by on the residual.

    ``r <- r (mean_h A_l + I) / 2`` from the last block down to ``start``, starting at the row the model reads. Rows of
    A sum to one, so this is the row-normalised product of Abnar and Zuidema at N times less work. Some published
    scripts start at block 1. Layer term (for ``plus``): the row of ``mean_h A_l``.
    """

    start: int = 0
    layered = True

    def ask(self, view: View) -> Pass:
        return Pass((self._matrices(view), *start_keeps(view, head_mean, False)))

    def read(self, trace: Trace) -> Tensor:
        matrices = trace[self._matrices(trace.view)]
        row = start_row(trace, matrices[0], head_mean, False)
        for matrix in reversed(matrices):
            row = (row + push(row, matrix)) / 2
        return trace.tokens_to_grid(row)

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return RawAttention().ask_layers(view, layers)

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        return RawAttention().read_layers(trace, layers)

    def _matrices(self, view: View) -> Keep:
        return Keep("attention", head_mean, tuple(range(resolve_layer(view, self.start), view.depth)))
