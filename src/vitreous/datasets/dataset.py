"""Data sets: what a source lists, which of it is taken, and samples: images with what is known about them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets.annotations import Annotation, mask_annotation, photo_size, to_annotation
from vitreous.datasets.class_tables import ClassResolver, Label
from vitreous.datasets.images import ImageLoader, LazySequence, LoadedImage, iterate, open_image, split_labels
from vitreous.errors import ImageError, SpecError, TargetError, VitreousWarning, one_line
from vitreous.models import Box, VisionModel
from vitreous.registry import check_choice

CHOICES = ("first", "random", "per-class", "listed")

SkipImage = Callable[[str, str], None]
"""Called with the name of an image that cannot be used, and why; the others go on."""


# -- entries and samples -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Entry:
    """One image of a source, and what is known about it before it is opened.

    ``name`` is its own within the source, with ``/`` between folders. An image is the file at ``path`` or what
    ``opener`` returns: an image, or a tensor that is an input of the model. ``boxes`` are (left, top, right, bottom) in
    pixels of the photograph or, if ``is_relative``, fractions of its width and height. ``compare_classes`` are the
    classes to compare in it, ``group`` the number of those that belong together. ``annotate`` returns the annotation
    where ``mask`` and ``boxes`` do not say it. A cell of a grid has a ``source``, which puts several images together
    for one model; it cannot be opened without that model.
    """

    name: str
    path: Path | None = None
    label: Label | None = None
    boxes: tuple[Box, ...] | None = None
    is_relative: bool = False
    mask: Path | None = None
    group: int | None = None
    compare_classes: tuple[Label, ...] = ()
    opener: Callable[[], Image.Image | Tensor] | None = field(default=None, repr=False)
    annotate: Callable[[LoadedImage], Annotation] | None = field(default=None, repr=False)
    source: DataSource | None = field(default=None, repr=False)
    build_steps: tuple[Any, ...] = ()

    @property
    def photo(self) -> str:
        """What entries that show one photograph have in common."""
        return self.name if self.path is None else str(self.path)

    def open(self) -> Image.Image | Tensor:
        """Read the image: upright and in RGB, or a tensor where that is what the source renders."""
        if self.opener is None:
            if self.source is not None:
                raise ImageError(f"{self.name} is put together for one model, which is not at hand")
            if self.path is None:
                raise ImageError(f"{self.name} has neither a file nor anything that renders it")
            return open_image(self.path)
        try:
            return self.opener()
        except ImageError:
            raise
        except Exception as error:  # foreign bytes can break a reader anywhere
            raise ImageError(f"{self.name} cannot be read: {one_line(str(error))[:200]}") from None

    def input_source(self) -> Path | Image.Image | Tensor:
        """Return the file, or the image where there is none."""
        return self.path if self.opener is None and self.path is not None else self.open()

    @property
    def is_annotated(self) -> bool:
        """Whether anything is known about where things are in it."""
        return self.annotate is not None or self.mask is not None or bool(self.boxes)

    def annotation(self, image: LoadedImage) -> Annotation | None:
        """Return what is known, in the pixels that the model sees."""
        if self.annotate is not None:
            return self.annotate(image)
        boxes = self.box_annotation(image) if self.boxes else None
        if self.mask is None:
            return boxes
        inside = mask_annotation(image, self.mask)
        return inside if boxes is None else replace(inside, boxes=boxes.boxes)

    def box_annotation(self, image: LoadedImage) -> Annotation:
        """Return the boxes alone."""
        width, height = photo_size(image) if self.is_relative else (1, 1)
        boxes = [(a * width, b * height, c * width, d * height) for a, b, c, d in self.boxes or ()]
        return Annotation.of_photo(image, boxes=boxes)


@dataclass(frozen=True, eq=False)
class Sample:
    """One image and what belongs to it alone.

    ``label`` is the true class, ``target`` the one that the caller wants explained, ``compare_classes`` those to
    compare in this image; ``index`` is its place in the whole source, counted from 0.
    """

    image: LoadedImage
    index: int = 0
    label: int | None = None
    annotation: Annotation | None = None
    target: int | None = None
    compare_classes: tuple[int, ...] | None = None


def read_samples(data: Any, model: VisionModel, labels: Any = None, annotations: Any = None) -> Iterator[Sample]:
    """Yield every image with its true class and its annotation, where there are such.

    ``labels`` and ``annotations`` are in the order of the images or by name; ``annotations`` may be a function of the
    image.
    """
    own_labels = None if labels is None else _Aligned(labels, "label")
    own_annotations = None if annotations is None or callable(annotations) else _Aligned(annotations, "annotation")
    count = 0
    for index, (image, label) in enumerate(_labelled_images(data, model, labels is None)):
        label = label if own_labels is None else own_labels(image)
        annotation = annotations if own_annotations is None else own_annotations(image)
        label_index = None if label is None else model.class_index(label)
        yield Sample(image, index, label_index, to_annotation(annotation, image))
        count += 1
    for aligned in filter(None, (own_labels, own_annotations)):
        aligned.check_exhausted(count)


class _Aligned:
    """Labels or annotations that come with the images: one for each, in their order or by name."""

    def __init__(self, values: Any, noun: str) -> None:
        self.noun, self.values = noun, values.tolist() if noun == "label" and hasattr(values, "tolist") else values
        self.by_name = isinstance(values, Mapping)
        if not self.by_name and (isinstance(self.values, str) or not isinstance(self.values, Iterable)):
            raise TargetError(f"{self.values!r:.60} is no list of {noun}s")
        self.remaining = iter(()) if self.by_name else iter(self.values)

    def __call__(self, image: LoadedImage) -> Any:
        if self.by_name:
            value = self.values.get(image.name, self.values.get(Path(image.name).stem))
        else:
            value = next(self.remaining, None)
        if value is None and self.noun == "label":
            raise TargetError(f"there is no label for {image.name}")
        return value

    def check_exhausted(self, count: int) -> None:
        if not self.by_name and (left := sum(1 for _ in self.remaining)):
            error = TargetError if self.noun == "label" else ImageError
            raise error(f"{count + left} {self.noun}s for {count} images")


def _labelled_images(data: Any, model: VisionModel, pairs: bool) -> Iterator[tuple[LoadedImage, Any]]:
    """Yield every image, with its class if the data ``pairs`` them."""
    is_unlabelled = not pairs or isinstance(data, str | Path | Image.Image | np.ndarray | Tensor)
    items = None if is_unlabelled else iterate([data] if isinstance(data, Mapping) else data)
    start, loader = 0, ImageLoader(model, draw=False)
    for source, labels in [(data, None)] if items is None else map(split_labels, items):
        if labels is not None:
            labels = labels.tolist() if hasattr(labels, "tolist") else labels
            labels = labels if isinstance(labels, list | tuple) else [labels]
        aligned, count = None if labels is None else _Aligned(labels, "label"), 0
        for image in loader.load(source, None if items is None else start):
            yield image, None if aligned is None else aligned(image)
            count += 1
        if aligned is not None:
            aligned.check_exhausted(count)
        start += count


def _complete(values: Sequence[Any]) -> list[Any] | None:
    return None if None in values else list(values)


# -- data sets ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DataSource:
    """Images that were chosen of a source, in a stable order.

    ``entries`` are what is counted, planned, named and grouped: one for each sample that ``samples`` yields, with the
    same name. ``classes``, ``names`` and ``note`` are those of the ``Listing``.
    """

    name: str
    entries: tuple[Entry, ...]
    path: Path | None = None
    classes: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()
    note: str = ""

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def digest(self) -> str:
        """A digest of the choice: names, labels, boxes, names of masks and groups; no bytes are read."""
        digest = hashlib.blake2b(self.name.encode(), digest_size=16)
        for entry in self.entries:
            mask = None if entry.mask is None else entry.mask.name
            row = [entry.name, entry.label, entry.boxes, entry.is_relative, mask, entry.group, entry.compare_classes]
            digest.update(json.dumps(row).encode() + b"\n")  # JSON writes every character in ASCII
        return digest.hexdigest()

    @property
    def has_labels(self) -> bool:
        """Whether the true classes are known; where one is, all must be."""
        return bool(self.entries) and self.entries[0].label is not None

    @property
    def groups(self) -> tuple[int, ...] | None:
        """The number of each entry's group; None where there are no groups."""
        numbers = [entry.group for entry in self.entries]
        return None if None in numbers else tuple(number for number in numbers if number is not None)

    def sample(self, model: VisionModel, index: int) -> Sample:
        """Return one image as an input of this model, with its class and its annotation."""
        return self._sample(model, index, ClassResolver(model, self.names))

    def samples(
        self, model: VisionModel, on_error: SkipImage | None = None, indices: Iterable[int] | None = None
    ) -> Iterator[Sample]:
        """Yield every image that can be used, or those at some indices, as inputs of this model.

        The others are reported to ``on_error`` and left out; without it, one warning counts and names them. Labels that
        the model does not have are an error before anything is opened.
        """
        read = self._reader(model, on_error)
        skipped: list[str] = []
        try:
            for index in range(len(self.entries)) if indices is None else indices:
                try:
                    sample = read(index)
                except ImageError as error:
                    name, why = self.entries[index].name, one_line(str(error))
                    skipped.append(f"{one_line(name)} ({why})")
                    if on_error is not None:
                        on_error(name, why)
                else:
                    yield sample
        finally:  # also where the caller has seen enough
            if skipped and on_error is None:
                more = f"; and {len(skipped) - 3} more" if len(skipped) > 3 else ""
                text = f"{self.name}: {len(skipped)} images were left out: {'; '.join(skipped[:3])}{more}"
                warnings.warn(text, VitreousWarning, stacklevel=2)

    def evaluate_options(self, model: VisionModel, on_error: SkipImage | None = None) -> dict[str, Any]:
        """Return the images and what is known about them by the names of the parameters of ``evaluate``.

        ``evaluate`` stops at an image that cannot be read, so each is opened here once; they stay closed afterwards.
        """
        usable = [(sample.index, sample.label, sample.compare_classes) for sample in self.samples(model, on_error)]
        if not usable:
            raise ImageError(f"{self.name}: none of the {len(self.entries)} images can be read")
        indices, labels, compare_classes = zip(*usable, strict=True)
        entries = list(map(self.entries.__getitem__, indices))
        if None in labels and set(labels) != {None}:
            unlabelled = entries[labels.index(None)].name
            raise TargetError(f"{self.name}: {one_line(unlabelled)} has no label, but others have")
        is_annotated = any(entry.is_annotated for entry in entries)
        options = {
            "images": LazySequence(entries, Entry.input_source),
            "labels": _complete(labels),
            "annotations": [entry.annotation for entry in entries] if is_annotated else None,
            "groups": self.groups and [self.groups[index] for index in indices],
            "compare_classes": _complete(compare_classes),
            "class_subset": self.classes,
        }
        return {name: value for name, value in options.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return what a record says about the data."""
        return {
            "source": self.name,
            "images": len({entry.photo for entry in self.entries}),
            "entries": len(self),
            "digest": self.digest,
            "classes": None if self.classes is None else len(self.classes),
            "note": self.note,
        }

    def _reader(self, model: VisionModel, on_error: SkipImage | None) -> Callable[[int], Sample]:
        """Check what can be checked before anything is opened; return what reads one image."""
        resolver = ClassResolver(model, self.names)
        resolver.check(label for entry in self.entries for label in (entry.label, *entry.compare_classes))
        return lambda index: self._sample(model, index, resolver)

    def _sample(self, model: VisionModel, index: int, resolver: ClassResolver) -> Sample:
        entry = self.entries[index]
        images = list(ImageLoader(model, draw=False).load(entry.input_source(), index))
        if len(images) != 1:
            raise ImageError(f"{entry.name} is {len(images)} images, not one")
        image = replace(images[0], name=entry.name)
        label = resolver.resolve(entry.label, image)
        compare_classes = (resolver.resolve(other, image) for other in entry.compare_classes)
        try:
            annotation = to_annotation(entry.annotation, image)
        except (OSError, ValueError, SyntaxError) as error:  # PIL calls a broken file any of these
            raise ImageError(f"the annotation of {entry.name} cannot be read: {one_line(str(error))}") from None
        classes = tuple(number for number in compare_classes if number is not None)
        return Sample(image, index, label, annotation, compare_classes=classes or None)


# -- which images are taken --------------------------------------------------------------------------------


def select_entries(
    source: str,
    entries: Sequence[Entry],
    images: int = 0,
    choose: str = "first",
    seed: int = 0,
    listed: Iterable[str] | str | Path | None = None,
) -> list[Entry]:
    """Return the entries of the images that are taken, all of them with ``images=0``.

    ``"first"`` keeps the order of the source. ``"random"`` takes those with the smallest digests of seed and name, in
    that order: it does not depend on where the folder is or what else is in it, and a larger choice begins with the
    smaller one. ``"per-class"`` takes one of each class after the other by the same digests, so that ten images of four
    classes are three, three, two and two. ``"listed"`` takes the names of a list, or of a text or JSON file, in its
    order. Entries that show one photograph count as one image and stay together, but not per class.
    """
    _check_selection(images, choose, seed, listed)
    if choose == "per-class":
        photos = [[entry] for entry in _by_turns(source, entries, seed)]
    else:
        by_photo: dict[str, list[Entry]] = {}
        for entry in entries:
            by_photo.setdefault(entry.photo, []).append(entry)
        photos = list(by_photo.values())
    if choose == "random":
        photos.sort(key=lambda photo: _random_key(seed, photo[0]))
    elif listed is not None:
        photos = _find_listed(source, photos, _read_list(source, listed))
    if images > len(photos):
        raise ImageError(f"{source}: there are {len(photos)} images, not {images}")
    return [entry for photo in photos[: images or None] for entry in photo]


def _check_selection(images: int, choose: str, seed: int, listed: Any) -> None:
    check_choice("choose", choose, CHOICES)
    if isinstance(images, bool) or not isinstance(images, int) or images < 0:
        raise SpecError(f"images={images!r} must be a whole number, 0 for all of them")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SpecError(f"seed={seed!r} must be a whole number")
    if (listed is not None) != (choose == "listed"):
        raise SpecError(f"choose={choose!r} and listed={listed!r:.60} do not go together")


def _digest(seed: int, text: str) -> bytes:
    return hashlib.blake2b(f"{seed} {text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _random_key(seed: int, entry: Entry) -> tuple[bytes, str]:
    """Order by a digest of the name without its ending: a copy in another format is chosen alike."""
    return _digest(seed, str(PurePosixPath(entry.name).with_suffix(""))), entry.name


def _by_turns(source: str, entries: Sequence[Entry], seed: int) -> list[Entry]:
    classes: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.label is None:
            raise ImageError(f"{source}: {one_line(entry.name)} has no label, so choose='per-class' cannot be had")
        classes.setdefault(repr(entry.label), []).append(entry)
    queues = [sorted(members, key=lambda entry: _random_key(seed, entry)) for members in classes.values()]
    queues.sort(key=lambda queue: _digest(seed, f"class {queue[0].label!r}"))
    return [entry for turn in zip_longest(*queues) for entry in turn if entry is not None]


def _find_listed(source: str, photos: Sequence[list[Entry]], names: Sequence[str]) -> list[list[Entry]]:
    """Return the photographs of these names, in this order."""
    indices = _index_names(photos)
    taken: dict[int, list[Entry]] = {}
    missing: list[str] = []
    for name in names:
        matches = next((by_name[name] for by_name in indices if name in by_name), [])
        if len(matches) > 1:
            raise ImageError(f"{source}: {one_line(name)} of the list is the name of {len(matches)} images")
        if not matches:
            missing.append(name)
        elif matches[0] in taken:
            raise ImageError(f"{source}: {one_line(name)} is in the list twice")
        else:
            taken[matches[0]] = photos[matches[0]]
    if missing:
        examples = ", ".join(map(one_line, missing[:3]))
        raise ImageError(f"{source}: {len(missing)} of {len(names)} names of the list are missing, such as {examples}")
    return list(taken.values())


def _index_names(photos: Sequence[list[Entry]]) -> list[dict[str, list[int]]]:
    """Return the indices of photographs by whole names, by file names, and by those without their ending."""
    indices: list[dict[str, list[int]]] = [{}, {}, {}]
    for index, photo in enumerate(photos):
        files = {PurePosixPath(entry.name).name if entry.path is None else entry.path.name for entry in photo}
        forms = {entry.name for entry in photo}, files, {PurePosixPath(name).stem for name in files}
        for by_name, form in zip(indices, forms, strict=True):
            for name in form:
                by_name.setdefault(name, []).append(index)
    return indices


def _read_list(source: str, listed: Iterable[str] | str | Path) -> list[str]:
    names: Any
    what = f"{source}: the list "
    if not isinstance(listed, str | Path):
        names = list(listed)
    elif Path(listed).suffix.lower() == ".json":
        names = disk.read_json(listed, what=what, error=ImageError)
    else:
        names = disk.read_text(listed, what=what, error=ImageError).splitlines()
    if isinstance(names, list):
        names = [name.get("file") if isinstance(name, dict) else name for name in names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ImageError(f"{source}: a list of images holds names, or a JSON list of tables with a file each")
    names = [name for name in names if name.strip()]
    if not names:
        raise ImageError(f"{source}: the list of images is empty")
    return list(map(str, names))
