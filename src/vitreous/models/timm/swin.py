"""timm's Swin family: windows that shift, stages that halve the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch
from timm.models import swin_transformer as v1
from timm.models import swin_transformer_v2 as v2
from torch import Tensor, nn

from vitreous.models.pooling import Pooling
from vitreous.models.timm.common import TimmView, norms
from vitreous.models.windows import Windows, shifted_windows

__all__ = ["TimmSwin", "TimmSwinV2"]


class TimmSwin(TimmView):
    """A timm ``SwinTransformer``: one flat index over the blocks of all stages, tokens always ``[B, N, C]``.

    The merging of patches that opens a stage is taken as the end of the block before it, so that the input of block l
    lies on ``grid(layer=l)``, and what comes out of the last block of a stage lies on the next stage's grid.

    Class activation maps look at ``norm2``: attention has mixed the tokens of a window for the last time, and after it
    every token goes its own way to the average.
    """

    accepts = (v1.SwinTransformer,)
    modules = ("swin_transformer",)
    parts = ((v1.SwinTransformerBlock, v1.WindowAttention),)
    wanted = "Swin blocks with window attention"
    convert = v1.checkpoint_filter_fn
    attends = "windows"
    drops_tokens = False
    cam_site = "norm2"
    unseen: Mapping[str, str] = {"attn": "it is computed in windows, not on a grid"}
    bias_activations = 0
    """Activations in the network that makes the position bias; it runs in every forward."""

    def __init__(self, model: nn.Module, **facts: Any) -> None:
        super().__init__(model, **facts)
        ends = accumulate((len(stage.blocks) for stage in self.model.layers), initial=0)
        self.stages = tuple(range(*pair) for pair in pairwise(ends))

    @property
    def _blocks(self) -> list[Any]:
        return [block for stage in self.model.layers for block in stage.blocks]

    def _pooling(self) -> Pooling:
        return Pooling(self.model.head.global_pool.pool_type or "none", self.prefix)

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return self.model.patch_embed(inputs).flatten(1, 2)  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            self.pick(tokens, keep)  # refuses
        laid_out = self._blocks[layer](self._laid_out(tokens, layer))
        for merging in self._merging(layer):
            laid_out = merging(laid_out)
        return laid_out.flatten(1, 2)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        features = self.model.norm(self._laid_out(tokens, self.depth - 1))
        return self.model.forward_head(features)  # type: ignore[no-any-return]

    # -- places ----------------------------------------------------------------------------------------

    def _stage(self, layer: int) -> int:
        return next(index for index, layers in enumerate(self.stages) if layer in layers)

    def _laid_out(self, tokens: Tensor, layer: int) -> Tensor:
        return tokens.reshape(len(tokens), *self.grid(layer=layer), -1)

    def _merging(self, layer: int) -> list[nn.Module]:
        """Return what makes the next stage's tokens after the last block of a stage; nothing after other blocks."""
        ends = layer + 1 < self.depth and self._stage(layer) != self._stage(layer + 1)
        return [self.model.layers[self._stage(layer + 1)].downsample] if ends else []

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        high, wide = self.model.patch_embed.grid_size
        for _ in range(self._stage(layer)):
            high, wide = (high + 1) // 2, (wide + 1) // 2  # an odd side is padded before it is halved
        return int(high), int(wide)

    def width_at(self, layer: int) -> int:
        return int(self._blocks[layer].dim)

    def windows(self, layer: int) -> Windows:
        """Return the windows as the block makes them.

        The mask is the block's own: noted when it was built, or made anew in every forward (``dynamic_mask``). Some
        versions of timm halve an odd side downwards for the noted mask, and upwards when they merge: where it is of
        fewer windows than there are, it is repeated over them, so that a few patches see what they should not.
        """
        block, grid = self._blocks[layer], self.grid(layer=layer)
        if getattr(block, "dynamic_mask", False):  # as timm asks it: pickles of older versions lack it
            padded = (-(-side // window) * window for side, window in zip(grid, block.window_size, strict=True))
            mask = block.get_attn_mask(torch.zeros(1, *padded, 1))
        else:
            mask = block.attn_mask
        area = math.prod(block.window_size)
        hidden = torch.zeros(1, area, area, dtype=torch.bool) if mask is None else mask.cpu() != 0
        return shifted_windows(grid, block.window_size, block.shift_size, padded_first=False, hidden=hidden)

    def _site(self, layer: int, name: str) -> nn.Module:
        return getattr(self._blocks[layer], name)  # type: ignore[no-any-return]

    def calls(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return {"attention": 0, "norm": norms(self.model.norm, self.model.head), "activation": 0}
        parts = [self._blocks[layer], *self._merging(layer)]
        return {"attention": 1, "norm": norms(*parts), "activation": 1 + self.bias_activations}


class TimmSwinV2(TimmSwin):
    """A timm ``SwinTransformerV2``: cosine attention, and norms at the end of a branch instead of its beginning.

    So ``norm1`` and ``norm2`` are what is added to the residual stream, and not features of the tokens: class
    activation maps look at the input of the last block instead, the last place before tokens mix. (At its output only
    a norm and the mean follow, where features times gradient is zero but for rounding.) The position bias is made by a
    small network with a ReLU and a sigmoid.
    """

    accepts = (v2.SwinTransformerV2,)
    modules = ("swin_transformer_v2",)
    parts = ((v2.SwinTransformerV2Block, v2.WindowAttention),)
    convert = v2.checkpoint_filter_fn
    cam_site = "input"
    unseen = dict.fromkeys(("norm1", "norm2"), "its norms come after the branches, as attn and mlp")
    branch_site = "attn"
    bias_activations = 2

    def _site(self, layer: int, name: str) -> nn.Module:
        return super()._site(layer, {"attn": "norm1", "mlp": "norm2"}[name])
