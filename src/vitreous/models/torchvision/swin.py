"""torchvision's Swin, versions 1 and 2: windowed attention on grids that are halved from stage to stage.

torchvision computes on ``[B, H, W, C]``; here tokens are ``[B, N, C]`` between blocks. Blocks have one flat index over
all stages. The patch merging belongs to the last block of the stage before, so that the input of block ``l`` lies on
``grid(layer=l)``. Version 2 normalises after each branch: what is added to the residual stream is the norm's output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torchvision.models.swin_transformer import (
    PatchMerging,
    PatchMergingV2,
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformer,
    SwinTransformerBlock,
    SwinTransformerBlockV2,
)

from vitreous.errors import ModelError
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.torchvision.adapter import describe, head_calls
from vitreous.models.torchvision.vit import check_size, classes_of, labels_of
from vitreous.models.view import View
from vitreous.models.windows import Windows, shifted_windows

__all__ = ["TorchvisionSwin"]

_KNOWN = {
    (SwinTransformerBlock, ShiftedWindowAttention, PatchMerging),
    (SwinTransformerBlockV2, ShiftedWindowAttentionV2, PatchMergingV2),
}


class TorchvisionSwin(View):
    """A torchvision ``SwinTransformer``, version 1 or 2.

    The module takes images of any size and does not know its own: that is ``preprocess.size``, from the weights of its
    name, from ``img_size=``, or from an attribute ``image_size`` of the module such as torchvision's ViT has.
    """

    family = "torchvision"
    model: Any  # torch types the attributes of a module as tensors
    attends = "windows"
    drops_tokens = False
    prefix = 0

    def __init__(
        self,
        model: SwinTransformer,
        name: str | None = None,
        labels: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        self.head_known = not headless
        self.model = model
        self.name = name or f"torchvision/{type(model).__name__}"
        stages = model.features[1::2]
        ends = [sum(len(stage) for stage in stages[: number + 1]) for number in range(len(stages))]
        self.stages = tuple(range(end - len(stage), end) for end, stage in zip(ends, stages, strict=True))
        self.depth = ends[-1]
        self._refuse_unknown_parts()
        self._after = isinstance(self._block(0), SwinTransformerBlockV2)
        self.cam_site, self.branch_site = ("input", "attn") if self._after else ("norm2", "norm1")
        if self._after:
            self.unseen = dict.fromkeys(("norm1", "norm2"), "its norms come after the branches, as attn and mlp")
        self.width, self.heads = model.features[0][0].out_channels, self._block(0).attn.num_heads
        self.pooling = Pooling("avg", self.prefix)
        self.classes = 0 if headless else classes_of(self.name, model.head)
        stand_in = "torchvision/swin_v2_t" if self._after else "torchvision/swin_t"
        usual, known = describe(name, stand_in, getattr(model, "image_size", None))
        self.labels = labels_of(self.name, self.classes, labels, known)
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
        return self.model.features[1 + 2 * stage][layer - self.stages[stage].start]

    def _merging(self, layer: int) -> Any:
        """Return the patch merging that follows a block, or None."""
        stage = self._stage(layer)
        last = layer == self.stages[stage][-1] and stage + 1 < len(self.stages)
        return self.model.features[2 + 2 * stage] if last else None

    @property
    def _patch(self) -> tuple[int, int]:
        high, wide = self.model.features[0][0].stride
        return high, wide

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return self.model.features[0](inputs).flatten(1, 2)  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        grid, merging = self._block(layer)(self._laid_out(tokens, layer)), self._merging(layer)
        return (grid if merging is None else merging(grid)).flatten(1, 2)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        model = self.model
        normed = model.norm(self._laid_out(tokens, self.depth - 1))
        return model.head(model.flatten(model.avgpool(model.permute(normed))))  # type: ignore[no-any-return]

    def _laid_out(self, tokens: Tensor, layer: int) -> Tensor:
        return tokens.reshape(len(tokens), *self.grid(layer=layer), -1)

    # -- places ----------------------------------------------------------------------------------------

    def block_at(self, layer: int) -> nn.Module:
        return self._block(layer)  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        high, wide = (side // patch for side, patch in zip(self.preprocess.size, self._patch, strict=True))
        for _ in range(self._stage(layer)):  # odd grids are padded before they are halved
            high, wide = (high + 1) // 2, (wide + 1) // 2
        return high, wide

    def windows(self, layer: int) -> Windows:
        attention, grid = self._block(layer).attn, self.grid(layer=layer)
        sides = zip(grid, attention.window_size, attention.shift_size, strict=True)
        shift = [0 if window >= side else by for side, window, by in sides]
        return shifted_windows(grid, attention.window_size, shift)

    def width_at(self, layer: int) -> int:
        return int(self._block(layer).norm1.normalized_shape[0])

    def _site(self, layer: int, name: str) -> nn.Module:
        place = {"attn": "norm1", "mlp": "norm2"}[name] if self._after else name
        return getattr(self._block(layer), place)  # type: ignore[no-any-return]

    def calls(self, layer: int | None) -> Mapping[str, int]:
        """Return what rules see; version 2 computes its position bias each time, with a ReLU and a sigmoid."""
        if layer is None:
            return head_calls(self.model.norm, self.model.head)
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
