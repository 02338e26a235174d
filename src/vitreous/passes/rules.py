"""Backward behaviour by hand: the forward calls torch's own fused kernel, the gradient follows a rule.

The frozen network holds attention weights, LayerNorm deviations and activation gates at the values they had in the
forward pass (the LayerNorm mean stays in the graph). It is affine, and input times its gradient is DecompX without
bias, from every start layer at once (``methods/decomposition.py``). Forward values are those of the untouched model,
bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Attend", "AttentionCall", "FrozenGate", "FrozenLayerNorm", "FrozenRMSNorm", "weights"]


@dataclass
class AttentionCall:
    """The constants of one call of ``scaled_dot_product_attention``, and who watches its backward."""

    mask: Tensor | None
    causal: bool
    scale: float | None
    frozen: bool = False
    needs_gradient: bool = False
    watch: Callable[[Tensor, Tensor | None, Tensor, Tensor], None] | None = None
    """Called in the backward with attention, its gradient (or None), values, and the values' gradient."""


def weights(q: Tensor, k: Tensor, call: AttentionCall, wide: bool = True) -> Tensor:
    """Return the attention weights ``softmax(scale q k^T + mask)``, at least in float32 unless not ``wide``."""
    scale = call.scale if call.scale is not None else 1 / math.sqrt(q.shape[-1])
    scores = (q * scale) @ k.transpose(-2, -1)
    if call.causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if call.mask is not None:
        hide = call.mask.dtype == torch.bool
        scores = scores.masked_fill(~call.mask, -math.inf) if hide else scores + call.mask
    half = scores.dtype in (torch.float16, torch.bfloat16)
    return scores.softmax(dim=-1, dtype=torch.float32 if half and wide else None)


class Attend(torch.autograd.Function):
    """Fused attention forward; backward written out, with the attention weights recomputed, shown and let go.

    With ``dA = dO V^T``: ``dV = A^T dO``, ``dS = A * (dA - rowsum(A * dA))``, ``dQ = s dS K``, ``dK = s dS^T Q``, s the
    scale. Frozen: only ``dV``. The weights of one block exist at a time, whatever the depth.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.call = call
        return F.scaled_dot_product_attention(q, k, v, call.mask, 0.0, call.causal, scale=call.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        q, k, v = ctx.saved_tensors
        call: AttentionCall = ctx.call
        attention = weights(q, k, call, wide=call.watch is not None or not call.frozen)
        grad_v = attention.to(v.dtype).transpose(-2, -1) @ grad
        grad_attention = None
        if call.needs_gradient or not call.frozen:
            grad_attention = grad @ v.transpose(-2, -1)  # products with the wide attention are wide again
        if call.watch is not None:
            call.watch(attention, grad_attention, v, grad_v)
        if call.frozen or grad_attention is None:
            return None, None, grad_v, None
        product = attention * grad_attention
        scale = call.scale if call.scale is not None else 1 / math.sqrt(q.shape[-1])
        grad_scores = product.addcmul_(attention, product.sum(dim=-1, keepdim=True), value=-1).mul_(scale).to(q.dtype)
        return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, grad_v, None


class FrozenLayerNorm(torch.autograd.Function):
    """LayerNorm whose deviation is a constant: ``dx = c - mean(c)`` with ``c = dy * weight / deviation``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        out, _, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(weight, inverse)
        ctx.dims = tuple(range(-len(shape), 0))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, inverse = ctx.saved_tensors
        scaled = grads[0].clone() if weight is None else grads[0] * weight
        scaled -= scaled.mean(dim=ctx.dims, keepdim=True)
        scaled *= inverse.to(scaled.dtype)
        return scaled, None, None, None, None


class FrozenRMSNorm(torch.autograd.Function):
    """RMSNorm whose root mean square is a constant: ``dx = dy * weight / rms``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float | None) -> Tensor:
        dims = tuple(range(-len(shape), 0))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        wide = x if x.dtype == torch.float64 else x.float()
        inverse = torch.rsqrt(wide.square().mean(dim=dims, keepdim=True) + eps).to(x.dtype)
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
