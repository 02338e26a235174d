"""What is known to be true about a picture: where the object is, which boxes hold it, which parts it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from vitreous import disk
from vitreous.data.pictures import Picture
from vitreous.errors import ImageError
from vitreous.models import Box
from vitreous.words import check_choice

__all__ = ["KINDS", "Truth", "photo_size"]

Array = np.ndarray[Any, np.dtype[Any]]
KINDS = ("mask", "boxes", "parts")

_ORIENTATION = 0x0112


@dataclass(frozen=True, eq=False)
class Truth:
    """What is known about one picture, in the pixels that the model sees.

    ``mask`` ``[H, W]`` is true on the object, ``boxes`` are (left, top, right, bottom), ``parts`` are masks by name,
    ``ignore`` ``[H, W]`` is true where nobody knows: such pixels count for nothing. ``Truth.of_photo``, ``of_trimap``
    and ``of_parts`` take the same in the pixels of the photograph, and follow its way into the model.
    """

    mask: Array | None = None
    boxes: tuple[Box, ...] = ()
    parts: Mapping[str, Array] = field(default_factory=dict)
    ignore: Array | None = None

    @classmethod
    def of_photo(
        cls,
        picture: Picture,
        mask: Any = None,
        boxes: Iterable[Box] | None = None,
        parts: Mapping[str, Any] | None = None,
        ignore: Any = None,
    ) -> Truth:
        """Take what is known in the pixels of the photograph; what the crop leaves out is gone.

        Boxes that are all left out leave an empty mask: it is known that nothing is there.
        """
        given = None if boxes is None else [_box(box, picture.name) for box in boxes]
        kept = _boxes_seen(picture, given or ())
        seen = None if mask is None else _seen(picture, mask, "mask").astype(bool)
        if seen is None and given is not None and not kept:
            seen = np.zeros(picture.tensor.shape[-2:], bool)
        return cls(
            seen,
            kept,
            {name: _seen(picture, array, name).astype(bool) for name, array in (parts or {}).items()},
            None if ignore is None else _seen(picture, ignore, "ignore").astype(bool),
        )

    @classmethod
    def of_trimap(cls, picture: Picture, trimap: Any, inside: int = 1, outside: int = 2) -> Truth:
        """Take a map of whole numbers in the pixels of the photograph: inside, outside, and all else ignored."""
        if inside == outside:
            raise ImageError(f"the trimap of {picture.name} has {inside} both inside and outside")
        numbers = _seen(picture, _whole(trimap, f"the trimap of {picture.name}"), "trimap", outside)
        return cls(numbers == inside, ignore=(numbers != inside) & (numbers != outside))

    @classmethod
    def of_parts(cls, picture: Picture, numbers: Any, names: Mapping[str, int], ignore: int | None = None) -> Truth:
        """Take a map of whole numbers in the pixels of the photograph, and which number is which part."""
        if not names:
            raise ImageError(f"the parts of {picture.name} have no names: give {{name: number}}")
        seen = _seen(picture, _whole(numbers, f"the part map of {picture.name}"), "part map")
        if ignore is not None and ignore in names.values():
            raise ImageError(f"the part map of {picture.name} has {ignore} both as a part and as what to ignore")
        parts = {name: seen == number for name, number in names.items()}
        return cls(parts=parts, ignore=None if ignore is None else seen == ignore)

    def has(self, kind: str) -> bool:
        """Whether this kind of knowledge is there; a ``region`` can be had of any kind."""
        if kind == "region":
            return any(self.has(each) for each in KINDS)
        return self.mask is not None if kind == "mask" else bool(getattr(self, kind))

    def region(self, kind: str = "any", size: tuple[int, int] | None = None) -> Array:
        """Return where the object is, ``[H, W]``: the mask, else all boxes together, else all parts together.

        ``kind`` asks for one of these. A pixel is in a box if its centre is. ``size`` is needed where boxes are all
        that is known.
        """
        check_choice("kind", kind, ("any", *KINDS))
        there = [each for each in KINDS if self.has(each) and kind in ("any", each)]
        if not there:
            raise ImageError("there is no region: no mask, boxes or parts are known" if kind == "any" else f"no {kind}")
        if there[0] == "mask":
            return np.asarray(self.mask, bool)
        if there[0] == "parts":
            return np.asarray(np.any([np.asarray(part, bool) for part in self.parts.values()], axis=0))
        known = [each for each in (self.mask, self.ignore, *self.parts.values()) if each is not None]
        if size is None and not known:
            raise ImageError("a region of boxes has no size of its own: give size=(height, width)")
        high, wide = size or known[0].shape
        rows, columns = np.arange(high) + 0.5, np.arange(wide) + 0.5
        inside = np.zeros((high, wide), bool)
        for left, top, right, bottom in self.boxes:
            inside |= ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
        return inside

    def check(self, name: str, size: tuple[int, int]) -> None:
        """Refuse masks that are not on the pixels of the input, and boxes that are none."""
        masks = {"mask": self.mask, "ignore": self.ignore}
        for what, array in {**{k: v for k, v in masks.items() if v is not None}, **self.parts}.items():
            if np.shape(array) != size:
                raise ImageError(
                    f"the {what} of {name} is {list(np.shape(array))}, the model sees {list(size)}; see Truth.of_photo"
                )
        for box in self.boxes:
            _box(box, name)


def photo_size(picture: Picture) -> tuple[int, int]:
    """Return width and height of the photograph that a picture was cut from, held upright."""
    if picture.photo is not None:
        return picture.photo.size
    if picture.path is None:
        raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
    with disk.open_file(picture.path) as file, Image.open(file) as opened:
        wide, high = opened.size
        return (high, wide) if opened.getexif().get(_ORIENTATION, 1) >= 5 else (wide, high)


def _seen(picture: Picture, array: Any, what: str, beyond: Any = 0) -> Array:
    """Return an array of the photograph's pixels at those that the model sees, each from the nearest one."""
    if picture.box is None:
        raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
    values, (wide, high) = np.asarray(array), photo_size(picture)
    if values.shape != (high, wide):
        raise ImageError(f"the {what} of {picture.name} is {list(values.shape)}, the photograph is [{high}, {wide}]")
    left, top, right, bottom = picture.box
    rows, columns = (
        np.floor(start + (np.arange(length) + 0.5) * (stop - start) / length).astype(int)
        for start, stop, length in zip((top, left), (bottom, right), picture.tensor.shape[-2:], strict=True)
    )
    there = ((rows >= 0) & (rows < high))[:, None] & ((columns >= 0) & (columns < wide))
    cut = values[rows.clip(0, high - 1)[:, None], columns.clip(0, wide - 1)]
    return np.where(there, cut, np.asarray(beyond, values.dtype))


def _boxes_seen(picture: Picture, boxes: Iterable[Box]) -> tuple[Box, ...]:
    if picture.box is None:
        raise ImageError(f"{picture.name} is no photograph: give what is known in the pixels of the tensor")
    high, wide = picture.tensor.shape[-2:]
    left, top, right, bottom = picture.box
    across, down = wide / (right - left), high / (bottom - top)
    moved = [((a - left) * across, (b - top) * down, (c - left) * across, (d - top) * down) for a, b, c, d in boxes]
    cut = [(max(0.0, a), max(0.0, b), min(float(wide), c), min(float(high), d)) for a, b, c, d in moved]
    return tuple(box for box in cut if box[0] < box[2] and box[1] < box[3])


def _box(given: Any, name: str) -> Box:
    """Refuse what is no box."""
    try:
        left, top, right, bottom = (float(each) for each in given)
        sound = bool(np.isfinite([left, top, right, bottom]).all()) and left <= right and top <= bottom
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise ImageError(f"a box of {name} is {given!r:.60}; it must be (left, top, right, bottom)")
    return left, top, right, bottom


def _whole(given: Any, what: str) -> Array:
    numbers = np.asarray(given)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise ImageError(f"{what} holds {numbers.dtype}, not whole numbers")
    return numbers


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
