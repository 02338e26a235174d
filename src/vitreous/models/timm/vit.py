"""timm's plain ViT family: ViT, DeiT (also distilled), DeiT-III, DINOv2 with registers, CLIP and SigLIP towers."""

from __future__ import annotations

from functools import partial

from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor

from vitreous.models.pooling import Pooling
from vitreous.models.timm.common import TimmColumn

__all__ = ["TimmViT"]


class TimmViT(TimmColumn):
    """A timm ``VisionTransformer`` made of pre-norm blocks."""

    accepts = (VisionTransformer,)
    modules = ("vision_transformer", "deit")
    left_out = ("_18x2_", "_xp_", "_rpn_", "vit_dlittle_", "vit_dpwee_", "vit_dwee_", "vit_pwee_")
    # their blocks are parallel, post-norm or differential
    parts = ((Block, Attention),)
    convert = partial(checkpoint_filter_fn, adapt_layer_scale=True)

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.model
        tokens = model._pos_embed(model.patch_embed(inputs))
        return model.norm_pre(model.patch_drop(tokens))  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.model.blocks[layer](tokens)  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        if inputs is None or not self._any_size():
            return super().grid(inputs, layer)
        high, wide = self.model.patch_embed.dynamic_feat_size(tuple(inputs.shape[-2:]))
        return int(high), int(wide)

    def _any_size(self) -> bool:
        return bool(self.model.dynamic_img_size)

    def _distilled(self) -> bool:
        return isinstance(self.model, VisionTransformerDistilled)

    def _pooling(self) -> Pooling:
        if self._distilled():
            return Pooling("pair", self.prefix)
        if self.model.global_pool == "avg" and self.model.pool_include_prefix:
            return Pooling("avg_all", self.prefix)
        return super()._pooling()
