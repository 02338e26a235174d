"""torchvision's ``VisionTransformer``: pre-norm blocks around ``nn.MultiheadAttention``, a class token, one grid.

torchvision's Swin, versions 1 and 2: windowed attention on grids that are halved from stage to stage.

torchvision computes on ``[B, H, W, C]``; here tokens are ``[B, N, C]`` between blocks. Blocks have one flat index over
all stages. The patch merging belongs to the last block of the stage before, so that the input of block ``l`` lies on
``grid(layer=l)``. Version 2 normalises after each branch: what is added to the residual stream is the norm's output.

torchvision's convolutional networks: which modules of each family make the chain of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import VGG, ConvNeXt, DenseNet, EfficientNet, ResNet
from torchvision.models.swin_transformer import (
    PatchMerging,
    PatchMergingV2,
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformer,
    SwinTransformerBlock,
    SwinTransformerBlockV2,
)
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from vitreous.errors import HeadError, ModelError
from vitreous.models.adapters.torchvision import describe, head_calls
from vitreous.models.base import VisionModel
from vitreous.models.class_names import check_count
from vitreous.models.cnn import Chain, ConvModel, by_convolutions, by_stages, dense
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Weights, Windows, shifted_windows

__all__ = [
    "KNOWN",
    "TorchvisionConv",
    "TorchvisionSwin",
    "TorchvisionViT",
]

_SITES = {"norm1": "ln_1", "attn": "self_attention", "norm2": "ln_2", "mlp": "mlp"}


class TorchvisionViT(VisionModel):
    """A torchvision ``VisionTransformer``, also with a convolutional stem or another head."""

    family = "torchvision"
    module: Any  # torch types the attributes of a module as tensors

    def __init__(
        self,
        model: VisionTransformer,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        self.has_known_head = not headless
        self.module = model
        self.name = name or f"torchvision/{type(model).__name__}"
        self._refuse_unknown_parts()
        self.depth, self.embed_dim = len(model.encoder.layers), model.hidden_dim
        self.num_heads = model.encoder.layers[0].num_heads
        self.num_prefix_tokens = 1
        self.pooling = Pooling("token", self.num_prefix_tokens)
        self.num_classes = 0 if headless else classes_of(self.name, model.heads)
        usual, known = describe(name, "torchvision/vit_b_16", model.image_size)
        self.class_names = labels_of(self.name, self.num_classes, class_names, known)
        self.preprocess = preprocess or usual

    def _refuse_unknown_parts(self) -> None:
        for layer, block in enumerate(self.module.encoder.layers):
            attention = getattr(block, "self_attention", None)
            if type(block) is not EncoderBlock or type(attention) is not nn.MultiheadAttention:
                raise ModelError(
                    f"{self.name}: block {layer} is a {type(block).__name__} with {type(attention).__name__}; "
                    "only torchvision's own blocks are supported"
                )
        if self.module.image_size < self.module.patch_size:
            size, patch = self.module.image_size, self.module.patch_size
            raise ModelError(f"{self.name}: an image of {size} pixels holds no patch of {patch}")

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.module
        first = model.class_token.expand(inputs.shape[0], -1, -1)
        tokens = torch.cat([first, model._process_input(inputs)], dim=1)
        return model.encoder.dropout(tokens + model.encoder.pos_embedding)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.module.encoder.layers[layer](tokens)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.module.heads(self.module.encoder.ln(tokens)[:, 0])  # type: ignore[no-any-return]

    # -- places ----------------------------------------------------------------------------------------

    def get_block(self, layer: int) -> nn.Module:
        return self.module.encoder.layers[layer]  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        side = self.module.image_size // self.module.patch_size
        return side, side

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return getattr(self.module.encoder.layers[layer], _SITES[name])  # type: ignore[no-any-return]

    def weights(self, layer: int) -> Weights:
        block = self.module.encoder.layers[layer]
        return Weights.of(block.ln_1, block.self_attention.out_proj.weight, block.ln_2)  # read there, and never run

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return head_calls(self.module.encoder.ln, self.module.heads)
        return {"attention": 1, "norm": 2, "activation": 1}

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        check_size(self, inputs, (self.module.image_size, self.module.image_size))


def classes_of(name: str, head: nn.Module) -> int:
    """Return how many logits a head has, which may have been exchanged for another."""
    parts = list(head.modules())
    linear = [module for module in parts if isinstance(module, nn.Linear)]
    if not linear:
        raise ModelError(f"{name} has no classifier; give num_classes= and a checkpoint with a head")
    if any(not type(module).__module__.startswith("torch.nn.modules.") for module in parts):
        raise HeadError(f"{name} has a head of its own, {type(head).__name__}")
    return linear[-1].out_features


def labels_of(name: str, classes: int, given: list[str] | None, known: list[str]) -> list[str] | None:
    """Return the labels given, or ImageNet's if there are as many classes."""
    check_count(name, given, classes)
    return given or (known if len(known) == classes else None)


def check_size(model: VisionModel, inputs: Tensor, size: tuple[int, int]) -> None:
    """Refuse inputs of another size than the model's."""
    if tuple(inputs.shape[-2:]) != size:
        raise ModelError(f"{model.name} takes images [B, 3, {size[0]}, {size[1]}], got {list(inputs.shape)}")


_KNOWN = {
    (SwinTransformerBlock, ShiftedWindowAttention, PatchMerging),
    (SwinTransformerBlockV2, ShiftedWindowAttentionV2, PatchMergingV2),
}


class TorchvisionSwin(VisionModel):
    """A torchvision ``SwinTransformer``, version 1 or 2.

    The module takes images of any size and does not know its own: that is ``preprocess.size``, from the weights of its
    name, from ``img_size=``, or from an attribute ``image_size`` of the module such as torchvision's ViT has.
    """

    family = "torchvision"
    module: Any  # torch types the attributes of a module as tensors
    attention = "windowed"
    can_drop_tokens = False
    num_prefix_tokens = 0

    def __init__(
        self,
        model: SwinTransformer,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        self.has_known_head = not headless
        self.module = model
        self.name = name or f"torchvision/{type(model).__name__}"
        stages = model.features[1::2]
        ends = [sum(len(stage) for stage in stages[: number + 1]) for number in range(len(stages))]
        self.stages = tuple(range(end - len(stage), end) for end, stage in zip(ends, stages, strict=True))
        self.depth = ends[-1]
        self._refuse_unknown_parts()
        self._after = isinstance(self._block(0), SwinTransformerBlockV2)
        self.cam_point, self.branch_point = ("resid_pre", "attn") if self._after else ("norm2", "norm1")
        if self._after:
            self.unavailable_points = dict.fromkeys(
                ("norm1", "norm2"), "its norms come after the branches, as attn and mlp"
            )
        self.embed_dim, self.num_heads = model.features[0][0].out_channels, self._block(0).attn.num_heads
        self.pooling = Pooling("avg", self.num_prefix_tokens)
        self.num_classes = 0 if headless else classes_of(self.name, model.head)
        stand_in = "torchvision/swin_v2_t" if self._after else "torchvision/swin_t"
        usual, known = describe(name, stand_in, getattr(model, "image_size", None))
        self.class_names = labels_of(self.name, self.num_classes, class_names, known)
        self.preprocess = preprocess or usual
        if 0 in self.grid():
            raise ModelError(f"{self.name}: an image of {self.preprocess.size} holds no patch of {self._patch}")

    def _refuse_unknown_parts(self) -> None:
        merging = [type(self._merging(stage.stop - 1)) for stage in self.stages[:-1]]
        for layer in range(self.depth):
            block = self._block(layer)
            attention = type(getattr(block, "attn", None))
            if not any((type(block), attention) == known[:2] and {*merging} <= {known[2]} for known in _KNOWN):
                names = ", ".join(sorted({kind.__name__ for kind in (attention, *merging)}))
                raise ModelError(
                    f"{self.name}: block {layer} is a {type(block).__name__} with {names}; "
                    "only torchvision's own blocks are supported"
                )

    def _stage(self, layer: int) -> int:
        return next(number for number, stage in enumerate(self.stages) if layer in stage)

    def _block(self, layer: int) -> Any:
        stage = self._stage(layer)
        return self.module.features[1 + 2 * stage][layer - self.stages[stage].start]

    def _merging(self, layer: int) -> Any:
        """Return the patch merging that follows a block, or None."""
        stage = self._stage(layer)
        last = layer == self.stages[stage][-1] and stage + 1 < len(self.stages)
        return self.module.features[2 + 2 * stage] if last else None

    @property
    def _patch(self) -> tuple[int, int]:
        height, width = self.module.features[0][0].stride
        return height, width

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return self.module.features[0](inputs).flatten(1, 2)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        grid, merging = self._block(layer)(self._laid_out(tokens, layer)), self._merging(layer)
        return (grid if merging is None else merging(grid)).flatten(1, 2)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        model = self.module
        normed = model.norm(self._laid_out(tokens, self.depth - 1))
        return model.head(model.flatten(model.avgpool(model.permute(normed))))  # type: ignore[no-any-return]

    def _laid_out(self, tokens: Tensor, layer: int) -> Tensor:
        return tokens.reshape(len(tokens), *self.grid(layer=layer), -1)

    # -- places ----------------------------------------------------------------------------------------

    def get_block(self, layer: int) -> nn.Module:
        return self._block(layer)  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = (side // patch for side, patch in zip(self.preprocess.size, self._patch, strict=True))
        for _ in range(self._stage(layer)):  # odd grids are padded before they are halved
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width

    def windows(self, layer: int) -> Windows:
        attention, grid = self._block(layer).attn, self.grid(layer=layer)
        sides = zip(grid, attention.window_size, attention.shift_size, strict=True)
        shift = [0 if window >= side else by for side, window, by in sides]
        return shifted_windows(grid, attention.window_size, shift)

    def embed_dim_at(self, layer: int) -> int:
        return int(self._block(layer).norm1.normalized_shape[0])

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        place = {"attn": "norm1", "mlp": "norm2"}[name] if self._after else name
        return getattr(self._block(layer), place)  # type: ignore[no-any-return]

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        """Return what rules see; version 2 computes its position bias each time, with a ReLU and a sigmoid."""
        if layer is None:
            return head_calls(self.module.norm, self.module.head)
        return {
            "attention": 1,
            "norm": 2 + int(self._merging(layer) is not None),
            "activation": 3 if self._after else 1,
        }

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        try:
            check_size(self, inputs, tuple(self.preprocess.size))  # type: ignore[arg-type]
        except ModelError as error:
            raise ModelError(f"{error}; give img_size= to load, or preprocess= to view") from None


def _convnext(model: Any) -> Chain:
    """Stages at odd places of ``features``, what makes the next stage's map at even ones."""
    count = len(model.features)
    stages = [[f"features.{n}.{m}" for m in range(len(model.features[n]))] for n in range(1, count, 2)]
    return by_stages(stages, [[f"features.{n}"] if n < count else [] for n in range(2, count + 2, 2)])


def _efficientnet(model: Any) -> Chain:
    """Stages between the first and the last of ``features``, which are single convolutions."""
    last = len(model.features) - 1
    stages = [[f"features.{n}.{m}" for m in range(len(model.features[n]))] for n in range(1, last)]
    return by_stages(stages, [*[[] for _ in stages[1:]], [f"features.{last}"]])


def _resnet(model: Any) -> Chain:
    stages = [[f"layer{n}.{m}" for m in range(len(getattr(model, f"layer{n}")))] for n in range(1, 5)]
    return by_stages(stages, [[] for _ in stages])


KNOWN: dict[type[nn.Module], tuple[Callable[[Any], Chain], str]] = {
    ResNet: (_resnet, "resnet50"),
    DenseNet: (dense, "densenet121"),
    ConvNeXt: (_convnext, "convnext_tiny"),
    VGG: (by_convolutions, "vgg16"),
    EfficientNet: (_efficientnet, "efficientnet_b0"),
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

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        chain, stand_in = next(known for kind, known in KNOWN.items() if isinstance(model, kind))
        usual, known = describe(name, f"torchvision/{stand_in}", getattr(model, "image_size", None))
        name = name or f"torchvision/{type(model).__name__}"
        super().__init__(model, chain(model), name, class_names, preprocess or usual, headless=headless)
        self.class_names = labels_of(self.name, self.num_classes, class_names, known)
