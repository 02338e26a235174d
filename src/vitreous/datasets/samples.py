"""Samples: pictures with what is known about them, from lists, loaders and folders, by place or by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.datasets.annotations import Annotation, as_truth
from vitreous.datasets.images import Colours, LoadedImage, count, each_of, is_table, paired, pictures
from vitreous.errors import ImageError, TargetError
from vitreous.models import VisionModel

__all__ = ["Sample", "how_many", "read_samples"]


@dataclass(frozen=True, eq=False)
class Sample:
    """One picture and what belongs to it alone.

    ``label`` is the true class, ``target`` the one that the caller wants explained, ``among`` the classes to compare in
    this picture; ``place`` is its place in the whole source, counted from 0.
    """

    picture: LoadedImage
    place: int = 0
    label: int | None = None
    annotation: Annotation | None = None
    target: int | None = None
    compare_classes: tuple[int, ...] | None = None


def how_many(data: Any) -> int | None:
    """Return how many pictures there are, where that can be known beforehand."""
    return count([paired(each)[0] for each in data] if isinstance(data, list | tuple) else data)


def read_samples(data: Any, model: VisionModel, labels: Any = None, truth: Any = None) -> Iterator[Sample]:
    """Yield every picture with its true class and what else is known about it, where there is something.

    ``labels`` and ``truth`` are in the order of the pictures or by name; ``truth`` may be a function of the picture.
    """
    class_of = _Beside(labels, "label") if labels is not None else None
    known = None if truth is None or callable(truth) else _Beside(truth, "truth")
    total = 0
    for place, (picture, word) in enumerate(_paired(data, model, labels is None)):
        word = word if class_of is None else class_of(picture, place)
        told = truth if known is None else known(picture, place)
        label = None if word is None else model.class_index(word)
        yield Sample(picture, place, label, as_truth(told, picture))
        total += 1
    for beside in (class_of, known):
        if beside is not None:
            beside.finish(total)


class _Beside:
    """What is handed in beside the pictures: one for each, in their order or by name."""

    def __init__(self, given: Any, what: str) -> None:
        self.what, self.given = what, given.tolist() if what == "label" and hasattr(given, "tolist") else given
        self.by_name = isinstance(given, Mapping)
        if not self.by_name and (isinstance(self.given, str) or not isinstance(self.given, Iterable)):
            raise TargetError(f"{self.given!r:.60} is no list of {what}s")
        self._each = iter(()) if self.by_name else iter(self.given)

    def __call__(self, picture: LoadedImage, place: int) -> Any:
        if self.by_name:
            found = self.given.get(picture.name, self.given.get(Path(picture.name).stem))
        else:
            found = next(self._each, None)
        if found is None and self.what == "label":
            raise TargetError(f"there is no label for {picture.name}")
        return found

    def finish(self, total: int) -> None:
        if not self.by_name and (left := sum(1 for _ in self._each)):
            raise (TargetError if self.what == "label" else ImageError)(
                f"{total + left} {self.what}s for {total} pictures"
            )


def _paired(data: Any, model: VisionModel, split: bool) -> Iterator[tuple[LoadedImage, Any]]:
    """Yield every picture, with its class if the source pairs them and nothing else does."""
    alone = isinstance(data, str | Path | Image.Image | np.ndarray | Tensor) or (is_table(data) and not split)
    items = None if alone or not split else iter([data]) if is_table(data) else each_of(data)
    if items is None:
        yield from ((picture, None) for picture in pictures(data, model, seen=False))
        return
    at, colours = 0, Colours(model)
    for item in items:
        source, told = paired(item)
        shown = pictures(source, model, at=at, seen=False, colours=colours)
        words: Callable[[LoadedImage, int], Any] = (lambda picture, place: None) if told is None else _each(told)
        here = -1
        for here, picture in enumerate(shown):
            yield picture, words(picture, here)
        if isinstance(words, _Beside):
            words.finish(here + 1)
        at += here + 1


def _each(told: Any) -> _Beside:
    told = told.tolist() if hasattr(told, "tolist") else told
    return _Beside(told if isinstance(told, list | tuple) else [told], "label")
