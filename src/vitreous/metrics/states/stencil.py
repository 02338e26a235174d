"""The weighted sum of a pixel's eight neighbours, steps between levels, and what ``multigrid`` makes of them at once.

``N(v) = t sum_j w_j t_j v_j`` with weights 1/6 along the edges and 1/12 along the diagonals; ``t`` ties the cells of
coarser levels. Values are ``[m, C, h, w]``, all else ``[m, 1, h, w]``. On a GPU one kernel each reads every number once
(``fused``, written in Triton, which comes with torch; without it the same sums take more passes over the memory).
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["applied", "finer", "left", "prolonged", "rougher", "spread", "swept"]

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
    high, wide = values.shape[-2:]
    even = F.pad(values, (0, wide % 2, 0, high % 2)) if high % 2 or wide % 2 else values
    return on * _convolved(even, _RESTRICT, 16, 2)


def finer(below: Tensor, on: Tensor, found: Tensor) -> Tensor:
    """Return ``found`` plus ``on`` times the values below, prolonged to its size: the transpose of ``rougher``."""
    if (fused := _fused(found)) is not None:
        return fused.finer(below, on, found)
    return torch.addcmul(found, on, prolonged(below, found.shape[-2:]))


def prolonged(values: Tensor, size: torch.Size) -> Tensor:
    """Return values at twice as many places, bilinearly, cut to an odd size."""
    high, wide = size
    fine = F.interpolate(values, size=(high + high % 2, wide + wide % 2), mode="bilinear", align_corners=False)
    return fine if fine.shape[-2:] == size else fine[..., :high, :wide]


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
        from vitreous.metrics.states import fused

        prove(fused, device)
    except Exception as error:  # a compiler may be missing in more ways than one
        _log.warning("Triton's kernels are not used (%s): filling in pixels takes longer", error)
        return None
    return fused


def prove(kernels: _Kernels, device: torch.device) -> None:
    """Refuse kernels that do not agree with torch on a CPU."""
    draw = torch.Generator().manual_seed(0)
    for high, wide in ((37, 41), (38, 40)):
        values, residual = (torch.randn(2, 3, high, wide, generator=draw) for _ in range(2))
        tie, scale, diagonal = (torch.rand(2, 1, high, wide, generator=draw) for _ in range(3))
        below = torch.randn(2, 3, (high + 1) // 2, (wide + 1) // 2, generator=draw)
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
