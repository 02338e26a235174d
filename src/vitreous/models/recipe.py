"""How a model was loaded, so that the same call can be written down again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitreous.models.identity import state
from vitreous.models.preprocess import Preprocess

__all__ = ["Recipe"]

_MOST_NAMES = 20
"""Longer lists are named, not written out."""


@dataclass(frozen=True)
class Recipe:
    """The arguments of ``load``, and the state of the model right after it."""

    name: str
    options: Mapping[str, Any]
    weights: Any

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], module: nn.Module) -> Recipe:
        """Remember a call; arguments that say nothing are left out."""
        return cls(name, {key: value for key, value in options.items() if value is not None}, state(module))

    def holds(self, module: nn.Module) -> bool:
        """Whether the model is still what was loaded."""
        return bool(state(module) == self.weights)

    @property
    def is_random(self) -> bool:
        """Whether loading again gives other weights."""
        return self.options.get("pretrained") is False and "checkpoint" not in self.options

    def code(self) -> tuple[str, list[str]]:
        """Return the call in Python, and what each name in it stands for that cannot be written out."""
        words, names = [repr(self.name)], []
        for option, value in self.options.items():
            literal = _literal(value)
            words.append(f"{option}={option if literal is None else literal}")
            if literal is None:
                names.append(f"{option}: {_described(value)}")
        return f"vt.load({', '.join(words)})", names


def _literal(value: Any) -> str | None:
    """Return Python that gives an equal value; ``None`` where there is none, or it is too long."""
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, torch.device | torch.dtype):
        return repr(str(value).removeprefix("torch."))
    if type(value) is Preprocess:
        return f"vt.{value!r}"
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    plain = isinstance(value, list | tuple) and len(value) <= _MOST_NAMES
    return repr(value) if plain and all(isinstance(each, str | bool | int | float) for each in value) else None


def _described(value: Any) -> str:
    count = f" of {len(value)}" if isinstance(value, list | tuple | dict) else ""
    return f"your own {type(value).__name__}{count}"
