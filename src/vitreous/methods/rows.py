"""Maps that are one row of an attention matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.readout import pad_prefix, start_keeps
from vitreous.models import View
from vitreous.passes import Keep, Pass, Reduce, Trace

__all__ = ["RowTerm", "read_rows"]


class RowTerm(Method):
    """A map that is a row of one attention matrix, the one the model reads; its layer terms are that row at each block.

    With attention pooling, the last map is that of the pooling itself.
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
        return Pass((Keep("attention", type(self).reduce, tuple(layers), grad=self.grad),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        rows = trace[Keep("attention", type(self).reduce, tuple(layers), grad=self.grad)]
        return [trace.tokens_to_grid(row, layer) for layer, row in zip(layers, rows, strict=True)]

    def _pools(self, view: View) -> bool:
        return view.pooling.attends and resolve_layer(view, self.layer) == view.depth - 1


def read_rows(view: View, attention: Tensor) -> list[slice]:
    """The rows that are read: of a block those of the pooling, of attention pooling its only one."""
    return [slice(None)] if attention.shape[2] == 1 else view.pooling.rows
