"""Scenes of the bundled world as images of the protocol: every intervention is rendered anew, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.judge.birds.source import Change, Seen
from vitreous.metrics.curves import Array
from vitreous.world import NAMES, PARTS, Batch, Scene, World, pack, render
from vitreous.world.batch import MOST_OBJECTS, part_table

__all__ = ["Scenes"]


@dataclass(frozen=True, eq=False)
class Scenes:
    """Whole creatures, each alone in its scene. A marker counts as one more background object, the last."""

    batch: Batch
    size: int
    what: str = "scenes of the world"
    parts: tuple[str, ...] = PARTS
    most_objects: int = MOST_OBJECTS + 1

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
        return [*there, MOST_OBJECTS] if int(self.batch.marker[image, 0]) >= 0 else there

    def images(self, changes: Sequence[Change]) -> Tensor:
        """Render the scenes with only those parts and without that object."""
        device = self.batch.seed.device
        image, kept, gone = (torch.tensor(column, device=device) for column in zip(*changes, strict=True))
        some = self.batch[image]
        bits = (kept[:, None] >> torch.arange(len(PARTS), device=device)) & 1
        parts = some.parts.clone()
        parts[:, 0] = torch.where(bits == 1, parts[:, 0], -1)
        place = torch.arange(MOST_OBJECTS, device=device)
        objects = torch.where((place == gone[:, None])[:, :, None], -1, some.objects)
        marker = torch.where((gone == MOST_OBJECTS)[:, None], -1, some.marker)
        return render(some.replace(parts=parts, objects=objects, marker=marker), self.size).images

    def seen(self, images: range) -> Iterator[Seen]:
        """Yield the masks of the five parts, the objects and the marker of each scene."""
        rendered = render(self.batch[images.start : images.stop], self.size)
        for place, image in enumerate(images):
            objects = self.objects(image)
            one = rendered.owner[place : place + 1]
            whole = type(rendered)(rendered.images[place : place + 1], one)
            masks = torch.cat([whole.parts[0], whole.objects[0], whole.marker])
            owners = [*range(len(PARTS)), *(len(PARTS) + each for each in objects)]
            yield Seen(np.asarray(masks[owners].cpu().numpy()), np.array(owners))
