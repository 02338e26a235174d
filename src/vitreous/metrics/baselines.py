"""Baselines: the images that take the place of what is removed, each under one unambiguous name.

Everything is in the model's normalised input space; colours that are meant in pixels are brought there with the
model's own mean and deviation. A blur whose kernel sums to one under reflecting borders is the same in both spaces.

The baseline of ROAD (Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022)
depends on what is removed. For every removed pixel i, over its neighbours j inside the image with weights w (1/6 along
the edges, 1/12 along the diagonals): ``(sum_j w_ij) z_i - sum_{j removed} w_ij z_j = sum_{j not removed} w_ij x_j``.
The system is symmetric, and positive definite as long as one pixel is left; with none left, the image is its mean
colour. Noise of deviation 0.01 in pixel units is added to the removed pixels, one field per image, drawn from its
content. A whole batch of states is solved together on the device, just before the model runs it: see ``inpainting``.
Until then a removed pixel holds its noise, and a mask says that it is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, SpecError, nearest
from vitreous.models import Preprocess
from vitreous.tracing.prng import PRNGKey

_SIGMA = 0.01

DROP = "drop"
"""The baseline of token states: the token leaves the sequence."""


@dataclass(frozen=True)
class Baseline:
    """One baseline; ``make`` gets images ``[B, 3, H, W]``, the model's preprocessing and a seed.

    ``constant`` colours are ``[1, 3, 1, 1]`` for all images: their image is run once for a whole data set. If it
    ``imputes``, it depends on what is removed; ``make`` is then the image with everything removed.
    """

    name: str
    description: str
    make: Callable[[Tensor, Preprocess, int], Tensor]
    constant: bool = False
    random: bool = False
    imputes: bool = False


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


def noise(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return the noise that ROAD adds to each image, ``[B, 3, H, W]``, in normalised units."""
    normal = PRNGKey.of_images(seed, "noisy_linear", inputs).normal(*inputs.shape[1:])
    return normal.to(inputs) * (_SIGMA / inputs.new_tensor(preprocess.std).view(1, -1, 1, 1))


def _mean_colour_and_noise(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    return inputs.mean(dim=(2, 3), keepdim=True) + noise(inputs, preprocess, seed)


def _colour(value: float, inputs: Tensor, preprocess: Preprocess) -> Tensor:
    return preprocess.normalize(inputs.new_full((1, inputs.shape[1], 1, 1), value))


def _uniform(inputs: Tensor, seed: int) -> Tensor:
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
    Baseline("uniform_norm", "U[0, 1) noise in normalised space (TIS)", lambda x, p, s: _uniform(x, s), random=True),
    Baseline("blur_rise", "RISE's 11 x 11 kernel, zero padding in normalised space", lambda x, p, s: _rise(x)),
    Baseline("blur_tv", "11 x 11 Gaussian, sigma 5, reflect (TIS)", lambda x, p, s: _gauss(x, 11, 5.0)),
    Baseline(
        "noisy_linear",
        "weighted mean of the neighbours, plus noise of 0.01 (ROAD)",
        _mean_colour_and_noise,
        random=True,
        imputes=True,
    ),
    Baseline("blur_51", "51 x 51 Gaussian, sigma 50, reflect (CoIBA)", lambda x, p, s: _gauss(x, 51, 50.0)),
)
BASELINES: dict[str, Baseline] = {baseline.name: baseline for baseline in _ALL}


def check_baseline(name: str, fades: bool = False) -> None:
    """Refuse what is no baseline of images, or one that an image cannot be faded into."""
    if name == DROP:
        raise SpecError("baseline 'drop' removes tokens; use a token metric such as token_deletion_accuracy")
    if name not in BASELINES:
        raise SpecError(f"unknown baseline {name!r} (there are: {', '.join(BASELINES)}){nearest(name, BASELINES)}")
    if fades and BASELINES[name].imputes:
        raise SpecError(f"baseline {name!r} depends on what is removed; an image cannot fade into it")
