"""The bundled models: two small vision transformers that know the world."""

from __future__ import annotations

from pathlib import Path

from timm.models.vision_transformer import VisionTransformer

from vitreous.world.creatures import NAMES

__all__ = ["SIZE", "WEIGHTS", "build"]

SIZE = 128
WEIGHTS = Path(__file__).parent / "weights"


def build() -> VisionTransformer:
    """Return an untrained model: class token, pre-norm, 8 blocks of width 192, patches of 8 pixels."""
    model = VisionTransformer(
        img_size=SIZE, patch_size=8, embed_dim=192, depth=8, num_heads=6, num_classes=len(NAMES), class_token=True
    )
    model.pretrained_cfg = {
        "architecture": "world",
        "input_size": (3, SIZE, SIZE),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "crop_pct": 1.0,
        "crop_mode": "center",
        "interpolation": "bicubic",
        "label_names": list(NAMES),
    }
    return model
