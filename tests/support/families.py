"""Tiny seeded models, one for each kind the timm adapter supports, and the golden model of the specification."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from timm.layers import QuickGELU, SwiGLUPacked
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import vitreous as vt

__all__ = ["FAMILIES", "golden", "images", "prand", "verified", "rounding"]

_SMALL: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 3,
    "num_heads": 3,
    "num_classes": 5,
}


def rounding(family: str) -> float:
    """Return how far the logits of a model and of its structural copy may lie apart: not at all, with one exception.

    Known for torch 2.6 to 2.11: whether a batch is folded into one matrix product depends on whether a gradient is
    wanted, which attention pooling with its expanded query shows in the last bit.
    """
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    return 1e-5 if family in ("siglip", "map") and version < (2, 15) else 0.0


def _build(make: Callable[..., nn.Module] = VisionTransformer, **changes: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = make(**{**_SMALL, **changes})
        for name, parameter in model.named_parameters():  # far from the flat start of training
            nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
            if ("norm" in name and name.endswith("weight")) or "gamma" in name:
                parameter.data += 1
    return model.eval()


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "vit": _build,
    "deit_distilled": partial(_build, VisionTransformerDistilled),
    "deit3": partial(_build, init_values=1e-2, no_embed_class=True),
    "registers": partial(_build, reg_tokens=4, init_values=1e-2, no_embed_class=True),
    "gap": partial(_build, class_token=False, global_pool="avg"),
    "gap_all": partial(_build, global_pool="avg", pool_include_prefix=True, fc_norm=False),
    "clip": partial(_build, pre_norm=True, act_layer=QuickGELU),
    "siglip": partial(_build, class_token=False, global_pool="map", act_layer="gelu_tanh"),
    "nonsquare": partial(_build, img_size=(32, 48), patch_size=(8, 16)),
    "qk_norm": partial(_build, qk_norm=True, scale_attn_norm=True, scale_mlp_norm=True),
    "swiglu": partial(_build, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU),
}


def images(model: nn.Module, batch: int, seed: int = 0) -> Tensor:
    """Return normalised random inputs of the size and dtype of a model or view."""
    vision_model = vt.wrap(model)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, *vision_model.preprocess.size, generator=generator).to(vision_model.dtype)


def verified(model: Any) -> Any:
    """Let a model be compared with itself, and its operations counted, so that a test counts only what comes after."""
    vision_model = vt.wrap(model)
    vision_model.verify(images(model, 1))
    vision_model.operation_counts(None)
    return model


def prand(count: int, key: int) -> Tensor:
    """The specification's deterministic numbers, in double precision and in this order of operations."""
    index = np.arange(count, dtype=np.float64)
    value = np.sin(index * 12.9898 + key * 78.233) * 43758.5453
    return torch.from_numpy(value - np.floor(value) - 0.5)


def golden() -> tuple[nn.Module, Tensor]:
    """Return the golden model (float64) and its image."""
    model = VisionTransformer(
        img_size=224, patch_size=16, embed_dim=24, depth=4, num_heads=3, num_classes=7, mlp_ratio=4, qkv_bias=True
    )
    model = model.double().eval()
    with torch.no_grad():
        for key, (name, parameter) in enumerate(sorted(model.named_parameters()), start=1):
            numbers = prand(parameter.numel(), key).view_as(parameter)
            if parameter.ndim > 1 and "weight" in name:
                parameter.copy_(numbers * 3 / np.sqrt(parameter[0].numel()))
            elif "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + 0.4 * numbers)
            else:
                parameter.copy_(0.4 * numbers)
    return model, (2 * prand(150528, 0)).view(1, 3, 224, 224)
