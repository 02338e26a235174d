"""Noisy copies of an image, as values that metrics ask for: equal ones are made and explained once for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.metrics.states.need import Images
from vitreous.models import Preprocess
from vitreous.passes.random import Draws

__all__ = ["GaussianNoise", "UniformNoise", "gaussian_copies", "uniform_copies"]


@dataclass(frozen=True)
class UniformNoise:
    """Copies with every value moved by U[-radius, radius], in the model's normalised space."""

    count: int
    radius: float

    def __call__(self, images: Tensor, preprocess: Preprocess, draws: Draws) -> Tensor:
        drawn = [draws.at(copy).uniform(*images.shape[1:]) for copy in range(self.count)]
        return images[:, None] + self.radius * (2 * torch.stack(drawn, dim=1) - 1).to(images)


@dataclass(frozen=True)
class GaussianNoise:
    """Copies with normal noise whose deviation is ``level`` times the range of the image's values."""

    count: int
    level: float

    def __call__(self, images: Tensor, preprocess: Preprocess, draws: Draws) -> Tensor:
        drawn = [draws.at(copy).normal(*images.shape[1:]) for copy in range(self.count)]
        flat = images.flatten(1)
        deviation = self.level * (flat.amax(dim=1) - flat.amin(dim=1)).view(-1, 1, 1, 1, 1)
        return images[:, None] + deviation * torch.stack(drawn, dim=1).to(images)


def uniform_copies(count: int, radius: float) -> Images:
    """Return the noisy copies that all metrics of robustness share."""
    return Images("uniform noise", UniformNoise(count, radius), count)


def gaussian_copies(count: int, level: float) -> Images:
    """Return the noisy copies that smoothed maps are averaged over."""
    return Images("normal noise", GaussianNoise(count, level), count)
