"""From what a data set calls its classes to the classes of a model: indices, words, WordNet ids, one of several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets.images import LoadedImage
from vitreous.errors import TargetError, one_line
from vitreous.models import VisionModel

Label = int | str | tuple[int, ...]
"""A class index, a word or WordNet id, or several indices: then the one most probable to the model is meant."""


@lru_cache
def table(name: str) -> Any:
    """Return a table that belongs to this package."""
    return disk.read_json(Path(__file__).with_name(name))


def wnids() -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet-1k in the order of the class indices, which is alphabetical."""
    return tuple(table("imagenet.json")["wnids"])


@lru_cache
def _index_by_wnid() -> dict[str, int]:
    return {wnid: index for index, wnid in enumerate(wnids())}


def imagenet_subset(name: str) -> tuple[int, ...]:
    """Return the class indices of a data set that has some of the thousand classes."""
    return tuple(table("imagenet.json")[name])


def is_wnid(word: str) -> bool:
    """Whether this is written like a WordNet id: n and eight digits."""
    return re.fullmatch(r"n[0-9]{8}", word) is not None


def index_of_wnid(word: str) -> int | None:
    """Return the class index of a WordNet id; None for those that are none of the thousand."""
    return _index_by_wnid().get(word)


class ClassResolver:
    """The classes of a model by the labels of a source.

    A word is looked for among the model's own class names; a WordNet id is one of ImageNet's thousand classes where the
    model has as many; and where neither helps and the model has as many classes as the source has words, they are in
    the same (alphabetical) order, as class folders are everywhere.
    """

    def __init__(self, model: VisionModel, names: Sequence[str]) -> None:
        self.model, self.names = model, tuple(names)
        self._classes: dict[Label, int | tuple[int, ...]] = {}
        self._last_logits: tuple[Tensor, Tensor] | None = None

    def check(self, labels: Iterable[Label | None]) -> None:
        """Refuse labels that the model does not have, before anything is opened."""
        for label in labels:
            if label is not None:
                self._lookup(label)

    def resolve(self, label: Label | None, image: LoadedImage) -> int | None:
        """Return the class of a label; of several classes, the one most probable to the model in this image."""
        if label is None:
            return None
        classes = self._lookup(label)
        if isinstance(classes, int):
            return classes
        return classes[int(self._logits(image.tensor)[list(classes)].argmax())]

    def _logits(self, tensor: Tensor) -> Tensor:
        if self._last_logits is None or self._last_logits[0] is not tensor:  # several labels of one image: one forward
            with torch.no_grad():
                self._last_logits = tensor, self.model.logits(self.model.cast(tensor[None]))[0].float().cpu()
        return self._last_logits[1]

    def _lookup(self, label: Label) -> int | tuple[int, ...]:
        if label not in self._classes:
            self._classes[label] = self._find(label)
        return self._classes[label]

    def _find(self, label: Label) -> int | tuple[int, ...]:
        if isinstance(label, tuple):
            several = tuple(map(self.model.class_index, label))
            return several[0] if len(several) == 1 else several
        try:
            return self.model.class_index(label)
        except TargetError as error:
            if isinstance(label, int):
                raise
            index, count = index_of_wnid(label), max(self.model.num_classes, 2)
            if index is not None and count == len(wnids()):
                return index
            if label in self.names and len(self.names) == count and not self.model.class_names:
                return self.names.index(label)
            counts = f"; the source has {len(self.names)} classes, the model {count}" if self.names else ""
            raise TargetError(f"{one_line(str(error))}{counts}") from None
