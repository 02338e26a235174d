"""Weighted linear regressions with an intercept, in float64: the surrogates' fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["lasso", "least_squares", "ridge"]

_TINY = torch.finfo(torch.float64).tiny
_ROUNDS = 1000
_CONSTANT = 1e-20
"""The variance up to which a column does not vary but for rounding."""


def ridge(design: Tensor, scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m sum_s w_s (y_s - b - z_s'm)^2 + alpha |m|^2`` of each image, ``[B, n]``.

    ``design`` is ``[S, n]``, ``scores`` and ``weights`` are ``[B, S]``; the intercept b is free.
    """
    found = []
    unit = torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    for response, weight in zip(scores, weights, strict=True):
        centred, left = _centred(design, response, weight)
        weighted = centred.T * weight
        found.append(torch.linalg.solve(weighted @ centred + alpha * unit, weighted @ left))
    return torch.stack(found)


def lasso(design: Tensor, scores: Tensor, weights: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m sum_s w_s (y_s - b - z_s'm)^2 / (2 sum_s w_s) + alpha |m|_1`` of each image, ``[B, n]``."""
    found = []
    for response, weight in zip(scores, weights, strict=True):
        centred, left = _centred(design, response, weight)
        share = (weight / weight.sum().clamp(min=_TINY)).sqrt()
        found.append(_descended((centred.T * share).cpu().contiguous(), (left * share).cpu(), alpha))
    return torch.stack(found).to(design.device)


def least_squares(design: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """Return the shortest of ``argmin_m sum_s w_s (y_s - b - z_s'm)^2``, ``[B, n]``; ``weights [S]`` serve all images.

    By a singular value decomposition, on the CPU, for torch's solvers elsewhere want more samples than unknowns.
    """
    root = weights.sqrt().unsqueeze(1)
    centred, left = _centred(design, scores.T, weights)
    fitted: Tensor = torch.linalg.lstsq((root * centred).cpu(), (root * left).cpu(), driver="gelsd").solution
    return fitted.T.to(design.device)


def _centred(design: Tensor, response: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Take the weighted means out: what is left needs no intercept."""
    share = weights / weights.sum().clamp(min=_TINY)
    return design - share @ design, response - share @ response


def _descended(columns: Tensor, response: Tensor, alpha: float) -> Tensor:
    """Return ``argmin_m |y - X m|^2 / 2 + alpha |m|_1`` by coordinate descent; ``columns`` are those of X, ``[n, S]``.

    Rounds over all coordinates alternate with rounds over those that are not zero, until a whole round moves nothing.
    """
    sizes = columns.square().sum(dim=1).tolist()
    found = [0.0] * len(sizes)
    residual = response.clone()
    still = 1e-12 * float(response.norm())

    def moved(coordinates: Sequence[int]) -> bool:
        furthest = 0.0
        for j in coordinates:
            pull = float(columns[j] @ residual) + sizes[j] * found[j]
            new = math.copysign(max(0.0, abs(pull) - alpha), pull) / sizes[j]
            step = new - found[j]
            if step:
                residual.sub_(columns[j], alpha=step)
                found[j] = new
                furthest = max(furthest, abs(step) * math.sqrt(sizes[j]))
        return furthest > still

    varying = [j for j, size in enumerate(sizes) if size > _CONSTANT]
    for _ in range(_ROUNDS):
        if not moved(varying):
            break
        active = [j for j in varying if found[j]]
        for _ in range(_ROUNDS):
            if not moved(active):
                break
    return torch.tensor(found, dtype=torch.float64)
