"""Rules of relevance: how each operation shares the relevance of its output among its operands.

A layer is ``z = W x + b``; its rule says how the relevance R of z is shared among the numbers of x. ``W+`` and ``W-``
are the positive and negative parts, ``s`` the quotient of R and a denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from vitreous.errors import TracingError
from vitreous.tracing.rules.base import (
    NORMS,
    SIGMOIDS,
    AttentionRule,
    Back,
    Call,
    Flows,
    RelevanceRule,
    Rule,
    stabilised,
)
from vitreous.tracing.rules.gradient import frozen_norm

_OPTIONS: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def safe(a: Tensor, b: Tensor) -> Tensor:
    """Return Chefer's ``S(a, b) = a / (b + 1e-9)``, and 0 where b is 0."""
    below = b + 1e-9
    below = torch.where(below == 0, 1e-9, below)
    return torch.where(b == 0, 0.0, a / below)


def transposed(function: Callable[[Tensor], Tensor], x: Tensor, flow: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``J^T s`` with the Jacobian J of a function at x, and s as it follows from ``z = function(x)``."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        z = function(leaf)
        (product,) = torch.autograd.grad(z, leaf, flow(z.detach()))
    return product


def linear_back(x: Tensor, function: Callable[[Tensor], Tensor], quotient: Callable[[Tensor, Tensor], Tensor]) -> Back:
    """Return ``R -> x * J^T (R / z)`` for a function ``z`` of x with the Jacobian J."""
    return lambda flow: (x * transposed(function, x, lambda z: quotient(flow, z)),)


def function_of(call: Call, operand: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the call as a function of one of its operands."""

    def function(x: Tensor) -> Tensor:
        args = [x if arg is operand else arg for arg in call.args]
        kwargs = {name: x if value is operand else value for name, value in call.kwargs.items()}
        return call.func(*args, **kwargs)  # type: ignore[no-any-return]

    return function


class Linear:
    """A linear operation without its bias: ``forward(x, W)``, and ``back(s, W)``, its transpose."""

    def __init__(self, call: Call, x: Tensor) -> None:
        self.func, self.shape = call.func, x.shape
        self.arguments = call.bind("input", "weight", "bias", *_OPTIONS)
        if self.arguments.get("padding") == "same":
            raise TracingError("a convolution with padding='same' has no rule")
        if self.arguments.get("padding") == "valid":
            self.arguments["padding"] = 0
        self.weight = self.arguments["weight"].detach()
        self.bias = None if self.arguments.get("bias") is None else self.arguments["bias"].detach()
        self.options = [self.arguments.get(name, default) for name, default in _OPTIONS.items()]

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


def signs(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positive and the negative part."""
    return value.clamp(min=0), value.clamp(max=0)


class LinearRule(RelevanceRule):
    """A rule for linear layers and convolutions."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        if len(operands) != 1:
            raise TracingError(f"the rule {type(self).__name__} is for constant weights")
        return Layer(self, call, Linear(call, operands[0]), operands[0].detach(), out)

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        """Return the relevance of x; ``out`` is the value, bias included."""
        raise TracingError(f"the rule {type(self).__name__} does not say what a linear layer does")


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
    """``R_i = x_i sum_j W_ji R_j / (z_j + eps sign z_j)``; the bias keeps its share."""

    eps: float = 1e-6

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        return x * op.back(flow / stabilised(out, self.eps), op.weight)


@dataclass(frozen=True)
class AlphaBeta(LinearRule):
    """Positive and negative contributions apart: ``alpha`` times their share in all positive ones, less ``beta``.

    ``alpha - beta = 1``; (1, 0) is z-plus. Positive parts of the bias belong to the positive ones.
    """

    alpha: float = 2.0
    beta: float = 1.0
    eps: float = 1e-6

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        (up, down), (plus, minus) = signs(x), signs(op.weight)
        total = torch.zeros_like(x)
        for factor, one, other, sign in ((self.alpha, plus, minus, 1), (-self.beta, minus, plus, -1)):
            if factor == 0:
                continue
            z = op.forward(up, one) + op.forward(down, other)
            if op.bias is not None:
                z = z + op.offset(signs(op.bias)[sign < 0])
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
        up, down = signs(x)
        more, less = (op.weight + self.gamma * part for part in signs(op.weight))
        total = torch.zeros_like(x)
        for sign, one, other in ((1, more, less), (-1, less, more)):
            favoured = op.forward(up, one) + op.forward(down, other)
            if op.bias is not None:
                favoured = favoured + op.offset(op.bias + self.gamma * signs(op.bias)[sign < 0])
            s = torch.where(sign * out > 0, flow / stabilised(favoured, self.eps), 0)
            total += up * op.back(s, one) + down * op.back(s, other)
        return total


@dataclass(frozen=True)
class ZBox(LinearRule):
    """For pixels, which lie between ``low`` and ``high``: ``z = W x - W+ low - W- high``, no bias.

    The bounds are the smallest and largest value of each image, over all channels.
    """

    eps: float = 1e-9

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        bounds = (bound.view(-1, *[1] * (x.ndim - 1)).expand_as(x) for bound in x.flatten(1).aminmax(dim=1))
        low, top = bounds
        plus, minus = signs(op.weight)
        z = op.forward(x, op.weight) - op.forward(low, plus) - op.forward(top, minus)
        s = flow / (z + self.eps)
        return x * op.back(s, op.weight) - low * op.back(s, plus) - top * op.back(s, minus)


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


@dataclass(frozen=True)
class Identity(RelevanceRule):
    """Relevance passes as it is: activations, norms, a softmax.

    The length of a vector, and the sigmoid of an activation that is written as a product with one, are constants.
    """

    def __call__(self, call: Call) -> Any:
        if call.func in SIGMOIDS or (call.kind == "norm" and call.func not in NORMS):
            return call.value()
        return super().__call__(call)

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        return lambda flow: (flow, *[None] * (len(operands) - 1))


@dataclass(frozen=True)
class NormShare(RelevanceRule):
    """A norm is linear once its deviation is a constant: ``R_i = x_i sum_j J_ji R_j / (y_j + eps)``, mean included."""

    eps: float = 1e-6

    def __call__(self, call: Call) -> Any:
        return super().__call__(call) if call.func in NORMS else call.value()

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        def norm(x: Tensor) -> Tensor:
            return frozen_norm(call, x)

        return linear_back(operands[0].detach(), norm, lambda flow, y: flow / stabilised(y, self.eps))


@dataclass(frozen=True)
class SumShare(RelevanceRule):
    """A sum: each part gets its share ``a R / (a + b + eps)``; a constant keeps its own."""

    eps: float = 1e-6
    uniform: bool = False
    """Instead, all parts that flow get the same."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        summands(call)
        if self.uniform:
            return lambda flow: [flow / len(operands)] * len(operands)
        parts = [operand.detach() for operand in operands]
        return lambda flow: [part * (flow / stabilised(out, self.eps)) for part in parts]


def summands(call: Call) -> tuple[Any, Any]:
    """Return both parts of a sum, of which one may be a number; refuse what is more than a sum."""
    if call.kwargs.get("alpha", 1) != 1:
        raise TracingError("a sum with alpha= has no rule")
    one, other = *call.args, *call.kwargs.values()
    return one, other


@dataclass(frozen=True)
class Factors(RelevanceRule):
    """A product, number by number: with a constant relevance passes as it is, otherwise each factor gets its part."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        divides = "div" in getattr(call.func, "__name__", "")
        if divides and (len(operands) > 1 or operands[0] is not call.args[0]):
            raise TracingError("a division by something that flows has no rule")
        return lambda flow: [flow / len(operands)] * len(operands)


@dataclass(frozen=True)
class Quotient(RelevanceRule):
    """A rule that divides relevance by the output: ``R / (z + eps)``, or Chefer's ``S(R, z)`` where it ``is_safe``."""

    eps: float = 1e-6
    is_safe: bool = False

    def quotient(self, flow: Tensor, z: Tensor) -> Tensor:
        return safe(flow, z) if self.is_safe else flow / stabilised(z, self.eps)


@dataclass(frozen=True)
class MeanShare(Quotient):
    """A mean, or any other linear function of one operand: ``R_i = x_i sum_j J_ji R_j / (z_j + eps)``."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        (x,) = operands
        return linear_back(x.detach(), function_of(call, x), self.quotient)


@dataclass(frozen=True)
class Halves(Quotient):
    """A matrix product of two operands that flow: each gets half of ``x * (s .)`` with ``s = R / z``.

    With a constant it is a linear layer.
    """

    def __call__(self, call: Call) -> Any:
        return MeanShare(self.eps, self.is_safe)(call) if len(call.operands) == 1 else super().__call__(call)

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        left, right = (operand.detach() for operand in operands)
        return lambda flow: self.split(left, right, flow)

    def split(self, left: Tensor, right: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """Return the relevance of both factors of ``left @ right``."""
        s = self.quotient(flow, left @ right).div_(2)
        return left * (s @ right.transpose(-2, -1)), right * (left.transpose(-2, -1) @ s)


@dataclass(frozen=True)
class ValueAttention(AttentionRule):
    """Attention weights are constants: all relevance goes to the values, ``R_v = v * A^T (R / out)``."""

    eps: float = 1e-6

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        s = flows / stabilised(attention @ v, self.eps)
        return Flows(None, None, v * (attention.transpose(-2, -1) @ s))


@dataclass(frozen=True)
class UniformAttention(AttentionRule):
    """Both products share relevance half and half, and the softmax lets it pass."""

    product: Halves = Halves()
    through = True

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        weights, values = self.product.split(attention, v, flows)
        queries, keys = self.product.split(q, k.transpose(-2, -1), weights)
        return Flows(queries, keys.transpose(-2, -1), values, weights)


_NAMES = {
    F.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
}


@dataclass(frozen=True)
class Folded(Rule):
    """Batch norm right after a layer is part of that layer: ``s (W x + b) + t`` is one with weights ``s W``.

    ``s = weight / sqrt(variance + eps)``, ``t = bias - s mean``, and the layer's own rule shares relevance out. Which
    layer that is, is read from what ran and not from the order of modules. A batch norm that follows anything else, as
    those of a DenseNet after a concatenation, cannot be folded: a ReLU lies between it and the next layer. There
    it follows the rule ``alone``. The model keeps its weights.
    """

    alone: Rule

    def __call__(self, call: Call) -> Any:
        if not call.operands:
            return call.run()
        bound = call.bind(*_NAMES[call.func])
        mean, variance, x = bound["running_mean"], bound["running_var"], bound["input"]
        if bound.get("training") or mean is None or variance is None:
            raise TracingError("a batch norm that takes the statistics of the batch has no rule")
        layer = getattr(x.grad_fn, "back", None)  # of the operation that made x
        if not isinstance(layer, Layer) or (layer.call.func is F.linear and x.ndim != 2):
            return self.alone(call)
        scale = (variance + bound.get("eps", 1e-5)).rsqrt()
        scale = scale if bound.get("weight") is None else scale * bound["weight"]
        offset = -mean if layer.op.bias is None else layer.op.bias - mean
        offset = offset * scale if bound.get("bias") is None else offset * scale + bound["bias"]
        weight = layer.op.weight * scale.view(-1, *[1] * (layer.op.weight.ndim - 1))
        folded = {**layer.op.arguments, "weight": weight.detach(), "bias": offset.detach()}
        return layer.rule(replace(layer.call, args=(), kwargs=folded))


@dataclass(frozen=True)
class Winner(RelevanceRule):
    """Max pooling: the largest number of a window gets all that the window has."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        (x,) = operands
        pool = function_of(call, x)
        return lambda flow: (transposed(pool, x, lambda _: flow),)
