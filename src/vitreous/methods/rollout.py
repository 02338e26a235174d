"""Attention alone: maps that say where the model looks, whatever the class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vitreous.errors import MapError, VitreousError
from vitreous.methods import ops
from vitreous.methods.base import LayerwiseMethod, Method
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.registry import choice, number
from vitreous.tracing import Activation, ActivationCache, Record


class AttentionRow(LayerwiseMethod):
    """A map that is a row of one attention matrix, the one the model reads.

    With attention pooling, the last map is that of the pooling itself. Inside windows the map lies on the grid of its
    layer: in a hierarchical model the last block's is the coarsest.
    """

    def records(self, model: VisionModel) -> list[Record]:
        return ops.row_records(model, type(self).reduce, self.layer, self.grad)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return cache.map(*self.records(cache.model))

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record(ops.attention_point(model), type(self).reduce, tuple(layers), self.grad)]


def mean_rows(model: VisionModel, make: Callable[..., Tensor], *matrices: Tensor) -> Tensor:
    """Return the row that the model reads of ``mean_h make(matrices)``, which treats every row alone.

    Inside windows all rows are returned: which tokens they belong to is known when the windows are put together.
    """
    if matrices[0].ndim == 5:
        return make(*matrices).mean(dim=-3)
    parts = [make(*(matrix[:, :, rows] for matrix in matrices)) for rows in read_rows(model, matrices[0])]
    return torch.stack([part.mean(dim=(1, 2)) for part in parts]).sum(dim=0)


def read_rows(model: VisionModel, attention: Tensor) -> list[slice]:
    """The rows that are read: of a block those of the pooling, of attention pooling its only one."""
    return [slice(None)] if attention.shape[2] == 1 else model.pooling.rows


def mean_row(a: Activation) -> Tensor:
    """The row of ``mean_h A`` that the model reads."""
    return mean_rows(a.model, lambda weights: weights, a.value)


_register = partial(register_method, family="attention", class_specific=False, cost=(1, 0))


@_register("raw_attention", papers=("dosovitskiy2021image",), models="transformers")
@dataclass(frozen=True)
class RawAttention(AttentionRow):
    r"""The attention of one block, averaged over heads.

    .. math:: M_j = \frac{1}{H} \sum_h A^{(l)}_{h, \mathrm{CLS}, j}

    It is the mean over the patch rows where the model averages them. With attention pooling, the last block's map is
    the pooling's own attention. The map of a layer, for ``plus``, is the same row there.

    Parameters
    ----------
    layer : int, default -1
        The block :math:`l`.

    Notes
    -----
    Cost: one forward.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021.

    Examples
    --------
    >>> vt.explain(model, image, "raw_attention").map.shape
    torch.Size([16, 16])
    """

    layer: int = -1
    reduce = mean_row
    grad = False


_FUSIONS = {"mean": ops.head_mean, "max": ops.head_max, "min": ops.head_min}


@_register(
    "rollout",
    papers=("abnar2020quantifying",),
    presets={"vit_explain": {"discard": 0.9, "normalise": "released"}},
    models="transformers",
)
@dataclass(frozen=True)
class Rollout(LayerwiseMethod):
    r"""Attention multiplied through the blocks, half of each passing by on the residual.

    .. math:: r \leftarrow r \, \frac{\bar A^{(l)} + I}{\mathrm{rowsum}}, \qquad l = L - 1, \dots, \mathrm{start}

    with :math:`\bar A` fused over heads, starting at the row the model reads: the row-normalised product of Abnar and
    Zuidema at N times less work. The map of a layer, for ``plus``, is the row of its mean attention.

    Parameters
    ----------
    start : int, default 0
        The lowest block; some published scripts start at block 1.
    heads : {"mean", "max", "min"}, default "mean"
        How heads are fused.
    discard : float, default 0.0
        The share of the weakest entries that is dropped first.
    normalise : {"row", "released"}, default "row"
        ``"released"`` divides column j by the sum of row j, where row i was meant.

    Notes
    -----
    The preset ``vit_explain`` follows a popular script: 90 % dropped, and ``normalise="released"``; the script then
    divides by the maximum, which belongs to the picture. Inside windows the row passes each block window by window, and
    merged patches share equally; weights on padding are left out before rows are normalised, and nothing can be
    discarded. One forward.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.

    Examples
    --------
    >>> vt.explain(model, image, "rollout").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    heads: str = choice("mean", *_FUSIONS)
    discard: float = number(0.0, "[0, 1)")
    normalise: str = choice("row", "released")

    def records(self, model: VisionModel) -> list[Record]:
        if self.discard:
            ops.refuse_in_windows(model, f"discard={self.discard} takes a share of all entries")
        record, *_ = ops.chain_records(model, _FUSIONS[self.heads], self.start, grad=False)
        return [record, *ops.pooling_records(model, ops.head_mean, grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        mix = ops.mix_residual if self.normalise == "row" else ops.mix_residual_by_column

        def step(row: Tensor, matrix: Tensor, windows: Windows | None) -> Tensor:
            return mix(row, ops.discard_weakest(matrix, self.discard, keep_first=True), windows)

        return ops.rollout_of(cache, self.records(cache.model), step)

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return RawAttention().layer_records(model, layers)


@_register(
    "attention_flow",
    papers=("abnar2020quantifying",),
    cost_note="1 F + a max-flow per patch",
    slow=True,
    models="ViT",
)
@dataclass(frozen=True)
class AttentionFlow(Method):
    r"""The largest flow that attention lets through from the row the model reads to each patch.

    .. math:: M_j = \mathrm{maxflow}(\mathrm{CLS} \to j), \qquad c^{(l)}_{ij} = \tfrac{1}{2} (\bar A^{(l)} + I)_{ij}

    in a graph of :math:`(L + 1) N` nodes, where the edge from token i above block l to token j below it can carry
    :math:`c^{(l)}_{ij}`. The map is in units of capacity.

    Notes
    -----
    One forward, and one max-flow problem per patch and image, solved with capacities in millionths: slow.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.

    Examples
    --------
    >>> vt.get_method("attention_flow").info.cost_text
    '1 F + a max-flow per patch'
    """

    def records(self, model: VisionModel) -> list[Record]:
        matrices = Record("attn_weights", ops.head_mean, tuple(range(model.depth)), grad=False)
        return [matrices, *ops.pooling_records(model, ops.head_mean, grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        record, *pooling = self.records(cache.model)
        matrices = torch.stack(cache[record], dim=1)
        if not torch.isfinite(matrices).all():
            raise MapError("attention_flow: the attention is not finite")
        row = ops.initial_row(cache, matrices[:, 0], pooling)
        capacities = matrices + torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        capacities = capacities / capacities.sum(dim=-1, keepdim=True)
        prefix = cache.model.num_prefix_tokens
        flows = [max_flows(*pair, prefix) for pair in zip(capacities.cpu(), row.cpu(), strict=True)]
        return cache.tokens_to_grid(ops.pad_prefix(torch.stack(flows).to(row), row.shape[1]))


_UNITS = 1_000_000


def max_flows(edges: Tensor, start: Tensor, prefix: int) -> Tensor:
    """Return the max-flow values ``[n]`` to the patches, for layer matrices ``[L, N, N]`` and the row read ``[N]``."""
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise VitreousError("attention_flow needs scipy; pip install 'vitreous[bench]'") from None
    depth, tokens, _ = edges.shape
    source = (depth + 1) * tokens  # nodes (l, i) are l * tokens + i; above all of them the row that is read
    layer, upper, lower = torch.meshgrid(torch.arange(depth), torch.arange(tokens), torch.arange(tokens), indexing="ij")
    read = start.nonzero().flatten()
    tails = torch.cat([((layer + 1) * tokens + upper).flatten(), torch.full_like(read, source)])
    heads = torch.cat([(layer * tokens + lower).flatten(), depth * tokens + read])
    capacity = (torch.cat([edges.flatten(), start[read]]).double() * _UNITS).round().to(torch.int32).numpy()
    graph = csr_matrix((capacity, (tails.numpy(), heads.numpy())), shape=(source + 1,) * 2)
    flows = [maximum_flow(graph, source, patch).flow_value for patch in range(prefix, tokens)]
    return torch.tensor(flows, dtype=torch.float64) / _UNITS
