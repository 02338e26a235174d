"""Gradients of what enters the model: pixels, or the tokens of a sub-network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ModelError, SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Session, Trace, whole

__all__ = ["GRADIENT", "IntegratedGradients", "PixelXGradient", "Saliency", "integrated", "needs_images", "to_map"]

GRADIENT = Keep("image", whole, grad=True)
"""The gradient of what enters the model."""


def over_channels(value: Tensor) -> Tensor:
    """Sum images ``[B, C, H, W]`` over channels, tokens ``[B, N, D]`` over their width."""
    return value.sum(dim=1 if value.ndim == 4 else -1)


def to_map(trace: Trace, value: Tensor) -> Tensor:
    """Lay token values out on the grid; pixel values are on theirs already."""
    return trace.tokens_to_grid(value) if value.ndim == 2 else value


def needs_images(name: str, session: Session) -> None:
    """Refuse the tokens of a sub-network."""
    if session.inputs.ndim != 4:
        raise ModelError(f"{name} needs images, not the tokens of a sub-network")


def integrated(session: Session, start: float | Tensor, nodes: Tensor, weights: Tensor) -> tuple[Tensor, Trace]:
    """Return ``(x - x0) * sum_i w_i grad s(x0 + t_i (x - x0))`` before any sum over channels, and its last trace."""
    inputs = session.inputs
    way = inputs - start
    origin = start.unsqueeze(1) if isinstance(start, Tensor) else start
    total = torch.zeros_like(at_least_float32(inputs))
    at_once = max(1, session.batch // len(inputs))
    for first in range(0, len(nodes), at_once):
        part = slice(first, first + at_once)
        times = nodes[part].view(1, -1, *[1] * (inputs.ndim - 1))
        points = (origin + times * way.unsqueeze(1)).flatten(0, 1)
        trace = session.fork(points, repeat=times.shape[1]).trace(Pass((GRADIENT,)))
        gradient = at_least_float32(trace[GRADIENT][0]).reshape(len(inputs), -1, *inputs.shape[1:])
        total += torch.einsum("bs...,s->b...", gradient, weights[part].to(gradient))
    return at_least_float32(way) * total, trace


def absolute(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_c |d s / d x_c|``."""
    assert gradient is not None
    return over_channels(at_least_float32(gradient).abs())


def times_gradient(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_c x_c d s / d x_c``."""
    assert gradient is not None
    return over_channels(at_least_float32(value) * at_least_float32(gradient))


@register("saliency", family="input", papers=("simonyan2014deep",))
@dataclass(frozen=True)
class Saliency(Method):
    """The size of the gradient of every pixel.

    ``sum_c |d s / d x_c|`` over the channels of the normalised image.
    """

    grid = "pixel"

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (Pass((Keep("image", absolute, grad=True),)),)

    def read(self, trace: Trace) -> Tensor:
        return to_map(trace, trace[Keep("image", absolute, grad=True)][0])


@register("input_x_gradient", family="input", papers=("shrikumar2016not",))
@dataclass(frozen=True)
class PixelXGradient(Method):
    """Pixels times their gradient.

    ``sum_c x_c * d s / d x_c`` over the channels of the normalised image, signed: what fades is compared with the mean
    colour of the training set. The same on token vectors is ``ixg``.
    """

    grid = "pixel"

    def asks(self, view: View) -> tuple[Pass, ...]:
        return (Pass((Keep("image", times_gradient, grad=True),)),)

    def read(self, trace: Trace) -> Tensor:
        return to_map(trace, trace[Keep("image", times_gradient, grad=True)][0])


@register("integrated_gradients", family="input", papers=("sundararajan2017axiomatic",), aliases=("ig",), cost=(50, 50))
@dataclass(frozen=True)
class IntegratedGradients(Method):
    """Pixels times their gradient, averaged along the straight path from a baseline.

    ``(x - x0) * sum_i w_i grad s(x0 + t_i (x - x0))`` with Gauss-Legendre nodes, summed over channels; the map sums to
    ``s(x) - s(x0)``. ``baseline`` is one value in normalised space: 0 is the mean colour of the training set.
    """

    steps: int = 50
    baseline: float = 0.0
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpellingError(f"steps={self.steps} must be at least 1")

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def compute(self, session: Session) -> Answer:
        nodes, weights = (
            torch.from_numpy(array / 2).to(session.inputs) for array in np.polynomial.legendre.leggauss(self.steps)
        )
        found, trace = integrated(session, self.baseline, nodes + 0.5, weights)
        return Answer(to_map(trace, over_channels(found)), {})
