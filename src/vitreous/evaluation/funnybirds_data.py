"""What the protocol asks of a set of images: pictures with parts removed, and where the parts are.

A folder in the layout of the FunnyBirds data set as images of the protocol.

The layout is that of the released data (docs/metrics/ground-truth.md); another is described by a ``Layout``. Whatever
does not fit is refused by name: a file that is absent, a size that differs, part maps without the colour of any part.

Scenes of the bundled world as images of the protocol: every intervention is rendered anew, in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitreous.datasets.funnybirds import FunnyBirdsFiles, Layout
from vitreous.errors import VitreousError
from vitreous.metrics.ranking import Array
from vitreous.world import NAMES, PARTS, Batch, Scene, World, pack, render
from vitreous.world.sampling import MAX_OBJECTS, part_table

__all__ = [
    "Change",
    "Folder",
    "Layout",
    "Scenes",
    "Seen",
    "Source",
]


class Change(NamedTuple):
    """An image of which only a set of parts is kept (bit p: part p) and one object is removed (-1: none)."""

    image: int
    kept: int
    without: int = -1


class Seen(NamedTuple):
    """Where things are seen in one image: masks ``[I, S, S]``, and the part or, from P on, object of each ``[I]``."""

    masks: Array
    owners: Array


class Source(Protocol):
    """Images of which every part can be removed."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the P parts."""

    @property
    def variants(self) -> Array:
        """Which variant of each part a class has, ``[C, P]``."""

    @property
    def names(self) -> Sequence[str]:
        """A name for every image."""

    @property
    def labels(self) -> Array:
        """The true class of every image, ``[n]``."""

    @property
    def size(self) -> int:
        """Side of a picture in pixels."""

    @property
    def most_objects(self) -> int:
        """Places for background objects."""

    @property
    def what(self) -> str:
        """In a few words."""

    def objects(self, image: int) -> Sequence[int]:
        """Return the places of the background objects that an image has."""

    def images(self, changes: Sequence[Change]) -> Tensor:
        """Return pictures ``[n, 3, S, S]`` in [0, 1]."""

    def seen(self, images: range) -> Iterator[Seen]:
        """Yield where things are, image by image, nothing removed."""


@dataclass(frozen=True, eq=False)
class Folder(FunnyBirdsFiles):
    """Rendered images and interventions on disk; a picture is read when it is its turn."""

    @classmethod
    def of(cls, root: str | Path, layout: Layout | None = None) -> Folder:
        """Read the tables of a folder; pictures are opened later."""
        files = FunnyBirdsFiles.of(root, layout)
        return cls(files.root, files.layout, files.labels, files.variants, files.counts)

    @property
    def what(self) -> str:
        return f"the birds in {self.root}"

    @property
    def most_objects(self) -> int:
        return max(self.counts)

    def objects(self, image: int) -> range:
        """Return the numbers of the background objects that an image has."""
        return range(self.counts[image])

    def images(self, changes: Sequence[Change]) -> Tensor:
        """Read the pictures; with every part and object there, that is the image itself."""
        return torch.stack([self._picture(self._path_of(change)) for change in changes])

    def seen(self, images: range) -> Iterator[Seen]:
        """Yield the instances of parts and the objects of each image, by the colours of its part map."""
        for image in images:
            masks, owners = self.instances(image)
            everything = [*range(len(self.parts)), *(len(self.parts) + k for k in self.objects(image))]
            hidden = [owner for owner in everything if owner not in owners]  # it is there, and wholly hidden
            empty = np.zeros((len(hidden), self.size, self.size), bool)
            yield Seen(np.concatenate([masks, empty]), np.concatenate([owners, np.array(hidden, np.int64)]))

    def _path_of(self, change: Change) -> Path:
        layout, everything = self.layout, 2 ** len(self.parts) - 1
        if change.without >= 0:
            return self.path(layout.without, change.image, object=change.without)
        if change.kept == everything:
            return self.path(layout.image, change.image)
        names = [part for number, part in enumerate(self.parts) if change.kept >> number & 1]
        return self.path(layout.with_parts, change.image, parts="_".join(names) or layout.nothing)

    def _picture(self, path: Path) -> Tensor:
        return torch.from_numpy(self.pixels(path).copy()).permute(2, 0, 1).float() / 255


@dataclass(frozen=True, eq=False)
class Scenes:
    """Whole creatures, each alone in its scene. A marker counts as one more background object, the last."""

    batch: Batch
    size: int
    what: str = "scenes of the world"
    parts: tuple[str, ...] = PARTS
    most_objects: int = MAX_OBJECTS + 1

    def __post_init__(self) -> None:
        label, parts = self.batch.label, self.batch.parts[:, 0]
        wrong = (parts != part_table(parts.device)[label[:, 0]]).any(dim=1)
        if wrong.any():
            place = int(wrong.nonzero()[0])
            name = NAMES[int(label[place, 0])]
            raise VitreousError(f"scene {place} is no whole {name}: the protocol removes the parts itself")
        if (label[:, 1] >= 0).any():
            place = int((label[:, 1] >= 0).nonzero()[0])
            raise VitreousError(f"scene {place} has a companion: the protocol looks at one creature")

    @classmethod
    def of(cls, given: World | Sequence[Scene], size: int, device: torch.device) -> Scenes:
        """Take a set of scenes at its own size, or scenes one by one at this one."""
        if not len(given):
            raise VitreousError("there are no scenes to judge with")
        if isinstance(given, World):
            how = f"World({given.split!r}, n={given.n}, start={given.start}, shortcut={given.shortcut})"
            return cls(given.batch(device), given.size, how)
        return cls(pack(list(given)).to(device), size)

    @property
    def variants(self) -> Array:
        """Which variant of each part a class has, ``[48, 5]``."""
        return np.asarray(part_table().numpy())

    @property
    def names(self) -> list[str]:
        """The seed of each scene: all that there is to it, if nothing was changed by hand."""
        return [f"scene {seed}" for seed in self.batch.seed.tolist()]

    @property
    def labels(self) -> Array:
        """The class of each creature."""
        return np.asarray(self.batch.label[:, 0].cpu().numpy())

    def objects(self, image: int) -> list[int]:
        """Return the places of the objects that there are, and the last one for a marker."""
        there = (self.batch.objects[image, :, 0] >= 0).nonzero().flatten().tolist()
        return [*there, MAX_OBJECTS] if int(self.batch.marker[image, 0]) >= 0 else there

    def images(self, changes: Sequence[Change]) -> Tensor:
        """Render the scenes with only those parts and without that object."""
        device = self.batch.seed.device
        image, kept, gone = (torch.tensor(column, device=device) for column in zip(*changes, strict=True))
        some = self.batch[image]
        bits = (kept[:, None] >> torch.arange(len(PARTS), device=device)) & 1
        parts = some.parts.clone()
        parts[:, 0] = torch.where(bits == 1, parts[:, 0], -1)
        place = torch.arange(MAX_OBJECTS, device=device)
        objects = torch.where((place == gone[:, None])[:, :, None], -1, some.objects)
        marker = torch.where((gone == MAX_OBJECTS)[:, None], -1, some.marker)
        return render(some.replace(parts=parts, objects=objects, marker=marker), self.size).images

    def seen(self, images: range) -> Iterator[Seen]:
        """Yield the masks of the five parts, the objects and the marker of each scene."""
        rendered = render(self.batch[images.start : images.stop], self.size)
        for place, image in enumerate(images):
            objects = self.objects(image)
            one = rendered.owner[place : place + 1]
            whole = type(rendered)(rendered.images[place : place + 1], one)
            masks = torch.cat([whole.parts[0], whole.objects[0], whole.marker])
            owners = [*range(len(PARTS)), *(len(PARTS) + object_ for object_ in objects)]
            yield Seen(np.asarray(masks[owners].cpu().numpy()), np.array(owners))
