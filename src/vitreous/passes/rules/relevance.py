"""Relevance: what every operation hands on by a rule, in float64 whatever the model's dtype.

A pass of this currency runs wholly in float64, the forward too, with the model's own weights. Published rules divide by
numbers near zero, which magnifies the rounding of float32 until other patches come first: on real weights a walk in
float64 over activations of a forward in float32 is hardly better than the same in float32 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import TraceError
from vitreous.passes.rules.table import Call, Rule

__all__ = ["Back", "RelevanceRule", "carry", "flowing", "own", "stabilised"]

Back = Callable[[Tensor], Sequence["Tensor | None"]]
"""``relevance of the output -> relevance of every operand``, in float64."""


class RelevanceRule(Rule):
    """A rule that says how the relevance of an output is shared among the operands that flow."""

    def __call__(self, call: Call) -> Any:
        operands = flowing(call)
        if not operands:
            return call.plain()
        out = own(call)
        return carry(out, operands, self.back(call, operands, out))

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        """Return how relevance goes from the value ``out`` to these operands."""
        raise TraceError(f"the rule {type(self).__name__} does not say what a {call.kind} does")


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, back: Back, out: Tensor, *operands: Tensor) -> Tensor:
        ctx.back, ctx.shapes = back, [each.shape for each in operands]
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        shares = ctx.back(flows[0])
        pairs = zip(shares, ctx.shapes, strict=True)
        return None, None, *(None if share is None else share.sum_to_size(shape) for share, shape in pairs)


def carry(out: Tensor, operands: Sequence[Tensor], back: Back) -> Tensor:
    """Return the value ``out`` as a function of the operands, whose backward shares relevance out."""
    made: Tensor = _Carry.apply(back, out, *operands)
    return made


def flowing(call: Call) -> list[Tensor]:
    """Return the operands of a call that relevance can reach."""
    given = [*call.args, *call.kwargs.values()]
    return (
        [each for each in given if isinstance(each, Tensor) and each.requires_grad] if torch.is_grad_enabled() else []
    )


def own(call: Call) -> Tensor:
    """Return what the model itself would have computed; nothing is changed in place."""

    def plain(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) and value.requires_grad else value

    with torch.no_grad():
        args = [plain(each) for each in call.args]
        out: Tensor = call.func(*args, **{name: plain(each) for name, each in call.kwargs.items()})
    return out


def stabilised(value: Tensor, eps: float) -> Tensor:
    """Move a denominator away from zero, in the direction of its sign."""
    return value + torch.where(value < 0, -eps, eps)
