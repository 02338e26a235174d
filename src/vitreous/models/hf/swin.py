"""Hugging Face's Swin: windowed attention on grids that are halved from stage to stage.

Blocks have one flat index over all stages. The patch merging belongs to the last block of the stage before, so that
the input of block ``l`` lies on ``grid(layer=l)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from vitreous.errors import ModelError
from vitreous.models.hf.common import IMAGENET, HFView, first
from vitreous.models.windows import Windows, shifted_windows

__all__ = ["HFSwin"]


class HFSwin(HFView):
    """``SwinForImageClassification``: the mean over the last grid, after a norm.

    The size of the images is that of ``preprocess``: windows reach over the whole grid and the tokens of a later
    stage do not tell how it was cut.
    """

    usual = IMAGENET
    attends = "windows"
    drops_tokens = False
    cam_site = "norm2"
    places: ClassVar = {
        "norm1": ("layernorm_before",),
        "attn": ("drop_path",),  # where the windows have been put together again
        "norm2": ("layernorm_after",),
        "mlp": ("output", "mlp"),
    }

    def _blocks(self) -> list[Any]:
        stages = self.tower.encoder.layers
        blocks, ends, self._merging = [], [], {}
        for stage in stages:
            blocks.extend(stage.blocks)
            ends.append(len(blocks))
            if stage.downsample is not None:
                self._merging[len(blocks) - 1] = stage.downsample
        self.stages = tuple(range(start, stop) for start, stop in zip([0, *ends], ends, strict=False))
        self._refuse_padding()
        return blocks

    def _refuse_padding(self) -> None:
        """The model pads what is no whole patch; a grid below the window would leave it without position biases."""
        size, window = self.preprocess.size, self.tower.config.window_size
        if any(side % patch for side, patch in zip(size, self.patch, strict=True)):
            raise ModelError(f"{self.name}: an image of {size} cannot be cut into patches of {self.patch}")
        for stage in self.stages:
            high, wide = self.grid(layer=stage.start)
            if min(high, wide) < window:
                raise ModelError(f"{self.name}: a grid of {high} x {wide} is smaller than its windows of {window}")

    def _width_and_heads(self, config: Any) -> tuple[int, int]:
        return config.embed_dim, config.num_heads[0]

    def _reading(self) -> tuple[int, str]:
        return 0, "avg"

    # -- verbs and places ------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        interpolated = self.tower.config.use_absolute_embeddings and tuple(inputs.shape[-2:]) != self._own_size
        return first(self.tower.embeddings(inputs, interpolate_pos_encoding=interpolated))  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        grid = self.grid(layer=layer)
        tokens = first(self.blocks[layer](tokens, grid))
        merging = self._merging.get(layer)
        return tokens if merging is None else merging(tokens, grid)

    def finish(self, tokens: Tensor) -> Tensor:
        pooled = self.tower.pooler(self.tower.layernorm(tokens).transpose(1, 2))
        return self.model.classifier(pooled.flatten(1))  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        high, wide = super().grid(inputs)
        for stage in self.stages:
            if layer >= stage.stop:
                high, wide = (high + 1) // 2, (wide + 1) // 2
        return high, wide

    def windows(self, layer: int) -> Windows:
        block, grid = self.blocks[layer], self.grid(layer=layer)
        shift = 0 if min(grid) <= block.window_size else block.shift_size  # as the block finds out when it runs
        return shifted_windows(grid, (block.window_size,) * 2, (shift,) * 2)

    def width_at(self, layer: int) -> int:
        return int(self.blocks[layer].layernorm_before.normalized_shape[0])

    def calls(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return super().calls(layer)
        return {"attention": 1, "norm": 3 if layer in self._merging else 2, "activation": 1}

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        if tuple(inputs.shape[-2:]) != self.preprocess.size:
            high, wide = self.preprocess.size
            raise ModelError(f"{self.name} takes images [B, 3, {high}, {wide}], got {list(inputs.shape)}")
