"""``nn.MultiheadAttention`` is one opaque call: here it is written out, so that its parts can be seen and steered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vitreous.errors import TraceError

__all__ = ["written_out"]

Linear = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def written_out(
    name: str,
    linear: Linear,
    attend: Attend,
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

    Only what vision transformers use: one input projection, no masks, sequence first as the module passes it.
    """
    unusual = [bias_k, bias_v, options.get("key_padding_mask"), options.get("attn_mask"), options.get("static_k")]
    if in_proj_weight is None or add_zero_attn or any(each is not None for each in unusual):
        raise TraceError(f"{name}: this form of multi-head attention is not recognised")
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    parts = []
    for given, weight, bias in zip((query, key, value), in_proj_weight.chunk(3), biases, strict=True):
        part = linear(given.transpose(0, 1), weight, bias)  # [B, N, D]
        parts.append(part.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2))
    mixed = attend(*parts)
    return linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1), None
