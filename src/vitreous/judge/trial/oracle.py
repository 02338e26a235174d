"""The oracle: what the model really uses in a scene, measured by taking one thing away at a time.

The scene is rendered again without each part, object and marker. What the explained class loses by that is the thing's
importance, spread evenly over the pixels where it is seen, so that a thing's pixels sum to its loss. Ground has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.data import Truth
from vitreous.errors import ModelError, VitreousError
from vitreous.models import View
from vitreous.words import check_choice
from vitreous.world.batch import MOST_OBJECTS, Batch, draw
from vitreous.world.creatures import NAMES, PARTS
from vitreous.world.known import truths
from vitreous.world.render import OWNERS, Rendered, render
from vitreous.world.sets import betray, seeds

__all__ = ["THINGS", "TINY", "Known", "known", "without"]

THINGS = (*PARTS, *(f"object {place}" for place in range(MOST_OBJECTS)), "marker")
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
    truths: Sequence[Truth]
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
            truths=[self.truths[place] for place in places],
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
    view: View,
    scenes: int,
    start: int = 0,
    value: str = "logit",
    shortcut: bool = False,
    tick: Callable[[int], None] | None = None,
) -> Known:
    """Measure some scenes of the test split; those in which nothing matters are left out and counted."""
    check_choice("value", value, tuple(TINY))
    if list(view.labels or ()) != list(NAMES):
        raise ModelError(f"the trial needs a model of the world's {len(NAMES)} classes; {view.name} has others")
    size = view.preprocess.size
    if size[0] != size[1]:
        raise ModelError(f"scenes are square; {view.name} sees {size[0]} x {size[1]} pixels")
    drawn = draw(seeds("test", start, scenes), view.device)
    drawn = betray(drawn) if shortcut else drawn
    shown = render(drawn, size[0])
    inputs, rows = _normalised(view, shown), torch.arange(len(drawn), device=view.device)
    clean = _read(view, drawn, tick, value)
    explained = clean.argmax(dim=1)
    changed, owner, thing = without(drawn)
    lost = _read(view, changed, tick, value)[torch.arange(len(owner), device=view.device), explained[owner]]
    drops = clean.new_zeros(len(drawn), len(THINGS))
    drops[owner, thing] = clean[rows, explained][owner] - lost
    forwards = len(drawn) + len(owner)
    every = Known(inputs, shown.owner, drawn.label[:, 0].tolist(), truths(drawn, shown), drops, 0, forwards)
    every = replace(every, drops=torch.where(every.areas > 0, drops, 0))
    matters = (every.drops.amax(dim=1) >= TINY[value]).nonzero().flatten()
    if len(matters) < 2:
        raise VitreousError(f"in {scenes - len(matters)} of {scenes} scenes nothing matters to {view.name}: give more")
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


def _read(view: View, scenes: Batch, tick: Callable[[int], None] | None, value: str) -> Tensor:
    """Return the logits or probabilities of scenes, ``[B, classes]``."""
    read = []
    for at in range(0, len(scenes), _AT_ONCE):
        shown = render(scenes[at : at + _AT_ONCE], view.preprocess.size[0])
        with torch.no_grad():
            read.append(view.logits(_normalised(view, shown)).float())
        if tick is not None:
            tick(len(shown))
    logits = torch.cat(read)
    return logits if value == "logit" else logits.softmax(dim=1)


def _normalised(view: View, shown: Rendered) -> Tensor:
    images = shown.images
    mean, std = (images.new_tensor(each).view(1, -1, 1, 1) for each in (view.preprocess.mean, view.preprocess.std))
    return view.cast((images - mean) / std)
