"""A source of pictures: a list of what there is, none of it opened before it is asked for."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitreous.data.known import _of_mask
from vitreous.data.pictures import Picture, open_photo, pictures
from vitreous.data.sets.labels import Classes, Label
from vitreous.data.sources import Sample
from vitreous.data.truth import Truth, as_truth, photo_size
from vitreous.errors import ImageError, TargetError, VitreousWarning, one_line
from vitreous.models import Box, View

__all__ = ["DataSource", "Entry", "Unreadable"]

Unreadable = Callable[[str, str], None]
"""Called with the name of a picture that cannot be used, and why; the others go on."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One picture of a source, and what is known about it before it is opened.

    ``name`` is its own within the source, with ``/`` between folders. A picture is the file at ``path`` or what
    ``opener`` returns: an image, or a tensor that is an input of the model. ``boxes`` are (left, top, right, bottom) in
    pixels of the photograph or, with ``shares``, in shares of its width and height. ``among`` are the classes to
    compare in it, ``group`` the number of those that belong together. ``known`` tells what ``mask`` and ``boxes`` leave
    unsaid. A cell of a grid has ``ingredients``: the pictures that its source puts together for one model, by the
    numbers in ``recipe``; it cannot be opened without that model.
    """

    name: str
    path: Path | None = None
    label: Label | None = None
    boxes: tuple[Box, ...] | None = None
    shares: bool = False
    mask: Path | None = None
    group: int | None = None
    among: tuple[Label, ...] = ()
    opener: Callable[[], Image.Image | Tensor] | None = field(default=None, repr=False)
    known: Callable[[Picture], Truth] | None = field(default=None, repr=False)
    ingredients: DataSource | None = field(default=None, repr=False)
    recipe: tuple[Any, ...] = ()

    @property
    def photo(self) -> str:
        """What entries that show one photograph have in common."""
        return self.name if self.path is None else str(self.path)

    def open(self) -> Image.Image | Tensor:
        """Read the picture: an image upright and in RGB, or a tensor where that is what the source renders."""
        if self.opener is None:
            if self.ingredients is not None:
                raise ImageError(f"{self.name} is put together for one model, which is not at hand")
            if self.path is None:
                raise ImageError(f"{self.name} has neither a file nor anything that renders it")
            return open_photo(self.path)
        try:
            return self.opener()
        except ImageError:
            raise
        except Exception as error:  # foreign bytes can break a reader anywhere
            raise ImageError(f"{self.name} cannot be read: {one_line(str(error))[:200]}") from None

    @property
    def is_known(self) -> bool:
        """Whether anything is known about where things are in it."""
        return self.known is not None or self.mask is not None or bool(self.boxes)

    def truth(self, picture: Picture) -> Truth | None:
        """Return what is known, in the pixels that the model sees."""
        if self.known is not None:
            return self.known(picture)
        boxes = None
        if self.boxes:
            wide, high = photo_size(picture) if self.shares else (1, 1)
            moved = [(a * wide, b * high, c * wide, d * high) for a, b, c, d in self.boxes]
            boxes = Truth.of_photo(picture, boxes=moved)
        if self.mask is None:
            return boxes
        inside = _of_mask(picture, self.mask, None, None)
        return inside if boxes is None else replace(inside, boxes=boxes.boxes)


@dataclass(frozen=True, eq=False)
class DataSource:
    """Pictures that were chosen of a source, in a stable order.

    ``entries`` are what is counted, planned, named and grouped: one for each sample that ``samples`` yields, with the
    same name. ``classes`` are those that the softmax is restricted to, where the data set has fewer than the models for
    it; ``names`` the words of its labels in order; ``note`` says in a line where the labels came from.
    """

    word: str
    entries: tuple[Entry, ...]
    path: Path | None = None
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    note: str = ""

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def digest(self) -> str:
        """What tells this choice from another: names, labels, boxes, names of masks and groups; no bytes are read."""
        told = hashlib.blake2b(self.word.encode(), digest_size=16)
        for each in self.entries:
            mask = None if each.mask is None else each.mask.name
            row = [each.name, each.label, each.boxes, each.shares, mask, each.group, each.among]
            told.update(json.dumps(row).encode() + b"\n")  # JSON writes every character in ASCII
        return told.hexdigest()

    @property
    def has_labels(self) -> bool:
        """Whether the true classes are known; where one is, all must be."""
        return bool(self.entries) and self.entries[0].label is not None

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The number of each entry's group; None where there are no groups."""
        numbers = [each.group for each in self.entries]
        return None if None in numbers else tuple(number for number in numbers if number is not None)

    def sample(self, view: View, place: int) -> Sample:
        """Return one picture as an input of this model, with its class and what else is known about it."""
        return self._sample(view, place, Classes(view, self.names))

    def samples(
        self, view: View, on_error: Unreadable | None = None, places: Iterable[int] | None = None
    ) -> Iterator[Sample]:
        """Yield every picture that can be used, or those at some places, as inputs of this model.

        The others are told to ``on_error`` and left out; without it, one warning counts and names them. Labels that the
        model does not have are an error before anything is opened.
        """
        read = self._reader(view, on_error)
        left_out = _LeftOut(self.word, on_error)
        try:
            for place in range(len(self.entries)) if places is None else places:
                try:
                    sample = read(place)
                except ImageError as error:
                    left_out(self.entries[place].name, str(error))
                else:
                    yield sample
        finally:  # also where the caller has seen enough
            left_out.finish()

    def given(self, view: View, on_error: Unreadable | None = None) -> dict[str, Any]:
        """Return what ``evaluate`` takes: data, labels, truth, groups, among, classes; what is not there is left out.

        ``evaluate`` stops at a picture that cannot be read, so each is opened here once; they stay closed afterwards.
        """
        good = [(sample.place, sample.label, sample.among) for sample in self.samples(view, on_error)]
        if not good:
            raise ImageError(f"{self.word}: none of the {len(self.entries)} pictures can be read")
        places, labels, among = zip(*good, strict=True)
        if None in labels and any(label is not None for label in labels):
            bare = self.entries[places[labels.index(None)]].name
            raise TargetError(f"{self.word}: {one_line(bare)} has no label, but others have")
        kept = [self.entries[place] for place in places]
        groups = self.groups
        found: dict[str, Any] = {
            "data": _Opened(kept),
            "labels": None if None in labels else list(labels),
            "truth": [each.truth for each in kept] if any(each.is_known for each in kept) else None,
            "groups": None if groups is None else [groups[place] for place in places],
            "among": None if None in among else list(among),
            "classes": self.classes,
        }
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {
            "source": self.word,
            "images": len({each.photo for each in self.entries}),
            "entries": len(self),
            "digest": self.digest,
            "classes": None if self.classes is None else len(self.classes),
            "note": self.note,
        }

    def _reader(self, view: View, on_error: Unreadable | None) -> Callable[[int], Sample]:
        """Check what can be checked before anything is opened; return what reads one picture."""
        known = Classes(view, self.names)
        known.check(self.entries)
        return lambda place: self._sample(view, place, known)

    def _sample(self, view: View, place: int, known: Classes) -> Sample:
        entry = self.entries[place]
        source: Any = entry.path if entry.opener is None and entry.path is not None else entry.open()
        shown = list(pictures(source, view, at=place, seen=False))
        if len(shown) != 1:
            raise ImageError(f"{entry.name} is {len(shown)} pictures, not one")
        picture = replace(shown[0], name=entry.name)
        label, among = known.of(entry.label, picture), tuple(known.of(each, picture) for each in entry.among)
        try:
            truth = as_truth(entry.truth, picture)
        except (OSError, ValueError, SyntaxError) as error:  # PIL calls a broken file any of these
            raise ImageError(f"what is known about {entry.name} cannot be read: {one_line(str(error))}") from None
        return Sample(picture, place, label, truth, among=tuple(each for each in among if each is not None) or None)


class _Opened(Sequence[Any]):
    """Pictures that are opened when their turn comes, or their files."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Opened(self.entries[place])
        entry = self.entries[place]
        return entry.path if entry.opener is None else entry.open()


class _LeftOut:
    """Counts and tells what cannot be used."""

    def __init__(self, word: str, on_error: Unreadable | None) -> None:
        self.word, self.on_error = word, on_error
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: str, reason: str) -> None:
        self.told.append((name, one_line(reason)))
        if self.on_error is not None:
            self.on_error(name, one_line(reason))

    def finish(self) -> None:
        if not self.told or self.on_error is not None:
            return
        some = "; ".join(f"{one_line(name)} ({reason})" for name, reason in self.told[:3])
        more = f"; and {len(self.told) - 3} more" if len(self.told) > 3 else ""
        text = f"{self.word}: {len(self.told)} pictures were left out: {some}{more}"
        warnings.warn(text, VitreousWarning, stacklevel=3)
