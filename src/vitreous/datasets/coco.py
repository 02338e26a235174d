"""COCO: one entry for each image and category in it, with boxes, and masks of polygons and run lengths.

The classes of ImageNet that stand for a category are those of ``coco.json`` beside this file: a table of our own. It
has every class whose name is the category or a kind of it, and no neighbours, wholes or parts (no kite, the bird, for
the kite; no monitor for the tv; no toilet seat for the toilet). 21 of the 80 categories have none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.datasets.annotations import Annotation, Array, mask_of_runs
from vitreous.datasets.class_tables import table
from vitreous.datasets.dataset import Entry, Found, source_kind
from vitreous.datasets.files import content, first_there, folder_at, misfit, read_json
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, SpecError, one_line
from vitreous.registry import check_choice

__all__ = ["drawn"]

_PARTS = ("images", "annotations", "categories")
_EXPECTED = "annotations/instances_val2017.json and val2017/ with its images"


@dataclass(frozen=True)
class _Photo:
    file: str
    wide: int
    high: int


@source_kind("coco")
def coco(path: Path, split: str = "val2017", least_area: float = 0.01, classes: str = "imagenet") -> Found:
    """Images of a split, once for each category that is seen on at least ``least_area`` of the image.

    ``classes="imagenet"``: the label is the class of ImageNet for the category that the model holds likeliest, and
    categories without one are left out. ``classes="coco"``: the label is the category's name. Crowds are ignored
    regions. Objects of one category in one image are one region; entries of one image are one group.
    """
    check_choice("classes", classes, ("imagenet", "coco"))
    if not 0 <= least_area <= 1:
        raise SpecError(f"least_area={least_area} must lie between 0 and 1")
    place = path if path.suffix.lower() == ".json" else path / "annotations" / f"instances_{split}.json"
    root = place.parent.parent if path.suffix.lower() == ".json" else folder_at("coco", path, _EXPECTED)
    if not os.path.isfile(place):
        raise misfit("coco", _EXPECTED, content(root) if os.path.isdir(root) else "there is no such file", root)
    told = read_json("coco", place)
    if not isinstance(told, dict) or not all(isinstance(told.get(part), list) for part in _PARTS):
        raise misfit("coco", "lists of images, annotations and categories", f"it is {told!r:.60}", place)
    try:
        entries = _entries(told, root, split, least_area, classes == "imagenet")
        words = tuple(sorted(str(each["name"]) for each in told["categories"]))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        said = f"an entry cannot be understood ({type(error).__name__}: {one_line(str(error))[:80]})"
        raise misfit("coco", "images, annotations and categories as COCO has them", said, place) from None
    if not entries:
        raise misfit("coco", f"objects of at least {least_area:g} of an image", "there are none", place)
    note = "ImageNet classes of Vitreous' own table" if classes == "imagenet" else "labels are COCO's categories"
    return Found(entries, names=() if classes == "imagenet" else words, note=f"{place.name}; {note}")


def _entries(told: Mapping[str, Any], root: Path, split: str, least: float, mapped: bool) -> list[Entry]:
    images, annotations, categories = (told[part] for part in _PARTS)
    names = {int(each["id"]): str(each["name"]) for each in categories}
    photos = {
        int(image["id"]): _Photo(str(image["file_name"]), int(image["width"]), int(image["height"])) for image in images
    }
    objects: dict[int, dict[int, list[Mapping[str, Any]]]] = {}
    for annotation in annotations:
        objects.setdefault(int(annotation["image_id"]), {}).setdefault(int(annotation["category_id"]), []).append(
            annotation
        )
    folder = first_there(root / split, root / "images" / split, root / "images") or root
    labels: Mapping[str, Sequence[int]] = table("coco.json")
    found: list[Entry] = []
    for number in sorted(objects):
        photo, here = photos[number], {}
        for category, some in sorted(objects[number].items()):
            alone = [each for each in some if not each.get("iscrowd")]
            share = sum(float(each["area"]) for each in alone) / (photo.wide * photo.high)
            label = tuple(labels.get(names[category], ())) if mapped else names[category]
            if alone and share >= least and label:
                here[category] = label, some, tuple(_box(each["bbox"]) for each in alone)
        for category, (label, some, boxes) in here.items():
            found.append(
                Entry(
                    f"{photo.file}#{names[category]}",
                    folder / photo.file,
                    label=label,
                    boxes=boxes,
                    group=number,
                    compare_classes=tuple(other for other, _, _ in here.values()),
                    known=partial(_truth, some, boxes, photo),
                )
            )
    return found


def _box(told: Any) -> tuple[float, float, float, float]:
    left, top, width, height = (float(each) for each in told)
    return left, top, left + width, top + height


def _truth(
    objects: Sequence[Mapping[str, Any]], boxes: Sequence[Any], photo: _Photo, picture: LoadedImage
) -> Annotation:
    size = photo.high, photo.wide
    try:
        inside = [drawn(object_["segmentation"], size) for object_ in objects if not object_.get("iscrowd")]
        crowd = [drawn(object_["segmentation"], size) for object_ in objects if object_.get("iscrowd")]
    except (KeyError, TypeError, ValueError) as error:
        raise ImageError(f"coco: the masks of {photo.file} cannot be understood: {one_line(str(error))}") from None
    mask = np.any(inside, axis=0)
    ignore = np.any(crowd, axis=0) & ~mask if crowd else None
    return Annotation.of_photo(picture, mask, boxes=boxes, ignore=ignore)


def drawn(told: Any, size: tuple[int, int]) -> Array:
    """Return a segmentation as a mask ``[H, W]``: polygons, inside which a pixel is if its middle is, or run lengths.

    pycocotools traces polygons on a grid five times finer: masks may differ from its own along the outline.
    """
    if isinstance(told, Mapping):
        height, width = (int(each) for each in told["size"])
        if (height, width) != size:
            raise ValueError(f"runs of {height} x {width} pixels in an image of {size[0]} x {size[1]}")
        return mask_of_runs(told["counts"], size)
    mask = np.zeros(size, bool)
    for polygon in told:
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon of {len(polygon)} numbers")
        mask |= _filled(np.asarray(polygon, float).reshape(-1, 2), size)
    return mask


def _filled(points: Array, size: tuple[int, int]) -> Array:
    """Fill a polygon row by row: a pixel is inside if an odd number of edges cross its row to the right of it."""
    height, width = size
    (left, top), (right, bottom) = points.T, np.roll(points, -1, axis=0).T
    rows = np.arange(height)[:, None] + 0.5
    row, edge = np.nonzero((top > rows) != (bottom > rows))
    slope = (right[edge] - left[edge]) / (bottom[edge] - top[edge])
    crossing = left[edge] + (row + 0.5 - top[edge]) * slope
    before = np.ceil(crossing - 0.5).clip(0, width).astype(int)  # how many middles of pixels lie to the left of it
    turns = np.zeros((height, width + 1), int)
    np.add.at(turns, (row, before), 1)
    return np.asarray(turns[:, :0:-1].cumsum(axis=1)[:, ::-1] % 2 == 1)
