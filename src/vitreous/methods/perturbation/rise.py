"""RISE: the mean of random masks, weighted by what the model says behind each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.perturbation.copies import scores_of_copies
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import VALUES, Session
from vitreous.passes.random import Draws
from vitreous.words import at_least, check_choice

__all__ = ["RISE", "enlarging", "masked"]


@register(
    "rise",
    family="perturbation",
    papers=("petsiuk2018rise",),
    cost=(6000, 0),
    cost_note="masks forwards",
    presets={
        "paper": {"masks": 6000, "cells": 8, "keep": 0.1, "score": "prob"},
        "keras": {"masks": 2000, "cells": 8, "keep": 0.5, "score": "prob"},
        "tis": {"masks": 4000, "cells": 8, "keep": 0.1, "score": "logit"},
    },
)
@dataclass(frozen=True)
class RISE(Method):
    """The mean of random masks, weighted by the score of the image behind each of them.

    ``map = sum_i s(x * M_i) M_i / (N keep)`` with N ``masks``: grids of ``cells`` a side whose cells are one with
    probability ``keep``, enlarged to ``cells + 1`` cells (bilinear, half-pixel centres, mirrored at the border), and
    cut out at a random place within one cell. The mask multiplies the image in normalised space, where zero is the mean
    colour of the training set. The plain name has the settings of the authors' PyTorch notebook, which ``paper`` spells
    out; ``keras`` is their other notebook, ``tis`` the comparison in the TIS code, which weights by logits (``score``:
    ``prob``, ``logit`` or ``logprob``). One set of masks, drawn from the seed, serves all images and classes; masks are
    made when they are needed, and never all held. The map is not centred: only its order means something. On the tokens
    of a sub-network (``plus``) the masks scale the patches' tokens. Cost: one forward per mask.
    """

    masks: int = 6000
    cells: int = 8
    keep: float = 0.1
    score: str = "prob"
    grid = "pixel"

    def __post_init__(self) -> None:
        check_choice("score", self.score, VALUES)
        at_least("masks", self.masks, 1)
        at_least("cells", self.cells, 1)
        if not 0 < self.keep < 1:
            raise SpellingError(f"keep={self.keep} must be above 0 and below 1")

    @property
    def own_value(self) -> str:
        return self.score

    @property
    def cost(self) -> tuple[float, float]:
        return self.masks, 0

    def forwards(self, view: View) -> float:
        return self.masks

    def compute(self, session: Session) -> Answer:
        inputs = at_least_float32(session.inputs)
        size = (inputs.shape[2], inputs.shape[3]) if inputs.ndim == 4 else session.view.grid(inputs)
        draw = self._drawing(session.seed, size, inputs)

        def make(images: Tensor, copies: Tensor) -> Tensor:
            first, last = int(copies[0]), int(copies[-1])
            return masked(session.view, inputs[images], draw(first, last + 1)[copies - first])

        key = ("rise", self.masks, self.cells, self.keep)
        scores = scores_of_copies(session, self.masks, make, self.score, key).to(inputs)

        total = torch.zeros(len(inputs), *size, dtype=inputs.dtype, device=inputs.device)
        for start in range(0, self.masks, session.batch):
            stop = min(self.masks, start + session.batch)
            total += torch.einsum("bn,nhw->bhw", scores[:, start:stop], draw(start, stop))
        return Answer(total / (self.masks * self.keep), {})

    def _drawing(self, seed: int, size: tuple[int, int], like: Tensor) -> Callable[[int, int], Tensor]:
        """Return what makes masks ``start .. stop - 1``, ``[k, h, w]``."""
        draws = Draws.of(seed, "rise", like.device)
        sides = [(side, math.ceil(side / self.cells)) for side in size]
        lines = [enlarging(self.cells, (self.cells + 1) * cell).to(like) for _, cell in sides]

        def draw(start: int, stop: int) -> Tensor:
            own = draws.at(torch.arange(start, stop, device=like.device))
            grids = (own.uniform(self.cells, self.cells) < self.keep).to(like)
            ways = []
            for axis, ((side, cell), line) in enumerate(zip(sides, lines, strict=True)):
                offset = own.named(f"shift {axis}").below(cell, 1)
                ways.append(line[offset + torch.arange(side, device=like.device)])
            return ways[0] @ grids @ ways[1].mT

        return draw


def enlarging(cells: int, size: int) -> Tensor:
    """Return how much of each of ``cells`` values is in each of ``size`` interpolated ones, ``[size, cells]``.

    Place o lies at ``x = (o + 1/2) cells / size - 1/2`` between values floor(x) and floor(x) + 1; what is beyond the
    first or last centre is mirrored there, ``-x`` for x. Elsewhere this is torch's bilinear interpolation without
    aligned corners, which repeats the first and last value instead.
    """
    places = ((torch.arange(size, dtype=torch.float64) + 0.5) * cells / size - 0.5).abs()
    places = ((cells - 1) - ((cells - 1) - places).abs()).clamp(min=0)  # one cell has no neighbour to be mirrored
    left = places.floor()
    right = (left + 1).clamp(max=cells - 1)
    share = (places - left).unsqueeze(1)
    return (1 - share) * F.one_hot(left.long(), cells) + share * F.one_hot(right.long(), cells)


def masked(view: View, inputs: Tensor, masks: Tensor) -> Tensor:
    """Return images ``[k, 3, H, W]`` times masks ``[k, H, W]``, or the patches of tokens times masks of their grid."""
    if inputs.ndim == 4:
        return inputs * masks.unsqueeze(1)
    return inputs * F.pad(masks.flatten(1), (view.prefix, 0), value=1.0).unsqueeze(2)
