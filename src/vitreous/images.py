"""Reading pictures: paths, folders, PIL images, arrays, tensors and data loaders become model inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from vitreous.errors import ImageError
from vitreous.models import Box, View

__all__ = ["Picture", "count", "image_files", "is_single", "open_photo", "pictures"]

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Picture:
    """One input: the tensor, the picture the model sees, and where both come from."""

    tensor: torch.Tensor
    seen: Image.Image
    name: str
    box: Box | None = None
    """Where ``seen`` lies in the original photograph; None where only a tensor was given."""
    path: Path | None = None
    photo: Image.Image | None = None
    """The photograph itself, where it cannot be read from ``path`` again."""


def open_photo(path: str | Path) -> Image.Image:
    """Read a photograph, upright and in RGB."""
    path = Path(path)
    if not path.exists():
        raise ImageError(f"no such file: {path}")
    try:
        with Image.open(path) as opened:
            return _rgb(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError:
        raise ImageError(f"{path} is not an image that can be read") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(
            f"{path} cannot be read: {str(error).splitlines()[0] if str(error) else 'broken file'}"
        ) from None


def image_files(path: str | Path) -> list[Path]:
    """Return the pictures of a folder in order, or the one file itself."""
    path = Path(path)
    if not path.exists():
        raise ImageError(f"no such file: {path}")
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix.lower() in _SUFFIXES and each.is_file())
    if not found:
        raise ImageError(f"no images in the folder {path}")
    return found


def is_single(source: Any) -> bool:
    """Whether this is one picture, so that one explanation is the answer."""
    if isinstance(source, str | Path):
        return not Path(source).is_dir()
    if isinstance(source, np.ndarray):
        return source.ndim < 4
    return isinstance(source, Image.Image) or (isinstance(source, torch.Tensor) and source.ndim == 3)


def count(source: Any) -> int | None:
    """Return how many pictures there are, where that can be known beforehand."""
    if is_single(source):
        return 1
    if isinstance(source, str | Path):
        return len(image_files(source))
    if isinstance(source, torch.Tensor | np.ndarray):
        return len(source)
    if isinstance(source, list | tuple):
        counts = [count(each) for each in source]
        return None if any(c is None for c in counts) else sum(c for c in counts if c)
    dataset = getattr(source, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else None


def pictures(source: Any, view: View) -> Iterator[Picture]:
    """Yield every picture of a source as an input of this model."""
    if isinstance(source, str | Path):
        path = Path(source)
        for each in image_files(path):
            yield _from_photo(open_photo(each), view, each.name, each)
    elif isinstance(source, Image.Image):
        yield _from_photo(_rgb(ImageOps.exif_transpose(source)), view, "image")
    elif isinstance(source, np.ndarray):
        if source.ndim == 4 and not len(source):
            raise ImageError("there are no pictures in the array")
        for index, array in enumerate(source if source.ndim == 4 else [source]):
            yield _from_photo(_from_array(array), view, f"image-{index}")
    elif isinstance(source, torch.Tensor):
        yield from _from_tensor(source, view)
    elif isinstance(source, Iterable):
        yield from _from_many(source, view)
    else:
        raise ImageError(f"a {type(source).__name__} is not a picture; give a path, PIL image, array, tensor or list")


def _from_photo(photo: Image.Image, view: View, name: str, path: Path | None = None) -> Picture:
    seen, box = view.preprocess.see(photo)
    return Picture(view.preprocess.tensor(seen), seen, name, box, path, photo if path is None else None)


def _from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"an array of shape {array.shape} is not a picture [H, W, 3]")
    if array.dtype != np.uint8:
        if not np.issubdtype(array.dtype, np.floating) or not ((array >= 0) & (array <= 1)).all():
            raise ImageError(f"an array of {array.dtype} must hold bytes, or floats from 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB; sixteen bits are scaled to eight where the plain conversion would cut them off."""
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        scaled = values / 257 if values.max(initial=0) > 255 else values
        image = Image.fromarray(np.clip(np.round(scaled), 0, 255).astype(np.uint8))
    return image.convert("RGB")


def _without_labels(item: Any) -> Any:
    """A data loader yields (images, labels), a data set (image, label): take the pictures; leave other things alone."""
    if not isinstance(item, list | tuple) or not item or not isinstance(item[0], torch.Tensor):
        return item
    all_pictures = all(isinstance(each, torch.Tensor) and each.ndim == 3 for each in item)
    return item if all_pictures else item[0]


def _from_tensor(tensor: torch.Tensor, view: View) -> Iterator[Picture]:
    batch = tensor.unsqueeze(0) if tensor.ndim == 3 else tensor
    view.check_inputs(batch)
    for index, each in enumerate(batch):
        yield Picture(each, view.preprocess.picture(each), f"input-{index}")


def _from_many(source: Iterable[Any], view: View) -> Iterator[Picture]:
    empty = True
    for item in source:
        for picture in pictures(_without_labels(item), view):
            empty = False
            yield picture
    if empty:
        raise ImageError("there are no pictures in the list")
