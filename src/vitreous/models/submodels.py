"""Views of a part of a model, or of a model with something changed: sub-networks, single blocks, shuffled heads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.base import VisionModel
from vitreous.models.pooling import Pooling
from vitreous.models.structure import Weights, Windows

__all__ = ["ReferenceModel", "LogitLens", "PermutedHeadModel", "SubModel"]


class SubModel(VisionModel):
    """The part of a model from block ``first`` on, as a view of its own: ``f_l`` of the PLUS paper."""

    def __init__(self, whole: VisionModel, first: int, inputs: Tensor | None) -> None:
        if not 0 <= first < whole.depth:
            raise ModelError(f"layer {first} is outside 0..{whole.depth - 1}")
        self.whole, self.first = whole, first
        self.module, self.family = whole.module, whole.family
        self.name = f"{whole.name}[{first}:]"
        self.depth, self.embed_dim, self.num_heads = whole.depth - first, whole.embed_dim, whole.num_heads
        self.num_prefix_tokens, self.can_drop_tokens = whole.num_prefix_tokens, whole.can_drop_tokens
        self.preprocess, self.num_classes, self.class_names = whole.preprocess, whole.num_classes, whole.class_names
        self.attention, self.has_residual_stream, self.is_relu_only = (
            whole.attention,
            whole.has_residual_stream,
            whole.is_relu_only,
        )
        self.cam_point = whole.cam_point
        self.unavailable_points, self.branch_point = whole.unavailable_points, whole.branch_point
        self.has_known_head, self.source_model = whole.has_known_head, whole.source_model
        later = [range(max(0, s.start - first), s.stop - first) for s in whole.stages]
        self.stages = tuple(stage for stage in later if len(stage))
        self._inputs = inputs

    @property
    def pooling(self) -> Pooling:  # type: ignore[override]
        """That of the whole model, also after it was changed."""
        return self.whole.pooling

    @property
    def deviations(self) -> Mapping[str, str]:  # type: ignore[override]
        """Likewise."""
        return self.whole.deviations

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that the tokens are of, where someone told."""
        if isinstance(self.whole, SubModel):
            return self.whole.image_size
        return None if self._inputs is None else (self._inputs.shape[-2], self._inputs.shape[-1])

    def embed(self, inputs: Tensor) -> Tensor:
        return inputs

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.whole.forward_block(layer + self.first, tokens, keep)

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.whole.forward_head(tokens)

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return self.whole.grid(self._inputs, layer + self.first)

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.whole.last_grid(self._inputs)

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return self.whole.hook_point(layer + self.first, name)

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        return self.whole.operation_counts(None if layer is None else layer + self.first)

    def embed_dim_at(self, layer: int) -> int:
        return self.whole.embed_dim_at(layer + self.first)

    def windows(self, layer: int) -> Windows | None:
        return self.whole.windows(layer + self.first)

    def is_standard(self, layer: int) -> bool:
        return self.whole.is_standard(layer + self.first)

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        return self.whole.branch(layer + self.first, name)

    def describe_deviation(self, layer: int) -> str:
        return self.whole.describe_deviation(layer + self.first)

    def weights(self, layer: int) -> Weights:
        return self.whole.weights(layer + self.first)

    def verify(self, inputs: Tensor) -> None:
        """The whole model is proven with images; what it computes of tokens has no other forward to agree with."""

    def check_inputs(self, inputs: Tensor) -> None:
        width = self.embed_dim_at(0)
        if inputs.ndim != 3 or inputs.shape[1] <= self.num_prefix_tokens or inputs.shape[2] != width:
            raise ModelError(f"{self.name} takes tokens [B, N, {width}], got {list(inputs.shape)}")
        if inputs.shape[0] == 0:
            raise ModelError("the batch is empty")


class LogitLens(SubModel):
    """One block, and the model's head on the mean of all its output tokens, whatever the model itself reads.

    The head gets that mean in the place of every token it might look at, so that any pooling returns it. With ``each``
    it gets every token in turn, and the mean is that of the logits: the norm in front of the head comes first.
    """

    def __init__(self, whole: VisionModel, layer: int, each: bool = False) -> None:
        super().__init__(whole, layer, None)
        self.name, self.depth, self.stages, self.each = f"{whole.name}[{layer}]", 1, (), each

    def forward_head(self, tokens: Tensor) -> Tensor:
        if self.each:
            logits = self._read(tokens.flatten(0, 1).unsqueeze(1))
            return logits.reshape(*tokens.shape[:2], -1).mean(dim=1)
        return self._read(tokens.mean(dim=1, keepdim=True))

    def _read(self, token: Tensor) -> Tensor:
        patches = math.prod(self.whole.grid(layer=self.whole.depth - 1)) if self.whole.stages else 1
        return self.whole.forward_head(token.expand(-1, self.num_prefix_tokens + patches, -1))

    def check_inputs(self, inputs: Tensor) -> None:
        if inputs.ndim != 3:
            super().check_inputs(inputs)


class WholeModel(SubModel):
    """A whole model of which something is changed."""

    def __init__(self, whole: VisionModel) -> None:
        super().__init__(whole, 0, None)
        self.name, self.has_patch_embedding = whole.name, whole.has_patch_embedding

    def embed(self, inputs: Tensor) -> Tensor:
        return self.whole.embed(inputs)

    def grid(self, inputs: Tensor | None = None, layer: int | None = None) -> tuple[int, int]:
        return self.whole.grid(inputs) if layer is None else self.whole.grid(inputs, layer)

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.whole.last_grid(inputs)

    def check_inputs(self, inputs: Tensor) -> None:
        self.whole.check_inputs(inputs)

    def verify(self, inputs: Tensor) -> None:
        if self.source_model is None:
            self.whole.verify(inputs)


class PermutedHeadModel(WholeModel):
    """A whole model whose head gets the channels in a random order."""

    def __init__(self, whole: VisionModel, seed: int) -> None:
        super().__init__(whole)
        self.seed = seed

    def forward_head(self, tokens: Tensor) -> Tensor:
        order = torch.randperm(tokens.shape[-1], generator=torch.Generator().manual_seed(self.seed))
        return self.whole.forward_head(tokens[..., order.to(tokens.device)])


class ReferenceModel(WholeModel):
    """A whole model that runs a reference beside the images it is given: the last row of everything inside it.

    Its logits are those of the images alone.
    """

    def __init__(self, whole: VisionModel, reference: Tensor) -> None:
        super().__init__(whole)
        self.reference = reference

    def embed(self, inputs: Tensor) -> Tensor:
        return self.whole.embed(torch.cat([inputs, self.reference[None].to(inputs)]))

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.whole.forward_head(tokens)[:-1]
