"""What lies under and over everything: textures of the ground, and light."""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.world.batch import uniform
from vitreous.world.paint import directions

__all__ = ["ground", "light"]


def ground(values: Tensor, size: int) -> Tensor:
    """Two colours mixed by a texture: a slope, stripes, checks, dots or clouds, with a little cloud in each."""
    texture, fine, direction = values[:, 0], values[:, 7], values[:, 8]
    at = (torch.arange(size, device=values.device) + 0.5) / size
    cos, sin = (directions(values.device)[direction] * fine.unsqueeze(1)).unsqueeze(2).unbind(1)
    u = (at * sin).unsqueeze(2) + (at * cos).unsqueeze(1)
    v = (at * cos).unsqueeze(2) - (at * sin).unsqueeze(1)
    across, down = _wave(u), _wave(v)
    clouds = _clouds(values[:, 9], size, 4) * 0.65 + _clouds(values[:, 9] + 1, size, 15) * 0.35
    looks = (
        at.view(1, -1, 1).expand_as(u),
        ((across - 0.5) * 5 + 0.5).clamp(0, 1),
        (((across - 0.5) * (down - 0.5)) * 40 + 0.5).clamp(0, 1),
        ((across + down - 1.35) * 6).clamp(0, 1),
        clouds,
    )
    mix = clouds * 0.3
    for number, look in enumerate(looks):
        mix = mix + look * ((texture == number) * 0.7).view(-1, 1, 1)
    colours = values[:, 1:7].view(-1, 2, 3, 1, 1) / 255
    return colours[:, 0] + (colours[:, 1] - colours[:, 0]) * mix.unsqueeze(1)


def _wave(phase: Tensor) -> Tensor:
    """A triangle wave in [0, 1]."""
    return ((phase - phase.floor()) * 2 - 1).abs()


def _clouds(key: Tensor, size: int, cells: int) -> Tensor:
    """Random values on a lattice of cells, interpolated smoothly: ``[B, size, size]`` in [0, 1]."""
    corners = torch.arange((cells + 1) ** 2, device=key.device)
    lattice = uniform(key.unsqueeze(1) * 512 + corners, cells).float().view(-1, cells + 1, cells + 1)
    at = (torch.arange(size, device=key.device) + 0.5) / size * cells
    low = at.floor().long()
    weight = at - low
    weight = weight * weight * (3 - weight * 2)
    rows = lattice[:, low] + (lattice[:, low + 1] - lattice[:, low]) * weight.view(1, -1, 1)
    return rows[:, :, low] + (rows[:, :, low + 1] - rows[:, :, low]) * weight


def light(values: Tensor, size: int) -> Tensor:
    """What the values multiplies every pixel with: ``[B, 3, size, size]``."""
    strength, slope, _, warmth = (value.view(-1, 1, 1) / 1000 for value in values.unbind(1))
    cos, sin = directions(values.device)[values[:, 2]].view(-1, 2, 1).unbind(1)
    at = (torch.arange(size, device=values.device) + 0.5) / size * 2 - 1
    field = strength + ((at * sin).unsqueeze(2) + (at * cos).unsqueeze(1)) * (slope * 0.5)
    return torch.stack([field * (1 + warmth), field, field * (1 - warmth)], dim=1)
