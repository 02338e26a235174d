"""Occlusion: how much the score falls when a window of the image is hidden.

RISE: the mean of random masks, weighted by what the model says behind each of them.

HSIC: how much the score depends on whether a part of the image is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, SpecError
from vitreous.methods.base import Attribution, Method
from vitreous.methods.masking import asks_of_sets, cell_of, filling, scores_of_copies, scores_of_sets
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_at_least, check_choice
from vitreous.tracing import VALUES, Context, Pass, upcast
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "HSIC",
    "Occlusion",
    "RISE",
    "dependence",
    "designs",
    "enlarging",
    "masked",
    "spans",
]


@register_method(
    "occlusion",
    family="perturbation",
    papers=("zeiler2014visualizing",),
    cost=(197, 0),
    cost_note="1 F + one per window",
    presets={"pair": {"window": 15, "stride": 1, "fill": "zero", "overlap": "sum"}},
)
@dataclass(frozen=True)
class Occlusion(Method):
    """How much the score falls when a patch, or a window of the image, is hidden.

    ``s(x) - s(x without the window)``. As it stands the windows are the patches, one each, and the map has one value
    per patch. With a ``window`` (pixels; 0: a patch) or ``stride`` (0: the window) windows slide over the image, the
    last of a row cut off at the border, and every pixel gets the mean over the windows that cover it, as in Captum;
    ``overlap=sum`` adds them up, and ``pair`` are the settings of PAIR's library: 15 pixels, one by one, summed. Hidden
    pixels are ``zero`` in normalised space (the mean colour of the training set), the ``mean`` colour of the image or a
    ``blur`` of it (``fill``). With ``drop`` the patch's token leaves the sequence instead, picked after the position
    embedding: nothing is painted, and no position seen that has no content. On the tokens of a sub-network (``plus``)
    hidden patches are zero or mean tokens. The value is the one that is asked for. Cost: one forward, and one per
    window: 196 patches of 224 pixels, 44,100 windows for ``pair``.
    """

    window: int = 0
    stride: int = 0
    fill: str = "zero"
    drop: bool = False
    overlap: str = "mean"

    def __post_init__(self) -> None:
        check_choice("fill", self.fill, ("zero", "mean", "blur"))
        check_choice("overlap", self.overlap, ("mean", "sum"))
        check_at_least("window", self.window, 0)
        check_at_least("stride", self.stride, 0)
        if self.stride > self.window > 0:
            raise SpecError(f"stride={self.stride} is larger than window={self.window}: pixels would be left out")
        if self.drop and not self._patches:
            raise SpecError(f"drop=true leaves out patches; window={self.window}, stride={self.stride} are pixels")

    @property
    def _patches(self) -> bool:
        return self.window == self.stride == 0

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "token" if self._patches else "pixel"

    @property
    def cost(self) -> tuple[float, float]:
        return self._count((224, 224), (14, 14)), 0

    def num_forwards(self, model: VisionModel) -> float:
        return self._count(model.preprocess.size, model.grid())

    def _count(self, size: tuple[int, int], grid: tuple[int, int]) -> float:
        if self._patches:
            return 1 + math.prod(grid)
        return 1 + math.prod(len(spans(side, *self._step(side, cells))) for side, cells in zip(size, grid, strict=True))

    def _step(self, side: int, cells: int) -> tuple[int, int]:
        """Return window and stride along a side."""
        window = self.window or side // cells
        stride = self.stride or window
        if window > side:
            raise ModelError(f"occlusion: window={window} is larger than the image, {side} pixels")
        if stride > window:
            raise ModelError(f"occlusion: stride={stride} is larger than a patch of {window} pixels")
        return window, stride

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return asks_of_sets("occlusion", model, self.drop) or (Pass(),)

    def compute(self, context: Context) -> Attribution:
        whole = context.target.score(context.logits)
        grid, inputs = context.model.grid(context.inputs), context.inputs
        if self._patches:
            kept = ~torch.eye(math.prod(grid), dtype=torch.bool)
            scores = scores_of_sets(context, "occlusion", kept, self.fill, self.drop, None, self)
            return Attribution((whole[:, None] - scores).reshape(-1, *grid), {})
        if inputs.ndim != 4:
            raise ModelError("occlusion: window and stride are pixels, and the inputs of a sub-network are tokens")
        sides = zip(inputs.shape[2:], grid, strict=True)
        down, across = (spans(side, *self._step(side, cells)).to(inputs.device) for side, cells in sides)
        filled = filling(context, "occlusion", self.fill)

        def make(images: Tensor, copies: Tensor) -> Tensor:
            rows, columns = copies // len(across), copies % len(across)
            hidden = down[rows][:, None, :, None] & across[columns][:, None, None, :]
            return torch.where(hidden, filled[images], inputs[images])

        scores = scores_of_copies(context, len(down) * len(across), make, None, self)
        falls = (whole[:, None] - scores).reshape(-1, len(down), len(across))
        total = down.T.to(falls) @ falls @ across.to(falls)
        if self.overlap == "sum":
            return Attribution(total, {})
        return Attribution(total / (down.sum(dim=0)[:, None] * across.sum(dim=0)), {})


def spans(size: int, window: int, stride: int) -> Tensor:
    """Return which places ``[windows, size]`` of a side each window covers; the last may end beyond the border."""
    starts = torch.arange(1 + math.ceil((size - window) / stride)).unsqueeze(1) * stride
    places = torch.arange(size)
    return (places >= starts) & (places < starts + window)


@register_method(
    "rise",
    family="perturbation",
    papers=("petsiuk2018rise",),
    cost=(6000, 0),
    cost_note="masks forwards",
    presets={
        "paper": {"masks": 6000, "cells": 8, "keep": 0.1, "output": "prob"},
        "keras": {"masks": 2000, "cells": 8, "keep": 0.5, "output": "prob"},
        "tis": {"masks": 4000, "cells": 8, "keep": 0.1, "output": "logit"},
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
    output: str = "prob"
    grid = "pixel"

    def __post_init__(self) -> None:
        check_choice("output", self.output, VALUES)
        check_at_least("masks", self.masks, 1)
        check_at_least("cells", self.cells, 1)
        if not 0 < self.keep < 1:
            raise SpecError(f"keep={self.keep} must be above 0 and below 1")

    @property
    def fixed_output(self) -> str:
        return self.output

    @property
    def cost(self) -> tuple[float, float]:
        return self.masks, 0

    def num_forwards(self, model: VisionModel) -> float:
        return self.masks

    def compute(self, context: Context) -> Attribution:
        inputs = upcast(context.inputs)
        size = (inputs.shape[2], inputs.shape[3]) if inputs.ndim == 4 else context.model.grid(inputs)
        draw = self._drawing(context.seed, size, inputs)

        def make(images: Tensor, copies: Tensor) -> Tensor:
            first, last = int(copies[0]), int(copies[-1])
            return masked(context.model, inputs[images], draw(first, last + 1)[copies - first])

        key = ("rise", self.masks, self.cells, self.keep)
        scores = scores_of_copies(context, self.masks, make, self.output, key).to(inputs)

        total = torch.zeros(len(inputs), *size, dtype=inputs.dtype, device=inputs.device)
        for start in range(0, self.masks, context.batch):
            stop = min(self.masks, start + context.batch)
            total += torch.einsum("bn,nhw->bhw", scores[:, start:stop], draw(start, stop))
        return Attribution(total / (self.masks * self.keep), {})

    def _drawing(self, seed: int, size: tuple[int, int], like: Tensor) -> Callable[[int, int], Tensor]:
        """Return what makes masks ``start .. stop - 1``, ``[k, h, w]``."""
        draws = PRNGKey.of(seed, "rise", like.device)
        sides = [(side, math.ceil(side / self.cells)) for side in size]
        lines = [enlarging(self.cells, (self.cells + 1) * cell).to(like) for _, cell in sides]

        def draw(start: int, stop: int) -> Tensor:
            own = draws.at(torch.arange(start, stop, device=like.device))
            grids = (own.uniform(self.cells, self.cells) < self.keep).to(like)
            ways = []
            for axis, ((side, cell), line) in enumerate(zip(sides, lines, strict=True)):
                offset = own.fold_in(f"shift {axis}").below(cell, 1)
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


def masked(model: VisionModel, inputs: Tensor, masks: Tensor) -> Tensor:
    """Return images ``[k, 3, H, W]`` times masks ``[k, H, W]``, or the patches of tokens times masks of their grid."""
    if inputs.ndim == 4:
        return inputs * masks.unsqueeze(1)
    return inputs * F.pad(masks.flatten(1), (model.num_prefix_tokens, 0), value=1.0).unsqueeze(2)


_MOST_CELLS = 145  # torch has a Sobol sequence of 21,201 dimensions


@register_method(
    "hsic", family="perturbation", papers=("novello2022making",), cost=(500, 0), cost_note="masks forwards"
)
@dataclass(frozen=True)
class HSIC(Method):
    """How much the score depends on whether a cell of the image is shown: the Hilbert-Schmidt independence criterion.

    N ``masks`` of ``cells`` x ``cells`` zeros and ones multiply the image in normalised space (nearest up-sampling).
    ``map[j] = (2 / N) b_j' L b_j`` with b_j the centred column of cell j in the masks, ``L = exp(-(y - y')^2 / (2
    w^2))`` over the scores y, and w the median of y. This is ``(1 / N) sum (HKH * HLH)`` with the kernel ``3/2 - (a -
    b)^2`` of the masks, without N x N matrices per cell. Masks are a Sobol sequence without its first point, the
    origin, as in xplique, rounded half to even; they depend on nothing, so nothing is random. (The paper has Latin
    hypercubes.) Where the median is 0, w is the deviation of y. Zero for what the score does not depend on, above zero
    for the rest, whether it speaks for the class or against it. All pixels of a cell have its value; xplique enlarges
    by bicubic interpolation. The value is the one that is asked for. On the tokens of a sub-network (``plus``) the
    masks scale the patches' tokens. There is no ``drop``: a cell is no patch. Cost: one forward per mask.
    """

    masks: int = 500
    cells: int = 8
    grid = "pixel"

    def __post_init__(self) -> None:
        check_at_least("masks", self.masks, 2)
        check_at_least("cells", self.cells, 1)
        if self.cells > _MOST_CELLS:
            raise SpecError(f"cells={self.cells} must be at most {_MOST_CELLS}")

    @property
    def cost(self) -> tuple[float, float]:
        return self.masks, 0

    def num_forwards(self, model: VisionModel) -> float:
        return self.masks

    def compute(self, context: Context) -> Attribution:
        inputs = upcast(context.inputs)
        size = tuple(inputs.shape[2:]) if inputs.ndim == 4 else context.model.grid(inputs)
        if self.cells > min(size):
            what = "pixels" if inputs.ndim == 4 else "patches"
            raise ModelError(
                f"hsic: cells={self.cells} a side are more than the {size[0]} x {size[1]} {what} there are"
            )
        rows, columns = (cell_of(side, self.cells).to(inputs.device) for side in size)
        shown = designs(self.masks, self.cells).to(inputs)

        def make(images: Tensor, copies: Tensor) -> Tensor:
            return masked(context.model, inputs[images], shown[copies][:, rows][:, :, columns])

        scores = scores_of_copies(context, self.masks, make, None, ("hsic", self.masks, self.cells))
        found = [dependence(shown.flatten(1).double(), score.double()) for score in scores]
        cells = torch.stack(found).to(scores.dtype).reshape(-1, self.cells, self.cells)
        return Attribution(cells[:, rows][:, :, columns], {})


def designs(count: int, cells: int) -> Tensor:
    """Return masks ``[count, cells, cells]`` of zeros and ones: points 1 .. count of the Sobol sequence, rounded."""
    engine = torch.quasirandom.SobolEngine(cells * cells)  # type: ignore[no-untyped-call]
    points = engine.draw(count + 1, dtype=torch.float64)[1:]
    return points.round().reshape(count, cells, cells)


def dependence(shown: Tensor, scores: Tensor) -> Tensor:
    """Return the criterion ``[d]`` between each column of ``shown [N, d]`` and the scores ``[N]``."""
    ordered = scores.sort().values
    width = (ordered[(len(scores) - 1) // 2] + ordered[len(scores) // 2]) / 2
    width = torch.where(width == 0, scores.std(), width)
    width = torch.where(width == 0, 1, width)  # then all scores are the same, and L is one everywhere
    kernel = torch.exp(-((scores[:, None] - scores) ** 2) / (2 * width**2))
    centred = shown - shown.mean(dim=0)
    return 2 / len(scores) * ((kernel @ centred) * centred).sum(dim=0)
