"""The words for sources, and what opens each.

A source of pictures: a list of what there is, none of it opened before it is asked for.

Which pictures of a source are taken: the first, some at random, as many of each class, or those of a list.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets.annotations import Annotation, _of_mask, as_truth, photo_size
from vitreous.datasets.class_tables import Classes, Label
from vitreous.datasets.images import LoadedImage, open_photo, pictures
from vitreous.datasets.samples import Sample
from vitreous.errors import ImageError, SpecError, TargetError, VitreousWarning, nearest, one_line
from vitreous.models import Box, VisionModel
from vitreous.registry import check_choice

__all__ = [
    "CHOICES",
    "DataSource",
    "Entry",
    "Found",
    "KINDS",
    "Kind",
    "Unreadable",
    "chosen",
    "find_kind",
    "register_source",
    "source_kind",
]


@dataclass(frozen=True, eq=False)
class Found:
    """What a kind of source finds: every entry, before any is chosen.

    ``make`` builds the source where its pictures are made of several entries: it is handed these, how many pictures
    are wanted and the seed, and chooses itself. The ``entries`` of what it returns are the pictures that it makes.
    """

    entries: Sequence[Entry]
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    note: str = ""
    make: Callable[..., DataSource] | None = None


@dataclass(frozen=True)
class Kind:
    """A word, and the function that opens what it means: of a path, or of nothing where all is rendered."""

    word: str
    opener: Callable[..., Found] = field(repr=False)
    needs_path: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """What can be asked for beside the path."""
        return tuple(inspect.signature(self.opener).parameters)[1:]

    def open(self, path: str | Path | None, **more: Any) -> Found:
        """Find what is there."""
        if self.needs_path and path is None:
            raise ImageError(f"{self.word}: where is it? give a path")
        for name in more:
            if name not in self.options:
                takes = f"; it takes {', '.join(self.options)}" if self.options else ""
                raise SpecError(f"{self.word} takes no {name}{takes}")
        return self.opener(None if path is None else Path(path).expanduser(), **more)


KINDS: dict[str, Kind] = {}


def register_source(word: str, opener: Callable[..., Found], *, needs_path: bool = True) -> None:
    """Add a word. ``opener`` takes the path, then its own options by name, and returns what is ``Found``."""
    if word in KINDS:
        raise SpecError(f"two sources are called {word!r}")
    KINDS[word] = Kind(word, opener, needs_path)


def source_kind(word: str, **how: bool) -> Callable[[Callable[..., Found]], Callable[..., Found]]:
    """Register the function below as what opens a word."""

    def registered(opener: Callable[..., Found]) -> Callable[..., Found]:
        register_source(word, opener, **how)
        return opener

    return registered


def find_kind(word: str, elsewhere: dict[str, str]) -> Kind:
    """Return a kind of source by its word; ``elsewhere`` says what to do about words that others add."""
    if word in KINDS:
        return KINDS[word]
    if word in elsewhere:
        raise ImageError(f"{word}: {elsewhere[word]}")
    raise SpecError(f"unknown source {word!r}{nearest(word, [*KINDS, *elsewhere])}")


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
    compare_classes: tuple[Label, ...] = ()
    opener: Callable[[], Image.Image | Tensor] | None = field(default=None, repr=False)
    known: Callable[[LoadedImage], Annotation] | None = field(default=None, repr=False)
    source: DataSource | None = field(default=None, repr=False)
    build_steps: tuple[Any, ...] = ()

    @property
    def photo(self) -> str:
        """What entries that show one photograph have in common."""
        return self.name if self.path is None else str(self.path)

    def open(self) -> Image.Image | Tensor:
        """Read the picture: an image upright and in RGB, or a tensor where that is what the source renders."""
        if self.opener is None:
            if self.source is not None:
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

    def annotation(self, picture: LoadedImage) -> Annotation | None:
        """Return what is known, in the pixels that the model sees."""
        if self.known is not None:
            return self.known(picture)
        boxes = None
        if self.boxes:
            width, height = photo_size(picture) if self.shares else (1, 1)
            moved = [(a * width, b * height, c * width, d * height) for a, b, c, d in self.boxes]
            boxes = Annotation.of_photo(picture, boxes=moved)
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
        for entry in self.entries:
            mask = None if entry.mask is None else entry.mask.name
            row = [entry.name, entry.label, entry.boxes, entry.shares, mask, entry.group, entry.compare_classes]
            told.update(json.dumps(row).encode() + b"\n")  # JSON writes every character in ASCII
        return told.hexdigest()

    @property
    def has_labels(self) -> bool:
        """Whether the true classes are known; where one is, all must be."""
        return bool(self.entries) and self.entries[0].label is not None

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The number of each entry's group; None where there are no groups."""
        numbers = [entry.group for entry in self.entries]
        return None if None in numbers else tuple(number for number in numbers if number is not None)

    def sample(self, model: VisionModel, place: int) -> Sample:
        """Return one picture as an input of this model, with its class and what else is known about it."""
        return self._sample(model, place, Classes(model, self.names))

    def samples(
        self, model: VisionModel, on_error: Unreadable | None = None, places: Iterable[int] | None = None
    ) -> Iterator[Sample]:
        """Yield every picture that can be used, or those at some places, as inputs of this model.

        The others are told to ``on_error`` and left out; without it, one warning counts and names them. Labels that the
        model does not have are an error before anything is opened.
        """
        read = self._reader(model, on_error)
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

    def loaded_images(self, model: VisionModel, on_error: Unreadable | None = None) -> dict[str, Any]:
        """Return what ``evaluate`` takes: data, labels, truth, groups, among, classes; what is not there is left out.

        ``evaluate`` stops at a picture that cannot be read, so each is opened here once; they stay closed afterwards.
        """
        good = [(sample.place, sample.label, sample.compare_classes) for sample in self.samples(model, on_error)]
        if not good:
            raise ImageError(f"{self.word}: none of the {len(self.entries)} pictures can be read")
        places, labels, compare_classes = zip(*good, strict=True)
        if None in labels and any(label is not None for label in labels):
            bare = self.entries[places[labels.index(None)]].name
            raise TargetError(f"{self.word}: {one_line(bare)} has no label, but others have")
        kept = [self.entries[place] for place in places]
        groups = self.groups
        found: dict[str, Any] = {
            "data": _Opened(kept),
            "labels": None if None in labels else list(labels),
            "annotations": [each.truth for each in kept] if any(each.is_known for each in kept) else None,
            "groups": None if groups is None else [groups[place] for place in places],
            "compare_classes": None if None in compare_classes else list(compare_classes),
            "class_subset": self.classes,
        }
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {
            "source": self.word,
            "images": len({entry.photo for entry in self.entries}),
            "entries": len(self),
            "digest": self.digest,
            "classes": None if self.classes is None else len(self.classes),
            "note": self.note,
        }

    def _reader(self, model: VisionModel, on_error: Unreadable | None) -> Callable[[int], Sample]:
        """Check what can be checked before anything is opened; return what reads one picture."""
        known = Classes(model, self.names)
        known.check(self.entries)
        return lambda place: self._sample(model, place, known)

    def _sample(self, model: VisionModel, place: int, known: Classes) -> Sample:
        entry = self.entries[place]
        source: Any = entry.path if entry.opener is None and entry.path is not None else entry.open()
        shown = list(pictures(source, model, at=place, seen=False))
        if len(shown) != 1:
            raise ImageError(f"{entry.name} is {len(shown)} pictures, not one")
        picture = replace(shown[0], name=entry.name)
        label, compare_classes = (
            known.of(entry.label, picture),
            tuple(known.of(each, picture) for each in entry.compare_classes),
        )
        try:
            truth = as_truth(entry.annotation, picture)
        except (OSError, ValueError, SyntaxError) as error:  # PIL calls a broken file any of these
            raise ImageError(f"what is known about {entry.name} cannot be read: {one_line(str(error))}") from None
        return Sample(
            picture,
            place,
            label,
            truth,
            compare_classes=tuple(each for each in compare_classes if each is not None) or None,
        )


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


_MOST_BYTES = 2**28
CHOICES = ("first", "random", "per-class", "listed")


def chosen(
    word: str,
    entries: Sequence[Entry],
    images: int = 0,
    choose: str = "first",
    seed: int = 0,
    listed: Iterable[str] | str | Path | None = None,
) -> list[Entry]:
    """Return the entries of the pictures that are taken, all of them with ``images=0``.

    ``"first"`` keeps the order of the source. ``"random"`` takes those with the smallest digests of seed and name, in
    that order: it does not depend on where the folder is or what else is in it, and a larger choice begins with the
    smaller one. ``"per-class"`` takes one of each class after the other by the same digests, so that ten pictures of
    four classes are three, three, two and two. ``"listed"`` takes the names of a list, or of a text or JSON file, in
    its order. Entries that show one photograph count as one picture and stay together, but not per class.
    """
    check_choice("choose", choose, CHOICES)
    if isinstance(images, bool) or not isinstance(images, int) or images < 0:
        raise SpecError(f"images={images!r} must be a whole number, 0 for all of them")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SpecError(f"seed={seed!r} must be a whole number")
    if (listed is not None) != (choose == "listed"):
        raise SpecError(f"choose={choose!r} and listed={listed!r:.60} do not go together")
    if choose == "per-class":
        taken = [[turn] for turn in _turns(word, entries, seed)]
    else:
        photos: dict[str, list[Entry]] = {}
        for entry in entries:
            photos.setdefault(entry.photo, []).append(entry)
        taken = list(photos.values())
        if choose == "random":
            taken.sort(key=lambda some: _key(seed, some[0]))
        elif choose == "listed":
            assert listed is not None
            taken = _listed(word, taken, listed)
    if images > len(taken):
        raise ImageError(f"{word}: there are {len(taken)} pictures, not {images}")
    return [each for some in taken[: images or None] for each in some]


def digest(seed: int, text: str) -> bytes:
    """Return bytes that order things at random."""
    return hashlib.blake2b(f"{seed} {text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _key(seed: int, entry: Entry) -> tuple[bytes, str]:
    """Order by a digest of the name without its ending: a copy in another format is chosen alike."""
    return digest(seed, str(PurePosixPath(entry.name).with_suffix(""))), entry.name


def _turns(word: str, entries: Sequence[Entry], seed: int) -> list[Entry]:
    classes: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.label is None:
            raise ImageError(f"{word}: {one_line(entry.name)} has no label, so choose='per-class' cannot be had")
        classes.setdefault(repr(entry.label), []).append(entry)
    queues = [sorted(some, key=lambda each: _key(seed, each)) for some in classes.values()]
    queues.sort(key=lambda queue: digest(seed, f"class {queue[0].label!r}"))
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


# -- lists -------------------------------------------------------------------------------------------------


def _listed(word: str, photos: Sequence[list[Entry]], listed: Iterable[str] | str | Path) -> list[list[Entry]]:
    names = _names(word, listed)
    ways = [_by(photos, spelled) for spelled in (_whole, _file, _stem)]
    taken: dict[int, list[Entry]] = {}
    lost: list[str] = []
    for name in names:
        places = next((way[name] for way in ways if name in way), [])
        if len(places) > 1:
            raise ImageError(f"{word}: {one_line(name)} of the list is the name of {len(places)} pictures")
        if not places:
            lost.append(name)
        elif places[0] in taken:
            raise ImageError(f"{word}: {one_line(name)} is in the list twice")
        else:
            taken[places[0]] = photos[places[0]]
    if lost:
        some = ", ".join(map(one_line, lost[:3]))
        raise ImageError(f"{word}: {len(lost)} of {len(names)} names of the list are not there, such as {some}")
    return list(taken.values())


def _whole(entry: Entry) -> str:
    return entry.name


def _file(entry: Entry) -> str:
    return PurePosixPath(entry.name).name if entry.path is None else entry.path.name


def _stem(entry: Entry) -> str:
    return PurePosixPath(_file(entry)).stem


def _by(photos: Sequence[list[Entry]], spelled: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, some in enumerate(photos):
        for name in {spelled(each) for each in some}:
            found.setdefault(name, []).append(place)
    return found


def _names(word: str, listed: Iterable[str] | str | Path) -> list[str]:
    if not isinstance(listed, str | Path):
        names: Any = list(listed)
    else:
        try:
            text = disk.read_file(listed, _MOST_BYTES).decode("utf-8-sig")
            names = json.loads(text) if Path(listed).suffix.lower() == ".json" else text.splitlines()
        except (OSError, ValueError, RecursionError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise ImageError(f"{word}: the list {listed} cannot be read: {one_line(said)}") from None
    if isinstance(names, list):
        names = [name.get("file") if isinstance(name, dict) else name for name in names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ImageError(f"{word}: a list of pictures holds names, or a JSON list of tables with a file each")
    wanted = [str(name) for name in names if name.strip()]
    if not wanted:
        raise ImageError(f"{word}: the list of pictures is empty")
    return wanted
