"""FunnyBirds as its authors release it (Hesse, Schaub-Meyer and Roth, ICCV 2023): layout and unchanged images."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous import io as disk
from vitreous.datasets.annotations import Annotation, Array
from vitreous.datasets.catalog import Listing, register_source
from vitreous.datasets.dataset import Entry
from vitreous.datasets.files import check_folder, describe, misfit
from vitreous.datasets.images import LoadedImage, open_image
from vitreous.errors import ImageError
from vitreous.registry import check_choice

if TYPE_CHECKING:
    from typing_extensions import Self

Colour = tuple[int, int, int]
_SOURCE = "funnybirds"
_EXPECTED = "classes.json, dataset_test.json, test/ and test_part_map/, as in the released FunnyBirds.zip"
_MAX_OBJECTS = 50
_PROBED = 20
"""In how many part maps a part has to be seen at least once; the camera rarely misses all of a bird."""


@dataclass(frozen=True)
class Layout:
    """Where a folder has its files, and whose the colours of its part maps are. The defaults are the released ones.

    ``{split}`` is the split, ``{label}`` the class, ``{image}`` the position in the table of images, ``{parts}`` the
    names of the parts that are left, in order, with ``_`` between them (``nothing`` if there are none), ``{object}``
    the object that is removed.
    """

    table: str = "dataset_{split}.json"
    classes: str = "classes.json"
    image: str = "{split}/{label}/{image:06d}.png"
    part_map: str = "{split}_part_map/{label}/{image:06d}.png"
    with_parts: str = "{split}_interventions/{label}/{image:06d}/body_{parts}.png"
    without: str = "{split}_interventions/{label}/{image:06d}/background_interventions/{object}.png"
    nothing: str = ""
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
    objects: Mapping[Colour, int] = field(
        default_factory=lambda: {(204, 204, 204 + number): number for number in range(_MAX_OBJECTS)}
    )
    """Background object by colour."""
    nobody: tuple[Colour, ...] | None = None
    """Colours of the ground and of the bare body. None: every other colour, as the released reader has it, since edges
    are rendered smooth and hold mixtures; with a list, any colour that is in none of the three is an error."""
    split: str = "test"

    def __post_init__(self) -> None:
        for colour, part in self.colours.items():
            if part not in self.parts:
                raise ImageError(f"the colour {colour} is of {part!r}, but the parts are {', '.join(self.parts)}")
        for part in self.parts:
            if part not in self.colours.values():
                raise ImageError(f"no colour of the part maps is of {part}")

    def path(self, root: Path, template: str, **values: Any) -> Path:
        """Return the path that a template names."""
        try:
            return root / template.format(split=self.split, **values)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ImageError(f"the layout {template!r} cannot be filled in: {error}") from None


@dataclass(frozen=True, eq=False)
class FunnyBirdsFiles:
    """The tables of a folder, and its images and part maps, which are read when it is their turn."""

    root: Path
    layout: Layout
    labels: Array
    variants: Array
    """Which variant of each part a class has, ``[C, P]``."""
    counts: tuple[int, ...]
    """Background objects of each image."""

    @classmethod
    def of(cls, root: str | Path, layout: Layout | None = None) -> Self:
        """Read the tables of a folder; images are opened later."""
        root, layout = Path(root), layout or Layout()
        if not os.path.isdir(root):
            raise ImageError(f"no such folder of birds: {root}")
        variants = _variants(layout.path(root, layout.classes), layout.parts)
        table = layout.path(root, layout.table)
        rows = _read_rows(table, 1, "a list with one table of parameters for each image")
        labels = [_class(row, len(variants), table, number) for number, row in enumerate(rows)]
        counts = tuple(_count(row.get("bg_objects"), table, number) for number, row in enumerate(rows))
        return cls(root, layout, np.array(labels), variants, counts)

    @property
    def parts(self) -> tuple[str, ...]:
        return self.layout.parts

    @property
    def names(self) -> list[str]:
        return [self.path(self.layout.image, i).relative_to(self.root).as_posix() for i in range(len(self.labels))]

    @cached_property
    def size(self) -> int:
        """Side of the first image; the others have to agree."""
        width, height = open_image(self.path(self.layout.image, 0)).size
        if width != height:
            raise ImageError(f"{self.names[0]} is {width} x {height} pixels; birds are square")
        return width

    def path(self, template: str, image: int, **values: Any) -> Path:
        """Return a file of one image."""
        return self.layout.path(self.root, template, label=int(self.labels[image]), image=image, **values)

    def pixels(self, path: Path) -> Array:
        """Read a image or part map, ``[S, S, 3]`` bytes; transparency is dropped."""
        pixels = np.asarray(open_image(path))
        if pixels.shape[:2] != (self.size, self.size):
            height, width = pixels.shape[:2]
            raise ImageError(f"{path} is {width} x {height} pixels, others are {self.size} x {self.size}")
        return pixels

    def instances(self, image: int) -> tuple[Array, Array]:
        """Return what is seen in one image, by colour: masks ``[I, S, S]``, and the part or, from P on, the object."""
        if not self._has_part_colours:
            raise ImageError(f"no part map of {self.root} has the colour of a part; give a Layout with its colours")
        path = self.path(self.layout.part_map, image)
        pixels = self.pixels(path)
        colours = map(_colour, np.unique(pixels.reshape(-1, 3), axis=0))
        owners = {colour: self._owner(colour, image, path) for colour in colours}
        owners = {colour: owner for colour, owner in owners.items() if owner is not None}
        masks = [(pixels == colour).all(axis=2) for colour in owners]
        return np.array(masks, bool).reshape(-1, *pixels.shape[:2]), np.array([*owners.values()], np.int64)

    @cached_property
    def _has_part_colours(self) -> bool:
        """Whether the first part maps have the colour of a part at all; else their colours are others."""
        if self.layout.nobody is not None:
            return True  # every colour is checked by itself
        probed = range(min(_PROBED, len(self.labels)))
        maps = (self.pixels(self.path(self.layout.part_map, image)).reshape(-1, 3) for image in probed)
        return any(_colour(row) in self.layout.colours for pixels in maps for row in np.unique(pixels, axis=0))

    def _owner(self, colour: Colour, image: int, path: Path) -> int | None:
        layout = self.layout
        if colour in layout.colours:
            return self.parts.index(layout.colours[colour])
        number, strict = layout.objects.get(colour), layout.nobody is not None
        if number is not None and number < self.counts[image]:
            return len(self.parts) + number
        if strict and number is not None:
            raise ImageError(f"{path} shows object {number}, but the image has {self.counts[image]}")
        if layout.nobody is not None and colour not in layout.nobody:
            raise ImageError(f"{path} has the colour {colour}, which is nobody's; give a Layout with its colours")
        return None


@register_source(_SOURCE)
def funnybirds(path: Path, split: str = "test") -> Listing:
    """The unchanged images, their classes and where each part is; removing parts is for ``vitreous funnybirds``."""
    check_choice("split", split, ("test", "train"))
    layout = replace(Layout(), split=split)
    expected = _EXPECTED.replace("test", split)
    check_folder(_SOURCE, path, expected)
    for template in (layout.classes, layout.table, "{split}", "{split}_part_map"):
        if not os.path.exists(layout.path(path, template)):
            raise misfit(_SOURCE, expected, describe(path), path)
    files = FunnyBirdsFiles.of(path, layout)
    entries = []
    for image, (name, label) in enumerate(zip(files.names, files.labels.tolist(), strict=True)):
        masks = files.path(layout.part_map, image)
        entries.append(Entry(name, path / name, label=label, mask=masks, annotate=partial(_annotate, files, image)))
    return Listing(
        entries, note=f"{len(files.variants)} classes of {layout.classes}, parts by the colours of part maps"
    )


def _annotate(files: FunnyBirdsFiles, number: int, image: LoadedImage) -> Annotation:
    """The parts of one image; instances of a part are one region here."""
    masks, owners = files.instances(number)
    parts = {part: masks[owners == index].any(axis=0) for index, part in enumerate(files.parts)}
    return Annotation.of_photo(image, parts=parts)


def _colour(row: Array) -> Colour:
    red, green, blue = row.tolist()
    return red, green, blue


def _read_rows(path: Path, least: int, expected: str) -> list[dict[str, Any]]:
    rows = disk.read_json(path, 2**31, error=ImageError)
    if not isinstance(rows, list) or len(rows) < least or not all(isinstance(row, dict) for row in rows):
        raise ImageError(f"{path} must hold {expected}")
    return rows


def _variants(path: Path, parts: Sequence[str]) -> Array:
    """Return a number for each variant of each part; two classes have the same where the table says the same."""
    rows = _read_rows(path, 2, "a list with one table for each class")
    columns: list[dict[str, int]] = [{} for _ in parts]
    table = np.zeros((len(rows), len(parts)), np.int64)
    for number, row in enumerate(rows):
        if row.get("class_idx", number) != number:
            raise ImageError(f"class {number} of {path} calls itself {row['class_idx']!r:.60}")
        variants = row.get("parts")
        for column, part in enumerate(parts):
            if not isinstance(variants, dict) or part not in variants:
                raise ImageError(f"class {number} of {path} has no {part!r} among its parts")
            numbers = columns[column]
            table[number, column] = numbers.setdefault(json.dumps(variants[part], sort_keys=True), len(numbers))
    return table


def _class(row: Mapping[str, Any], count: int, path: Path, number: int) -> int:
    label = row.get("class_idx")
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < count:
        raise ImageError(f"image {number} of {path} has class_idx={label!r:.60}, outside 0..{count - 1}")
    return label


def _count(objects: Any, path: Path, number: int) -> int:
    """Return how many background objects there are: a list of them, or their numbers with commas between."""
    if isinstance(objects, str):
        return len([word for word in objects.split(",") if word.strip()])
    if isinstance(objects, list):
        return len(objects)
    raise ImageError(
        f"image {number} of {path} has bg_objects={objects!r:.60}, neither a list nor names with commas between"
    )
