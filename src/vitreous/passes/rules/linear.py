"""Rules for what is linear: layers, convolutions, and products with a constant.

``z = W x + b``; a rule says how the relevance R of z is shared among the numbers of x. ``W+`` and ``W-`` are the
positive and negative parts, ``s`` the quotient of R and a denominator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from vitreous.errors import TraceError
from vitreous.passes.rules.relevance import Back, RelevanceRule, stabilised
from vitreous.passes.rules.table import Call

__all__ = ["AlphaBeta", "Epsilon", "Flat", "Gamma", "Layer", "Linear", "LinearRule", "WSquare", "ZBox"]


class Linear:
    """A linear operation without its bias: ``forward(x, W)``, and ``back(s, W)``, its transpose."""

    def __init__(self, call: Call, x: Tensor) -> None:
        self.func, self.shape, args = call.func, x.shape, list(call.args)
        names = ("input", "weight", "bias") if call.func is F.linear else _CONVOLUTION
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **call.kwargs}
        if given.get("padding") == "same":
            raise TraceError("a convolution with padding='same' has no rule")
        if given.get("padding") == "valid":
            given["padding"] = 0
        self.given = given
        self.weight = given["weight"].detach()
        self.bias = None if given.get("bias") is None else given["bias"].detach()
        self.options = [given.get(name, usual) for name, usual in _OPTIONS.items()]

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.func is F.linear:
            return x @ weight.T
        return F.conv2d(x, weight, None, *self.options)

    def back(self, s: Tensor, weight: Tensor) -> Tensor:
        if self.func is F.linear:
            return s @ weight
        shared: Tensor = conv2d_input(self.shape, weight, s, *self.options)  # type: ignore[no-untyped-call]
        return shared

    def offset(self, bias: Tensor) -> Tensor:
        """Lay a bias out beside the channels of the output."""
        return bias if self.func is F.linear else bias[:, None, None]


_OPTIONS: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_CONVOLUTION = ("input", "weight", "bias", *_OPTIONS)


class LinearRule(RelevanceRule):
    """A rule for linear layers and convolutions."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        if len(operands) != 1:
            raise TraceError(f"the rule {type(self).__name__} is for constant weights")
        return Layer(self, call, Linear(call, operands[0]), operands[0].detach(), out)

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        """Return the relevance of x; ``out`` is the value, bias included."""
        raise TraceError(f"the rule {type(self).__name__} does not say what a linear layer does")


@dataclass(frozen=True)
class Layer:
    """How a layer shares relevance. It remembers the call, for a batch norm that may follow."""

    rule: LinearRule
    call: Call
    op: Linear
    x: Tensor
    out: Tensor

    def __call__(self, flow: Tensor) -> tuple[Tensor]:
        return (self.rule.share(self.op, self.x, self.out, flow),)


@dataclass(frozen=True)
class Epsilon(LinearRule):
    """``R_i = x_i sum_j W_ji R_j / (z_j + eps sign z_j)``; the bias keeps its share, unless z is taken without it."""

    eps: float = 1e-6
    bias: bool = True

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        z = out if self.bias or op.bias is None else out - op.offset(op.bias)
        return x * op.back(flow / stabilised(z, self.eps), op.weight)


@dataclass(frozen=True)
class AlphaBeta(LinearRule):
    """Positive and negative contributions apart: ``alpha`` times their share in all positive ones, less ``beta``.

    ``alpha - beta = 1``; (1, 0) is z-plus. Positive parts of the bias belong to the positive ones.
    """

    alpha: float = 2.0
    beta: float = 1.0
    eps: float = 1e-6

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        up, down = x.clamp(min=0), x.clamp(max=0)
        plus, minus = op.weight.clamp(min=0), op.weight.clamp(max=0)
        total = torch.zeros_like(x)
        for factor, (one, other), sign in ((self.alpha, (plus, minus), 1), (-self.beta, (minus, plus), -1)):
            if factor == 0:
                continue
            z = op.forward(up, one) + op.forward(down, other)
            if op.bias is not None:
                z = z + op.offset(op.bias.clamp(min=0) if sign > 0 else op.bias.clamp(max=0))
            s = factor * flow / (z + sign * self.eps)
            total += up * op.back(s, one) + down * op.back(s, other)
        return total


@dataclass(frozen=True)
class Gamma(LinearRule):
    """Contributions of the output's own sign are favoured: W becomes ``W + gamma W+`` where it has that sign.

    For z > 0: ``x+ (W + g W+)`` and ``x- (W + g W-)``, with the bias ``b + g b+``; for z < 0 the signs are exchanged.
    """

    gamma: float = 0.25
    eps: float = 1e-6

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        up, down = x.clamp(min=0), x.clamp(max=0)
        more = op.weight + self.gamma * op.weight.clamp(min=0)
        less = op.weight + self.gamma * op.weight.clamp(max=0)
        total = torch.zeros_like(x)
        for sign, one, other in ((1, more, less), (-1, less, more)):
            favoured = op.forward(up, one) + op.forward(down, other)
            if op.bias is not None:
                own = op.bias.clamp(min=0) if sign > 0 else op.bias.clamp(max=0)
                favoured = favoured + op.offset(op.bias + self.gamma * own)
            there = (out > 0) if sign > 0 else (out < 0)
            s = torch.where(there, flow / stabilised(favoured, self.eps), 0)
            total += up * op.back(s, one) + down * op.back(s, other)
        return total


@dataclass(frozen=True)
class ZBox(LinearRule):
    """For pixels, which lie between ``low`` and ``high``: ``z = W x - W+ low - W- high``, no bias.

    The bounds are the smallest and largest value of each image, over all channels.
    """

    eps: float = 1e-9

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        low, high = (bound.view(-1, *[1] * (x.ndim - 1)).expand_as(x) for bound in x.flatten(1).aminmax(dim=1))
        plus, minus = op.weight.clamp(min=0), op.weight.clamp(max=0)
        z = op.forward(x, op.weight) - op.forward(low, plus) - op.forward(high, minus)
        s = flow / (z + self.eps)
        return x * op.back(s, op.weight) - low * op.back(s, plus) - high * op.back(s, minus)


@dataclass(frozen=True)
class Flat(LinearRule):
    """Every number that an output sees gets the same share."""

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        ones = torch.ones_like(op.weight)
        return op.back(flow / op.forward(torch.ones_like(x), ones), ones)


@dataclass(frozen=True)
class WSquare(LinearRule):
    """Shares by the squares of the weights, whatever the values."""

    eps: float = 1e-12

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        squares = op.weight.square()
        return op.back(flow / (op.forward(torch.ones_like(x), squares) + self.eps), squares)
