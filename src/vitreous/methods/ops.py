"""Small formulas shared by the families: reductions while a pass runs, rows of attention, sizes of maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.tracing import Activation, ActivationCache, Context, Record, Reduce, resolve_layer
from vitreous.tracing.memory import InnerBatch, Part, budget_bytes

T = TypeVar("T")
SMALL = 1e-30
"""What a sum that is zero is divided by, so that nothing divided by nothing is nothing."""

# -- reductions ----------------------------------------------------------------------------------------------------


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


def token_moments(a: Activation) -> Tensor:
    """Mean and deviation over the tokens of each image, channel by channel: ``[B, 2, 1, D]``."""
    return torch.stack([a.value.mean(dim=1, keepdim=True), a.value.std(dim=1, keepdim=True)], dim=1)


def head_importance(attention: Tensor, gradient: Tensor) -> Tensor:
    """``I_h = mean_ij |(A_h^T dA_h)_ij|`` divided by its sum over heads, ``[B, H, 1, 1]``; zero without gradients.

    Inside windows ``[B, 1, H, 1, 1]``: between all patches the product is zero outside them.
    """
    all_but_heads = (-2, -1) if attention.ndim == 4 else (1, -2, -1)
    size = (attention.transpose(-2, -1) @ gradient).abs_().mean(dim=all_but_heads, keepdim=True)
    return size / size.sum(dim=-3, keepdim=True).clamp(min=SMALL)


# -- rows of attention ---------------------------------------------------------------------------------------------


def attention_point(model: VisionModel) -> str:
    """Return where a method that knows windows finds attention: between all tokens, or inside the windows there are.

    Inside windows everything is as if the matrix between all N patches were there, with zeros outside the windows, and
    wherever the model hides a patch or has padding; a layer's matrix is held as ``[B, W, t, t]``.
    """
    return "window_weights" if model.attention == "windowed" else "attn_weights"


def refuse_in_windows(model: VisionModel, what: str) -> None:
    """Refuse what has no meaning without a matrix between all tokens."""
    if model.attention == "windowed":
        raise ModelError(f"{model.name} attends inside windows: {what}, which needs a matrix between all tokens")


def pooling_records(model: VisionModel, reduce: Reduce, grad: bool = True) -> list[Record]:
    """Return what is recorded of attention pooling, the first row of a recursion; nothing without such pooling."""
    return [Record("pool_weights", reduce, grad=grad)] if model.pooling.uses_attention else []


def row_records(model: VisionModel, reduce: Reduce, layer: int, grad: bool = True) -> list[Record]:
    """Return the record of a row of one block's attention; in place of the last block's, that of attention pooling."""
    if model.pooling.uses_attention and resolve_layer(model, layer) == model.depth - 1:
        return pooling_records(model, reduce, grad)
    return [Record(attention_point(model), reduce, (layer,), grad)]


def chain_records(model: VisionModel, reduce: Reduce, start: int = 0, grad: bool = True) -> list[Record]:
    """Return the records of a chain of attention: the matrices of the blocks from ``start`` on, and the pooling."""
    layers = tuple(range(resolve_layer(model, start), model.depth))
    return [Record(attention_point(model), reduce, layers, grad), *pooling_records(model, reduce, grad)]


def initial_row(cache: ActivationCache, like: Tensor, pooling: Sequence[Record] = ()) -> Tensor:
    """Return the first row ``[B, N]`` of a recursion ``r <- r M_l`` from the last block to the first.

    One for the class token, the mean over what is pooled otherwise. Attention pooling is the last attention of the
    model: its own (reduced) row is the start. ``like`` is any layer matrix; the row lies on the last layer's grid.
    """
    if pooling:
        return pad_prefix(cache[pooling[0]][0].flatten(1), like.shape[1])
    return read_row(cache, like, len(cache.grids) - 1) if like.ndim == 4 else cache.model.pooling.row(like)


def read_row(cache: ActivationCache, like: Tensor, layer: int) -> Tensor:
    """Return the weights of a layer's tokens ``[B, N]`` in what the model reads, typed like the matrix."""
    return cache.model.pooling.row(like.new_empty(len(like), math.prod(cache.grids[layer])))


def pad_prefix(row: Tensor, tokens: int) -> Tensor:
    """Put zeros before a row over patches only, for the prefix tokens that the pooling does not look at."""
    return F.pad(row, (tokens - row.shape[1], 0))


def row_times(row: Tensor, matrix: Tensor, windows: Windows | None = None) -> Tensor:
    """``r M`` for rows ``[B, N]`` and matrices ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    return rows_times(row.unsqueeze(1), matrix, windows).squeeze(1)


def rows_times(rows: Tensor, matrix: Tensor, windows: Windows | None) -> Tensor:
    """``r M`` for rows ``[B, R, N]`` and matrices ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    if windows is None:
        return rows @ matrix
    cut = windows.cut(rows.flatten(0, 1))
    cut = cut.view(*rows.shape[:2], *cut.shape[1:])
    moved = (cut.transpose(1, 2) @ matrix).transpose(1, 2)
    return windows.paste(moved.flatten(0, 1)).view_as(rows)


def unmerged_rows(cache: ActivationCache, rows: Tensor, layer: int) -> Tensor:
    """Bring rows ``[B, R, N]`` over what comes out of a block to what entered it."""
    return cache.unmerged(rows.flatten(0, 1), layer).view(*rows.shape[:2], -1)


Step = Callable[[Tensor, Tensor, "Windows | None"], Tensor]
"""``(row, matrix, windows) -> row``: one block of a recursion."""


def accumulate(row: Tensor, matrix: Tensor, windows: Windows | None = None) -> Tensor:
    """``r + r M``: what is gathered so far, and what comes along the matrix."""
    return row + row_times(row, matrix, windows)


def mix_residual(row: Tensor, matrix: Tensor, windows: Windows | None = None) -> Tensor:
    """``r (M + I) / rowsum``, without writing that matrix down."""
    row = row / _row_sums(matrix, windows)
    return row + row_times(row, matrix, windows)


def mix_residual_by_column(row: Tensor, matrix: Tensor, windows: Windows | None = None) -> Tensor:
    """The same, but with column j divided by the sum of row j, as a popular script does."""
    return accumulate(row, matrix, windows) / _row_sums(matrix, windows)


def _row_sums(matrix: Tensor, windows: Windows | None) -> Tensor:
    sums = matrix.sum(dim=-1) + 1
    return sums if windows is None else windows.paste(sums)


def rollout(
    cache: ActivationCache, row: Tensor, layers: Sequence[int], matrices: Sequence[Tensor], step: Step = accumulate
) -> Tensor:
    """Return the map of a recursion ``r <- step(r, M_l)`` from the last of these layers to the first, on its grid."""
    for layer, matrix in zip(reversed(layers), reversed(matrices), strict=True):
        row = step(cache.unmerged(row, layer), matrix, cache.model.windows(layer))
    return cache.tokens_to_grid(row, layers[0])


def rollout_of(cache: ActivationCache, records: Sequence[Record], step: Step = accumulate) -> Tensor:
    """Return the map of a recursion along the matrices of the first record, from where the pooling starts it."""
    record, *pooling = records
    matrices = cache[record]
    return rollout(cache, initial_row(cache, matrices[0], pooling), record.layers, matrices, step)


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


# -- sizes of maps -------------------------------------------------------------------------------------------------


def resize_map(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Bring maps ``[B, h, w]`` to another size: finer ones are summed over the area of a cell, coarser ones enlarged.

    A value that lies across a border of cells gives each its part, so the sum over the map stays.
    """
    height, width = maps.shape[-2:]
    if (height, width) == tuple(size):
        return maps
    if height >= size[0] and width >= size[1]:
        if height % size[0] == width % size[1] == 0:
            return maps.reshape(-1, size[0], height // size[0], size[1], width // size[1]).sum(dim=(2, 4))
        rows, columns = (_overlap(fine, coarse).to(maps) for fine, coarse in ((height, size[0]), (width, size[1])))
        return rows @ maps @ columns.T
    return F.interpolate(maps[:, None], size=list(size), mode="bilinear", align_corners=False)[:, 0]


def _overlap(fine: int, coarse: int) -> Tensor:
    """Return how much of each of ``fine`` values lies in each of ``coarse`` cells, ``[coarse, fine]``."""
    edges = torch.arange(coarse + 1, dtype=torch.float64) * (fine / coarse)
    values = torch.arange(fine, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], values + 1) - torch.maximum(edges[:-1, None], values)
    return overlap.clamp(min=0)


# -- samples and ranks ----------------------------------------------------------------------------------------------


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


def run_in_parts(context: Context, work: Callable[[int, int], T], total: int, bytes_of_one: float) -> list[T]:
    """Return ``work(start, stop)`` over ``0 .. total``, in parts of what fits into the memory of a context."""
    done = []
    for part in parts_that_fit(context, total, bytes_of_one):
        with part:
            done.append(work(part.start, part.stop))
    return done


def parts_that_fit(context: Context, total: int, bytes_of_one: float) -> Iterator[Part]:
    """Yield ``0 .. total`` in parts of what fits into the memory of a context, each for a ``with`` of its own."""
    budget = budget_bytes(context.inputs.device, context.memory_gb)
    return InnerBatch(max(1, int(budget / bytes_of_one))).parts(total)


def compute_once(context: Context, key: Hashable, compute: Callable[[], T], for_all_classes: bool = False) -> T:
    """Return what ``compute`` returns, computed once in a context, or once for all classes that are compared in it."""
    memo = context.shared if for_all_classes and context.shared is not None else context.memo
    if key not in memo:
        memo[key] = compute()
    result: T = memo[key]
    return result


def divide(maps: Tensor, sizes: Tensor) -> Tensor:
    """Divide maps by their sizes; a map of zeros stays as it is."""
    return maps / torch.where(sizes > 0, sizes, 1)


def mean_size(maps: Tensor) -> Tensor:
    """Return the mean absolute value of each map ``[B, M, h, w]``."""
    return maps.abs().mean(dim=(2, 3), keepdim=True)
