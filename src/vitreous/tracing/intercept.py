"""The operations of a vision model: one table, torch function to kind, for everyone who watches or steers.

``nn.MultiheadAttention`` is one opaque call: here it is written out, so that its parts can be seen and steered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import TracingError

__all__ = [
    "CARRIERS",
    "CASTS",
    "IN_PLACE",
    "KINDS",
    "OPERATIONS",
    "RELUS",
    "gives_back",
    "is_carrier",
    "tensors_in",
    "wide",
    "written_out",
]

KINDS = (
    "linear", "conv", "matmul", "add", "product", "mean", "softmax", "norm", "activation", "gate", "attention",
    "embedding", "batch_norm", "max_pool",
)  # fmt: skip
"""What a rule can be given for. ``gate`` is an activation that weighs another branch of a gated MLP, ``embedding`` a
linear layer or convolution before the first block, or the first layer of a network without patches
(``VisionModel.patches``); which of these an operation is depends on where it runs. A fused ``attention`` is made of two
``matmul`` and a ``softmax``. ``product`` is number by number, also by a constant or by the inverse of a vector's
length; a ``mean`` is also one over a window."""

RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
"""Every way to write a ReLU, also in place."""
IN_PLACE = (torch.relu_, Tensor.relu_)
"""Those that are always in place; ``F.relu`` is if it is told so."""

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "linear": (F.linear,),
    "conv": (F.conv2d, torch.conv2d),
    "matmul": (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm),
    "add": (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__),
    "product": (torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__, torch.neg,
                Tensor.neg, Tensor.__neg__, torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__,
                Tensor.__itruediv__, F.normalize),
    "mean": (torch.mean, Tensor.mean, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d),
    "max_pool": (F.max_pool2d, torch.max_pool2d),
    "batch_norm": (F.batch_norm, torch.batch_norm),
    "softmax": (F.softmax, torch.softmax, Tensor.softmax),
    "norm": (F.layer_norm, torch.layer_norm, F.rms_norm, torch.rms_norm, torch.norm, Tensor.norm,
             torch.linalg.vector_norm),
    "activation": (F.gelu, F.silu, *RELUS, torch.sigmoid, F.sigmoid, Tensor.sigmoid),
    "attention": (F.scaled_dot_product_attention, F.multi_head_attention_forward),
}  # fmt: skip

OPERATIONS: dict[Callable[..., Any], str] = {func: kind for kind, funcs in _FUNCTIONS.items() for func in funcs}

_CASTS = "to type type_as float double half bfloat16"
_MOVES = (
    "view view_as reshape reshape_as transpose permute movedim swapaxes flatten unflatten unsqueeze squeeze expand "
    "expand_as repeat repeat_interleave contiguous clone detach chunk split unbind __getitem__ narrow select "
    "index_select gather cat concat stack flip roll pad t dropout requires_grad_ __get__ "
)
CASTS = frozenset(_CASTS.split())
"""Functions that may change the dtype."""
CARRIERS = frozenset((_MOVES + _CASTS).split())
"""Functions that only move numbers: what flows backward through them is neither made nor lost."""


def is_carrier(func: Any) -> bool:
    """Whether a torch function only moves numbers."""
    return getattr(func, "__name__", "") in CARRIERS


def wide(value: Any) -> Any:
    """Return a tensor of floating point in float64, also inside lists and tuples; anything else as it is."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return type(value)(wide(each) for each in value) if type(value) in (list, tuple) else value


def gives_back(func: Any) -> bool:
    """Whether a function gives numbers back as they are, and where they are: a cast, or dropout in evaluation mode."""
    return getattr(func, "__name__", "") in (*CASTS, "dropout", "contiguous", "clone", "detach")


def tensors_in(out: Any) -> Sequence[Any]:
    """Return what a function gives that returns several things."""
    return out if isinstance(out, list | tuple) else ()


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
        raise TracingError(f"{name}: this form of multi-head attention is not recognised")
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    parts = []
    for given, weight, bias in zip((query, key, value), in_proj_weight.chunk(3), biases, strict=True):
        part = linear(given.transpose(0, 1), weight, bias)  # [B, N, D]
        parts.append(part.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2))
    mixed = attend(*parts)
    return linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1), None
