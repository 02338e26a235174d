"""torchvision's ``VisionTransformer``: pre-norm blocks around ``nn.MultiheadAttention``, a class token, one grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from vitreous.errors import HeadError, ModelError
from vitreous.models.labels import check_count
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.torchvision.adapter import describe, head_calls
from vitreous.models.view import View
from vitreous.models.weights import Weights

__all__ = ["TorchvisionViT"]

_SITES = {"norm1": "ln_1", "attn": "self_attention", "norm2": "ln_2", "mlp": "mlp"}


class TorchvisionViT(View):
    """A torchvision ``VisionTransformer``, also with a convolutional stem or another head."""

    family = "torchvision"
    model: Any  # torch types the attributes of a module as tensors

    def __init__(
        self,
        model: VisionTransformer,
        name: str | None = None,
        labels: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        self.head_known = not headless
        self.model = model
        self.name = name or f"torchvision/{type(model).__name__}"
        self._refuse_unknown_parts()
        self.depth, self.width = len(model.encoder.layers), model.hidden_dim
        self.heads = model.encoder.layers[0].num_heads
        self.prefix = 1
        self.pooling = Pooling("token", self.prefix)
        self.classes = 0 if headless else classes_of(self.name, model.heads)
        usual, known = describe(name, "torchvision/vit_b_16", model.image_size)
        self.labels = labels_of(self.name, self.classes, labels, known)
        self.preprocess = preprocess or usual

    def _refuse_unknown_parts(self) -> None:
        for layer, block in enumerate(self.model.encoder.layers):
            attention = getattr(block, "self_attention", None)
            if type(block) is not EncoderBlock or type(attention) is not nn.MultiheadAttention:
                raise ModelError(
                    f"{self.name}: block {layer} is a {type(block).__name__} with {type(attention).__name__}; "
                    "only torchvision's own blocks are supported"
                )
        if self.model.image_size < self.model.patch_size:
            size, patch = self.model.image_size, self.model.patch_size
            raise ModelError(f"{self.name}: an image of {size} pixels holds no patch of {patch}")

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.model
        first = model.class_token.expand(inputs.shape[0], -1, -1)
        tokens = torch.cat([first, model._process_input(inputs)], dim=1)
        return model.encoder.dropout(tokens + model.encoder.pos_embedding)  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.model.encoder.layers[layer](tokens)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        return self.model.heads(self.model.encoder.ln(tokens)[:, 0])  # type: ignore[no-any-return]

    # -- places ----------------------------------------------------------------------------------------

    def block_at(self, layer: int) -> nn.Module:
        return self.model.encoder.layers[layer]  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        side = self.model.image_size // self.model.patch_size
        return side, side

    def _site(self, layer: int, name: str) -> nn.Module:
        return getattr(self.model.encoder.layers[layer], _SITES[name])  # type: ignore[no-any-return]

    def weights(self, layer: int) -> Weights:
        block = self.model.encoder.layers[layer]
        return Weights.of(block.ln_1, block.self_attention.out_proj.weight, block.ln_2)  # read there, and never run

    def calls(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return head_calls(self.model.encoder.ln, self.model.heads)
        return {"attention": 1, "norm": 2, "activation": 1}

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        check_size(self, inputs, (self.model.image_size, self.model.image_size))


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


def check_size(view: View, inputs: Tensor, size: tuple[int, int]) -> None:
    """Refuse inputs of another size than the model's."""
    if tuple(inputs.shape[-2:]) != size:
        raise ModelError(f"{view.name} takes images [B, 3, {size[0]}, {size[1]}], got {list(inputs.shape)}")
