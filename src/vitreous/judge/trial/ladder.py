"""The ladder of maps: the oracle, the oracle made worse in known ways, the centre, random maps; and a foil.

The foil is the oracle *misplaced*: moved by half the side and wrapped round. It has the very values of the oracle, so
its spread, sparseness and sharpness, and none of its truth.

All that is drawn belongs to the scene's content. Noise and random maps live on the patch grid, as the yardstick
``random`` does, and are enlarged to the pixels: noise on single pixels would test something else, for pixels removed
here and there destroy an image faster than any patch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.judge.trial.oracle import THINGS, Known
from vitreous.passes.random import Draws
from vitreous.world.creatures import PARTS

__all__ = [
    "CENTRE",
    "DEGRADED",
    "MIXES",
    "MISPLACED",
    "ORACLE",
    "RANDOM",
    "STRENGTHS",
    "Recalled",
    "closeness",
    "ladder",
    "made",
]

ORACLE, CENTRE, MISPLACED = "oracle", "centre", "misplaced"
STRENGTHS: Mapping[str, tuple[float, float]] = {
    "noise": (0.5, 1.5),
    "blur": (0.02, 0.05),
    "shift": (0.02, 0.05),
    "swapped": (0.4, 0.6),
}
"""How much, mild and strong. Noise: in deviations of the map. Blur and shift: of the picture's side. Swapped: the share
of their worth that the most important thing and another one exchange."""
DEGRADED = tuple(f"{kind} {how}" for kind in STRENGTHS for how in ("mild", "strong"))
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
MIXES = tuple(f"mix {share:g}" for share in SHARES)
"""Ranks of the oracle and of a random map, mixed; the share is that of the random one. Ranks are counted from that of
zero, and of the random map's middle, so that a mix has a sign as the oracle has."""
RANDOM = ("random 1", "random 2", "random 3")


def ladder(scenes: Known, grid: tuple[int, int], seed: int = 0) -> dict[str, Tensor]:
    """Return every map but the centre, which is the house's own method: ``[n, S, S]`` by name, on the CPU."""
    names = (ORACLE, *DEGRADED, MISPLACED, *MIXES, *RANDOM)
    return {name: made(name, scenes, scenes.inputs, grid, seed).cpu() for name in names}


def made(name: str, scenes: Known, inputs: Tensor, grid: tuple[int, int], seed: int = 0) -> Tensor:
    """Return one map of each scene.

    ``inputs`` are the scenes, or noisy copies of them: noise and random maps are drawn anew from what is seen.
    """
    oracle, side = scenes.map(), scenes.owner.shape[-1]
    kind, _, how = name.partition(" ")
    if name == ORACLE:
        return oracle
    if name == MISPLACED:
        return oracle.roll((side // 2, side // 2), dims=(1, 2))
    if kind == "random":
        return _enlarged(Draws.of_images(seed, f"trial {name}", inputs).uniform(*grid), side)
    if kind == "mix":
        chance = _enlarged(Draws.of_images(seed, "trial mix", inputs).uniform(*grid), side)
        share = SHARES[MIXES.index(name)]
        return (1 - share) * (_ranks(oracle) - _nothing(oracle)) + share * (_ranks(chance) - 0.5)
    strength = STRENGTHS[kind][("mild", "strong").index(how)]
    if kind == "noise":
        noise = _enlarged(Draws.of_images(seed, "trial noise", inputs).normal(*grid), side)
        return oracle + strength * oracle.flatten(1).std(dim=1).view(-1, 1, 1) * noise
    if kind == "blur":
        return _blurred(oracle, strength * side)
    draws = Draws.of_images(seed, f"trial {kind}", scenes.inputs)
    if kind == "shift":
        return _shifted(oracle, round(strength * side), draws)
    return scenes.map(_exchanged(scenes, strength, draws))


class Recalled:
    """A map of the ladder as an explainer: it knows scenes again in noisy copies, and gives maps on the patch grid."""

    def __init__(self, name: str, scenes: Known, grid: tuple[int, int], seed: int = 0) -> None:
        self.name, self.scenes, self.grid, self.seed = name, scenes, grid, seed
        self.keys = F.adaptive_avg_pool2d(scenes.inputs.float(), grid).flatten(1)

    def __call__(self, model: object, inputs: Tensor, classes: Tensor) -> Tensor:
        seen = F.adaptive_avg_pool2d(inputs.float(), self.grid).flatten(1)
        nearest = torch.cdist(seen, self.keys.to(seen)).argmin(dim=1)
        maps = made(self.name, self.scenes.rows(nearest), inputs, self.grid, self.seed)
        return F.adaptive_avg_pool2d(maps[:, None], self.grid)[:, 0]


def closeness(maps: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the mean correlation of each map with the oracle, over pixels: how much of the truth is left."""
    truth = _standard(maps[ORACLE])
    return {name: float((_standard(each) * truth).mean()) for name, each in maps.items()}


def _enlarged(values: Tensor, side: int) -> Tensor:
    return F.interpolate(values[:, None], size=(side, side), mode="bilinear", align_corners=False)[:, 0]


def _blurred(maps: Tensor, deviation: float) -> Tensor:
    """A Gaussian up to three deviations, with nothing beyond the border."""
    reach = max(1, round(3 * deviation))
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=maps.device) / deviation) ** 2)
    line = (line / line.sum()).to(maps)
    down = F.conv2d(maps[:, None], line.view(1, 1, -1, 1), padding=(reach, 0))
    return F.conv2d(down, line.view(1, 1, 1, -1), padding=(0, reach))[:, 0]


def _shifted(maps: Tensor, by: int, draws: Draws) -> Tensor:
    """Move every map along both sides, in one of four drawn directions; what comes in is zero."""
    signs = draws.below(2, 2) * 2 - 1
    rows = torch.arange(maps.shape[-1], device=maps.device)
    down, across = (rows - signs[:, axis : axis + 1] * by for axis in (0, 1))
    inside = (down >= 0) & (down < len(rows))
    beside = (across >= 0) & (across < len(rows))
    there = inside[:, :, None] & beside[:, None, :]
    limit = len(rows) - 1
    batch = torch.arange(len(maps), device=maps.device).view(-1, 1, 1)
    moved = maps[batch, down.clamp(0, limit)[:, :, None], across.clamp(0, limit)[:, None, :]]
    return torch.where(there, moved, 0)


def _exchanged(scenes: Known, share: float, draws: Draws) -> Tensor:
    """Let the most important thing and another seen part of the creature exchange a share of their worth."""
    parts = torch.arange(len(THINGS), device=scenes.drops.device) < len(PARTS)
    worth, batch = scenes.drops.clone(), torch.arange(len(scenes), device=scenes.drops.device)
    first = worth.argmax(dim=1)
    chance = draws.uniform(len(THINGS)).to(worth)
    chance = torch.where((scenes.areas > 0) & parts, chance, -1)
    chance[batch, first] = -2
    other = chance.argmax(dim=1)
    one, two = worth[batch, first], worth[batch, other]
    worth[batch, first] = (1 - share) * one + share * two
    worth[batch, other] = (1 - share) * two + share * one
    return worth


def _ranks(maps: Tensor) -> Tensor:
    """Return the share of the pixels that lie below each pixel, those with the same value counted half."""
    flat = maps.flatten(1).contiguous()
    ordered = flat.sort(dim=1).values
    low = torch.searchsorted(ordered, flat, right=False)
    high = torch.searchsorted(ordered, flat, right=True)
    return ((low + high).to(torch.float32) / (2 * flat.shape[1])).view(maps.shape)


def _nothing(maps: Tensor) -> Tensor:
    """Return the rank that zero has in each map, ``[n, 1, 1]``."""
    flat = maps.flatten(1)
    return ((flat < 0).float().mean(dim=1) + (flat == 0).float().mean(dim=1) / 2).view(-1, 1, 1)


def _standard(maps: Tensor) -> Tensor:
    flat = maps.flatten(1).double()
    centred = flat - flat.mean(dim=1, keepdim=True)
    return centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-300)
