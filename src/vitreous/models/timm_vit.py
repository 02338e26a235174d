"""timm's plain ViT family: ViT, DeiT (also distilled), DeiT-III, DINOv2 with registers, CLIP and SigLIP towers."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import timm
import timm.data
from huggingface_hub import constants as hub
from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from vitreous.errors import ModelError, nearest
from vitreous.models.checkpoint import fit
from vitreous.models.preprocess import Preprocess
from vitreous.models.registry import ModelInfo
from vitreous.models.view import Pooling, View

__all__ = ["ADAPTER", "TimmAdapter", "TimmViT"]

_POOLINGS = {"token": "token", "avg": "avg", "map": "map"}
_OTHER_BLOCKS = ("_18x2_", "_xp_", "_rpn_", "vit_dlittle_", "vit_dpwee_", "vit_dwee_", "vit_pwee_")
"""Parts of the names of timm models whose blocks are parallel, post-norm or differential."""


class TimmViT(View):
    """A timm ``VisionTransformer`` made of pre-norm blocks."""

    family = "timm"
    model: Any  # torch types the attributes of a module as tensors

    def __init__(
        self,
        model: VisionTransformer,
        name: str | None = None,
        labels: list[str] | None = None,
        preprocess: Preprocess | None = None,
    ) -> None:
        config = getattr(model, "pretrained_cfg", None) or {}
        self.model = model
        self.name = name or f"timm/{config.get('architecture') or type(model).__name__}"
        self._refuse_unknown_parts()
        self.depth, self.width = len(model.blocks), model.embed_dim
        self.heads = model.blocks[0].attn.num_heads
        self.prefix = model.num_prefix_tokens
        self.pooling = self._pooling()
        self.classes = model.num_classes
        self.labels = labels or config.get("label_names") or _imagenet_labels(model.num_classes)
        if self.labels is not None and len(self.labels) < self.classes:
            raise ModelError(f"{self.name} has {self.classes} classes but {len(self.labels)} labels were given")
        self.preprocess = preprocess or self._preprocess()

    def _refuse_unknown_parts(self) -> None:
        for layer, block in enumerate(self.model.blocks):
            attention = getattr(block, "attn", None)
            if type(block) is not Block or type(attention) is not Attention:
                raise ModelError(
                    f"{self.name}: block {layer} is a {type(block).__name__} with {type(attention).__name__}; "
                    "only pre-norm blocks with plain attention are supported"
                )
        if 0 in self.model.patch_embed.grid_size:
            size, patch = self.model.patch_embed.img_size, self.model.patch_embed.patch_size
            raise ModelError(f"{self.name}: an image of {size} holds no patch of {patch}")
        if not isinstance(self.model.get_classifier(), nn.Linear) and not self._distilled:
            raise ModelError(f"{self.name} has no classifier; give num_classes= and a checkpoint with a head")

    @property
    def _distilled(self) -> bool:
        return isinstance(self.model, VisionTransformerDistilled)

    def _pooling(self) -> Pooling:
        if self._distilled:
            return Pooling("pair", self.prefix)
        kind = _POOLINGS.get(self.model.global_pool, self.model.global_pool or "none")
        return Pooling("avg_all" if kind == "avg" and self.model.pool_include_prefix else kind, self.prefix)

    def _preprocess(self) -> Preprocess:
        config = timm.data.resolve_model_data_config(self.model)
        return Preprocess(
            size=tuple(self.model.patch_embed.img_size or config["input_size"][1:]),
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            interpolation=config["interpolation"],
            crop=config["crop_pct"],
            mode=config["crop_mode"],
        )

    # -- verbs -----------------------------------------------------------------------------------------

    def embed(self, inputs: Tensor) -> Tensor:
        model = self.model
        tokens = model._pos_embed(model.patch_embed(inputs))
        return model.norm_pre(model.patch_drop(tokens))  # type: ignore[no-any-return]

    def block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.model.blocks[layer](tokens)  # type: ignore[no-any-return]

    def finish(self, tokens: Tensor) -> Tensor:
        return self.model.forward_head(self.model.norm(tokens))  # type: ignore[no-any-return]

    # -- places ----------------------------------------------------------------------------------------

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        embed = self.model.patch_embed
        if inputs is not None and self.model.dynamic_img_size:
            high, wide = embed.dynamic_feat_size(tuple(inputs.shape[-2:]))
        else:
            high, wide = embed.grid_size
        return int(high), int(wide)

    def site(self, layer: int, name: str) -> nn.Module:
        block = self.model.blocks[layer]
        scaled = {"attn": "ls1", "mlp": "ls2"}.get(name)
        if scaled and not isinstance(getattr(block, scaled), nn.Identity):
            name = scaled
        return getattr(block, name)  # type: ignore[no-any-return]

    def calls(self, layer: int | None) -> Mapping[str, int]:
        if layer is None:
            model = self.model
            parts = [model.norm, model.fc_norm]
            pool = model.attn_pool
            found = {"attention": int(pool is not None), "norm": _norms(*parts), "activation": 0}
            if pool is not None:
                found["norm"] += _norms(pool)
                found["activation"] += int(pool.mlp is not None)
            return found
        block = self.model.blocks[layer]
        gated_mlp = hasattr(block.mlp, "gate_last") or hasattr(block.mlp, "fc1_g")
        gated_attention = getattr(block.attn, "gate", None) is not None
        return {
            "attention": 1,
            "norm": _norms(block),
            "activation": int(not gated_mlp) + int(gated_attention),
            "gate": int(gated_mlp),
        }

    def check_inputs(self, inputs: Tensor) -> None:
        super().check_inputs(inputs)
        embed, size, given = self.model.patch_embed, tuple(self.preprocess.size), tuple(inputs.shape[-2:])
        if given != size and not self.model.dynamic_img_size:
            raise ModelError(f"{self.name} takes images [B, 3, {size[0]}, {size[1]}], got {list(inputs.shape)}")
        if any(side % patch for side, patch in zip(given, embed.patch_size, strict=True)) and not embed.dynamic_img_pad:
            raise ModelError(f"{self.name}: an image of {given} cannot be cut into patches of {embed.patch_size}")


class TimmAdapter:
    """Names, weights and views of the family."""

    prefix = "timm"

    def accepts(self, module: nn.Module) -> bool:
        return isinstance(module, VisionTransformer)

    def view(self, module: nn.Module, **facts: Any) -> View:
        return TimmViT(module, **facts)

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
        """Build a model: with the hub's weights by default, with ``checkpoint`` if given, else untrained."""
        if ":" not in name and not timm.is_model(name):
            raise ModelError(f"unknown model 'timm/{name}'{nearest('timm/' + name, (m.name for m in self.models()))}")
        if pretrained is None:
            pretrained = checkpoint is None
        given = {"num_classes": num_classes, "img_size": img_size, **build}
        options = {key: value for key, value in given.items() if value is not None}
        model = _create(name, pretrained, options)
        if checkpoint is not None:
            convert = partial(checkpoint_filter_fn, adapt_layer_scale=True)
            fit(model, checkpoint, convert if isinstance(model, VisionTransformer) else None)
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return _models()


ADAPTER = TimmAdapter()


def _create(name: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    if pretrained and ":" not in name and not _reachable():
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


def _reachable() -> bool:
    """Whether the model hub answers, or the user keeps it in a cache or behind a proxy.

    Asked once before a download, because the client itself would try for most of a minute.
    """
    if getproxies() or hub.HF_HUB_OFFLINE or any(Path(hub.HF_HUB_CACHE).glob("models--timm--*")):
        return True
    try:
        socket.create_connection((urlparse(hub.ENDPOINT).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True


@cache
def _models() -> tuple[ModelInfo, ...]:
    names = [
        name
        for module in ("vision_transformer", "deit")
        for name in timm.list_models(module=module)
        if not any(part in f"{name}_" for part in _OTHER_BLOCKS)
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


def _norms(*parts: nn.Module) -> int:
    return sum("norm" in type(module).__name__.lower() for part in parts for module in part.modules())


@cache
def _imagenet_labels(classes: int) -> list[str] | None:
    subset = timm.data.infer_imagenet_subset({"num_classes": classes})
    return list(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None
