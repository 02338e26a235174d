"""HSIC: how much the score depends on whether a part of the image is shown."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError, SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.perturbation.copies import scores_of_copies
from vitreous.methods.perturbation.rise import masked
from vitreous.methods.perturbation.sets import cell_of
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Session
from vitreous.words import at_least

__all__ = ["HSIC", "designs", "dependence"]

_MOST_CELLS = 145  # torch has a Sobol sequence of 21,201 dimensions


@register("hsic", family="perturbation", papers=("novello2022making",), cost=(500, 0), cost_note="masks forwards")
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
        at_least("masks", self.masks, 2)
        at_least("cells", self.cells, 1)
        if self.cells > _MOST_CELLS:
            raise SpellingError(f"cells={self.cells} must be at most {_MOST_CELLS}")

    @property
    def cost(self) -> tuple[float, float]:
        return self.masks, 0

    def forwards(self, view: View) -> float:
        return self.masks

    def compute(self, session: Session) -> Answer:
        inputs = at_least_float32(session.inputs)
        size = tuple(inputs.shape[2:]) if inputs.ndim == 4 else session.view.grid(inputs)
        if self.cells > min(size):
            what = "pixels" if inputs.ndim == 4 else "patches"
            raise ModelError(
                f"hsic: cells={self.cells} a side are more than the {size[0]} x {size[1]} {what} there are"
            )
        rows, columns = (cell_of(side, self.cells).to(inputs.device) for side in size)
        shown = designs(self.masks, self.cells).to(inputs)

        def make(images: Tensor, copies: Tensor) -> Tensor:
            return masked(session.view, inputs[images], shown[copies][:, rows][:, :, columns])

        scores = scores_of_copies(session, self.masks, make, None, ("hsic", self.masks, self.cells))
        found = [dependence(shown.flatten(1).double(), each.double()) for each in scores]
        cells = torch.stack(found).to(scores.dtype).reshape(-1, self.cells, self.cells)
        return Answer(cells[:, rows][:, :, columns], {})


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
