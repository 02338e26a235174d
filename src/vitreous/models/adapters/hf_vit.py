"""What the views of Hugging Face models share: blocks, places inside them, sizes, labels, kinds of attention.

A layer of transformers returns a tensor or a tuple, and its parts have moved between versions; a place is therefore a
list of paths, of which the first that exists is meant.

Hugging Face's plain vision transformers: ViT, DeiT (also distilled), DINOv2 (also with registers).

Hugging Face's Swin: windowed attention on grids that are halved from stage to stage.

Blocks have one flat index over all stages. The patch merging belongs to the last block of the stage before, so that
the input of block ``l`` lies on ``grid(layer=l)``.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.errors import HeadError, ModelError
from vitreous.models.base import VisionModel
from vitreous.models.class_names import check_count
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.structure import Weights, Windows, shifted_windows

__all__ = [
    "HALVES",
    "HFDinov2",
    "HFSwin",
    "HFViT",
    "HFModel",
    "IMAGENET",
    "first",
    "pair",
    "part",
]

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
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def part(module: Any, *paths: str) -> Any:
    """Return the first of these dotted paths that exists in a module."""
    for path in paths:
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    raise ModelError(f"{type(module).__name__} has none of {', '.join(paths)}; this version of it is not known")


class HFModel(VisionModel):
    """A model of transformers whose blocks are pre-norm and map tokens to tokens.

    Subclasses say where the tower, its embedding and its head are. Positions are interpolated by the model's own rule
    where ``preprocess.size`` is not the size of its configuration.
    """

    family = "hf"
    module: Any  # torch types the attributes of a module as tensors
    tower: Any
    usual: ClassVar[Preprocess] = HALVES
    any_size: ClassVar[bool] = False
    """Whether the model takes images of any size, patch by patch, without being told."""
    places: ClassVar[Mapping[str, tuple[str, ...]]]

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        class_names: list[str] | None = None,
        preprocess: Preprocess | None = None,
        img_size: int | tuple[int, int] | None = None,
        headless: bool = False,
    ) -> None:
        self.module = model
        self.has_known_head = not headless
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
        self.embed_dim, self.num_heads = self._width_and_heads(config)
        self.num_prefix_tokens, kind = self._reading()
        self.pooling = Pooling(kind, self.num_prefix_tokens)
        self.num_classes = 0 if headless else self._classes()
        self.class_names = class_names or self._labels(self.num_classes or len(self.module.config.id2label or {}))
        check_count(self.name, class_names, self.num_classes)
        if 0 in self.grid():
            raise ModelError(f"{self.name}: an image of {self.preprocess.size} holds no patch of {self.patch}")

    # -- what a family says ----------------------------------------------------------------------------

    def _tower(self) -> Any:
        """Return the module that turns images into tokens, without the head."""
        return getattr(self.module, self.module.base_model_prefix, self.module)

    def _blocks(self) -> list[Any]:
        return list(part(self.tower, "layers", "encoder.layer", "encoder.layers"))

    def _width_and_heads(self, config: Any) -> tuple[int, int]:
        return config.hidden_size, config.num_attention_heads

    @abstractmethod
    def _reading(self) -> tuple[int, str]:
        """Return the number of prefix tokens and the kind of pooling."""

    def _heads(self) -> list[Any]:
        """Return the linear classifiers."""
        return [getattr(self.module, "classifier", None)]

    def _classes(self) -> int:
        heads = self._heads()
        if any(head is None or isinstance(head, nn.Identity) for head in heads):
            raise ModelError(f"{self.name} has no classifier; give num_classes= and a checkpoint with a head")
        if not all(type(head) is nn.Linear for head in heads):
            raise HeadError(f"{self.name} has a head of its own, {type(heads[0]).__name__}")
        return int(heads[0].out_features)

    def get_block(self, layer: int) -> nn.Module:
        return self.blocks[layer]  # type: ignore[no-any-return]

    def _labels(self, classes: int) -> list[str] | None:
        """Return the class names of the configuration; ``LABEL_0`` and its like are none."""
        named = {int(index): str(label) for index, label in (self.module.config.id2label or {}).items()}
        class_names = [named.get(index, "") for index in range(classes)]
        numbered = all(label in ("", f"LABEL_{index}", str(index)) for index, label in enumerate(class_names))
        return None if numbered else class_names

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

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs, **self._interpolated(inputs)).logits  # type: ignore[no-any-return]

    def _interpolated(self, inputs: Tensor) -> dict[str, bool]:
        """What the model has to be told about images of another size than its configuration's."""
        other = not self.any_size and tuple(inputs.shape[-2:]) != self._own_size
        return {"interpolate_pos_encoding": True} if other else {}

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        nothing = [None] * self._unused  # masks that have no default in older versions
        return first(self.blocks[layer](tokens, *nothing))  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = self.preprocess.size if inputs is None else inputs.shape[-2:]
        return height // self.patch[0], width // self.patch[1]

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return part(self.blocks[layer], *self.places[name])  # type: ignore[no-any-return]

    def weights(self, layer: int) -> Weights:
        block = self.blocks[layer]
        projection = part(block, "attention.o_proj", "attention.output.dense", "self_attn.out_proj")
        scales = [getattr(block, f"layer_scale{i}", None) for i in (1, 2)]
        norms = [self.hook_point(layer, name) for name in ("norm1", "norm2")]
        return Weights.of(norms[0], projection, norms[1], scales=(scales[0], scales[1]))

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
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


class HFViT(HFModel):
    """``ViTForImageClassification``, ``DeiTForImageClassification`` and the latter ``WithTeacher``.

    DeiT always has a distillation token; only the model with a teacher also reads it, and its logits are the mean of
    two heads.
    """

    places: ClassVar = {
        "norm1": ("layernorm_before",),
        "attn": ("attention",),
        "norm2": ("layernorm_after",),
        "mlp": ("mlp", "output.dropout"),  # transformers 4 adds the residual stream inside ``output``
    }

    @property
    def _distilled(self) -> bool:
        return hasattr(self.module, "distillation_classifier")

    def _reading(self) -> tuple[int, str]:
        prefix = 2 if hasattr(self.tower.embeddings, "distillation_token") else 1
        return prefix, "pair" if self._distilled else "token"

    def _heads(self) -> list[Any]:
        if self._distilled:
            return [self.module.cls_classifier, self.module.distillation_classifier]
        return super()._heads()

    def forward_head(self, tokens: Tensor) -> Tensor:
        tokens = self.tower.layernorm(tokens)
        logits = [head(tokens[:, row, :]) for row, head in enumerate(self._heads())]
        return logits[0] if len(logits) == 1 else (logits[0] + logits[1]) / 2  # type: ignore[no-any-return]


class HFDinov2(HFModel):
    """``Dinov2ForImageClassification``, also with registers: the head reads the class token beside the patches' mean.

    Images of any size are taken, in whole patches. Older versions of transformers average the registers together with
    the patches; the logits follow the version that is installed, the read-out row is that of the patches.
    """

    usual = IMAGENET
    any_size = True
    places: ClassVar = {"norm1": ("norm1",), "attn": ("layer_scale1",), "norm2": ("norm2",), "mlp": ("layer_scale2",)}

    def _reading(self) -> tuple[int, str]:
        registers = getattr(self.tower.embeddings, "register_tokens", None)
        prefix = 1 if registers is None else 1 + registers.shape[1]
        names = inspect.unwrap(type(self.module).forward).__code__.co_names
        self._averaged = prefix if "num_register_tokens" in names else 1
        return prefix, "token_avg"

    def forward_head(self, tokens: Tensor) -> Tensor:
        tokens = self.tower.layernorm(tokens)
        read = torch.cat([tokens[:, 0], tokens[:, self._averaged :].mean(dim=1)], dim=1)
        return self.module.classifier(read)  # type: ignore[no-any-return]

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None or not self.tower.config.use_swiglu_ffn:
            return super().operation_counts(layer)
        return {"attention": 1, "norm": 2, "activation": 0, "gate": 1}


class HFSwin(HFModel):
    """``SwinForImageClassification``: the mean over the last grid, after a norm.

    The size of the images is that of ``preprocess``: windows reach over the whole grid and the tokens of a later
    stage do not tell how it was cut.
    """

    usual = IMAGENET
    attention = "windowed"
    can_drop_tokens = False
    cam_point = "norm2"
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
            height, width = self.grid(layer=stage.start)
            if min(height, width) < window:
                raise ModelError(f"{self.name}: a grid of {height} x {width} is smaller than its windows of {window}")

    def _width_and_heads(self, config: Any) -> tuple[int, int]:
        return config.embed_dim, config.num_heads[0]

    def _reading(self) -> tuple[int, str]:
        return 0, "avg"

    # -- verbs and places ------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        interpolated = self.tower.config.use_absolute_embeddings and tuple(inputs.shape[-2:]) != self._own_size
        return first(self.tower.embeddings(inputs, interpolate_pos_encoding=interpolated))  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        grid = self.grid(layer=layer)
        tokens = first(self.blocks[layer](tokens, grid))
        merging = self._merging.get(layer)
        return tokens if merging is None else merging(tokens, grid)

    def forward_head(self, tokens: Tensor) -> Tensor:
        pooled = self.tower.pooler(self.tower.layernorm(tokens).transpose(1, 2))
        return self.module.classifier(pooled.flatten(1))  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = super().grid(inputs)
        for stage in self.stages:
            if layer >= stage.stop:
                height, width = (height + 1) // 2, (width + 1) // 2
        return height, width

    def windows(self, layer: int) -> Windows:
        block, grid = self.blocks[layer], self.grid(layer=layer)
        shift = 0 if min(grid) <= block.window_size else block.shift_size  # as the block finds out when it runs
        return shifted_windows(grid, (block.window_size,) * 2, (shift,) * 2)

    def embed_dim_at(self, layer: int) -> int:
        return int(self.blocks[layer].layernorm_before.normalized_shape[0])

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            return super().operation_counts(layer)
        return {"attention": 1, "norm": 3 if layer in self._merging else 2, "activation": 1}

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        if tuple(inputs.shape[-2:]) != self.preprocess.size:
            height, width = self.preprocess.size
            raise ModelError(f"{self.name} takes images [B, 3, {height}, {width}], got {list(inputs.shape)}")
