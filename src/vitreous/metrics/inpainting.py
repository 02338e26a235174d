"""The weighted sum of a pixel's eight neighbours, steps between levels, and what ``multigrid`` makes of them at once.

``N(v) = t sum_j w_j t_j v_j`` with weights 1/6 along the edges and 1/12 along the diagonals; ``t`` ties the cells of
coarser levels. Values are ``[m, C, h, w]``, all else ``[m, 1, h, w]``. On a GPU one kernel each reads every number once
(``fused``, written in Triton, which comes with torch; without it the same sums take more passes over the memory).

Holes in pictures filled in smoothly: every missing pixel becomes the weighted mean of its neighbours.

The equations of ``road`` for many pictures at once, by conjugate gradients under one multigrid cycle. A coarser level
has cells of 2 x 2. A cell whose share ``t`` of missing pixels is not zero takes part: it is tied to its neighbours with
the same weights as pixels are, times ``(t t')^(1/4)``, and held by what holds its missing pixels to known ones. So
cells that are partly known stay in the game, which is what makes the cycle work on ragged holes. One sweep of Jacobi's
iteration before and one after each correction; the stencil itself takes two thirds of what is rough.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

_log = logging.getLogger(__name__)
_SPREAD = ((1, 2, 1), (2, 0, 2), (1, 2, 1))
_RESTRICT = ((1, 3, 3, 1), (3, 9, 9, 3), (3, 9, 9, 3), (1, 3, 3, 1))


class _Kernels(Protocol):
    """The module ``fused``."""

    def launch(
        self, mode: int, values: Tensor, tie: Tensor | None, scale: Tensor, other: Tensor | None, /
    ) -> Tensor: ...

    def rougher(self, values: Tensor, on: Tensor, /) -> Tensor: ...

    def finer(self, below: Tensor, on: Tensor, found: Tensor, /) -> Tensor: ...


def spread(values: Tensor) -> Tensor:
    """Return the weighted sum of the eight neighbours."""
    return _convolved(values, _SPREAD, 12, 1)


def left(values: Tensor, tie: Tensor | None, on: Tensor) -> Tensor:
    """Return ``on N(v)``."""
    if (fused := _fused(values)) is not None:
        return fused.launch(0, values, tie, on, None)
    return on * _neighbours(values, tie)


def swept(values: Tensor, tie: Tensor | None, inverse: Tensor, residual: Tensor) -> Tensor:
    """Return ``inverse (residual + N(v))``: a sweep of Jacobi's iteration."""
    if (fused := _fused(values)) is not None:
        return fused.launch(1, values, tie, inverse, residual)
    return inverse * (residual + _neighbours(values, tie))


def applied(values: Tensor, tie: Tensor | None, on: Tensor, diagonal: Tensor) -> Tensor:
    """Return ``diagonal v - on N(v)``."""
    if (fused := _fused(values)) is not None:
        return fused.launch(2, values, tie, on, diagonal)
    return torch.addcmul(diagonal * values, _neighbours(values, tie), on, value=-1)


def rougher(values: Tensor, on: Tensor) -> Tensor:
    """Return ``on`` times the values restricted to its size, half as large: 1 3 3 1 twice, over 16."""
    if (fused := _fused(values)) is not None:
        return fused.rougher(values, on)
    height, width = values.shape[-2:]
    even = F.pad(values, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else values
    return on * _convolved(even, _RESTRICT, 16, 2)


def finer(below: Tensor, on: Tensor, found: Tensor) -> Tensor:
    """Return ``found`` plus ``on`` times the values below, prolonged to its size: the transpose of ``rougher``."""
    if (fused := _fused(found)) is not None:
        return fused.finer(below, on, found)
    return torch.addcmul(found, on, prolonged(below, found.shape[-2:]))


def prolonged(values: Tensor, size: torch.Size) -> Tensor:
    """Return values at twice as many places, bilinearly, cut to an odd size."""
    height, width = size
    fine = F.interpolate(values, size=(height + height % 2, width + width % 2), mode="bilinear", align_corners=False)
    return fine if fine.shape[-2:] == size else fine[..., :height, :width]


def _convolved(values: Tensor, kernel: tuple[tuple[int, ...], ...], divisor: int, stride: int) -> Tensor:
    """Convolve every channel of every picture on its own, as groups, which no device rounds to fewer bits."""
    flat = values.flatten(0, 1)[None]
    weights = _weights(kernel, divisor, values.dtype, values.device).expand(flat.shape[1], 1, -1, -1)
    done = F.conv2d(flat, weights, padding=1, stride=stride, groups=flat.shape[1])
    return done.view(*values.shape[:2], *done.shape[-2:])


@cache
def _weights(kernel: tuple[tuple[int, ...], ...], divisor: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(kernel, dtype=dtype, device=device) / divisor


def _neighbours(values: Tensor, tie: Tensor | None) -> Tensor:
    return spread(values) if tie is None else tie * spread(tie * values)


def _fused(values: Tensor) -> _Kernels | None:
    return _kernels(values.device) if values.is_cuda and values.dtype == torch.float32 else None


@cache
def _kernels(device: torch.device) -> _Kernels | None:
    """Return the module of the kernels, once they have said on this device what torch says on a CPU; or ``None``."""
    try:
        from vitreous.metrics import _inpainting_triton as fused

        prove(fused, device)
    except Exception as error:  # a compiler may be missing in more ways than one
        _log.warning("Triton's kernels are not used (%s): filling in pixels takes longer", error)
        return None
    return fused


def prove(kernels: _Kernels, device: torch.device) -> None:
    """Refuse kernels that do not agree with torch on a CPU."""
    draw = torch.Generator().manual_seed(0)
    for height, width in ((37, 41), (38, 40)):
        values, residual = (torch.randn(2, 3, height, width, generator=draw) for _ in range(2))
        tie, scale, diagonal = (torch.rand(2, 1, height, width, generator=draw) for _ in range(3))
        below = torch.randn(2, 3, (height + 1) // 2, (width + 1) // 2, generator=draw)
        rough = below[:, :1].abs()
        there = [each.to(device) for each in (values, residual, tie, scale, diagonal, below, rough)]
        v, r, t, s, d, b, o = there
        pairs = [(kernels.rougher(v, o), rougher(values, rough)), (kernels.finer(b, s, v), finer(below, scale, values))]
        for on, off in ((None, None), (t, tie)):
            pairs += [
                (kernels.launch(0, v, on, s, None), left(values, off, scale)),
                (kernels.launch(1, v, on, s, r), swept(values, off, scale, residual)),
                (kernels.launch(2, v, on, s, d), applied(values, off, scale, diagonal)),
            ]
        for one, other in pairs:
            torch.testing.assert_close(one.cpu(), other, atol=1e-5, rtol=0)


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
    height, width = values.shape[-2:]
    return F.pad(values, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else values


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
