"""Tiny seeded torchvision models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
from torchvision.models.vision_transformer import ConvStemConfig, VisionTransformer

__all__ = ["FAMILIES", "MODELS", "VIT", "build"]

VIT: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 3,
    "num_heads": 3,
    "hidden_dim": 24,
    "mlp_dim": 48,
    "num_classes": 5,
}
_SWIN: dict[str, Any] = {
    "patch_size": [4, 4],
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": [4, 4],
    "num_classes": 5,
}
_V2: dict[str, Any] = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}


def build(make: Callable[..., nn.Module], size: Any = None, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = make(**options)
        for name, parameter in model.named_parameters():  # far from the flat start of training
            nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.data += 1
    if size is not None:
        model.image_size = size
    return model.eval()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": partial(build, VisionTransformer, **VIT),
    "stem": partial(build, VisionTransformer, **VIT, conv_stem_configs=[ConvStemConfig(6, 3, 2)] * 3),
    "swin": partial(build, SwinTransformer, 32, **_SWIN),
    "swin_odd": partial(build, SwinTransformer, (36, 52), **_SWIN),  # padded windows, padded merging
    "swin_v2": partial(build, SwinTransformer, 32, **_SWIN, **_V2),
}
FAMILIES = {f"tv_{name}": make for name, make in MODELS.items() if name != "stem"}
