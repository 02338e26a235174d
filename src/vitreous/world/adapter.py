"""Names for the bundled models. What they are built of is imported when one is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from vitreous.errors import ModelError
from vitreous.models import ModelInfo, View
from vitreous.models.checkpoint import fit

__all__ = ["ADAPTER"]

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
        from vitreous.world.model import WEIGHTS, build

        model: nn.Module = build(_WHAT[name][0])
        if checkpoint is not None or pretrained:
            fit(model, checkpoint or WEIGHTS / f"{name}.safetensors")
        return model.eval()

    def models(self) -> Iterable[ModelInfo]:
        return [ModelInfo(name, "world", _SIZE, (what,)) for name, (_, what) in _WHAT.items()]


ADAPTER = WorldAdapter()
