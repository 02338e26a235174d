"""Images for the FunnyBirds protocol: with parts removed, and where the parts are.

They come from a folder in the layout of the data set, or are scenes of the bundled world, of which every intervention
is rendered anew. Whatever does not fit is refused by name: a file that is absent, a size that differs, part maps
without the colour of any part.
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
    "Intervention",
    "FunnyBirdsFolder",
    "Layout",
    "FunnyBirdsScenes",
    "PartMasks",
    "FunnyBirdsSource",
]


class Intervention(NamedTuple):
    """An image of which only a set of parts is kept (bit p: part p) and one object is removed (-1: none)."""

    image: int
    kept: int
    without: int = -1


class PartMasks(NamedTuple):
    """Where things are seen in one image: masks ``[I, S, S]``, and the part or, from P on, object of each ``[I]``."""

    masks: Array
    owners: Array


class FunnyBirdsSource(Protocol):
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
    def description(self) -> str:
        """In a few words."""

    def objects(self, image: int) -> Sequence[int]:
        """Return the places of the background objects that an image has."""

    def images(self, changes: Sequence[Intervention]) -> Tensor:
        """Return pictures ``[n, 3, S, S]`` in [0, 1]."""

    def masks(self, images: range) -> Iterator[PartMasks]:
        """Yield where things are, image by image, nothing removed."""


@dataclass(frozen=True, eq=False)
class FunnyBirdsFolder(FunnyBirdsFiles):
    """Rendered images and interventions on disk; a picture is read when it is its turn."""

    @classmethod
    def of(cls, root: str | Path, layout: Layout | None = None) -> FunnyBirdsFolder:
        """Read the tables of a folder; pictures are opened later."""
        files = FunnyBirdsFiles.of(root, layout)
        return cls(files.root, files.layout, files.labels, files.variants, files.counts)

    @property
    def description(self) -> str:
        return f"the birds in {self.root}"

    @property
    def most_objects(self) -> int:
        return max(self.counts)

    def objects(self, image: int) -> range:
        """Return the numbers of the background objects that an image has."""
        return range(self.counts[image])

    def images(self, changes: Sequence[Intervention]) -> Tensor:
        """Read the pictures; with every part and object there, that is the image itself."""
        return torch.stack([self._picture(self._path_of(change)) for change in changes])

    def masks(self, images: range) -> Iterator[PartMasks]:
        """Yield the instances of parts and the objects of each image, by the colours of its part map."""
        for image in images:
            masks, owners = self.instances(image)
            every = [*range(len(self.parts)), *(len(self.parts) + k for k in self.objects(image))]
            hidden = [owner for owner in every if owner not in owners]  # it is there, and wholly hidden
            empty = np.zeros((len(hidden), self.size, self.size), bool)
            yield PartMasks(np.concatenate([masks, empty]), np.concatenate([owners, np.array(hidden, np.int64)]))

    def _path_of(self, change: Intervention) -> Path:
        layout, all_parts = self.layout, 2 ** len(self.parts) - 1
        if change.without >= 0:
            return self.path(layout.without, change.image, object=change.without)
        if change.kept == all_parts:
            return self.path(layout.image, change.image)
        names = [part for number, part in enumerate(self.parts) if change.kept >> number & 1]
        return self.path(layout.with_parts, change.image, parts="_".join(names) or layout.nothing)

    def _picture(self, path: Path) -> Tensor:
        return torch.from_numpy(self.pixels(path).copy()).permute(2, 0, 1).float() / 255


@dataclass(frozen=True, eq=False)
class FunnyBirdsScenes:
    """Whole creatures, each alone in its scene. A marker counts as one more background object, the last."""

    batch: Batch
    size: int
    description: str = "scenes of the world"
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
    def of(cls, scenes: World | Sequence[Scene], size: int, device: torch.device) -> FunnyBirdsScenes:
        """Take a set of scenes at its own size, or scenes one by one at this one."""
        if not len(scenes):
            raise VitreousError("there are no scenes to evaluate with")
        if isinstance(scenes, World):
            description = f"World({scenes.split!r}, n={scenes.n}, start={scenes.start}, shortcut={scenes.shortcut})"
            return cls(scenes.batch(device), scenes.size, description)
        return cls(pack(list(scenes)).to(device), size)

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

    def images(self, changes: Sequence[Intervention]) -> Tensor:
        """Render the scenes with only those parts and without that object."""
        device = self.batch.seed.device
        image, kept, removed = (torch.tensor(column, device=device) for column in zip(*changes, strict=True))
        scenes = self.batch[image]
        bits = (kept[:, None] >> torch.arange(len(PARTS), device=device)) & 1
        parts = scenes.parts.clone()
        parts[:, 0] = torch.where(bits == 1, parts[:, 0], -1)
        place = torch.arange(MAX_OBJECTS, device=device)
        objects = torch.where((place == removed[:, None])[:, :, None], -1, scenes.objects)
        marker = torch.where((removed == MAX_OBJECTS)[:, None], -1, scenes.marker)
        return render(scenes.replace(parts=parts, objects=objects, marker=marker), self.size).images

    def masks(self, images: range) -> Iterator[PartMasks]:
        """Yield the masks of the five parts, the objects and the marker of each scene."""
        rendered = render(self.batch[images.start : images.stop], self.size)
        for index, image in enumerate(images):
            objects = self.objects(image)
            owner = rendered.owner[index : index + 1]
            rendered_one = type(rendered)(rendered.images[index : index + 1], owner)
            masks = torch.cat([rendered_one.parts[0], rendered_one.objects[0], rendered_one.marker])
            owners = [*range(len(PARTS)), *(len(PARTS) + object_ for object_ in objects)]
            yield PartMasks(np.asarray(masks[owners].cpu().numpy()), np.array(owners))
