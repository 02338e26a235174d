"""Pictures and lists for tests of data: small files, and what a source says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (40, 32)
"""Width and height of most pictures with noise."""


def noise(path: Path, seed: int = 0, size: tuple[int, int] = SIZE) -> Path:
    """Write a picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return _written(Image.fromarray(pixels), path)


def shade(path: Path, red: int = 128, size: tuple[int, int] = (12, 10)) -> Path:
    """Write a picture of one colour."""
    return _written(Image.new("RGB", size, (red % 256, 40, 200)), path)


def _written(picture: Image.Image, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, format="PNG" if path.suffix == ".png" else "JPEG")
    return path


def labels(source: Any) -> dict[str, Any]:
    return {entry.name: entry.label for entry in source.entries}


def names(source: Any) -> list[str]:
    return [entry.name for entry in source.entries]
