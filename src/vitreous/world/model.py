"""The bundled models: small ones that know the world, two vision transformers and two residual networks."""

from __future__ import annotations

from pathlib import Path

from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer

from vitreous.errors import VitreousError
from vitreous.world.creatures import NAMES

__all__ = ["SIZE", "WEIGHTS", "build"]

SIZE = 128
WEIGHTS = Path(__file__).parent / "weights"


def build(arch: str = "vit") -> VisionTransformer | ResNet:
    """Return an untrained model.

    ``vit``: class token, pre-norm, 8 blocks of width 192, patches of 8 pixels. ``cnn``: the shape of a ResNet-18 with
    narrow stages; the last one is dilated instead of halved, so that its grid is 8 x 8, about that of a ResNet-50 on a
    photograph.
    """
    model: VisionTransformer | ResNet
    if arch == "vit":
        model = VisionTransformer(
            img_size=SIZE, patch_size=8, embed_dim=192, depth=8, num_heads=6, num_classes=len(NAMES), class_token=True
        )
    elif arch == "cnn":
        model = ResNet(
            BasicBlock, layers=(2, 2, 2, 2), channels=(32, 48, 80, 128), output_stride=16, num_classes=len(NAMES)
        )
    else:
        raise VitreousError(f"arch={arch!r:.60} is neither vit nor cnn")
    model.pretrained_cfg = {
        "architecture": "world" if arch == "vit" else "world-cnn",
        "input_size": (3, SIZE, SIZE),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "crop_pct": 1.0,
        "crop_mode": "center",
        "interpolation": "bicubic",
        "label_names": list(NAMES),
    }
    return model
