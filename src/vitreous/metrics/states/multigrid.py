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

from vitreous.metrics.states.stencil import applied, convolved, left, spread, swept

__all__ = ["filled"]

_ENOUGH = 2e-3  # of the range of the picture: a correction that is smaller everywhere is the last; the next is a third
_LEAST, _MOST = 3, 40  # iterations before the corrections are looked at, and at most
_COARSEST = 2  # rows or columns of a picture that is not halved again
_SWEEPS = 3  # on the coarsest level
_HOLD, _TIE = 0.7, 0.25
_TINY = 1e-30


def filled(pictures: Tensor, missing: Tensor, iterations: int = _MOST) -> Tensor:
    """Return ``pictures`` ``[m, C, H, W]`` with the pixels ``missing`` ``[m, H, W]`` filled in from the others."""
    gone = missing[:, None].to(pictures.dtype)
    there = 1 - gone
    middle = (pictures * there).sum(dim=(2, 3), keepdim=True) / there.sum(dim=(2, 3), keepdim=True).clamp(min=1)
    known = (pictures - middle) * there  # about zero, where rounding does the least harm
    span = (pictures.amax(dim=(1, 2, 3), keepdim=True) - pictures.amin(dim=(1, 2, 3), keepdim=True)).clamp(min=_TINY)
    levels = _levels(gone)
    guess = _pushed(known, there) * gone
    residual = gone * spread(known) - levels[0].apply(guess)
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
        if step >= _LEAST:
            going = correction.abs().amax(dim=(2, 3), keepdim=True) > _ENOUGH * span
            active = going if active is None else active & going
            if not active.any():
                break
    return torch.where(missing[:, None], guess + middle, pictures)


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
    below = _cycle(coarser, _restricted(rest) * coarser[0].on)
    found = torch.addcmul(found, level.on, _prolonged(below, found.shape[-2:]))
    return level.sweep(found, residual)


def _restricted(values: Tensor) -> Tensor:
    """The transpose of ``_prolonged``: 1 3 3 1 twice, over 16."""
    even = F.pad(values, (0, values.shape[-1] % 2, 0, values.shape[-2] % 2))
    return convolved(even, ((1, 3, 3, 1), (3, 9, 9, 3), (3, 9, 9, 3), (1, 3, 3, 1)), 16, 2)


def _prolonged(values: Tensor, size: torch.Size) -> Tensor:
    high, wide = size
    fine = F.interpolate(values, size=(high + high % 2, wide + wide % 2), mode="bilinear", align_corners=False)
    return fine if fine.shape[-2:] == size else fine[..., :high, :wide]


def _quartered(values: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(values, (0, values.shape[-1] % 2, 0, values.shape[-2] % 2)), 2)


def _pushed(known: Tensor, there: Tensor) -> Tensor:
    """Return a first guess: averages of what is known, halving the picture until all is known, then back up."""
    if there.shape[-1] == 1 and there.shape[-2] == 1:
        return known / there.clamp(min=1e-12)
    total, weight = _quartered(known), _quartered(there)
    seen = (weight > 0).to(known.dtype)
    coarse = _pushed(total / weight.clamp(min=1e-12) * seen, seen)
    return torch.where(there > 0, known, _prolonged(coarse, known.shape[-2:]))


def _dot(one: Tensor, other: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(one.flatten(2), other.flatten(2))
    return products[..., None, None]
