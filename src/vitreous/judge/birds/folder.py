"""A folder in the layout of the FunnyBirds data set as images of the protocol.

The layout is that of the released data (docs/metrics/ground-truth.md); another is described by a ``Layout``. Whatever
does not fit is refused by name: a file that is absent, a size that differs, part maps without the colour of any part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.sets.funnybirds import FunnyBirdsFiles, Layout
from vitreous.judge.birds.source import Change, Seen

__all__ = ["Folder", "Layout"]


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
        return self.path(layout.kept, change.image, kept="_".join(names) or layout.nothing)

    def _picture(self, path: Path) -> Tensor:
        return torch.from_numpy(self.pixels(path).copy()).permute(2, 0, 1).float() / 255
