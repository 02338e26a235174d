"""Pictures as files: which formats there are, and how one is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from vitreous.errors import VitreousError

from .sheet import Sheet
from .vector import pdf, svg

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
_VECTORS = {".svg": svg, ".pdf": pdf}


def is_picture(path: str | Path) -> bool:
    """Whether a path ends like a picture."""
    return Path(path).suffix.lower() in {**_FORMATS, **_VECTORS}


def encoded(picture: Image.Image | Sheet, path: str | Path | None = None) -> Callable[[BinaryIO], object]:
    """What writes the picture into an open file: as PNG, or in the format that the end of `path` asks for.

    A page can be written as SVG or PDF too, with its text as text.
    """
    suffix = ".png" if path is None else Path(path).suffix.lower()
    page = isinstance(picture, Sheet)
    if suffix not in _FORMATS and not (page and suffix in _VECTORS):
        choices = [*_FORMATS, *(_VECTORS if page else ())]
        raise VitreousError(f"could not write {path}: it must end in one of {', '.join(choices)}")
    if isinstance(picture, Sheet):
        if suffix in _VECTORS:
            data = _VECTORS[suffix](picture)
            return lambda file: file.write(data)
        picture = picture.image()
    return lambda file: picture.save(file, format=_FORMATS[suffix])
