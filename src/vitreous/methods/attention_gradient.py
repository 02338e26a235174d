"""Attention times its gradient: where the model looks, for this class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.readout import pad_prefix, positive, push, start_keeps, start_row
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Trace

__all__ = ["AttentionCAM", "Generic"]


@register(
    "generic",
    family="attention x gradient",
    papers=("chefer2021generic",),
    aliases=("chefer2", "genatt", "transformer_mm"),
)
@dataclass(frozen=True)
class Generic(Method):
    """Relevance that gathers in every block along positive attention times gradient.

    ``E_l = mean_h (A_l * dA_l)+``, ``R = I``, ``R <- R + E_l R`` upwards; here its one row that matters, downwards:
    ``r <- r + r E_l``. Clamp first, then average heads. Attention pooling starts the row with its own ``E``. Layer term
    (for ``plus``): the row of ``E_l``, which makes ``plus(generic)`` Grad-SAM read at the class token.
    """

    start: int = 0
    layered = True

    def ask(self, view: View) -> Pass:
        return Pass((self._matrices(view), *start_keeps(view, positive, True)))

    def read(self, trace: Trace) -> Tensor:
        matrices = trace[self._matrices(trace.view)]
        row = start_row(trace, matrices[0], positive, True)
        for matrix in reversed(matrices):
            row = row + push(row, matrix)
        return trace.tokens_to_grid(row)

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep("attention", positive_row, tuple(layers), grad=True),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        rows = trace[Keep("attention", positive_row, tuple(layers), grad=True)]
        return [trace.tokens_to_grid(row, layer) for layer, row in zip(layers, rows, strict=True)]

    def _matrices(self, view: View) -> Keep:
        layers = tuple(range(resolve_layer(view, self.start), view.depth))
        return Keep("attention", positive, layers, grad=True)


@register("attcam", family="attention x gradient", papers=("chefer2021transformer",))
@dataclass(frozen=True)
class AttentionCAM(Method):
    """Grad-CAM with the heads of one attention map as channels.

    ``w_h = mean over patches of dA[h, CLS, patches]``, ``map = mean_h w_h A[h, CLS, patches]``, before any ReLU. Papers
    that compare with "Grad-CAM" on ViTs often mean this. With attention pooling the last map is the pooling's own.
    """

    layer: int = -1
    layered = True

    def ask(self, view: View) -> Pass:
        if self._pools(view):
            return Pass(start_keeps(view, head_weighted, True))
        return self.ask_layers(view, (resolve_layer(view, self.layer),))

    def read(self, trace: Trace) -> Tensor:
        if self._pools(trace.view):
            (pool,) = trace[start_keeps(trace.view, head_weighted, True)[0]]
            high, wide = trace.grid
            return trace.tokens_to_grid(pad_prefix(pool, high * wide + trace.view.prefix))
        return self.read_layers(trace, (resolve_layer(trace.view, self.layer),))[0]

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep("attention", head_weighted, tuple(layers), grad=True),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        rows = trace[Keep("attention", head_weighted, tuple(layers), grad=True)]
        return [trace.tokens_to_grid(row, layer) for layer, row in zip(layers, rows, strict=True)]

    def _pools(self, view: View) -> bool:
        return view.pooling.attends and resolve_layer(view, self.layer) == view.depth - 1


def positive_row(view: View, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """The row of ``mean_h (A * dA)+`` that the model reads."""
    assert gradient is not None
    parts = [attention[:, :, rows] * gradient[:, :, rows] for rows in view.pooling.rows]
    return torch.stack([part.clamp_(min=0).mean(dim=(1, 2)) for part in parts]).sum(dim=0)


def head_weighted(view: View, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """``mean_h mean_patches(dA[h]) A[h]`` over the rows that the model reads."""
    assert gradient is not None
    pooling = attention.shape[2] == 1  # the one row of attention pooling, over patches only
    patches = slice(0 if pooling else view.prefix, None)
    maps = []
    for rows in [slice(None)] if pooling else view.pooling.rows:
        weight = gradient[:, :, rows, patches].mean(dim=-1, keepdim=True)
        maps.append((weight * attention[:, :, rows]).mean(dim=(1, 2)))
    return torch.stack(maps).sum(dim=0)
