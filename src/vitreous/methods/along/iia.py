"""Iterated integrated attributions: a path of images, and on each of its points a path of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods.along.path import points
from vitreous.methods.base import Answer, Method
from vitreous.methods.readout import attention_site, positive, push_mixed, start_keeps, start_row
from vitreous.methods.registry import register
from vitreous.passes import Keep, Pass, Session
from vitreous.words import at_least

__all__ = ["IIA"]


@dataclass(frozen=True)
class Scaled:
    """Attention weights times a number."""

    by: float

    def __call__(self, attention: Tensor) -> Tensor:
        return attention * self.by


@register("iia", family="path", papers=("barkan2023visual",), cost=(36, 36), models="transformers")
@dataclass(frozen=True)
class IIA(Method):
    """Rollout of attention times gradient, averaged over a path of images and one of attention.

    For t and u in ``0, 1 / steps .. 1``: the image ``t x`` with u times its own attention in the last block, as a
    constant. ``S_l = mean_h (A_l * dA_l)+`` is averaged over these ``(steps + 1)^2`` runs, where the last block counts
    with its scaled attention; ``r <- r (S_l + I) / rowsum`` from the last block to the first. The path of attention is
    that of the last block also where attention pools; the pooling's own S, averaged in the same way, starts the row.
    Inside windows the row passes each block window by window, and merged patches share equally what their sum got.
    Cost: as many forwards and backwards as runs; sums are kept, never all runs.

    As released, with t and u in float32; the paper iterates over more layers, and multiplies gradients by the
    differences along the path.
    """

    steps: int = 5

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)

    @property
    def cost(self) -> tuple[float, float]:
        runs = (self.steps + 1) ** 2
        return runs, runs

    def compute(self, session: Session) -> Answer:
        view = session.view
        way = torch.linspace(0, 1, self.steps + 1, dtype=torch.float32).tolist()
        matrices = Keep(attention_site(view), positive, tuple(range(view.depth)), grad=True)
        keeps = (matrices, *start_keeps(view, positive, True))
        sums: list[Tensor] = []
        for some, count in points(session, way):
            fork = session.fork(some, repeat=count)
            for time in way:
                trace = fork.trace(Pass(keeps, changes=((view.depth - 1, Scaled(time)),)))
                found = trace[matrices]
                found = [start_row(trace, found[0], positive, True), *found]
                found = [each.reshape(-1, count, *each.shape[1:]).sum(dim=1) for each in found]
                sums = [total.add_(each) for total, each in zip(sums, found, strict=True)] if sums else found
        row, *means = (total / len(way) ** 2 for total in sums)
        for layer, matrix in reversed(list(enumerate(means))):
            row = push_mixed(trace.unmerged(row, layer), matrix, windows=trace.windows(layer))
        return Answer(trace.tokens_to_grid(row), {})
