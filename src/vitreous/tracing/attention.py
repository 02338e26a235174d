"""Attention in a pass: one strategy for each layer, chosen when the pass is compiled.

Left alone, torch's fused kernel runs as it always does. Recorded without a gradient, the weights are computed beside
it. With a gradient, ``Attend`` calls the fused kernel forward, so that every bit of the output stays, and writes the
backward out. Patched weights replace the model's own as constants. Where a composite has rules for the softmax and the
products alone, attention runs as these three operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import TracingError
from vitreous.tracing.rules import AttentionRule, Flows

if TYPE_CHECKING:
    from vitreous.tracing.intercept import OpInterceptor
    from vitreous.tracing.plan import CompiledPass, Recorder


Watch = Callable[[Tensor, "Tensor | None", Tensor, Tensor], None]
"""Called in the backward with attention, its gradient (or ``None``), values, and the values' gradient."""


@dataclass
class AttentionCall:
    """One call of ``scaled_dot_product_attention``: its constants, its rule, and who watches its backward."""

    mask: Tensor | None
    causal: bool
    scale: float | None
    rule: AttentionRule | None = None
    needs_grad: bool = False
    watch: Watch | None = None

    @classmethod
    def bind(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, AttentionCall]:
        """Return queries, keys and values with one head each, and the rest."""
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
        return query, key, value, cls(attn_mask, is_causal, scale)

    def factor(self, q: Tensor) -> float:
        """Return what scores are multiplied by."""
        return 1 / math.sqrt(q.shape[-1]) if self.scale is None else self.scale

    def masked(self, scores: Tensor) -> Tensor:
        """Return the scores with what may not be attended to taken out."""
        if self.causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        if self.mask is not None:
            is_bool = self.mask.dtype == torch.bool
            scores = scores.masked_fill(~self.mask, -math.inf) if is_bool else scores + self.mask
        return scores

    def weights(self, q: Tensor, k: Tensor, full: bool = True) -> Tensor:
        """Return the attention weights ``softmax(scale q k^T + mask)``, in at least float32 if in ``full``."""
        scores = self.masked((q * self.factor(q)) @ k.transpose(-2, -1))
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
        attention = call.weights(q, k, full=call.watch is not None or call.rule is None)
        grad_attention = None
        if call.needs_grad or call.rule is None:
            grad_attention = grad @ v.transpose(-2, -1)  # products with the full attention are full again
        if call.rule is None:
            flows = Flows(None, None, attention.to(v.dtype).transpose(-2, -1) @ grad)
        else:
            flows = call.rule.backward(attention, q, k, v, call.factor(q), grad)
        if call.watch is not None:
            call.watch(attention, grad_attention if flows.attention is None else flows.attention, v, flows.v)
        if call.rule is not None or grad_attention is None:
            return flows.q, flows.k, flows.v, None
        product = attention * grad_attention
        grad_scores = product.addcmul_(attention, product.sum(dim=-1, keepdim=True), value=-1)
        grad_scores = grad_scores.mul_(call.factor(q)).to(q.dtype)
        return grad_scores @ k, grad_scores.transpose(-2, -1) @ q, flows.v, None


Strategy = Callable[["AttentionTap", "OpInterceptor", Tensor, Tensor, Tensor, AttentionCall], Tensor]


class AttentionTap:
    """What one layer's attention does in a pass: what is recorded of it, what patches it, which rule it follows.

    ``forward`` and ``backward`` are the strategies without and with a gradient; ``None`` leaves attention alone. They
    are plain functions: bound methods would be circles, and keep what a pass held until the garbage is collected. The
    head, layer ``None``, has a tap too, for attention pooling.
    """

    def __init__(self, plan: CompiledPass, layer: int | None) -> None:
        self.layer, self.is_relevance, rules = layer, plan.is_relevance, plan.rules
        self.weights, self.values, self.blocks = (
            plan.at(point, layer) for point in ("attn_weights", "attn_values", "block")
        )
        self.rule, self.patch = rules.get("attention"), plan.patches.get(layer)
        is_recorded = any((self.weights, self.values, self.blocks))
        self.forward: Strategy | None = AttentionTap._recorded if is_recorded else None
        self.backward: Strategy | None = None
        self.by_parts = self.patch is None and self.rule is None and ("softmax" in rules or "matmul" in rules)
        if self.patch is not None:
            self.forward = self.backward = AttentionTap._patched
        elif self.by_parts:
            self.backward = AttentionTap._by_parts
        elif is_recorded or self.rule is not None or plan.is_relevance:
            self.backward = AttentionTap._custom_backward

    def patched(self, run: OpInterceptor, attention: Tensor) -> Tensor:
        """Return other attention weights, a leaf of the graph, and record them in the place of the model's own."""
        assert self.patch is not None
        patched = self.patch(attention.detach()).detach()
        if patched.shape != attention.shape:
            raise TracingError(f"attention of layer {self.layer} is {list(attention.shape)}, not {list(patched.shape)}")
        if torch.is_grad_enabled() and any(record.grad for record in self.weights):
            run.recorder.leaves.append(patched.requires_grad_())
        run.recorder.note("attn_weights", self.layer, patched)
        return patched

    def _patched(self, run: OpInterceptor, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        attention = self.patched(run, call.weights(q, k))
        run.recorder.note("attn_values", self.layer, v)
        run.recorder.note_attention(self.layer, attention, v)
        return attention.to(v.dtype) @ v

    def _recorded(self, run: OpInterceptor, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        attention = call.weights(q, k)
        for record in self.weights + self.values:
            if record.grad:
                raise TracingError(f"{record.point} of layer {self.layer} has no gradient in this pass")
            run.recorder.store(record, self.layer, attention if record in self.weights else v)
        if self.blocks:
            run.recorder.parts |= {"attn_weights": attention, "attn_values": v.detach()}
        return attention.to(v.dtype) @ v

    def _by_parts(self, run: OpInterceptor, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        """Attention as the two products and the softmax that it is, each under its own rule."""
        scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
        scores = run.matmul(torch.matmul, (q, k.transpose(-2, -1)), {})
        scores = call.masked(run.steer("product", torch.mul, (scores, scale), {}))
        attention = run.softmax(torch.softmax, (scores, -1), {})
        mixed: Tensor = run.matmul(torch.matmul, (attention.to(v.dtype), v), {})
        return mixed

    def _custom_backward(self, run: OpInterceptor, q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> Tensor:
        if self.rule is None and self.is_relevance:
            raise TracingError(f"{run.model.name}: no rule says how relevance passes attention in {run.place}")
        if self.rule is not None:
            if not isinstance(self.rule, AttentionRule):
                raise TracingError(f"the rule {type(self.rule).__name__} is none for attention as a whole")
            call.rule = self.rule
            # what a rule sends nothing to is cut off, so that autograd does not walk there
            q, k = (x if self.rule.through else x.detach() for x in (q, k))
        if self.weights or self.values or self.blocks:
            call.needs_grad = not self.is_relevance and any(record.grad for record in self.weights + self.blocks)
            call.watch = self._watch(run.recorder)
        return Attend.apply(q, k, v, call)  # type: ignore[no-any-return]

    def _watch(self, recorder: Recorder) -> Watch:
        parts = recorder.parts  # complete when the backward comes by

        def watch(attention: Tensor, grad: Tensor | None, v: Tensor, grad_v: Tensor) -> None:
            for record in self.weights:
                recorder.store(record, self.layer, attention, grad)
            for record in self.values:
                recorder.store(record, self.layer, v, grad_v)
            for record in self.blocks:
                block = {**parts, "attn_weights": attention, "attn_values": v}
                recorder.store_block(record, self.layer, block, grad if record.grad else None)

        return watch


def multi_head_attention(
    name: str,
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return what ``multi_head_attention_forward`` does with these arguments, its projections around the attention.

    ``nn.MultiheadAttention`` is one opaque call; written out, its parts can be recorded and steered. Only what vision
    transformers use: one input projection, no masks, sequence first as the module passes it.
    """
    unusual = [bias_k, bias_v, options.get("key_padding_mask"), options.get("attn_mask"), options.get("static_k")]
    if in_proj_weight is None or add_zero_attn or any(option is not None for option in unusual):
        raise TracingError(f"{name}: this form of multi-head attention is not recognised")
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    heads = []
    for tokens, weight, bias in zip((query, key, value), in_proj_weight.chunk(3), biases, strict=True):
        projected = linear(tokens.transpose(0, 1), weight, bias)  # [B, N, D]
        heads.append(projected.reshape(*projected.shape[:2], num_heads, -1).transpose(1, 2))
    mixed = attend(*heads)
    return linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1), None
