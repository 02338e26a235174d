"""Gradients of the token vectors at a block's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.errors import MapError
from vitreous.methods.base import Method, check_choice, resolve_layer
from vitreous.methods.readout import dot, wide
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Reduce, Trace

__all__ = ["Gradient", "InputXGradient", "TokenTerm"]


class TokenTerm(Method):
    """A map made of one number per token, read at the input of a block; its layer terms are the same at each block."""

    layer: int
    layered = True
    rules: ClassVar[str] = "plain"

    @property
    def reduce(self) -> Reduce:
        return dot

    def ask(self, view: View) -> Pass:
        return self.ask_layers(view, (resolve_layer(view, self.layer),))

    def read(self, trace: Trace) -> Tensor:
        return self.read_layers(trace, (resolve_layer(trace.view, self.layer),))[0]

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep("input", self.reduce, tuple(layers), grad=True),), self.rules)

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        terms = trace[Keep("input", self.reduce, tuple(layers), grad=True)]
        return [trace.tokens_to_grid(term, layer) for layer, term in zip(layers, terms, strict=True)]


@register("gradient", family="token gradient", papers=("simonyan2014deep", "mehri2024skipplus"))
@dataclass(frozen=True)
class Gradient(TokenTerm):
    """The gradient of each token vector at a block's input, as its length.

    ``||d s / d x_l[j]||_2``, or ``how=sum``: ``sum_d d s / d x_l[j, d]``. In a pre-norm model that sum is exactly
    zero, because every LayerNorm removes the mean of a token, and it is refused there.
    """

    layer: int = 0
    how: str = "norm"

    def __post_init__(self) -> None:
        check_choice("how", self.how, ("norm", "sum"))

    @property
    def reduce(self) -> Reduce:
        return gradient_norm if self.how == "norm" else gradient_sum


@register("ixg", family="token gradient", papers=("shrikumar2016not", "mehri2024skipplus"))
@dataclass(frozen=True)
class InputXGradient(TokenTerm):
    """Input times gradient of the token vectors at a block's input.

    ``sum_d x_l[j, d] * d s / d x_l[j, d]``, signed. ``plus(ixg)`` is CAT. At the last block of a class-token model it
    is zero but for rounding: patches enter there through one LayerNorm only, which ignores the length of a vector.
    """

    layer: int = 0


def gradient_norm(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """The length of the gradient of every token."""
    assert gradient is not None
    length: Tensor = torch.linalg.vector_norm(wide(gradient), dim=-1)
    return length


def gradient_sum(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """The sum of the gradient over the width of every token; refused where it is zero by construction."""
    assert gradient is not None
    gradient = wide(gradient)
    total = gradient.sum(dim=-1)
    if total.abs().max() <= 1e-4 * gradient_norm(view, value, gradient).max():
        raise MapError(
            f"gradient(how=sum) is zero on {view.name}: its LayerNorms remove the mean of each token; use how=norm"
        )
    return total
