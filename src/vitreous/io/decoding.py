"""Decoding image files: bytes become an upright RGB image, or one line that says why not. No torch is needed."""

from __future__ import annotations

import re
import warnings
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitreous.errors import ImageError, one_line

__all__ = ["FORMATS", "decode", "reason", "upright"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a file may hold, whatever its name: other readers of PIL start programs, or are little tried."""

_quiet = Lock()  # filters of warnings belong to all threads


def decode(source: BinaryIO, name: str) -> Image.Image:
    """Return the photograph in an open file: upright, in RGB; its first frame if it has several."""
    try:
        with _open(source, name) as opened:
            return upright(opened, name)
    except UnidentifiedImageError:
        raise ImageError(f"{name} is not an image that can be read") from None
    except ImageError:
        raise
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise ImageError(f"{name} cannot be read: {reason(error)}") from None


def _open(file: BinaryIO, name: str) -> Image.Image:
    """Open a file unless it claims more pixels than PIL's own limit, which PIL itself enforces from twice that on."""
    limit = Image.MAX_IMAGE_PIXELS
    advice = "make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as error:
        told = re.search(r"\d+ pixels", str(error))
        raise ImageError(f"{name} has {told[0] if told else 'too many pixels'}, over {limit}; {advice}") from None
    width, height = opened.size
    if limit is not None and width * height > limit:
        opened.close()
        raise ImageError(f"{name} has {width} x {height} pixels, over {limit}; {advice}")
    return opened


def upright(image: Image.Image, name: str) -> Image.Image:
    """Turn a picture by its EXIF orientation and convert it to RGB."""
    try:
        return _rgb(ImageOps.exif_transpose(image), name)
    except ImageError:
        raise
    except Exception as error:  # PIL reads lazily: a broken file shows here
        raise ImageError(f"{name} cannot be read: {reason(error)}") from None


def _rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert to RGB. Transparency is left out: the colours below it are what a training pipeline shows a model.

    Modes with more than eight bits are scaled where PIL would cut them off: floats up to 1, integers of 16 bits.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(_eight_bits(np.asarray(image), name))
    elif image.mode in ("P", "PA", "RGBa", "La"):  # the direct way warns, or does not exist
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    return image.convert("RGB")


def _eight_bits(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Scale grey values to bytes: those up to 1 (floats), 255 or 65535, whichever is the first to hold them all."""
    floats = np.issubdtype(values.dtype, np.floating)
    least, most = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not (0 <= least and most <= 65535):  # nor NaN
        raise ImageError(f"{name} holds values from {least:g} to {most:g}; scale them to 0..1, 255 or 65535 first")
    top = 1 if floats and most <= 1 else 255 if most <= 255 else 65535
    scaled: np.ndarray[Any, Any] = np.rint(values * np.float32(255 / top)).astype(np.uint8)
    return scaled


def reason(error: Exception) -> str:
    """Return the first line of what a reader complains about."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else f"broken file ({type(error).__name__})"
