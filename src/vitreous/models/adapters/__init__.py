"""What the adapters of several libraries share: how a model is loaded, what it is wrapped as, and Swin's stages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from vitreous.errors import HeadError, ModelError, nearest, one_line
from vitreous.models.base import VisionModel
from vitreous.models.checkpoints import Checkpoint, classes_in, fit
from vitreous.models.preprocess import Preprocess
from vitreous.models.registry import Adapter

Convert = Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]]
"""Turns a foreign table of weights into one of a library's names."""


def count_classes(name: str, *heads: nn.Module | None) -> int:
    """Return how many classes linear heads tell apart, whatever the model was built for."""
    if not heads or any(head is None or isinstance(head, nn.Identity) for head in heads):
        raise ModelError(f"{name} has no classifier; give num_classes= and a checkpoint with a head")
    if not all(type(head) is nn.Linear for head in heads):
        raise HeadError(f"{name} has a head of its own, {type(heads[0]).__name__}")
    return int(heads[0].out_features)  # type: ignore[union-attr,arg-type]


def size_pair(size: Any) -> tuple[int, int]:
    """Return height and width of a size that is given as one number or as two."""
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def first_line(error: Exception) -> str:
    """Return the first line of what another library raised."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0])


class LibraryAdapter(Adapter):
    """Names and weights of the families of one library."""

    def load(
        self, name: str, *, pretrained: bool | None = None, checkpoint: str | Path | None = None, **options: Any
    ) -> nn.Module:
        """Build a model: with its library's weights by default, with ``checkpoint`` if given, else untrained.

        It has ``num_classes`` classes, or those of the checkpoint's head, or its own, and takes images of ``img_size``;
        other options are those of the library.
        """
        options = {key: value for key, value in options.items() if value is not None}
        weights = None if checkpoint is None else Checkpoint.read(checkpoint)
        if weights is not None and (classes := classes_in(weights.tensors)) is not None:
            options.setdefault("num_classes", classes)
        model = self._build(name, weights is None and (pretrained is None or pretrained), options)
        if weights is not None:
            fit(model, weights, self._converter(model))
        return model.eval()

    @abstractmethod
    def _build(self, name: str, is_pretrained: bool, options: dict[str, Any]) -> nn.Module:
        """Build a model with its library's weights, or untrained."""

    def _converter(self, model: nn.Module) -> Convert | None:
        """Return what turns foreign checkpoints into those of the model's family."""
        return None

    def _unfetched(self, name: str, reason: str) -> ModelError:
        advice = "give checkpoint=FILE, or pretrained=False for an untrained model"
        return ModelError(f"could not fetch the weights of {self.prefix}/{name} ({reason}); {advice}")

    def _unknown(self, name: str) -> ModelError:
        full_name = f"{self.prefix}/{name}"
        return ModelError(f"unknown model {full_name!r}{nearest(full_name, (info.name for info in self.models()))}")


class LibraryModel(VisionModel):
    """A transformer of a library: what a family has to say are its blocks, its head and what its library notes."""

    module: Any  # torch types the attributes of a module as tensors
    parts: ClassVar[tuple[tuple[type[nn.Module], type[nn.Module]], ...]]
    """Pairs of block and attention that the family knows."""
    parts_in_words: ClassVar[str]

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        headless: bool = False,
    ) -> None:
        self.module, self.has_known_head = model, not headless
        self.name = name or f"{self.family}/{self._usual_name() or type(model).__name__}"
        self._read_blocks()
        count = 0 if headless else self._count_classes()
        self._set_classes(count, class_names, self._usual_names(count))
        self.preprocess = preprocess or self._usual_preprocess()
        if 0 in self.grid():
            raise ModelError(f"{self.name}: an image of {self.preprocess.size} holds no patch")

    @abstractmethod
    def _read_blocks(self) -> None:
        """Set depth, ``embed_dim``, ``num_heads``, prefix tokens and pooling, or refuse blocks that are not known."""

    def _refuse_unknown_blocks(self, blocks: Iterable[nn.Module], attention: str = "attn") -> None:
        for layer, block in enumerate(blocks):
            kinds = type(block), type(getattr(block, attention, None))
            if kinds not in self.parts:
                self._refuse_block(layer, *kinds)

    def _refuse_block(self, layer: int, block: type, *parts: type) -> None:
        names = ", ".join(sorted({part.__name__ for part in parts}))
        text = f"block {layer} is a {block.__name__} with {names}; only {self.parts_in_words} are supported"
        raise ModelError(f"{self.name}: {text}")

    @abstractmethod
    def _count_classes(self) -> int:
        """Return how many classes the head tells apart, or refuse a head that is not the family's."""

    def _usual_name(self) -> str | None:
        """Return what the library calls the model, where it notes that."""
        return None

    @abstractmethod
    def _usual_names(self, count: int) -> list[str] | None:
        """Return the names of so many classes."""

    @abstractmethod
    def _usual_preprocess(self) -> Preprocess:
        """Return the preprocessing that the library notes."""


class StagedModel(LibraryModel):
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
