"""Code of users, written into a folder and changed there while a test goes on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from vitreous.methods import registry as methods
from vitreous.metrics import base as metrics

__all__ = ["PlugIns"]

METHOD = """
from dataclasses import dataclass

from vitreous.methods import Attribution, Method, register_method
from {package}helpers import scaled


@register_method("mine", family="mine", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Mine(Method):
    \"\"\"The pixels.\"\"\"

    grid = "pixel"
    power: int = 1

    def compute(self, ctx):
        return Attribution(scaled(ctx.inputs.mean(dim=1)) ** self.power, {{}})
"""
HELPERS = "def scaled(maps):\n    return maps * 1\n"
METRIC = """
from dataclasses import dataclass

from vitreous.metrics import Metric, register_metric


@register_metric("mean_value", family="mine")
@dataclass
class MeanValue(Metric):
    \"\"\"The mean of the map.\"\"\"

    def score(self, evaluation):
        values = evaluation.maps()
        return values.reshape(len(values), -1).mean(axis=1)
"""


class PlugIns:
    """A folder that modules are imported from; what they register goes with them when they are loaded anew."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one second and length are one to Python

    def write(self, **texts: str) -> None:
        """Write modules by name; those of packages have slashes."""
        for name, text in texts.items():
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / f"{name}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def load(self, *names: str) -> Any:
        """Import modules as a new process would; return the last one."""
        self.forget()
        return [importlib.import_module(name) for name in names][-1]

    def forget(self) -> None:
        importlib.invalidate_caches()
        own = {
            name
            for name, item in list(sys.modules.items())
            if str(getattr(item, "__file__", None) or "").startswith(str(self.folder))
        }
        for name in own:
            del sys.modules[name]
        for registry in (methods.REGISTRY, metrics.REGISTRY):
            for name in [name for name, info in registry.by_name.items() if info.factory.__module__ in own]:
                del registry.by_name[name]
