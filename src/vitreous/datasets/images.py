"""Reading images: paths, folders, PIL images, arrays, tensors and data loaders become inputs of a model."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
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
from vitreous.errors import ImageError, VitreousError, VitreousWarning, reason
from vitreous.io.decoding import decode, upright
from vitreous.models import Box, VisionModel

T = TypeVar("T")

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
_NOT_DRAWN = Image.new("RGB", (1, 1))
_IMAGE_KEYS = ("pixel_values", "image", "images", "img")

OnError = Callable[[Path, ImageError], None]
"""Called with the path of an image that cannot be read, and why; the others go on."""


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items, the last one shorter; nothing is read before it is asked for."""
    source = iter(items)
    while batch := list(islice(source, min(size, sys.maxsize))):
        yield batch


class LazySequence(Sequence[Any]):
    """What is made of some items, each when its turn comes."""

    def __init__(self, items: Sequence[Any], make: Callable[[Any], Any]) -> None:
        self.items, self.make = items, make

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return LazySequence(self.items[index], self.make) if isinstance(index, slice) else self.make(self.items[index])


# -- files -------------------------------------------------------------------------------------------------


def is_image_name(name: str) -> bool:
    """Whether a file is an image by its ending."""
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def scene_masks(folder: Path) -> frozenset[str]:
    """Return the names of the masks that the ``scenes.json`` of a folder lists; none where there is no such file."""
    path = folder / "scenes.json"
    if not os.path.isfile(path):
        return frozenset()
    try:
        manifest = disk.read_json(path)
    except VitreousError:
        return frozenset()
    scenes = manifest.get("scenes") if isinstance(manifest, dict) else None
    if not isinstance(scenes, list) or not str(manifest.get("schema")).startswith("vitreous.scenes/"):
        return frozenset()
    return frozenset(str(scene["mask"]) for scene in scenes if isinstance(scene, dict) and "mask" in scene)


def file_digest(path: str | Path) -> str:
    """Return a digest of the bytes of a file."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with disk.open_file(path) as file:
            while part := file.read(2**20):
                digest.update(part)
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {reason(error)}") from None
    return digest.hexdigest()


def open_image(path: str | Path | BytesIO) -> Image.Image:
    """Read an image: upright, in RGB, the first frame of a moving one; nothing larger than PIL allows."""
    if isinstance(path, BytesIO):
        return decode(path, "the image")
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
        raise ImageError(f"{path} cannot be read: {reason(error)}") from None


def image_files(path: str | Path) -> list[Path]:
    """Return the images of a folder in order, or the one file itself; masks of a folder of scenes are no images."""
    if not str(path):  # which Path would take for the current folder
        raise ImageError("the path of an image is empty")
    path = Path(path)
    _refuse_absent(path)
    if not os.path.isdir(path):
        return [path]
    try:
        masks = scene_masks(path)
        paths = (path / name for name in os.listdir(path) if is_image_name(name) and name not in masks)
        files = sorted(filter(os.path.isfile, paths))
    except OSError as error:
        raise ImageError(f"the folder {path} cannot be read: {reason(error)}") from None
    if not files:
        if not os.access(path, os.X_OK):
            raise ImageError(f"the folder {path} cannot be read: Permission denied")
        inside = next((file for file in sorted(path.glob("*/*")) if is_image_name(file.name)), None)
        hint = f" itself, only in folders inside it such as {inside.parent.name}" if inside else ""
        raise ImageError(f"no images in the folder {path}{hint}")
    return files


def _refuse_absent(path: Path) -> None:
    try:
        os.stat(path)
        return
    except PermissionError as error:
        raise ImageError(f"{path} cannot be read: {reason(error)}") from None
    except (OSError, ValueError):  # impossible names too
        pass
    if address := re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+):/", str(path)):
        raise ImageError(f"{path} is an address ({address[1]}), and nothing is fetched: download it and give the file")
    raise ImageError(f"no such file: {path}")


# -- what data loaders and data sets yield -----------------------------------------------------------------


def split_labels(item: Any) -> tuple[Any, Any]:
    """Return the images of what a data loader or a data set yields, and their classes or None."""
    if isinstance(item, Mapping):
        key = next((key for key in _IMAGE_KEYS if key in item), None)
        if key is None:
            keys = ", ".join(map(repr, list(item)[:6])) or "nothing"
            raise ImageError(f"a table with {keys} holds no {' or '.join(_IMAGE_KEYS)}")
        return item[key], item.get("labels", item.get("label"))
    if _is_pair(item):
        return item[0], item[1]
    is_row = isinstance(item, list | tuple) and len(item) > 0 and isinstance(item[0], Tensor)
    if is_row and {getattr(part, "ndim", 0) for part in item} != {3}:  # images and something else
        return item[0], None
    return item, None


def _is_pair(item: Any) -> bool:
    """Whether this is an image with its class, or a batch of images with theirs."""
    if not isinstance(item, list | tuple) or len(item) != 2:
        return False
    label = item[1]
    if isinstance(label, Tensor | np.ndarray):
        return label.ndim < 2
    if isinstance(label, list | tuple):
        return bool(label) and all(isinstance(number, int) for number in label)
    return hasattr(label, "__index__")


def iterate(source: Any) -> Iterator[Any] | None:
    """Return the items of anything that has some, also of a data set that only knows its length; else None."""
    if isinstance(source, Iterable):
        return iter(source)
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):
        return (source[index] for index in range(len(source)))
    return None


def is_single_image(source: Any) -> bool:
    """Whether this is one image, so that one explanation is the answer."""
    if isinstance(source, str | Path):
        return not os.path.isdir(source)
    if isinstance(source, Mapping):
        return is_single_image(split_labels(source)[0])
    if isinstance(source, np.ndarray):
        return source.ndim < 4
    return isinstance(source, Image.Image) or (isinstance(source, Tensor) and source.ndim == 3)


def count_images(source: Any) -> int | None:
    """Return how many images there are, where that can be known beforehand."""
    if is_single_image(source):
        return 1
    if isinstance(source, str | Path):
        return len(image_files(source))
    if isinstance(source, Mapping):
        return count_images(split_labels(source)[0])
    if isinstance(source, list | tuple):
        counts = [count_images(split_labels(item)[0]) for item in source]
        return None if any(count is None for count in counts) else sum(filter(None, counts))
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):  # a batch, or a data set: one image each
        return len(source)
    dataset = getattr(source, "dataset", None)
    return len(dataset) if isinstance(dataset, Sized) else None


# -- inputs of a model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedImage:
    """One input: the tensor, the image the model sees, and where both come from."""

    tensor: Tensor
    image: Image.Image
    name: str
    box: Box | None = None
    """Where ``image`` lies in the original photograph; None where only a tensor was given."""
    path: Path | None = None
    original: Image.Image | None = None
    """The photograph itself, where it cannot be read from ``path`` again."""

    @cached_property
    def digest(self) -> str:
        """A digest of the file's bytes, or of the tensor."""
        if self.path is not None:
            return file_digest(self.path)
        values = self.tensor.detach().to("cpu", torch.float64).contiguous()
        return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).hexdigest()


class ImageLoader:
    """Makes inputs of a model; it warns once if the first tensors look as if nobody had normalised them.

    Parameters
    ----------
    model : VisionModel
        The model.
    on_error : callable, optional
        Called with a file that cannot be read, and why, instead of raising.
    draw : bool, default True
        Whether an image is made of a tensor.
    """

    def __init__(self, model: VisionModel, on_error: OnError | None = None, draw: bool = True) -> None:
        self.model, self.on_error, self.draw, self.num_skipped = model, on_error, draw, 0
        mean, std = model.preprocess.mean, model.preprocess.std
        self._is_checked = not any(mean) and all(value == 1 for value in std)
        channels = list(zip(mean, std, strict=False))
        self._lowest = min((0 - mean) / (std or 1) for mean, std in channels)
        self._highest = max((1 - mean) / (std or 1) for mean, std in channels)

    def load(self, source: Any, start: int | None = None) -> Iterator[LoadedImage]:
        """Yield every image of a source; those that are not files are called by their index, from ``start`` on."""
        if isinstance(source, Mapping):
            source = split_labels(source)[0]
        if isinstance(source, str | Path):
            yield from self._load_files(source)
        elif isinstance(source, Image.Image):
            yield _from_photo(upright(source, "the image"), self.model, "image" if start is None else f"image-{start}")
        elif isinstance(source, np.ndarray):
            if source.ndim == 4 and not len(source):
                raise ImageError("there are no images in the array")
            for index, array in enumerate(source if source.ndim == 4 else [source], start or 0):
                yield _from_photo(_array_to_photo(array), self.model, f"image-{index}")
        elif isinstance(source, Tensor):
            yield from self._load_tensor(source, start or 0)
        elif (items := iterate(source)) is not None:
            yield from self._load_items(items, start or 0)
        else:
            name = type(source).__name__
            raise ImageError(f"a {name} is not an image; give a path, PIL image, array, tensor or list")

    def _load_files(self, source: str | Path) -> Iterator[LoadedImage]:
        if not str(source):  # which Path would take for the current folder
            raise ImageError("the path of an image is empty")
        for path in image_files(source) if os.path.isdir(source) else [Path(source)]:
            try:
                image = _from_photo(open_image(path), self.model, path.name, path)
            except ImageError as error:
                if self.on_error is None:
                    raise
                self.num_skipped += 1
                self.on_error(path, error)
            else:
                yield image

    def _load_tensor(self, source: Tensor, start: int) -> Iterator[LoadedImage]:
        batch = source.unsqueeze(0) if source.ndim == 3 else source
        self.model.check_inputs(batch)
        if not self._is_checked and batch.ndim == 4:  # tokens have no colours
            self._is_checked = True
            self._check_range(float(batch.min()), float(batch.max()))
        for index, tensor in enumerate(batch, start):
            image = self.model.preprocess.to_image(tensor) if self.draw else _NOT_DRAWN
            yield LoadedImage(tensor, image, f"input-{index}")

    def _check_range(self, least: float, most: float) -> None:
        are_bytes = least >= 0 and most > 16.0  # beyond any normalised image without a negative value
        # images in 0..1 use half of it at least; less may be a bright or grey one that is normalised
        are_colours = least >= 0 and most <= 1 and most - least >= 0.5 and self._lowest < -0.5
        if are_bytes or are_colours:
            warnings.warn(
                f"the tensors hold values from {least:.3g} to {most:.3g} and look as if they were not normalised; "
                f"{self.model.name} takes about {self._lowest:.2g} to {self._highest:.2g} (see its preprocess)",
                VitreousWarning,
                stacklevel=2,
            )

    def _load_items(self, items: Iterator[Any], start: int) -> Iterator[LoadedImage]:
        index = start
        for item in items:
            skipped = self.num_skipped
            for image in self.load(split_labels(item)[0], index):
                index += 1
                yield image
            index += self.num_skipped - skipped
        if index == start:
            raise ImageError("there are no images in the list")


def load_images(
    source: Any, model: VisionModel, on_error: OnError | None = None, start: int | None = None, draw: bool = True
) -> Iterator[LoadedImage]:
    """Yield every image of a source as an input of this model.

    A file that cannot be read is an error; with ``on_error`` it is reported there and left out. Images that are not
    files are called by their index in the whole source, which begins at ``start`` here. Without ``draw``, no image is
    made of a tensor. Tensors that look as if they were not normalised are warned about once.
    """
    return ImageLoader(model, on_error, draw).load(source, start)


def _from_photo(photo: Image.Image, model: VisionModel, name: str, path: Path | None = None) -> LoadedImage:
    try:
        tensor, image, box = model.preprocess.inputs(photo)
    except ImageError as error:
        raise ImageError(f"{path}: {error}" if path else str(error)) from None
    return LoadedImage(tensor, image, name, box, path, photo if path is None else None)


def _array_to_photo(array: np.ndarray[Any, Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"an array of shape {array.shape} is not an image [H, W, 3]")
    if array.dtype != np.uint8:
        if not np.issubdtype(array.dtype, np.floating) or not ((array >= 0) & (array <= 1)).all():
            raise ImageError(f"an array of {array.dtype} must hold bytes, or floats from 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array).convert("RGB")
