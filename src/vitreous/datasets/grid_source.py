"""Quad-ImageNet and Part-Quad-ImageNet: grids of pictures of different classes, put together for one model."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.datasets.annotations import Annotation
from vitreous.datasets.dataset import DataSource, Entry, Found, Unreadable, chosen, source_kind
from vitreous.datasets.grids import Grids, check_count, possible_grids
from vitreous.datasets.imagenet import imagenet_s, imagenet_val
from vitreous.datasets.images import pictures
from vitreous.datasets.samples import Sample
from vitreous.errors import ImageError
from vitreous.models import VisionModel
from vitreous.registry import check_at_least

__all__ = ["GridSource"]


@source_kind("quad-imagenet")
def quad(path: Path, rows: int = 2, least_confidence: float | None = None, pool: int = 0) -> Found:
    """Grids of ImageNet's validation images (any layout of ``imagenet-val``); the truth of an entry is its cell.

    ``images`` counts grids, each of which has rows x rows entries. ``pool`` is how many pictures, drawn at random, the
    grids may be made of (0: all of them; each is read once). ``least_confidence`` leaves out those that the model does
    not classify rightly with this probability.
    """
    found = imagenet_val(path)
    plain = [replace(entry, boxes=None, known=None) for entry in found.entries]
    make = partial(_made, "quad-imagenet", path, rows=rows, least=least_confidence, pool=pool)
    return replace(found, entries=plain, make=make)


@source_kind("part-quad-imagenet")
def part_quad(path: Path, rows: int = 2, least_confidence: float | None = None, pool: int = 0) -> Found:
    """The same of pictures with masks (the layout of ``imagenet-s``); the truth of an entry is its cell's object."""
    make = partial(_made, "part-quad-imagenet", path, rows=rows, least=least_confidence, pool=pool)
    return replace(imagenet_s(path), make=make)


def _made(
    word: str, path: Path, entries: list[Entry], images: int, seed: int, rows: int, least: float | None, pool: int
) -> DataSource:
    check_at_least("rows", rows, 2)
    taken = chosen(word, entries, pool, "random", seed) if pool else entries
    most = _most(Counter(each.label for each in taken).values(), rows**2)
    if max(images, 1) > most:
        raise ImageError(f"{word}: {len(taken)} pictures make at most {most} grids of {rows} x {rows}")
    ingredients = DataSource(word, tuple(taken), path)
    recipe = (rows, seed, least)
    cells = [
        Entry(f"grid-{grid:05d}/{cell}", group=grid, source=ingredients, build_steps=recipe)
        for grid in range(images or most)
        for cell in range(rows**2)
    ]
    note = f"grids of {rows} x {rows} out of {len(taken)} pictures"
    return GridSource(
        word, tuple(cells), path, note=note, ingredients=ingredients, rows=rows, count=images, seed=seed, least=least
    )


def _most(counts: Iterable[int], cells: int) -> int:
    """Return how many grids there can be if the cells of each differ: k of them use k pictures of a class at most."""
    counts = list(counts)
    low, high = 0, sum(counts) // cells
    while low < high:
        half = (low + high + 1) // 2
        low, high = (half, high) if sum(min(count, half) for count in counts) >= cells * half else (low, half - 1)
    return low


@dataclass(frozen=True, eq=False, kw_only=True)
class GridSource(DataSource):
    """Grids of ``ingredients``; ``entries`` are their cells, each of which is asked about, grid by grid.

    Which pictures meet follows from the seed and from what the model sees of them, so the grids are made for a model,
    when it is there; those of one model are kept until another asks. What is known of a cell before is its name and its
    grid, by whose number it is grouped. There may be fewer grids than entries, where ingredients cannot be used.
    """

    ingredients: DataSource
    rows: int = 2
    count: int = 0
    seed: int = 0
    least: float | None = None
    _kept: list[tuple[VisionModel, Grids]] = field(default_factory=list, repr=False)

    @property
    def has_labels(self) -> bool:
        return True

    @property
    def digest(self) -> str:
        """What tells these grids from others: the pictures, and how they are put together."""
        told = f"{self.ingredients.digest} {self.rows} {self.count} {self.seed} {self.least}"
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def grids(self, model: VisionModel, on_error: Unreadable | None = None) -> Grids:
        """Put the grids together: every picture is read once. Fewer than were asked for are an error."""
        made = self._made(model, on_error)
        check_count(len(made) // self.rows**2, self.count or None, self.rows)
        return made

    def _made(self, model: VisionModel, on_error: Unreadable | None = None) -> Grids:
        if not self._kept or self._kept[0][0] is not model:
            truths: deque[Annotation | None] = deque()
            known = any(entry.is_known for entry in self.ingredients.entries)
            parts: Any = _in_step(truths) if known else None
            shown = self._pairs(model, on_error, truths if known else None)
            made = possible_grids(model, shown, None, self.rows, self.count or None, self.seed, self.least, parts)
            self._kept[:] = [(model, made)]
        return self._kept[0][1]

    def _pairs(
        self, model: VisionModel, on_error: Unreadable | None, truths: deque[Annotation | None] | None
    ) -> Iterator[Any]:
        for sample in self.ingredients.samples(model, on_error):
            if truths is not None:
                truths.append(sample.annotation)
            yield sample.picture.tensor, sample.label

    def sample(self, model: VisionModel, place: int) -> Sample:
        """Return one cell of a grid: the grid as an input, the class of the cell, and where it is."""
        made, name = self._made(model), self.entries[place].name
        if place >= len(made):
            count = len(made) // self.rows**2
            raise ImageError(f"{self.word}: the pictures that can be used make {count} grids, so there is no {name}")
        tensor: Tensor = made.pictures[place]
        (picture,) = pictures(tensor, model, at=place, seen=False)
        label, truth, compare_classes = made.targets[place], made.truths[place], made.compare_classes[place]
        return Sample(replace(picture, name=name), place, label, truth, target=label, compare_classes=compare_classes)

    def _reader(self, model: VisionModel, on_error: Unreadable | None) -> Callable[[int], Sample]:
        self.grids(model, on_error)
        return partial(self.sample, model)

    def loaded_images(self, model: VisionModel, on_error: Unreadable | None = None) -> dict[str, Any]:
        """Return what ``evaluate`` takes: data, target, labels, truth, among, groups."""
        made = self.grids(model, on_error)
        return {
            "data": made.pictures,
            "labels": list(made.targets),
            "target": list(made.targets),
            "annotations": list(made.truths),
            "compare_classes": [list(each) for each in made.compare_classes],
            "groups": list(made.groups),
        }

    def to_json(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {**super().to_json(), "images": len(self) // self.rows**2}


def _in_step(queue: deque[Annotation | None]) -> Iterator[Annotation | None]:
    """Yield what is known about the picture that was read last; read_samples asks for it right after the picture."""
    while queue:
        yield queue.popleft()
