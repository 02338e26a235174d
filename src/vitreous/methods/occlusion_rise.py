"""Copies of the image with parts hidden: Occlusion slides a window, RISE and HSIC draw masks of cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, SpecError
from vitreous.methods import masking
from vitreous.methods.base import Attribution, Method
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import VALUES, Context, Record, upcast
from vitreous.tracing.prng import PRNGKey


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
    r"""How much the score falls when a patch, or a window of the image, is hidden.

    .. math:: M_p = \operatorname{mean}_{W \ni p} \bigl( s(x) - s(x \setminus W) \bigr)

    over the windows W that cover pixel p; without a window size, W are the patches, and the map has one value for each.

    Parameters
    ----------
    window : int, default 0
        Rows and columns of the window in pixels; 0 is a patch.
    stride : int, default 0
        How far it slides, in pixels; 0 is the window. The last of a row is cut off at the border.
    fill : {"zero", "mean", "blur"}, default "zero"
        What hidden pixels become: zero in normalised space (the mean colour of the training set), the mean colour of
        the image or a blur of it. On the tokens of a sub-network (``plus``) hidden patches are zero or mean tokens.
    drop : bool, default False
        Leave the patch's token out of the sequence instead, after the position embedding: nothing is painted, and no
        position seen that has no content.
    overlap : {"mean", "sum"}, default "mean"
        What a pixel gets of the windows that cover it: the mean, as in Captum, or the sum. ``@pair`` has the settings
        of PAIR's library: 15 pixels, one by one, summed.

    Notes
    -----
    The output is the one that is asked for. Cost: one forward, and one per window: 196 patches of 224 pixels, 44,100
    windows for ``@pair``.

    References
    ----------
    Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014.

    Examples
    --------
    >>> vt.explain(model, image, "occlusion(window=64)").map.shape
    torch.Size([128, 128])
    """

    window: int = number(0, "[0, inf)")
    stride: int = number(0, "[0, inf)")
    fill: str = choice("zero", "mean", "blur")
    drop: bool = False
    overlap: str = choice("mean", "sum")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride > self.window > 0:
            raise SpecError(f"stride={self.stride} is larger than window={self.window}: pixels would be left out")
        if self.drop and self.grid == "pixel":
            raise SpecError(f"drop=true leaves out patches; window={self.window}, stride={self.stride} are pixels")

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "token" if self.window == self.stride == 0 else "pixel"

    @property
    def cost(self) -> tuple[float, float]:
        return self._count((224, 224), (14, 14)), 0

    def num_forwards(self, model: VisionModel) -> float:
        return self._count(model.preprocess.size, model.grid())

    def _count(self, size: tuple[int, int], grid: tuple[int, int]) -> float:
        if self.grid == "token":
            return 1 + math.prod(grid)
        return 1 + math.prod(len(self._windows(side, cells)) for side, cells in zip(size, grid, strict=True))

    def _windows(self, side: int, cells: int) -> Tensor:
        window = self.window or side // cells
        stride = self.stride or window
        if window > side:
            raise ModelError(f"occlusion: window={window} is larger than the image, {side} pixels")
        if stride > window:
            raise ModelError(f"occlusion: stride={stride} is larger than a patch of {window} pixels")
        return window_masks(side, window, stride)

    def records(self, model: VisionModel) -> list[Record]:
        return masking.token_records(model, self.info.name, self.drop)

    def compute(self, context: Context) -> Attribution:
        score = context.target.score(context.logits)[:, None]
        grid, inputs = context.model.grid(context.inputs), context.inputs
        if self.grid == "token":
            visible = ~torch.eye(math.prod(grid), dtype=torch.bool)
            scores = masking.score_subsets(context, "occlusion", visible, self.fill, self.drop, key=self)
            return Attribution((score - scores).reshape(-1, *grid), {})
        if inputs.ndim != 4:
            raise ModelError("occlusion: window and stride are pixels, and the inputs of a sub-network are tokens")
        sides = zip(inputs.shape[2:], grid, strict=True)
        rows, columns = (self._windows(*side).to(inputs.device) for side in sides)
        filled = masking.fill_inputs(context, "occlusion", self.fill)

        def logits(images: Tensor, copies: Tensor) -> Tensor:
            hidden = rows[copies // len(columns)][:, :, None] & columns[copies % len(columns)][:, None, :]
            return masking.logits_of_inputs(
                context.model, torch.where(hidden.unsqueeze(1), filled[images], inputs[images])
            )

        scores = masking.score_copies(context, len(rows) * len(columns), logits, key=self)
        drops = (score - scores).reshape(-1, len(rows), len(columns))
        total = rows.T.to(drops) @ drops @ columns.to(drops)
        if self.overlap == "sum":
            return Attribution(total, {})
        return Attribution(total / (rows.sum(dim=0)[:, None] * columns.sum(dim=0)), {})


def window_masks(size: int, window: int, stride: int) -> Tensor:
    """Return which pixels ``[windows, size]`` of a side each window covers; the last may end beyond the border."""
    starts = torch.arange(1 + math.ceil((size - window) / stride)).unsqueeze(1) * stride
    pixels = torch.arange(size)
    return (pixels >= starts) & (pixels < starts + window)


@register_method(
    "rise",
    family="perturbation",
    papers=("petsiuk2018rise",),
    cost=("masks", 0),
    cost_note="masks forwards",
    presets={
        "paper": {"masks": 6000, "cells": 8, "keep": 0.1, "output": "prob"},
        "keras": {"masks": 2000, "cells": 8, "keep": 0.5, "output": "prob"},
        "tis": {"masks": 4000, "cells": 8, "keep": 0.1, "output": "logit"},
    },
)
@dataclass(frozen=True)
class RISE(Method):
    r"""The mean of random masks, weighted by the score of the image behind each of them.

    .. math:: M = \frac{1}{N p} \sum_{i=1}^{N} s(x \odot m_i)\, m_i

    with N masks :math:`m_i`: grids of cells that are one with probability p, enlarged to one cell more a side
    (bilinear, half-pixel centres, mirrored at the border), and cut out at a random offset within one cell.

    Parameters
    ----------
    masks : int, default 6000
        The number N of masks.
    cells : int, default 8
        Rows and columns of the grid.
    keep : float, default 0.1
        The probability p that a cell is shown.
    output : {"prob", "logit", "logprob"}, default "prob"
        What weighs the masks. The plain name has the settings of the authors' PyTorch notebook, which ``@paper`` spells
        out; ``@keras`` is their other notebook, ``@tis`` the comparison in the TIS code, which weights by logits.

    Notes
    -----
    The mask multiplies the image in normalised space, where zero is the mean colour of the training set. One set of
    masks, drawn from the seed, serves all images and classes; masks are made when they are needed, and never all held.
    The map is not centred: only its order means something. On the tokens of a sub-network (``plus``) the masks scale
    the patches' tokens. Cost: one forward per mask.

    References
    ----------
    Petsiuk et al., "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC 2018.

    Examples
    --------
    >>> vt.explain(model, image, "rise(masks=4)").map.shape
    torch.Size([128, 128])
    """

    masks: int = number(6000, "[1, inf)")
    cells: int = number(8, "[1, inf)")
    keep: float = number(0.1, "(0, 1)")
    output: str = choice("prob", *VALUES)
    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        inputs = upcast(context.inputs)
        size = masking.masked_size(context)
        draw = self._mask_source(context.seed, size, inputs)

        def logits(images: Tensor, copies: Tensor) -> Tensor:
            first = int(copies[0])
            masks = draw(range(first, int(copies[-1]) + 1))[copies - first]
            return masking.logits_of_inputs(context.model, masking.mask_inputs(context.model, inputs[images], masks))

        key = ("rise", self.masks, self.cells, self.keep)
        scores = masking.score_copies(context, self.masks, logits, self.output, key).to(inputs)
        total = torch.zeros(len(inputs), *size, dtype=inputs.dtype, device=inputs.device)
        for start in range(0, self.masks, context.batch):
            stop = min(self.masks, start + context.batch)
            total += torch.einsum("bn,nhw->bhw", scores[:, start:stop], draw(range(start, stop)))
        return Attribution(total / (self.masks * self.keep), {})

    def _mask_source(self, seed: int, size: tuple[int, int], like: Tensor) -> Callable[[range], Tensor]:
        """Return what makes the masks of some numbers, ``[k, h, w]``."""
        key = PRNGKey.of(seed, "rise", like.device)
        steps = [math.ceil(side / self.cells) for side in size]
        matrices = [mirrored_enlargement(self.cells, (self.cells + 1) * step).to(like) for step in steps]

        def draw(numbers: range) -> Tensor:
            keys = key.at(torch.arange(numbers.start, numbers.stop, device=like.device))
            grids = (keys.uniform(self.cells, self.cells) < self.keep).to(like)
            rows, columns = (
                matrix[keys.fold_in(f"shift {axis}").below(step, 1) + torch.arange(size[axis], device=like.device)]
                for axis, (step, matrix) in enumerate(zip(steps, matrices, strict=True))
            )
            return rows @ grids @ columns.mT

        return draw


def mirrored_enlargement(cells: int, size: int) -> Tensor:
    """Return how much of each of ``cells`` values is in each of ``size`` interpolated ones, ``[size, cells]``.

    Value o lies at ``x = (o + 1/2) cells / size - 1/2`` between values floor(x) and floor(x) + 1; what is beyond the
    first or last centre is mirrored there, ``-x`` for x. Elsewhere this is torch's bilinear interpolation without
    aligned corners, which repeats the first and last value instead.
    """
    x = ((torch.arange(size, dtype=torch.float64) + 0.5) * cells / size - 0.5).abs()
    x = ((cells - 1) - ((cells - 1) - x).abs()).clamp(min=0)  # one cell has no neighbour to be mirrored
    left = x.floor()
    right = (left + 1).clamp(max=cells - 1)
    weight = (x - left).unsqueeze(1)
    return (1 - weight) * F.one_hot(left.long(), cells) + weight * F.one_hot(right.long(), cells)


@register_method(
    "hsic", family="perturbation", papers=("novello2022making",), cost=("masks", 0), cost_note="masks forwards"
)
@dataclass(frozen=True)
class HSIC(Method):
    r"""How much the score depends on whether a cell of the image is shown: the Hilbert-Schmidt independence criterion.

    .. math:: M_j = \frac{2}{N} \bar b_j^\top L\, \bar b_j, \qquad L = \exp\left(-\frac{(y - y')^2}{2 w^2}\right)

    with :math:`\bar b_j` the centred column of cell j in N masks of zeros and ones, y the scores of the image behind
    them, and w their median. This is :math:`\frac{1}{N} \sum HKH \odot HLH` with the kernel :math:`3/2 - (a - b)^2` of
    the masks, without N x N matrices per cell.

    Parameters
    ----------
    masks : int, default 500
        The number N of masks.
    cells : int, default 8
        Rows and columns of a mask, at most 145: torch has a Sobol sequence of 21,201 dimensions.

    Notes
    -----
    The masks multiply the image in normalised space (nearest up-sampling). They are a Sobol sequence without its first
    point, the origin, as in xplique, rounded half to even; they depend on nothing, so nothing is random. (The paper has
    Latin hypercubes.) Where the median is 0, w is the deviation of y. The map is zero for what the score does not
    depend on, above zero for the rest, whether it speaks for the class or against it. All pixels of a cell have its
    value; xplique enlarges by bicubic interpolation. The output is the one that is asked for. On the tokens of a
    sub-network (``plus``) the masks scale the patches' tokens. There is no ``drop``: a cell is no patch. Cost: one
    forward per mask.

    References
    ----------
    Novello et al., "Making Sense of Dependence: Efficient Black-box Explanations Using Dependence Measure", NeurIPS
    2022.

    Examples
    --------
    >>> vt.explain(model, image, "hsic(masks=8, cells=4)").map.shape
    torch.Size([128, 128])
    """

    masks: int = number(500, "[2, inf)")
    cells: int = number(8, "[1, 145]")
    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        inputs = upcast(context.inputs)
        size = masking.masked_size(context)
        if self.cells > min(size):
            unit = "pixels" if inputs.ndim == 4 else "patches"
            raise ModelError(
                f"hsic: cells={self.cells} a side are more than the {size[0]} x {size[1]} {unit} there are"
            )
        rows, columns = (masking.side_cells(side, self.cells).to(inputs.device) for side in size)
        masks = sobol_masks(self.masks, self.cells).to(inputs)

        def logits(images: Tensor, copies: Tensor) -> Tensor:
            enlarged = masks[copies][:, rows][:, :, columns]
            return masking.logits_of_inputs(context.model, masking.mask_inputs(context.model, inputs[images], enlarged))

        scores = masking.score_copies(context, self.masks, logits, key=("hsic", self.masks, self.cells))
        cells = torch.stack([hsic(masks.flatten(1).double(), score.double()) for score in scores])
        return Attribution(cells.to(scores.dtype).reshape(-1, self.cells, self.cells)[:, rows][:, :, columns], {})


def sobol_masks(count: int, cells: int) -> Tensor:
    """Return masks ``[count, cells, cells]`` of zeros and ones: points 1 .. count of the Sobol sequence, rounded."""
    engine = torch.quasirandom.SobolEngine(cells * cells)  # type: ignore[no-untyped-call]
    points = engine.draw(count + 1, dtype=torch.float64)[1:]
    return points.round().reshape(count, cells, cells)


def hsic(masks: Tensor, scores: Tensor) -> Tensor:
    """Return the criterion ``[d]`` between each column of ``masks [N, d]`` and the scores ``[N]``."""
    ordered = scores.sort().values
    width = (ordered[(len(scores) - 1) // 2] + ordered[len(scores) // 2]) / 2
    width = torch.where(width == 0, scores.std(), width)
    width = torch.where(width == 0, 1, width)  # then all scores are the same, and L is one everywhere
    kernel = torch.exp(-((scores[:, None] - scores) ** 2) / (2 * width**2))
    centred = masks - masks.mean(dim=0)
    return 2 / len(scores) * ((kernel @ centred) * centred).sum(dim=0)
