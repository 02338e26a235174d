"""The substrate of ROAD: removed pixels become the weighted mean of their neighbours, plus a little noise.

For every removed pixel i, over its neighbours j inside the image with weights w (1/6 along the edges, 1/12 along the
diagonals): ``(sum_j w_ij) z_i - sum_{j removed} w_ij z_j = sum_{j known} w_ij x_j``. The system is symmetric, and
positive definite as long as one pixel is known; with none left, the picture is its mean colour. Noise of deviation 0.01
in pixel units is added to the removed pixels, one field per image, drawn from its content (Rong et al., "A Consistent
and Efficient Evaluation Strategy for Attribution Methods", ICML 2022).

A whole batch of states is solved together on the device, just before the model sees it: see ``multigrid``. Until then a
removed pixel holds its noise, and a mask says that it is missing.
"""

from __future__ import annotations

from torch import Tensor

from vitreous.metrics.states.multigrid import filled
from vitreous.models import Preprocess
from vitreous.passes.random import Draws

__all__ = ["bare", "complete", "noise"]

_SIGMA = 0.01


def noise(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return the noise of each image, ``[B, 3, H, W]``, in normalised units."""
    drawn = Draws.of_images(seed, "noisy_linear", inputs).normal(*inputs.shape[1:])
    return drawn.to(inputs) * (_SIGMA / inputs.new_tensor(preprocess.std).view(1, -1, 1, 1))


def bare(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return what is left when every pixel is gone: the mean colour and the noise."""
    return inputs.mean(dim=(2, 3), keepdim=True) + noise(inputs, preprocess, seed)


def complete(states: Tensor, missing: Tensor) -> Tensor:
    """Return states ``[m, 3, H, W]`` whose ``missing`` pixels ``[m, H, W]``, which hold their noise, are filled in."""
    return filled(states, missing)
