"""Tiny seeded models of timm's other families, in the style of ``families``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from timm.layers import RmsNorm
from timm.models.beit import Beit
from timm.models.eva import Eva
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

__all__ = ["FAMILIES", "VARIANTS"]

_COLUMN: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 3,
    "num_heads": 3,
    "num_classes": 5,
}
_EVA02: dict[str, Any] = {
    "swiglu_mlp": True,
    "scale_mlp": True,
    "qkv_fused": False,
    "use_rot_pos_emb": True,
    "ref_feat_shape": 2,
}
_ROPE: dict[str, Any] = {"attn_type": "rope", "use_rot_pos_emb": True, "global_pool": "token"}
_STAGES: dict[str, Any] = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}


def _build(make: Callable[..., nn.Module], **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = make(**options)
        for name, parameter in model.named_parameters():  # far from the flat start of training
            nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
            if ("norm" in name and name.endswith("weight")) or "gamma" in name:
                parameter.data += 1
            if "cpb_mlp" in name:  # 512 hidden units would drive the sigmoid behind them to its ends
                parameter.data /= 8
    return model.eval()


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "beit": partial(
        _build, Beit, **_COLUMN, init_values=0.1, use_abs_pos_emb=False, use_rel_pos_bias=True, global_pool="avg"
    ),
    "beit_shared": partial(
        _build, Beit, **_COLUMN, use_rel_pos_bias=True, use_shared_rel_pos_bias=True, global_pool="token"
    ),
    "eva": partial(_build, Eva, **_COLUMN, init_values=0.1),
    "eva02": partial(_build, Eva, **_COLUMN, **_EVA02, scale_attn_inner=True, init_values=0.1),
    "swin": partial(_build, SwinTransformer, **_STAGES, img_size=32, patch_size=4, window_size=2),
    "swinv2": partial(_build, SwinTransformerV2, **_STAGES, img_size=64, patch_size=4, window_size=4),
}

VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "only_shared": partial(
        _build, Beit, **{**_COLUMN, "img_size": (32, 48), "depth": 2}, use_shared_rel_pos_bias=True, swiglu_mlp=True
    ),
    "packed": partial(_build, Eva, **{**_COLUMN, "img_size": (32, 48)}, swiglu_mlp=True, use_rot_pos_emb=True),
    "mixed": partial(_build, Eva, **_COLUMN, **_ROPE, rope_type="mixed", use_abs_pos_emb=False),
    "mixed_dynamic": partial(
        _build, Eva, **{**_COLUMN, "img_size": (32, 48)}, **_ROPE, rope_type="mixed", dynamic_img_size=True
    ),
    "dinov3": partial(
        _build,
        Eva,
        **_COLUMN,
        use_rot_pos_emb=True,
        rope_type="dinov3",
        rope_rotate_half=True,
        dynamic_img_size=True,
        num_reg_tokens=4,
        use_abs_pos_emb=False,
        init_values=0.1,
    ),
    "grouped": partial(
        _build,
        Eva,
        **{**_COLUMN, "embed_dim": 32, "num_heads": 4, "num_kv_heads": 2},
        **_ROPE,
        qkv_fused=False,
        qk_norm=True,
        norm_layer=RmsNorm,
        init_values=0.1,
        attn_only_layer_scale=True,
    ),
    "map": partial(_build, Eva, **_COLUMN, **{**_ROPE, "global_pool": "map"}, use_pre_transformer_norm=True),
}
"""Other forms of the same families: grids that are not square, learnt rotations, registers, grouped heads with
RMS norms, pooling by attention over all tokens."""
if "num_kv_heads" not in signature(Eva).parameters:  # an older timm, which groups no heads
    del VARIANTS["grouped"]
