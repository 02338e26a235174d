"""Bidirectional attributions: what the tokens perceive, weighed by what the class asks of the last attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods.along.path import SMALL, Feedback
from vitreous.methods.readout import at_least_float32, attention_site, head_mean
from vitreous.methods.registry import register
from vitreous.methods.shares import block_weights, head_projection
from vitreous.models import View
from vitreous.passes import Block, Keep, Reduce

__all__ = ["BidirectionalHeads", "BidirectionalTokens", "head_importance"]


def head_importance(attention: Tensor, gradient: Tensor) -> Tensor:
    """``I_h = mean_ij |(A_h^T dA_h)_ij|`` divided by its sum over heads, ``[B, H, 1, 1]``; zero without gradients.

    Inside windows ``[B, 1, H, 1, 1]``: between all patches the product is zero outside them.
    """
    all_but_heads = (-2, -1) if attention.ndim == 4 else (1, -2, -1)
    size = (attention.transpose(-2, -1) @ gradient).abs_().mean(dim=all_but_heads, keepdim=True)
    return size / size.sum(dim=-3, keepdim=True).clamp(min=SMALL)


def by_heads(view: View, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_h I_h A_h``."""
    assert gradient is not None
    attention = at_least_float32(attention)
    return (head_importance(attention, at_least_float32(gradient).to(attention)) * attention).sum(dim=-3)


def by_tokens(view: View, block: Block, gradient: Tensor | None) -> Tensor:
    """``mean_h A diag m`` with ``m[j] = ||P v[j]|| / ||x[j]||``: what attention moves of a token, in parts of it."""
    attention, values, stream = (at_least_float32(each) for each in (block.attention, block.values, block.input))
    projection, deviation = head_projection(block_weights(view, block), attention, values)
    moved = torch.einsum("bhnd,hkd->bnk", values, projection)
    size = moved.norm(dim=-1) / stream.norm(dim=-1).clamp(min=SMALL)
    matrix: Tensor = attention.mean(dim=1) * size.unsqueeze(1)
    return matrix if deviation is None else matrix / deviation


@register(
    "bt_h",
    family="path",
    papers=("chen2023beyond",),
    aliases=("beyond", "bi_attn"),
    cost=(20, 20),
    cost_note="20 F + 1 B + 19 B of the last block",
    presets={"tis": {"start": 0}, "interpretdl": {"value": "prob"}},
    models="transformers",
)
@dataclass(frozen=True)
class BidirectionalHeads(Feedback):
    """Attention gathered through the blocks, heads weighed by their gradient, times the integrated gradient.

    Perception: ``C_l = sum_h I_h A_l,h`` with ``I_h`` the mean of ``|A_h^T dA_h|``, divided by its sum over the heads
    of that image (a block without any gradient gives zero); ``R = I``, ``R <- R + C_l R`` upwards from block ``start``.
    Feedback: ``W = mean_h (mean_t dA(t x))+`` of the last block, as in ``tam``. ``map = (W * R)[CLS]``, by the rows of
    R that are read; the mean over rows where patches are averaged. A pooling by attention is the last attention: its
    own C is the first row, W its gradient. Without ``start`` the first quarter of the blocks is left out: blocks 3 to
    11 of 12, as released. Cost: ``steps`` forwards and backwards, all but one of these end in the last block.

    Inside windows, which the paper leaves open, A and dA are those between all patches, zero outside the windows. All
    rows of the last grid are read; where patches were merged, each gets an equal part of R, and of the columns of W.
    The map lies on the grid of block ``start``.

    TIS compares with all blocks (preset ``tis``), InterpretDL differentiates the probability (``interpretdl``). The
    release divides ``I_h`` by a sum over the whole batch, and is right for one image at a time only.
    """

    start: int | None = None
    steps: int = 20
    value: str | None = None

    def first(self, view: View) -> int:
        return view.depth // 4

    def matrices(self, view: View, layers: tuple[int, ...]) -> Keep:
        return Keep(attention_site(view), by_heads, layers, grad=True)

    def pooled(self) -> tuple[Reduce, bool]:
        return by_heads, True


@register(
    "bt_t",
    family="path",
    papers=("chen2023beyond",),
    cost=(20, 20),
    cost_note="20 F + 20 B of the last block",
    presets={"released": {"start": 5}, "tis": {"start": 0}, "interpretdl": {"start": 3, "value": "prob"}},
    models="ViT",
)
@dataclass(frozen=True)
class BidirectionalTokens(Feedback):
    """Attention gathered through the blocks, tokens weighed by how much is moved, times the integrated gradient.

    ``C_l = mean_h A_l diag m_l`` with ``m[j] = ||P v[j]|| / ||x[j]||``: v the values of all heads with their bias, P
    the output projection without its bias (LayerScale included, and a norm in front of it), x the input of the block.
    The rest is ``bt_h``: ``R <- R + C_l R`` upwards from block ``start``, ``map = (W * R)[CLS]``. A pooling by
    attention starts with the mean of its heads, since it moves no token of a stream. Without ``start`` the first half
    of the blocks is left out: blocks 6 to 11 of 12, as in the evaluation script. Cost: ``steps`` forwards, and as many
    backwards that end in the last block.

    The released function begins at block 5 (preset ``released``), TIS at block 0 (``tis``), InterpretDL at block 3
    with the probability (``interpretdl``).
    """

    start: int | None = None
    steps: int = 20
    value: str | None = None

    def first(self, view: View) -> int:
        return view.depth // 2

    def matrices(self, view: View, layers: tuple[int, ...]) -> Keep:
        return Keep("block", by_tokens, layers)

    def pooled(self) -> tuple[Reduce, bool]:
        return head_mean, False
