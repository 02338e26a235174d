"""Images that paths begin at: baselines of one's own, known by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data import file_digest, image_files, pictures
from vitreous.errors import ModelError, SpellingError, one_line
from vitreous.models import View

__all__ = ["Background"]


class Background:
    """Baselines: a tensor ``[K, C, H, W]`` in the model's normalised space, or images as ``explain`` takes them.

    Two are equal if their content is. Tensors, arrays and PIL images are copied; files are read when they are drawn,
    and must then hold what they held here.
    """

    def __init__(self, images: Any) -> None:
        self._items = _items(images)
        if not self._items:
            raise SpellingError("there are no baselines: give one image or more")
        told = hashlib.blake2b(digest_size=16)
        for item in self._items:
            told.update(_content(item).encode())
        self.digest = told.hexdigest()

    def __len__(self) -> int:
        return len(self._items)

    def __str__(self) -> str:
        return f"{len(self)} image{'s' * (len(self) != 1)} ({self.digest[:12]})"

    def __repr__(self) -> str:
        return f"Background({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Background) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def inputs(self, view: View, like: Tensor, numbers: Tensor) -> Tensor:
        """Return the baselines of some numbers, shaped ``[*numbers.shape, C, H, W]`` as one image of ``like`` is."""
        wanted, positions = torch.unique(numbers, return_inverse=True)
        found = torch.stack([self._input(view, like, number) for number in wanted.tolist()])
        return found.to(like)[positions.to(like.device)]

    def _input(self, view: View, like: Tensor, number: int) -> Tensor:
        item = self._items[number]
        tensor = item if isinstance(item, Tensor) else next(iter(pictures(item, view))).tensor
        if tensor.shape != like.shape[1:]:
            given, wanted = list(tensor.shape), list(like.shape[1:])
            raise ModelError(f"baseline {number} is {given} for {view.name}, the input is {wanted}")
        return tensor


def _items(images: Any) -> tuple[Any, ...]:
    """Return the images one by one: tensors, arrays, PIL images and paths."""
    if isinstance(images, str | Path):
        return tuple(image_files(images))
    if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
        return tuple(item for each in images for item in _items(each))
    if isinstance(images, Tensor):
        if images.ndim != 3 or not images.is_floating_point() or not bool(torch.isfinite(images).all()):
            what = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            raise SpellingError(f"baselines are finite numbers [K, C, H, W] or [C, H, W], got {what}")
        return (images.detach().cpu().clone(),)
    if isinstance(images, np.ndarray | Image.Image):
        return (images.copy(),)
    if isinstance(images, Sequence):
        return tuple(item for each in images for item in _items(each))
    raise SpellingError(
        f"background={one_line(repr(images))[:60]} is none of normal, scenes, a picture or folder, a tensor, images"
    )


def _content(item: Any) -> str:
    """Return a digest of what one image is."""
    if isinstance(item, Path):
        return file_digest(item)
    if isinstance(item, Tensor):
        item = item.double().numpy()
    values = np.asarray(item)
    told = hashlib.blake2b(f"{values.dtype} {values.shape} ".encode(), digest_size=16)
    told.update(np.ascontiguousarray(values).tobytes())
    return told.hexdigest()
