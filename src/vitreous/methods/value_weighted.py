"""Attention weighed by the vectors that it moves: what each token brings to each other inside one block.

The vectors are in closed form, with attention weights and deviations as constants; their lengths come from Gram
matrices of the heads, so that ``H x N x N x D`` numbers never exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.methods import ops
from vitreous.methods.base import LayerwiseMethod
from vitreous.methods.registry import register_method
from vitreous.models import Norm, VisionModel, Weights
from vitreous.models.shared_copy import rounding
from vitreous.models.structure import UnverifiedError, Windows
from vitreous.registry import number
from vitreous.tracing import ActivationCache, Block, Record, resolve_layer

_MOST_NUMBERS = 2**26
"""How many numbers of ``[rows, N, D]`` shares may exist together."""
_SMALL = 1e-12


class Contributions:
    """The shares ``T[i, j]`` of source j in token i of a block, with attention and deviations as constants.

    ``T[i, j] = sum_h A_h[i, j] f_h[j] / s[i] + (i = j) x[i]`` with ``f_h[j] = P_h v_h[j]``: what head h brings of token
    j, P its part of the output projection (LayerScale included) and x the input of the block. Value biases are inside
    v, other biases belong to no source. ``s`` is 1 unless the block norms what its heads bring. All shares of a token
    plus the bias of the projection are the stream after the attention.
    """

    def __init__(self, block: Block) -> None:
        self.weights = block_weights(block)
        self.attention, self.values = block.attn_weights, block.attn_values
        self.input, self.middle, self.output = block.resid_pre, block.resid_mid, block.resid_post
        projection, deviation = head_projection(self.weights, self.attention, self.values)
        if deviation is not None:
            self.attention = self.attention / deviation.unsqueeze(1)
        self.transformed = torch.einsum("bhnd,hkd->bnhk", self.values, projection)  # f: [B, N, H, D]
        self._inverse = 1 / self.weights.norm2.deviation(self.middle)  # [B, N, 1]

    def lengths(self, rows: slice, residual: bool, through: bool) -> Tensor:
        """``||T[i, j]||_2`` for destinations ``rows``: ``[B, rows, N]``.

        With ``residual`` the input counts as a share of its own token. ``through`` carries the shares on through the
        second norm, as ``T + g LN(T)``; the MLP behind it is taken as the identity. With ``F[j] = (f_h[j])_h`` and a
        the attention weights of all heads, the squared length is ``a^T (F F^T) a``: one H x H matrix per source.
        """
        attention = self.attention[:, :, rows].permute(0, 3, 2, 1)  # [B, N source, rows, H]
        squares = _quadratic(attention, self.transformed, self.transformed)
        if through:
            normed = self._normed(self.transformed)
            inverse = self._inverse[:, rows].transpose(1, 2)  # [B, 1, rows]: one deviation per destination
            squares = squares + 2 * inverse * _quadratic(attention, self.transformed, normed)
            squares = squares + inverse**2 * _quadratic(attention, normed, normed)
        lengths = squares.clamp_(min=0).sqrt_().transpose(1, 2)
        if residual:
            own = self.own(through)[:, rows].norm(dim=-1)
            columns = torch.arange(self.input.shape[1], device=own.device)[rows]
            lengths[:, torch.arange(len(columns), device=own.device), columns] = own
        return lengths

    def own(self, through: bool) -> Tensor:
        """``T[i, i]``: ``[B, N, D]``."""
        diagonal = self.attention.diagonal(dim1=-2, dim2=-1)  # [B, H, N]
        shares = self.input + torch.einsum("bhn,bnhk->bnk", diagonal, self.transformed)
        return shares + self._normed(shares) * self._inverse if through else shares

    def proximity(self, rows: slice) -> Tensor:
        """``(||o[i]||_1 - ||o[i] - T[i, j]||_1)+`` with o the output of the block, T through the second norm.

        Lengths of this kind have no Gram matrix: the shares are written out, some destinations of an image at a time.
        Both parts of ``T + g LN(T)`` are sums over heads, so that one product per source gives ``T - o``.
        """
        batch, tokens, width = self.input.shape
        destinations = list(range(tokens)[rows])
        step = max(1, _MOST_NUMBERS // (tokens * width))
        vectors = torch.cat([self.transformed, self._normed(self.transformed)], dim=2)  # [B, N, 2 H, D]
        own = (self.own(through=True) - self.output).abs().sum(dim=-1)
        near = self.input.new_empty(batch, len(destinations), tokens)
        for image in range(batch):
            for start in range(0, len(destinations), step):
                chunk = destinations[start : start + step]
                weights = self.attention[image, :, chunk].permute(2, 1, 0)  # [N source, chunk, H]
                weights = torch.cat([weights, weights * self._inverse[image, chunk]], dim=2)
                output = self.output[image, chunk].expand(tokens, -1, -1)
                remainder = torch.baddbmm(output, weights, vectors[image], beta=-1)
                distance = torch.linalg.vector_norm(remainder, ord=1, dim=-1).T
                distance[range(len(chunk)), chunk] = own[image, chunk]
                near[image, start : start + step] = self.output[image, chunk].abs().sum(dim=-1, keepdim=True) - distance
        return near.clamp_(min=0)

    def _normed(self, shares: Tensor) -> Tensor:
        """The linear part of the second norm, LayerScale of the MLP included, not yet divided by the deviation."""
        out = self.weights.norm2.linear(shares)
        return out if self.weights.scale is None else out * self.weights.scale.to(out.dtype)


def layer_weights(model: VisionModel, layer: int) -> Weights:
    """Return the weights of a block; a refusal names it."""
    try:
        return model.weights(layer)
    except UnverifiedError as error:
        advice = "merge what was added into the weights, or take a method that reads none, such as generic"
        raise UnverifiedError(f"{model.name}, block {layer}: {error}; {advice}") from None


def block_weights(block: Block, always: bool = False) -> Weights:
    """Return the weights of a block, or refuse those that do not make of the values what its attention adds.

    Only a block that is not as its library built it is compared, unless ``always``: less what the weights make of the
    values, every token must be given the same vector, a bias.
    """
    model = block.model
    weights = layer_weights(model, block.layer)
    if model.is_standard(block.layer) and not always:
        return weights
    stream, middle = block.resid_pre, block.resid_mid
    mixed = (block.attn_weights @ block.attn_values).transpose(1, 2).flatten(2)
    mixed = mixed if weights.inner is None else weights.inner(mixed)
    moved = mixed @ weights.projection.to(mixed.dtype).T
    remainder = middle - stream - moved
    eps = torch.finfo(model.dtype).eps
    near = max(rounding(model.dtype, model.device.type), 16 * eps)
    allowed = near * moved.abs().max() + 16 * eps * torch.maximum(stream.abs().max(), middle.abs().max())
    if not (remainder - remainder[:1, :1]).abs().max() <= allowed:
        raise ModelError(
            f"{model.name}: attention of block {block.layer} adds something else than its weights make of its values "
            f"({model.describe_deviation(block.layer)}), so that it cannot be cut into shares"
        )
    return weights


def head_projection(weights: Weights, attention: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the projection of every head ``[H, D, d]``, and the deviations ``[B, N, 1]`` of a norm before it.

    That norm is ``g * (m - mean m) / s[i]`` of what all heads bring together: all of it but the division is one more
    matrix in front of the projection.
    """
    heads, depth = values.shape[1], values.shape[3]
    projection, deviation = weights.projection.to(values.dtype), None
    if weights.inner is not None:
        mixed = (attention @ values).transpose(1, 2).flatten(2)
        deviation = weights.inner.deviation(mixed)
        projection = _through(weights.inner, projection)
    return projection.reshape(-1, heads, depth).transpose(0, 1), deviation


def _through(norm: Norm, projection: Tensor) -> Tensor:
    """``P diag(g) C``: the projection of what a norm has scaled and centred."""
    scaled = projection if norm.weight is None else projection * norm.weight.to(projection.dtype)
    return norm.centre(scaled)  # the centring matrix is symmetric


def _quadratic(attention: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``a^T (L R^T) a`` for the weights of all heads: ``[B, N source, rows, H]`` to ``[B, N source, rows]``."""
    gram = left @ right.transpose(-2, -1)  # [B, N, H, H]
    return ((attention @ gram) * attention).sum(dim=-1)


def weighted_norms(shares: Contributions, rows: slice) -> Tensor:
    """``||sum_h A_h[i, j] f_h[j]||_2``."""
    return shares.lengths(rows, residual=False, through=False)


def relative_norms(shares: Contributions, rows: slice) -> Tensor:
    """The same lengths, rows summing to one as those of attention do (or zero where nothing is brought)."""
    return _rows_to_one(weighted_norms(shares, rows))


def norms_with_residual(shares: Contributions, rows: slice) -> Tensor:
    """The same, with the residual stream as a share of its own token."""
    return shares.lengths(rows, residual=True, through=False)


def norms_after_block(shares: Contributions, rows: slice) -> Tensor:
    """``||T'[i, j]||_2``, after the second norm."""
    return shares.lengths(rows, residual=True, through=True)


def relative_proximity(shares: Contributions, rows: slice) -> Tensor:
    """How much nearer a share brings its token to the output, rows summing to one (or zero where none does)."""
    return _rows_to_one(shares.proximity(rows))


def _rows_to_one(matrix: Tensor) -> Tensor:
    total = matrix.sum(dim=-1, keepdim=True)
    return torch.where(total < _SMALL, torch.zeros_like(matrix), matrix / total)


Measure = Callable[[Contributions, slice], Tensor]


@dataclass(frozen=True)
class Matrix:
    """All rows of a block's matrix: ``[B, N, N]``."""

    measure: Measure

    def __call__(self, block: Block) -> Tensor:
        return self.measure(Contributions(block), slice(None))


@dataclass(frozen=True)
class Row:
    """The row of a block's matrix that the model reads: ``[B, N]``; no other row is computed."""

    measure: Measure

    def __call__(self, block: Block) -> Tensor:
        shares = Contributions(block)
        return torch.stack([self.measure(shares, rows).mean(dim=1) for rows in block.model.pooling.rows]).sum(dim=0)


_register = partial(register_method, family="decomposition", class_specific=False, cost=(1, 0), models="ViT")


@_register("attin", papers=("kobayashi2020attention", "kobayashi2021incorporating", "mehri2024skipplus"))
@dataclass(frozen=True)
class AttentionInputNorm(LayerwiseMethod):
    r"""The length of what attention brings of each token, in one block.

    .. math:: M_j = \Bigl\lVert \sum_h A_{h, \mathrm{CLS}, j} P_h v_{hj} \Bigr\rVert_2

    at the row that is read, with :math:`P_h` the output projection of head h, value biases included.

    Parameters
    ----------
    layer : int, default -1
        The block.
    residual : bool, default False
        Add the stream itself to each token's share of its own row, as the later paper does (in a model with norms in
        front no LayerNorm follows).

    Notes
    -----
    From H x H Gram matrices, never H x N x N x D numbers. One forward.

    References
    ----------
    Kobayashi et al., "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", EMNLP 2020.
    Kobayashi et al., "Incorporating Residual and Normalization Layers into Analysis of Masked Language Models", EMNLP
    2021.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "attin").map.shape
    torch.Size([16, 16])
    """

    layer: int = -1
    residual: bool = False

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [
            Record("block", Row(norms_with_residual if self.residual else weighted_norms), tuple(layers), grad=False)
        ]


class ValueWeightedRollout(LayerwiseMethod):
    """``r <- residual r + (1 - residual) r M_l`` from the last block down to ``start``.

    The entry ``[i, j]`` of the matrix of a block is what token j brings to token i; the map of a layer is the row of it
    that the model reads.
    """

    start: int
    residual: float
    measure: ClassVar[Measure]
    preserves_scale: ClassVar[bool] = True

    def records(self, model: VisionModel) -> list[Record]:
        layers = tuple(range(resolve_layer(model, self.start), model.depth))
        matrices = Record("block", Matrix(type(self).measure), layers, grad=False)
        return [matrices, *ops.pooling_records(model, ops.head_mean, grad=False)]

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record("block", Row(type(self).measure), tuple(layers), grad=False)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        def step(row: Tensor, matrix: Tensor, windows: Windows | None) -> Tensor:
            row = self.residual * row + (1 - self.residual) * ops.row_times(row, matrix)
            return row if self.preserves_scale else row / row.sum(dim=1, keepdim=True).clamp(min=_SMALL)

        return ops.rollout_of(cache, self.records(cache.model), step)


@_register("attin_rollout", papers=("kobayashi2020attention", "abnar2020quantifying", "mehri2024skipplus"))
@dataclass(frozen=True)
class AttentionInputNormRollout(ValueWeightedRollout):
    r"""The lengths of what attention brings, multiplied through the blocks: AttIN composed with rollout.

    .. math:: r \leftarrow \alpha r + (1 - \alpha) \, r T^{(l)}, \qquad
        T_{ij} \propto \Bigl\lVert \sum_h A_{hij} P_h v_{hj} \Bigr\rVert_2

    from the last block down, rows of T divided by their sum: the rollout of Mehri et al. (Eq. 2), with AttIN in the
    place of attention. The map of a layer, for ``plus``, is the row of its T.

    Parameters
    ----------
    start : int, default 0
        The lowest block.
    residual : float, default 0.5
        The part :math:`\alpha` of each token that passes by.

    Notes
    -----
    No code for this composition is published. One forward.

    References
    ----------
    Kobayashi et al., "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", EMNLP 2020.
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "attin_rollout").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    residual: float = number(0.5, "[0, 1)")
    measure = relative_norms


@_register("globenc", papers=("modarressi2022globenc", "mehri2024skipplus"))
@dataclass(frozen=True)
class GlobEnc(ValueWeightedRollout):
    r"""The lengths of all shares of a block, multiplied through the blocks.

    .. math:: r \leftarrow r N^{(l)}, \quad N_{ij} = \lVert T_{ij} + g \, \mathrm{LN}(T_{ij}) \rVert_2, \quad
        T_{ij} = \sum_h A_{hij} P_h v_{hj} + [i = j] \, x_i

    from the last block down: the shares go on through the second norm, whose deviation is that of the true stream; the
    MLP behind it is taken as the identity. The map of a layer, for ``plus``, is the row of its N, raw.

    Parameters
    ----------
    start : int, default 0
        The lowest block.
    residual : float, default 0.0
        The part of the row that passes by.

    Notes
    -----
    The original is for norms behind the branches; this is the form that SkipPLUS uses. The product has no scale of its
    own and would leave float32 in deep models: the row is divided by its sum after every block, a constant factor per
    image. Lengths come from H x H Gram matrices. One forward.

    References
    ----------
    Modarressi et al., "GlobEnc: Quantifying Global Token Attribution by Incorporating the Whole Encoder Layer in
    Transformers", NAACL 2022.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "globenc").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    residual: float = number(0.0, "[0, 1)")
    preserves_scale = False
    measure = norms_after_block


@_register(
    "alti", papers=("ferrando2022measuring", "mehri2024skipplus"), cost_note="1 F + N x N x D per block", slow=True
)
@dataclass(frozen=True)
class ALTI(ValueWeightedRollout):
    r"""How much nearer each share brings its token to the block's output, multiplied through the blocks.

    .. math:: r \leftarrow r c^{(l)}, \qquad
        c_{ij} \propto \bigl( \lVert o_i \rVert_1 - \lVert o_i - T'_{ij} \rVert_1 \bigr)^+

    with the shares :math:`T'` of ``globenc`` and o the true output of the block, rows divided by their sum; a row
    without any positive entry stays zero (released code divides 0 by 0 there). The map of a layer, for ``plus``, is the
    row of its c.

    Parameters
    ----------
    start : int, default 0
        The lowest block.
    residual : float, default 0.0
        The part of the row that passes by.

    Notes
    -----
    Where the residual is much longer than what attention brings, most entries vanish, and with them sometimes the map,
    which is a warning. L1 lengths have no Gram matrix, so shares are written out for some destinations at a time: one
    forward, and N x N x D numbers per block.

    References
    ----------
    Ferrando et al., "Measuring the Mixing of Contextual Information in the Transformer", EMNLP 2022.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "alti").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    residual: float = number(0.0, "[0, 1)")
    measure = relative_proximity
