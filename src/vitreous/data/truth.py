"""What is known to be true about a picture: where the object is, which boxes hold it, which parts it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.pictures import Picture
from vitreous.errors import ImageError
from vitreous.models import Box

__all__ = ["KINDS", "Truth"]

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = ("mask", "boxes", "parts")


@dataclass(frozen=True, eq=False)
class Truth:
    """What is known about one picture, in the pixels that the model sees.

    ``mask`` ``[H, W]`` is true on the object, ``boxes`` are (left, top, right, bottom), ``parts`` are masks by name.
    ``Truth.of_photo`` takes the same in the pixels of the photograph, and follows its way into the model.
    """

    mask: Array | None = None
    boxes: tuple[Box, ...] = ()
    parts: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def of_photo(
        cls, picture: Picture, mask: Any = None, boxes: Iterable[Box] = (), parts: Mapping[str, Any] | None = None
    ) -> Truth:
        """Take what is known in the pixels of the photograph; what the crop leaves out is gone."""
        if picture.box is None:
            raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
        high, wide = picture.tensor.shape[-2:]
        left, top, right, bottom = picture.box
        across, down = wide / (right - left), high / (bottom - top)
        moved = [((a - left) * across, (b - top) * down, (c - left) * across, (d - top) * down) for a, b, c, d in boxes]
        cut = [(max(0.0, a), max(0.0, b), min(float(wide), c), min(float(high), d)) for a, b, c, d in moved]

        def seen(array: Any) -> Array:
            whole = Image.fromarray(np.asarray(array, bool).astype(np.uint8))
            cropped = whole.resize((wide, high), Image.Resampling.NEAREST, picture.box)
            return np.asarray(cropped).astype(bool)

        return cls(
            None if mask is None else seen(mask),
            tuple(box for box in cut if box[0] < box[2] and box[1] < box[3]),
            {name: seen(array) for name, array in (parts or {}).items()},
        )

    def has(self, kind: str) -> bool:
        """Whether this kind of knowledge is there."""
        return self.mask is not None if kind == "mask" else bool(getattr(self, kind))

    def check(self, name: str, size: tuple[int, int]) -> None:
        """Refuse masks that are not on the pixels of the input."""
        masks = {"mask": self.mask} if self.mask is not None else {}
        for what, array in {**masks, **self.parts}.items():
            if np.shape(array) != size:
                raise ImageError(
                    f"the {what} of {name} is {list(np.shape(array))}, the model sees {list(size)}; see Truth.of_photo"
                )


def as_truth(given: Any, picture: Picture) -> Truth | None:
    """Understand what a user knows about a picture: a truth, a mask, or a function of the picture that gives one."""
    known = given(picture) if callable(given) else given
    if known is None or isinstance(known, Truth):
        truth = known
    else:
        mask = np.asarray(known)
        if mask.ndim != 2:
            raise ImageError(f"what is known about {picture.name} is {list(mask.shape)}; a mask is [H, W]")
        truth = Truth(mask.astype(bool))
    if truth is not None:
        truth.check(picture.name, (picture.tensor.shape[-2], picture.tensor.shape[-1]))
    return truth
