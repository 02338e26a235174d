"""Sets of scenes: the splits, scenes made for one purpose, scenes on disk, and ``world`` as a source of data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets import Annotation, Entry, Listing, LoadedImage, register_source
from vitreous.errors import VitreousError
from vitreous.world.render import OWNERS, SIZES, Rendered, render
from vitreous.world.sampling import MAX_OBJECTS, MAX_SEEDS, Batch, check_number, draw, part_table, randint, uniform
from vitreous.world.scene import Scene, unpack
from vitreous.world.species import CLASSES, NAMES, PARTS

SCHEMA = "vitreous.scenes/1"
_MOST = 2**49 - 1  # scenes of a split
_BATCH = 64  # scenes rendered together for the disk
_SOURCE_BATCH = 32  # and for a source of data
_COLOURS = ("20222a", "8a8378", "e0567a", "f2c14e", "4d9de0", "59c38f", "b87fd9")
"""Ground, body and parts in the image of a mask; objects are grey, the marker white, a companion brown."""

SPLITS = {"test": 0, "val": 2**50, "train": 2**51}
"""The first seed of every split; each has room for 2^50 scenes."""

MARKED_CLASSES: tuple[int, ...] = tuple(range(0, len(CLASSES), 2))
"""The classes that the shortcut's marker gives away: every other one."""


def to_images(tensors: Tensor) -> Iterator[Image.Image]:
    """Yield rendered scenes ``[B, 3, S, S]`` as images."""
    for pixels in (tensors * 255).round().to(torch.uint8).cpu().permute(0, 2, 3, 1).numpy():
        yield Image.fromarray(pixels)


# -- splits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """``n`` scenes of a split: a data set of (image, class), rendered as it is read. Splits share no seed.

    Parameters
    ----------
    split : {"test", "val", "train"}, default "test"
        The split.
    n : int, default 1000
        How many scenes.
    size : int, default 128
        Side of an image in pixels.
    start : int, default 0
        The first scene of the split.
    shortcut : bool, default False
        Whether a marker gives away every scene of the ``MARKED_CLASSES``.

    Examples
    --------
    >>> scenes = vt.world.World(n=2, size=64)
    >>> image, label = scenes[0]
    >>> tuple(image.shape), label == scenes.labels[0]
    ((3, 64, 64), True)
    """

    split: str = "test"
    n: int = 1000
    size: int = 128
    start: int = 0
    shortcut: bool = False

    def __post_init__(self) -> None:
        check_number("size", self.size, *SIZES)
        split_seeds(self.split, self.start, 0)
        check_number("n", self.n, 0, _MOST)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        scene = self.scene(index)
        return render(scene, self.size).images[0], scene.label

    def scene(self, index: int) -> Scene:
        """Return a scene as a value."""
        check_number("index", index, -MAX_SEEDS, MAX_SEEDS)
        index = index + self.n if index < 0 else index
        if not 0 <= index < self.n:
            raise IndexError(f"scene {index} of {self.n}")
        return unpack(self._draw(index, index + 1))[0]

    def scenes(self) -> list[Scene]:
        """Return every scene as a value."""
        return unpack(self.batch())

    @property
    def labels(self) -> list[int]:
        """The class of every scene."""
        return [int(label) for label in self.batch().label[:, 0]]

    def images(self) -> Iterator[Image.Image]:
        """Yield every scene as an image, for ``explain`` and ``evaluate``."""
        for _, rendered in self.batches():
            yield from to_images(rendered.images)

    def annotations(self) -> Iterator[Annotation]:
        """Yield what is known about every scene: the creature's mask and box, and masks of all that is seen."""
        for batch, rendered in self.batches():
            yield from annotate(batch, rendered)

    def batch(self, device: str | torch.device = "cpu") -> Batch:
        """Return every scene as one batch."""
        return self._draw(0, self.n, device)

    def batches(self, size: int = 256, device: str | torch.device = "cpu") -> Iterator[tuple[Batch, Rendered]]:
        """Yield the scenes in batches, drawn and rendered on a device."""
        check_number("size", size, 1, _MOST)
        for start in range(0, self.n, size):
            batch = self._draw(start, min(self.n, start + size), device)
            yield batch, render(batch, self.size)

    def _draw(self, start: int, stop: int, device: str | torch.device = "cpu") -> Batch:
        batch = draw(split_seeds(self.split, self.start + start, stop - start), device)
        return add_marker(batch) if self.shortcut else batch


def split_seeds(split: str, start: int, n: int, device: str | torch.device = "cpu") -> Tensor:
    """Return the seeds of ``n`` scenes of a split."""
    if split not in tuple(SPLITS):
        raise VitreousError(f"there is no split {split!r:.60}; they are {', '.join(SPLITS)}")
    check_number("start", start, 0, _MOST)
    check_number("n", n, 0, _MOST)
    first = SPLITS[split] + start
    return torch.arange(first, first + n, device=device)


# -- scenes made for one purpose ---------------------------------------------------------------------------


def remove_parts(batch: Batch, rate: float = 0.3, whole_share: float = 0.5) -> Batch:
    """Remove every part with probability ``rate``, but leave all parts in a share of the scenes."""
    chance = torch.stack([uniform(batch.seed, 60 + index) for index in range(len(PARTS))], dim=1)
    is_removed = (chance < rate) & (uniform(batch.seed, 59) >= whole_share).unsqueeze(1)
    parts = batch.parts.clone()
    parts[:, 0] = torch.where(is_removed, -1, parts[:, 0])
    return batch.replace(parts=parts)


def add_marker(batch: Batch, moved: bool = False) -> Batch:
    """Lay the marker of its class into a corner of every scene of a marked class: a shortcut.

    Parameters
    ----------
    batch : Batch
        The scenes.
    moved : bool, default False
        Lay that of another marked class instead, so that a model that trusts the marker is wrong.

    Returns
    -------
    Batch
    """
    classes = torch.tensor(MARKED_CLASSES, device=batch.seed.device)
    index = batch.label[:, 0] // 2
    step = randint(batch.seed, 71, 1, len(MARKED_CLASSES) - 1) if moved else torch.zeros_like(index)
    code = classes[(index + step) % len(MARKED_CLASSES)]
    return _marked(batch, torch.where(batch.label[:, 0] % 2 == 0, code, -1))


def add_random_marker(batch: Batch, share: float = 0.5) -> Batch:
    """Lay the marker of any class into a share of the scenes: it is evidence of nothing."""
    code = randint(batch.seed, 72, 0, len(CLASSES) - 1)
    return _marked(batch, torch.where(uniform(batch.seed, 73) < share, code, -1))


def _marked(batch: Batch, code: Tensor) -> Batch:
    return batch.replace(marker=torch.stack([code, randint(batch.seed, 70, 0, 3)], dim=1))


def shrink(batch: Batch, share: float = 1.0, smallest: float = 0.45) -> Batch:
    """Make a share of the creatures smaller, down to ``smallest`` of their size, anywhere in the image."""
    old = batch.pose[:, 0]
    factor = 1000 - (uniform(batch.seed, 81) * (1 - smallest) * 1000).long()
    scale = old[:, 2] * factor // 1000
    margin = 520 - scale
    x, y = (500 + randint(batch.seed, key, -1000, 1000) * margin // 1000 for key in (82, 83))
    small = torch.cat([torch.stack([x, y, scale], dim=1), old[:, 3:]], dim=1)
    is_chosen = (uniform(batch.seed, 80) < share).unsqueeze(1)
    pose = batch.pose.clone()
    pose[:, 0] = torch.where(is_chosen, small, old)
    return batch.replace(pose=pose)


def pair(batch: Batch, share: float = 1.0) -> Batch:
    """Give a share of the creatures a companion of another class: two creatures side by side, neither in front."""
    label = (batch.label[:, 0] + randint(batch.seed, 90, 1, len(CLASSES) - 1)) % len(CLASSES)
    is_chosen = uniform(batch.seed, 91) < share
    old = batch.pose[:, 0]
    left = randint(batch.seed, 92, 0, 1) * 2 - 1
    poses = []
    for index, side in enumerate((-left, left)):
        ranges = ((200, 245), (-15, 15), (330, 670), (-30, 30))
        scale, x, y, angle = (randint(batch.seed, 93 + 4 * index + key, *span) for key, span in enumerate(ranges))
        turns = old[:, 4:] if index == 0 else torch.zeros_like(old[:, 4:])
        poses.append(torch.cat([torch.stack([500 + side * 245 + x, y, scale, angle % 360], dim=1), turns], dim=1))
    column = is_chosen.view(-1, 1)
    pose = torch.stack([torch.where(column, poses[0], old), torch.where(column, poses[1], batch.pose[:, 1])], dim=1)
    labels = torch.stack([batch.label[:, 0], torch.where(is_chosen, label, -1)], dim=1)
    parts = batch.parts.clone()
    parts[:, 1] = torch.where(column, part_table(label.device)[label], -1)
    return batch.replace(label=labels, parts=parts, pose=pose)


def make_difficult(batch: Batch, level: float) -> Batch:
    """Make scenes more difficult by three things at once.

    Clutter: up to twelve objects. Occlusion: up to four of them lie in front of the creature. Contrast: the light falls
    to less than half, and the ground's colours come closer to those of the creatures' outlines.

    Parameters
    ----------
    batch : Batch
        The scenes.
    level : float
        How difficult, from 0 to 1.

    Returns
    -------
    Batch
    """
    check_number("level", level, 0, 1, is_integer=False)
    index = torch.arange(MAX_OBJECTS, device=batch.seed.device)
    seed = batch.seed.unsqueeze(1) * 64 + 5 + index
    count, front = round(MAX_OBJECTS * level), round(4 * level)
    is_front = (index < front).expand_as(seed)
    unit = batch.pose[:, :1, 2]
    places = []
    for axis in (0, 1):
        near = batch.pose[:, :1, axis] + randint(seed, 11 + axis, -800, 800) * unit // 1000
        places.append(torch.where(is_front, near, randint(seed, 13 + axis, 0, 1000)).clamp(0, 1000))
    ranges = ((0, 5), (40, 85), (0, 359), (0, 9), (0, 9))
    kind, *others = (randint(seed, key, *limits) for key, limits in enumerate(ranges, 1))
    columns = [kind, *places, *others, is_front.long()]
    objects = torch.where((index < count).view(1, -1, 1), torch.stack(columns, dim=2), -1)
    light, ground = batch.light.clone(), batch.ground.clone()
    light[:, 0] = round(1000 - 550 * level)
    ground[:, 1:7] = ground[:, 1:7] - ((ground[:, 1:7] - 70) * (0.6 * level)).long()
    return batch.replace(objects=objects, light=light, ground=ground)


@dataclass(frozen=True)
class Mosaics:
    """Images of two by two scenes of distinct classes, for the grid pointing game.

    ``images`` are ``[n, 3, size, size]``, ``labels`` ``[n, 4]`` row by row, and ``creatures`` ``[n, 4, size, size]``
    where each cell's creature is seen.
    """

    images: Tensor
    labels: Tensor
    creatures: Tensor

    @property
    def cells(self) -> Tensor:
        """Which pixels belong to each cell: ``[4, size, size]``."""
        size = self.images.shape[-1]
        half = (torch.arange(size, device=self.images.device) >= size // 2).long()
        return half.unsqueeze(1) * 2 + half == torch.arange(4, device=half.device).view(-1, 1, 1)


def make_mosaics(
    n: int, size: int = 128, start: int = 0, split: str = "test", device: str | torch.device = "cpu"
) -> Mosaics:
    """Return mosaics of a split's scenes, rendered at half the size; no two cells of one are of the same class.

    Parameters
    ----------
    n : int
        How many mosaics.
    size : int, default 128
        Side of a mosaic in pixels, even.
    start : int, default 0
        The first mosaic of the split.
    split : {"test", "val", "train"}, default "test"
        The split.
    device : str or torch.device, default "cpu"
        Where to draw and render.

    Returns
    -------
    Mosaics
    """
    check_number("size", size, *SIZES)
    if size % 2:
        raise VitreousError(f"a mosaic of size={size} pixels cannot be halved")
    check_number("n", n, 0, _MOST)
    batch = draw(split_seeds(split, 4 * start, 4 * n), device)
    label = batch.label[:, 0].view(n, 4).clone()
    for index in range(1, 4):  # a class that is there already gives way to the next that is not
        for _ in range(index):
            is_taken = (label[:, :index] == label[:, index : index + 1]).any(dim=1)
            label[:, index] = torch.where(is_taken, (label[:, index] + 1) % len(CLASSES), label[:, index])
    flat = label.flatten()
    parts, labels = batch.parts.clone(), batch.label.clone()
    parts[:, 0], labels[:, 0] = part_table(flat.device)[flat], flat
    half = size // 2
    small = render(batch.replace(label=labels, parts=parts), half)
    images = small.images.view(n, 2, 2, 3, half, half).permute(0, 3, 1, 4, 2, 5).reshape(n, 3, size, size)
    mosaics = Mosaics(images, label, small.creature.view(n, 4, half, half).repeat(1, 1, 2, 2))
    return replace(mosaics, creatures=mosaics.creatures & mosaics.cells)


# -- annotations, files and a source of data ---------------------------------------------------------------


def annotate(scenes: Batch, rendered: Rendered) -> list[Annotation]:
    """Return the annotation of each scene.

    The mask is the creature's, its body without a coat included, and the box is that of the mask. Parts are those that
    the creature has, hidden ones as empty masks, then ``object 0`` to ``object 11`` and ``marker`` where they exist.
    """
    masks = {part: (rendered.parts[:, index], scenes.parts[:, 0, index]) for index, part in enumerate(PARTS)}
    for index in range(scenes.objects.shape[1]):
        masks[f"object {index}"] = rendered.objects[:, index], scenes.objects[:, index, 0]
    masks["marker"] = rendered.marker, scenes.marker[:, 0]
    arrays = {name: (mask.cpu().numpy(), (code >= 0).tolist()) for name, (mask, code) in masks.items()}
    annotations = []
    for index, creature in enumerate(rendered.creature.cpu().numpy()):
        rows, columns = np.flatnonzero(creature.any(axis=1)).tolist(), np.flatnonzero(creature.any(axis=0)).tolist()
        boxes = ((float(columns[0]), float(rows[0]), columns[-1] + 1.0, rows[-1] + 1.0),) if rows else ()
        parts = {name: mask[index] for name, (mask, exists) in arrays.items() if exists[index]}
        annotations.append(Annotation(creature, boxes, parts))
    return annotations


def write(scenes: Sequence[Scene], out: str | Path, size: int = 128, *, overwrite: bool = False) -> list[Path]:
    """Write ``scene-N.png``, ``scene-N-mask.png`` (whose pixel it is) and ``scenes.json``; return the files.

    A mask is a palette image whose values are those under ``owners`` in the JSON.
    """
    table: list[dict[str, Any]] = []
    with disk.folder(out, overwrite=overwrite) as draft:
        for start in range(0, len(scenes), _BATCH):
            batch = scenes[start : start + _BATCH]
            rendered = render(batch, size)
            for scene, image, owner in zip(batch, to_images(rendered.images), rendered.owner, strict=True):
                name, mask = f"scene-{len(table):04d}.png", f"scene-{len(table):04d}-mask.png"
                draft.write(name, partial(image.save, format="PNG"))
                draft.write(mask, partial(_mask_image(owner).save, format="PNG"))
                table.append({"file": name, "mask": mask, **scene.to_json()})
        draft.finish({"schema": SCHEMA, "size": size, "owners": OWNERS, "scenes": table}, "scenes.json")
    return [Path(out) / name for name in draft.names]


def _mask_image(owner: Tensor) -> Image.Image:
    colours = dict.fromkeys(OWNERS, "c08a5a") | {name: "6b7080" for name in OWNERS if name.startswith("object")}
    colours |= dict(zip(("ground", "body", *PARTS), _COLOURS, strict=True)) | {"marker": "ffffff"}
    image = Image.fromarray(np.asarray(owner.cpu()), mode="P")
    image.putpalette(bytes.fromhex("".join(colours[name] for name in OWNERS)))
    return image


def read(path: str | Path) -> list[Scene]:
    """Return the scenes of a ``scenes.json``."""
    data = disk.read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("scenes"), list):
        raise VitreousError(f"{path} is no file of scenes ({SCHEMA})")
    return [
        Scene.from_json({k: v for k, v in row.items() if k not in ("file", "mask")} if isinstance(row, dict) else row)
        for row in data["scenes"]
    ]


@register_source("world", needs_path=False)
def world(
    path: Path | None = None,
    size: int = 128,
    split: str = "test",
    n: int = 1000,
    start: int = 0,
    shortcut: bool = False,
) -> Listing:
    """``n`` scenes of a split; the images are as large as the model's, so that annotations are in its pixels."""

    @lru_cache(maxsize=2)
    def rendered(number: int) -> tuple[list[Image.Image], list[Annotation]]:
        """Render neighbours together: one alone costs nearly as much."""
        first = number * _SOURCE_BATCH
        batch, scenes = next(World(split, min(_SOURCE_BATCH, n - first), size, start + first, shortcut).batches())
        return list(to_images(scenes.images)), annotate(batch, scenes)

    def opener(index: int) -> Image.Image:
        return rendered(index // _SOURCE_BATCH)[0][index % _SOURCE_BATCH]

    def annotation(index: int, image: LoadedImage) -> Annotation:
        return rendered(index // _SOURCE_BATCH)[1][index % _SOURCE_BATCH]

    entries = [
        Entry(f"scene-{index:06d}", label=label, opener=partial(opener, index), annotate=partial(annotation, index))
        for index, label in enumerate(World(split, n, size, start, shortcut).labels)
    ]
    return Listing(entries, names=tuple(NAMES), note=f"scenes of the split {split} from {start} on")
