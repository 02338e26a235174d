"""The frozen network: attention weights, LayerNorm deviations and activation gates held at their forward values.

The LayerNorm mean stays in the graph. That network is affine, and input times its gradient is DecompX without bias,
from every start layer at once (``methods/decomposition.py``). Forward values are the model's own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.passes.operations import RELUS
from vitreous.passes.rules.table import AttentionRule, Call, Flows, Rule, Rules

__all__ = ["FROZEN", "Hold", "HoldAttention", "HoldDeviation", "HoldGate"]


@dataclass(frozen=True)
class Hold(Rule):
    """What comes out is a constant: the weights of a written-out attention, the gate of another branch."""

    def __call__(self, call: Call) -> Any:
        with torch.no_grad():
            return call.plain()


@dataclass(frozen=True)
class HoldAttention(AttentionRule):
    """Attention weights are constants: ``dV = A^T dO``, and nothing for queries and keys."""

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        return Flows(None, None, attention.to(v.dtype).transpose(-2, -1) @ flows)


@dataclass(frozen=True)
class HoldDeviation(Rule):
    """What a norm divides by is a constant; so is the length of a vector (the cosine of a zero-shot head).

    With ``mean`` the mean that a LayerNorm takes away is one too.
    """

    mean: bool = False

    def __call__(self, call: Call) -> Any:
        if call.func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(self.mean, *call.args, **call.kwargs)
        if call.func in (F.rms_norm, torch.rms_norm):
            return _rms_norm(*call.args, **call.kwargs)
        return call.plain().detach()


@dataclass(frozen=True)
class HoldGate(Rule):
    """An activation ``x g(x)`` keeps its gate g. QuickGELU is written with a sigmoid, a gate; a ReLU is its own."""

    def __call__(self, call: Call) -> Any:
        if call.func in (F.gelu, F.silu):
            with torch.no_grad():
                out: Tensor = call.plain()
            return FrozenGate.apply(call.args[0] if call.args else call.kwargs["input"], out)
        plain = call.plain()
        return plain if call.func in RELUS else plain.detach()


def _layer_norm(
    held_mean: bool,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return FrozenLayerNorm.apply(input, tuple(normalized_shape), weight, bias, eps, held_mean)


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    return FrozenRMSNorm.apply(input, tuple(normalized_shape), weight, eps)


class FrozenLayerNorm(torch.autograd.Function):
    """LayerNorm whose deviation is a constant: ``dx = c - mean(c)`` with ``c = dy * weight / deviation``.

    Without the mean of c where the mean of x is a constant as well.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        held_mean: bool = False,
    ) -> Tensor:
        out, _, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(weight, inverse)
        ctx.dims = None if held_mean else tuple(range(-len(shape), 0))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, inverse = ctx.saved_tensors
        scaled = grads[0].clone() if weight is None else grads[0] * weight
        if ctx.dims is not None:
            scaled -= scaled.mean(dim=ctx.dims, keepdim=True)
        scaled *= inverse.to(scaled.dtype)
        return scaled, None, None, None, None, None


class FrozenRMSNorm(torch.autograd.Function):
    """RMSNorm whose root mean square is a constant: ``dx = dy * weight / rms``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float | None) -> Tensor:
        dims = tuple(range(-len(shape), 0))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        full = x if x.dtype == torch.float64 else x.float()
        inverse = torch.rsqrt(full.square().mean(dim=dims, keepdim=True) + eps).to(x.dtype)
        ctx.save_for_backward(inverse if weight is None else inverse * weight)
        return F.rms_norm(x, shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None, None, None


class FrozenGate(torch.autograd.Function):
    """An activation ``x * g(x)`` whose gate ``g`` is a constant: ``dx = g dy`` (GELU: ``g = Phi``; SiLU: sigmoid).

    The gate is the quotient of output and input; both of these gates are 1/2 at zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward((out / x).nan_to_num_(nan=0.5))  # 0 / 0
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None


FROZEN = Rules.of(attention=HoldAttention(), softmax=Hold(), norm=HoldDeviation(), activation=HoldGate(), gate=Hold())
"""The frozen network of DecompX, as a table."""
