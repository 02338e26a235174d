"""What the protocol asks of a set of images: pictures with parts removed, and where the parts are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from vitreous.metrics.curves import Array

__all__ = ["Change", "Seen", "Source"]


class Change(NamedTuple):
    """An image of which only a set of parts is kept (bit p: part p) and one object is removed (-1: none)."""

    image: int
    kept: int
    without: int = -1


class Seen(NamedTuple):
    """Where things are seen in one image: masks ``[I, S, S]``, and the part or, from P on, object of each ``[I]``."""

    masks: Array
    owners: Array


class Source(Protocol):
    """Images of which every part can be removed."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the P parts."""

    @property
    def variants(self) -> Array:
        """Which variant of each part a class has, ``[C, P]``."""

    @property
    def names(self) -> Sequence[str]:
        """A name for every image."""

    @property
    def labels(self) -> Array:
        """The true class of every image, ``[n]``."""

    @property
    def size(self) -> int:
        """Side of a picture in pixels."""

    @property
    def most_objects(self) -> int:
        """Places for background objects."""

    @property
    def what(self) -> str:
        """In a few words."""

    def objects(self, image: int) -> Sequence[int]:
        """Return the places of the background objects that an image has."""

    def images(self, changes: Sequence[Change]) -> Tensor:
        """Return pictures ``[n, 3, S, S]`` in [0, 1]."""

    def seen(self, images: range) -> Iterator[Seen]:
        """Yield where things are, image by image, nothing removed."""
