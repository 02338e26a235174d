"""Baselines: the images that take the place of what is removed, each under one unambiguous name.

Everything is in the model's normalised input space; colours that are meant in pixels are brought there with the
model's own mean and deviation. A blur whose kernel sums to one under reflecting borders is the same in both spaces.

The baseline of ROAD (Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022)
depends on what is removed. For every removed pixel i, over its neighbours j inside the image with weights w (1/6 along
the edges, 1/12 along the diagonals): ``(sum_j w_ij) z_i - sum_{j removed} w_ij z_j = sum_{j not removed} w_ij x_j``.
The system is symmetric, and positive definite as long as one pixel is left; with none left, the image is its mean
colour. Noise of deviation 0.01 in pixel units is added to the removed pixels, one field per image, drawn from its
content. A whole batch of states is solved together on the device, just before the model runs it; until then a removed
pixel holds its noise, and a mask says that it is missing.

``inpaint`` solves these equations by conjugate gradients under one multigrid cycle. A coarser level has cells of 2 x 2.
A cell whose share ``t`` of missing pixels is not zero takes part: it is tied to its neighbours with the same weights as
pixels are, times ``(t t')^(1/4)``, and held by what holds its missing pixels to those that are left, which is what
makes the cycle work on ragged holes. One sweep of Jacobi's iteration before and one after each correction; the stencil
``N(v) = t sum_j w_j t_j v_j`` itself takes two thirds of what is rough. Values are ``[m, C, h, w]``, all else
``[m, 1, h, w]``. On a GPU one kernel reads every number once (``_inpainting_triton``); without it the same sums take
more passes over the memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, SpecError, nearest
from vitreous.methods.ops import gaussian_kernel
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
    make: Callable[[Tensor, Preprocess, int], Tensor]
    constant: bool = False
    random: bool = False
    imputes: bool = False


def rise_kernel() -> Tensor:
    """Return the kernel of RISE, ``[11, 11]``: an impulse under a Gaussian of deviation 5 with reflecting borders.

    The impulse is reflected at both borders again and again, which leaves an almost flat kernel.
    """
    size, reach = 11, 20
    pixels = (torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)) % (2 * size)
    pixels = torch.where(pixels >= size, 2 * size - 1 - pixels, pixels)
    line = (gaussian_kernel(5.0, reach) * (pixels == size // 2)).sum(dim=1)
    return torch.outer(line, line)


def noise(inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
    """Return the noise that ROAD adds to each image, ``[B, 3, H, W]``, in normalised units."""
    normal = PRNGKey.of_images(seed, "noisy_linear", inputs).normal(*inputs.shape[1:])
    return normal.to(inputs) * (_SIGMA / inputs.new_tensor(preprocess.std).view(1, -1, 1, 1))


def _mean_colour(inputs: Tensor) -> Tensor:
    return inputs.mean(dim=(2, 3), keepdim=True)


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
    line, channels = gaussian_kernel(sigma, reach).to(inputs), inputs.shape[1]
    padded = F.pad(inputs, (reach,) * 4, mode="reflect")
    down = F.conv2d(padded, line.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(down, line.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


_ALL = (
    # 0 in normalised space: the data set's mean colour, not black (RISE)
    Baseline("zero_norm", lambda x, p, s: x.new_zeros(1, x.shape[1], 1, 1), constant=True),
    # 0 in pixels (Chefer, VTranM)
    Baseline("black", lambda x, p, s: _colour(0.0, x, p), constant=True),
    # 127/255 in pixels (InterpretDL)
    Baseline("grey127", lambda x, p, s: _colour(127 / 255, x, p), constant=True),
    # mean over all pixels and channels of the normalised image (TIS)
    Baseline("mean_scalar", lambda x, p, s: x.mean(dim=(1, 2, 3), keepdim=True).expand_as(x).contiguous()),
    # mean of each channel of the image (ROAD)
    Baseline("mean_channel", lambda x, p, s: _mean_colour(x).expand_as(x).contiguous()),
    # U[0, 1) noise in normalised space (TIS)
    Baseline("uniform_norm", lambda x, p, s: _uniform(x, s), random=True),
    # RISE's 11 x 11 kernel, zero padding in normalised space
    Baseline("blur_rise", lambda x, p, s: _rise(x)),
    # 11 x 11 Gaussian, sigma 5, reflect (TIS)
    Baseline("blur_tv", lambda x, p, s: _gauss(x, 11, 5.0)),
    # weighted mean of the neighbours, plus noise of 0.01 (ROAD)
    Baseline("noisy_linear", lambda x, p, s: _mean_colour(x) + noise(x, p, s), random=True, imputes=True),
    # 51 x 51 Gaussian, sigma 50, reflect (CoIBA)
    Baseline("blur_51", lambda x, p, s: _gauss(x, 51, 50.0)),
)
BASELINES: dict[str, Baseline] = {baseline.name: baseline for baseline in _ALL}


def check_baseline(parameter: str, name: str, fades: bool) -> None:
    """Refuse what is no baseline of images, or one that an image cannot be faded into although it ``fades``."""
    if name == DROP:
        raise SpecError(f"{parameter}='drop' removes tokens; use a token metric such as token_deletion_accuracy")
    if name not in BASELINES:
        raise SpecError(f"unknown baseline {name!r} (there are: {', '.join(BASELINES)}){nearest(name, BASELINES)}")
    if fades and BASELINES[name].imputes:
        raise SpecError(f"{parameter}={name!r} depends on what is removed; an image cannot fade into it")


# -- the solver of ROAD --------------------------------------------------------------------------------

_log = logging.getLogger(__name__)
_SPREAD = ((1, 2, 1), (2, 0, 2), (1, 2, 1))
_RESTRICT = ((1, 3, 3, 1), (3, 9, 9, 3), (3, 9, 9, 3), (1, 3, 3, 1))


def spread(values: Tensor) -> Tensor:
    """Return the weighted sum of the eight neighbours."""
    return _convolved(values, _SPREAD, 12, 1)


def left(values: Tensor, tie: Tensor | None, on: Tensor) -> Tensor:
    """Return ``on N(v)``."""
    if (fused := _fused(values)) is not None:
        return fused.launch(0, values, tie, on, None)  # type: ignore[no-any-return]
    return on * _neighbours(values, tie)


def swept(values: Tensor, tie: Tensor | None, inverse: Tensor, residual: Tensor) -> Tensor:
    """Return ``inverse (residual + N(v))``: a sweep of Jacobi's iteration."""
    if (fused := _fused(values)) is not None:
        return fused.launch(1, values, tie, inverse, residual)  # type: ignore[no-any-return]
    return inverse * (residual + _neighbours(values, tie))


def applied(values: Tensor, tie: Tensor | None, on: Tensor, diagonal: Tensor) -> Tensor:
    """Return ``diagonal v - on N(v)``."""
    if (fused := _fused(values)) is not None:
        return fused.launch(2, values, tie, on, diagonal)  # type: ignore[no-any-return]
    return torch.addcmul(diagonal * values, _neighbours(values, tie), on, value=-1)


def rougher(values: Tensor, on: Tensor) -> Tensor:
    """Return ``on`` times the values restricted to its size, half as large: 1 3 3 1 twice, over 16."""
    if (fused := _fused(values)) is not None:
        return fused.rougher(values, on)  # type: ignore[no-any-return]
    return on * _convolved(_even(values), _RESTRICT, 16, 2)


def finer(below: Tensor, on: Tensor, values: Tensor) -> Tensor:
    """Return the values plus ``on`` times those below, prolonged to their size: the transpose of ``rougher``."""
    if (fused := _fused(values)) is not None:
        return fused.finer(below, on, values)  # type: ignore[no-any-return]
    return torch.addcmul(values, on, prolonged(below, values.shape[-2:]))


def prolonged(values: Tensor, size: torch.Size) -> Tensor:
    """Return values at twice as many places, bilinearly, cut to an odd size."""
    height, width = size
    fine = F.interpolate(values, size=(height + height % 2, width + width % 2), mode="bilinear", align_corners=False)
    return fine[..., :height, :width]


def _convolved(values: Tensor, kernel: tuple[tuple[int, ...], ...], divisor: int, stride: int) -> Tensor:
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


def _fused(values: Tensor) -> Any:
    return _kernels(values.device) if values.is_cuda and values.dtype == torch.float32 else None


@cache
def _kernels(device: torch.device) -> Any:
    """Return the module of the kernels, once they agree on this device with torch on a CPU; or ``None``."""
    try:
        from vitreous.metrics import _inpainting_triton as fused

        verify_kernels(fused, device)
    except Exception as error:  # a compiler may be missing in more ways than one
        _log.warning("Triton's kernels are not used (%s): filling in pixels takes longer", error)
        return None
    return fused


def verify_kernels(kernels: Any, device: torch.device) -> None:
    """Refuse kernels that do not agree with torch on a CPU."""
    draw = torch.Generator().manual_seed(0)
    for height, width in ((37, 41), (38, 40)):
        values, residual = (torch.randn(2, 3, height, width, generator=draw) for _ in range(2))
        tie, scale, diagonal = (torch.rand(2, 1, height, width, generator=draw) for _ in range(3))
        below = torch.randn(2, 3, (height + 1) // 2, (width + 1) // 2, generator=draw)
        rough = below[:, :1].abs()
        v, r, t, s, d, b, o = (x.to(device) for x in (values, residual, tie, scale, diagonal, below, rough))
        pairs = [(kernels.rougher(v, o), rougher(values, rough)), (kernels.finer(b, s, v), finer(below, scale, values))]
        for on, off in ((None, None), (t, tie)):
            pairs += [
                (kernels.launch(0, v, on, s, None), left(values, off, scale)),
                (kernels.launch(1, v, on, s, r), swept(values, off, scale, residual)),
                (kernels.launch(2, v, on, s, d), applied(values, off, scale, diagonal)),
            ]
        for actual, expected in pairs:
            torch.testing.assert_close(actual.cpu(), expected, atol=1e-5, rtol=0)


_ENOUGH = 4e-3  # of the range of the image: a correction that is smaller everywhere is the last; the next is a third
_LEAST, _MOST = 5, 40  # iterations before the corrections are looked at, for which a GPU has to wait, and at most
_COARSEST = 2  # rows or columns of an image that is not halved again
_SWEEPS = 3  # on the coarsest level
_HOLD, _TIE = 0.7, 0.25
_TINY = 1e-30


def inpaint(images: Tensor, missing: Tensor, iterations: int = _MOST) -> Tensor:
    """Return ``images`` ``[m, C, H, W]`` with the pixels ``missing`` ``[m, H, W]`` filled in from the others.

    What a missing pixel holds is added to what it is filled with: noise, or zero.
    """
    removed = missing[:, None].to(images.dtype)
    present = 1 - removed
    middle = (images * present).sum(dim=(2, 3), keepdim=True) / present.sum(dim=(2, 3), keepdim=True).clamp(min=1)
    centred = (images - middle) * present  # about zero, where rounding does the least harm
    span = (centred.amax(dim=(1, 2, 3), keepdim=True) - centred.amin(dim=(1, 2, 3), keepdim=True)).clamp(min=_TINY)
    levels = _levels(removed)
    start = _averages(centred, present)
    guess, residual = start * removed, -levels[0].apply(start)
    direction, energy = torch.zeros_like(guess), torch.ones_like(guess[..., :1, :1])
    active: Tensor | None = None
    for step in range(iterations):
        correction = _cycle(levels, residual)
        new = _dot(residual, correction)
        direction = torch.addcmul(correction, new / energy, direction)
        pushed = levels[0].apply(direction)
        length = new / _dot(direction, pushed).clamp(min=_TINY)
        if active is not None:  # what is done stays as it is, whoever stands beside it
            length = torch.where(active, length, torch.zeros_like(length))
        guess = torch.addcmul(guess, length, direction)
        residual = torch.addcmul(residual, length, pushed, value=-1)
        energy = new.clamp(min=_TINY)
        if step + 1 >= _LEAST:
            is_changing = correction.abs().amax(dim=(2, 3), keepdim=True) > _ENOUGH * span
            active = is_changing if active is None else active & is_changing
            if not active.any():
                break
    return torch.addcmul(images, removed, guess + middle)


class _Level(NamedTuple):
    """One size of the pictures, ``[m, 1, h, w]`` each: what ties a cell, what holds it, and one over its diagonal."""

    tie: Tensor | None
    """``None`` on the pixels themselves, where values are zero wherever nothing is missing."""
    diagonal: Tensor
    inverse: Tensor
    on: Tensor

    def apply(self, values: Tensor) -> Tensor:
        return applied(values, self.tie, self.on, self.diagonal)

    def sweep(self, values: Tensor, residual: Tensor) -> Tensor:
        return swept(values, self.tie, self.inverse, residual)


def _levels(removed: Tensor) -> list[_Level]:
    """Return the levels from the pixels to the coarsest."""
    share, hold = removed, removed * (spread(torch.ones_like(removed[:1])) - spread(removed))
    levels = [_level(None, removed * spread(removed) + hold, removed)]
    while min(share.shape[-2:]) > _COARSEST:
        share, hold = _quartered(share), _quartered(hold) * (4 * _HOLD)
        tie = share**_TIE
        levels.append(_level(tie, tie * spread(tie) + hold, (share > 0).to(removed)))
    return levels


def _level(tie: Tensor | None, diagonal: Tensor, on: Tensor) -> _Level:
    return _Level(tie, diagonal, on / diagonal.clamp(min=1e-6), on)


def _cycle(levels: list[_Level], residual: Tensor) -> Tensor:
    """Return one correction: sweep, go to the coarser level with what is left, come back, sweep."""
    level, *coarser = levels
    correction = level.inverse * residual
    if not coarser:
        for _ in range(_SWEEPS):
            correction = level.sweep(correction, residual)
        return correction
    remaining = left(correction, level.tie, level.on)  # the sweep has met the residual; its neighbours' are left
    below = _cycle(coarser, rougher(remaining, coarser[0].on))
    return level.sweep(finer(below, level.on, correction), residual)


def _quartered(values: Tensor) -> Tensor:
    return F.avg_pool2d(_even(values), 2)


def _even(values: Tensor) -> Tensor:
    height, width = values.shape[-2:]
    return F.pad(values, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else values


def _averages(images: Tensor, present: Tensor) -> Tensor:
    """Return a first guess: averages of what is present, halving the image until nothing is missing, then back up."""
    if present.shape[-1] == 1 and present.shape[-2] == 1:
        return images / present.clamp(min=1e-12)
    total, weight = _quartered(images), _quartered(present)
    reached = (weight > 0).to(images.dtype)
    coarse = _averages(total / weight.clamp(min=1e-12) * reached, reached)
    return torch.where(present > 0, images, prolonged(coarse, images.shape[-2:]))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    products: Tensor = torch.linalg.vecdot(a.flatten(2), b.flatten(2))
    return products[..., None, None]
