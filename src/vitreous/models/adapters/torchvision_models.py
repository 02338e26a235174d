"""torchvision's ``VisionTransformer``, its Swins, and which modules of its convolutional networks make the chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import VGG, ConvNeXt, DenseNet, EfficientNet, ResNet
from torchvision.models import swin_transformer as swin
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from vitreous.errors import HeadError
from vitreous.models.adapters import LibraryModel, StagedModel, count_classes
from vitreous.models.adapters.torchvision import describe
from vitreous.models.base import VisionModel
from vitreous.models.cnn import Chain, ConvModel, by_convolutions, by_stages, dense_chain, resnet_chain
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Weights, Windows, shifted_windows

_POINTS = {"norm1": "ln_1", "attn": "self_attention", "norm2": "ln_2", "mlp": "mlp"}


class TorchvisionModel(LibraryModel):
    """A transformer of torchvision, which knows neither its name nor its preprocessing."""

    family = "torchvision"
    parts_in_words = "torchvision's own blocks"
    stand_in: str
    """The model whose weights tell what a model in hand does not."""

    def _usual_names(self, count: int) -> list[str] | None:
        return describe(self.name, self.stand_in)[1]

    def _usual_preprocess(self) -> Preprocess:
        return describe(self.name, self.stand_in, getattr(self.module, "image_size", None))[0]


class TorchvisionViT(TorchvisionModel):
    """A ``VisionTransformer``: pre-norm blocks around ``nn.MultiheadAttention``; also with a convolutional stem."""

    parts = ((EncoderBlock, nn.MultiheadAttention),)
    stand_in = "torchvision/vit_b_16"

    def _read_blocks(self) -> None:
        model = self.module
        self._refuse_unknown_blocks(model.encoder.layers, "self_attention")
        self.depth, self.embed_dim = len(model.encoder.layers), model.hidden_dim
        self.num_heads = model.encoder.layers[0].num_heads
        self.num_prefix_tokens = 1
        self.pooling = Pooling("token", self.num_prefix_tokens)

    def _count_classes(self) -> int:
        return _classes_of(self.name, self.module.heads)

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.module
        first = model.class_token.expand(inputs.shape[0], -1, -1)
        tokens = torch.cat([first, model._process_input(inputs)], dim=1)
        return model.encoder.dropout(tokens + model.encoder.pos_embedding)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.module.encoder.layers[layer](tokens)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.module.heads(self.module.encoder.ln(tokens)[:, 0])  # type: ignore[no-any-return]

    def get_block(self, layer: int) -> nn.Module:
        return self.module.encoder.layers[layer]  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        side = self.module.image_size // self.module.patch_size
        return side, side

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return getattr(self.module.encoder.layers[layer], _POINTS[name])  # type: ignore[no-any-return]

    def weights(self, layer: int) -> Weights:
        block = self.module.encoder.layers[layer]
        return Weights.of(block.ln_1, block.self_attention.out_proj.weight, block.ln_2)  # read there, and never run

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        self._check_size(inputs, (self.module.image_size,) * 2)


def _classes_of(name: str, head: nn.Module) -> int:
    """Return how many logits a head of torch's own layers has, which may have been exchanged for another."""
    parts = list(head.modules())
    linear = [module for module in parts if isinstance(module, nn.Linear)]
    if linear and any(not type(module).__module__.startswith("torch.nn.modules.") for module in parts):
        raise HeadError(f"{name} has a head of its own, {type(head).__name__}")
    return count_classes(name, *linear[-1:])


_PARTS = {
    swin.SwinTransformerBlock: (swin.ShiftedWindowAttention, swin.PatchMerging),
    swin.SwinTransformerBlockV2: (swin.ShiftedWindowAttentionV2, swin.PatchMergingV2),
}
"""By class of block, its attention and what merges patches after a stage."""


class TorchvisionSwin(TorchvisionModel, StagedModel):
    """A ``SwinTransformer``, version 1 or 2, which normalises after each branch: what is added is the norm's output.

    The module takes images of any size and does not know its own: that is ``preprocess.size``, from the weights of its
    name, from ``img_size=``, or from an attribute ``image_size`` of the module such as torchvision's ViT has.
    """

    num_prefix_tokens = 0

    def _read_blocks(self) -> None:
        features = self.module.features
        self._set_stages(len(stage) for stage in features[1::2])
        self.depth = self.stages[-1].stop
        self._refuse_unknown_parts()
        self._after = isinstance(self.get_block(0), swin.SwinTransformerBlockV2)
        self.cam_point, self.branch_point = ("resid_pre", "attn") if self._after else ("norm2", "norm1")
        if self._after:
            reason = "its norms come after the branches, as attn and mlp"
            self.unavailable_points = dict.fromkeys(("norm1", "norm2"), reason)
        self.embed_dim, self.num_heads = features[0][0].out_channels, self.get_block(0).attn.num_heads
        self.pooling = Pooling("avg", self.num_prefix_tokens)

    def _refuse_unknown_parts(self) -> None:
        merging = {type(self._merging(stage.stop - 1)) for stage in self.stages[:-1]}
        for layer in range(self.depth):
            block = self.get_block(layer)
            attention = type(getattr(block, "attn", None))
            if not any(type(block) is kind and {attention, *merging} <= {*parts} for kind, parts in _PARTS.items()):
                self._refuse_block(layer, type(block), attention, *merging)

    @property
    def stand_in(self) -> str:  # type: ignore[override]
        """Of the same version."""
        return "torchvision/swin_v2_t" if self._after else "torchvision/swin_t"

    def _count_classes(self) -> int:
        return _classes_of(self.name, self.module.head)

    def get_block(self, layer: int) -> Any:
        stage = self._stage(layer)
        return self.module.features[1 + 2 * stage][layer - self.stages[stage].start]

    def _merging(self, layer: int) -> Any:
        return self.module.features[2 + 2 * self._stage(layer)] if self._ends_stage(layer) else None

    def embed(self, inputs: Tensor) -> Tensor:
        return self.module.features[0](inputs).flatten(1, 2)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        model = self.module
        normed = model.norm(self._laid_out(tokens, self.depth - 1))
        return model.head(model.flatten(model.avgpool(model.permute(normed))))  # type: ignore[no-any-return]

    def _patch_grid(self, inputs: Tensor | None) -> tuple[int, int]:
        height, width = self.preprocess.size
        patch = self.module.features[0][0].stride
        return height // patch[0], width // patch[1]

    def windows(self, layer: int) -> Windows:
        attention, grid = self.get_block(layer).attn, self.grid(layer=layer)
        sides = zip(grid, attention.window_size, attention.shift_size, strict=True)
        shift = [0 if window >= side else by for side, window, by in sides]
        return shifted_windows(grid, attention.window_size, shift)

    def embed_dim_at(self, layer: int) -> int:
        return int(self.get_block(layer).norm1.normalized_shape[0])

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        attribute = {"attn": "norm1", "mlp": "norm2"}[name] if self._after else name
        return getattr(self.get_block(layer), attribute)  # type: ignore[no-any-return]

    def _operation_counts(self, layer: int | None) -> Mapping[str, int]:
        """Declared for version 2, which makes its position bias of weights alone: with a ReLU and a sigmoid."""
        if layer is None or not self._after:
            return super()._operation_counts(layer)
        return {"attention": 1, "norm": 2 + int(self._ends_stage(layer)), "activation": 3}

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        self._check_size(inputs, advice="; give img_size= to load, or preprocess= to wrap")


def _convnext_chain(model: Any) -> Chain:
    """Stages at odd places of ``features``, what makes the next stage's map at even ones."""
    count = len(model.features)
    stages = [[f"features.{n}.{m}" for m in range(len(model.features[n]))] for n in range(1, count, 2)]
    return by_stages(stages, [[f"features.{n}"] if n < count else [] for n in range(2, count + 2, 2)])


def _efficientnet_chain(model: Any) -> Chain:
    """Stages between the first and the last of ``features``, which are single convolutions."""
    last = len(model.features) - 1
    stages = [[f"features.{n}.{m}" for m in range(len(model.features[n]))] for n in range(1, last)]
    return by_stages(stages, [*[[] for _ in stages[1:]], [f"features.{last}"]])


_CHAINS: dict[type[nn.Module], tuple[Callable[[Any], Chain], str]] = {
    ResNet: (resnet_chain, "resnet50"),
    DenseNet: (dense_chain, "densenet121"),
    ConvNeXt: (_convnext_chain, "convnext_tiny"),
    VGG: (by_convolutions, "vgg16"),
    EfficientNet: (_efficientnet_chain, "efficientnet_b0"),
}
"""A family's class: its chain, and whose preprocessing a model in hand is taken to have."""


class TorchvisionConv(ConvModel):
    """A torchvision ResNet (also Wide and ResNeXt), DenseNet, ConvNeXt, VGG or EfficientNet.

    The module takes images of any size and does not know its own: that is ``preprocess.size``, from the weights of its
    name, from ``img_size=``, or from an attribute ``image_size`` of the module. Class activation maps look where those
    of timm's families do: after the last block of a ResNet or ConvNeXt, after the convolution and activation that end
    the features of an EfficientNet, after the last ReLU of a VGG, before its pooling; and after the last norm of a
    DenseNet. The ReLU that follows it is no module here, unlike in timm, and belongs to the head: a map that was
    rectified beforehand would be cut off from the gradient wherever it is zero.
    """

    family = "torchvision"

    def __init__(self, model: Any, *, name: str = "", preprocess: Preprocess | None = None, **facts: Any) -> None:
        chain, stand_in = next(entry for kind, entry in _CHAINS.items() if isinstance(model, kind))
        usual, names = describe(name, f"torchvision/{stand_in}", getattr(model, "image_size", None))
        facts |= {"preprocess": preprocess or usual, "usual_names": names}
        super().__init__(model, chain(model), name=name or f"torchvision/{type(model).__name__}", **facts)


FAMILIES: dict[type[nn.Module], Callable[..., VisionModel]] = {
    VisionTransformer: TorchvisionViT,
    swin.SwinTransformer: TorchvisionSwin,
    **dict.fromkeys(_CHAINS, TorchvisionConv),
}
