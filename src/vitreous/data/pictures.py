"""Reading pictures: paths, folders, PIL images, arrays, tensors and data loaders become model inputs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous import disk
from vitreous.data.beside import masks
from vitreous.data.colours import Colours
from vitreous.data.items import each_of, is_table, without_labels
from vitreous.decoding import decode
from vitreous.decoding import reason as _reason
from vitreous.decoding import upright as _upright
from vitreous.errors import ImageError
from vitreous.models import Box, View

__all__ = ["OnError", "Picture", "count", "file_digest", "image_files", "is_single", "open_photo", "pictures"]

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_UNSEEN = Image.new("RGB", (1, 1))

OnError = Callable[[Path, ImageError], None]
"""Called with the path of a picture that cannot be read, and why; the others go on."""


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

    @cached_property
    def digest(self) -> str:
        """What tells it from other pictures: a digest of the file's bytes, or of the tensor."""
        if self.path is not None:
            return file_digest(self.path)
        values = self.tensor.detach().to("cpu", torch.float64).contiguous()
        return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).hexdigest()


def file_digest(path: str | Path) -> str:
    """Return a digest of the bytes of a file."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with disk.open_file(path) as file:
            while part := file.read(2**20):
                digest.update(part)
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {_reason(error)}") from None
    return digest.hexdigest()


def open_photo(path: str | Path | BytesIO) -> Image.Image:
    """Read a photograph: upright, in RGB, the first frame of a moving one; nothing larger than PIL allows."""
    if isinstance(path, BytesIO):
        return decode(path, "the picture")
    path = Path(path)
    _refuse_absent(path)
    if not os.path.isfile(path):
        raise ImageError(f"{path} is not a file")
    try:
        with disk.open_file(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise ImageError(f"{path} is empty (0 bytes)")
            return decode(file, str(path))
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {_reason(error)}") from None


def image_files(path: str | Path) -> list[Path]:
    """Return the pictures of a folder in order, or the one file itself; masks of a folder of scenes are no pictures."""
    if not str(path):  # which Path would take for the current folder
        raise ImageError("the path of a picture is empty")
    path = Path(path)
    _refuse_absent(path)
    if not os.path.isdir(path):
        return [path]
    try:
        others = masks(path)
        found = (path / name for name in os.listdir(path) if name not in others)
        files = sorted(each for each in found if each.suffix.lower() in _SUFFIXES and os.path.isfile(each))
    except OSError as error:
        raise ImageError(f"the folder {path} cannot be read: {_reason(error)}") from None
    if not files:
        if not os.access(path, os.X_OK):
            raise ImageError(f"the folder {path} cannot be read: Permission denied")
        inside = next((each for each in sorted(path.glob("*/*")) if each.suffix.lower() in _SUFFIXES), None)
        hint = f" itself, only in folders inside it such as {inside.parent.name}" if inside else ""
        raise ImageError(f"no images in the folder {path}{hint}")
    return files


def _refuse_absent(path: Path) -> None:
    try:
        os.stat(path)
        return
    except PermissionError as error:
        raise ImageError(f"{path} cannot be read: {_reason(error)}") from None
    except (OSError, ValueError):  # impossible names too
        pass
    if address := re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+):/", str(path)):
        raise ImageError(f"{path} is an address ({address[1]}), and nothing is fetched: download it and give the file")
    raise ImageError(f"no such file: {path}")


def is_single(source: Any) -> bool:
    """Whether this is one picture, so that one explanation is the answer."""
    if isinstance(source, str | Path):
        return not os.path.isdir(source)
    if is_table(source):
        return is_single(without_labels(source))
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
    if is_table(source):
        return count(without_labels(source))
    if isinstance(source, list | tuple):
        counts = [count(without_labels(each)) for each in source]
        return None if any(c is None for c in counts) else sum(c for c in counts if c)
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):  # a data set: one picture each
        return len(source)
    dataset = getattr(source, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else None


def pictures(
    source: Any,
    view: View,
    on_error: OnError | None = None,
    at: int | None = None,
    seen: bool = True,
    colours: Colours | None = None,
) -> Iterator[Picture]:
    """Yield every picture of a source as an input of this model.

    A file that cannot be read is an error; with ``on_error`` it is told and left out. Pictures that are not files are
    called by their place in the whole source, which begins ``at`` here. Without ``seen``, no image is made of a tensor.
    Tensors that look as if they were not normalised are warned about once; ``colours`` remembers that between calls.
    """
    colours = colours or Colours(view)
    if isinstance(source, str | Path):
        if not str(source):  # which Path would take for the current folder
            raise ImageError("the path of a picture is empty")
        yield from _from_files(Path(source), view, on_error)
    elif isinstance(source, Image.Image):
        yield _from_photo(_upright(source, "the picture"), view, "image" if at is None else f"image-{at}")
    elif isinstance(source, np.ndarray):
        if source.ndim == 4 and not len(source):
            raise ImageError("there are no pictures in the array")
        for index, array in enumerate(source if source.ndim == 4 else [source], at or 0):
            yield _from_photo(_from_array(array), view, f"image-{index}")
    elif isinstance(source, torch.Tensor):
        yield from _from_tensor(source, view, at or 0, seen, colours)
    elif is_table(source):
        yield from pictures(without_labels(source), view, on_error, at, seen, colours)
    elif (items := each_of(source)) is not None:
        yield from _from_many(items, view, on_error, at or 0, seen, colours)
    else:
        raise ImageError(f"a {type(source).__name__} is not a picture; give a path, PIL image, array, tensor or list")


def _from_files(path: Path, view: View, on_error: OnError | None) -> Iterator[Picture]:
    for each in image_files(path) if os.path.isdir(path) else [path]:
        try:
            picture = _from_photo(open_photo(each), view, each.name, each)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(each, error)
        else:
            yield picture


def _from_photo(photo: Image.Image, view: View, name: str, path: Path | None = None) -> Picture:
    try:
        tensor, seen, box = view.preprocess.inputs(photo)
    except ImageError as error:
        raise ImageError(f"{path}: {error}" if path else str(error)) from None
    return Picture(tensor, seen, name, box, path, photo if path is None else None)


def _from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"an array of shape {array.shape} is not a picture [H, W, 3]")
    if array.dtype != np.uint8:
        if not np.issubdtype(array.dtype, np.floating) or not ((array >= 0) & (array <= 1)).all():
            raise ImageError(f"an array of {array.dtype} must hold bytes, or floats from 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")


def _from_tensor(tensor: torch.Tensor, view: View, at: int, seen: bool, colours: Colours) -> Iterator[Picture]:
    batch = tensor.unsqueeze(0) if tensor.ndim == 3 else tensor
    view.check_inputs(batch)
    colours.look(batch)
    for index, each in enumerate(batch, at):
        yield Picture(each, view.preprocess.picture(each) if seen else _UNSEEN, f"input-{index}")


def _from_many(
    source: Iterator[Any], view: View, on_error: OnError | None, at: int, seen: bool, colours: Colours
) -> Iterator[Picture]:
    place = at

    def told(path: Path, error: ImageError) -> None:
        nonlocal place
        place += 1
        assert on_error is not None
        on_error(path, error)

    for item in source:
        for picture in pictures(without_labels(item), view, None if on_error is None else told, place, seen, colours):
            place += 1
            yield picture
    if place == at:
        raise ImageError("there are no pictures in the list")
