"""From what a data set calls its classes to the classes of a model: indices, words, WordNet ids, one of several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Protocol

import torch
from torch import Tensor

from vitreous.datasets.images import LoadedImage
from vitreous.errors import TargetError, one_line
from vitreous.models import VisionModel

__all__ = ["Classes", "Label", "imagenet_subset", "index_of_wnid", "is_wnid", "table", "wnids"]

Label = int | str | tuple[int, ...]
"""A class index, a word or WordNet id, or several indices: then the one that the model holds likeliest is meant."""

_THOUSAND = 1000


@lru_cache
def table(name: str) -> Any:
    """Return a table that belongs to this package."""
    return json.loads((files(__package__) / name).read_text(encoding="utf-8"))


@lru_cache
def wnids() -> tuple[str, ...]:
    """The WordNet ids of ImageNet-1k in the order of the class indices, which is alphabetical."""
    return tuple(table("imagenet.json")["wnids"])


@lru_cache
def _places() -> dict[str, int]:
    return {wnid: place for place, wnid in enumerate(wnids())}


def imagenet_subset(name: str) -> tuple[int, ...]:
    """The class indices of a data set that has some of the thousand classes."""
    return tuple(table("imagenet.json")[name])


def is_wnid(word: str) -> bool:
    """Whether this is written like a WordNet id: n and eight digits."""
    return re.fullmatch(r"n[0-9]{8}", word) is not None


def index_of_wnid(word: str) -> int | None:
    """Return the class index of a WordNet id; None for those that are none of the thousand."""
    return _places().get(word)


class _Labelled(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def label(self) -> Label | None: ...
    @property
    def compare_classes(self) -> tuple[Label, ...]: ...


class Classes:
    """The classes of a model by the labels of a source.

    A word is looked for among the model's own labels; a WordNet id is one of ImageNet's thousand classes where the
    model has as many; and where neither helps and the model has as many classes as the source has words, they are in
    the same (alphabetical) order, as class folders are everywhere.
    """

    def __init__(self, model: VisionModel, names: Sequence[str]) -> None:
        self.view, self.names = model, tuple(names)
        self._known: dict[Label, int | tuple[int, ...]] = {}
        self._seen: tuple[Tensor, Tensor] | None = None

    def check(self, entries: Iterable[_Labelled]) -> None:
        """Refuse labels that the model does not have, before anything is opened."""
        for entry in entries:
            for label in (entry.label, *entry.compare_classes):
                if label is not None:
                    self._found(label)

    def of(self, label: Label | None, picture: LoadedImage) -> int | None:
        """Return the class of a label; of several classes, that which the model holds likeliest in this picture."""
        if label is None:
            return None
        found = self._found(label)
        if isinstance(found, int):
            return found
        return found[int(self._logits(picture.tensor)[list(found)].argmax())]

    def _logits(self, tensor: Tensor) -> Tensor:
        if self._seen is None or self._seen[0] is not tensor:  # several labels of one picture: one look
            with torch.no_grad():
                self._seen = tensor, self.view.logits(self.view.cast(tensor[None]))[0].float().cpu()
        return self._seen[1]

    def _found(self, label: Label) -> int | tuple[int, ...]:
        if label not in self._known:
            self._known[label] = self._look(label)
        return self._known[label]

    def _look(self, label: Label) -> int | tuple[int, ...]:
        if isinstance(label, tuple):
            several = tuple(self.view.class_index(each) for each in label)
            return several[0] if len(several) == 1 else several
        if isinstance(label, int):
            return self.view.class_index(label)
        try:
            return self.view.class_index(label)
        except TargetError as error:
            index, classes = index_of_wnid(label), max(self.view.num_classes, 2)
            if index is not None and classes == _THOUSAND:
                return index
            if label in self.names and len(self.names) == classes and not self.view.class_names:
                return self.names.index(label)
            told = f"; the source has {len(self.names)} classes, the model {classes}" if self.names else ""
            raise TargetError(f"{one_line(str(error))}{told}") from None
