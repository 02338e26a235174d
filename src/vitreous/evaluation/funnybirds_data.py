"""Images for the FunnyBirds protocol: with parts removed, and where the parts are.

They come from a folder in the layout of the data set, or are scenes of the bundled world, of which every intervention
is rendered anew. Whatever does not fit is refused by name: a file that is absent, a size that differs, part maps
without the colour of any part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.datasets.funnybirds import FunnyBirdsFiles
from vitreous.errors import VitreousError
from vitreous.metrics.ranking import Array
from vitreous.world import NAMES, PARTS, Batch, Scene, World, pack, render
from vitreous.world.sampling import MAX_OBJECTS, part_table


class Intervention(NamedTuple):
    """An image with only a set of parts (bit p: part p) and without one object (-1: none)."""

    image: int
    parts: int
    without: int = -1


class PartMasks(NamedTuple):
    """Where things are seen in one image: masks ``[I, S, S]``, and the part or, from P on, object of each ``[I]``."""

    masks: Array
    owners: Array


@dataclass(frozen=True, eq=False)
class FunnyBirdsFolder(FunnyBirdsFiles):
    """Rendered images and interventions on disk; a picture is read when it is its turn."""

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
        pixels = torch.from_numpy(np.stack([self.pixels(self._path_of(change)) for change in changes]))
        return pixels.permute(0, 3, 1, 2).contiguous().float() / 255

    def masks(self, images: range) -> Iterator[PartMasks]:
        """Yield the instances of parts and the objects of each image, by the colours of its part map."""
        for image in images:
            masks, owners = self.instances(image)
            all_owners = range(len(self.parts) + self.counts[image])
            hidden = [owner for owner in all_owners if owner not in owners]  # it is there, and wholly hidden
            empty = np.zeros((len(hidden), self.size, self.size), bool)
            yield PartMasks(np.concatenate([masks, empty]), np.concatenate([owners, np.array(hidden, np.int64)]))

    def _path_of(self, change: Intervention) -> Path:
        layout, all_parts = self.layout, 2 ** len(self.parts) - 1
        if change.without >= 0:
            return self.path(layout.without, change.image, object=change.without)
        if change.parts == all_parts:
            return self.path(layout.image, change.image)
        names = [part for number, part in enumerate(self.parts) if change.parts >> number & 1]
        return self.path(layout.with_parts, change.image, parts="_".join(names) or layout.nothing)


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
        for scene in (parts != part_table(parts.device)[label[:, 0]]).any(dim=1).nonzero().flatten().tolist():
            name = NAMES[int(label[scene, 0])]
            raise VitreousError(f"scene {scene} is no whole {name}: the protocol removes the parts itself")
        for scene in (label[:, 1] >= 0).nonzero().flatten().tolist():
            raise VitreousError(f"scene {scene} has a companion: the protocol looks at one creature")

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
        image, subset, removed = (torch.tensor(column, device=device) for column in zip(*changes, strict=True))
        scenes = self.batch[image]
        bits = (subset[:, None] >> torch.arange(len(PARTS), device=device)) & 1
        parts = scenes.parts.clone()
        parts[:, 0] = torch.where(bits == 1, parts[:, 0], -1)
        numbers = torch.arange(MAX_OBJECTS, device=device)
        objects = torch.where((numbers == removed[:, None])[:, :, None], -1, scenes.objects)
        marker = torch.where((removed == MAX_OBJECTS)[:, None], -1, scenes.marker)
        return render(scenes.replace(parts=parts, objects=objects, marker=marker), self.size).images

    def masks(self, images: range) -> Iterator[PartMasks]:
        """Yield the masks of the five parts, the objects and the marker of each scene."""
        rendered = render(self.batch[images.start : images.stop], self.size)
        masks = torch.cat([rendered.parts, rendered.objects, rendered.marker[:, None]], dim=1)
        for image, own in zip(images, masks, strict=True):
            owners = [*range(len(PARTS)), *(len(PARTS) + object_ for object_ in self.objects(image))]
            yield PartMasks(np.asarray(own[owners].cpu().numpy()), np.array(owners))
