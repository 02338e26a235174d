"""Scenes on disc: one picture and one mask each, and all of them as JSON.

Sets of scenes: the splits, and scenes made for one purpose (mosaics, pairs, difficulty, the shortcut).

What is known about rendered scenes, as metrics ask for it: where the creature, its parts and all else are seen.

The word ``world`` for sources of data: scenes with labels and every part known, rendered one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets import Annotation
from vitreous.datasets.catalog import rendered_source, source_words
from vitreous.datasets.dataset import Found, register_source
from vitreous.errors import VitreousError, one_line
from vitreous.models import register_adapter
from vitreous.world.models import ADAPTER
from vitreous.world.render import OWNERS, Rendered, check_size, render
from vitreous.world.sampling import MOST_OBJECTS, Batch, draw, part_table, uniform, whole
from vitreous.world.scene import Scene, unpack
from vitreous.world.species import CLASSES, NAMES, PARTS

__all__ = [
    "BETRAYED",
    "Mosaics",
    "SCHEMA",
    "World",
    "add_world",
    "betray",
    "difficult",
    "mosaics",
    "pair",
    "pictures",
    "read",
    "remove_parts",
    "scenes",
    "shrink",
    "truths",
    "write",
]

SCHEMA = "vitreous.scenes/1"
_AT_ONCE = 64  # scenes rendered together
_COLOURS = ("20222a", "8a8378", "e0567a", "f2c14e", "4d9de0", "59c38f", "b87fd9")
"""Ground, body and parts in the picture of a mask; objects are grey, the marker white, a companion brown."""


def pictures(images: Tensor) -> Iterator[Image.Image]:
    """Yield rendered images ``[B, 3, S, S]`` as pictures."""
    for image in (images * 255).round().to(torch.uint8).cpu().permute(0, 2, 3, 1).numpy():
        yield Image.fromarray(image)


def write(scenes: Sequence[Scene], out: str | Path, size: int = 128, *, overwrite: bool = False) -> list[Path]:
    """Write ``scene-N.png``, ``scene-N-mask.png`` (whose pixel it is) and ``scenes.json``; return the files.

    A mask is a palette picture whose values are those under ``owners`` in the JSON.
    """
    table: list[dict[str, Any]] = []
    with disk.folder(out, overwrite=overwrite) as draft:
        for start in range(0, len(scenes), _AT_ONCE):
            some = scenes[start : start + _AT_ONCE]
            rendered = render(some, size)
            for scene, seen, owner in zip(some, pictures(rendered.images), rendered.owner, strict=True):
                name, mask = f"scene-{len(table):04d}.png", f"scene-{len(table):04d}-mask.png"
                draft.write(name, _png(seen))
                draft.write(mask, _png(_mask(owner)))
                table.append({"file": name, "mask": mask, **scene.to_json()})
        draft.finish({"schema": SCHEMA, "size": size, "owners": OWNERS, "scenes": table}, "scenes.json")
    return [Path(out) / name for name in draft.names]


def _mask(owner: Tensor) -> Image.Image:
    whose = Image.fromarray(np.asarray(owner.cpu()), mode="P")
    whose.putpalette(bytes.fromhex("".join(_palette())))
    return whose


def _png(image: Image.Image) -> Callable[[BinaryIO], None]:
    return lambda file: image.save(file, format="PNG")


def read(path: str | Path) -> list[Scene]:
    """Return the scenes of a ``scenes.json``."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VitreousError(f"{path} cannot be read as scenes: {one_line(str(error))}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("scenes"), list):
        raise VitreousError(f"{path} is no file of scenes ({SCHEMA})")
    return [Scene.from_json(_scene(each)) for each in data["scenes"]]


def _scene(entry: Any) -> Any:
    """An entry of the file without the names of its pictures."""
    return {k: v for k, v in entry.items() if k not in ("file", "mask")} if isinstance(entry, dict) else entry


def _palette() -> list[str]:
    rest = dict.fromkeys(OWNERS, "c08a5a") | {name: "6b7080" for name in OWNERS if name.startswith("object")}
    rest |= dict(zip(("ground", "body", *PARTS), _COLOURS, strict=True)) | {"marker": "ffffff"}
    return [rest[name] for name in OWNERS]


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
            yield from (Image.fromarray(pixel) for pixel in pixels)

    def truths(self) -> Iterator[Annotation]:
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


def truths(scenes: Batch, rendered: Rendered) -> list[Annotation]:
    """Return the truth of each scene.

    The mask is the creature's, its bare body included, and the box is that of the mask. Parts are those that the
    creature has, hidden ones as empty masks, then ``object 0`` to ``object 11`` and ``marker`` where they are there.
    """
    masks = {
        **{part: rendered.parts[:, place] for place, part in enumerate(PARTS)},
        **{f"object {place}": rendered.objects[:, place] for place in range(scenes.objects.shape[1])},
        "marker": rendered.marker,
    }
    arrays = {name: mask.cpu().numpy() for name, mask in masks.items()}
    there = {
        **{part: scenes.parts[:, 0, place] >= 0 for place, part in enumerate(PARTS)},
        **{f"object {place}": scenes.objects[:, place, 0] >= 0 for place in range(scenes.objects.shape[1])},
        "marker": scenes.marker[:, 0] >= 0,
    }
    known = {name: each.cpu().numpy() for name, each in there.items()}
    creatures = rendered.creature.cpu().numpy()
    return [
        Annotation(
            creature,
            _boxes(creature),
            {name: array[scene] for name, array in arrays.items() if known[name][scene]},
        )
        for scene, creature in enumerate(creatures)
    ]


def _boxes(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> tuple[tuple[float, float, float, float], ...]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return ()
    return ((float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)),)


_CHUNK = 32


def scenes(
    path: Path | None = None,
    size: int = 128,
    split: str = "test",
    n: int = 1000,
    start: int = 0,
    shortcut: bool = False,
) -> Found:
    """Find ``n`` scenes of a split; the pictures are as large as the model's, so that the truth is in its pixels."""

    @lru_cache(maxsize=2)
    def some(number: int) -> tuple[list[Image.Image], list[Annotation]]:
        """Render neighbours together: one alone costs nearly as much."""
        first = number * _CHUNK
        drawn, seen = next(World(split, min(_CHUNK, n - first), size, start + first, shortcut).batches())
        return list(pictures(seen.images)), list(truths(drawn, seen))

    def draw(place: int) -> Image.Image:
        return some(place // _CHUNK)[0][place % _CHUNK]

    def truth(place: int) -> Annotation:
        return some(place // _CHUNK)[1][place % _CHUNK]

    labels = World(split, n, size, start, shortcut).labels
    return rendered_source(labels, draw, truth, tuple(NAMES), note=f"scenes of the split {split} from {start} on")


def add_world() -> None:
    """Let sources of data know the word ``world``, and models the bundled ones."""
    register_adapter(ADAPTER)
    if "world" not in source_words():
        register_source("world", scenes, needs_path=False)
