"""Integrated gradients along other paths: features of small gradient first, ever sharper images, random baselines."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.datasets import file_digest, image_files, load_images
from vitreous.errors import ModelError, SpecError, one_line
from vitreous.methods import ops
from vitreous.methods.base import Attribution, Method
from vitreous.methods.input_gradient import input_map, pixel_gradient, refuse_tokens
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import number
from vitreous.tracing import Context, upcast
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.statistics_collect import SCENES, VERSION, seen_scenes


class Background:
    """Baselines for expected gradients; two are equal if their content is.

    Parameters
    ----------
    images : Tensor, array, PIL image, path or sequence of such
        A tensor ``[K, C, H, W]`` in the model's normalised space, or images as ``explain`` takes them. Tensors, arrays
        and PIL images are copied; files are read when they are drawn, and must then hold what they held here.
    """

    def __init__(self, images: Any) -> None:
        self._items = _items(images)
        if not self._items:
            raise SpecError("there are no baselines: give one image or more")
        self.digest = _digest(*(_item_digest(item).encode() for item in self._items))

    def __len__(self) -> int:
        return len(self._items)

    def __str__(self) -> str:
        return f"{len(self)} image{'s' * (len(self) != 1)} ({self.digest[:12]})"

    def __repr__(self) -> str:
        return f"Background({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Background) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def inputs(self, model: VisionModel, like: Tensor, numbers: Tensor) -> Tensor:
        """Return the baselines of some numbers, shaped ``[*numbers.shape, C, H, W]`` as one image of ``like`` is."""
        distinct, index = torch.unique(numbers, return_inverse=True)
        images = torch.stack([self._input(model, like, number) for number in distinct.tolist()])
        return images.to(like)[index.to(like.device)]

    def _input(self, model: VisionModel, like: Tensor, number: int) -> Tensor:
        item = self._items[number]
        tensor = item if isinstance(item, Tensor) else next(iter(load_images(item, model))).tensor
        if tensor.shape != like.shape[1:]:
            shapes = list(tensor.shape), list(like.shape[1:])
            raise ModelError(f"baseline {number} is {shapes[0]} for {model.name}, the input is {shapes[1]}")
        return tensor


def _items(images: Any) -> tuple[Any, ...]:
    """Return the images one by one: tensors, arrays, PIL images and paths."""
    if isinstance(images, str | Path):
        return tuple(image_files(images))
    if isinstance(images, Sequence) or (isinstance(images, Tensor | np.ndarray) and images.ndim == 4):
        return tuple(item for image in images for item in _items(image))
    if isinstance(images, Tensor):
        if images.ndim != 3 or not images.is_floating_point() or not bool(torch.isfinite(images).all()):
            kind = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            raise SpecError(f"baselines are finite numbers [K, C, H, W] or [C, H, W], got {kind}")
        return (images.detach().cpu().clone(),)
    if isinstance(images, np.ndarray | Image.Image):
        return (images.copy(),)
    raise SpecError(
        f"background={one_line(repr(images))[:60]} is none of normal, scenes, a picture or folder, a tensor, images"
    )


def _item_digest(item: Any) -> str:
    if isinstance(item, Path):
        return file_digest(item)
    values = np.asarray(item.double().numpy() if isinstance(item, Tensor) else item)
    return _digest(f"{values.dtype} {values.shape} ".encode(), np.ascontiguousarray(values).tobytes())


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


_TOLERANCE = 1e-9


@register_method("guided_ig", family="input", papers=("kapishnikov2021guided",), cost=("steps", "steps"))
@dataclass(frozen=True)
class GuidedIG(Method):
    r"""Integrated gradients along a path that changes the features of small gradient first.

    .. math:: M = \sum_c \sum_t \frac{\partial s}{\partial z_c}(z_t)\, (z_{t+1} - z_t)_c

    A feature (a channel of a pixel) of the path is a share a of its way from the baseline to the image,
    :math:`z = x^0 + a (x - x^0)`. In step t of T, with the gradient g at the point reached and b = t / T, features
    behind b - ``max_dist`` are moved there. Then, until :math:`\sum |x - x^0| (1 - a)` has come down to
    :math:`(1 - b) \sum |x - x^0|`: of the features not yet at b + ``max_dist``, those whose :math:`|g|` is at most the
    ``fraction`` quantile (the lower of two values; features that may not move count as infinite) go to b +
    ``max_dist``, or, in the last round, the share of that way that just meets the sum.

    Parameters
    ----------
    steps : int, default 200
        The number T of steps.
    fraction : float, default 0.25
        The quantile of the gradient up to which features move, above 0 and at most 1.
    max_dist : float, default 0.02
        How far features may be from the straight path: 0 is the straight path, with 1 every feature may wait.
    baseline : float, default 0.0
        One value in normalised space for all of :math:`x^0`; 0 is the mean colour of the training set.

    Notes
    -----
    Each gradient is taken before its step, so the map sums to :math:`s(x) - s(x^0)` only roughly: closer with more
    steps on the straight path, but with a wide band the error stays (a tenth was measured at ``max_dist=0.2``, 200 and
    800 steps alike). Which feature moves is a matter of order: rounding can exchange two whose gradients are almost the
    same size, so the path is kept in float64. The map is signed and summed over channels; released code returns
    channels, and its pictures show absolute values. Cost: ``steps`` forwards and backwards, one after the other.

    References
    ----------
    Kapishnikov et al., "Guided Integrated Gradients: an Adaptive Path Method for Removing Noise", CVPR 2021.

    Examples
    --------
    >>> vt.explain(model, image, "guided_ig(steps=4)").map.shape
    torch.Size([128, 128])
    """

    steps: int = number(200, "[1, inf)")
    fraction: float = number(0.25, "(0, 1]")
    max_dist: float = number(0.02, "[0, 1]")
    baseline: float = 0.0
    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        inputs = context.inputs
        difference = inputs.double().flatten(1) - self.baseline
        size = difference.abs()
        share, total = torch.zeros_like(difference), torch.zeros_like(difference)
        for step in range(1, self.steps + 1):
            point = (self.baseline + share * difference).reshape(inputs.shape).to(inputs.dtype)
            gradient = pixel_gradient(context.with_inputs(point)).double().flatten(1)
            moved = self._move(share, size, gradient.abs(), step / self.steps)
            total += gradient * (moved - share) * difference
            share = moved
        return Attribution(input_map(context, total.reshape(inputs.shape).to(upcast(inputs).dtype)), {})

    def _move(self, share: Tensor, size: Tensor, steepness: Tensor, progress: float) -> Tensor:
        """Return how far every feature ``[B, F]`` is after a step to ``progress``; images that are there stay there."""
        behind, ahead = max(progress - self.max_dist, 0.0), min(progress + self.max_dist, 1.0)
        quantile = int((size.shape[1] - 1) * self.fraction) + 1
        goal = size.sum(dim=1) * (1 - progress)
        share = torch.where((share < behind) & (size > 0), behind, share)
        active = torch.ones_like(goal, dtype=torch.bool)
        while True:
            left = (size * (1 - share)).sum(dim=1)
            active = active & ~torch.isclose(left, goal, rtol=_TOLERANCE, atol=_TOLERANCE)
            steep = steepness.masked_fill((share >= ahead) | (size == 0), torch.inf)
            limit = steep.kthvalue(quantile, dim=1, keepdim=True).values
            chosen = (steep <= limit) & steep.isfinite() & active.unsqueeze(1)
            if not bool(chosen.any()):
                return share
            room = torch.where(chosen, size * (ahead - share), 0).sum(dim=1)
            part = ((left - goal) / room.clamp(min=torch.finfo(room.dtype).tiny)).clamp(min=0)
            further = torch.where(part.unsqueeze(1) > 1, ahead, share + part.unsqueeze(1) * (ahead - share))
            share = torch.where(chosen, further, share)
            active = active & (part > 1)


@register_method("blur_ig", family="input", papers=("xu2020attribution",), cost=("steps", "steps"))
@dataclass(frozen=True)
class BlurIG(Method):
    r"""Integrated gradients along the path from a blurred image to the sharp one.

    .. math::
        M = -\sum_c \sum_{i=0}^{T-1} (\sigma_{i+1} - \sigma_i)\, \frac{\partial s}{\partial z_c}(z_{\sigma_i})\,
            \frac{(z_{\sigma_i + h} - z_{\sigma_i})_c}{h}

    where :math:`z_\sigma` is the image under a Gaussian of deviation :math:`\sigma` pixels and
    :math:`\sigma_i = i \sigma_{max} / T`. The map sums to about :math:`s(x) - s(z_{\sigma_{max}})`, the less exactly
    the fewer the steps.

    Parameters
    ----------
    max_sigma : float, default 50.0
        The deviation :math:`\sigma_{max}` at the start of the path, in pixels.
    steps : int, default 100
        The number T of steps.
    grad_step : float, default 0.01
        The difference h of deviations by which the change of the image is measured.
    sqrt : bool, default False
        Whether deviations are the roots of :math:`\sigma_i`.

    Notes
    -----
    The blur is in the normalised space of the model's input; beyond the borders there are zeros, the mean colour of the
    training set, and the kernel ends at ``int(4 sigma + 0.5)`` pixels, as in released code. With a kernel that ends
    there, a deviation below 0.125 alone blurs nothing, so the first of the steps, at the sharp image, adds nothing.
    Released code multiplies a whole batch of steps by the width of its last one; here each has its own, which differs
    with ``sqrt`` only. The tokens of a sub-network are refused. Cost: ``steps`` forwards and backwards.

    References
    ----------
    Xu et al., "Attribution in Scale and Space", CVPR 2020.

    Examples
    --------
    >>> vt.explain(model, image, "blur_ig(steps=4)").map.shape
    torch.Size([128, 128])
    """

    max_sigma: float = number(50.0, "(0, inf)")
    steps: int = number(100, "[1, inf)")
    grad_step: float = number(0.01, "(0, inf)")
    sqrt: bool = False
    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        refuse_tokens("blur_ig", context)
        inputs = upcast(context.inputs)
        sigmas = [i * self.max_sigma / self.steps for i in range(self.steps + 1)]
        if self.sqrt:
            sigmas = [math.sqrt(sigma) for sigma in sigmas]
        widths = inputs.new_tensor([end - start for start, end in pairwise(sigmas)])
        total = torch.zeros_like(inputs)
        slopes = inputs

        def points(start: int, stop: int) -> Tensor:
            nonlocal slopes
            blurred, slopes = self._path(inputs, sigmas[start:stop])
            return blurred

        for copies, start, stop in context.batched_copies(points, self.steps):
            gradient = pixel_gradient(copies).view_as(slopes)
            total -= torch.einsum("bschw,bschw,s->bchw", gradient, slopes, widths[start:stop])
        return Attribution(input_map(context, total), {})

    def _path(self, images: Tensor, sigmas: list[float]) -> tuple[Tensor, Tensor]:
        """Return the blurred images ``[B, S, C, H, W]`` and how they change with sigma.

        The difference is taken of the kernels, in float64: of the images it would be lost in rounding.
        """
        now = [torch.stack([_blur_matrix(side, sigma) for sigma in sigmas]) for side in images.shape[-2:]]
        then = [torch.stack([_blur_matrix(side, s + self.grad_step) for s in sigmas]) for side in images.shape[-2:]]
        change = [((b - a) / self.grad_step).unsqueeze(1).to(images) for a, b in zip(now, then, strict=True)]
        rows, columns, columns_then = (matrix.unsqueeze(1).to(images) for matrix in (*now, then[1]))
        images = images.unsqueeze(1)
        half = rows @ images
        return half @ columns.mT, change[0] @ images @ columns_then.mT + half @ change[1].mT


def _blur_matrix(side: int, sigma: float) -> Tensor:
    """Return the matrix ``[side, side]`` in float64 that blurs a row of pixels with zeros beyond its ends."""
    if sigma == 0:
        return torch.eye(side, dtype=torch.float64)
    radius = int(4 * sigma + 0.5)
    offset = torch.arange(side) - torch.arange(side)[:, None]
    return ops.gaussian_kernel(sigma, radius)[offset.clamp(-radius, radius) + radius] * (offset.abs() <= radius)


@register_method(
    "gradient_shap",
    family="input",
    papers=("erion2021improving",),
    aliases=("expected_gradients",),
    cost=("samples", "samples"),
    presets={"captum": {"samples": 5}},
)
@dataclass(frozen=True)
class GradientShap(Method):
    r"""Integrated gradients averaged over random baselines: expected gradients.

    .. math::
        M = \frac{1}{n} \sum_i \sum_c (x_i - b_i)_c \frac{\partial s}{\partial x_c}\bigl(b_i + t_i (x_i - b_i)\bigr)

    with :math:`t_i` uniform in [0, 1), :math:`x_i = x + \sigma n_i`, and :math:`n_i` standard normal. The mean over
    draws sums to :math:`s(x) - E\, s(b)`; with few samples it is far from it.

    Parameters
    ----------
    samples : int, default 50
        The number n of draws; 5 in Captum (``@captum``).
    sigma : float, default 0.0
        The deviation of the noise in normalised units; 0 is the image itself.
    background : str or Background, default "normal"
        The baselines :math:`b_i`: ``"normal"``, standard normal numbers, what a pixel is like after normalisation;
        ``"scenes"``, one at random of the 64 rendered scenes that the bottleneck methods learn from; otherwise one at
        random of images of your own, as in the paper, which draws from the training set: a picture or a folder of them
        by its path, in Python also what ``Background`` takes. The method is another if their content is.

    Notes
    -----
    Draws depend on the seed and the image, not on its neighbours. Extras: ``halves``, the means of every other sample.
    Cost: ``samples`` forwards and backwards.

    References
    ----------
    Erion et al., "Improving Performance of Deep Learning Models with Axiomatic Attribution Priors and Expected
    Gradients", Nature Machine Intelligence 2021.

    Examples
    --------
    >>> vt.explain(model, image, "gradient_shap(samples=4)").extras["halves"].shape
    torch.Size([2, 128, 128])
    """

    samples: int = number(50, "[1, inf)")
    sigma: float = number(0.0, "[0, inf)")
    background: str | Background = "normal"
    grid = "pixel"

    def __post_init__(self) -> None:
        super().__post_init__()
        background: Any = self.background
        if not isinstance(background, str | Background):
            object.__setattr__(self, "background", Background(background))
        elif not background:
            raise SpecError("background is empty; it takes normal, scenes, or a picture or folder of pictures")

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "background": str(self.background)}

    @property
    def dependencies(self) -> dict[str, str]:
        if self.background == "normal":
            return {}
        return {"background": f"version {VERSION}" if self.background == "scenes" else self._images.digest}

    @property
    def notes(self) -> dict[str, Any]:
        return {} if self.background in ("normal", "scenes") else {"baselines": str(self._images)}

    @property
    def _images(self) -> Background:
        return self.background if isinstance(self.background, Background) else Background(self.background)

    def compute(self, context: Context) -> Attribution:
        inputs = upcast(context.inputs)
        baselines = self._baselines(context, inputs)
        key, shape = context.prng_key("gradient_shap"), inputs.shape[1:]
        means, difference = ops.HalfMeans(), inputs

        def points(start: int, stop: int) -> Tensor:
            nonlocal difference
            keys = [key.at(number) for number in range(start, stop)]
            times = torch.stack([key.uniform(1) for key in keys], dim=1).to(inputs)
            starts = baselines([key.fold_in("background") for key in keys])
            ends = inputs.unsqueeze(1)
            if self.sigma > 0:
                noise = torch.stack([key.fold_in("noise").normal(*shape) for key in keys], dim=1).to(inputs)
                ends = ends + self.sigma * noise
            difference = ends - starts
            return starts + times.view(*times.shape[:2], *[1] * len(shape)) * difference

        for copies, _, _ in context.batched_copies(points, self.samples):
            means.add(difference * pixel_gradient(copies).view_as(difference))
        if self.samples == 1:
            return Attribution(input_map(context, means.mean), {})
        halves = [input_map(context, half) for half in means.halves.unbind(dim=1)]
        return Attribution(input_map(context, means.mean), {"halves": torch.stack(halves, dim=1)})

    def _baselines(self, context: Context, like: Tensor) -> Callable[[list[PRNGKey]], Tensor]:
        """Return what draws a baseline of every image with each of some keys, ``[B, keys, C, H, W]``."""
        if self.background == "normal":
            return lambda keys: torch.stack([key.normal(*like.shape[1:]) for key in keys], dim=1).to(like)
        refuse_tokens(f"gradient_shap(background={self.background})", context)
        if self.background != "scenes":
            images = self._images
            return lambda keys: images.inputs(context.model, like, _draw_below(len(images), keys))
        if like.shape[1] != 3 or len(context.model.preprocess.mean) != 3:
            raise ModelError(
                f"gradient_shap: {context.model.name} does not take the three channels of a rendered scene"
            )
        scenes = seen_scenes(context.model, like.shape[-2:]).to(like)
        return lambda keys: scenes[_draw_below(SCENES, keys)]


def _draw_below(count: int, keys: list[PRNGKey]) -> Tensor:
    return torch.stack([key.below(count) for key in keys], dim=1)
