"""A folder in the layout of the FunnyBirds data set as images of the protocol.

What is certain about that layout, and what is only the default of ``Layout``, stands in docs/metrics/ground-truth.md.
Whatever does not fit is refused by name: a file that is absent, a colour that is nobody's, a size that differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data import open_photo
from vitreous.errors import VitreousError
from vitreous.judge.birds.source import Change, Seen
from vitreous.metrics.curves import Array

__all__ = ["Folder", "Layout"]

Colour = tuple[int, int, int]
_MOST_OBJECTS = 50


def _objects() -> dict[Colour, int]:
    return {(255, place, 128): place for place in range(_MOST_OBJECTS)}


@dataclass(frozen=True)
class Layout:
    """Where a folder has its files, and whose the colours of its part maps are.

    ``{label}`` is the class, ``{image}`` the place in the table of images, ``{kept}`` the names of the parts that are
    left, in order, with ``_`` between them (``nothing`` if there are none), ``{object}`` the object that is removed.
    """

    table: str = "dataset_test.json"
    classes: str = "classes.json"
    image: str = "test/{label}/{image:06d}.png"
    part_map: str = "test_part_map/{label}/{image:06d}.png"
    kept: str = "test_interventions/{label}/{image:06d}/{kept}.png"
    without: str = "test_interventions/{label}/{image:06d}/bg_{object:03d}.png"
    nothing: str = "body"
    parts: tuple[str, ...] = ("beak", "eye", "foot", "tail", "wing")
    colours: Mapping[Colour, str] = field(
        default_factory=lambda: {
            (255, 255, 0): "beak",
            (255, 255, 253): "eye",
            (255, 255, 254): "eye",
            (255, 0, 1): "foot",
            (255, 0, 2): "foot",
            (0, 0, 255): "tail",
            (0, 255, 1): "wing",
            (0, 255, 2): "wing",
        }
    )
    """Part by colour; a part of two instances has two colours, and each is dilated by itself."""
    objects: Mapping[Colour, int] = field(default_factory=_objects)
    """Background object by colour."""
    nobody: tuple[Colour, ...] = ((0, 0, 0), (255, 255, 255))
    """Colours of the ground and of the bare body."""

    def __post_init__(self) -> None:
        for colour, part in self.colours.items():
            if part not in self.parts:
                raise VitreousError(f"the colour {colour} is of {part!r}, but the parts are {', '.join(self.parts)}")
        for part in self.parts:
            if part not in self.colours.values():
                raise VitreousError(f"no colour of the part maps is of {part}")


@dataclass(frozen=True, eq=False)
class Folder:
    """Rendered images and interventions on disk; a picture is read when it is its turn."""

    root: Path
    layout: Layout
    labels: Array
    variants: Array
    counts: tuple[int, ...]
    """Background objects of each image."""

    @classmethod
    def of(cls, root: str | Path, layout: Layout | None = None) -> Folder:
        """Read the tables of a folder; pictures are looked at later."""
        root, how = Path(root), layout or Layout()
        if not root.is_dir():
            raise VitreousError(f"no such folder of birds: {root}")
        variants = _variants(root / how.classes, how.parts)
        rows = _json(root / how.table)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise VitreousError(f"{root / how.table} must hold a list with one table of parameters for each image")
        labels = [_class(row, len(variants), root / how.table, place) for place, row in enumerate(rows)]
        counts = tuple(_count(row.get("bg_objects"), root / how.table, place) for place, row in enumerate(rows))
        return cls(root, how, np.array(labels), variants, counts)

    @property
    def what(self) -> str:
        return f"the birds in {self.root}"

    @property
    def parts(self) -> tuple[str, ...]:
        return self.layout.parts

    @property
    def names(self) -> list[str]:
        return [
            self._at(self.layout.image, image).relative_to(self.root).as_posix() for image in range(len(self.labels))
        ]

    @cached_property
    def size(self) -> int:
        """Side of the first picture; the others have to agree."""
        wide, high = open_photo(self._at(self.layout.image, 0)).size
        if wide != high:
            raise VitreousError(f"{self.names[0]} is {wide} x {high} pixels; birds are square")
        return wide

    @property
    def most_objects(self) -> int:
        return max(self.counts)

    def objects(self, image: int) -> range:
        """Return the places of the background objects that an image has."""
        return range(self.counts[image])

    def images(self, changes: Sequence[Change]) -> Tensor:
        """Read the pictures; with every part and object there, that is the image itself."""
        return torch.stack([self._picture(self._path(change)) for change in changes])

    def seen(self, images: range) -> Iterator[Seen]:
        """Yield the instances of parts and the objects of each image, by the colours of its part map."""
        for image in images:
            yield self._seen(image)

    def _path(self, change: Change) -> Path:
        layout, everything = self.layout, 2 ** len(self.parts) - 1
        if change.without >= 0:
            return self._at(layout.without, change.image, object=change.without)
        if change.kept == everything:
            return self._at(layout.image, change.image)
        names = [part for place, part in enumerate(self.parts) if change.kept >> place & 1]
        return self._at(layout.kept, change.image, kept="_".join(names) or layout.nothing)

    def _at(self, template: str, image: int, **more: Any) -> Path:
        try:
            return self.root / template.format(label=int(self.labels[image]), image=image, **more)
        except (KeyError, IndexError, ValueError) as error:
            raise VitreousError(f"the layout {template!r} cannot be filled in: {error}") from None

    def _pixels(self, path: Path) -> Array:
        pixels = np.asarray(open_photo(path))
        if pixels.shape[:2] != (self.size, self.size):
            high, wide = pixels.shape[:2]
            raise VitreousError(f"{path} is {wide} x {high} pixels, others are {self.size} x {self.size}")
        return pixels

    def _picture(self, path: Path) -> Tensor:
        return torch.from_numpy(self._pixels(path).copy()).permute(2, 0, 1).float() / 255

    def _seen(self, image: int) -> Seen:
        layout, path = self.layout, self._at(self.layout.part_map, image)
        pixels = self._pixels(path)
        masks, owners = [], []
        for colour in map(tuple, np.unique(pixels.reshape(-1, 3), axis=0).tolist()):
            if colour in layout.nobody:
                continue
            owner = self._owner(colour, image, path)
            masks.append((pixels == colour).all(axis=2))
            owners.append(owner)
        for owner in [*range(len(self.parts)), *(len(self.parts) + k for k in self.objects(image))]:
            if owner not in owners:  # it is there, and wholly hidden
                masks.append(np.zeros(pixels.shape[:2], bool))
                owners.append(owner)
        return Seen(np.stack(masks), np.array(owners))

    def _owner(self, colour: tuple[int, ...], image: int, path: Path) -> int:
        key = (colour[0], colour[1], colour[2])
        if key in self.layout.colours:
            return self.parts.index(self.layout.colours[key])
        place = self.layout.objects.get(key)
        if place is None:
            raise VitreousError(f"{path} has the colour {key}, which is nobody's; give a Layout with its colours")
        if place >= self.counts[image]:
            raise VitreousError(f"{path} shows object {place}, but the image has {self.counts[image]}")
        return len(self.parts) + place


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise VitreousError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise VitreousError(f"{path} is no JSON: {error}") from None


def _variants(path: Path, parts: Sequence[str]) -> Array:
    """Return a number for each variant of each part; two classes have the same where the table says the same."""
    rows = _json(path)
    if not isinstance(rows, list) or len(rows) < 2 or not all(isinstance(row, dict) for row in rows):
        raise VitreousError(f"{path} must hold a list with one table for each class")
    columns: list[dict[str, int]] = [{} for _ in parts]
    table = np.zeros((len(rows), len(parts)), np.int64)
    for place, row in enumerate(rows):
        if row.get("class_idx", place) != place:
            raise VitreousError(f"class {place} of {path} calls itself {row['class_idx']!r:.60}")
        told = row.get("parts")
        for column, part in enumerate(parts):
            if not isinstance(told, dict) or part not in told:
                raise VitreousError(f"class {place} of {path} has no {part!r} among its parts")
            known = columns[column]
            table[place, column] = known.setdefault(json.dumps(told[part], sort_keys=True), len(known))
    return table


def _class(row: Mapping[str, Any], count: int, path: Path, place: int) -> int:
    label = row.get("class_idx")
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < count:
        raise VitreousError(f"image {place} of {path} has class_idx={label!r:.60}, outside 0..{count - 1}")
    return label


def _count(told: Any, path: Path, place: int) -> int:
    """Return how many background objects there are: a list of them, or their names with commas between."""
    if isinstance(told, str):
        return len([each for each in told.split(",") if each.strip()])
    if isinstance(told, list):
        return len(told)
    raise VitreousError(
        f"image {place} of {path} has bg_objects={told!r:.60}, neither a list nor names with commas between"
    )
