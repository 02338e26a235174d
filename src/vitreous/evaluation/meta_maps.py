"""The ladder of maps: the oracle, the oracle made worse in known ways, the centre, random maps; and a foil.

The foil is the oracle *misplaced*: moved by half the side and wrapped round. It has the very values of the oracle, so
its spread, sparseness and sharpness, and none of its truth.

All that is drawn belongs to the scene's content. Noise and random maps live on the patch grid, as the yardstick
``random`` does, and are enlarged to the pixels: noise on single pixels would test something else, for pixels removed
here and there destroy an image faster than any patch.

The oracle: what the model really uses in a scene, measured by taking one thing away at a time.

The scene is rendered again without each part, object and marker. What the explained class loses by that is the thing's
importance, spread evenly over the pixels where it is seen, so that a thing's pixels sum to its loss. Ground has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.datasets import Annotation
from vitreous.errors import ModelError, VitreousError
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing.prng import PRNGKey
from vitreous.world.dataset import add_marker, annotate, split_seeds
from vitreous.world.render import OWNERS, Rendered, render
from vitreous.world.sampling import MAX_OBJECTS, Batch, draw
from vitreous.world.species import NAMES, PARTS

__all__ = [
    "CENTRE",
    "DEGRADED",
    "Known",
    "MISPLACED",
    "MIXES",
    "ORACLE",
    "RANDOM",
    "Recalled",
    "STRENGTHS",
    "THINGS",
    "TINY",
    "closeness",
    "known",
    "ladder",
    "made",
    "without",
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
        return _enlarged(PRNGKey.of_images(seed, f"trial {name}", inputs).uniform(*grid), side)
    if kind == "mix":
        chance = _enlarged(PRNGKey.of_images(seed, "trial mix", inputs).uniform(*grid), side)
        share = SHARES[MIXES.index(name)]
        return (1 - share) * (_ranks(oracle) - _nothing(oracle)) + share * (_ranks(chance) - 0.5)
    strength = STRENGTHS[kind][("mild", "strong").index(how)]
    if kind == "noise":
        noise = _enlarged(PRNGKey.of_images(seed, "trial noise", inputs).normal(*grid), side)
        return oracle + strength * oracle.flatten(1).std(dim=1).view(-1, 1, 1) * noise
    if kind == "blur":
        return _blurred(oracle, strength * side)
    draws = PRNGKey.of_images(seed, f"trial {kind}", scenes.inputs)
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
    return {name: float((_standard(map_) * truth).mean()) for name, map_ in maps.items()}


def _enlarged(values: Tensor, side: int) -> Tensor:
    return F.interpolate(values[:, None], size=(side, side), mode="bilinear", align_corners=False)[:, 0]


def _blurred(maps: Tensor, deviation: float) -> Tensor:
    """A Gaussian up to three deviations, with nothing beyond the border."""
    reach = max(1, round(3 * deviation))
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=maps.device) / deviation) ** 2)
    line = (line / line.sum()).to(maps)
    down = F.conv2d(maps[:, None], line.view(1, 1, -1, 1), padding=(reach, 0))
    return F.conv2d(down, line.view(1, 1, 1, -1), padding=(0, reach))[:, 0]


def _shifted(maps: Tensor, by: int, draws: PRNGKey) -> Tensor:
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


def _exchanged(scenes: Known, share: float, draws: PRNGKey) -> Tensor:
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


THINGS = (*PARTS, *(f"object {place}" for place in range(MAX_OBJECTS)), "marker")
"""What can be taken away from a scene."""
TINY = {"logit": 0.1, "prob": 0.01}
"""Where nothing matters more than this, there is no truth to find."""
_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Known:
    """Scenes that the model has judged, and what everything in them is worth to the class that it sees.

    ``inputs`` ``[n, 3, S, S]`` are normalised, ``owner`` ``[n, S, S]`` says whose pixel it is, ``drops``
    ``[n, 18]`` are the losses without each of ``THINGS``, zero where it is not seen. In ``left_out`` scenes nothing
    mattered.
    """

    inputs: Tensor
    owner: Tensor
    labels: list[int]
    annotations: Sequence[Annotation]
    drops: Tensor
    left_out: int
    forwards: int

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, index: Tensor) -> Known:
        """Return some of the scenes, in this order."""
        index, places = index.to(self.owner.device), index.tolist()
        return replace(
            self,
            inputs=self.inputs[index],
            owner=self.owner[index],
            labels=[self.labels[place] for place in places],
            annotations=[self.annotations[place] for place in places],
            drops=self.drops[index],
        )

    @property
    def areas(self) -> Tensor:
        """How many pixels of each thing are seen, ``[n, 18]``."""
        first, flat = OWNERS[THINGS[0]], self.owner.flatten(1).long()
        counts = flat.new_zeros(len(flat), len(OWNERS)).scatter_add_(1, flat, torch.ones_like(flat))
        return counts[:, first : first + len(THINGS)]

    def map(self, drops: Tensor | None = None) -> Tensor:
        """Return maps ``[n, S, S]`` that spread what things are worth over the pixels where they are seen."""
        worth, areas = self.drops if drops is None else drops, self.areas
        first = OWNERS[THINGS[0]]
        density = worth.new_zeros(len(worth), len(OWNERS))
        density[:, first : first + len(THINGS)] = torch.where(areas > 0, worth / areas.clamp(min=1), 0)
        return density.gather(1, self.owner.flatten(1).long()).view(self.owner.shape)


def known(
    model: VisionModel,
    scenes: int,
    start: int = 0,
    output: str = "logit",
    shortcut: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Known:
    """Measure some scenes of the test split; those in which nothing matters are left out and counted."""
    check_choice("output", output, tuple(TINY))
    if list(model.class_names or ()) != list(NAMES):
        raise ModelError(f"the trial needs a model of the world's {len(NAMES)} classes; {model.name} has others")
    size = model.preprocess.size
    if size[0] != size[1]:
        raise ModelError(f"scenes are square; {model.name} sees {size[0]} x {size[1]} pixels")
    drawn = draw(split_seeds("test", start, scenes), model.device)
    drawn = add_marker(drawn) if shortcut else drawn
    shown = render(drawn, size[0])
    inputs, rows = _normalised(model, shown), torch.arange(len(drawn), device=model.device)
    clean = _read(model, drawn, on_progress, output)
    explained = clean.argmax(dim=1)
    changed, owner, thing = without(drawn)
    lost = _read(model, changed, on_progress, output)[torch.arange(len(owner), device=model.device), explained[owner]]
    drops = clean.new_zeros(len(drawn), len(THINGS))
    drops[owner, thing] = clean[rows, explained][owner] - lost
    forwards = len(drawn) + len(owner)
    every = Known(inputs, shown.owner, drawn.label[:, 0].tolist(), annotate(drawn, shown), drops, 0, forwards)
    every = replace(every, drops=torch.where(every.areas > 0, drops, 0))
    matters = (every.drops.amax(dim=1) >= TINY[output]).nonzero().flatten()
    if len(matters) < 2:
        raise VitreousError(f"in {scenes - len(matters)} of {scenes} scenes nothing matters to {model.name}: give more")
    return replace(every.rows(matters), left_out=scenes - len(matters))


def without(scenes: Batch) -> tuple[Batch, Tensor, Tensor]:
    """Return every scene without each thing in it, and for each of these which scene and which of ``THINGS`` it was."""
    changed, owners, things = [], [], []
    for thing, name in enumerate(THINGS):
        place = thing if name in PARTS else thing - len(PARTS)
        column = scenes.parts[:, 0, place] if name in PARTS else None
        column = scenes.objects[:, place, 0] if name.startswith("object") else column
        there = ((scenes.marker[:, 0] if column is None else column) >= 0).nonzero().flatten()
        some = scenes[there]
        parts, objects, marker = some.parts.clone(), some.objects.clone(), some.marker.clone()
        if name in PARTS:
            parts[:, 0, place] = -1
        elif name == "marker":
            marker[:, 0] = -1
        else:
            objects[:, place] = -1
        changed.append(some.replace(parts=parts, objects=objects, marker=marker))
        owners.append(there)
        things.append(torch.full_like(there, thing))
    return Batch.cat(changed), torch.cat(owners), torch.cat(things)


def _read(model: VisionModel, scenes: Batch, on_progress: Callable[[int], None] | None, output: str) -> Tensor:
    """Return the logits or probabilities of scenes, ``[B, classes]``."""
    read = []
    for at in range(0, len(scenes), _AT_ONCE):
        shown = render(scenes[at : at + _AT_ONCE], model.preprocess.size[0])
        with torch.no_grad():
            read.append(model.logits(_normalised(model, shown)).float())
        if on_progress is not None:
            on_progress(len(shown))
    logits = torch.cat(read)
    return logits if output == "logit" else logits.softmax(dim=1)


def _normalised(model: VisionModel, shown: Rendered) -> Tensor:
    return model.cast(model.preprocess.normalize(shown.images))
