"""What is known to be true about an image: where the object is, which boxes hold it, which parts it has."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous import io as disk
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, one_line
from vitreous.models import Box
from vitreous.registry import check_choice

Array = np.ndarray[Any, np.dtype[Any]]
ANNOTATION_KINDS = ("mask", "boxes", "parts")
_ORIENTATION = 0x0112
_TRIMAP = {1, 2, 3}


@dataclass(frozen=True, eq=False)
class Annotation:
    """What is known about one image, in the pixels that the model sees.

    ``Annotation.of_photo``, ``of_trimap`` and ``of_parts`` take the same in the pixels of the photograph, and follow
    its way through resizing and cropping.

    Parameters
    ----------
    mask : array of bool, shape (H, W), optional
        True on the object.
    boxes : tuple of (left, top, right, bottom), default ()
        Boxes around the object. A pixel is in a box if its centre is.
    parts : mapping of str to array of bool, default {}
        Masks of parts by name.
    ignore : array of bool, shape (H, W), optional
        True where nobody knows: such pixels count for nothing.

    Examples
    --------
    >>> half = np.zeros((64, 64), bool)
    >>> half[:, :32] = True
    >>> annotation = vt.Annotation(half)
    >>> float(annotation.region().mean())
    0.5
    """

    mask: Array | None = None
    boxes: tuple[Box, ...] = ()
    parts: Mapping[str, Array] = field(default_factory=dict)
    ignore: Array | None = None

    @classmethod
    def of_photo(
        cls,
        image: LoadedImage,
        mask: Any = None,
        boxes: Iterable[Box] | None = None,
        parts: Mapping[str, Any] | None = None,
        ignore: Any = None,
    ) -> Annotation:
        """Return what is known in the pixels of the photograph; what the crop leaves out is gone.

        Boxes that are all left out leave an empty mask: it is known that nothing is there.

        Parameters
        ----------
        image : LoadedImage
            The image, as a function that is handed to ``evaluate(annotations=...)`` gets it.
        mask : array, shape (H, W), optional
            Other than zero on the object.
        boxes : iterable of (left, top, right, bottom), optional
            Boxes around the object.
        parts : mapping of str to array, optional
            Masks of parts by name.
        ignore : array, shape (H, W), optional
            Other than zero where nobody knows.

        Returns
        -------
        Annotation
        """
        checked = None if boxes is None else [_check_box(box, image.name) for box in boxes]
        visible = _crop_boxes(image, checked or ())
        cropped = None if mask is None else _crop(image, mask, "mask").astype(bool)
        if cropped is None and checked is not None and not visible:
            cropped = np.zeros(image.tensor.shape[-2:], bool)
        return cls(
            cropped,
            visible,
            {name: _crop(image, array, name).astype(bool) for name, array in (parts or {}).items()},
            None if ignore is None else _crop(image, ignore, "ignore").astype(bool),
        )

    @classmethod
    def of_trimap(cls, image: LoadedImage, trimap: Any, inside: int = 1, outside: int = 2) -> Annotation:
        """Return what a trimap says, a map of whole numbers in the pixels of the photograph.

        Parameters
        ----------
        image : LoadedImage
            The image.
        trimap : array of int, shape (H, W)
            The map.
        inside : int, default 1
            The number of the object.
        outside : int, default 2
            The number of the background; pixels with any other number are ignored.

        Returns
        -------
        Annotation
        """
        if inside == outside:
            raise ImageError(f"the trimap of {image.name} has {inside} both inside and outside")
        numbers = _crop(image, _check_integers(trimap, f"the trimap of {image.name}"), "trimap", outside)
        return cls(numbers == inside, ignore=(numbers != inside) & (numbers != outside))

    @classmethod
    def of_parts(
        cls, image: LoadedImage, numbers: Any, names: Mapping[str, int], ignore: int | None = None
    ) -> Annotation:
        """Return what a part map says, a map of whole numbers in the pixels of the photograph.

        Parameters
        ----------
        image : LoadedImage
            The image.
        numbers : array of int, shape (H, W)
            The map.
        names : mapping of str to int
            The number of each part.
        ignore : int, optional
            The number of pixels that count for nothing.

        Returns
        -------
        Annotation
        """
        if not names:
            raise ImageError(f"the parts of {image.name} have no names: give {{name: number}}")
        cropped = _crop(image, _check_integers(numbers, f"the part map of {image.name}"), "part map")
        if ignore is not None and ignore in names.values():
            raise ImageError(f"the part map of {image.name} has {ignore} both as a part and as what to ignore")
        parts = {name: cropped == number for name, number in names.items()}
        return cls(parts=parts, ignore=None if ignore is None else cropped == ignore)

    def has(self, kind: str) -> bool:
        """Say whether there is a ``"mask"``, ``"boxes"``, ``"parts"``, or a ``"region"`` made of any of them."""
        if kind == "region":
            return any(map(self.has, ANNOTATION_KINDS))
        return self.mask is not None if kind == "mask" else bool(getattr(self, kind))

    def region(self, kind: str = "any", size: tuple[int, int] | None = None) -> Array:
        """Return where the object is: the mask, else the union of all boxes, else the union of all parts.

        Parameters
        ----------
        kind : {"any", "mask", "boxes", "parts"}, default "any"
            What to make the region of.
        size : tuple of int, optional
            Height and width, needed where boxes are all that is known.

        Returns
        -------
        array of bool, shape (H, W)

        Raises
        ------
        ImageError
            If there is nothing of this kind.
        """
        check_choice("kind", kind, ("any", *ANNOTATION_KINDS))
        sources = filter(self.has, ANNOTATION_KINDS if kind == "any" else (kind,))
        source = next(sources, None)
        if source is None:
            raise ImageError("there is no region: no mask, boxes or parts are known" if kind == "any" else f"no {kind}")
        if source == "mask":
            return np.asarray(self.mask, bool)
        if source == "parts":
            return np.asarray(np.any(np.array(list(self.parts.values()), bool), axis=0))
        arrays = [array for array in (self.mask, self.ignore, *self.parts.values()) if array is not None]
        if size is None and not arrays:
            raise ImageError("a region of boxes has no size of its own: give size=(height, width)")
        return _fill_boxes(self.boxes, *(size or arrays[0].shape))

    def check(self, name: str, size: tuple[int, int]) -> None:
        """Refuse masks that are not on the pixels of the input, and boxes that are none."""
        for kind, array in {"mask": self.mask, "ignore": self.ignore, **self.parts}.items():
            if array is not None and np.shape(array) != size:
                shape = list(np.shape(array))
                raise ImageError(
                    f"the {kind} of {name} is {shape}, the model sees {list(size)}; see Annotation.of_photo"
                )
        for box in self.boxes:
            _check_box(box, name)


def _fill_boxes(boxes: Iterable[Box], height: int, width: int) -> Array:
    rows, columns = np.arange(height) + 0.5, np.arange(width) + 0.5
    inside = np.zeros((height, width), bool)
    for left, top, right, bottom in boxes:
        inside |= ((rows >= top) & (rows < bottom))[:, None] & ((columns >= left) & (columns < right))
    return inside


def to_annotation(value: Any, image: LoadedImage) -> Annotation | None:
    """Return what a user says about an image: an annotation, a mask, or a function of the image that gives one."""
    value = value(image) if callable(value) else value
    if value is not None and not isinstance(value, Annotation):
        mask = np.asarray(value)
        if mask.ndim != 2:
            raise ImageError(f"the annotation of {image.name} is {list(mask.shape)}; a mask is [H, W]")
        value = Annotation(mask.astype(bool))
    annotation: Annotation | None = value
    if annotation is not None:
        annotation.check(image.name, (image.tensor.shape[-2], image.tensor.shape[-1]))
    return annotation


# -- from the photograph to what the model sees ------------------------------------------------------------


def photo_size(image: LoadedImage) -> tuple[int, int]:
    """Return width and height of the photograph that an image was cut from, held upright."""
    if image.original is not None:
        return image.original.size
    if image.path is None:
        raise _no_photo(image)
    with disk.open_file(image.path) as file, Image.open(file) as photo:
        width, height = photo.size
        return (height, width) if photo.getexif().get(_ORIENTATION, 1) >= 5 else (width, height)


def _no_photo(image: LoadedImage) -> ImageError:
    return ImageError(f"{image.name} is no photograph: give what is known in the pixels of the tensor")


def _crop(image: LoadedImage, array: Any, what: str, outside: Any = 0) -> Array:
    """Return an array of the photograph's pixels at those that the model sees, each from the nearest one."""
    if image.box is None:
        raise _no_photo(image)
    values, (width, height) = np.asarray(array), photo_size(image)
    if values.shape != (height, width):
        raise ImageError(f"the {what} of {image.name} is {list(values.shape)}, the photograph is [{height}, {width}]")
    left, top, right, bottom = image.box
    rows, columns = (
        np.floor(start + (np.arange(length) + 0.5) * (stop - start) / length).astype(int)
        for start, stop, length in zip((top, left), (bottom, right), image.tensor.shape[-2:], strict=True)
    )
    within = ((rows >= 0) & (rows < height))[:, None] & ((columns >= 0) & (columns < width))
    nearest = values[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    return np.where(within, nearest, np.asarray(outside, values.dtype))


def _crop_boxes(image: LoadedImage, boxes: Iterable[Box]) -> tuple[Box, ...]:
    if image.box is None:
        raise _no_photo(image)
    height, width = image.tensor.shape[-2:]
    left, top, right, bottom = image.box
    x, y = width / (right - left), height / (bottom - top)
    moved = [((a - left) * x, (b - top) * y, (c - left) * x, (d - top) * y) for a, b, c, d in boxes]
    cropped = [(max(0.0, a), max(0.0, b), min(float(width), c), min(float(height), d)) for a, b, c, d in moved]
    return tuple(box for box in cropped if box[0] < box[2] and box[1] < box[3])


def _check_box(box: Any, name: str) -> Box:
    try:
        left, top, right, bottom = (float(side) for side in box)
        is_valid = bool(np.isfinite([left, top, right, bottom]).all()) and left <= right and top <= bottom
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise ImageError(f"a box of {name} is {box!r:.60}; it must be (left, top, right, bottom)")
    return left, top, right, bottom


def _check_integers(array: Any, what: str) -> Array:
    numbers = np.asarray(array)
    if not np.issubdtype(numbers.dtype, np.integer):
        raise ImageError(f"{what} holds {numbers.dtype}, not whole numbers")
    return numbers


# -- masks in files ----------------------------------------------------------------------------------------


def read_mask(path: Path) -> Array:
    """Return the numbers of a mask, ``[H, W]``; those of a palette as they are, colours as one number."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with disk.open_file(path) as file, Image.open(file) as image:
                values = np.asarray(image if image.mode in ("1", "L", "P", "I", "I;16") else image.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"the mask {path} cannot be read: {one_line(str(error))}") from None
    values = values.astype(np.int64)
    return values if values.ndim == 2 else values @ np.array([1, 2**8, 2**16])


def mask_annotation(
    image: LoadedImage, path: Path, trimap: bool | None = None, ignore: int | None = None
) -> Annotation:
    """Return the annotation that a mask in a file is; see ``load_annotations``."""
    numbers = read_mask(path)
    if trimap is None:
        distinct = set(np.unique(numbers).tolist())
        trimap = ignore is None and len(distinct) > 1 and distinct <= _TRIMAP
    if trimap:
        return Annotation.of_trimap(image, numbers)
    inside = (numbers != 0) & (numbers != ignore)
    return Annotation.of_photo(image, inside, ignore=None if ignore is None else numbers == ignore)
