"""The substrate of ROAD: removed pixels become the weighted mean of their neighbours, plus a little noise.

For every removed pixel i, over its neighbours j inside the image with weights w (1/6 along the edges, 1/12 along the
diagonals): ``(sum_j w_ij) z_i - sum_{j removed} w_ij z_j = sum_{j known} w_ij x_j``. The system is symmetric, and
positive definite as long as one pixel is known; with none left, the picture is its mean colour. Noise of deviation 0.01
in pixel units is added to the removed pixels, one field per image, drawn from its content (Rong et al., "A Consistent
and Efficient Evaluation Strategy for Attribution Methods", ICML 2022).

A whole batch of states is solved together on the device, just before the model sees it: see ``multigrid``. Until then a
removed pixel holds its noise, and a mask says that it is missing.

Substrates: the images that take the place of what is removed, each under one unambiguous name.

Everything is in the model's normalised input space; colours that are meant in pixels are brought there with the
model's own mean and deviation. A blur whose kernel sums to one under reflecting borders is the same in both spaces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, SpecError, nearest
from vitreous.metrics.inpainting import filled
from vitreous.models import Preprocess
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "DROP",
    "SUBSTRATES",
    "Baseline",
    "bare",
    "check_baseline",
    "complete",
    "noise",
    "rise_kernel",
    "baseline_images",
]

_SIGMA = 0.01


def noise(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return the noise of each image, ``[B, 3, H, W]``, in normalised units."""
    drawn = PRNGKey.of_images(seed, "noisy_linear", inputs).normal(*inputs.shape[1:])
    return drawn.to(inputs) * (_SIGMA / inputs.new_tensor(preprocess.std).view(1, -1, 1, 1))


def bare(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return what is left when every pixel is gone: the mean colour and the noise."""
    return inputs.mean(dim=(2, 3), keepdim=True) + noise(inputs, preprocess, seed)


def complete(states: Tensor, missing: Tensor) -> Tensor:
    """Return states ``[m, 3, H, W]`` whose ``missing`` pixels ``[m, H, W]``, which hold their noise, are filled in."""
    return filled(states, missing)


DROP = "drop"
"""The substrate of token states: the token leaves the sequence."""


@dataclass(frozen=True)
class Baseline:
    """One substrate; ``make`` gets images ``[B, 3, H, W]``, the model's preprocessing and a seed.

    ``constant`` colours are ``[1, 3, 1, 1]`` for all images: their bare image is run once for a whole data set.
    """

    name: str
    what: str
    make: Callable[[Tensor, Preprocess, int], Tensor]
    constant: bool = False
    random: bool = False
    imputes: bool = False
    """Whether it depends on what is removed; ``make`` is then the image with everything removed."""


def rise_kernel() -> Tensor:
    """Return the kernel of RISE, ``[11, 11]``: an impulse under a Gaussian of deviation 5 with reflecting borders.

    The impulse is reflected at both borders again and again, which leaves an almost flat kernel.
    """
    size, reach, sigma = 11, 20, 5.0
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    weights /= weights.sum()
    places = (torch.arange(size)[:, None] + offsets) % (2 * size)
    places = torch.where(places >= size, 2 * size - 1 - places, places)
    line = (weights * (places == size // 2)).sum(dim=1)
    return torch.outer(line, line)


def _colour(value: float, inputs: Tensor, preprocess: Preprocess) -> Tensor:
    mean, std = (inputs.new_tensor(each).view(1, -1, 1, 1) for each in (preprocess.mean, preprocess.std))
    return (value - mean) / std


def _noise(inputs: Tensor, seed: int) -> Tensor:
    """U[0, 1) per element, drawn from the image's content: the same for every method and curve."""
    return PRNGKey.of_images(seed, "uniform_norm", inputs).uniform(*inputs.shape[1:]).to(inputs)


def _rise(inputs: Tensor) -> Tensor:
    kernel = rise_kernel().to(inputs).expand(inputs.shape[1], 1, -1, -1)
    return F.conv2d(inputs, kernel, padding=5, groups=inputs.shape[1])


def _gauss(inputs: Tensor, size: int, sigma: float) -> Tensor:
    """A truncated Gaussian, normalised, reflect padding; one axis after the other."""
    reach = size // 2
    if min(inputs.shape[2:]) <= reach:
        raise MapError(f"a blur of {size} pixels needs images larger than {reach} pixels, got {list(inputs.shape[2:])}")
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    line = torch.exp(-0.5 * (offsets / sigma) ** 2)
    line = (line / line.sum()).to(inputs)
    channels = inputs.shape[1]
    padded = F.pad(inputs, (reach,) * 4, mode="reflect")
    down = F.conv2d(padded, line.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(down, line.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


_ALL = (
    Baseline(
        "zero_norm",
        "0 in normalised space: the data set's mean colour, not black (RISE)",
        lambda x, p, s: x.new_zeros(1, x.shape[1], 1, 1),
        constant=True,
    ),
    Baseline("black", "0 in pixels (Chefer, VTranM)", lambda x, p, s: _colour(0.0, x, p), constant=True),
    Baseline("grey127", "127/255 in pixels (InterpretDL)", lambda x, p, s: _colour(127 / 255, x, p), constant=True),
    Baseline(
        "mean_scalar",
        "mean over all pixels and channels of the normalised image (TIS)",
        lambda x, p, s: x.mean(dim=(1, 2, 3), keepdim=True).expand_as(x).contiguous(),
    ),
    Baseline(
        "mean_channel",
        "mean of each channel of the image (ROAD)",
        lambda x, p, s: x.mean(dim=(2, 3), keepdim=True).expand_as(x).contiguous(),
    ),
    Baseline("uniform_norm", "U[0, 1) noise in normalised space (TIS)", lambda x, p, s: _noise(x, s), random=True),
    Baseline("blur_rise", "RISE's 11 x 11 kernel, zero padding in normalised space", lambda x, p, s: _rise(x)),
    Baseline("blur_tv", "11 x 11 Gaussian, sigma 5, reflect (TIS)", lambda x, p, s: _gauss(x, 11, 5.0)),
    Baseline(
        "noisy_linear",
        "weighted mean of the neighbours, plus noise of 0.01 (ROAD)",
        bare,
        random=True,
        imputes=True,
    ),
    Baseline("blur_51", "51 x 51 Gaussian, sigma 50, reflect (CoIBA)", lambda x, p, s: _gauss(x, 51, 50.0)),
)
SUBSTRATES: dict[str, Baseline] = {each.name: each for each in _ALL}


def check_baseline(name: str, fades: bool = False) -> None:
    """Refuse a word that is no substrate of images, or none that an image could fade into."""
    if name == DROP:
        raise SpecError("substrate 'drop' removes tokens; use a token metric such as token_deletion_accuracy")
    if name not in SUBSTRATES:
        known = ", ".join(SUBSTRATES)
        raise SpecError(f"unknown substrate {name!r} (there are: {known}){nearest(name, SUBSTRATES)}")
    if fades and SUBSTRATES[name].imputes:
        raise SpecError(f"substrate {name!r} depends on what is removed; an image cannot fade into it")


def baseline_images(name: str, inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return the substrate of each image, ``[B, 3, H, W]``, or ``[1, 3, 1, 1]`` where it is one colour for all."""
    return SUBSTRATES[name].make(inputs, preprocess, seed)
