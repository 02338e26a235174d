"""How the tokens of a block are mixed, measured by the vectors that move and not by attention alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.errors import SpellingError
from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.readout import head_mean, push, start_keeps, start_row
from vitreous.methods.registry import register
from vitreous.methods.shares import Shares
from vitreous.models import View
from vitreous.passes import Block, Keep, Pass, Trace

__all__ = ["ALTI", "AttentionInputNorm", "AttentionInputNormRollout", "GlobEnc"]

_SMALL = 1e-12


def brought(shares: Shares, rows: slice) -> Tensor:
    """``||sum_h A_h[i, j] f_h[j]||_2``."""
    return shares.lengths(rows, residual=False, through=False)


def brought_share(shares: Shares, rows: slice) -> Tensor:
    """The same lengths, rows summing to one as those of attention do (or zero where nothing is brought)."""
    return _rows_to_one(brought(shares, rows))


def brought_or_kept(shares: Shares, rows: slice) -> Tensor:
    """The same, with the residual stream as a share of its own token."""
    return shares.lengths(rows, residual=True, through=False)


def through_block(shares: Shares, rows: slice) -> Tensor:
    """``||T'[i, j]||_2``, after the second norm."""
    return shares.lengths(rows, residual=True, through=True)


def agreed(shares: Shares, rows: slice) -> Tensor:
    """How much nearer a share brings its token to the output, rows summing to one (or zero where none does)."""
    return _rows_to_one(shares.agreement(rows))


def _rows_to_one(matrix: Tensor) -> Tensor:
    total = matrix.sum(dim=-1, keepdim=True)
    return torch.where(total < _SMALL, torch.zeros_like(matrix), matrix / total)


Measure = Callable[[Shares, slice], Tensor]


@dataclass(frozen=True)
class Matrix:
    """All rows of a block's matrix: ``[B, N, N]``."""

    measure: Measure

    def __call__(self, view: View, block: Block, gradient: Tensor | None) -> Tensor:
        return self.measure(Shares(view, block), slice(None))


@dataclass(frozen=True)
class Row:
    """The row of a block's matrix that the model reads: ``[B, N]``; no other row is computed."""

    measure: Measure

    def __call__(self, view: View, block: Block, gradient: Tensor | None) -> Tensor:
        shares = Shares(view, block)
        return torch.stack([self.measure(shares, rows).mean(dim=1) for rows in view.pooling.rows]).sum(dim=0)


class Mixing(Method):
    """A method with one matrix per block; its layer terms are the row of it that the model reads."""

    layered = True

    @property
    @abstractmethod
    def measure(self) -> Measure:
        """The entry ``[i, j]`` of the matrix: what token j brings to token i."""

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep("block", Row(self.measure), tuple(layers)),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        rows = trace[self.ask_layers(trace.view, layers).keeps[0]]
        return [trace.tokens_to_grid(row, layer) for layer, row in zip(layers, rows, strict=True)]


@register(
    "attin",
    family="decomposition",
    papers=("kobayashi2020attention", "kobayashi2021incorporating", "mehri2024skipplus"),
    class_specific=False,
    cost=(1, 0),
    models="ViT",
)
@dataclass(frozen=True)
class AttentionInputNorm(Mixing):
    """The length of what attention brings of each token, in one block.

    ``||sum_h A_h[i, j] P_h v_h[j]||_2`` at the row that is read, P_h the output projection of head h, value biases
    included. ``residual`` adds the stream itself to each token's share of its own row, as the later paper does (in a
    model with norms in front no LayerNorm follows). From H x H Gram matrices, never H x N x N x D. One forward.
    """

    layer: int = -1
    residual: bool = False

    @property
    def measure(self) -> Measure:
        return brought_or_kept if self.residual else brought

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (self.ask_layers(view, (resolve_layer(view, self.layer),)),)

    def read(self, trace: Trace) -> Tensor:
        return self.read_layers(trace, (resolve_layer(trace.view, self.layer),))[0]


class MixingRollout(Mixing):
    """``r <- residual r + (1 - residual) r M_l`` from the last block down to ``start``."""

    start: int
    residual: float
    kept_scale: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.residual < 1:
            raise SpellingError(f"residual={self.residual} must be at least 0 and below 1")

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (Pass((self._matrices(view), *start_keeps(view, head_mean, False))),)

    def read(self, trace: Trace) -> Tensor:
        matrices = trace[self._matrices(trace.view)]
        row = start_row(trace, matrices[0], head_mean, False)
        for matrix in reversed(matrices):
            row = self.residual * row + (1 - self.residual) * push(row, matrix)
            if not self.kept_scale:
                row = row / row.sum(dim=1, keepdim=True).clamp(min=_SMALL)
        return trace.tokens_to_grid(row)

    def _matrices(self, view: View) -> Keep:
        return Keep("block", Matrix(self.measure), tuple(range(resolve_layer(view, self.start), view.depth)))


@register(
    "attin_rollout",
    family="decomposition",
    papers=("kobayashi2020attention", "abnar2020quantifying", "mehri2024skipplus"),
    class_specific=False,
    cost=(1, 0),
    models="ViT",
)
@dataclass(frozen=True)
class AttentionInputNormRollout(MixingRollout):
    """The lengths of what attention brings, multiplied through the blocks: AttIN composed with rollout.

    ``r <- residual r + (1 - residual) r T_l`` from the last block down to ``start``, T_l the lengths of ``attin`` with
    rows divided by their sum: the rollout of Mehri et al. (Eq. 2, half of each token passing by), with AttIN in the
    place of attention. No code for this composition is published. Layer term (for ``plus``): the row of T_l. One
    forward.
    """

    start: int = 0
    residual: float = 0.5

    @property
    def measure(self) -> Measure:
        return brought_share


@register(
    "globenc",
    family="decomposition",
    papers=("modarressi2022globenc", "mehri2024skipplus"),
    class_specific=False,
    cost=(1, 0),
    models="ViT",
)
@dataclass(frozen=True)
class GlobEnc(MixingRollout):
    """The lengths of all shares of a block, multiplied through the blocks.

    Shares ``T[i, j] = sum_h A_h[i, j] P_h v_h[j] + (i = j) x[i]`` go on through the second norm, whose deviation is
    that of the true stream; the MLP behind it is taken as the identity: ``T' = T + g LN(T)``.
    ``N_l[i, j] = ||T'[i, j]||_2`` by H x H Gram matrices, ``r <- r N_l`` from the last block to ``start``. The original
    is for norms behind the branches; this is the form that SkipPLUS uses. The product has no scale of its own and would
    leave float32 in deep models: the row is divided by its sum after every block, a constant factor per image.
    ``residual`` mixes in the identity. Layer term (for ``plus``): the row of ``N_l``, raw. One forward.
    """

    start: int = 0
    residual: float = 0.0
    kept_scale = False

    @property
    def measure(self) -> Measure:
        return through_block


@register(
    "alti",
    family="decomposition",
    papers=("ferrando2022measuring", "mehri2024skipplus"),
    class_specific=False,
    cost=(1, 0),
    cost_note="1 F + N x N x D per block",
    slow=True,
    models="ViT",
)
@dataclass(frozen=True)
class ALTI(MixingRollout):
    """How much nearer each share brings its token to the block's output, multiplied through the blocks.

    ``c[i, j] = (||o[i]||_1 - ||o[i] - T'[i, j]||_1)+`` with the shares ``T'`` of ``globenc`` and o the true output of
    the block, rows divided by their sum; a row without any positive entry stays zero (released code divides 0 by 0
    there). Then ``r <- r c_l``. Where the residual is much longer than what attention brings, most entries vanish, and
    with them sometimes the map, which is said aloud. L1 lengths have no Gram matrix, so shares are written out for some
    destinations at a time. Layer term (for ``plus``): the row of c_l.
    """

    start: int = 0
    residual: float = 0.0

    @property
    def measure(self) -> Measure:
        return agreed
