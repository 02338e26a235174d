"""What the views of Hugging Face models share: blocks, places inside them, sizes, labels, kinds of attention.

A layer of transformers returns a tensor or a tuple, and its parts have moved between versions; a place is therefore a
list of paths, of which the first that exists is meant.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from vitreous.errors import HeadError, ModelError
from vitreous.models.labels import check_count
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.view import View
from vitreous.models.weights import Weights

__all__ = ["HALVES", "IMAGENET", "HFView", "first", "pair", "part"]

HALVES = Preprocess(mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear", crop=1.0, mode="squash")
"""What ViT's image processor does unless told otherwise."""

IMAGENET = Preprocess(interpolation="bicubic", crop=1.0, mode="squash")

_OBSERVED = (None, "sdpa", "eager")
"""The kinds of attention that the override protocol sees."""


def first(output: Any) -> Any:
    """Return the tokens of a layer that returns a tensor (transformers 5) or a tuple (4)."""
    return output if isinstance(output, Tensor) else output[0]


def pair(size: Any) -> tuple[int, int]:
    """Return height and width of a size that a configuration gives as one number or as two."""
    high, wide = size if isinstance(size, list | tuple) else (size, size)
    return int(high), int(wide)


def part(module: Any, *paths: str) -> Any:
    """Return the first of these dotted paths that exists in a module."""
    for path in paths:
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    raise ModelError(f"{type(module).__name__} has none of {', '.join(paths)}; this version of it is not known")


class HFView(View):
    """A model of transformers whose blocks are pre-norm and map tokens to tokens.

    Subclasses say where the tower, its embedding and its head are. Positions are interpolated by the model's own rule
    where ``preprocess.size`` is not the size of its configuration.
    """

    family = "hf"
    model: Any  # torch types the attributes of a module as tensors
    tower: Any
    usual: ClassVar[Preprocess] = HALVES
    any_size: ClassVar[bool] = False
    """Whether the model takes images of any size, patch by patch, without being told."""
    places: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        labels: list[str] | None = None,
        preprocess: Preprocess | None = None,
        img_size: int | tuple[int, int] | None = None,
        headless: bool = False,
    ) -> None:
        self.model = model
        self.head_known = not headless
        self.name = name or f"hf/{model.config.name_or_path or type(model).__name__}"
        self.tower = self._tower()
        self._refuse_unseen_attention()
        config = self.tower.config
        self._own_size, self.patch = pair(config.image_size), pair(config.patch_size)
        self.preprocess = preprocess or replace(self.usual, size=self._own_size)
        if img_size is not None and self.preprocess.size != pair(img_size):
            self.preprocess = replace(self.preprocess, size=pair(img_size))
        self.blocks = self._blocks()
        self.depth = len(self.blocks)
        self._unused = _required(self.blocks[0]) - 1
        self.width, self.heads = self._width_and_heads(config)
        self.prefix, kind = self._reading()
        self.pooling = Pooling(kind, self.prefix)
        self.classes = 0 if headless else self._classes()
        self.labels = labels or self._labels(self.classes or len(self.model.config.id2label or {}))
        check_count(self.name, labels, self.classes)
        if 0 in self.grid():
            raise ModelError(f"{self.name}: an image of {self.preprocess.size} holds no patch of {self.patch}")

    # -- what a family says ----------------------------------------------------------------------------

    def _tower(self) -> Any:
        """Return the module that turns images into tokens, without the head."""
        return getattr(self.model, self.model.base_model_prefix, self.model)

    def _blocks(self) -> list[Any]:
        return list(part(self.tower, "layers", "encoder.layer", "encoder.layers"))

    def _width_and_heads(self, config: Any) -> tuple[int, int]:
        return config.hidden_size, config.num_attention_heads

    @abstractmethod
    def _reading(self) -> tuple[int, str]:
        """Return the number of prefix tokens and the kind of pooling."""

    def _heads(self) -> list[Any]:
        """Return the linear classifiers."""
        return [getattr(self.model, "classifier", None)]

    def _classes(self) -> int:
        heads = self._heads()
        if any(head is None or isinstance(head, nn.Identity) for head in heads):
            raise ModelError(f"{self.name} has no classifier; give num_classes= and a checkpoint with a head")
        if not all(type(head) is nn.Linear for head in heads):
            raise HeadError(f"{self.name} has a head of its own, {type(heads[0]).__name__}")
        return int(heads[0].out_features)

    def block_at(self, layer: int) -> nn.Module:
        return self.blocks[layer]  # type: ignore[no-any-return]

    def _labels(self, classes: int) -> list[str] | None:
        """Return the class names of the configuration; ``LABEL_0`` and its like are none."""
        named = {int(index): str(label) for index, label in (self.model.config.id2label or {}).items()}
        labels = [named.get(index, "") for index in range(classes)]
        numbered = all(label in ("", f"LABEL_{index}", str(index)) for index, label in enumerate(labels))
        return None if numbered else labels

    def _refuse_unseen_attention(self) -> None:
        """Flash, flex and paged attention are kernels that torch's override protocol does not see."""
        for module in self.tower.modules():
            kind = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if kind not in _OBSERVED:
                raise ModelError(
                    f"{self.name} attends through {kind!r}, which cannot be observed; "
                    'load it with attn_implementation="sdpa" (or "eager")'
                )

    # -- verbs and places ------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        return self.tower.embeddings(inputs, **self._interpolated(inputs))  # type: ignore[no-any-return]

    def original(self, inputs: Tensor) -> Tensor:
        return self.model(inputs, **self._interpolated(inputs)).logits  # type: ignore[no-any-return]

    def _interpolated(self, inputs: Tensor) -> dict[str, bool]:
        """What the model has to be told about images of another size than its configuration's."""
        other = not self.any_size and tuple(inputs.shape[-2:]) != self._own_size
        return {"interpolate_pos_encoding": True} if other else {}

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        nothing = [None] * self._unused  # masks that have no default in older versions
        return first(self.blocks[layer](tokens, *nothing))  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        high, wide = self.preprocess.size if inputs is None else inputs.shape[-2:]
        return high // self.patch[0], wide // self.patch[1]

    def _site(self, layer: int, name: str) -> nn.Module:
        return part(self.blocks[layer], *self.places[name])  # type: ignore[no-any-return]

    def weights(self, layer: int) -> Weights:
        block = self.blocks[layer]
        projection = part(block, "attention.o_proj", "attention.output.dense", "self_attn.out_proj")
        scales = [getattr(block, f"layer_scale{i}", None) for i in (1, 2)]
        norms = [self.site(layer, name) for name in ("norm1", "norm2")]
        return Weights.of(norms[0], projection, norms[1], scales=(scales[0], scales[1]))

    def calls(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return {"attention": 0, "norm": 1, "activation": 0}
        return {"attention": 1, "norm": 2, "activation": 1}

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        self._refuse_unseen_attention()  # it can be changed at any time
        size, given = self.preprocess.size, tuple(inputs.shape[-2:])
        if given not in (size, self._own_size) and not self.any_size:
            raise ModelError(f"{self.name} takes images [B, 3, {size[0]}, {size[1]}], got {list(inputs.shape)}")
        if any(side < patch for side, patch in zip(given, self.patch, strict=True)):
            raise ModelError(f"{self.name}: an image of {given} holds no patch of {self.patch}")
        if self.any_size and any(side % patch for side, patch in zip(given, self.patch, strict=True)):
            raise ModelError(f"{self.name}: an image of {given} cannot be cut into patches of {self.patch}")


def _required(block: nn.Module) -> int:
    """How many arguments a block insists on, the tokens among them."""
    parameters = list(inspect.signature(type(block).forward).parameters.values())[1:]
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
