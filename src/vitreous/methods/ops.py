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
    "divide",
    "dot",
    "HalfMeans",
    "downwards",
    "gaussian_kernel",
    "head_max",
    "head_mean",
    "head_min",
    "match_values",
    "mean_ranks",
    "mean_size",
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


def gaussian_kernel(sigma: float, radius: int) -> Tensor:
    """Return the weights of a Gaussian at ``-radius .. radius``, in float64; they sum to 1."""
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / sigma) ** 2)
    return kernel / kernel.sum()


class HalfMeans:
    """The mean over samples that come in parts, and the means over every other one: how much they differ is chance."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: list[Tensor | float] = [0.0, 0.0]

    def add(self, samples: Tensor) -> None:
        """Add samples ``[B, S, ...]`` that follow those before."""
        start = self.count % 2
        self._sums = [total + samples[:, (i - start) % 2 :: 2].sum(dim=1) for i, total in enumerate(self._sums)]
        self.count += samples.shape[1]

    @property
    def mean(self) -> Tensor:
        """The mean ``[B, ...]`` over all samples."""
        return torch.as_tensor(self._sums[0] + self._sums[1]) / max(1, self.count)

    @property
    def halves(self) -> Tensor:
        """The means ``[B, 2, ...]`` over the even and the odd samples; there must be two samples or more."""
        counts = -(-self.count // 2), self.count // 2
        return torch.stack([torch.as_tensor(total) / n for total, n in zip(self._sums, counts, strict=True)], dim=1)


def mean_ranks(maps: Tensor) -> Tensor:
    """Return the ranks of the values of each map ``[..., h, w]``, from 0 to 1; equal values share their mean rank."""
    below, not_above = _counts(maps.flatten(-2))
    ranks = (below + not_above - 1).to(maps) / 2
    return (ranks / max(1, ranks.shape[-1] - 1)).view_as(maps)


def match_values(order: Tensor, values: Tensor) -> Tensor:
    """Return maps with the values of one map ``[..., h, w]`` in the order of another; equals share their mean value."""
    below, not_above = _counts(order.flatten(-2))
    sorted_values = values.flatten(-2).double().sort(dim=-1).values
    sums = F.pad(sorted_values.cumsum(dim=-1), (1, 0))
    means = (sums.gather(-1, not_above) - sums.gather(-1, below)) / (not_above - below)
    alone = sorted_values.gather(-1, below)  # as it was: a difference of sums would round it
    return torch.where(not_above - below == 1, alone, means).to(values).view_as(values)


def _counts(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many values of each row ``[..., n]`` are below each of them, and how many are not above it."""
    values = values.contiguous()
    ordered = values.sort(dim=-1).values
    return torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)


def divide(maps: Tensor, sizes: Tensor) -> Tensor:
    """Divide maps by their sizes; a map of zeros stays as it is."""
    return maps / torch.where(sizes > 0, sizes, 1)


def mean_size(maps: Tensor) -> Tensor:
    """Return the mean absolute value of each map ``[B, M, h, w]``."""
    return maps.abs().mean(dim=(2, 3), keepdim=True)
