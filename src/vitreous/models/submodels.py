"""Views of a part of a model, or of a model with something changed: sub-networks, single blocks, shuffled heads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.base import View
from vitreous.models.pooling import Pooling
from vitreous.models.structure import Weights, Windows

__all__ = ["BesideView", "LensView", "ShuffledView", "SubView"]


class SubView(View):
    """The part of a model from block ``first`` on, as a view of its own: ``f_l`` of the PLUS paper."""

    def __init__(self, whole: View, first: int, inputs: Tensor | None) -> None:
        if not 0 <= first < whole.depth:
            raise ModelError(f"layer {first} is outside 0..{whole.depth - 1}")
        self.whole, self.first = whole, first
        self.model, self.family = whole.model, whole.family
        self.name = f"{whole.name}[{first}:]"
        self.depth, self.width, self.heads = whole.depth - first, whole.width, whole.heads
        self.prefix, self.drops_tokens = whole.prefix, whole.drops_tokens
        self.preprocess, self.classes, self.labels = whole.preprocess, whole.classes, whole.labels
        self.attends, self.stream, self.rectifies = whole.attends, whole.stream, whole.rectifies
        self.cam_site = whole.cam_site
        self.unseen, self.branch_site = whole.unseen, whole.branch_site
        self.head_known, self.user = whole.head_known, whole.user
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
        if isinstance(self.whole, SubView):
            return self.whole.image_size
        return None if self._inputs is None else (self._inputs.shape[-2], self._inputs.shape[-1])

    def embed(self, inputs: Tensor) -> Tensor:
        return inputs

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.whole.block(layer + self.first, tokens, keep)

    def finish(self, tokens: Tensor) -> Tensor:
        return self.whole.finish(tokens)

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return self.whole.grid(self._inputs, layer + self.first)

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.whole.last_grid(self._inputs)

    def _site(self, layer: int, name: str) -> nn.Module:
        return self.whole.site(layer + self.first, name)

    def calls(self, layer: int | None) -> Mapping[str, int]:
        return self.whole.calls(None if layer is None else layer + self.first)

    def width_at(self, layer: int) -> int:
        return self.whole.width_at(layer + self.first)

    def windows(self, layer: int) -> Windows | None:
        return self.whole.windows(layer + self.first)

    def is_plain(self, layer: int) -> bool:
        return self.whole.is_plain(layer + self.first)

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        return self.whole.branch(layer + self.first, name)

    def describe_deviation(self, layer: int) -> str:
        return self.whole.describe_deviation(layer + self.first)

    def weights(self, layer: int) -> Weights:
        return self.whole.weights(layer + self.first)

    def prove(self, inputs: Tensor) -> None:
        """The whole model is proven with images; what it computes of tokens has no other forward to agree with."""

    def check_inputs(self, inputs: Tensor) -> None:
        width = self.width_at(0)
        if inputs.ndim != 3 or inputs.shape[1] <= self.prefix or inputs.shape[2] != width:
            raise ModelError(f"{self.name} takes tokens [B, N, {width}], got {list(inputs.shape)}")
        if inputs.shape[0] == 0:
            raise ModelError("the batch is empty")


class LensView(SubView):
    """One block, and the model's head on the mean of all its output tokens, whatever the model itself reads.

    The head gets that mean in the place of every token it might look at, so that any pooling returns it. With ``each``
    it gets every token in turn, and the mean is that of the logits: the norm in front of the head comes first.
    """

    def __init__(self, whole: View, layer: int, each: bool = False) -> None:
        super().__init__(whole, layer, None)
        self.name, self.depth, self.stages, self.each = f"{whole.name}[{layer}]", 1, (), each

    def finish(self, tokens: Tensor) -> Tensor:
        if self.each:
            logits = self._read(tokens.flatten(0, 1).unsqueeze(1))
            return logits.reshape(*tokens.shape[:2], -1).mean(dim=1)
        return self._read(tokens.mean(dim=1, keepdim=True))

    def _read(self, token: Tensor) -> Tensor:
        patches = math.prod(self.whole.grid(layer=self.whole.depth - 1)) if self.whole.stages else 1
        return self.whole.finish(token.expand(-1, self.prefix + patches, -1))

    def check_inputs(self, inputs: Tensor) -> None:
        if inputs.ndim != 3:
            super().check_inputs(inputs)


class WholeView(SubView):
    """A whole model of which something is changed."""

    def __init__(self, whole: View) -> None:
        super().__init__(whole, 0, None)
        self.name, self.patches = whole.name, whole.patches

    def embed(self, inputs: Tensor) -> Tensor:
        return self.whole.embed(inputs)

    def grid(self, inputs: Tensor | None = None, layer: int | None = None) -> tuple[int, int]:
        return self.whole.grid(inputs) if layer is None else self.whole.grid(inputs, layer)

    def last_grid(self, inputs: Tensor | None = None) -> tuple[int, int]:
        return self.whole.last_grid(inputs)

    def check_inputs(self, inputs: Tensor) -> None:
        self.whole.check_inputs(inputs)

    def prove(self, inputs: Tensor) -> None:
        if self.user is None:
            self.whole.prove(inputs)


class ShuffledView(WholeView):
    """A whole model whose head gets the channels in a random order."""

    def __init__(self, whole: View, seed: int) -> None:
        super().__init__(whole)
        self.seed = seed

    def finish(self, tokens: Tensor) -> Tensor:
        order = torch.randperm(tokens.shape[-1], generator=torch.Generator().manual_seed(self.seed))
        return self.whole.finish(tokens[..., order.to(tokens.device)])


class BesideView(WholeView):
    """A whole model that runs a reference beside the images it is given: the last row of everything inside it.

    Its logits are those of the images alone.
    """

    def __init__(self, whole: View, reference: Tensor) -> None:
        super().__init__(whole)
        self.reference = reference

    def embed(self, inputs: Tensor) -> Tensor:
        return self.whole.embed(torch.cat([inputs, self.reference[None].to(inputs)]))

    def finish(self, tokens: Tensor) -> Tensor:
        return self.whole.finish(tokens)[:-1]
