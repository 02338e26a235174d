"""timm's Swin families, and which modules of its convolutional networks make the chain of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from timm.models import convnext, densenet, efficientnet, resnet, vgg
from timm.models import swin_transformer as v1
from timm.models import swin_transformer_v2 as v2
from torch import Tensor, nn

from vitreous.models.adapters import Convert, StagedModel, count_classes
from vitreous.models.adapters.timm import TimmModel, config_of, imagenet_names, preprocess_of
from vitreous.models.cnn import Chain, ConvModel, by_convolutions, by_stages, dense_chain, resnet_chain
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Windows, shifted_windows


class TimmSwin(TimmModel, StagedModel):
    """A timm ``SwinTransformer``.

    Class activation maps look at ``norm2``: attention has mixed the tokens of a window for the last time, and after it
    every token goes its own way to the average.
    """

    accepts = (v1.SwinTransformer,)
    modules = ("swin_transformer",)
    parts = ((v1.SwinTransformerBlock, v1.WindowAttention),)
    parts_in_words = "Swin blocks with window attention"
    convert = v1.checkpoint_filter_fn
    cam_point = "norm2"
    unavailable_points: Mapping[str, str] = {"attn": "it is computed in windows, not on a grid"}

    def _read_blocks(self) -> None:
        super()._read_blocks()
        self._set_stages(len(stage.blocks) for stage in self.module.layers)

    @property
    def _blocks(self) -> list[Any]:
        return [block for stage in self.module.layers for block in stage.blocks]

    def _pooling(self) -> Pooling:
        return Pooling(self.module.head.global_pool.pool_type or "none", self.num_prefix_tokens)

    def embed(self, inputs: Tensor) -> Tensor:
        return self.module.patch_embed(inputs).flatten(1, 2)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        features = self.module.norm(self._laid_out(tokens, self.depth - 1))
        return self.module.forward_head(features)  # type: ignore[no-any-return]

    def _patch_grid(self, inputs: Tensor | None) -> tuple[int, int]:
        return self.module.patch_embed.grid_size  # type: ignore[no-any-return]

    def _merging(self, layer: int) -> Any:
        return self.module.layers[self._stage(layer + 1)].downsample if self._ends_stage(layer) else None

    def embed_dim_at(self, layer: int) -> int:
        return int(self._blocks[layer].dim)

    def windows(self, layer: int) -> Windows:
        """Return the windows as the block makes them.

        The mask is the block's own: noted when it was built, or made anew in every forward (``dynamic_mask``). Some
        versions of timm halve an odd side downwards for the noted mask, and upwards when they merge: where it is of
        fewer windows than there are, it is repeated over them, so that a few patches see what they should not.
        """
        block, grid = self._blocks[layer], self.grid(layer=layer)
        if getattr(block, "dynamic_mask", False):  # as timm reads it: pickles of older versions lack it
            padded = (-(-side // window) * window for side, window in zip(grid, block.window_size, strict=True))
            mask = block.get_attn_mask(torch.zeros(1, *padded, 1))
        else:
            mask = block.attn_mask
        area = math.prod(block.window_size)
        hidden = torch.zeros(1, area, area, dtype=torch.bool) if mask is None else mask.cpu() != 0
        return shifted_windows(grid, block.window_size, block.shift_size, padded_first=False, hidden=hidden)

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return getattr(self._blocks[layer], name)  # type: ignore[no-any-return]


class TimmSwinV2(TimmSwin):
    """A timm ``SwinTransformerV2``: cosine attention, and norms at the end of a branch instead of its beginning.

    So ``norm1`` and ``norm2`` are what is added to the residual stream, and not features of the tokens: class
    activation maps look at the input of the last block instead, the last place before tokens mix. (At its output only
    a norm and the mean follow, where features times gradient is zero but for rounding.)
    """

    accepts = (v2.SwinTransformerV2,)
    modules = ("swin_transformer_v2",)
    parts = ((v2.SwinTransformerV2Block, v2.WindowAttention),)
    convert = v2.checkpoint_filter_fn
    cam_point = "resid_pre"
    unavailable_points = dict.fromkeys(("norm1", "norm2"), "its norms come after the branches, as attn and mlp")
    branch_point = "attn"

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return super()._hook_point(layer, {"attn": "norm1", "mlp": "norm2"}[name])

    def _operation_counts(self, layer: int | None) -> Mapping[str, int]:
        """Declared: the lengths of queries and keys are no norms, and the network that makes the position bias runs."""
        if layer is None:
            return super()._operation_counts(layer)
        return {"attention": 1, "norm": 2 + int(self._ends_stage(layer)), "activation": 3}


def _convnext_chain(model: Any) -> Chain:
    stages = [[f"stages.{n}.blocks.{m}" for m in range(len(stage.blocks))] for n, stage in enumerate(model.stages)]
    return by_stages(stages, [*([f"stages.{n}.downsample"] for n in range(1, len(stages))), ["norm_pre"]])


def _efficientnet_chain(model: Any) -> Chain:
    stages = [[f"blocks.{n}.{m}" for m in range(len(stage))] for n, stage in enumerate(model.blocks)]
    return by_stages(stages, [*[[] for _ in stages[1:]], ["conv_head", "bn2"]])


_FAMILIES: dict[type[nn.Module], tuple[Callable[[Any], Chain], Convert]] = {
    resnet.ResNet: (resnet_chain, lambda tensors, _: tensors),
    densenet.DenseNet: (dense_chain, lambda tensors, _: dict(densenet._filter_torchvision_pretrained(tensors))),
    convnext.ConvNeXt: (_convnext_chain, convnext.checkpoint_filter_fn),
    vgg.VGG: (by_convolutions, lambda tensors, _: dict(vgg._filter_fn(tensors))),
    efficientnet.EfficientNet: (_efficientnet_chain, lambda tensors, _: tensors),
}
"""A family's class: its chain, and how foreign checkpoints become timm's."""


def _of_family(model: nn.Module) -> tuple[Callable[[Any], Chain], Convert]:
    return next(entry for kind, entry in _FAMILIES.items() if isinstance(model, kind))


class TimmConv(ConvModel):
    """A timm ResNet (also Wide, ResNeXt, SE), DenseNet, ConvNeXt, VGG or EfficientNet, or a relative of one class.

    Where class activation maps look by default: after the last block of a ResNet or ConvNeXt, after the last
    normalised and rectified map of a DenseNet, after the convolution and activation that end the features of an
    EfficientNet, after the last ReLU of a VGG, before its pooling.
    """

    family = "timm"
    accepts: ClassVar[tuple[type[nn.Module], ...]] = tuple(_FAMILIES)
    modules: ClassVar[tuple[str, ...]] = ("resnet", "densenet", "convnext", "vgg", "efficientnet")
    left_out: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: Any, *, name: str = "", preprocess: Preprocess | None = None, **facts: Any) -> None:
        config = config_of(model)
        name = name or f"timm/{config.get('architecture') or type(model).__name__}"
        if not facts.get("headless") and isinstance(model.get_classifier(), nn.Identity):
            count_classes(name)  # refuses
        preprocess = preprocess or preprocess_of(model, getattr(model, "image_size", None))
        super().__init__(model, _of_family(model)[0](model), name=name, preprocess=preprocess, **facts)
        names = config.get("label_names") or imagenet_names(self.num_classes)
        self._set_classes(self.num_classes, self.class_names, names)

    @staticmethod
    def convert(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """Turn a foreign checkpoint of the family into timm's."""
        return _of_family(model)[1](tensors, model)
