"""What the adapters of several libraries share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitreous.errors import HeadError, ModelError, one_line
from vitreous.models.base import VisionModel
from vitreous.models.checkpoints import Checkpoint, classes_in


def count_classes(name: str, *heads: nn.Module | None) -> int:
    """Return how many classes linear heads tell apart, whatever the model was built for."""
    if not heads or any(head is None or isinstance(head, nn.Identity) for head in heads):
        raise ModelError(f"{name} has no classifier; give num_classes= and a checkpoint with a head")
    if not all(type(head) is nn.Linear for head in heads):
        raise HeadError(f"{name} has a head of its own, {type(heads[0]).__name__}")
    return int(heads[0].out_features)  # type: ignore[union-attr,arg-type]


def read_checkpoint(path: str | Path | None, num_classes: int | None) -> tuple[Checkpoint | None, int | None]:
    """Return a checkpoint if there is one, and the number of classes: that of its head unless another is given."""
    if path is None:
        return None, num_classes
    checkpoint = Checkpoint.read(path)
    return checkpoint, classes_in(checkpoint.tensors) if num_classes is None else num_classes


def size_pair(size: Any) -> tuple[int, int]:
    """Return height and width of a size that is given as one number or as two."""
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def first_line(error: Exception) -> str:
    """Return the first line of what another library raised."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])


class StagedModel(VisionModel):
    """Windowed attention on grids that are halved from stage to stage, as in every Swin.

    Blocks have one flat index over all stages, and tokens are always ``[B, N, C]`` between them. The merging of patches
    that opens a stage is taken as the end of the block before it, so that the input of block l lies on
    ``grid(layer=l)``.
    """

    attention = "windowed"
    can_drop_tokens = False

    def _set_stages(self, lengths: Iterable[int]) -> None:
        self.stages = tuple(range(start, stop) for start, stop in pairwise(accumulate(lengths, initial=0)))

    def _patch_grid(self, inputs: Tensor | None) -> Iterator[int] | tuple[int, int]:
        """Return the grid that images are cut into."""
        raise NotImplementedError

    def _merging(self, layer: int) -> Any:
        """Return the module that merges patches after a block; ``None`` where nothing does."""
        raise NotImplementedError

    def _stage(self, layer: int) -> int:
        return next(index for index, layers in enumerate(self.stages) if layer in layers)

    def _ends_stage(self, layer: int) -> bool:
        return any(stage.stop == layer + 1 for stage in self.stages[:-1])

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = self._patch_grid(inputs)
        for _ in range(self._stage(layer)):
            height, width = (height + 1) // 2, (width + 1) // 2  # an odd side is padded before it is halved
        return int(height), int(width)

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        if keep is not None:
            self.select_tokens(tokens, keep)  # refuses
        features, merging = self.get_block(layer)(self._laid_out(tokens, layer)), self._merging(layer)
        return (features if merging is None else merging(features)).flatten(1, 2)  # type: ignore[no-any-return]

    def _laid_out(self, tokens: Tensor, layer: int) -> Tensor:
        return tokens.reshape(len(tokens), *self.grid(layer=layer), -1)
