"""Hugging Face's vision models: ViT, DeiT, DINOv2, Swin, and CLIP and SigLIP, zero-shot or with a classifier.

A layer of transformers returns a tensor or a tuple, and its parts have moved between versions; a hook point is
therefore a list of paths, of which the first that exists is meant.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.adapters import LibraryModel, StagedModel, count_classes, size_pair
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.shared_copy import copy_structure
from vitreous.models.structure import Weights, Windows, shifted_windows

HALVES = Preprocess(mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bilinear", crop=1.0, mode="squash")
"""What ViT's image processor does unless told otherwise."""

IMAGENET = Preprocess(interpolation="bicubic", crop=1.0, mode="squash")

CLIP = Preprocess(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711), crop=1.0)
"""What CLIP's image processor does unless told otherwise."""

_OBSERVED = (None, "sdpa", "eager")
"""The kinds of attention that the override protocol sees."""


def first(output: Any) -> Any:
    """Return the tokens of a layer that returns a tensor (transformers 5) or a tuple (4)."""
    return output if isinstance(output, Tensor) else output[0]


def part(module: Any, *paths: str) -> Any:
    """Return the first of these dotted paths that exists in a module."""
    for path in paths:
        value = module
        for name in path.split("."):
            value = getattr(value, name, None)
        if value is not None:
            return value
    raise ModelError(f"{type(module).__name__} has none of {', '.join(paths)}; this version of it is not known")


class HFModel(LibraryModel):
    """A model of transformers whose blocks are pre-norm and map tokens to tokens.

    Subclasses say where the tower, its embedding and its head are. Positions are interpolated by the model's own rule
    where ``preprocess.size`` is not the size of its configuration.
    """

    family = "hf"
    tower: Any
    usual: ClassVar[Preprocess] = HALVES
    any_size: ClassVar[bool] = False
    """Whether the model takes images of any size, patch by patch, without being told."""
    paths: ClassVar[Mapping[str, tuple[str, ...]]]
    """Of the modules at hook points."""

    def __init__(self, model: Any, *, preprocess: Preprocess | None = None, img_size: Any = None, **facts: Any) -> None:
        self.module = model
        self.tower = self._tower()
        config = self.tower.config
        self._own_size, self.patch = size_pair(config.image_size), size_pair(config.patch_size)
        self.preprocess = preprocess or replace(self.usual, size=self._own_size)
        if img_size is not None and self.preprocess.size != size_pair(img_size):
            self.preprocess = replace(self.preprocess, size=size_pair(img_size))
        super().__init__(model, preprocess=self.preprocess, **facts)

    def _read_blocks(self) -> None:
        self._refuse_unseen_attention()
        self.blocks = self._blocks()
        self.depth = len(self.blocks)
        others = list(inspect.signature(type(self.blocks[0]).forward).parameters.values())[2:]  # self, tokens
        self._unused = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in others)
        self.embed_dim, self.num_heads = self._width_and_heads(self.tower.config)
        self.num_prefix_tokens, kind = self._reading()
        self.pooling = Pooling(kind, self.num_prefix_tokens)

    def _usual_name(self) -> str | None:
        return self.module.config.name_or_path  # type: ignore[no-any-return]

    def _usual_preprocess(self) -> Preprocess:
        return self.preprocess

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
        pair = ("cls_classifier", "distillation_classifier")
        names = pair if hasattr(self.module, pair[1]) else ("classifier",)
        return [getattr(self.module, name, None) for name in names]

    def _count_classes(self) -> int:
        return count_classes(self.name, *self._heads())

    def get_block(self, layer: int) -> nn.Module:
        return self.blocks[layer]  # type: ignore[no-any-return]

    def _usual_names(self, count: int) -> list[str] | None:
        """Return the class names of the configuration; ``LABEL_0`` and its like are none."""
        by_index = {int(index): str(label) for index, label in (self.module.config.id2label or {}).items()}
        names = [by_index.get(index, "") for index in range(count or len(by_index))]
        is_numbered = all(name in ("", f"LABEL_{index}", str(index)) for index, name in enumerate(names))
        return None if is_numbered else names

    def _refuse_unseen_attention(self) -> None:
        """Flash, flex and paged attention are kernels that torch's override protocol does not see."""
        for module in self.tower.modules():
            kind = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if kind not in _OBSERVED:
                advice = 'load it with attn_implementation="sdpa" (or "eager")'
                raise ModelError(f"{self.name} attends through {kind!r}, which cannot be observed; {advice}")

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
        return part(self.blocks[layer], *self.paths[name])  # type: ignore[no-any-return]

    def weights(self, layer: int) -> Weights:
        block = self.blocks[layer]
        projection = part(block, "attention.o_proj", "attention.output.dense", "self_attn.out_proj")
        scales = [getattr(block, f"layer_scale{i}", None) for i in (1, 2)]
        norms = [self.hook_point(layer, name) for name in ("norm1", "norm2")]
        return Weights.of(norms[0], projection, norms[1], scales=(scales[0], scales[1]))

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        self._refuse_unseen_attention()  # it can be changed at any time
        size = tuple(inputs.shape[-2:])
        if size != self._own_size and not self.any_size:
            self._check_size(inputs)
        if 0 in self.grid(inputs):
            raise ModelError(f"{self.name}: an image of {size} holds no patch of {self.patch}")
        if self.any_size and any(side % patch for side, patch in zip(size, self.patch, strict=True)):
            raise ModelError(f"{self.name}: an image of {size} cannot be cut into patches of {self.patch}")


class HFViT(HFModel):
    """``ViTForImageClassification``, ``DeiTForImageClassification`` and the latter ``WithTeacher``.

    DeiT always has a distillation token; only the model with a teacher also reads it, and its logits are the mean of
    two heads.
    """

    paths: ClassVar = {
        "norm1": ("layernorm_before",),
        "attn": ("attention",),
        "norm2": ("layernorm_after",),
        "mlp": ("mlp", "output.dropout"),  # transformers 4 adds the residual stream inside ``output``
    }

    def _reading(self) -> tuple[int, str]:
        prefix = 2 if hasattr(self.tower.embeddings, "distillation_token") else 1
        return prefix, "pair" if len(self._heads()) == 2 else "token"

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
    paths: ClassVar = {"norm1": ("norm1",), "attn": ("layer_scale1",), "norm2": ("norm2",), "mlp": ("layer_scale2",)}

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

    @property
    def has_gated_mlp(self) -> bool:  # type: ignore[override]
        return bool(self.tower.config.use_swiglu_ffn)


class HFSwin(StagedModel, HFModel):
    """``SwinForImageClassification``: the mean over the last grid, after a norm.

    The size of the images is that of ``preprocess``: windows reach over the whole grid and the tokens of a later
    stage do not tell how it was cut.
    """

    usual = IMAGENET
    cam_point = "norm2"
    paths: ClassVar = {
        "norm1": ("layernorm_before",),
        "attn": ("drop_path",),  # where the windows have been put together again
        "norm2": ("layernorm_after",),
        "mlp": ("output", "mlp"),
    }

    def _blocks(self) -> list[Any]:
        stages = self.tower.encoder.layers
        self._set_stages(len(stage.blocks) for stage in stages)
        self._refuse_padding()
        return [block for stage in stages for block in stage.blocks]

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
        grid, stage = self.grid(layer=layer), self.tower.encoder.layers[self._stage(layer)]
        tokens = first(self.blocks[layer](tokens, grid))
        return stage.downsample(tokens, grid) if self._ends_stage(layer) else tokens

    def forward_head(self, tokens: Tensor) -> Tensor:
        pooled = self.tower.pooler(self.tower.layernorm(tokens).transpose(1, 2))
        return self.module.classifier(pooled.flatten(1))  # type: ignore[no-any-return]

    def _patch_grid(self, inputs: Tensor | None) -> tuple[int, int]:
        return HFModel.grid(self, inputs)

    def windows(self, layer: int) -> Windows:
        block, grid = self.blocks[layer], self.grid(layer=layer)
        shift = 0 if min(grid) <= block.window_size else block.shift_size  # as the block finds out when it runs
        return shifted_windows(grid, (block.window_size,) * 2, (shift,) * 2)

    def embed_dim_at(self, layer: int) -> int:
        return int(self.blocks[layer].layernorm_before.normalized_shape[0])

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        self._check_size(inputs)


class HFTower(HFModel):
    """``CLIPForImageClassification`` and ``SiglipForImageClassification``: a linear head on the mean of the patches.

    CLIP's mean is taken before the last norm, which has no part in it; SigLIP's after it.
    """

    paths: ClassVar = {"norm1": ("layer_norm1",), "attn": ("self_attn",), "norm2": ("layer_norm2",), "mlp": ("mlp",)}

    def _tower(self) -> Any:
        self._siglip = not hasattr(self.module.vision_model, "pre_layrnorm")
        self.usual = HALVES if self._siglip else CLIP  # type: ignore[misc]
        return self.module.vision_model

    def _reading(self) -> tuple[int, str]:
        return 0 if self._siglip else 1, "avg"

    def _refuse_unseen_attention(self) -> None:
        super()._refuse_unseen_attention()
        attention = self.tower.encoder.layers[0].self_attn
        if hasattr(attention, "_shape") and self.tower.config._attn_implementation == "eager":
            text = 'has no axis for its heads; load it with attn_implementation="sdpa"'
            raise ModelError(f"{self.name}: the written-out attention of this old transformers {text}")

    def embed(self, inputs: Tensor) -> Tensor:
        tokens = super().embed(inputs)
        return tokens if self._siglip else self.tower.pre_layrnorm(tokens)

    def forward_head(self, tokens: Tensor) -> Tensor:
        if self._siglip:
            tokens = self.tower.post_layernorm(tokens)
        return self.module.classifier(tokens[:, self.num_prefix_tokens :].mean(dim=1))  # type: ignore[no-any-return]


class HFZeroShot(HFTower):
    """``CLIPModel`` and ``SiglipModel``, whose classes are prompts.

    Zero-shot logits are ``exp(scale) cos(image, text) (+ bias)``. The text tower runs once, when the model is wrapped.
    Classes are ``prompts`` with their ``tokenizer`` (known if the model was loaded by name), which are their own names,
    or ``text_embeds [classes, width]`` from elsewhere with ``class_names``.
    """

    def __init__(
        self,
        model: Any,
        *,
        prompts: Sequence[str] | None = None,
        tokenizer: Any = None,
        text_embeds: Tensor | None = None,
        **facts: Any,
    ) -> None:
        self._classes = prompts, tokenizer, text_embeds
        super().__init__(model, **facts)
        del self._classes

    def _reading(self) -> tuple[int, str]:
        if not self._siglip:
            return 1, "token"
        if not getattr(self.tower, "use_head", True):
            raise ModelError(f"{self.name} has no pooling head, so that images and prompts cannot be compared")
        return 0, "map"

    def _count_classes(self) -> int:
        prompts, tokenizer, text = self._classes
        prompts = [prompts] if isinstance(prompts, str) else prompts
        self._prompts = None if prompts is None else [str(prompt) for prompt in prompts]
        if text is None:
            text = self._read(self._prompts, tokenizer)
        if not isinstance(text, Tensor) or text.ndim != 2 or not len(text) or not torch.isfinite(text).all():
            raise ModelError(f"{self.name}: text_embeds must be finite numbers [classes, width]")
        width = self.embed_dim if self._siglip else self.module.visual_projection.out_features
        if text.shape[1] != width:
            raise ModelError(f"{self.name}: text_embeds are {text.shape[1]} wide, images {width}")
        text = text.detach().to(self.device, self.dtype)
        self.text = text / text.norm(p=2, dim=-1, keepdim=True)
        return len(text)

    def _usual_names(self, count: int) -> list[str] | None:
        return self._prompts

    def _read(self, prompts: list[str] | None, tokenizer: Any) -> Tensor:
        """Run the text tower; SigLIP was trained on prompts padded to their full length, without a mask."""
        if not prompts:
            advice = "give prompts=[…], or text_embeds= with class_names="
            raise ModelError(f"{self.name} has no classes of its own; {advice}")
        if tokenizer is None:
            raise ModelError(f"{self.name} needs tokenizer= to read prompts (or load it by name), or text_embeds=")
        longest = self.module.text_model.config.max_position_embeddings
        padding = {"padding": "max_length", "max_length": longest} if self._siglip else {"padding": True}
        words = tokenizer(prompts, return_tensors="pt", **padding)
        words = {key: words[key] for key in (("input_ids",) if self._siglip else ("input_ids", "attention_mask"))}
        if words["input_ids"].shape[1] > longest:
            raise ModelError(f"{self.name}: a prompt is longer than the {longest} pieces that its text tower reads")
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            words = {key: value.to(self.device) for key, value in words.items()}
            encoded = copy_structure(self.module).get_text_features(**words)
        return encoded if isinstance(encoded, Tensor) else encoded.pooler_output

    # -- the head --------------------------------------------------------------------------------------

    def forward_head(self, tokens: Tensor) -> Tensor:
        if self._siglip:
            image = self.tower.head(self.tower.post_layernorm(tokens))
        else:
            image = self.module.visual_projection(self.tower.post_layernorm(tokens[:, 0, :]))
        return self._compare(image)

    def get_pooling_module(self) -> nn.Module | None:
        return self.tower.head if self._siglip else None

    def reference_forward(self, inputs: Tensor) -> Tensor:
        image = self.module.get_image_features(pixel_values=inputs, **self._interpolated(inputs))
        return self._compare(image if isinstance(image, Tensor) else image.pooler_output)

    def _compare(self, image: Tensor) -> Tensor:
        image = image / image.norm(p=2, dim=-1, keepdim=True)
        # classes first in the product, as the model has it; images first in all that follows, as rules count on it
        logits = torch.matmul(self.text.to(image), image.t()).t() * self.module.logit_scale.exp()
        return logits + self.module.logit_bias if self._siglip else logits  # type: ignore[no-any-return]
