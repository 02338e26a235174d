"""Pictures as files: which formats there are, and how one is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from vitreous.errors import VitreousError

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}


def encoded(image: Image.Image, path: str | Path | None = None) -> Callable[[BinaryIO], None]:
    """What writes the picture into an open file: as PNG, or in the format that the end of `path` asks for."""
    suffix = ".png" if path is None else Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise VitreousError(f"could not write {path}: it must end in one of {', '.join(_FORMATS)}")
    return lambda file: image.save(file, format=_FORMATS[suffix])
