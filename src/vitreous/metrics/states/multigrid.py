"""Holes in pictures filled in smoothly: every missing pixel becomes the weighted mean of its neighbours.

The equations of ``road`` for many pictures at once, by conjugate gradients under one multigrid cycle. A coarser level
has cells of 2 x 2. A cell whose share ``t`` of missing pixels is not zero takes part: it is tied to its neighbours with
the same weights as pixels are, times ``(t t')^(1/4)``, and held by what holds its missing pixels to known ones. So
cells that are partly known stay in the game, which is what makes the cycle work on ragged holes. One sweep of Jacobi's
iteration before and one after each correction; the stencil itself takes two thirds of what is rough.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.metrics.states.stencil import applied, finer, left, prolonged, rougher, spread, swept

__all__ = ["filled"]

_ENOUGH = 4e-3  # of the range of the picture: a correction that is smaller everywhere is the last; the next is a third
_LEAST, _MOST = 5, 40  # iterations before the corrections are looked at, for which a GPU has to wait, and at most
_COARSEST = 2  # rows or columns of a picture that is not halved again
_SWEEPS = 3  # on the coarsest level
_HOLD, _TIE = 0.7, 0.25
_TINY = 1e-30


def filled(pictures: Tensor, missing: Tensor, iterations: int = _MOST) -> Tensor:
    """Return ``pictures`` ``[m, C, H, W]`` with the pixels ``missing`` ``[m, H, W]`` filled in from the others.

    What a missing pixel holds is added to what it is filled with: noise, or zero.
    """
    gone = missing[:, None].to(pictures.dtype)
    there = 1 - gone
    middle = (pictures * there).sum(dim=(2, 3), keepdim=True) / there.sum(dim=(2, 3), keepdim=True).clamp(min=1)
    known = (pictures - middle) * there  # about zero, where rounding does the least harm
    span = (known.amax(dim=(1, 2, 3), keepdim=True) - known.amin(dim=(1, 2, 3), keepdim=True)).clamp(min=_TINY)
    levels = _levels(gone)
    whole = _pushed(known, there)
    guess, residual = whole * gone, -levels[0].apply(whole)
    direction, energy = torch.zeros_like(guess), torch.ones_like(guess[..., :1, :1])
    active: Tensor | None = None
    for step in range(iterations):
        correction = _cycle(levels, residual)
        new = _dot(residual, correction)
        direction = torch.addcmul(correction, new / energy, direction)
        pushed = levels[0].apply(direction)
        length = new / _dot(direction, pushed).clamp(min=_TINY)
        if active is not None:  # what is done stays as it is, whoever stands beside it
            length = torch.where(active, length, torch.zeros_like(length))
        guess = torch.addcmul(guess, length, direction)
        residual = torch.addcmul(residual, length, pushed, value=-1)
        energy = new.clamp(min=_TINY)
        if step + 1 >= _LEAST:
            going = correction.abs().amax(dim=(2, 3), keepdim=True) > _ENOUGH * span
            active = going if active is None else active & going
            if not active.any():
                break
    return torch.addcmul(pictures, gone, guess + middle)


class _Level(NamedTuple):
    """One size of the pictures, ``[m, 1, h, w]`` each: what ties a cell, what holds it, and one over its diagonal."""

    tie: Tensor | None
    """``None`` on the pixels themselves, where values are zero wherever nothing is missing."""
    diagonal: Tensor
    inverse: Tensor
    on: Tensor

    def apply(self, values: Tensor) -> Tensor:
        return applied(values, self.tie, self.on, self.diagonal)

    def sweep(self, values: Tensor, residual: Tensor) -> Tensor:
        return swept(values, self.tie, self.inverse, residual)


def _levels(gone: Tensor) -> list[_Level]:
    """Return the levels from the pixels to the coarsest."""
    share, hold = gone, gone * (spread(torch.ones_like(gone[:1])) - spread(gone))
    levels = [_level(None, gone * spread(gone) + hold, gone)]
    while min(share.shape[-2:]) > _COARSEST:
        share, hold = _quartered(share), _quartered(hold) * (4 * _HOLD)
        tie = share**_TIE
        levels.append(_level(tie, tie * spread(tie) + hold, (share > 0).to(gone)))
    return levels


def _level(tie: Tensor | None, diagonal: Tensor, on: Tensor) -> _Level:
    return _Level(tie, diagonal, on / diagonal.clamp(min=1e-6), on)


def _cycle(levels: list[_Level], residual: Tensor) -> Tensor:
    """Return one correction: sweep, go to the coarser level with what is left, come back, sweep."""
    level, *coarser = levels
    found = level.inverse * residual
    if not coarser:
        for _ in range(_SWEEPS):
            found = level.sweep(found, residual)
        return found
    rest = left(found, level.tie, level.on)  # the sweep has met the residual; its neighbours' sweeps are left
    below = _cycle(coarser, rougher(rest, coarser[0].on))
    return level.sweep(finer(below, level.on, found), residual)


def _quartered(values: Tensor) -> Tensor:
    return F.avg_pool2d(_even(values), 2)


def _even(values: Tensor) -> Tensor:
    high, wide = values.shape[-2:]
    return F.pad(values, (0, wide % 2, 0, high % 2)) if high % 2 or wide % 2 else values


def _pushed(known: Tensor, there: Tensor) -> Tensor:
    """Return a first guess: averages of what is known, halving the picture until all is known, then back up."""
    if there.shape[-1] == 1 and there.shape[-2] == 1:
        return known / there.clamp(min=1e-12)
    total, weight = _quartered(known), _quartered(there)
    seen = (weight > 0).to(known.dtype)
    coarse = _pushed(total / weight.clamp(min=1e-12) * seen, seen)
    return torch.where(there > 0, known, prolonged(coarse, known.shape[-2:]))


def _dot(one: Tensor, other: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(one.flatten(2), other.flatten(2))
    return products[..., None, None]
