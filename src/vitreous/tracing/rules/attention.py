"""Attention written out in the backward: the forward calls torch's own fused kernel, the gradient is made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.tracing.rules.base import AttentionRule, Flows

__all__ = ["Attend", "AttentionCall", "weights"]


@dataclass
class AttentionCall:
    """The constants of one call of ``scaled_dot_product_attention``, and who watches its backward."""

    mask: Tensor | None
    causal: bool
    scale: float | None
    rule: AttentionRule | None = None
    needs_gradient: bool = False
    watch: Callable[[Tensor, Tensor | None, Tensor, Tensor], None] | None = None
    """Called in the backward with attention, its gradient (or None), values, and the values' gradient."""

    def masked(self, scores: Tensor) -> Tensor:
        """Return the scores with what may not be looked at taken out."""
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        if self.mask is not None:
            hide = self.mask.dtype == torch.bool
            scores = scores.masked_fill(~self.mask, -math.inf) if hide else scores + self.mask
        return scores


def weights(q: Tensor, k: Tensor, call: AttentionCall, full: bool = True) -> Tensor:
    """Return the attention weights ``softmax(scale q k^T + mask)``, in at least float32 if in ``full``."""
    scale = call.scale if call.scale is not None else 1 / math.sqrt(q.shape[-1])
    scores = call.masked((q * scale) @ k.transpose(-2, -1))
    half = scores.dtype in (torch.float16, torch.bfloat16)
    return scores.softmax(dim=-1, dtype=torch.float32 if half and full else None)


class Attend(torch.autograd.Function):
    """Fused attention forward; backward written out, with the attention weights recomputed, shown and let go.

    With ``dA = dO V^T``: ``dV = A^T dO``, ``dS = A * (dA - rowsum(A * dA))``, ``dQ = s dS K``, ``dK = s dS^T Q``, s the
    scale; or whatever a rule says instead. The weights of one block exist at a time, whatever the depth.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.call = call
        return F.scaled_dot_product_attention(q, k, v, call.mask, 0.0, call.causal, scale=call.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        call: AttentionCall = ctx.call
        q, k, v = ctx.saved_tensors
        scale = call.scale if call.scale is not None else 1 / math.sqrt(q.shape[-1])
        attention = weights(q, k, call, full=call.watch is not None or call.rule is None)
        grad_attention = None
        if call.needs_gradient or call.rule is None:
            grad_attention = grad @ v.transpose(-2, -1)  # products with the wide attention are wide again
        if call.rule is None:
            assert grad_attention is not None
            grad_v = attention.to(v.dtype).transpose(-2, -1) @ grad
            flows = Flows(None, None, grad_v)
        else:
            flows = call.rule.backward(attention, q, k, v, scale, grad)
        if call.watch is not None:
            call.watch(attention, grad_attention if flows.attention is None else flows.attention, v, flows.v)
        if call.rule is not None or grad_attention is None:
            return flows.q, flows.k, flows.v, None
        product = attention * grad_attention
        grad_scores = product.addcmul_(attention, product.sum(dim=-1, keepdim=True), value=-1).mul_(scale).to(q.dtype)
        return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, flows.v, None
