"""Images that paths begin at: baselines of one's own, known by their content.

Guided integrated gradients: a path that first changes what matters least.

Integrated gradients along a path of ever sharper images.

Expected gradients: integrated gradients over many baselines, one random point of each path.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.datasets import file_digest, image_files, pictures
from vitreous.errors import ModelError, SpecError, one_line
from vitreous.methods.base import Attribution, Method
from vitreous.methods.input_gradient import PIXEL_GRADIENT, needs_images, over_channels, to_map
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.tracing import Context, Pass, upcast
from vitreous.tracing.statistics_collect import SCENES, VERSION, seen_scenes

__all__ = [
    "Background",
    "BlurIG",
    "GradientShap",
    "GuidedIG",
    "gaussian",
]


class Background:
    """Baselines: a tensor ``[K, C, H, W]`` in the model's normalised space, or images as ``explain`` takes them.

    Two are equal if their content is. Tensors, arrays and PIL images are copied; files are read when they are drawn,
    and must then hold what they held here.
    """

    def __init__(self, images: Any) -> None:
        self._items = _items(images)
        if not self._items:
            raise SpecError("there are no baselines: give one image or more")
        told = hashlib.blake2b(digest_size=16)
        for item in self._items:
            told.update(_content(item).encode())
        self.digest = told.hexdigest()

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
        wanted, positions = torch.unique(numbers, return_inverse=True)
        found = torch.stack([self._input(model, like, number) for number in wanted.tolist()])
        return found.to(like)[positions.to(like.device)]

    def _input(self, model: VisionModel, like: Tensor, number: int) -> Tensor:
        item = self._items[number]
        tensor = item if isinstance(item, Tensor) else next(iter(pictures(item, model))).tensor
        if tensor.shape != like.shape[1:]:
            given, wanted = list(tensor.shape), list(like.shape[1:])
            raise ModelError(f"baseline {number} is {given} for {model.name}, the input is {wanted}")
        return tensor


def _items(images: Any) -> tuple[Any, ...]:
    """Return the images one by one: tensors, arrays, PIL images and paths."""
    if isinstance(images, str | Path):
        return tuple(image_files(images))
    if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
        return tuple(item for image in images for item in _items(image))
    if isinstance(images, Tensor):
        if images.ndim != 3 or not images.is_floating_point() or not bool(torch.isfinite(images).all()):
            what = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            raise SpecError(f"baselines are finite numbers [K, C, H, W] or [C, H, W], got {what}")
        return (images.detach().cpu().clone(),)
    if isinstance(images, np.ndarray | Image.Image):
        return (images.copy(),)
    if isinstance(images, Sequence):
        return tuple(item for image in images for item in _items(image))
    raise SpecError(
        f"background={one_line(repr(images))[:60]} is none of normal, scenes, a picture or folder, a tensor, images"
    )


def _content(item: Any) -> str:
    """Return a digest of what one image is."""
    if isinstance(item, Path):
        return file_digest(item)
    if isinstance(item, Tensor):
        item = item.double().numpy()
    values = np.asarray(item)
    told = hashlib.blake2b(f"{values.dtype} {values.shape} ".encode(), digest_size=16)
    told.update(np.ascontiguousarray(values).tobytes())
    return told.hexdigest()


_CLOSE = 1e-9


@register_method("guided_ig", family="input", papers=("kapishnikov2021guided",), cost=(200, 200))
@dataclass(frozen=True)
class GuidedIG(Method):
    """Integrated gradients along a path that changes the features of small gradient first.

    A feature (a channel of a pixel) is a share ``a`` of its way from ``baseline`` to the image: ``x0 + a (x - x0)``.
    In step t of T, with the gradient g at the point reached and ``b = t / T``: features behind ``b - max_dist`` are
    moved there. Then, until ``sum |x - x0| (1 - a)`` has come down to ``(1 - b) sum |x - x0|``: of the features not
    yet at ``b + max_dist``, those whose ``|g|`` is at most the ``fraction`` quantile (the lower of two values; features
    that may not move count as infinite) go to ``b + max_dist``, or, in the last round, the share of that way that just
    meets the sum. The map is the sum of g times all movements, over channels. Each gradient is taken before its step,
    so the map sums to ``s(x) - s(x0)`` only roughly: closer with more steps on the straight path, but with a wide band
    the error stays (a tenth was measured at ``max_dist=0.2``, 200 and 800 steps alike).

    ``max_dist=0`` is the straight path, 1 lets every feature wait. Which feature moves is a matter of order: rounding
    can exchange two whose gradients are almost the same size, so the path is kept in float64. The map is signed and
    summed over channels; released code returns channels, and its pictures show absolute values.
    Kapishnikov et al., CVPR 2021. Cost: ``steps`` forwards and backwards, one after the other.
    """

    steps: int = 200
    fraction: float = 0.25
    max_dist: float = 0.02
    baseline: float = 0.0
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"steps={self.steps} must be at least 1")
        if not 0 < self.fraction <= 1:
            raise SpecError(f"fraction={self.fraction} must be above 0 and at most 1")
        if not 0 <= self.max_dist <= 1:
            raise SpecError(f"max_dist={self.max_dist} must be from 0 to 1")

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def compute(self, context: Context) -> Attribution:
        inputs = context.inputs
        way = inputs.double().flatten(1) - self.baseline
        size = way.abs()
        share = torch.zeros_like(way)
        total = torch.zeros_like(way)
        for step in range(1, self.steps + 1):
            point = (self.baseline + share * way).reshape(inputs.shape).to(inputs.dtype)
            cache = context.with_inputs(point).run_pass(Pass((PIXEL_GRADIENT,)))
            gradient = cache[PIXEL_GRADIENT][0].double().flatten(1)
            moved = self._moved(share, size, gradient.abs(), step / self.steps)
            total += gradient * (moved - share) * way
            share = moved
        found = total.reshape(inputs.shape).to(upcast(inputs).dtype)
        return Attribution(to_map(cache, over_channels(found)), {})

    def _moved(self, share: Tensor, size: Tensor, steepness: Tensor, along: float) -> Tensor:
        """Return how far every feature ``[B, F]`` is after a step to ``along``; images that are there stay there."""
        behind, ahead = max(along - self.max_dist, 0.0), min(along + self.max_dist, 1.0)
        lower = int((size.shape[1] - 1) * self.fraction) + 1
        goal = size.sum(dim=1) * (1 - along)
        share = torch.where((share < behind) & (size > 0), behind, share)
        going = torch.ones_like(goal, dtype=torch.bool)
        while True:
            left = (size * (1 - share)).sum(dim=1)
            going = going & ~torch.isclose(left, goal, rtol=_CLOSE, atol=_CLOSE)
            steep = steepness.masked_fill((share >= ahead) | (size == 0), torch.inf)
            limit = steep.kthvalue(lower, dim=1, keepdim=True).values
            chosen = (steep <= limit) & steep.isfinite() & going.unsqueeze(1)
            if not bool(chosen.any()):
                return share
            room = torch.where(chosen, size * (ahead - share), 0).sum(dim=1)
            part = ((left - goal) / room.clamp(min=torch.finfo(room.dtype).tiny)).clamp(min=0)
            further = torch.where(part.unsqueeze(1) > 1, ahead, share + part.unsqueeze(1) * (ahead - share))
            share = torch.where(chosen, further, share)
            going = going & (part > 1)


@register_method("blur_ig", family="input", papers=("xu2020attribution",), cost=(100, 100))
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
            raise SpecError(f"steps={self.steps} must be at least 1")
        if self.max_sigma <= 0 or self.grad_step <= 0:
            raise SpecError(f"max_sigma={self.max_sigma}, grad_step={self.grad_step} must be above 0")

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def compute(self, context: Context) -> Attribution:
        needs_images("blur_ig", context)
        inputs = upcast(context.inputs)
        sigmas = [i * self.max_sigma / self.steps for i in range(self.steps + 1)]
        if self.sqrt:
            sigmas = [math.sqrt(sigma) for sigma in sigmas]
        total = torch.zeros_like(inputs)
        at_once = max(1, context.batch // len(inputs))
        for first in range(0, self.steps, at_once):
            some = sigmas[first : first + at_once + 1]
            points, slopes = self._path(inputs, some[:-1])
            fork = context.with_inputs(points.flatten(0, 1).to(context.inputs.dtype), repeat=len(some) - 1)
            gradient = fork.run_pass(Pass((PIXEL_GRADIENT,)))[PIXEL_GRADIENT][0].view_as(slopes)
            widths = inputs.new_tensor([after - before for before, after in pairwise(some)])
            total -= torch.einsum("bschw,bschw,s->bchw", gradient, slopes, widths)
        return Attribution(over_channels(total), {})

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


_WORDS = ("normal", "scenes")


@register_method(
    "gradient_shap",
    family="input",
    papers=("erion2021improving",),
    aliases=("expected_gradients",),
    cost=(50, 50),
    presets={"captum": {"samples": 5}},
)
@dataclass(frozen=True)
class GradientShap(Method):
    """Integrated gradients averaged over random baselines: expected gradients.

    ``mean_i (x_i - b_i) * grad s(b_i + t_i (x_i - b_i))``, summed over channels, with ``t_i`` uniform in [0, 1) and
    ``x_i = x + sigma n_i``, ``n_i ~ N(0, 1)`` in normalised units (0: the image itself). The baselines ``b_i`` of
    ``background="normal"`` are standard normal numbers, what a pixel is like after normalisation; of ``"scenes"``, one
    at random of the 64 rendered scenes that the bottleneck methods learn from; otherwise, one at random of images of
    your own, as in the paper, which draws from the training set: a picture or a folder of them by its path, in Python
    also a tensor ``[K, C, H, W]`` in normalised space or images as ``explain`` takes them. The method is another if
    their content is. The mean over draws sums to ``s(x) - mean s(b)``; with few samples it is far from it. Draws depend
    on the seed and the image, not on its neighbours.
    Erion et al., Nature Machine Intelligence 2021. Preset ``captum``: 5 samples. Cost: ``samples`` forwards and
    backwards. Extras: ``halves``, the means of every other sample.
    """

    samples: int = 50
    sigma: float = 0.0
    background: str | Background = "normal"
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.samples < 1 or self.sigma < 0:
            raise SpecError(f"samples={self.samples}, sigma={self.sigma} must be at least 1 and at least 0")
        given: Any = self.background
        if not isinstance(given, str | Background):
            object.__setattr__(self, "background", Background(given))
        if isinstance(given, str) and not given:
            raise SpecError("background is empty; it takes normal, scenes, or a picture or folder of pictures")

    @property
    def cost(self) -> tuple[float, float]:
        return self.samples, self.samples

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "background": str(self.background)}

    @property
    def dependencies(self) -> dict[str, str]:
        if self.background == "normal":
            return {}
        return {"background": f"version {VERSION}" if self.background == "scenes" else self._own().digest}

    @property
    def notes(self) -> dict[str, Any]:
        return {} if self.background in _WORDS else {"baselines": str(self._own())}

    def _own(self) -> Background:
        return self.background if isinstance(self.background, Background) else Background(self.background)

    def compute(self, context: Context) -> Attribution:
        inputs = upcast(context.inputs)
        images = self._images(context, inputs)
        draws, shape = context.prng_key("gradient_shap"), inputs.shape[1:]
        sums = [torch.zeros_like(inputs), torch.zeros_like(inputs)]  # over every other sample
        at_once = max(1, context.batch // len(inputs))
        for first in range(0, self.samples, at_once):
            some = [draws.at(each) for each in range(first, min(self.samples, first + at_once))]
            times = torch.stack([each.uniform(1) for each in some], dim=1).to(inputs)
            if images is None:
                starts = torch.stack([each.fold_in("background").normal(*shape) for each in some], dim=1).to(inputs)
            else:
                count, chosen = images
                starts = chosen(torch.stack([each.fold_in("background").below(count) for each in some], dim=1))
            ends = inputs.unsqueeze(1)
            if self.sigma > 0:
                noise = torch.stack([each.fold_in("noise").normal(*shape) for each in some], dim=1).to(inputs)
                ends = ends + self.sigma * noise
            way = ends - starts
            points = starts + times.view(*times.shape[:2], *[1] * len(shape)) * way
            fork = context.with_inputs(points.flatten(0, 1).to(context.inputs.dtype), repeat=len(some))
            cache = fork.run_pass(Pass((PIXEL_GRADIENT,)))
            parts = way * cache[PIXEL_GRADIENT][0].view_as(way)
            sums = [each + parts[:, (first + i) % 2 :: 2].sum(dim=1) for i, each in enumerate(sums)]
        mean, *halves = (
            to_map(cache, over_channels(total / max(1, count)))
            for total, count in (
                (sums[0] + sums[1], self.samples),
                (sums[0], -(-self.samples // 2)),
                (sums[1], self.samples // 2),
            )
        )
        return Attribution(mean, {"halves": torch.stack(halves, dim=1)} if self.samples > 1 else {})

    def _images(self, context: Context, like: Tensor) -> tuple[int, Callable[[Tensor], Tensor]] | None:
        """Return how many images there are to begin at, and what returns those of some numbers; None for noise."""
        if self.background == "normal":
            return None
        needs_images(f"gradient_shap(background={self.background})", context)
        if self.background != "scenes":
            own = self._own()
            return len(own), partial(own.inputs, context.model, like)
        if like.shape[1] != 3 or len(context.model.preprocess.mean) != 3:
            raise ModelError(
                f"gradient_shap: {context.model.name} does not take the three channels of a rendered scene"
            )
        scenes = seen_scenes(context.model, like.shape[-2:]).to(like)
        return SCENES, lambda numbers: scenes[numbers]
