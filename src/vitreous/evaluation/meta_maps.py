"""Maps of known worth: the oracle, the oracle made worse in known ways, the centre, random maps; and a foil.

The oracle says what the model really uses in a scene: the scene is rendered again without each part, object and
marker. What the explained class loses by that is the thing's importance, spread evenly over the pixels where it is
seen, so that a thing's pixels sum to its loss. Ground has none. The foil is the oracle *misplaced*: moved by half the
side and wrapped round. It has the very values of the oracle, so its spread, sparseness and sharpness, and none of its
truth.

All that is drawn belongs to the scene's content. Noise and random maps live on the patch grid, as the control method
``random`` does, and are enlarged to the pixels: noise on single pixels would test something else, for pixels removed
here and there destroy an image faster than any patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from vitreous.world.render import OWNERS, render
from vitreous.world.sampling import MAX_OBJECTS, Batch, draw
from vitreous.world.species import NAMES, PARTS

ORACLE, CENTRE, MISPLACED = "oracle", "centre", "misplaced"
STRENGTHS: Mapping[str, tuple[float, float]] = {
    "noise": (0.5, 1.5),
    "blur": (0.02, 0.05),
    "shift": (0.02, 0.05),
    "swapped": (0.4, 0.6),
}
"""How much, mild and strong. Noise: in deviations of the map. Blur and shift: of the picture's side. Swapped: the share
of their worth that the most important thing and another one exchange."""
DEGRADED = tuple(f"{kind} {strength}" for kind in STRENGTHS for strength in ("mild", "strong"))
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
MIXES = tuple(f"mix {share:g}" for share in SHARES)
"""Ranks of the oracle and of a random map, mixed; the share is that of the random one. Ranks are counted from that of
zero, and of the random map's middle, so that a mix has a sign as the oracle has."""
RANDOM = ("random 1", "random 2", "random 3")


def graded_maps(scenes: MeasuredScenes, grid: tuple[int, int]) -> dict[str, Tensor]:
    """Return every map but the centre, which is a method of its own: ``[n, S, S]`` by name, on the CPU."""
    names = (ORACLE, *DEGRADED, MISPLACED, *MIXES, *RANDOM)
    return {name: graded_map(name, scenes, scenes.inputs, grid).cpu() for name in names}


def graded_map(name: str, scenes: MeasuredScenes, inputs: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return one map of each scene.

    ``inputs`` are the scenes, or noisy copies of them: noise and random maps are drawn anew from what is seen.
    """
    oracle, side = scenes.map(), scenes.owner.shape[-1]
    kind, _, degree = name.partition(" ")
    if name == ORACLE:
        return oracle
    if name == MISPLACED:
        return oracle.roll((side // 2, side // 2), dims=(1, 2))
    if kind == "random":
        return _enlarged(PRNGKey.of_images(0, f"trial {name}", inputs).uniform(*grid), side)
    if kind == "mix":
        random = _enlarged(PRNGKey.of_images(0, "trial mix", inputs).uniform(*grid), side)
        share = SHARES[MIXES.index(name)]
        return (1 - share) * (_ranks(oracle) - _rank_of_zero(oracle)) + share * (_ranks(random) - 0.5)
    strength = STRENGTHS[kind][("mild", "strong").index(degree)]
    if kind == "noise":
        noise = _enlarged(PRNGKey.of_images(0, "trial noise", inputs).normal(*grid), side)
        return oracle + strength * oracle.flatten(1).std(dim=1).view(-1, 1, 1) * noise
    if kind == "blur":
        return _blurred(oracle, strength * side)
    key = PRNGKey.of_images(0, f"trial {kind}", scenes.inputs)
    if kind == "shift":
        return _shifted(oracle, round(strength * side), key)
    return scenes.map(_exchanged(scenes, strength, key))


class MapRecall:
    """A map of the ladder as an explainer: it knows scenes again in noisy copies, and gives maps on the patch grid."""

    def __init__(self, name: str, scenes: MeasuredScenes, grid: tuple[int, int]) -> None:
        self.name, self.scenes, self.grid = name, scenes, grid
        self.keys = F.adaptive_avg_pool2d(scenes.inputs.float(), grid).flatten(1)

    def __call__(self, model: object, inputs: Tensor, classes: Tensor) -> Tensor:
        seen = F.adaptive_avg_pool2d(inputs.float(), self.grid).flatten(1)
        nearest = torch.cdist(seen, self.keys.to(seen)).argmin(dim=1)
        maps = graded_map(self.name, self.scenes.rows(nearest), inputs, self.grid)
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


def _shifted(maps: Tensor, by: int, key: PRNGKey) -> Tensor:
    """Move every map along both sides, in one of four random directions; what comes in is zero."""
    starts = 2 * by * (1 - key.below(2, 2))  # in the padded map: a positive shift reads from its border on
    height, width = maps.shape[1:]
    padded = F.pad(maps, (by, by, by, by))
    return torch.stack(
        [map_[y : y + height, x : x + width] for map_, (y, x) in zip(padded, starts.tolist(), strict=True)]
    )


def _exchanged(scenes: MeasuredScenes, share: float, key: PRNGKey) -> Tensor:
    """Let the most important thing and another seen part of the creature exchange a share of their worth."""
    parts = torch.arange(len(THINGS), device=scenes.drops.device) < len(PARTS)
    worth, batch = scenes.drops.clone(), torch.arange(len(scenes), device=scenes.drops.device)
    first = worth.argmax(dim=1)
    order = torch.where((scenes.areas > 0) & parts, key.uniform(len(THINGS)).to(worth), -1)
    order[batch, first] = -2
    other = order.argmax(dim=1)
    one, two = worth[batch, first], worth[batch, other]
    worth[batch, first] = (1 - share) * one + share * two
    worth[batch, other] = (1 - share) * two + share * one
    return worth


def _ranks(maps: Tensor) -> Tensor:
    """Return the share of the pixels that lie below each pixel, those with the same value counted half."""
    flat = maps.flatten(1).contiguous()
    ordered = flat.sort(dim=1).values
    below = torch.searchsorted(ordered, flat, right=False)
    not_above = torch.searchsorted(ordered, flat, right=True)
    return ((below + not_above).to(torch.float32) / (2 * flat.shape[1])).view(maps.shape)


def _rank_of_zero(maps: Tensor) -> Tensor:
    """Return the rank that zero has in each map, ``[n, 1, 1]``."""
    flat = maps.flatten(1)
    return ((flat < 0).float().mean(dim=1) + (flat == 0).float().mean(dim=1) / 2).view(-1, 1, 1)


def _standard(maps: Tensor) -> Tensor:
    flat = maps.flatten(1).double()
    centred = flat - flat.mean(dim=1, keepdim=True)
    return centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1e-300)


THINGS = (*PARTS, *(f"object {number}" for number in range(MAX_OBJECTS)), "marker")
"""What can be taken away from a scene."""
TINY = {"logit": 0.1, "prob": 0.01}
"""Where nothing matters more than this, there is no truth to find."""
_BATCH = 256


@dataclass(frozen=True, eq=False)
class MeasuredScenes:
    """Scenes, what the model sees in them, and what everything in them is worth to the class that it sees.

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

    def rows(self, index: Tensor) -> MeasuredScenes:
        """Return some of the scenes, in this order."""
        index, numbers = index.to(self.owner.device), index.tolist()
        return replace(
            self,
            inputs=self.inputs[index],
            owner=self.owner[index],
            labels=[self.labels[number] for number in numbers],
            annotations=[self.annotations[number] for number in numbers],
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


def measure_scenes(
    model: VisionModel, scenes: int, start: int = 0, output: str = "logit", shortcut: bool = False
) -> MeasuredScenes:
    """Measure some scenes of the test split; those in which nothing matters are left out and counted."""
    check_choice("output", output, tuple(TINY))
    if list(model.class_names or ()) != list(NAMES):
        raise ModelError(f"meta-evaluation needs a model of the world's {len(NAMES)} classes; {model.name} has others")
    size = model.preprocess.size
    if size[0] != size[1]:
        raise ModelError(f"scenes are square; {model.name} sees {size[0]} x {size[1]} pixels")
    batch = draw(split_seeds("test", start, scenes), model.device)
    batch = add_marker(batch) if shortcut else batch
    rendered, rows = render(batch, size[0]), torch.arange(len(batch), device=model.device)
    clean = _outputs(model, batch, output)
    explained = clean.argmax(dim=1)
    changed, scene, thing = without(batch)
    lost = _outputs(model, changed, output)[torch.arange(len(scene), device=model.device), explained[scene]]
    drops = clean.new_zeros(len(batch), len(THINGS))
    drops[scene, thing] = clean[rows, explained][scene] - lost
    measured = MeasuredScenes(
        inputs=model.cast(model.preprocess.normalize(rendered.images)),
        owner=rendered.owner,
        labels=batch.label[:, 0].tolist(),
        annotations=annotate(batch, rendered),
        drops=drops,
        left_out=0,
        forwards=len(batch) + len(scene),
    )
    measured = replace(measured, drops=torch.where(measured.areas > 0, drops, 0))
    matters = (measured.drops.amax(dim=1) >= TINY[output]).nonzero().flatten()
    if len(matters) < 2:
        raise VitreousError(f"in {scenes - len(matters)} of {scenes} scenes nothing matters to {model.name}: give more")
    return replace(measured.rows(matters), left_out=scenes - len(matters))


def without(scenes: Batch) -> tuple[Batch, Tensor, Tensor]:
    """Return every scene without each thing in it, and for each of these which scene and which of ``THINGS`` it was."""
    columns: list[tuple[str, tuple[int, ...]]] = [("parts", (0, part)) for part in range(len(PARTS))]
    columns += [("objects", (index,)) for index in range(MAX_OBJECTS)] + [("marker", (0,))]
    changed, rows, things = [], [], []
    for thing, (field, column) in enumerate(columns):
        index = (slice(None), *column)
        present = (getattr(scenes, field)[index].view(len(scenes), -1)[:, 0] >= 0).nonzero().flatten()
        chosen = scenes[present]
        values = getattr(chosen, field).clone()
        values[index] = -1
        changed.append(chosen.replace(**{field: values}))
        rows.append(present)
        things.append(torch.full_like(present, thing))
    return Batch.cat(changed), torch.cat(rows), torch.cat(things)


def _outputs(model: VisionModel, scenes: Batch, output: str) -> Tensor:
    """Return the logits or probabilities of scenes, ``[B, classes]``."""
    batches = []
    for start in range(0, len(scenes), _BATCH):
        rendered = render(scenes[start : start + _BATCH], model.preprocess.size[0])
        with torch.no_grad():
            batches.append(model.logits(model.cast(model.preprocess.normalize(rendered.images))).float())
    logits = torch.cat(batches)
    return logits if output == "logit" else logits.softmax(dim=1)
