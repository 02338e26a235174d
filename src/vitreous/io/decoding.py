"""Decoding image files: bytes become an upright RGB image, or one line that says why not. No torch is needed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitreous.errors import ImageError, reason

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a file may hold, whatever its name: other readers of PIL start programs, or are little tried."""
_warning_filters = Lock()  # they belong to all threads


def decode(source: BinaryIO, name: str) -> Image.Image:
    """Return the photograph in an open file: upright, in RGB; its first frame if it has several."""
    with _errors_naming(name), _open(source, name) as image:
        return _to_rgb(ImageOps.exif_transpose(image), name)


def upright(image: Image.Image, name: str) -> Image.Image:
    """Turn an image by its EXIF orientation and convert it to RGB."""
    with _errors_naming(name):  # PIL reads lazily: a broken file shows here
        return _to_rgb(ImageOps.exif_transpose(image), name)


@contextmanager
def _errors_naming(name: str) -> Iterator[None]:
    try:
        yield
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
        with _warning_filters, warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file, formats=FORMATS)
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\d+ pixels", str(error))
        raise ImageError(f"{name} has {pixels[0] if pixels else 'too many pixels'}, over {limit}; {advice}") from None
    width, height = image.size
    if limit is not None and width * height > limit:
        image.close()
        raise ImageError(f"{name} has {width} x {height} pixels, over {limit}; {advice}")
    return image


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Convert to RGB. Transparency is left out: the colours below it are what a training pipeline shows a model.

    Modes with more than eight bits are scaled where PIL would cut them off: floats up to 1, integers of 16 bits.
    """
    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(_to_bytes(np.asarray(image), name))
    elif image.mode in ("P", "PA", "RGBa", "La"):  # the direct way warns, or does not exist
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    return image.convert("RGB")


def _to_bytes(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Scale grey values to bytes: those up to 1 (floats), 255 or 65535, whichever is the first to hold them all."""
    is_float = np.issubdtype(values.dtype, np.floating)
    least, most = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    if not (0 <= least and most <= 65535):  # nor NaN
        raise ImageError(f"{name} holds values from {least:g} to {most:g}; scale them to 0..1, 255 or 65535 first")
    top = 1 if is_float and most <= 1 else 255 if most <= 255 else 65535
    scaled: np.ndarray[Any, Any] = np.rint(values * np.float32(255 / top)).astype(np.uint8)
    return scaled
