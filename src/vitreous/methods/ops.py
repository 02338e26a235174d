"""Small formulas shared by the families: reductions while a pass runs, and where a read-out starts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.tracing import Activation, ActivationCache, Record, Reduce

__all__ = [
    "attention_point",
    "discard_weakest",
    "dot",
    "downwards",
    "head_max",
    "head_mean",
    "head_min",
    "pad_prefix",
    "positive",
    "push",
    "rollout_step_mixed",
    "read_row",
    "refuse_in_windows",
    "pooling_records",
    "initial_row",
    "with_residual",
]


def head_mean(a: Activation) -> Tensor:
    """``mean_h A``: ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    return a.value.mean(dim=-3)


def head_max(a: Activation) -> Tensor:
    """``max_h A``, shaped likewise."""
    return a.value.amax(dim=-3)


def head_min(a: Activation) -> Tensor:
    """``min_h A``, shaped likewise."""
    return a.value.amin(dim=-3)


def positive(a: Activation) -> Tensor:
    """``mean_h (A * dA)+``, shaped likewise."""
    return (a.value * a.grad).clamp_(min=0).mean(dim=-3)


def dot(a: Activation) -> Tensor:
    """``sum_d x_d dx_d`` of every token: ``[B, N]``."""
    return (a.value * a.grad).sum(dim=-1)


def attention_point(model: VisionModel) -> str:
    """Return where a method that knows windows finds attention: between all tokens, or as the windows that it has.

    Inside windows everything is as if the matrix between all N patches were there, with zeros outside the windows, and
    wherever the model hides a patch or has padding; a layer's matrix is held as ``[B, W, t, t]``.
    """
    return "window_weights" if model.attention == "windowed" else "attn_weights"


def refuse_in_windows(model: VisionModel, what: str) -> None:
    """Refuse what has no meaning without a matrix between all tokens."""
    if model.attention == "windowed":
        raise ModelError(f"{model.name} attends inside windows: {what}, which needs a matrix between all tokens")


def pooling_records(model: VisionModel, reduce: Reduce, grad: bool = True) -> tuple[Record, ...]:
    """What must be kept to know where a row recursion starts: nothing, or the attention of the pooling."""
    return (Record("pool_weights", reduce, grad=grad),) if model.pooling.uses_attention else ()


def initial_row(cache: ActivationCache, like: Tensor, reduce: Reduce, grad: bool = True) -> Tensor:
    """Return the first row ``[B, N]`` of a recursion ``r <- r M_l`` from the last block to the first.

    One for the class token, the mean over what is pooled otherwise. Attention pooling is the last attention of the
    model: its own (reduced) row is the start. ``like`` is any layer matrix; the row lies on the last layer's grid.
    """
    records = pooling_records(cache.model, reduce, grad)
    if records:
        return pad_prefix(cache[records[0]][0].flatten(1), like.shape[1])
    if like.ndim == 4:  # windows
        return read_row(cache, like, len(cache.grids) - 1)
    return cache.model.pooling.row(like)


def downwards(cache: ActivationCache, keep: Record) -> list[tuple[int, Tensor]]:
    """Return the layers and what was kept there, from the last to the first."""
    return list(zip(keep.layers, cache[keep], strict=True))[::-1]


def read_row(cache: ActivationCache, like: Tensor, layer: int) -> Tensor:
    """Return the weights of a layer's tokens ``[B, N]`` in what the model reads, typed like the matrix."""
    return cache.model.pooling.row(like.new_empty(len(like), math.prod(cache.grids[layer])))


def pad_prefix(row: Tensor, tokens: int) -> Tensor:
    """Put zeros before a row over patches only, for the prefix tokens that the pooling does not look at."""
    return F.pad(row, (tokens - row.shape[1], 0))


def discard_weakest(matrix: Tensor, share: float, keep_first: bool) -> Tensor:
    """Set the ``int(share N^2)`` smallest entries of each matrix to zero; ``keep_first`` spares entry (0, 0)."""
    count = int(matrix.shape[1] ** 2 * share)
    if count == 0:
        return matrix
    flat = matrix.flatten(1)
    weakest = flat.topk(count, dim=1, largest=False).indices
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, weakest, True)
    if keep_first:
        mask[:, 0] = False
    return flat.masked_fill(mask, 0).view_as(matrix)


def with_residual(matrix: Tensor, normalise: str) -> Tensor:
    """Return ``M + I`` with rows that sum to one, or with column j divided by the sum of row j (a published script)."""
    mixed = matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    sums = mixed.sum(dim=-1)
    return mixed / sums.unsqueeze(-1 if normalise == "row" else -2)


def rollout_step_mixed(row: Tensor, matrix: Tensor, normalise: str = "row", windows: Windows | None = None) -> Tensor:
    """``r with_residual(M)``, without writing that matrix down."""
    sums = matrix.sum(dim=-1) + 1
    if windows is not None:
        sums = windows.paste(sums)
    if normalise == "row":
        row = row / sums
        return row + push(row, matrix, windows)
    return (row + push(row, matrix, windows)) / sums


def push(row: Tensor, matrix: Tensor, windows: Windows | None = None) -> Tensor:
    """``r M`` for rows ``[B, N]`` and matrices ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    if windows is None:
        return torch.bmm(row.unsqueeze(1), matrix).squeeze(1)
    return windows.paste(torch.matmul(windows.cut(row).unsqueeze(-2), matrix).squeeze(-2))
