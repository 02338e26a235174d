"""The substrate of ROAD: removed pixels become the weighted mean of their neighbours, plus a little noise.

For every removed pixel i, over its neighbours j inside the image with weights w (1/6 along the edges, 1/12 along the
diagonals): ``(sum_j w_ij) z_i - sum_{j removed} w_ij z_j = sum_{j known} w_ij x_j``. The system is symmetric, and
positive definite as long as one pixel is known; with none left, the picture is its mean colour. Noise of deviation 0.01
in pixel units is added to the removed pixels, one field per image, drawn from its content (Rong et al., "A Consistent
and Efficient Evaluation Strategy for Attribution Methods", ICML 2022).

The states of a run and all channels are solved together on the device, by conjugate gradients from a coarse-to-fine
start; each stops on its own, so that no state depends on another. At 224 pixels that takes 80 to 350 iterations, which
costs more than the forward of a small model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.models import Preprocess
from vitreous.passes.random import Draws

__all__ = ["bare", "fill", "noise"]

_SIGMA = 0.01
_RESIDUAL = 1e-6  # of the worst pixel, over the range of the image: leaves errors far below the noise
_CHECK, _MOST = 8, 2000  # iterations between looks at the residual, and at most


def noise(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return the noise of each image, ``[B, 3, H, W]``, in normalised units."""
    drawn = Draws.of_images(seed, "noisy_linear", inputs).normal(*inputs.shape[1:])
    return drawn.to(inputs) * (_SIGMA / inputs.new_tensor(preprocess.std).view(1, -1, 1, 1))


def bare(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return what is left when every pixel is gone: the mean colour and the noise."""
    return inputs.mean(dim=(2, 3), keepdim=True) + noise(inputs, preprocess, seed)


def fill(image: Tensor, removed: Tensor, iterations: int = _MOST) -> Tensor:
    """Return ``image`` ``[3, H, W]`` with the pixels ``removed`` ``[m, H, W]`` filled in, without noise."""
    gone = removed[:, None].to(image.dtype)
    known = image * (1 - gone)
    stencil = image.new_tensor([[1, 2, 1], [2, 0, 2], [1, 2, 1]]).div(12).view(1, 1, 3, 3)
    diagonal = F.conv2d(torch.ones_like(image[None, :1]), stencil, padding=1)

    def spread(values: Tensor) -> Tensor:
        flat = F.conv2d(values.flatten(0, 1)[:, None], stencil, padding=1)
        return flat.view_as(values)

    span = (image.amax() - image.amin()).clamp(min=torch.finfo(image.dtype).tiny)
    guess = _push(known, 1 - gone) * gone
    residual = (spread(known + guess) - diagonal * guess) * gone
    inverse = gone / diagonal
    scaled = inverse * residual
    direction, energy = scaled, _dot(residual, scaled)
    active = energy > 0
    for step in range(iterations):
        if step % _CHECK == 0:
            active = active & (residual.abs().amax(dim=(2, 3), keepdim=True) > _RESIDUAL * span)
            if not active.any():
                break
        pushed = (diagonal * direction - spread(direction)) * gone
        length = torch.where(active, energy / _dot(direction, pushed).clamp(min=1e-30), torch.zeros_like(energy))
        guess = guess + length * direction
        residual = residual - length * pushed
        scaled = inverse * residual
        new = _dot(residual, scaled)
        direction = scaled + torch.where(active, new / energy.clamp(min=1e-30), torch.zeros_like(energy)) * direction
        energy = new
    return known + guess


def _push(known: Tensor, there: Tensor) -> Tensor:
    """Return a first guess: averages of what is known, halving the image until all is known, then back up."""
    if there.shape[-1] == 1 and there.shape[-2] == 1:
        return known / there.clamp(min=1e-12)
    high, wide = known.shape[-2:]
    pad = (0, wide % 2, 0, high % 2)
    total, weight = (F.avg_pool2d(F.pad(each, pad), 2) for each in (known, there))
    coarse = _push(total / weight.clamp(min=1e-12) * (weight > 0), (weight > 0).to(known.dtype))
    size = (high + high % 2, wide + wide % 2)
    fine = F.interpolate(coarse, size=size, mode="bilinear", align_corners=False)[..., :high, :wide]
    return torch.where(there > 0, known, fine)


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(dim=(2, 3), keepdim=True)
