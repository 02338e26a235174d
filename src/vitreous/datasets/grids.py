"""Grids of pictures with known answers: each cell shows another class, and its own cell is where the evidence is."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.datasets.annotations import Annotation, Array
from vitreous.datasets.images import cut
from vitreous.datasets.samples import Sample, read_samples
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.models import VisionModel

__all__ = ["Grids", "grids", "mosaics"]

_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class _Cell:
    """A picture made small, its class, and where in it the object is, if someone told."""

    tensor: Tensor
    label: int
    key: bytes
    region: Array | None
    ignore: Array | None


@dataclass(frozen=True, eq=False)
class Grids:
    """Grids, once for every class that is asked for in them: entry by entry as ``evaluate`` takes them.

    ``targets`` are the classes to explain, ``truths`` say where they are shown, ``among`` are the classes of the whole
    grid (for ``var``) and ``groups`` the number of the grid, so that a bootstrap can draw grids instead of cells.
    """

    pictures: Sequence[Tensor]
    targets: tuple[int, ...]
    truths: tuple[Annotation, ...]
    compare_classes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    rows: int

    def __len__(self) -> int:
        return len(self.targets)


class _Drawn(Sequence[Tensor]):
    """The picture of each entry; a grid is put together when it is asked for."""

    def __init__(self, made: Sequence[Sequence[_Cell]], groups: Sequence[int], rows: int) -> None:
        self.made, self.groups, self.rows = made, groups, rows

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        cells = [each.tensor for each in self.made[self.groups[place]]]
        lines = [torch.cat(cells[at : at + self.rows], dim=2) for at in range(0, len(cells), self.rows)]
        return torch.cat(lines, dim=1)


def grids(
    model: VisionModel,
    pictures: Any,
    labels: Any = None,
    rows: int = 2,
    count: int | None = None,
    seed: int = 0,
    least_confidence: float | None = None,
    truth: Any = None,
) -> Grids:
    """Put labelled pictures together to grids of ``rows`` x ``rows``, with one entry for each cell.

    The classes of a grid differ and no picture is used twice; there are as many grids as that allows, or ``count``.
    Cells are the pictures as the model sees them, made smaller so that the grid has the model's own size. With
    ``least_confidence`` only pictures are used that the model classifies rightly with this probability (0.99 in the
    paper). The truth of an entry is its cell; with ``truth`` (as ``evaluate`` takes it), the object in its cell. Which
    pictures meet follows from ``seed`` and what they show, not from their order.
    """
    found = possible_grids(model, pictures, labels, rows, count, seed, least_confidence, truth)
    check_count(len(found) // rows**2, count, rows)
    return found


def possible_grids(
    model: VisionModel,
    pictures: Any,
    labels: Any,
    rows: int,
    count: int | None,
    seed: int,
    least_confidence: float | None,
    truth: Any,
) -> Grids:
    """Return the same, or as many as the pictures suffice for where that is fewer."""
    waiting = _Waiting(_cells(model, pictures, labels, truth, rows, least_confidence, seed))
    made: list[list[_Cell]] = []
    while len(waiting) >= rows**2 and (count is None or len(made) < count):
        chosen = [waiting.take(queue) for queue in waiting.fullest(rows**2)]
        made.append(sorted(chosen, key=lambda cell: cell.key[::-1]))
    entries = [(number, [place]) for number, cells in enumerate(made) for place in range(len(cells))]
    return _entries(made, entries, rows)


def check_count(made: int, count: int | None, rows: int) -> None:
    """Refuse fewer grids than were asked for, or none."""
    _enough(made, count, f"{rows**2} pictures of different classes", f"{rows} x {rows} grids")


def mosaics(
    model: VisionModel,
    pictures: Any,
    labels: Any = None,
    count: int | None = None,
    seed: int = 0,
    least_confidence: float | None = None,
    truth: Any = None,
) -> Grids:
    """Put labelled pictures together to mosaics for ``focus``: two of one class, and two of two other classes.

    One entry each, whose truth is both cells of the first class; the rest as for ``grids``, the classes with the most
    pictures left going first until they do not suffice.
    """
    waiting = _Waiting(_cells(model, pictures, labels, truth, 2, least_confidence, seed))
    made: list[list[_Cell]] = []
    places: list[list[int]] = []
    while len(waiting) >= 3 and (count is None or len(made) < count):
        first, *others = waiting.fullest(3)
        if len(first) < 2:
            break
        pair = [waiting.take(first), waiting.take(first)]
        cells = sorted([*pair, *(waiting.take(other) for other in others)], key=lambda cell: cell.key[::-1])
        made.append(cells)
        places.append([place for place, cell in enumerate(cells) if cell in pair])
    _enough(len(made), count, "two pictures of one class and two of others", "mosaics")
    return _entries(made, list(enumerate(places)), 2)


def _entries(made: Sequence[Sequence[_Cell]], entries: Sequence[tuple[int, list[int]]], rows: int) -> Grids:
    """Return one entry for each grid and the places in it that count."""
    groups = tuple(number for number, _ in entries)
    return Grids(
        pictures=_Drawn(made, groups, rows),
        targets=tuple(made[number][places[0]].label for number, places in entries),
        truths=tuple(_truth(made[number], places, rows) for number, places in entries),
        compare_classes=tuple(tuple(sorted({cell.label for cell in made[number]})) for number in groups),
        groups=groups,
        rows=rows,
    )


def _truth(cells: Sequence[_Cell], places: Sequence[int], rows: int) -> Annotation:
    height, width = cells[0].tensor.shape[-2:]
    mask, ignore = (np.zeros((rows * height, rows * width), bool) for _ in range(2))
    for place in places:
        down, across = divmod(place, rows)
        own = slice(down * height, (down + 1) * height), slice(across * width, (across + 1) * width)
        region, unsure = cells[place].region, cells[place].ignore
        mask[own] = True if region is None else region
        ignore[own] = False if unsure is None else unsure
    return Annotation(mask, ignore=ignore if ignore.any() else None)


def _cells(
    model: VisionModel, pictures: Any, labels: Any, truth: Any, rows: int, least: float | None, seed: int
) -> Iterator[_Cell]:
    if not isinstance(rows, int) or rows < 2:
        raise VitreousError(f"rows={rows} must be at least 2")
    if least is not None and not 0 <= least <= 1:
        raise VitreousError(f"least_confidence={least} must lie between 0 and 1")
    for samples in cut(read_samples(pictures, model, labels, truth), _AT_ONCE):
        for sample in samples:
            if sample.label is None:
                raise TargetError(f"{sample.picture.name} has no class: grids need labels")
        yield from (_small(sample, rows, seed) for sample in _sure(model, samples, least))


def _sure(model: VisionModel, samples: list[Sample], least: float | None) -> list[Sample]:
    """Return the pictures that the model classifies rightly, with enough confidence."""
    if least is None:
        return samples
    with torch.no_grad():
        told = (
            model.logits(model.cast(torch.stack([sample.picture.tensor for sample in samples]))).float().softmax(dim=1)
        )
    best, classes = (each.tolist() for each in told.max(dim=1))
    return [s for s, p, c in zip(samples, best, classes, strict=True) if c == s.label and p >= least]


def _small(sample: Sample, rows: int, seed: int) -> _Cell:
    """Make a picture as small as a cell, and what is known about it."""
    tensor, truth = sample.picture.tensor, sample.annotation
    height, width = tensor.shape[-2:]
    if height % rows or width % rows:
        raise ImageError(f"{height} x {width} pixels cannot be cut into {rows} x {rows} equal cells")
    if truth is not None and not truth.has("region"):
        raise ImageError(f"nothing is known about where the object of {sample.picture.name} is")
    size = (height // rows, width // rows)
    small = torch.nn.functional.interpolate(tensor[None].float(), size, mode="bilinear", antialias=True)[0]
    middle = slice(rows // 2, None, rows)  # the pixel nearest to the middle of each cell's pixel
    known = None if truth is None else truth.region(size=(height, width))[middle, middle]
    unsure = None if truth is None or truth.ignore is None else np.asarray(truth.ignore, bool)[middle, middle]
    assert sample.label is not None
    key = hashlib.blake2b(f"{seed} {sample.picture.digest}".encode(), digest_size=16).digest()
    return _Cell(small, sample.label, key, known, unsure)


class _Waiting:
    """Pictures that no grid has yet, by class."""

    def __init__(self, cells: Iterator[_Cell]) -> None:
        self.queues: dict[int, deque[_Cell]] = {}
        for cell in sorted(cells, key=lambda each: each.key):
            self.queues.setdefault(cell.label, deque()).append(cell)

    def __len__(self) -> int:
        return len(self.queues)

    def fullest(self, classes: int) -> list[deque[_Cell]]:
        """Return the classes with the most pictures left: taking from these makes the most grids."""
        return nsmallest(classes, self.queues.values(), key=lambda queue: (-len(queue), queue[0].key))

    def take(self, queue: deque[_Cell]) -> _Cell:
        cell = queue.popleft()
        if not queue:
            del self.queues[cell.label]
        return cell


def _enough(made: int, count: int | None, what: str, name: str) -> None:
    if count is not None and count < 1:
        raise VitreousError(f"count={count} must be at least 1")
    if not made:
        raise ImageError(f"there are no {what} to put together")
    if count is not None and made < count:
        raise ImageError(f"the pictures make {made} {name}, not {count}")
