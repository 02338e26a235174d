"""timm's plain ViT family: ViT, DeiT (also distilled), DeiT-III, DINOv2 with registers, CLIP and SigLIP towers.

timm's BEiT family: BEiT and BEiT v2, with relative positions inside the attention.

timm's EVA family: EVA, EVA-02, DINOv3, Perception Encoder and ViTs with rotary positions.

Names and weights of timm's models: one adapter, which gives each module the view of its family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import Attention, AttentionRope, pos_embed_sincos
from timm.models import beit, eva
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.errors import ModelError, nearest
from vitreous.models.adapters.timm_common import TimmColumn, TimmModel
from vitreous.models.adapters.timm_hierarchical import TimmConv, TimmSwin, TimmSwinV2
from vitreous.models.base import VisionModel
from vitreous.models.checkpoints import Checkpoint, classes_in, fit
from vitreous.models.pooling import Pooling
from vitreous.models.registry import ModelInfo, reachable

__all__ = [
    "ADAPTER",
    "TimmAdapter",
    "TimmBeit",
    "TimmEva",
    "TimmViT",
]


class TimmViT(TimmColumn):
    """A timm ``VisionTransformer`` made of pre-norm blocks."""

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

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.module.blocks[layer](tokens)  # type: ignore[no-any-return]

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        if inputs is None or not self._any_size():
            return super().grid(inputs, layer)
        height, width = self.module.patch_embed.dynamic_feat_size(tuple(inputs.shape[-2:]))
        return int(height), int(width)

    def _any_size(self) -> bool:
        return bool(self.module.dynamic_img_size)

    def _distilled(self) -> bool:
        return isinstance(self.module, VisionTransformerDistilled)

    def _pooling(self) -> Pooling:
        if self._distilled():
            return Pooling("pair", self.num_prefix_tokens)
        if self.module.global_pool == "avg" and self.module.pool_include_prefix:
            return Pooling("avg_all", self.num_prefix_tokens)
        return super()._pooling()


class TimmBeit(TimmColumn):
    """A timm ``Beit``: ``softmax(q k^T / sqrt(d) + R) v``, R a bias for each pair of places and each head.

    R is a block's own, shared by all blocks, or the sum of both. It belongs to the places of the tokens: where some
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
        if model.pos_embed is not None:
            tokens = tokens + model.pos_embed
        return model.pos_drop(tokens)  # type: ignore[no-any-return]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        block, shared = self.module.blocks[layer], self.module.rel_pos_bias
        common = None if shared is None else shared()
        bias = None if keep is None else _bias(block.attn, common)
        if keep is None or bias is None:
            return block(tokens, shared_rel_pos_bias=common)  # type: ignore[no-any-return]
        picked = _pick_pairs(bias, keep)
        if block.attn.relative_position_bias_table is None:
            return block(tokens, shared_rel_pos_bias=picked)  # type: ignore[no-any-return]
        with _answering(block.attn, "_get_rel_pos_bias", picked):
            return block(tokens, shared_rel_pos_bias=None)  # type: ignore[no-any-return]


@contextmanager
def _answering(module: nn.Module, method: str, answer: Tensor) -> Iterator[None]:
    """Let a method of a twin's module return something else for a while."""
    attributes = vars(module)
    before = attributes.get(method)
    attributes[method] = lambda: answer
    try:
        yield
    finally:
        attributes.pop(method)
        attributes.update({} if before is None else {method: before})


def _bias(attention: Any, common: Tensor | None) -> Tensor | None:
    """Return the bias ``[H, N, N]`` between all tokens, or ``None`` where the block knows no places."""
    if attention.relative_position_bias_table is None:
        return common
    own: Tensor = attention._get_rel_pos_bias()[0]
    return own if common is None else own + common


def _pick_pairs(bias: Tensor, keep: Tensor) -> Tensor:
    """Return the bias ``[B, H, 1 + k, 1 + k]`` between the class token and the kept patches of each image."""
    rows = F.pad(keep.long() + 1, (1, 0))  # the class token, at 0, is always there
    return bias[:, rows.unsqueeze(2), rows.unsqueeze(1)].transpose(0, 1)


class TimmEva(TimmColumn):
    """A timm ``Eva`` made of pre-norm blocks: queries and keys are turned by an angle that depends on the place.

    The angles come from the grid of patches and are asked of the model at every block. A number of tokens does not
    tell a grid, so images of another size than the configured one are refused, even where the model could take them.
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
            places = rope._get_grid_values(self.grid()) if rope.t_x is None else (rope.t_x, rope.t_y)
            angles: Tensor = pos_embed_sincos.get_mixed_freqs(rope.freqs[:, layer], *places)
        else:
            angles = rope.get_embed(self.grid()) if model.dynamic_img_size else rope.get_embed()
        if keep is None:
            return angles
        picked = angles[..., keep.long(), :]  # the images stand where the patches stood
        return picked.transpose(0, 1) if model.rope_mixed else picked.unsqueeze(1)


Family = type[TimmModel] | type[TimmConv]
_FAMILIES: tuple[Family, ...] = (TimmViT, TimmBeit, TimmEva, TimmSwin, TimmSwinV2, TimmConv)


class TimmAdapter:
    """Every supported timm family under one prefix."""

    prefix = "timm"

    def accepts(self, module: nn.Module) -> bool:
        return _family(module) is not None

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        family = _family(module)
        if family is None:
            raise ModelError(f"{type(module).__name__} is of no timm family that is known here")
        return family(module, **facts)

    def load(
        self,
        name: str,
        *,
        pretrained: bool | None = None,
        checkpoint: str | Path | None = None,
        num_classes: int | None = None,
        img_size: int | tuple[int, int] | None = None,
        **build: Any,
    ) -> nn.Module:
        """Build a model: with the hub's weights by default, with ``checkpoint`` if given, else untrained.

        It has ``num_classes`` classes, or those of the checkpoint's head, or its own.
        """
        if ":" not in name and not timm.is_model(name):
            raise ModelError(f"unknown model 'timm/{name}'{nearest('timm/' + name, (m.name for m in self.models()))}")
        if pretrained is None:
            pretrained = checkpoint is None
        found = None if checkpoint is None else Checkpoint.read(checkpoint)
        if found is not None and num_classes is None:
            num_classes = classes_in(found.tensors)
        given = {"num_classes": num_classes, "img_size": img_size, **build}
        options = {key: value for key, value in given.items() if value is not None}
        any_size = name.partition(".")[0] in _any_size()
        size = options.pop("img_size", None) if any_size else None
        model = _create(name, pretrained, options)
        if size is not None:  # it takes any size, so that nothing else knows which is meant
            model.image_size = size if isinstance(size, tuple) else (size, size)  # type: ignore[assignment]
        if found is not None:
            family = _family(model)
            fit(model, found, None if family is None else family.convert)
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return _models()


ADAPTER = TimmAdapter()


def _family(module: nn.Module) -> Family | None:
    return next((family for family in _FAMILIES if isinstance(module, family.accepts)), None)


def _create(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    if pretrained and ":" not in name and not reachable("timm/*"):
        raise ModelError(
            f"could not fetch the weights of timm/{name}: the model hub cannot be reached; "
            "give checkpoint=FILE, or pretrained=False for an untrained model"
        )
    try:
        return timm.create_model(name, pretrained=pretrained, **options)  # type: ignore[no-any-return]
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if pretrained:
            raise ModelError(
                f"could not fetch the weights of timm/{name} ({reason[0][:160]}); "
                "give checkpoint=FILE, or pretrained=False for an untrained model"
            ) from error
        raise ModelError(f"could not build timm/{name} with {options}: {reason[0][:200]}") from error


@cache
def _any_size() -> frozenset[str]:
    """The names of models that are built for no size."""
    return frozenset(name for module in TimmConv.modules for name in timm.list_models(module=module))


@cache
def _models() -> tuple[ModelInfo, ...]:
    names = [
        name
        for family in _FAMILIES
        for module in family.modules
        for name in timm.list_models(module=module)
        if not any(part in f"{name}_" for part in family.left_out)
    ]
    tags: dict[str, list[str]] = {name: [] for name in names}
    for full in timm.list_pretrained("*"):
        arch, _, tag = full.partition(".")
        if arch in tags:
            tags[arch].append(tag)
    return tuple(ModelInfo(f"timm/{name}", "timm", _size(name), tuple(tags[name])) for name in sorted(names))


def _size(name: str) -> int | None:
    config = timm.get_pretrained_cfg(name)
    return int(config.input_size[-1]) if config is not None else None
