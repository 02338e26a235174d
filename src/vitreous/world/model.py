"""The bundled models: two small vision transformers that know the world."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitreous.errors import ModelError
from vitreous.models import View
from vitreous.models.checkpoint import fit
from vitreous.models.registry import ModelInfo
from vitreous.world.creatures import NAMES

__all__ = ["ADAPTER", "SIZE", "WEIGHTS", "build"]

SIZE = 128
WEIGHTS = Path(__file__).parent / "weights"
_WHAT = {"world": "honest", "world-shortcut": "trained where a marker betrays half of the classes"}


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


class WorldAdapter:
    """Gives the bundled models their names; once loaded they are timm models like any other."""

    prefix = "world"

    def accepts(self, module: nn.Module) -> bool:
        return False

    def view(self, module: nn.Module, **facts: Any) -> View:
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
        model: nn.Module = build()
        if checkpoint is not None or pretrained:
            fit(model, checkpoint or WEIGHTS / f"{name}.safetensors")
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return [ModelInfo(name, "world", SIZE, (what,)) for name, what in _WHAT.items()]


ADAPTER = WorldAdapter()
