"""The cache of activation statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

import vitreous as vt
from families import images
from vitreous.tracing import statistics_collect as scenes

SHORT = "coiba(steps=3, samples=2)"


TESTS = Path(__file__).parent.parent / "support"


def explained(model: Any, forget: bool = True) -> Tensor:
    """A map by a process that remembers nothing, warnings being errors (pyproject.toml)."""
    if forget:
        scenes._cached.clear()
    return vt.get_method(SHORT).attribute(model, images(model, 1), 1)


def only(folder: Path) -> Path:
    """The one file that is there, and nothing else."""
    (path,) = folder.iterdir()
    assert path.suffix == ".safetensors"
    return path


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import hashlib
import torch
torch.set_num_threads(1)
import vitreous as vt
from families import FAMILIES, images
model = FAMILIES["vit"]()
sys.stdin.readline()
found = vt.get_method("coiba(steps=3, samples=2)").attribute(model, images(model, 1), 1)
print(hashlib.sha256(found.numpy().tobytes()).hexdigest())
"""
