"""What a metric may ask for: perturbed images of many kinds, maps made again, and what is known to be true.

For one map and one substrate there are two families of states: the top-ranked pixels *removed* (deletion, MoRF,
positive perturbation) or *kept* (insertion; and, since removing the n - k least relevant leaves the k most relevant,
LeRF too). Nothing removed is the image itself and everything removed the bare substrate: both are shared by all maps.
States that no map has a part in (masks, other images, random orders) are shared by all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models import Preprocess, VisionModel
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "RenderedStates",
    "Reattribution",
    "ImageShape",
    "GivenMasks",
    "Images",
    "Masks",
    "Measured",
    "Request",
    "RandomMasks",
    "RankedRemoval",
    "AnnotationRequest",
    "WithoutParts",
]

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ImageShape:
    """Rows and columns of the pixels and of the patch tokens, and how many blocks the model has."""

    pixels: tuple[int, int]
    tokens: tuple[int, int]
    depth: int = 12

    def size(self, unit: str) -> int:
        """How many pixels or tokens there are to remove."""
        return prod(self.tokens if unit == "token" else self.pixels)


class Request:
    """Something that a metric asks for; a frozen, hashable value, so that equal ones are answered once."""

    @staticmethod
    def removed(baseline: str, counts: Iterable[int], unit: str = "pixel", by: str = "map") -> RankedRemoval:
        """The top-ranked ``counts`` are gone."""
        return RankedRemoval(unit, baseline, False, tuple((0, count) for count in counts), by)

    @staticmethod
    def kept(baseline: str, counts: Iterable[int], unit: str = "pixel", by: str = "map") -> RankedRemoval:
        """Only the top-ranked ``counts`` are left."""
        return RankedRemoval(unit, baseline, True, tuple((0, count) for count in counts), by)

    @staticmethod
    def bands(baseline: str, edges: Iterable[int], unit: str = "pixel", by: str = "map") -> RankedRemoval:
        """The ranks from one edge to the next are gone, and nothing else."""
        ends = list(edges)
        return RankedRemoval(unit, baseline, False, tuple(pairwise(ends)), by)

    @staticmethod
    def blend(baseline: str, how: str) -> RankedRemoval:
        """The image times the map scaled to 0 .. 1, plus the substrate times the rest."""
        return RankedRemoval(f"blend:{how}", baseline, True, ((0, 1),))


@dataclass(frozen=True)
class RankedRemoval(Request):
    """Some states along an order: the ranks ``low .. high - 1`` of each span kept or removed on one substrate.

    ``unit`` is ``"pixel"``, ``"region:8"`` (pixels, in squares of eight that go whole), ``"token"`` (removed from the
    sequence) or ``"blend:relu"``: one state, the image faded into the substrate by the map itself, scaled as the word
    says. ``by`` is whose order it is: the ``"map"``'s, or a ``"random"`` one of the image.
    """

    unit: str
    baseline: str
    keep: bool
    spans: tuple[tuple[int, int], ...]
    by: str = "map"

    def __post_init__(self) -> None:
        if self.by not in ("map", "random"):
            raise VitreousError(f"an order is that of the map or random, not {self.by!r}")

    @property
    def counts(self) -> tuple[int, ...]:
        """How many are kept or removed in each state."""
        return tuple(high - low for low, high in self.spans)


@dataclass(frozen=True)
class Masks(Request):
    """States in which masks are removed that no map has made: given ones, or drawn for each image.

    ``draw`` gets the random numbers of the images and the geometry, and returns ``[B, count, h, w]``, true where
    something is removed, on the pixels or any coarser grid. With ``unit="token"`` it is the token grid, and the tokens
    leave the sequence.
    """

    baseline: str
    draw: Callable[[PRNGKey, ImageShape], Tensor]
    count: int
    unit: str = "pixel"


@dataclass(frozen=True)
class WithoutParts(Request):
    """The image without each part that is known of it and seen in it, its pixels replaced by the substrate.

    As many states as the image has such parts; all methods share them.
    """

    baseline: str


@dataclass(frozen=True)
class GivenMasks:
    """Masks that are the same for all images: hashable, whatever their size."""

    data: bytes
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, masks: Any) -> GivenMasks:
        """Take an array ``[count, h, w]``, true where something is removed."""
        array = np.ascontiguousarray(np.asarray(masks, bool))
        if array.ndim != 3:
            raise VitreousError(f"masks are [count, h, w], not {list(array.shape)}")
        return cls(array.tobytes(), array.shape)

    def __call__(self, draws: PRNGKey, image_shape: ImageShape) -> Tensor:
        array = np.frombuffer(self.data, bool).reshape(self.shape)
        return torch.from_numpy(array.copy()).expand(len(draws.keys), *self.shape).to(draws.keys.device)


@dataclass(frozen=True)
class RandomMasks:
    """Masks of ``share`` of the cells of a grid, drawn for every image by its content."""

    count: int
    share: float
    cells: tuple[int, int] | None = None
    """Rows and columns of the grid; the token grid if ``None``."""

    def __call__(self, draws: PRNGKey, image_shape: ImageShape) -> Tensor:
        height, width = self.cells or image_shape.tokens
        gone = round(self.share * height * width)
        bits = draws.bits(self.count, height * width)
        return (bits.argsort(dim=2, stable=True).argsort(dim=2) < gone).view(-1, self.count, height, width)


@dataclass(frozen=True)
class Images(Request):
    """Other images made of an image: noisy, shifted, put together. ``make`` returns ``[B, count, 3, H, W]``."""

    name: str
    make: Callable[[Tensor, Preprocess, PRNGKey], Tensor]
    count: int

    def of(self, inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
        """Make them."""
        return self.make(inputs, preprocess, PRNGKey.of_images(seed, f"images {self.name}", inputs))


@dataclass(frozen=True)
class Measured(Request):
    """One number for each of some other images, beside the image that it was made of: a distance, say.

    ``measure`` gets the view, the images ``[B, 3, H, W]`` and what was made of them ``[B, count, 3, H, W]``, and
    returns ``[B, count]``.
    """

    images: Images
    measure: Callable[[VisionModel, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RenderedStates(Request):
    """States that are drawn in 8 bits beside the model, in threads, with a number for each: its size on disk, say.

    ``draw`` gets the picture ``[H, W, 3]`` in uint8, the map at its pixels ``[H, W]`` (``None`` with ``by="image"``,
    for states that all methods share) and a random number of the picture, and returns pictures
    ``[count, H, W, 3]`` in uint8 and numbers ``[count]``.
    """

    draw: Callable[[Array, Array | None, int], tuple[Array, Array]]
    count: int
    by: str = "map"


@dataclass(frozen=True)
class Reattribution(Request):
    """Maps of the method under trial, made again: of other images, with another seed or class, or under another model.

    ``under`` takes the view and returns the one to explain instead (a shuffled head, randomised weights). ``target`` is
    the class that is explained: ``"same"``, the ``"runner-up"``, or a ``"random"`` other one of each image.
    """

    images: Images | None = None
    under: Callable[[VisionModel], VisionModel] | None = None
    seed: int | None = None
    target: str = "same"

    @property
    def count(self) -> int:
        """How many maps there are for each image."""
        return 1 if self.images is None else self.images.count


@dataclass(frozen=True)
class AnnotationRequest(Request):
    """What is known about an image: its ``"mask"``, ``"boxes"``, ``"parts"``, or a ``"region"`` from any of them."""

    kind: str
