"""Grids of images with known answers: each cell shows another class, and its own cell is where the evidence is.

Quad-ImageNet and Part-Quad-ImageNet are grids of images of different classes, put together for one model.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.datasets.annotations import Annotation, Array
from vitreous.datasets.catalog import Listing, register_source
from vitreous.datasets.dataset import DataSource, Entry, Sample, SkipImage, read_samples, select_entries
from vitreous.datasets.imagenet import imagenet_s, imagenet_val
from vitreous.datasets.images import LazySequence, batched, load_images
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.models import VisionModel
from vitreous.registry import check_at_least

_BATCH = 32


@dataclass(frozen=True, eq=False)
class _Cell:
    """An image made small, its class, and where in it the object is, if that is known."""

    tensor: Tensor
    label: int
    key: bytes
    region: Array | None
    ignore: Array | None


@dataclass(frozen=True, eq=False)
class Grids:
    """Grids, once for every class that is explained in them: entry by entry as ``evaluate`` takes them.

    ``targets`` are the classes to explain, ``annotations`` say where they are shown, ``compare_classes`` are all
    classes of the grid (for ``var``) and ``groups`` the number of the grid, so that a bootstrap can draw grids instead
    of cells.
    """

    images: Sequence[Tensor]
    targets: tuple[int, ...]
    annotations: tuple[Annotation, ...]
    compare_classes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    rows: int

    def __len__(self) -> int:
        return len(self.targets)


def make_grids(
    model: VisionModel,
    images: Any,
    labels: Any = None,
    rows: int = 2,
    count: int | None = None,
    seed: int = 0,
    least_confidence: float | None = None,
    annotations: Any = None,
) -> Grids:
    """Put labelled images together to grids of ``rows`` x ``rows``, with one entry for each cell.

    The classes of a grid differ and no image is used twice. Cells are the images as the model sees them, made smaller
    so that the grid has the model's own size. Which images meet follows from ``seed`` and what they show, not from
    their order.

    Parameters
    ----------
    model : VisionModel
        The model that the grids are for.
    images : any source of images
        As ``evaluate`` takes them.
    labels : list or mapping, optional
        The true classes, in order or by name.
    rows : int, default 2
        Cells on a side.
    count : int, optional
        How many grids; as many as the images suffice for by default.
    seed : int, default 0
        Which images meet.
    least_confidence : float, optional
        Use only images that the model classifies correctly with this probability (0.99 in the paper).
    annotations : list, mapping or callable, optional
        Where the objects are; an entry's annotation is then the object in its cell, and its cell by default.

    Returns
    -------
    Grids
    """
    samples = read_samples(images, model, labels, annotations)
    grids = _combine(_make_cells(model, samples, rows, least_confidence, seed), rows, count)
    _check_grids(grids, count)
    return grids


def _combine(cells: Iterable[_Cell], rows: int, count: int | None) -> Grids:
    """Return ``count`` grids, or as many as the images suffice for where that is fewer."""
    queues = _ClassQueues(cells)
    grids: list[list[_Cell]] = []
    while len(queues) >= rows**2 and (count is None or len(grids) < count):
        cells = [queues.take(queue) for queue in queues.longest(rows**2)]
        grids.append(sorted(cells, key=lambda cell: cell.key[::-1]))
    entries = [(number, [index]) for number, cells in enumerate(grids) for index in range(len(cells))]
    return _to_entries(grids, entries, rows)


def _check_grids(grids: Grids, count: int | None) -> None:
    cells = grids.rows**2
    what, name = f"{cells} images of different classes", f"{grids.rows} x {grids.rows} grids"
    _check_enough(len(grids) // cells, count, what, name)


def make_mosaics(
    model: VisionModel,
    images: Any,
    labels: Any = None,
    count: int | None = None,
    seed: int = 0,
    least_confidence: float | None = None,
    annotations: Any = None,
) -> Grids:
    """Put labelled images together to mosaics for ``focus``: two of one class, and two of two other classes.

    One entry each, whose annotation is both cells of the first class; the rest as for ``make_grids``, the classes with
    the most images left going first until they do not suffice.
    """
    samples = read_samples(images, model, labels, annotations)
    queues = _ClassQueues(_make_cells(model, samples, 2, least_confidence, seed))
    grids: list[list[_Cell]] = []
    indices: list[list[int]] = []
    while len(queues) >= 3 and (count is None or len(grids) < count):
        first, *others = queues.longest(3)
        if len(first) < 2:
            break
        pair = [queues.take(first), queues.take(first)]
        cells = sorted([*pair, *map(queues.take, others)], key=lambda cell: cell.key[::-1])
        grids.append(cells)
        indices.append([index for index, cell in enumerate(cells) if cell in pair])
    _check_enough(len(grids), count, "two images of one class and two of others", "mosaics")
    return _to_entries(grids, list(enumerate(indices)), 2)


def _to_entries(grids: Sequence[Sequence[_Cell]], entries: Sequence[tuple[int, list[int]]], rows: int) -> Grids:
    """Return entries, each of a grid and the indices of the cells in it that count."""
    groups = tuple(number for number, _ in entries)
    return Grids(
        images=LazySequence([grids[number] for number in groups], partial(_join, rows=rows)),
        targets=tuple(grids[number][indices[0]].label for number, indices in entries),
        annotations=tuple(_annotate(grids[number], indices, rows) for number, indices in entries),
        compare_classes=tuple(tuple(sorted({cell.label for cell in grids[number]})) for number in groups),
        groups=groups,
        rows=rows,
    )


def _join(cells: Sequence[_Cell], rows: int) -> Tensor:
    """Put a grid together, which is done when it is needed."""
    lines = [torch.cat([cell.tensor for cell in cells[at : at + rows]], dim=2) for at in range(0, len(cells), rows)]
    return torch.cat(lines, dim=1)


def _annotate(cells: Sequence[_Cell], indices: Sequence[int], rows: int) -> Annotation:
    height, width = cells[0].tensor.shape[-2:]
    mask, ignore = (np.zeros((rows * height, rows * width), bool) for _ in range(2))
    for index in indices:
        row, column = divmod(index, rows)
        cell = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        region, ignored = cells[index].region, cells[index].ignore
        mask[cell] = True if region is None else region
        ignore[cell] = False if ignored is None else ignored
    return Annotation(mask, ignore=ignore if ignore.any() else None)


def _make_cells(
    model: VisionModel, samples: Iterable[Sample], rows: int, least: float | None, seed: int
) -> Iterator[_Cell]:
    if not isinstance(rows, int) or rows < 2:
        raise VitreousError(f"rows={rows} must be at least 2")
    if least is not None and not 0 <= least <= 1:
        raise VitreousError(f"least_confidence={least} must lie between 0 and 1")
    for batch in batched(samples, _BATCH):
        for sample in batch:
            if sample.label is None:
                raise TargetError(f"{sample.image.name} has no class: grids need labels")
        yield from (_make_cell(sample, rows, seed) for sample in _confident(model, batch, least))


def _confident(model: VisionModel, samples: list[Sample], least: float | None) -> list[Sample]:
    """Return the samples that the model classifies correctly, with enough confidence."""
    if least is None:
        return samples
    with torch.no_grad():
        inputs = model.cast(torch.stack([sample.image.tensor for sample in samples]))
        probabilities, classes = model.logits(inputs).float().softmax(dim=1).max(dim=1)
    rows = zip(samples, probabilities.tolist(), classes.tolist(), strict=True)
    return [sample for sample, p, index in rows if index == sample.label and p >= least]


def _make_cell(sample: Sample, rows: int, seed: int) -> _Cell:
    """Make an image as small as a cell, and its annotation."""
    tensor, annotation = sample.image.tensor, sample.annotation
    height, width = tensor.shape[-2:]
    if height % rows or width % rows:
        raise ImageError(f"{height} x {width} pixels cannot be cut into {rows} x {rows} equal cells")
    region = ignore = None
    if annotation is not None:
        if not annotation.has("region"):
            raise ImageError(f"nothing is known about where the object of {sample.image.name} is")
        middle = slice(rows // 2, None, rows)  # the pixel nearest to the middle of each cell's pixel
        region = annotation.region(size=(height, width))[middle, middle]
        ignore = None if annotation.ignore is None else np.asarray(annotation.ignore, bool)[middle, middle]
    size = (height // rows, width // rows)
    small = torch.nn.functional.interpolate(tensor[None].float(), size, mode="bilinear", antialias=True)[0]
    assert sample.label is not None
    key = hashlib.blake2b(f"{seed} {sample.image.digest}".encode(), digest_size=16).digest()
    return _Cell(small, sample.label, key, region, ignore)


class _ClassQueues:
    """Images that no grid has yet, by class."""

    def __init__(self, cells: Iterable[_Cell]) -> None:
        self.queues: dict[int, deque[_Cell]] = {}
        for cell in sorted(cells, key=lambda cell: cell.key):
            self.queues.setdefault(cell.label, deque()).append(cell)

    def __len__(self) -> int:
        return len(self.queues)

    def longest(self, classes: int) -> list[deque[_Cell]]:
        """Return the classes with the most images left: taking from these makes the most grids."""
        return nsmallest(classes, self.queues.values(), key=lambda queue: (-len(queue), queue[0].key))

    def take(self, queue: deque[_Cell]) -> _Cell:
        cell = queue.popleft()
        if not queue:
            del self.queues[cell.label]
        return cell


def _check_enough(number: int, count: int | None, what: str, name: str) -> None:
    if count is not None and count < 1:
        raise VitreousError(f"count={count} must be at least 1")
    if not number:
        raise ImageError(f"there are no {what} to put together")
    if count is not None and number < count:
        raise ImageError(f"the images make {number} {name}, not {count}")


# -- grids as a source of data -----------------------------------------------------------------------------


@register_source("quad-imagenet")
def quad(path: Path, rows: int = 2, least_confidence: float | None = None, pool: int = 0) -> Listing:
    """Grids of ImageNet's validation images (any layout of ``imagenet-val``); the annotation of an entry is its cell.

    ``images`` counts grids, each of which has rows x rows entries. ``pool`` is how many images, drawn at random, the
    grids may be made of (0: all of them; each is read once). ``least_confidence`` leaves out those that the model does
    not classify correctly with this probability.
    """
    listing = imagenet_val(path)
    entries = [replace(entry, boxes=None, annotate=None) for entry in listing.entries]
    make = partial(_make_source, "quad-imagenet", path, rows=rows, least=least_confidence, pool=pool)
    return replace(listing, entries=entries, make=make)


@register_source("part-quad-imagenet")
def part_quad(path: Path, rows: int = 2, least_confidence: float | None = None, pool: int = 0) -> Listing:
    """Grids of images with masks (the layout of ``imagenet-s``); the annotation of an entry is its cell's object."""
    make = partial(_make_source, "part-quad-imagenet", path, rows=rows, least=least_confidence, pool=pool)
    return replace(imagenet_s(path), make=make)


def _make_source(
    name: str, path: Path, entries: list[Entry], images: int, seed: int, rows: int, least: float | None, pool: int
) -> DataSource:
    check_at_least("rows", rows, 2)
    chosen = select_entries(name, entries, pool, "random", seed) if pool else entries
    most = _max_grids(Counter(entry.label for entry in chosen).values(), rows**2)
    if max(images, 1) > most:
        raise ImageError(f"{name}: {len(chosen)} images make at most {most} grids of {rows} x {rows}")
    ingredients = DataSource(name, tuple(chosen), path)
    cells = [
        Entry(f"grid-{grid:05d}/{cell}", group=grid, source=ingredients, build_steps=(rows, seed, least))
        for grid in range(images or most)
        for cell in range(rows**2)
    ]
    note = f"grids of {rows} x {rows} out of {len(chosen)} images"
    facts: dict[str, Any] = {"ingredients": ingredients, "rows": rows, "count": images, "seed": seed, "least": least}
    return GridSource(name, tuple(cells), path, note=note, **facts)


def _max_grids(counts: Iterable[int], cells: int) -> int:
    """Return how many grids there can be if the cells of each differ: k of them use k images of a class at most."""
    counts = list(counts)
    numbers = range(1, sum(counts) // cells + 1)
    return bisect_left(numbers, True, key=lambda k: sum(min(count, k) for count in counts) < cells * k)


@dataclass(frozen=True, eq=False, kw_only=True)
class GridSource(DataSource):
    """Grids of ``ingredients``; ``entries`` are their cells, each of which is explained, grid by grid.

    Which images meet follows from the seed and from what the model sees of them, so the grids are made for a model,
    when it is there; those of one model are kept until another comes. What is known of a cell before is its name and
    its grid, by whose number it is grouped. There may be fewer grids than entries, where ingredients cannot be used.
    """

    ingredients: DataSource
    rows: int = 2
    count: int = 0
    seed: int = 0
    least: float | None = None
    _cache: list[tuple[VisionModel, Grids]] = field(default_factory=list, repr=False)

    @property
    def has_labels(self) -> bool:
        return True

    @property
    def digest(self) -> str:
        """A digest of the images, and how they are put together."""
        text = f"{self.ingredients.digest} {self.rows} {self.count} {self.seed} {self.least}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def grids(self, model: VisionModel, on_error: SkipImage | None = None) -> Grids:
        """Put the grids together: every image is read once. Fewer than were asked for are an error."""
        grids = self._make(model, on_error)
        _check_grids(grids, self.count or None)
        return grids

    def _make(self, model: VisionModel, on_error: SkipImage | None = None) -> Grids:
        if not self._cache or self._cache[0][0] is not model:
            samples = self.ingredients.samples(model, on_error)
            # which images meet follows from what the model sees, not from the bytes of their files
            inputs = (replace(sample, image=replace(sample.image, path=None)) for sample in samples)
            cells = _make_cells(model, inputs, self.rows, self.least, self.seed)
            self._cache[:] = [(model, _combine(cells, self.rows, self.count or None))]
        return self._cache[0][1]

    def sample(self, model: VisionModel, index: int) -> Sample:
        """Return one cell of a grid: the grid as an input, the class of the cell, and where it is."""
        grids, name = self._make(model), self.entries[index].name
        if index >= len(grids):
            count = len(grids) // self.rows**2
            raise ImageError(f"{self.name}: the images that can be used make {count} grids, so there is no {name}")
        (image,) = load_images(grids.images[index], model, start=index, draw=False)
        label, annotation, classes = grids.targets[index], grids.annotations[index], grids.compare_classes[index]
        return Sample(replace(image, name=name), index, label, annotation, target=label, compare_classes=classes)

    def _reader(self, model: VisionModel, on_error: SkipImage | None) -> Callable[[int], Sample]:
        self.grids(model, on_error)
        return partial(self.sample, model)

    def evaluate_options(self, model: VisionModel, on_error: SkipImage | None = None) -> dict[str, Any]:
        """Return the grids and what is known about them by the names of the parameters of ``evaluate``."""
        grids = self.grids(model, on_error)
        return {
            "images": grids.images,
            "labels": list(grids.targets),
            "target": list(grids.targets),
            "annotations": list(grids.annotations),
            "compare_classes": list(map(list, grids.compare_classes)),
            "groups": list(grids.groups),
        }

    def to_json(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {**super().to_json(), "images": len(self) // self.rows**2}
