"""Relevance as input times a modified gradient: tables for conservative LRP and AttnLRP.

Both equal explicit relevance rules in the limit of a vanishing stabiliser, and need no denominator at all, so that they
run in the model's own dtype at the price of a backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.passes.rules.frozen import Hold, HoldAttention, HoldDeviation, HoldGate
from vitreous.passes.rules.relevance import flowing
from vitreous.passes.rules.table import AttentionRule, Call, Flows, Rule, Rules

__all__ = ["ATTNLRP", "conservative"]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.factor, None


@dataclass(frozen=True)
class HalfGradient(Rule):
    """A product of two factors that flow hands half of the gradient to each: what it says is counted once."""

    def __call__(self, call: Call) -> Any:
        out = call.plain()
        return _Scaled.apply(out, 0.5) if len(flowing(call)) > 1 else out


@dataclass(frozen=True)
class HalfAttention(AttentionRule):
    """Both products of attention hand on halves: values get half of their gradient, queries and keys a quarter."""

    through = True

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        half = flows / 2
        grad = half @ v.transpose(-2, -1)
        product = attention * grad
        scores = (product - attention * product.sum(dim=-1, keepdim=True)).mul_(scale / 2).to(q.dtype)
        values = attention.to(v.dtype).transpose(-2, -1) @ half
        return Flows(scores @ k, scores.transpose(-2, -1) @ q, values)


ATTNLRP = Rules.of(
    attention=HalfAttention(),
    matmul=HalfGradient(),
    product=HalfGradient(),
    norm=HoldDeviation(),
    activation=HoldGate(),
    gate=HoldGate(),
)
"""AttnLRP: activations by their frozen gate, norms by their frozen deviation, products by halves, softmax as it is."""


def conservative(gate: bool, mean: bool) -> Rules:
    """Return conservative propagation: attention and deviations held, perhaps gates of activations, and means too."""
    held = Rules.of(attention=HoldAttention(), softmax=Hold(), norm=HoldDeviation(mean))
    gates = Rules.of(activation=HoldGate(), gate=Hold())
    return Rules(tuple(sorted(held.table + gates.table, key=lambda pair: pair[0]))) if gate else held
