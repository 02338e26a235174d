"""timm's Swin family: windows that shift, stages that halve the grid.

timm's convolutional networks: which modules of each family make the chain of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import timm.data
import torch
from timm.models import convnext, densenet, efficientnet, resnet, vgg
from timm.models import swin_transformer as v1
from timm.models import swin_transformer_v2 as v2
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.adapters.timm_common import TimmModel, imagenet_labels, norms
from vitreous.models.cnn import Chain, ConvModel, by_convolutions, by_stages, dense
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Windows, shifted_windows
from vitreous.models.transforms import timm_preprocess

__all__ = [
    "TimmConv",
    "TimmSwin",
    "TimmSwinV2",
]


class TimmSwin(TimmModel):
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
    attention = "windowed"
    can_drop_tokens = False
    cam_point = "norm2"
    unavailable_points: Mapping[str, str] = {"attn": "it is computed in windows, not on a grid"}
    bias_activations = 0
    """Activations in the network that makes the position bias; it runs in every forward."""

    def __init__(self, model: nn.Module, **facts: Any) -> None:
        super().__init__(model, **facts)
        ends = accumulate((len(stage.blocks) for stage in self.module.layers), initial=0)
        self.stages = tuple(range(*pair) for pair in pairwise(ends))

    @property
    def _blocks(self) -> list[Any]:
        return [block for stage in self.module.layers for block in stage.blocks]

    def _pooling(self) -> Pooling:
        return Pooling(self.module.head.global_pool.pool_type or "none", self.num_prefix_tokens)

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return self.module.patch_embed(inputs).flatten(1, 2)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            self.select_tokens(tokens, keep)  # refuses
        laid_out = self._blocks[layer](self._laid_out(tokens, layer))
        for merging in self._merging(layer):
            laid_out = merging(laid_out)
        return laid_out.flatten(1, 2)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        features = self.module.norm(self._laid_out(tokens, self.depth - 1))
        return self.module.forward_head(features)  # type: ignore[no-any-return]

    # -- places ----------------------------------------------------------------------------------------

    def _stage(self, layer: int) -> int:
        return next(index for index, layers in enumerate(self.stages) if layer in layers)

    def _laid_out(self, tokens: Tensor, layer: int) -> Tensor:
        return tokens.reshape(len(tokens), *self.grid(layer=layer), -1)

    def _merging(self, layer: int) -> list[nn.Module]:
        """Return what makes the next stage's tokens after the last block of a stage; nothing after other blocks."""
        ends = layer + 1 < self.depth and self._stage(layer) != self._stage(layer + 1)
        return [self.module.layers[self._stage(layer + 1)].downsample] if ends else []

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = self.module.patch_embed.grid_size
        for _ in range(self._stage(layer)):
            height, width = (height + 1) // 2, (width + 1) // 2  # an odd side is padded before it is halved
        return int(height), int(width)

    def embed_dim_at(self, layer: int) -> int:
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

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return getattr(self._blocks[layer], name)  # type: ignore[no-any-return]

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return {"attention": 0, "norm": norms(self.module.norm, self.module.head), "activation": 0}
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
    cam_point = "resid_pre"
    unavailable_points = dict.fromkeys(("norm1", "norm2"), "its norms come after the branches, as attn and mlp")
    branch_point = "attn"
    bias_activations = 2

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return super()._hook_point(layer, {"attn": "norm1", "mlp": "norm2"}[name])


Convert = Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]]


def _convnext(model: Any) -> Chain:
    stages = [[f"stages.{n}.blocks.{m}" for m in range(len(stage.blocks))] for n, stage in enumerate(model.stages)]
    between = [[f"stages.{n}.downsample"] for n in range(1, len(stages))]
    return by_stages(stages, [*between, ["norm_pre"]])


def _efficientnet(model: Any) -> Chain:
    stages = [[f"blocks.{n}.{m}" for m in range(len(stage))] for n, stage in enumerate(model.blocks)]
    return by_stages(stages, [*[[] for _ in stages[1:]], ["conv_head", "bn2"]])


def _resnet(model: Any) -> Chain:
    stages = [[f"layer{n}.{m}" for m in range(len(getattr(model, f"layer{n}")))] for n in range(1, 5)]
    return by_stages(stages, [[] for _ in stages])


def _as_it_is(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return tensors


def _of_densenet(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return dict(densenet._filter_torchvision_pretrained(tensors))


def _of_vgg(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    return dict(vgg._filter_fn(tensors))


_FAMILIES: dict[type[nn.Module], tuple[Callable[[Any], Chain], Convert]] = {
    resnet.ResNet: (_resnet, _as_it_is),
    densenet.DenseNet: (dense, _of_densenet),
    convnext.ConvNeXt: (_convnext, convnext.checkpoint_filter_fn),
    vgg.VGG: (by_convolutions, _of_vgg),
    efficientnet.EfficientNet: (_efficientnet, _as_it_is),
}
"""A family's class: its chain, and how foreign checkpoints become timm's."""


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

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        config = getattr(model, "pretrained_cfg", None) or {}
        name = name or f"timm/{config.get('architecture') or type(model).__name__}"
        if not headless and isinstance(model.get_classifier(), nn.Identity):  # type: ignore[operator]
            raise ModelError(f"{name} has no classifier; give num_classes= and a checkpoint with a head")
        chain = next(chain for kind, (chain, _) in _FAMILIES.items() if isinstance(model, kind))(model)
        preprocess = preprocess or _preprocess(model)
        super().__init__(model, chain, name, class_names, preprocess, headless=headless)
        self.class_names = class_names or config.get("label_names") or imagenet_labels(self.num_classes)

    @staticmethod
    def convert(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """Turn a foreign checkpoint of the family into timm's."""
        return next(convert for kind, (_, convert) in _FAMILIES.items() if isinstance(model, kind))(tensors, model)


def _preprocess(model: Any) -> Preprocess:
    config = timm.data.resolve_model_data_config(model)
    size = getattr(model, "image_size", None)
    return timm_preprocess(config if size is None else {**config, "input_size": (3, *size)})
