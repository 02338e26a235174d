"""timm: names and weights of all its families, and its vision transformers in one column of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any, ClassVar

import timm
import timm.data
import torch
from timm.layers import Attention, AttentionRope, pos_embed_sincos
from timm.models import beit, eva
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.models.adapters import Convert, LibraryAdapter, LibraryModel, count_classes, first_line, size_pair
from vitreous.models.base import VisionModel
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Preprocess
from vitreous.models.registry import ModelInfo, reachable
from vitreous.models.shared_copy import overridden
from vitreous.models.structure import Weights

_SCALES = {"attn": ("ls1", "gamma_1"), "mlp": ("ls2", "gamma_2")}
"""Where a block keeps LayerScale: a module in some families, a parameter in others."""


class TimmModel(LibraryModel):
    """A timm transformer: name, class names and preprocessing are read from its configuration.

    A family is one subclass. It says which classes it takes (``accepts``), in which timm modules their names are listed
    (``modules``, less those that contain a word of ``left_out``), which blocks it knows (``parts``), and how foreign
    checkpoints of the family become timm's (``convert``).
    """

    family = "timm"
    accepts: ClassVar[tuple[type[nn.Module], ...]]
    modules: ClassVar[tuple[str, ...]]
    left_out: ClassVar[tuple[str, ...]] = ()
    convert: ClassVar[Convert]

    def _read_blocks(self) -> None:
        self._refuse_unknown_blocks(self._blocks)
        self.depth, self.embed_dim = len(self._blocks), self.module.num_features
        self.num_heads = max(block.attn.num_heads for block in self._blocks)
        self.num_prefix_tokens = getattr(self.module, "num_prefix_tokens", 0)
        reads_itself = self.has_known_head or self.get_pooling_module() is not None
        self.pooling = self._pooling() if reads_itself else Pooling("avg", self.num_prefix_tokens)

    def _count_classes(self) -> int:
        heads = self.module.get_classifier()
        return count_classes(self.name, *(heads if isinstance(heads, tuple) else (heads,)))

    def _usual_name(self) -> str | None:
        return config_of(self.module).get("architecture")

    def _usual_names(self, count: int) -> list[str] | None:
        return config_of(self.module).get("label_names") or imagenet_names(count)

    def _usual_preprocess(self) -> Preprocess:
        return preprocess_of(self.module, self.module.patch_embed.img_size)

    @property
    def _blocks(self) -> list[Any]:
        """The blocks, bottom first."""
        return list(self.module.blocks)

    def _pooling(self) -> Pooling:
        return Pooling(self.module.global_pool or "none", self.num_prefix_tokens)

    def get_block(self, layer: int) -> nn.Module:
        return self._blocks[layer]  # type: ignore[no-any-return]

    def _takes_any_size(self) -> bool:
        """Whether images of another size than the configured one may come."""
        return False

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        embed, size = self.module.patch_embed, tuple(inputs.shape[-2:])
        if not self._takes_any_size():
            self._check_size(inputs, tuple(embed.img_size or self.preprocess.size))
        if any(side % patch for side, patch in zip(size, embed.patch_size, strict=True)) and not embed.dynamic_img_pad:
            raise ModelError(f"{self.name}: an image of {size} cannot be cut into patches of {embed.patch_size}")


def config_of(model: nn.Module) -> Mapping[str, Any]:
    """Return what timm notes beside a model."""
    config: Any = getattr(model, "pretrained_cfg", None)
    return config or {}


def preprocess_of(model: nn.Module, size: Any) -> Preprocess:
    """Return the preprocessing that timm notes beside a model, for inputs of some size."""
    return Preprocess.from_timm(timm.data.resolve_model_data_config(model), size)


@cache
def imagenet_names(classes: int) -> list[str] | None:
    """Return the class names of the part of ImageNet that has so many classes."""
    subset = timm.data.infer_imagenet_subset({"num_classes": classes})
    return list(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None


class TimmColumn(TimmModel):
    """A timm model whose blocks stand in one column and see all tokens: ViT, BEiT, EVA."""

    parts_in_words = "pre-norm blocks with plain attention"

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.module.blocks[layer](tokens)  # type: ignore[no-any-return]

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.module.forward_head(self.module.norm(tokens))  # type: ignore[no-any-return]

    def get_pooling_module(self) -> nn.Module | None:
        return getattr(self.module, "attn_pool", None)

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        height, width = self.module.patch_embed.grid_size
        return int(height), int(width)

    @property
    def unavailable_points(self) -> Mapping[str, str]:  # type: ignore[override]
        block = self.module.blocks[0]
        hidden = [name for name, (_, parameter) in _SCALES.items() if getattr(block, parameter, None) is not None]
        return dict.fromkeys(hidden, "its LayerScale is a parameter, not a module")

    @property
    def has_gated_mlp(self) -> bool:  # type: ignore[override]
        mlp = self.module.blocks[0].mlp
        return hasattr(mlp, "gate_last") or hasattr(mlp, "fc1_g")

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        block = self.module.blocks[layer]
        scale = getattr(block, _SCALES[name][0], None) if name in _SCALES else None
        return getattr(block, name) if scale is None or isinstance(scale, nn.Identity) else scale  # type: ignore[no-any-return]

    def branch(self, layer: int, name: str) -> tuple[nn.Module, Tensor | None]:
        if name not in self.unavailable_points:
            return super().branch(layer, name)
        block = self.module.blocks[layer]
        return getattr(block, name), getattr(block, _SCALES[name][1])

    def weights(self, layer: int) -> Weights:
        block = self.module.blocks[layer]
        if getattr(block.attn, "gate", None) is not None:
            raise ModelError(f"{self.name} gates what attention brings, so that its stream cannot be cut into shares")
        scales = [getattr(block, module, getattr(block, vector, None)) for module, vector in _SCALES.values()]
        inner = getattr(block.attn, "norm", None)
        return Weights.of(block.norm1, block.attn.proj, block.norm2, inner=inner, scales=(scales[0], scales[1]))


class TimmViT(TimmColumn):
    """ViT, DeiT (also distilled), DeiT-III, DINOv2 with registers, CLIP and SigLIP towers, of pre-norm blocks."""

    accepts = (VisionTransformer,)
    modules = ("vision_transformer", "deit")
    left_out = ("_18x2_", "_xp_", "_rpn_", "vit_dlittle_", "vit_dpwee_", "vit_dwee_", "vit_pwee_")
    # their blocks are parallel, post-norm or differential
    parts = ((Block, Attention),)
    convert = partial(checkpoint_filter_fn, adapt_layer_scale=True)

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.module
        tokens = model._pos_embed(model.patch_embed(inputs))
        return model.norm_pre(model.patch_drop(tokens))  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        if inputs is None or not self._takes_any_size():
            return super().grid(inputs, layer)
        height, width = self.module.patch_embed.dynamic_feat_size(tuple(inputs.shape[-2:]))
        return int(height), int(width)

    def _takes_any_size(self) -> bool:
        return bool(self.module.dynamic_img_size)

    def _pooling(self) -> Pooling:
        if isinstance(self.module, VisionTransformerDistilled):
            return Pooling("pair", self.num_prefix_tokens)
        if self.module.global_pool == "avg" and self.module.pool_include_prefix:
            return Pooling("avg_all", self.num_prefix_tokens)
        return super()._pooling()


class TimmBeit(TimmColumn):
    """BEiT and BEiT v2: ``softmax(q k^T / sqrt(d) + R) v``, R a bias for each pair of positions and each head.

    R is a block's own, shared by all blocks, or the sum of both. It belongs to the positions of the tokens: where some
    are left out, every image has rows and columns of R of its own.
    """

    accepts = (beit.Beit,)
    modules = ("beit",)
    parts = ((beit.Block, beit.Attention),)
    convert = beit.checkpoint_filter_fn

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.module
        patches = model.patch_embed(inputs)
        tokens = torch.cat((model.cls_token.expand(len(patches), -1, -1), patches), dim=1)
        return model.pos_drop(tokens if model.pos_embed is None else tokens + model.pos_embed)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        block, shared = self.module.blocks[layer], self.module.rel_pos_bias
        common = None if shared is None else shared()
        has_own = block.attn.relative_position_bias_table is not None
        if keep is None or (common is None and not has_own):
            return block(tokens, shared_rel_pos_bias=common)  # type: ignore[no-any-return]
        if not has_own:
            return block(tokens, shared_rel_pos_bias=_pick_pairs(common, keep))  # type: ignore[no-any-return]
        own = block.attn._get_rel_pos_bias()[0]
        picked = _pick_pairs(own if common is None else own + common, keep)
        with overridden((block.attn, "_get_rel_pos_bias", lambda: picked)):
            return block(tokens, shared_rel_pos_bias=None)  # type: ignore[no-any-return]


def _pick_pairs(bias: Any, keep: Tensor) -> Tensor:
    """Return the bias ``[B, H, 1 + k, 1 + k]`` between the class token and the kept patches of each image."""
    rows = F.pad(keep.long() + 1, (1, 0))  # the class token, at 0, is always there
    return bias[:, rows.unsqueeze(2), rows.unsqueeze(1)].transpose(0, 1)  # type: ignore[no-any-return]


class TimmEva(TimmColumn):
    """EVA, EVA-02, DINOv3, Perception Encoder and ViTs with rotary positions, of pre-norm blocks.

    Queries and keys are turned by an angle that depends on the position. The angles come from the grid of patches and
    are read from the model at every block. A number of tokens does not tell a grid, so images of another size than the
    configured one are refused, even where the model could take them.
    """

    accepts = (eva.Eva,)
    modules = ("eva",)
    left_out = ("eva02_enormous_",)  # post-norm
    parts = ((eva.EvaBlock, eva.EvaAttention), (eva.EvaBlock, AttentionRope))
    convert = eva.checkpoint_filter_fn

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.module
        tokens, _ = model._pos_embed(model.patch_embed(inputs))
        return model.norm_pre(tokens)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.module.blocks[layer](tokens, rope=self._angles(layer, keep))  # type: ignore[no-any-return]

    def _angles(self, layer: int, keep: Tensor | None) -> Tensor | None:
        """Return sines and cosines for the patches: ``[N, d]``, or ``[H, N, d]`` where each block learns its own.

        With ``keep``, those of each image's patches: ``[B, 1, k, d]`` or ``[B, H, k, d]``.
        """
        model, rope = self.module, self.module.rope
        if rope is None:
            return None
        if model.rope_mixed:  # get_embed would compute all blocks' angles for each block
            positions = rope._get_grid_values(self.grid()) if rope.t_x is None else (rope.t_x, rope.t_y)
            angles: Tensor = pos_embed_sincos.get_mixed_freqs(rope.freqs[:, layer], *positions)
        else:
            angles = rope.get_embed(self.grid()) if model.dynamic_img_size else rope.get_embed()
        if keep is None:
            return angles
        picked = angles[..., keep.long(), :]  # the images stand where the patches stood
        return picked.transpose(0, 1) if model.rope_mixed else picked.unsqueeze(1)


# -- the adapter ---------------------------------------------------------------------------------------------


@cache
def _families() -> tuple[Any, ...]:
    from vitreous.models.adapters.timm_hierarchical import TimmConv, TimmSwin, TimmSwinV2

    return TimmViT, TimmBeit, TimmEva, TimmSwin, TimmSwinV2, TimmConv


def _family(module: nn.Module) -> Any:
    return next((family for family in _families() if isinstance(module, family.accepts)), None)


class TimmAdapter(LibraryAdapter):
    """Every supported timm family under one prefix."""

    prefix = "timm"

    def accepts(self, module: nn.Module) -> bool:
        return _family(module) is not None

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        return _family(module)(module, **facts)  # type: ignore[no-any-return]

    def _build(self, name: str, is_pretrained: bool, options: dict[str, Any]) -> nn.Module:
        if ":" not in name and not timm.is_model(name):
            raise self._unknown(name)
        size = options.pop("img_size", None) if timm.models.is_model_in_modules(name, _families()[-1].modules) else None
        if is_pretrained and ":" not in name and not reachable("timm/*"):
            raise self._unfetched(name, "the model hub cannot be reached")
        try:
            model: nn.Module = timm.create_model(name, pretrained=is_pretrained, **options)
        except Exception as error:
            if is_pretrained:
                raise self._unfetched(name, first_line(error)[:160]) from error
            raise ModelError(f"could not build timm/{name} with {options}: {first_line(error)[:200]}") from error
        if size is not None:  # it takes any size, so that nothing else knows which is meant
            model.image_size = size_pair(size)  # type: ignore[assignment]
        return model

    def _converter(self, model: nn.Module) -> Convert | None:
        return getattr(_family(model), "convert", None)

    def models(self) -> Iterable[ModelInfo]:
        return _models()


ADAPTER = TimmAdapter()


@cache
def _models() -> tuple[ModelInfo, ...]:
    tags: dict[str, list[str]] = {
        name: []
        for family in _families()
        for module in family.modules
        for name in timm.list_models(module=module)
        if not any(word in f"{name}_" for word in family.left_out)
    }
    for pretrained in timm.list_pretrained("*"):
        architecture, _, tag = pretrained.partition(".")
        if architecture in tags:
            tags[architecture].append(tag)
    configs = {name: timm.get_pretrained_cfg(name) for name in sorted(tags)}
    sizes = {name: int(config.input_size[-1]) if config is not None else None for name, config in configs.items()}
    return tuple(ModelInfo(f"timm/{name}", "timm", size, tuple(tags[name])) for name, size in sizes.items())
