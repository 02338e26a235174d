"""The one way to cut a stream into batches.

Folders of scenes, as ``vitreous world render`` writes them: which of their files are no photographs.

Whether tensors look as if nobody had normalised them: one warning for each call, however many batches there are.

What data loaders and data sets yield: pictures, pairs with a class, and tables with both under usual names.

Reading pictures: paths, folders, PIL images, arrays, tensors and data loaders become model inputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous import io as disk
from vitreous.errors import ImageError, VitreousWarning
from vitreous.errors import reason as _reason
from vitreous.io.decoding import decode
from vitreous.io.decoding import upright as _upright
from vitreous.models import Box, VisionModel

__all__ = [
    "Colours",
    "OnError",
    "LoadedImage",
    "count",
    "cut",
    "each_of",
    "file_digest",
    "image_files",
    "is_pair",
    "is_single",
    "is_table",
    "scene_masks",
    "open_photo",
    "paired",
    "pictures",
    "without_labels",
]

T = TypeVar("T")


def cut(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items, the last one shorter; nothing is read before it is asked for."""
    source = iter(items)
    while part := list(islice(source, min(size, sys.maxsize))):
        yield part


_MOST_BYTES = 2**28


def scene_masks(folder: Path) -> frozenset[str]:
    """Return the names of the masks that the ``scenes.json`` of a folder lists; none where there is no such file."""
    place = folder / "scenes.json"
    if not os.path.isfile(place):
        return frozenset()
    try:
        told = json.loads(disk.read_file(place, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return frozenset()
    scenes = told.get("scenes") if isinstance(told, dict) else None
    if not isinstance(scenes, list) or not str(told.get("schema")).startswith("vitreous.scenes/"):
        return frozenset()
    return frozenset(str(scene["mask"]) for scene in scenes if isinstance(scene, dict) and "mask" in scene)


_BYTES = 16.0
"""No normalised picture without a negative value goes beyond this."""
_SPREAD = 0.5
"""Pictures in 0..1 use at least this much of it; less may be a bright or grey one that is normalised."""


class Colours:
    """Looks at the first tensors of one source."""

    def __init__(self, model: VisionModel) -> None:
        how = model.preprocess
        self.name, self.looked = model.name, not any(how.mean) and all(value == 1 for value in how.std)
        colours = list(zip(how.mean, how.std, strict=False))
        self.low = min((0 - mean) / (std or 1) for mean, std in colours)
        self.high = max((1 - mean) / (std or 1) for mean, std in colours)

    def look(self, batch: Tensor) -> None:
        """Warn if these are raw bytes, or colours from 0 to 1 where the model expects negative values too."""
        if self.looked or batch.ndim != 4:  # tokens have no colours
            return
        self.looked = True
        least, most = float(batch.min()), float(batch.max())
        raw = least >= 0 and most > _BYTES
        unit = least >= 0 and most <= 1 and most - least >= _SPREAD and self.low < -0.5
        if raw or unit:
            warnings.warn(
                f"the tensors hold values from {least:.3g} to {most:.3g} and look as if they were not normalised; "
                f"{self.name} takes about {self.low:.2g} to {self.high:.2g} (see its preprocess)",
                VitreousWarning,
                stacklevel=2,
            )


_PICTURES = ("pixel_values", "image", "images", "img")
_CLASSES = ("labels", "label")


def is_table(item: Any) -> bool:
    """Whether this is a table such as ``{"pixel_values": …, "labels": …}``."""
    return isinstance(item, Mapping)


def paired(item: Any) -> tuple[Any, Any]:
    """Return the pictures of an item, and their classes or None."""
    if is_table(item):
        return _under(item, _PICTURES), next((item[name] for name in _CLASSES if name in item), None)
    return item if is_pair(item) else (item, None)


def without_labels(item: Any) -> Any:
    """Return the pictures of what a data loader or a data set yields; other things are left alone."""
    if is_table(item):
        return _under(item, _PICTURES)
    if not isinstance(item, list | tuple) or not item:
        return item
    if not isinstance(item[0], Tensor):
        return item[0] if is_pair(item) else item
    all_pictures = all(isinstance(each, Tensor) and each.ndim == 3 for each in item)
    return item if all_pictures else item[0]


def is_pair(item: Any) -> bool:
    """Whether this is a picture with its class, or a batch of pictures with theirs."""
    if not isinstance(item, list | tuple) or len(item) != 2:
        return False
    told = item[1]
    if isinstance(told, Tensor | np.ndarray):
        return told.ndim < 2
    if isinstance(told, list | tuple):
        return bool(told) and all(isinstance(each, int) for each in told)
    return hasattr(told, "__index__")


def each_of(source: Any) -> Iterator[Any] | None:
    """Return the items of anything that has some, also of a data set that only knows its length; else None."""
    if isinstance(source, Iterable):
        return iter(source)
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):
        return (source[place] for place in range(len(source)))
    return None


def _under(item: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        if name in item:
            return item[name]
    raise ImageError(f"a table with {', '.join(map(repr, list(item)[:6])) or 'nothing'} holds no {' or '.join(names)}")


_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_UNSEEN = Image.new("RGB", (1, 1))

OnError = Callable[[Path, ImageError], None]
"""Called with the path of a picture that cannot be read, and why; the others go on."""


@dataclass(frozen=True)
class LoadedImage:
    """One input: the tensor, the picture the model sees, and where both come from."""

    tensor: torch.Tensor
    image: Image.Image
    name: str
    box: Box | None = None
    """Where ``seen`` lies in the original photograph; None where only a tensor was given."""
    path: Path | None = None
    original: Image.Image | None = None
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
        others = scene_masks(path)
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
    model: VisionModel,
    on_error: OnError | None = None,
    at: int | None = None,
    seen: bool = True,
    colours: Colours | None = None,
) -> Iterator[LoadedImage]:
    """Yield every picture of a source as an input of this model.

    A file that cannot be read is an error; with ``on_error`` it is told and left out. Pictures that are not files are
    called by their place in the whole source, which begins ``at`` here. Without ``seen``, no image is made of a tensor.
    Tensors that look as if they were not normalised are warned about once; ``colours`` remembers that between calls.
    """
    colours = colours or Colours(model)
    if isinstance(source, str | Path):
        if not str(source):  # which Path would take for the current folder
            raise ImageError("the path of a picture is empty")
        yield from _from_files(Path(source), model, on_error)
    elif isinstance(source, Image.Image):
        yield _from_photo(_upright(source, "the picture"), model, "image" if at is None else f"image-{at}")
    elif isinstance(source, np.ndarray):
        if source.ndim == 4 and not len(source):
            raise ImageError("there are no pictures in the array")
        for index, array in enumerate(source if source.ndim == 4 else [source], at or 0):
            yield _from_photo(_from_array(array), model, f"image-{index}")
    elif isinstance(source, torch.Tensor):
        yield from _from_tensor(source, model, at or 0, seen, colours)
    elif is_table(source):
        yield from pictures(without_labels(source), model, on_error, at, seen, colours)
    elif (items := each_of(source)) is not None:
        yield from _from_many(items, model, on_error, at or 0, seen, colours)
    else:
        raise ImageError(f"a {type(source).__name__} is not a picture; give a path, PIL image, array, tensor or list")


def _from_files(path: Path, model: VisionModel, on_error: OnError | None) -> Iterator[LoadedImage]:
    for image_file in image_files(path) if os.path.isdir(path) else [path]:
        try:
            picture = _from_photo(open_photo(image_file), model, image_file.name, image_file)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(image_file, error)
        else:
            yield picture


def _from_photo(photo: Image.Image, model: VisionModel, name: str, path: Path | None = None) -> LoadedImage:
    try:
        tensor, seen, box = model.preprocess.inputs(photo)
    except ImageError as error:
        raise ImageError(f"{path}: {error}" if path else str(error)) from None
    return LoadedImage(tensor, seen, name, box, path, photo if path is None else None)


def _from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"an array of shape {array.shape} is not a picture [H, W, 3]")
    if array.dtype != np.uint8:
        if not np.issubdtype(array.dtype, np.floating) or not ((array >= 0) & (array <= 1)).all():
            raise ImageError(f"an array of {array.dtype} must hold bytes, or floats from 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")


def _from_tensor(
    tensor: torch.Tensor, model: VisionModel, at: int, seen: bool, colours: Colours
) -> Iterator[LoadedImage]:
    batch = tensor.unsqueeze(0) if tensor.ndim == 3 else tensor
    model.check_inputs(batch)
    colours.look(batch)
    for index, each in enumerate(batch, at):
        yield LoadedImage(each, model.preprocess.to_image(each) if seen else _UNSEEN, f"input-{index}")


def _from_many(
    source: Iterator[Any], model: VisionModel, on_error: OnError | None, at: int, seen: bool, colours: Colours
) -> Iterator[LoadedImage]:
    place = at

    def told(path: Path, error: ImageError) -> None:
        nonlocal place
        place += 1
        assert on_error is not None
        on_error(path, error)

    for item in source:
        for picture in pictures(without_labels(item), model, None if on_error is None else told, place, seen, colours):
            place += 1
            yield picture
    if place == at:
        raise ImageError("there are no pictures in the list")
