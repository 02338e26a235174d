"""Scenes as tensors: whole numbers only, so that the same seed gives the same scene on every machine and device.

Lengths are thousandths of the image's side, angles whole degrees, colours 0..255. A field that is not used is -1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models.registry import device_of
from vitreous.world.species import CLASSES, OBJECTS, PARTS, VARIANTS

MAX_OBJECTS = 12
MAX_SEEDS = 2**53
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class Batch:
    """``B`` scenes. Axis 1 of label, parts and pose is the creature and its companion, who is -1 where there is none.

    Parameters
    ----------
    seed : Tensor
        ``[B]``
    label : Tensor
        ``[B, 2]``
    parts : Tensor
        ``[B, 2, 5]``: the variant of each part.
    pose : Tensor
        ``[B, 2, 8]``: x, y, scale, angle, mirrored, and how far horn, legs and tail are turned.
    light : Tensor
        ``[B, 4]``: strength, slope across the image, direction of the slope, warmth.
    ground : Tensor
        ``[B, 10]``: texture, two colours, how fine, direction, key of its noise.
    objects : Tensor
        ``[B, 12, 8]``: kind, x, y, size, angle, two colours, whether in front of the creature.
    marker : Tensor
        ``[B, 2]``: the class whose code it bears, and its corner.
    """

    seed: Tensor
    label: Tensor
    parts: Tensor
    pose: Tensor
    light: Tensor
    ground: Tensor
    objects: Tensor
    marker: Tensor

    def __len__(self) -> int:
        return len(self.seed)

    def __getitem__(self, which: slice | Tensor) -> Batch:
        return Batch(*(value[which] for value in self._values()))

    def to(self, device: str | torch.device) -> Batch:
        chosen = device_of(device)
        return Batch(*(value.to(chosen) for value in self._values()))

    def replace(self, **changes: Tensor) -> Batch:
        """Return the same scenes with some of the tensors exchanged."""
        return dataclasses.replace(self, **changes)

    @staticmethod
    def cat(batches: Sequence[Batch]) -> Batch:
        return Batch(*(torch.cat(values) for values in zip(*(batch._values() for batch in batches), strict=True)))

    def _values(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in dataclasses.fields(self)]


def part_table(device: torch.device | str = "cpu") -> Tensor:
    """Return the variants ``[classes, 5]`` of every class."""
    rows = [[VARIANTS[part].index(kind.parts[part]) for part in PARTS] for kind in CLASSES]
    return torch.tensor(rows, device=device)


def check_number(name: str, value: Any, least: float, most: float, is_integer: bool = True) -> None:
    """Refuse what is no (whole) number from ``least`` to ``most``."""
    is_number = isinstance(value, int if is_integer else (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise VitreousError(f"{name}={value!r:.60} is not a {'whole ' * is_integer}number in {least}..{most}")


def draw(seeds: Tensor | Sequence[int], device: str | torch.device | None = None) -> Batch:
    """Return the scenes of these seeds: class, pose, light, ground and objects, independent of each other."""
    seed = _row(seeds)
    if device is not None:
        seed = seed.to(device_of(device))
    label = randint(seed, 0, 0, len(CLASSES) - 1)
    parts = part_table(seed.device)[label]
    absent = torch.full_like(label, -1)
    pose = draw_pose(seed)
    return Batch(
        seed=seed,
        label=torch.stack([label, absent], dim=1),
        parts=torch.stack([parts, torch.full_like(parts, -1)], dim=1),
        pose=torch.stack([pose, torch.zeros_like(pose)], dim=1),
        light=draw_light(seed),
        ground=draw_ground(seed),
        objects=draw_objects(seed),
        marker=torch.stack([absent, torch.zeros_like(absent)], dim=1),
    )


def _row(seeds: Tensor | Sequence[int]) -> Tensor:
    """Return seeds as a tensor; those on a GPU are not checked, for that would make it wait."""
    if isinstance(seeds, Tensor):
        if seeds.ndim != 1 or seeds.dtype != torch.int64:
            raise VitreousError(f"seeds come as a row of int64, not as {list(seeds.shape)} of {seeds.dtype}")
        checked: Sequence[int] = (
            seeds[(seeds < 0) | (seeds >= MAX_SEEDS)][:1].tolist() if seeds.device.type == "cpu" else []
        )
    elif isinstance(seeds, Sequence):
        checked = seeds
    else:
        raise VitreousError(f"seeds come in a row, not as {seeds!r:.60}")
    for seed in checked:
        check_number("seed", seed, 0, MAX_SEEDS - 1)
    return torch.as_tensor(seeds, dtype=torch.int64)


def draw_pose(seed: Tensor) -> Tensor:
    """Return where the creature is and how it stands: ``[B, 8]``."""
    scale = randint(seed, 10, 300, 440)
    margin = 520 - scale  # the tip of a part may leave the image, a part may not
    x, y = (500 + randint(seed, key, -1000, 1000) * margin // 1000 for key in (11, 12))
    angle = randint(seed, 13, -40, 40) % 360
    wiggles = [randint(seed, key, -most, most) for key, most in ((15, 10), (16, 7), (17, 18))]
    return torch.stack([x, y, scale, angle, randint(seed, 14, 0, 1), *wiggles], dim=1)


def draw_light(seed: Tensor) -> Tensor:
    """Return strength, slope, direction, warmth: ``[B, 4]``."""
    ranges = ((720, 1120), (0, 350), (0, 359), (-100, 100))
    return torch.stack([randint(seed, 20 + key, *limits) for key, limits in enumerate(ranges)], dim=1)


def draw_ground(seed: Tensor) -> Tensor:
    """Return texture, two colours not far from each other, fineness, direction and noise key: ``[B, 10]``."""
    lightness, step = randint(seed, 31, 85, 205), randint(seed, 32, -50, 50)
    first = [(lightness + randint(seed, 33 + channel, -42, 42)).clamp(30, 245) for channel in range(3)]
    second = [
        (value + step + randint(seed, 36 + channel, -18, 18)).clamp(30, 245) for channel, value in enumerate(first)
    ]
    pattern = [randint(seed, 26, 2, 9), randint(seed, 27, 0, 359), _hash(seed, 28) >> 2]
    return torch.stack([randint(seed, 30, 0, 4), *first, *second, *pattern], dim=1)


def draw_objects(seed: Tensor) -> Tensor:
    """Return what lies about, all of it behind the creature: ``[B, 12, 8]``."""
    index = torch.arange(MAX_OBJECTS, device=seed.device)
    count = randint(seed, 40, 0, MAX_OBJECTS)
    own = _hash(seed, 41).unsqueeze(1) + index
    ranges = ((0, len(OBJECTS) - 1), (0, 1000), (0, 1000), (35, 85), (0, 359), (0, 9), (0, 9))
    columns = [randint(own, key, *limits) for key, limits in enumerate(ranges, 1)]
    objects = torch.stack([*columns, torch.zeros_like(own)], dim=2)
    return torch.where((index < count.unsqueeze(1)).unsqueeze(2), objects, -1)


def uniform(seed: Tensor, key: int) -> Tensor:
    """Return one number in [0, 1) for every seed, as unlike those of other keys as those of other seeds."""
    return _hash(seed, key).to(torch.float64) / 2**32


def randint(seed: Tensor, key: int, least: int, most: int) -> Tensor:
    """Return a whole number from low to high, both included, for every seed."""
    return least + ((_hash(seed, key) * (most - least + 1)) >> 32)


def _hash(seed: Tensor, key: int) -> Tensor:
    """Return 32 well-mixed bits of a seed below 2^53, as int64."""
    return _mix(_mix(seed & _LOW) ^ (_mix(((seed >> 32) + 0x9E3779B9 * (key + 1)) & _LOW)))


def _mix(bits: Tensor) -> Tensor:
    """Scramble 32 bits: every bit of the result depends on every bit given."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = ((bits ^ (bits >> shift)) * factor) & _LOW
    return bits ^ (bits >> 16)
