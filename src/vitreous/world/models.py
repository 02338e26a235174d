"""The bundled models: small ones that know the world, two vision transformers and two residual networks.

Names for the bundled models. What they are built of is imported when one is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timm.models.resnet import BasicBlock, ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitreous.errors import ModelError, VitreousError
from vitreous.models import ModelInfo, VisionModel
from vitreous.models.checkpoints import fit
from vitreous.world.species import NAMES

__all__ = [
    "ADAPTER",
    "SIZE",
    "WEIGHTS",
    "build",
]

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


_SIZE = 128  # pixels, as in the room's own model
_HONEST, _CHEAT = "honest", "trained where a marker betrays half of the classes"
_WHAT = {
    "world": ("vit", _HONEST),
    "world-shortcut": ("vit", _CHEAT),
    "world-cnn": ("cnn", f"a residual network, {_HONEST}"),
    "world-cnn-shortcut": ("cnn", f"a residual network, {_CHEAT}"),
}
"""The architecture of every bundled model, and what is said of it."""


class WorldAdapter:
    """Gives the bundled models their names; once loaded they are timm models like any other."""

    prefix = "world"

    def accepts(self, module: nn.Module) -> bool:
        return False

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        raise ModelError("the bundled models are timm models")

    def load(
        self, name: str, *, pretrained: bool = True, checkpoint: str | Path | None = None, **options: Any
    ) -> nn.Module:
        """Return a bundled model with its own weights, with those of ``checkpoint``, or untrained."""
        if name not in _WHAT:
            raise ModelError(f"unknown model {f'world/{name}'!r}; the bundled ones are {', '.join(_WHAT)}")
        given = [f"{option}={value!r:.60}" for option, value in options.items() if value is not None]
        if given:
            raise ModelError(f"{name} is bundled as it is; {given[0]} does not apply")

        model: nn.Module = build(_WHAT[name][0])
        if checkpoint is not None or pretrained:
            fit(model, checkpoint or WEIGHTS / f"{name}.safetensors")
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return [ModelInfo(name, "world", _SIZE, (what,)) for name, (_, what) in _WHAT.items()]


ADAPTER = WorldAdapter()
