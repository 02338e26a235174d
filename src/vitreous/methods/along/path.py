"""What the methods along a path share: the points, the gradient averaged over them, and the rows that are read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.methods.base import Answer, Method, resolve_layer
from vitreous.methods.readout import at_least_float32, attention_site, downwards, push, read_row, start_keeps, start_row
from vitreous.models import View
from vitreous.models.windows import Windows
from vitreous.passes import VALUES, Keep, Pass, Reduce, Session, Trace
from vitreous.words import at_least, check_choice

__all__ = ["SMALL", "Feedback", "points", "push_rows"]

SMALL = 1e-30
"""What a sum that is zero is divided by, so that nothing divided by nothing is nothing."""


class Feedback(Method):
    """``W * R`` at the rows that the head reads: what reaches them, weighed by what the class asks of them.

    ``R`` gathers along one matrix per block, ``r <- r + r M_l`` from the last block down to ``start``, as many rows at
    once as the head reads: one of a class token, all of them where tokens are averaged, and then the mean over these
    rows of the product. ``W = mean_h (mean_t dA(t x))+`` is the gradient of the last attention of the model (the
    pooling's own, where it pools by attention) on the way to the image. The image itself is the last point of the way,
    so that its pass is shared with other methods; all of one session who take as many steps share the way.

    Inside windows both are as if the matrices between all patches were there: ``R`` has a row for each patch of the
    last grid, which passes each block window by window. Where patches were merged, each gets an equal part of what
    their sum got, of ``R`` when it comes there and of the columns of ``W``, so that both lie on the grid of ``start``.
    """

    start: int | None
    steps: int
    value: str | None

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        if self.value is not None:
            check_choice("value", self.value, VALUES)

    @abstractmethod
    def first(self, view: View) -> int:
        """The first block, where ``start`` names none."""

    @abstractmethod
    def matrices(self, view: View, layers: tuple[int, ...]) -> Keep:
        """The matrices of these blocks."""

    @abstractmethod
    def pooled(self) -> tuple[Reduce, bool]:
        """What stands for the matrix of a pooling by attention, and whether it needs a gradient."""

    @property
    def own_value(self) -> str | None:
        return self.value

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (
            Pass((self._matrices(view), *start_keeps(view, *self.pooled()), last_gradient(view)), value=self.value),
        )

    def compute(self, session: Session) -> Answer:
        view = session.view
        trace = session.trace(self.only_pass(view))
        matrices = downwards(trace, self._matrices(view))
        weights = integrated(session, self.steps, self.value)
        windows = trace.windows(view.depth - 1)
        if windows is not None:
            row = self._in_windows(trace, matrices, weights, windows)
            return Answer(trace.tokens_to_grid(row, matrices[-1][0]), {})
        reached = self.gathered(trace, self._begin(trace, matrices[0][1]), matrices)
        product = reached * F.pad(weights, (reached.shape[2] - weights.shape[2], 0))  # a pooling may see patches only
        row = product[:, 0] if view.pooling.attends else view.pooling.read(product, dim=1)
        return Answer(trace.tokens_to_grid(row), {})

    def gathered(self, trace: Trace, rows: Tensor, matrices: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Return the rows ``[B, R, N]`` of ``R``, of which these are the beginning, through blocks from the last."""
        for layer, matrix in matrices:
            rows = unmerged_rows(trace, rows, layer)
            rows = rows + push_rows(rows, matrix, trace.windows(layer))
        return rows

    def _in_windows(
        self, trace: Trace, matrices: Sequence[tuple[int, Tensor]], weights: Tensor, windows: Windows
    ) -> Tensor:
        """Return the mean over rows of ``W * R``, ``[B, N]``.

        As many rows go together as a window has places: they take as much memory as the matrices of the first block.
        """
        (last, like), first = matrices[0], matrices[-1][0]
        read = read_row(trace, like, last)
        same = torch.eye(read.shape[1], dtype=like.dtype, device=like.device)
        some = windows.patches.shape[1]
        parts = []
        for start in range(0, len(same), some):
            rows = same[start : start + some].expand(len(like), -1, -1)
            asked = push_rows(rows, weights, windows)
            for layer in reversed(range(first, last)):
                asked = unmerged_rows(trace, asked, layer)
            product = self.gathered(trace, rows, matrices) * asked
            parts.append(push(read[:, start : start + some], product))
        return torch.stack(parts).sum(dim=0)

    def _matrices(self, view: View) -> Keep:
        first = self.first(view) if self.start is None else resolve_layer(view, self.start)
        return self.matrices(view, tuple(range(first, view.depth)))

    def _begin(self, trace: Trace, like: Tensor) -> Tensor:
        """The rows of the identity that are read, or the one row of a pooling by attention."""
        if trace.view.pooling.attends:
            return start_row(trace, like, *self.pooled()).unsqueeze(1)
        same = torch.eye(like.shape[1], dtype=like.dtype, device=like.device)
        return same[rows_read(trace.view)].expand(len(like), -1, -1)


def push_rows(rows: Tensor, matrix: Tensor, windows: Windows | None) -> Tensor:
    """``r M`` for rows ``[B, R, N]`` and matrices ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    if windows is None:
        return rows @ matrix
    places = windows.cut(rows.flatten(0, 1))
    places = places.view(*rows.shape[:2], *places.shape[1:])
    moved = (places.transpose(1, 2) @ matrix).transpose(1, 2)
    return windows.paste(moved.flatten(0, 1)).view_as(rows)


def unmerged_rows(trace: Trace, rows: Tensor, layer: int) -> Tensor:
    """Bring rows ``[B, R, N]`` over what comes out of a block to what entered it."""
    if trace.grids[layer] == trace.grids[min(layer + 1, len(trace.grids) - 1)]:
        return rows
    return trace.unmerged(rows.flatten(0, 1), layer).view(*rows.shape[:2], -1)


def rows_read(view: View) -> slice:
    """The rows from the first one to the last that the head reads."""
    stops = [rows.stop for rows in view.pooling.rows]
    return slice(0, None if None in stops else max(stops))


def read_gradient(view: View, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """The rows of ``dA`` that the head reads: ``[B, H, R, N]``, without the rest of it in memory.

    Inside windows those are all: ``[B, W, H, t, t]``.
    """
    assert gradient is not None
    if gradient.ndim == 5:
        return gradient
    rows = slice(None) if view.pooling.attends else rows_read(view)
    return at_least_float32(gradient[:, :, rows]).clone()


def last_gradient(view: View) -> Keep:
    """What is averaged along the way: the gradient of the last attention of the model."""
    if view.pooling.attends:
        return Keep("pool", read_gradient, grad=True)
    return Keep(attention_site(view), read_gradient, (view.depth - 1,), grad=True)


def integrated(session: Session, steps: int, value: str | None) -> Tensor:
    """Return ``W = mean_h (mean_t dA(t x))+`` at the rows that are read, ``[B, R, N]``; run once in a session.

    Inside windows it is the whole matrix of the last block, ``[B, W, t, t]``.
    ``t = 0, 1 / (steps - 1) .. 1``; one step is the image itself. The backward ends in the last block.
    """
    key = (integrated, steps, value)
    if key not in session.memo:
        session.memo[key] = _integrated(session, steps, value)
    weights: Tensor = session.memo[key]
    return weights


def _integrated(session: Session, steps: int, value: str | None) -> Tensor:
    keep = last_gradient(session.view)
    (total,) = session.trace(Pass((keep,), value=value))[keep]
    aimed = session if value is None else session.of_value(value)
    for some, count in points(aimed, [step / (steps - 1) for step in range(steps - 1)]):
        (gradient,) = aimed.fork(some, repeat=count).trace(Pass((keep,)))[keep]
        total = total + gradient.reshape(-1, count, *gradient.shape[1:]).sum(dim=1)
    return (total / steps).clamp(min=0).mean(dim=-3)


def points(session: Session, way: Sequence[float]) -> Iterator[tuple[Tensor, int]]:
    """Yield ``t x`` for as many times t as go together, and how many these are; points of an image are neighbours."""
    inputs = session.inputs
    first = 0
    while first < len(way):
        some = way[first : first + max(1, session.batch // len(inputs))]
        scale = torch.tensor(some, dtype=inputs.dtype, device=inputs.device).view(-1, *[1] * (inputs.ndim - 1))
        yield (scale * inputs.unsqueeze(1)).flatten(0, 1), len(some)
        first += len(some)
