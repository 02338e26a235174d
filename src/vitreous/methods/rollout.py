"""Maps that are one row of an attention matrix.

Attention alone: maps that say where the model looks, whatever the class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.errors import MapError, SpecError, VitreousError
from vitreous.methods.base import LayerwiseMethod, Method, resolve_layer
from vitreous.methods.ops import (
    attention_point,
    discard_weakest,
    downwards,
    head_max,
    head_mean,
    head_min,
    initial_row,
    pad_prefix,
    pooling_records,
    refuse_in_windows,
    rollout_step_mixed,
    with_residual,
)
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Activation, ActivationCache, Record, Reduce

__all__ = [
    "AttentionFlow",
    "RawAttention",
    "Rollout",
    "AttentionRow",
    "mean_rows",
]


class AttentionRow(LayerwiseMethod):
    """A map that is a row of one attention matrix, the one the model reads.

    With attention pooling, the last map is that of the pooling itself. Inside windows the map lies on the grid of its
    layer: in a hierarchical model the last block's is the coarsest.
    """

    reduce: ClassVar[Reduce]
    grad: ClassVar[bool] = True

    def records(self, model: VisionModel) -> Sequence[Record]:
        if model.pooling.uses_attention and resolve_layer(model, self.layer) == model.depth - 1:
            return [Record("pool_weights", type(self).reduce, grad=self.grad)]
        return super().records(model)

    def attribution(self, cache: ActivationCache) -> Tensor:
        (record,) = self.records(cache.model)
        return cache.map(record)

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record(attention_point(model), type(self).reduce, tuple(layers), self.grad)]


def mean_rows(model: VisionModel, make: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Return the row that the model reads of ``mean_h make(given)``, which treats every row alone.

    Inside windows all rows are kept: which tokens they belong to is known when the windows are put together.
    """
    if given[0].ndim == 5:
        return make(*given).mean(dim=-3)
    parts = [make(*(each[:, :, rows] for each in given)) for rows in read_rows(model, given[0])]
    return torch.stack([part.mean(dim=(1, 2)) for part in parts]).sum(dim=0)


def read_rows(model: VisionModel, attention: Tensor) -> list[slice]:
    """The rows that are read: of a block those of the pooling, of attention pooling its only one."""
    return [slice(None)] if attention.shape[2] == 1 else model.pooling.rows


def mean_row(a: Activation) -> Tensor:
    """The row of ``mean_h A`` that the model reads."""
    return mean_rows(a.model, lambda weights: weights, a.value)


@register_method(
    "raw_attention",
    family="attention",
    papers=("dosovitskiy2021image",),
    class_specific=False,
    cost=(1, 0),
    models="transformers",
)
@dataclass(frozen=True)
class RawAttention(AttentionRow):
    """The attention of one block, averaged over heads.

    ``mean_h A_l[CLS, patches]``; the mean over the patch rows where the model averages them. With attention pooling,
    the last block's map is the pooling's own attention. Layer term: the same row of each block.
    """

    layer: int = -1
    reduce = mean_row
    grad = False


_FUSIONS = {"mean": head_mean, "max": head_max, "min": head_min}


@register_method(
    "rollout",
    family="attention",
    papers=("abnar2020quantifying",),
    class_specific=False,
    cost=(1, 0),
    presets={"vit_explain": {"discard": 0.9, "normalise": "released"}},
    models="transformers",
)
@dataclass(frozen=True)
class Rollout(LayerwiseMethod):
    """Attention multiplied through the blocks, half of each passing by on the residual.

    ``r <- r (A_l + I) / rowsum`` from the last block down to ``start``, A the head mean, starting at the row the model
    reads: the row-normalised product of Abnar and Zuidema at N times less work. Some published scripts start at block
    1. ``heads`` fuses by mean, max or min; ``discard`` drops that share of the weakest entries first. The preset
    ``vit_explain`` follows a popular script: 90 % dropped, and column j divided by the sum of row j where row i was
    meant (``normalise=released``); it then divides by the maximum, which belongs to the picture. Layer term (for
    ``plus``): the row of ``mean_h A_l``. Inside windows the row passes each block window by window, and merged patches
    share equally; weights on padding are left out before rows are normalised, and nothing can be discarded.
    """

    start: int = 0
    heads: str = "mean"
    discard: float = 0.0
    normalise: str = "row"

    def __post_init__(self) -> None:
        check_choice("heads", self.heads, tuple(_FUSIONS))
        check_choice("normalise", self.normalise, ("row", "released"))
        if not 0 <= self.discard < 1:
            raise SpecError(f"discard={self.discard} must be at least 0 and below 1")

    def records(self, model: VisionModel) -> list[Record]:
        if self.discard:
            refuse_in_windows(model, f"discard={self.discard} takes a share of all entries")
        return [self._matrices(model), *pooling_records(model, head_mean, grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        keep = self._matrices(cache.model)
        row = initial_row(cache, cache[keep][0], head_mean, False)
        for layer, matrix in downwards(cache, keep):
            kept = discard_weakest(matrix, self.discard, keep_first=True)
            row = rollout_step_mixed(cache.unmerged(row, layer), kept, self.normalise, cache.model.windows(layer))
        return cache.tokens_to_grid(row, keep.layers[0])

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return RawAttention().layer_records(model, layers)

    def _matrices(self, model: VisionModel) -> Record:
        layers = tuple(range(resolve_layer(model, self.start), model.depth))
        return Record(attention_point(model), _FUSIONS[self.heads], layers, grad=False)


@register_method(
    "attention_flow",
    family="attention",
    papers=("abnar2020quantifying",),
    class_specific=False,
    cost=(1, 0),
    cost_note="1 F + a max-flow per patch",
    slow=True,
    models="ViT",
)
@dataclass(frozen=True)
class AttentionFlow(Method):
    """The largest flow that attention lets through from the row the model reads to each patch.

    A graph of (L + 1) N nodes; the edge from token i above block l to token j below it can carry
    ``(mean_h A_l + I)[i, j] / 2``. The map is the max-flow value to each patch of block 0, in units of capacity. Slow:
    one max-flow problem per patch and image, solved with capacities in millionths.
    """

    def records(self, model: VisionModel) -> list[Record]:
        matrices = Record("attn_weights", head_mean, tuple(range(model.depth)), grad=False)
        return [matrices, *pooling_records(model, head_mean, grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        matrices = cache[self.records(cache.model)[0]]
        row = initial_row(cache, matrices[0], head_mean, False)
        if not all(torch.isfinite(matrix).all() for matrix in matrices):
            raise MapError("attention_flow: the attention is not finite")
        edges = torch.stack([with_residual(matrix, "row") for matrix in matrices], dim=1)
        flows = [
            max_flows(image.cpu(), start.cpu(), cache.model.num_prefix_tokens)
            for image, start in zip(edges, row, strict=True)
        ]
        return cache.tokens_to_grid(pad_prefix(torch.stack(flows).to(row), row.shape[1]))


def max_flows(edges: Tensor, start: Tensor, prefix: int) -> Tensor:
    """Return the max-flow values ``[n]`` to the patches, for layer matrices ``[L, N, N]`` and the row read ``[N]``."""
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise VitreousError("attention_flow needs scipy; pip install 'vitreous[bench]'") from None
    depth, tokens, _ = edges.shape
    source = (depth + 1) * tokens  # nodes (l, i) are l * tokens + i; above all of them the row that is read
    upper, lower = torch.meshgrid(torch.arange(tokens), torch.arange(tokens), indexing="ij")
    tails, heads, sizes = [], [], []
    for layer in range(depth):
        tails.append((layer + 1) * tokens + upper.flatten())
        heads.append(layer * tokens + lower.flatten())
        sizes.append(edges[layer].flatten())
    read = start.nonzero().flatten()
    tails.append(torch.full_like(read, source))
    heads.append(depth * tokens + read)
    sizes.append(start[read])
    capacity = (torch.cat(sizes).double() * _UNITS).round().to(torch.int32).numpy()
    graph = csr_matrix((capacity, (torch.cat(tails).numpy(), torch.cat(heads).numpy())), shape=(source + 1,) * 2)
    flows = [maximum_flow(graph, source, patch).flow_value for patch in range(prefix, tokens)]
    return torch.tensor(flows, dtype=torch.float64) / _UNITS


_UNITS = 1_000_000
