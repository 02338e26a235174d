"""Integrated gradients along a path of ever sharper images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vitreous.errors import SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.input_gradient import GRADIENT, needs_images, over_channels
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.passes import Pass, Session

__all__ = ["BlurIG", "gaussian"]


@register("blur_ig", family="input", papers=("xu2020attribution",), cost=(100, 100))
@dataclass(frozen=True)
class BlurIG(Method):
    """Integrated gradients along the path from a blurred image to the sharp one.

    ``-sum_i (sigma_{i+1} - sigma_i) * grad s(z_i) * (z(sigma_i + grad_step) - z_i) / grad_step``, i from 0 to
    ``steps - 1``, summed over channels: ``z_i`` is the image under a Gaussian of deviation ``sigma_i = i max_sigma /
    steps`` pixels, or the root of that with ``sqrt``. The blur is in the normalised space of the model's input; beyond
    the borders there are zeros, the mean colour of the training set, and the kernel ends at ``int(4 sigma + 0.5)``
    pixels, as in released code. The map sums to about ``s(x) - s(z(max_sigma))``, the less exactly the fewer the steps.

    With a kernel that ends there, a deviation of ``grad_step`` < 0.125 alone blurs nothing, so the first of the steps,
    at the sharp image, adds nothing. Released code multiplies a whole batch of steps by the width of its last one;
    here each has its own, which differs with ``sqrt`` only. Needs images; tokens of a sub-network are refused.
    Xu et al., CVPR 2020. Cost: ``steps`` forwards and backwards.
    """

    max_sigma: float = 50.0
    steps: int = 100
    grad_step: float = 0.01
    sqrt: bool = False
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpellingError(f"steps={self.steps} must be at least 1")
        if self.max_sigma <= 0 or self.grad_step <= 0:
            raise SpellingError(f"max_sigma={self.max_sigma}, grad_step={self.grad_step} must be above 0")

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def compute(self, session: Session) -> Answer:
        needs_images("blur_ig", session)
        inputs = at_least_float32(session.inputs)
        sigmas = [i * self.max_sigma / self.steps for i in range(self.steps + 1)]
        if self.sqrt:
            sigmas = [math.sqrt(sigma) for sigma in sigmas]
        total = torch.zeros_like(inputs)
        at_once = max(1, session.batch // len(inputs))
        for first in range(0, self.steps, at_once):
            some = sigmas[first : first + at_once + 1]
            points, slopes = self._path(inputs, some[:-1])
            fork = session.fork(points.flatten(0, 1).to(session.inputs.dtype), repeat=len(some) - 1)
            gradient = at_least_float32(fork.trace(Pass((GRADIENT,)))[GRADIENT][0]).view_as(slopes)
            widths = inputs.new_tensor([after - before for before, after in pairwise(some)])
            total -= torch.einsum("bschw,bschw,s->bchw", gradient, slopes, widths)
        return Answer(over_channels(total), {})

    def _path(self, images: Tensor, sigmas: list[float]) -> tuple[Tensor, Tensor]:
        """Return the blurred images ``[B, S, C, H, W]`` and how they change with sigma.

        The difference is taken of the kernels, in float64: of the images it would be lost in rounding.
        """
        now, then = [], []
        for side in images.shape[-2:]:
            now.append(torch.stack([gaussian(side, sigma) for sigma in sigmas]))
            then.append(torch.stack([gaussian(side, sigma + self.grad_step) for sigma in sigmas]))
        change = [((b - a) / self.grad_step).unsqueeze(1).to(images) for a, b in zip(now, then, strict=True)]
        (down, across), beyond = [each.unsqueeze(1).to(images) for each in now], then[1].unsqueeze(1).to(images)
        seen = images.unsqueeze(1)
        half = down @ seen
        return half @ across.mT, change[0] @ seen @ beyond.mT + half @ change[1].mT


def gaussian(side: int, sigma: float) -> Tensor:
    """Return the matrix ``[side, side]`` in float64 that blurs a line of pixels with zeros beyond its ends."""
    if sigma == 0:
        return torch.eye(side, dtype=torch.float64)
    radius = int(4 * sigma + 0.5)
    kernel = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / sigma) ** 2)
    places = torch.arange(side)
    apart = places - places[:, None]
    return (kernel / kernel.sum())[apart.clamp(-radius, radius) + radius] * (apart.abs() <= radius)
