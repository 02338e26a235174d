"""Sets of scenes: the splits, and scenes made for one purpose (mosaics, pairs, difficulty, the shortcut)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from vitreous.data import Truth
from vitreous.errors import VitreousError
from vitreous.world.batch import MOST_OBJECTS, Batch, draw, part_table, uniform, whole
from vitreous.world.creatures import CLASSES, PARTS
from vitreous.world.known import truths
from vitreous.world.render import Rendered, check_size, render
from vitreous.world.scene import Scene, unpack

__all__ = ["BETRAYED", "Mosaics", "World", "betray", "difficult", "mosaics", "pair", "remove_parts", "shrink"]

SPLITS = {"test": 0, "val": 2**50, "train": 2**51}
"""The first seed of every split; each has room for 2^50 scenes."""

BETRAYED: tuple[int, ...] = tuple(range(0, len(CLASSES), 2))
"""The classes that the shortcut's marker gives away: every other one."""


@dataclass(frozen=True)
class World:
    """``n`` scenes of a split, from its ``start``-th on: a data set of (picture, class), rendered as it is read.

    Splits share no seed. With ``shortcut``, a marker betrays every scene of the ``BETRAYED`` classes.
    """

    split: str = "test"
    n: int = 1000
    size: int = 128
    start: int = 0
    shortcut: bool = False

    def __post_init__(self) -> None:
        check_size(self.size)
        seeds(self.split, self.start, 0)
        _count("n", self.n)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        scene = self.scene(place)
        return render(scene, self.size).images[0], scene.label

    def scene(self, place: int) -> Scene:
        """Return a scene as a value."""
        if not isinstance(place, int):
            raise VitreousError(f"a scene has a whole number as its place, not {place!r:.60}")
        place = place + self.n if place < 0 else place
        if not 0 <= place < self.n:
            raise IndexError(f"scene {place} of {self.n}")
        return unpack(self._drawn(place, place + 1))[0]

    def scenes(self) -> list[Scene]:
        """Return every scene as a value."""
        return unpack(self.batch()) if self.n else []

    @property
    def labels(self) -> list[int]:
        """The class of every scene."""
        return [int(label) for label in self.batch().label[:, 0]] if self.n else []

    def pictures(self) -> Iterator[Image.Image]:
        """Yield every scene as a picture, for ``explain`` and ``evaluate``."""
        for _, rendered in self.batches():
            pixels = (rendered.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
            yield from (Image.fromarray(each) for each in pixels)

    def truths(self) -> Iterator[Truth]:
        """Yield what is known about every scene: the creature's mask and box, and masks of all that is seen."""
        for drawn, rendered in self.batches():
            yield from truths(drawn, rendered)

    def batch(self, device: str | torch.device = "cpu") -> Batch:
        """Return every scene as one batch."""
        return self._drawn(0, self.n, device)

    def batches(self, size: int = 256, device: str | torch.device = "cpu") -> Iterator[tuple[Batch, Rendered]]:
        """Yield the scenes in batches, drawn and rendered on a device."""
        if _count("size", size) < 1:
            raise VitreousError("a batch of size=0 holds nothing")
        for at in range(0, self.n, size):
            drawn = self._drawn(at, min(self.n, at + size), device)
            yield drawn, render(drawn, self.size)

    def _drawn(self, start: int, stop: int, device: str | torch.device = "cpu") -> Batch:
        drawn = draw(seeds(self.split, self.start + start, stop - start), device)
        return betray(drawn) if self.shortcut else drawn


def seeds(split: str, start: int, n: int, device: str | torch.device = "cpu") -> Tensor:
    """Return the seeds of some scenes of a split."""
    if split not in tuple(SPLITS):
        raise VitreousError(f"there is no split {split!r:.60}; they are {', '.join(SPLITS)}")
    first = SPLITS[split] + _count("start", start)
    _count("n", n)
    return torch.arange(first, first + n, device=device)


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**49:
        raise VitreousError(f"{name}={value!r:.60} is not a number of scenes")
    return value


def remove_parts(batch: Batch, rate: float = 0.3, whole_share: float = 0.5) -> Batch:
    """Remove every part with probability ``rate``, but leave a share of the scenes whole."""
    chance = torch.stack([uniform(batch.seed, 60 + place) for place in range(len(PARTS))], dim=1)
    gone = (chance < rate) & (uniform(batch.seed, 59) >= whole_share).unsqueeze(1)
    parts = batch.parts.clone()
    parts[:, 0] = torch.where(gone, -1, parts[:, 0])
    return batch.replace(parts=parts)


def betray(batch: Batch, moved: bool = False) -> Batch:
    """Lay the marker of its class into a corner of every scene of a betrayed class.

    ``moved``: that of another betrayed class instead, so that who trusts the marker is wrong.
    """
    betrayed = torch.tensor(BETRAYED, device=batch.seed.device)
    place = batch.label[:, 0] // 2
    step = whole(batch.seed, 71, 1, len(BETRAYED) - 1) if moved else torch.zeros_like(place)
    code = betrayed[(place + step) % len(BETRAYED)]
    code = torch.where(batch.label[:, 0] % 2 == 0, code, -1)
    return batch.replace(marker=torch.stack([code, whole(batch.seed, 70, 0, 3)], dim=1))


def mark_at_random(batch: Batch, share: float = 0.5) -> Batch:
    """Lay the marker of any class into a share of the scenes: it says nothing."""
    code = whole(batch.seed, 72, 0, len(CLASSES) - 1)
    code = torch.where(uniform(batch.seed, 73) < share, code, -1)
    return batch.replace(marker=torch.stack([code, whole(batch.seed, 70, 0, 3)], dim=1))


def shrink(batch: Batch, share: float = 1.0, smallest: float = 0.45) -> Batch:
    """Make a share of the creatures smaller, down to ``smallest`` of their size, anywhere in the picture."""
    old = batch.pose[:, 0]
    factor = 1000 - (uniform(batch.seed, 81) * (1 - smallest) * 1000).long()
    scale = old[:, 2] * factor // 1000
    room = 520 - scale
    x, y = (500 + whole(batch.seed, key, -1000, 1000) * room // 1000 for key in (82, 83))
    small = torch.cat([torch.stack([x, y, scale], dim=1), old[:, 3:]], dim=1)
    chosen = (uniform(batch.seed, 80) < share).unsqueeze(1)
    pose = batch.pose.clone()
    pose[:, 0] = torch.where(chosen, small, old)
    return batch.replace(pose=pose)


def pair(batch: Batch, share: float = 1.0) -> Batch:
    """Give a share of the creatures a companion of another class: two creatures side by side, neither in front."""
    label = (batch.label[:, 0] + whole(batch.seed, 90, 1, len(CLASSES) - 1)) % len(CLASSES)
    chosen = uniform(batch.seed, 91) < share
    old = batch.pose[:, 0]
    left = whole(batch.seed, 92, 0, 1) * 2 - 1
    poses = []
    for place, side in enumerate((-left, left)):
        keys = range(93 + 4 * place, 97 + 4 * place)
        scale, x, y, angle = (
            whole(batch.seed, key, *span)
            for key, span in zip(keys, ((200, 245), (-15, 15), (330, 670), (-30, 30)), strict=True)
        )
        rest = old[:, 4:] if place == 0 else torch.zeros_like(old[:, 4:])
        poses.append(torch.cat([torch.stack([500 + side * 245 + x, y, scale, angle % 360], dim=1), rest], dim=1))
    yes = chosen.view(-1, 1)
    pose = torch.stack([torch.where(yes, poses[0], old), torch.where(yes, poses[1], batch.pose[:, 1])], dim=1)
    labels = torch.stack([batch.label[:, 0], torch.where(chosen, label, -1)], dim=1)
    parts = batch.parts.clone()
    parts[:, 1] = torch.where(yes, part_table(label.device)[label], -1)
    return batch.replace(label=labels, parts=parts, pose=pose)


def difficult(batch: Batch, level: float) -> Batch:
    """Make scenes as difficult as ``level`` in [0, 1] says, by three things at once.

    Clutter: up to twelve objects. Occlusion: up to four of them lie in front of the creature. Contrast: the light falls
    to less than half, and the ground's colours come closer to those of the creatures' outlines.
    """
    if not isinstance(level, int | float) or not 0 <= level <= 1:
        raise VitreousError(f"level={level!r:.60} is outside 0..1")
    full = 5 + torch.arange(MOST_OBJECTS, device=batch.seed.device)
    each = batch.seed.unsqueeze(1) * 64 + full
    count, front = round(MOST_OBJECTS * level), round(4 * level)
    place = (full - 5).expand_as(each)
    unit = batch.pose[:, :1, 2]
    near = [batch.pose[:, :1, axis] + whole(each, 11 + axis, -800, 800) * unit // 1000 for axis in (0, 1)]
    far = [whole(each, 13 + axis, 0, 1000) for axis in (0, 1)]
    before = place < front
    columns = [
        whole(each, 1, 0, 5),
        torch.where(before, near[0], far[0]).clamp(0, 1000),
        torch.where(before, near[1], far[1]).clamp(0, 1000),
        whole(each, 2, 40, 85),
        whole(each, 3, 0, 359),
        whole(each, 4, 0, 9),
        whole(each, 5, 0, 9),
        before.long(),
    ]
    objects = torch.stack(columns, dim=2)
    objects = torch.where((place < count).unsqueeze(2), objects, -1)
    light, ground = batch.light.clone(), batch.ground.clone()
    light[:, 0] = round(1000 - 550 * level)
    ground[:, 1:7] = ground[:, 1:7] - ((ground[:, 1:7] - 70) * (0.6 * level)).long()
    return batch.replace(objects=objects, light=light, ground=ground)


@dataclass(frozen=True)
class Mosaics:
    """Pictures of two by two scenes of distinct classes, for the grid pointing game."""

    images: Tensor
    """``[n, 3, size, size]``"""
    labels: Tensor
    """``[n, 4]``, row by row."""
    creatures: Tensor
    """``[n, 4, size, size]``: where each cell's creature is seen."""

    @property
    def cells(self) -> Tensor:
        """Which pixels belong to each cell: ``[4, size, size]``."""
        size = self.images.shape[-1]
        half = torch.arange(size, device=self.images.device) >= size // 2
        cell = half.long().unsqueeze(1) * 2 + half.long()
        return torch.stack([cell == place for place in range(4)])


def mosaics(
    n: int, size: int = 128, start: int = 0, split: str = "test", device: str | torch.device = "cpu"
) -> Mosaics:
    """Return mosaics of a split's scenes, rendered at half the size; no two cells of one are of the same class."""
    check_size(size)
    if size % 2:
        raise VitreousError(f"a mosaic of size={size} pixels cannot be halved")
    drawn = draw(seeds(split, 4 * _count("start", start), 4 * _count("n", n)), device)
    label = drawn.label[:, 0].view(n, 4).clone()
    for place in range(1, 4):  # a class that is there already gives way to the next that is not
        for _ in range(place):
            taken = (label[:, :place] == label[:, place : place + 1]).any(dim=1)
            label[:, place] = torch.where(taken, (label[:, place] + 1) % len(CLASSES), label[:, place])
    flat = label.flatten()
    parts, labels = drawn.parts.clone(), drawn.label.clone()
    parts[:, 0], labels[:, 0] = part_table(flat.device)[flat], flat
    small = render(drawn.replace(label=labels, parts=parts), size // 2)
    images = small.images.view(n, 2, 2, 3, size // 2, size // 2).permute(0, 3, 1, 4, 2, 5).reshape(n, 3, size, size)
    seen = small.creature.view(n, 4, size // 2, size // 2)
    creatures = seen.new_zeros(n, 4, size, size)
    for place in range(4):
        top, left = place // 2 * (size // 2), place % 2 * (size // 2)
        creatures[:, place, top : top + size // 2, left : left + size // 2] = seen[:, place]
    return Mosaics(images, label, creatures)
