"""Transition attention maps: attention as a Markov chain, weighed by the integrated gradient of its last step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vitreous.errors import ModelError
from vitreous.methods.along.path import Feedback, push_rows
from vitreous.methods.readout import attention_site, head_mean
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Reduce, Trace

__all__ = ["TAM"]


@register(
    "tam",
    family="path",
    papers=("yuan2021explaining",),
    aliases=("t_attn",),
    cost=(20, 20),
    cost_note="20 F + 20 B of the last block",
    presets={
        "tis": {"start": 0},
        "inflow": {"start": 0, "twice": True},
        "interpretdl": {"value": "prob"},
    },
    models="transformers",
)
@dataclass(frozen=True)
class TAM(Feedback):
    """Attention as the steps of a chain from the class token, weighed by its integrated gradient.

    ``s = mean_h A[CLS]`` of the last block, ``s <- s + s mean_h A_l`` down to block ``start``;
    ``W = mean_h (mean_t dA(t x))+ [CLS]`` of the last block, with ``steps`` points t from 0 to 1, both included;
    ``map = s * W``. Where patches are averaged, the mean over their rows of that product. A pooling by attention is
    the last attention: s starts with its own row, W is its gradient. Without ``start`` the chain leaves the first third
    of the blocks out: it goes down to block 4 of 12, as released. ``steps=1`` is the gradient at the image itself.
    Cost: ``steps`` forwards, and as many backwards that end in the last block.

    Inside windows, which the paper leaves open, attention is that between all patches, zero outside the windows. All
    rows of the last grid are read; where patches were merged, each gets an equal part of s, and of W. The map lies on
    the grid of block ``start``.

    The path begins at zero in normalised space, and no difference of attention enters the product. The released scripts
    of deletion and insertion, and those of TIS (preset ``tis``), go down to block 0; the code of InFlow (``inflow``)
    also takes the last block twice (``twice``); InterpretDL (``interpretdl``) differentiates the probability, whatever
    value was asked for (``value``).
    """

    start: int | None = None
    steps: int = 20
    value: str | None = None
    twice: bool = False

    def first(self, view: View) -> int:
        return view.depth // 3

    def asks(self, view: View) -> tuple[Pass, ...]:
        if self.twice and view.pooling.attends:
            raise ModelError(f"tam: twice=true repeats the last block; {view.name} reads it by attention pooling")
        return super().asks(view)

    def matrices(self, view: View, layers: tuple[int, ...]) -> Keep:
        return Keep(attention_site(view), head_mean, layers)

    def pooled(self) -> tuple[Reduce, bool]:
        return head_mean, False

    def gathered(self, trace: Trace, rows: Tensor, matrices: Sequence[tuple[int, Tensor]]) -> Tensor:
        if trace.view.pooling.attends:
            return super().gathered(trace, rows, matrices)
        last, matrix = matrices[0]
        rows = push_rows(rows, matrix, trace.windows(last))
        return super().gathered(trace, rows, matrices if self.twice else matrices[1:])
