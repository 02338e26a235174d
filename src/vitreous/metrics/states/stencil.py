"""The weighted sum of a pixel's eight neighbours, and what ``multigrid`` makes of it in the same breath.

``N(v) = t sum_j w_j t_j v_j`` with weights 1/6 along the edges and 1/12 along the diagonals; ``t`` ties the cells of
coarser levels. Values are ``[m, C, h, w]``, all else ``[m, 1, h, w]``. On a GPU one kernel reads every number once
(written in Triton, which comes with torch; without it the same sums take a few more passes over the memory).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["applied", "convolved", "left", "spread", "swept"]

Kernel = Callable[[int, Tensor, Tensor | None, Tensor, Tensor | None], Tensor]
_log = logging.getLogger(__name__)
_SPREAD = ((1, 2, 1), (2, 0, 2), (1, 2, 1))


def spread(values: Tensor) -> Tensor:
    """Return the weighted sum of the eight neighbours."""
    return convolved(values, _SPREAD, 12, 1)


def left(values: Tensor, tie: Tensor | None, on: Tensor) -> Tensor:
    """Return ``on N(v)``."""
    fused = _fused(values)
    return on * _neighbours(values, tie) if fused is None else fused(0, values, tie, on, None)


def swept(values: Tensor, tie: Tensor | None, inverse: Tensor, residual: Tensor) -> Tensor:
    """Return ``inverse (residual + N(v))``: a sweep of Jacobi's iteration."""
    fused = _fused(values)
    return (
        inverse * (residual + _neighbours(values, tie)) if fused is None else fused(1, values, tie, inverse, residual)
    )


def applied(values: Tensor, tie: Tensor | None, on: Tensor, diagonal: Tensor) -> Tensor:
    """Return ``diagonal v - on N(v)``."""
    fused = _fused(values)
    if fused is not None:
        return fused(2, values, tie, on, diagonal)
    return torch.addcmul(diagonal * values, _neighbours(values, tie), on, value=-1)


def convolved(values: Tensor, kernel: tuple[tuple[int, ...], ...], divisor: int, stride: int) -> Tensor:
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


def _fused(values: Tensor) -> Kernel | None:
    return _kernel() if values.is_cuda and values.dtype == torch.float32 else None


@cache
def _kernel() -> Kernel | None:
    """Return a function that launches the kernel, or ``None`` where there is no Triton."""
    try:
        from vitreous.metrics.states.fused import launch
    except Exception as error:  # a compiler may be missing in more ways than one
        _log.warning("Triton is not there (%s): filling in pixels takes longer", error)
        return None
    return launch
