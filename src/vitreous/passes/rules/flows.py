"""Rules for what is not a layer: norms, activations, sums, products, attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import TraceError
from vitreous.passes.rules.frozen import FrozenLayerNorm, FrozenRMSNorm
from vitreous.passes.rules.relevance import Back, RelevanceRule, carry, flowing, own, stabilised
from vitreous.passes.rules.table import AttentionRule, Call, Flows

__all__ = [
    "NORMS",
    "Factors",
    "Halves",
    "Identity",
    "MeanShare",
    "NormShare",
    "SumShare",
    "UniformAttention",
    "ValueAttention",
    "summands",
]

_SIGMOIDS = (torch.sigmoid, F.sigmoid, Tensor.sigmoid)
NORMS = (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm)


@dataclass(frozen=True)
class Identity(RelevanceRule):
    """Relevance passes as it is: activations, norms, a softmax.

    The length of a vector, and the sigmoid of an activation that is written as a product with one, are constants.
    """

    def __call__(self, call: Call) -> Any:
        if call.func in _SIGMOIDS or (call.kind == "norm" and call.func not in NORMS):
            return own(call)
        return super().__call__(call)

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        return lambda flow: (flow, *[None] * (len(operands) - 1))


@dataclass(frozen=True)
class NormShare(RelevanceRule):
    """A norm is linear once its deviation is a constant: ``R_i = x_i sum_j J_ji R_j / (y_j + eps)``, mean included."""

    eps: float = 1e-6

    def __call__(self, call: Call) -> Any:
        return super().__call__(call) if call.func in NORMS else own(call)

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        layer = call.func in (F.layer_norm, torch.layer_norm)
        names = ("input", "shape", "weight", "bias", "eps") if layer else ("input", "shape", "weight", "eps")
        given = dict(zip(names, call.args, strict=False)) | {
            {"normalized_shape": "shape"}.get(name, name): value for name, value in call.kwargs.items()
        }
        x, shape = operands[0].detach(), tuple(given["shape"])
        weight, bias = (None if given.get(name) is None else given[name].detach() for name in ("weight", "bias"))

        def back(flow: Tensor) -> tuple[Tensor]:
            with torch.enable_grad():
                leaf = x.requires_grad_()
                out: Tensor = (
                    FrozenLayerNorm.apply(leaf, shape, weight, bias, given.get("eps", 1e-5))
                    if layer
                    else FrozenRMSNorm.apply(leaf, shape, weight, given.get("eps"))
                )
                (shares,) = torch.autograd.grad(out, leaf, flow / stabilised(out.detach(), self.eps))
            return (x.detach() * shares,)

        return back


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
        parts = [each.detach() for each in operands]
        return lambda flow: [part * (flow / stabilised(out, self.eps)) for part in parts]


def summands(call: Call) -> tuple[Any, Any]:
    """Return both parts of a sum, of which one may be a number; refuse what is more than a sum."""
    if call.kwargs.get("alpha", 1) != 1:
        raise TraceError("a sum with alpha= has no rule")
    one, other = *call.args, *call.kwargs.values()
    return one, other


@dataclass(frozen=True)
class Factors(RelevanceRule):
    """A product, number by number: with a constant relevance passes as it is, otherwise each factor gets its part."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        divides = "div" in getattr(call.func, "__name__", "")
        if divides and (len(operands) > 1 or operands[0] is not call.args[0]):
            raise TraceError("a division by something that flows has no rule")
        return lambda flow: [flow / len(operands)] * len(operands)


@dataclass(frozen=True)
class MeanShare(RelevanceRule):
    """A mean, or any other linear function of one operand: ``R_i = x_i sum_j J_ji R_j / (z_j + eps)``."""

    eps: float = 1e-6

    def quotient(self, flow: Tensor, z: Tensor) -> Tensor:
        return flow / stabilised(z, self.eps)

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        (x,) = operands
        kept = x.detach()

        def back(flow: Tensor) -> tuple[Tensor]:
            with torch.enable_grad():
                leaf = kept.clone().requires_grad_()
                args = [leaf if each is x else each for each in call.args]
                z = call.func(*args, **{name: leaf if each is x else each for name, each in call.kwargs.items()})
                (shares,) = torch.autograd.grad(z, leaf, self.quotient(flow, z.detach()))
            return (kept * shares,)

        return back


@dataclass(frozen=True)
class Halves(RelevanceRule):
    """A matrix product of two operands that flow: each gets half of ``x * (s .)`` with ``s = R / z``.

    With a constant it is a linear layer.
    """

    eps: float = 1e-6

    def quotient(self, flow: Tensor, z: Tensor) -> Tensor:
        return flow / stabilised(z, self.eps)

    def constant(self) -> MeanShare:
        return MeanShare(self.eps)

    def __call__(self, call: Call) -> Any:
        operands = flowing(call)
        if len(operands) == 1:
            out = own(call)
            return carry(out, operands, self.constant().back(call, operands, out))
        return super().__call__(call)

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        left, right = (each.detach() for each in operands)
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
