"""Yardsticks: maps that know nothing of the model. A method that does not beat them explains nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.methods.base import Attribution, Method
from vitreous.methods.registry import register_method
from vitreous.tracing import Context, upcast

__all__ = ["Centre", "Constant", "Edges", "Random"]


def _spread(context: Context, pattern: Tensor) -> Attribution:
    like = upcast(context.inputs)
    return Attribution(pattern.to(like).expand(len(like), -1, -1).clone(), {})


@register_method("random", family="yardstick", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Random(Method):
    """Uniform noise on the token grid, drawn from the seed and the image."""

    def compute(self, context: Context) -> Attribution:
        grid = context.model.grid(context.inputs)
        return Attribution(context.prng_key("random").uniform(*grid).to(upcast(context.inputs)), {})


@register_method("constant", family="yardstick", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Constant(Method):
    """One everywhere: only the tie rule of a metric ranks it."""

    can_be_constant = True

    def compute(self, context: Context) -> Attribution:
        return _spread(context, torch.ones(context.model.grid(context.inputs)))


@register_method("centre", family="yardstick", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Centre(Method):
    """Photographers put things in the middle: one minus the distance from the centre, which is 1 at the corners."""

    def compute(self, context: Context) -> Attribution:
        height, width = context.model.grid(context.inputs)
        down = torch.linspace(-1, 1, height, dtype=torch.float32) if height > 1 else torch.zeros(1)
        across = torch.linspace(-1, 1, width, dtype=torch.float32) if width > 1 else torch.zeros(1)
        return _spread(context, 1 - ((down[:, None] ** 2 + across[None] ** 2) / 2).sqrt())


@register_method("edges", family="yardstick", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Edges(Method):
    """The strength of edges in the image: the length of the Sobel gradient of the mean over channels."""

    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        if context.inputs.ndim != 4:
            raise ModelError("edges needs images, not the tokens of a sub-network")
        grey = F.pad(upcast(context.inputs).mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        across = grey.new_tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        sobel = torch.stack([across, across.T]).unsqueeze(1)
        return Attribution(F.conv2d(grey, sobel).square().sum(dim=1).sqrt(), {})
