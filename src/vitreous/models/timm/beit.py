"""timm's BEiT family: BEiT and BEiT v2, with relative positions inside the attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
        bias = None if keep is None else _bias(block.attn, common)
        if keep is None or bias is None:
            return block(tokens, shared_rel_pos_bias=common)  # type: ignore[no-any-return]
        picked = _pick_pairs(bias, keep)
        if block.attn.relative_position_bias_table is None:
            return block(tokens, shared_rel_pos_bias=picked)  # type: ignore[no-any-return]
        with _answering(block.attn, "_get_rel_pos_bias", picked):
            return block(tokens, shared_rel_pos_bias=None)  # type: ignore[no-any-return]


@contextmanager
def _answering(module: nn.Module, method: str, answer: Tensor) -> Iterator[None]:
    """Let a method of a twin's module return something else for a while."""
    attributes = vars(module)
    before = attributes.get(method)
    attributes[method] = lambda: answer
    try:
        yield
    finally:
        attributes.pop(method)
        attributes.update({} if before is None else {method: before})


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
