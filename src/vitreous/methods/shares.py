"""What each token brings to each other inside one block: vectors in closed form, their lengths by Gram matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.methods.readout import at_least_float32
from vitreous.models import Norm, View, Weights
from vitreous.models.proof import rounding
from vitreous.models.weights import UnverifiedError
from vitreous.passes import Block

__all__ = ["Shares", "block_weights", "head_projection", "layer_weights"]

_AT_ONCE = 2**26
"""How many numbers of ``[rows, N, D]`` shares may exist at once."""


class Shares:
    """The shares ``T[i, j]`` of source j in token i of a block, with attention and deviations as constants.

    ``T[i, j] = sum_h A_h[i, j] f_h[j] / s[i] + (i = j) x[i]`` with ``f_h[j] = P_h v_h[j]``: what head h brings of token
    j, P its part of the output projection (LayerScale included) and x the input of the block. Value biases are inside
    v, other biases belong to no source. ``s`` is 1 unless the block norms what its heads bring. All shares of a token
    plus the bias of the projection are the stream after the attention.
    """

    def __init__(self, view: View, block: Block) -> None:
        self.weights = block_weights(view, block)
        self.attention, self.values = at_least_float32(block.attention), at_least_float32(block.values)
        self.input, self.middle, self.output = (at_least_float32(x) for x in (block.input, block.middle, block.output))
        projection, deviation = head_projection(self.weights, self.attention, self.values)
        if deviation is not None:
            self.attention = self.attention / deviation.unsqueeze(1)
        self.brought = torch.einsum("bhnd,hkd->bnhk", self.values, projection)  # f: [B, N, H, D]
        self._inverse = 1 / self.weights.norm2.deviation(self.middle)  # [B, N, 1]

    def lengths(self, rows: slice, residual: bool, through: bool) -> Tensor:
        """``||T[i, j]||_2`` for destinations ``rows``: ``[B, rows, N]``.

        With ``residual`` the input counts as a share of its own token. ``through`` carries the shares on through the
        second norm, as ``T + g LN(T)``; the MLP behind it is taken as the identity. With ``F[j] = (f_h[j])_h`` and a
        the attention weights of all heads, the squared length is ``a^T (F F^T) a``: one H x H matrix per source.
        """
        attention = self.attention[:, :, rows].permute(0, 3, 2, 1)  # [B, N source, rows, H]
        squares = _quadratic(attention, self.brought, self.brought)
        if through:
            normed = self._normed(self.brought)
            inverse = self._inverse[:, rows].transpose(1, 2)  # [B, 1, rows]: one deviation per destination
            squares = squares + 2 * inverse * _quadratic(attention, self.brought, normed)
            squares = squares + inverse**2 * _quadratic(attention, normed, normed)
        lengths = squares.clamp_(min=0).sqrt_().transpose(1, 2)
        if residual:
            own = self.own(through)[:, rows].norm(dim=-1)
            places = torch.arange(self.input.shape[1], device=own.device)[rows]
            lengths[:, torch.arange(len(places), device=own.device), places] = own
        return lengths

    def own(self, through: bool) -> Tensor:
        """``T[i, i]``: ``[B, N, D]``."""
        diagonal = self.attention.diagonal(dim1=-2, dim2=-1)  # [B, H, N]
        shares = self.input + torch.einsum("bhn,bnhk->bnk", diagonal, self.brought)
        return shares + self._normed(shares) * self._inverse if through else shares

    def agreement(self, rows: slice) -> Tensor:
        """``(||o[i]||_1 - ||o[i] - T[i, j]||_1)+`` with o the output of the block, T through the second norm.

        Lengths of this kind have no Gram matrix: the shares are written out, some destinations of an image at a time.
        Both parts of ``T + g LN(T)`` are sums over heads, so that one product per source gives ``T - o``.
        """
        batch, tokens, width = self.input.shape
        places = list(range(tokens)[rows])
        step = max(1, _AT_ONCE // (tokens * width))
        vectors = torch.cat([self.brought, self._normed(self.brought)], dim=2)  # [B, N, 2 H, D]
        own = (self.own(through=True) - self.output).abs().sum(dim=-1)
        near = self.input.new_empty(batch, len(places), tokens)
        for image in range(batch):
            for start in range(0, len(places), step):
                some = places[start : start + step]
                weights = self.attention[image, :, some].permute(2, 1, 0)  # [N source, some, H]
                weights = torch.cat([weights, weights * self._inverse[image, some]], dim=2)
                output = self.output[image, some].expand(tokens, -1, -1)
                rest = torch.baddbmm(output, weights, vectors[image], beta=-1)
                distance = torch.linalg.vector_norm(rest, ord=1, dim=-1).T
                distance[range(len(some)), some] = own[image, some]
                near[image, start : start + step] = self.output[image, some].abs().sum(dim=-1, keepdim=True) - distance
        return near.clamp_(min=0)

    def _normed(self, shares: Tensor) -> Tensor:
        """The linear part of the second norm, LayerScale of the MLP included, not yet divided by the deviation."""
        out = self.weights.norm2.linear(shares)
        return out if self.weights.scale is None else out * self.weights.scale.to(out.dtype)


def layer_weights(view: View, layer: int) -> Weights:
    """Return the weights of a block; a refusal names it."""
    try:
        return view.weights(layer)
    except UnverifiedError as error:
        advice = "merge what was added into the weights, or take a method that reads none, such as generic"
        raise UnverifiedError(f"{view.name}, block {layer}: {error}; {advice}") from None


def block_weights(view: View, block: Block, always: bool = False) -> Weights:
    """Return the weights of a block, or refuse those that do not make of the values what its attention adds.

    Only a block that is not as its library built it is compared, unless ``always``: less what the weights make of the
    values, every token must be given the same vector, a bias.
    """
    weights = layer_weights(view, block.layer)
    if view.is_plain(block.layer) and not always:
        return weights
    attention, values, stream, middle = (
        at_least_float32(each) for each in (block.attention, block.values, block.input, block.middle)
    )
    mixed = (attention @ values).transpose(1, 2).flatten(2)
    mixed = mixed if weights.inner is None else weights.inner(mixed)
    moved = mixed @ weights.projection.to(mixed.dtype).T
    rest = middle - stream - moved
    eps = torch.finfo(view.dtype).eps
    near = max(rounding(view.dtype, view.device.type), 16 * eps)
    allowed = near * moved.abs().max() + 16 * eps * torch.maximum(stream.abs().max(), middle.abs().max())
    if not (rest - rest[:1, :1]).abs().max() <= allowed:
        raise ModelError(
            f"{view.name}: attention of block {block.layer} adds something else than its weights make of its values "
            f"({view.describe_deviation(block.layer)}), so that it cannot be cut into shares"
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
