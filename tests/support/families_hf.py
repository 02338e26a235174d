"""Tiny seeded models of Hugging Face transformers, one for each kind that the adapter supports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

import vitreous as vt

__all__ = ["FAMILIES", "build", "images"]

_SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
_TEXT: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "bos_token_id": 97,
    "eos_token_id": 98,
    "pad_token_id": 96,
}
_SWIN: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 24,
    "depths": [2, 1],
    "num_heads": [3, 3],
    "window_size": 4,
    "hidden_dropout_prob": 0.1,
}
LABELS = ["cat", "dog", "bird", "fish", "owl"]


def seeded(model: nn.Module) -> nn.Module:
    """Weights far from the flat start of training."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)
        for name, parameter in model.named_parameters():
            nn.init.normal_(parameter, std=0.4 if parameter.ndim > 1 else 0.2)
            if ("norm" in name and name.endswith("weight")) or "lambda" in name:
                parameter += 1
    return model.eval()


def build(
    make: str, config: str, attention: str | None = "sdpa", small: dict[str, Any] | None = None, **more: Any
) -> Any:
    """Build one class of transformers from its configuration."""
    settings = {**(_SMALL if small is None else small), "num_labels": 5, **more}
    if make.startswith(("CLIP", "Siglip")):
        settings = {"vision_config": settings, "text_config": _TEXT, "projection_dim": 20, "num_labels": 5}
    chosen = {} if attention is None else {"attn_implementation": attention}
    return seeded(getattr(hf, make)._from_config(getattr(hf, config)(**settings), **chosen))


def zero_shot(make: str, config: str, width: int, **more: Any) -> vt.VisionModel:
    """Return the view of an image-text model with five classes given as text embeddings."""
    text = torch.randn(5, width, generator=torch.Generator().manual_seed(6))  # no score is near zero
    return vt.wrap(build(make, config, **more), text_embeds=text, class_names=LABELS)


FAMILIES: dict[str, Callable[[], Any]] = {
    "hf_vit": partial(build, "ViTForImageClassification", "ViTConfig"),
    "hf_vit_eager": partial(build, "ViTForImageClassification", "ViTConfig", attention="eager"),
    "hf_deit": partial(build, "DeiTForImageClassification", "DeiTConfig"),
    "hf_deit_teacher": partial(build, "DeiTForImageClassificationWithTeacher", "DeiTConfig"),
    "hf_dinov2": partial(build, "Dinov2ForImageClassification", "Dinov2Config", mlp_ratio=2),
    "hf_dinov2_registers": partial(
        build, "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", mlp_ratio=2
    ),
    "hf_swin": partial(build, "SwinForImageClassification", "SwinConfig", attention=None, small=_SWIN),
    "hf_clip": partial(zero_shot, "CLIPModel", "CLIPConfig", 20),
    "hf_siglip": partial(zero_shot, "SiglipModel", "SiglipConfig", 24),
}


def images(batch: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return normalised random inputs."""
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).to(dtype)
