"""COCO: one entry for each image and category in it, with boxes, and masks of polygons and run lengths.

The classes of ImageNet that stand for a category are those of ``coco.json`` beside this file: a table of our own. It
has every class whose name is the category or a kind of it, and no neighbours, wholes or parts (no kite, the bird, for
the kite; no monitor for the tv; no toilet seat for the toilet). 21 of the 80 categories have none.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.datasets.annotations import Annotation, Array
from vitreous.datasets.catalog import Listing, register_source
from vitreous.datasets.class_tables import Label, table
from vitreous.datasets.dataset import Entry
from vitreous.datasets.files import check_folder, describe, first_existing, misfit, read_json
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, SpecError, one_line
from vitreous.models import Box
from vitreous.registry import check_choice

_LISTS = ("images", "annotations", "categories")
_EXPECTED = "annotations/instances_val2017.json and val2017/ with its images"


@register_source("coco")
def coco(path: Path, split: str = "val2017", least_area: float = 0.01, classes: str = "imagenet") -> Listing:
    """Images of a split, once for each category that is seen on at least ``least_area`` of the image.

    ``classes="imagenet"``: the label is the class of ImageNet for the category that is most probable to the model, and
    categories without one are left out. ``classes="coco"``: the label is the category's name. Crowds are ignored
    regions. Objects of one category in one image are one region; entries of one image are one group.
    """
    check_choice("classes", classes, ("imagenet", "coco"))
    if not 0 <= least_area <= 1:
        raise SpecError(f"least_area={least_area} must lie between 0 and 1")
    file, root, content = _read(path, split)
    folder = first_existing(root / split, root / "images" / split, root / "images") or root
    try:
        entries = _entries(content, folder, least_area, table("coco.json") if classes == "imagenet" else None)
        names = tuple(sorted(str(category["name"]) for category in content["categories"]))
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        actual = f"an entry cannot be read ({type(error).__name__}: {one_line(str(error))[:80]})"
        raise misfit("coco", "images, annotations and categories as COCO has them", actual, file) from None
    if not entries:
        raise misfit("coco", f"objects of at least {least_area:g} of an image", "there are none", file)
    if classes == "imagenet":
        return Listing(entries, note=f"{file.name}; ImageNet classes of Vitreous' own table")
    return Listing(entries, names=names, note=f"{file.name}; labels are COCO's categories")


def _read(path: Path, split: str) -> tuple[Path, Path, dict[str, Any]]:
    """Return the file of annotations, the folder of the data set, and what the file holds."""
    file, root = path, path.parent.parent
    if path.suffix.lower() != ".json":
        file, root = path / "annotations" / f"instances_{split}.json", check_folder("coco", path, _EXPECTED)
    if not os.path.isfile(file):
        raise misfit("coco", _EXPECTED, describe(root) if os.path.isdir(root) else "there is no such file", root)
    content = read_json("coco", file)
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in _LISTS):
        raise misfit("coco", "lists of images, annotations and categories", f"it is {content!r:.60}", file)
    return file, root, content


def _entries(
    content: Mapping[str, Any], folder: Path, least_area: float, classes: Mapping[str, Sequence[int]] | None
) -> list[Entry]:
    names = {int(category["id"]): str(category["name"]) for category in content["categories"]}
    photos = {
        int(image["id"]): (str(image["file_name"]), (int(image["height"]), int(image["width"])))
        for image in content["images"]
    }
    objects: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for item in content["annotations"]:
        objects[int(item["image_id"]), int(item["category_id"])].append(item)
    entries: list[Entry] = []
    labels: dict[int, list[Label]] = defaultdict(list)
    for (number, category), items in sorted(objects.items(), key=lambda pair: pair[0]):
        (file, size), name = photos[number], names[category]
        label = name if classes is None else tuple(classes.get(name, ()))
        boxes = _single_boxes(items, least_area * size[0] * size[1])
        if label and boxes:
            annotate = partial(_annotate, items, boxes, file, size)
            entries.append(Entry(f"{file}#{name}", folder / file, label, boxes, group=number, annotate=annotate))
            labels[number].append(label)
    return [replace(entry, compare_classes=tuple(labels[entry.group or 0])) for entry in entries]


def _single_boxes(items: Sequence[Mapping[str, Any]], least_area: float) -> tuple[Box, ...]:
    """Return the boxes of objects that are no crowds; none if they cover too little together."""
    singles = [item for item in items if not item.get("iscrowd")]
    is_large = sum(float(item["area"]) for item in singles) >= least_area
    return tuple(_to_box(*map(float, item["bbox"])) for item in singles) if is_large else ()


def _to_box(left: float, top: float, width: float, height: float) -> Box:
    return left, top, left + width, top + height


def _annotate(
    objects: Sequence[Mapping[str, Any]], boxes: Sequence[Box], file: str, size: tuple[int, int], image: LoadedImage
) -> Annotation:
    masks: dict[bool, list[Array]] = {False: [], True: []}
    try:
        for item in objects:
            masks[bool(item.get("iscrowd"))].append(decode_segmentation(item["segmentation"], size))
    except (KeyError, TypeError, ValueError) as error:
        raise ImageError(f"coco: the masks of {file} cannot be read: {one_line(str(error))}") from None
    mask = np.any(masks[False], axis=0)
    ignore = np.any(masks[True], axis=0) & ~mask if masks[True] else None
    return Annotation.of_photo(image, mask, boxes=boxes, ignore=ignore)


def decode_segmentation(segmentation: Any, size: tuple[int, int]) -> Array:
    """Return a segmentation as a mask ``[H, W]``: polygons, inside which a pixel is if its middle is, or run lengths.

    pycocotools traces polygons on a grid five times finer: masks may differ from its own along the outline.
    """
    if isinstance(segmentation, Mapping):
        height, width = map(int, segmentation["size"])
        if (height, width) != size:
            raise ValueError(f"runs of {height} x {width} pixels in an image of {size[0]} x {size[1]}")
        return decode_rle(segmentation["counts"], size)
    mask = np.zeros(size, bool)
    for polygon in segmentation:
        if len(polygon) < 6 or len(polygon) % 2:
            raise ValueError(f"a polygon of {len(polygon)} numbers")
        mask |= _fill_polygon(np.asarray(polygon, float).reshape(-1, 2), size)
    return mask


def _fill_polygon(points: Array, size: tuple[int, int]) -> Array:
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


def decode_rle(counts: str | Sequence[int], size: tuple[int, int]) -> Array:
    """Return the mask ``[H, W]`` of run lengths, down the columns, first outside, or of a text that packs them."""
    runs = unpack_counts(counts) if isinstance(counts, str) else [int(count) for count in counts]
    height, width = size
    if any(run < 0 for run in runs) or sum(runs) != height * width:
        raise ValueError(f"runs of {sum(runs)} pixels in an image of {height} x {width}")
    flat = np.zeros(height * width, bool)
    ends = list(accumulate(runs))
    for start, stop in zip(ends[::2], ends[1::2], strict=False):
        flat[start:stop] = True
    return np.asarray(flat.reshape(width, height).T)


def unpack_counts(text: str) -> list[int]:
    """Unpack run lengths.

    Each character holds 6 bits, counted from ``0``: five of the number, the lowest first, and one that says that more
    follow. The highest of the last five is the sign. From the fourth number on, each is the difference to the run two
    before it.
    """
    runs: list[int] = []
    value, shift = 0, 0
    for letter in text:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise ValueError(f"{letter!r} is no letter of packed run lengths")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    if shift:
        raise ValueError("packed run lengths end in the middle of a number")
    return runs
