"""timm's BEiT family: BEiT and BEiT v2, with relative positions inside the attention."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.beit import Attention, Beit, Block, checkpoint_filter_fn
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.models.timm.common import TimmColumn

__all__ = ["TimmBeit"]


class TimmBeit(TimmColumn):
    """A timm ``Beit``: ``softmax(q k^T / sqrt(d) + R) v``, R a bias for each pair of places and each head.

    R is a block's own, shared by all blocks, or the sum of both. It belongs to the places of the tokens: where some
    are left out, every image has rows and columns of R of its own.
    """

    accepts = (Beit,)
    modules = ("beit",)
    parts = ((Block, Attention),)
    convert = checkpoint_filter_fn

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.model
        patches = model.patch_embed(inputs)
        tokens = torch.cat((model.cls_token.expand(len(patches), -1, -1), patches), dim=1)
        if model.pos_embed is not None:
            tokens = tokens + model.pos_embed
        return model.pos_drop(tokens)  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        block, shared = self.model.blocks[layer], self.model.rel_pos_bias
        common = None if shared is None else shared()
        bias = _bias(block.attn, common)
        if keep is None or bias is None:
            return block(tokens, shared_rel_pos_bias=common)  # type: ignore[no-any-return]
        mixed = _attend(block.attn, block.norm1(tokens), _pick_pairs(bias, keep))
        tokens = tokens + block.drop_path1(_scaled(mixed, block.gamma_1))
        branch = block.mlp(block.norm2(tokens))
        return tokens + block.drop_path2(_scaled(branch, block.gamma_2))  # type: ignore[no-any-return]


def _bias(attention: Any, common: Tensor | None) -> Tensor | None:
    """Return the bias ``[H, N, N]`` between all tokens, or ``None`` where the block knows no places."""
    if attention.relative_position_bias_table is None:
        return common
    own: Tensor = attention._get_rel_pos_bias()[0]
    return own if common is None else own + common


def _pick_pairs(bias: Tensor, keep: Tensor) -> Tensor:
    """Return the bias ``[B, H, 1 + k, 1 + k]`` between the class token and the kept patches of each image."""
    rows = F.pad(keep.long() + 1, (1, 0))  # the class token, at 0, is always there
    return bias[:, rows.unsqueeze(2), rows.unsqueeze(1)].transpose(0, 1)


def _attend(attention: Any, x: Tensor, bias: Tensor) -> Tensor:
    """timm's attention from its own parts, for a bias that differs from image to image."""
    biases = None
    if attention.q_bias is not None:
        biases = torch.cat((attention.q_bias, attention.k_bias, attention.v_bias))
    qkv = F.linear(x, attention.qkv.weight, biases)
    query, key, value = qkv.reshape(*x.shape[:2], 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    dropout = attention.attn_drop.p if attention.training else 0.0
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
    return attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


def _scaled(branch: Tensor, gamma: nn.Parameter | None) -> Tensor:
    return branch if gamma is None else gamma * branch
