"""Gradients of what enters the model: pixels, or the tokens of a sub-network.

Guided backpropagation, and its product with a class activation map: for models whose activations are ReLUs.

DeepLift: what every pixel adds to the score, compared with a reference; for models whose activations are ReLUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, SpecError, TracingError
from vitreous.methods.base import Attribution, Method, computed
from vitreous.methods.cam import GradCAM
from vitreous.methods.registry import register_method
from vitreous.models import ReferenceModel, VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Activation, ActivationCache, Context, Pass, Record, activation_grad, upcast
from vitreous.tracing.rules.gradient import GUIDED, RESCALE

__all__ = [
    "DeepLift",
    "PIXEL_GRADIENT",
    "GuidedBackprop",
    "GuidedGradCAM",
    "IntegratedGradients",
    "PixelXGradient",
    "Saliency",
    "integrated",
    "needs_images",
    "to_map",
]

PIXEL_GRADIENT = Record("pixels", activation_grad)
"""The gradient of what enters the model."""


def over_channels(value: Tensor) -> Tensor:
    """Sum images ``[B, C, H, W]`` over channels, tokens ``[B, N, D]`` over their width."""
    return value.sum(dim=1 if value.ndim == 4 else -1)


def to_map(cache: ActivationCache, value: Tensor) -> Tensor:
    """Lay token values out on the grid; pixel values are on theirs already."""
    return cache.tokens_to_grid(value) if value.ndim == 2 else value


def needs_images(name: str, context: Context) -> None:
    """Refuse the tokens of a sub-network."""
    if context.inputs.ndim != 4:
        raise ModelError(f"{name} needs images, not the tokens of a sub-network")


def integrated(
    context: Context, start: float | Tensor, nodes: Tensor, weights: Tensor
) -> tuple[Tensor, ActivationCache]:
    """Return ``(x - x0) * sum_i w_i grad s(x0 + t_i (x - x0))`` before any sum over channels, and its last trace."""
    inputs = context.inputs
    way = inputs - start
    origin = start.unsqueeze(1) if isinstance(start, Tensor) else start
    total = torch.zeros_like(upcast(inputs))
    at_once = max(1, context.batch // len(inputs))
    for first in range(0, len(nodes), at_once):
        part = slice(first, first + at_once)
        times = nodes[part].view(1, -1, *[1] * (inputs.ndim - 1))
        points = (origin + times * way.unsqueeze(1)).flatten(0, 1)
        cache = context.with_inputs(points, repeat=times.shape[1]).run_pass(Pass((PIXEL_GRADIENT,)))
        gradient = cache[PIXEL_GRADIENT][0].reshape(len(inputs), -1, *inputs.shape[1:])
        total += torch.einsum("bs...,s->b...", gradient, weights[part].to(gradient))
    return upcast(way) * total, cache


def absolute(a: Activation) -> Tensor:
    """``sum_c |d s / d x_c|``."""
    return over_channels(a.grad.abs())


def times_gradient(a: Activation) -> Tensor:
    """``sum_c x_c d s / d x_c``."""
    return over_channels(a.value * a.grad)


@register_method("saliency", family="input", papers=("simonyan2014deep",))
@dataclass(frozen=True)
class Saliency(Method):
    """The size of the gradient of every pixel.

    ``sum_c |d s / d x_c|`` over the channels of the normalised image.
    """

    grid = "pixel"

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("pixels", absolute)]


@register_method("input_x_gradient", family="input", papers=("shrikumar2016not",))
@dataclass(frozen=True)
class PixelXGradient(Method):
    """Pixels times their gradient.

    ``sum_c x_c * d s / d x_c`` over the channels of the normalised image, signed: what fades is compared with the mean
    colour of the training set. The same on token vectors is ``ixg``.
    """

    grid = "pixel"

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("pixels", times_gradient)]


@register_method(
    "integrated_gradients", family="input", papers=("sundararajan2017axiomatic",), aliases=("ig",), cost=(50, 50)
)
@dataclass(frozen=True)
class IntegratedGradients(Method):
    """Pixels times their gradient, averaged along the straight path from a baseline.

    ``(x - x0) * sum_i w_i grad s(x0 + t_i (x - x0))`` with Gauss-Legendre nodes, summed over channels; the map sums to
    ``s(x) - s(x0)``. ``baseline`` is one value in normalised space: 0 is the mean colour of the training set.
    """

    steps: int = 50
    baseline: float = 0.0
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SpecError(f"steps={self.steps} must be at least 1")

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def compute(self, context: Context) -> Attribution:
        nodes, weights = (
            torch.from_numpy(array / 2).to(context.inputs) for array in np.polynomial.legendre.leggauss(self.steps)
        )
        found, cache = integrated(context, self.baseline, nodes + 0.5, weights)
        return Attribution(to_map(cache, over_channels(found)), {})


def summed(a: Activation) -> Tensor:
    """``sum_c d s / d x_c``."""
    return over_channels(a.grad)


@register_method("guided_backprop", family="input", papers=("springenberg2015striving",), models="ReLU")
@dataclass(frozen=True)
class GuidedBackprop(Method):
    """The gradient of every pixel, where only what is positive passes back through a ReLU.

    ``sum_c g_c`` over the channels of the normalised image, with g the gradient in a network whose ReLUs pass on
    ``[x > 0] (dy)+``. Where the image is covered with edges, so is the map, whatever the class: it fails sanity checks
    that the gradient passes. Refused where any other activation is on the way (GELU, SiLU): there it would be the
    plain gradient, silently.
    """

    grid = "pixel"
    composite = GUIDED

    def records(self, model: VisionModel) -> list[Record]:
        if not model.is_relu_only:
            why = f"so it would be the plain gradient at the other activations of {model.name}"
            raise ModelError(f"{self.info.name} changes gradients at ReLUs only, {why}; use saliency")
        return [Record("pixels", summed)]


@register_method(
    "guided_gradcam",
    family="input",
    papers=("selvaraju2017gradcam", "springenberg2015striving"),
    cost=(2, 2),
    models="ReLU",
    presets={"captum": {"enlarge": "nearest"}},
)
@dataclass(frozen=True)
class GuidedGradCAM(Method):
    """Guided backpropagation where Grad-CAM is positive.

    ``guided_backprop * (gradcam)+``, Grad-CAM enlarged to the image (``enlarge``: ``bilinear``, as in the paper, or
    ``nearest``, as in Captum). ``layer`` is that of ``gradcam``.
    """

    layer: int = -1
    enlarge: str = "bilinear"
    grid = "pixel"

    def __post_init__(self) -> None:
        check_choice("enlarge", self.enlarge, ("bilinear", "nearest"))

    @property
    def _factors(self) -> tuple[Method, Method]:
        return GuidedBackprop(), GradCAM(layer=self.layer)

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return tuple(ask for factor in self._factors for ask in factor.passes(model))

    def compute(self, context: Context) -> Attribution:
        needs_images(self.info.name, context)
        fine, coarse = (upcast(computed(context, factor).map) for factor in self._factors)
        corners = False if self.enlarge == "bilinear" else None
        size, shown = list(fine.shape[1:]), coarse.relu().unsqueeze(1)
        return Attribution(fine * F.interpolate(shown, size=size, mode=self.enlarge, align_corners=corners)[:, 0], {})


def shares(a: Activation) -> Tensor:
    """``sum_c (x_c - x0_c) m_c``."""
    assert isinstance(a.model, ReferenceModel)
    return over_channels(upcast(a.raw_value - a.model.reference) * a.grad)


_SHARES = Record("pixels", shares)


@register_method(
    "deeplift",
    family="input",
    papers=("shrikumar2017learning",),
    cost=(2, 2),
    presets={"captum": {"tie_breaking": "first"}},
    models="ReLU",
    revision=2,
)
@dataclass(frozen=True)
class DeepLift(Method):
    """Pixels times their multipliers: how far each moves the logit from that of a reference.

    ``sum_c (x_c - x0_c) m_c``, where m is the gradient in a network whose ReLUs and max poolings have the slope
    ``(y - y0) / (x - x0)`` between image and reference instead of their own (the rescale rule). What a window of a max
    pooling gained or lost goes to its largest number. The paper has no rule for ties: the largest ``share`` equally, or
    the ``first`` takes all, as in Captum (``@captum``), so that in constant regions the map leans to one side; the sum
    is the same. All else has to be linear, as convolutions, batch norms, means and sums are; then the map sums to
    ``s(x) - s(x0)``, which is checked. ``baseline`` is one value in normalised space: 0 is the mean colour of the
    training set. It explains logits, whatever value was asked for. Refused where anything else is on the way (GELU,
    LayerNorm, attention, a sigmoid that weighs channels): without a rule it would be the gradient there, and the sum
    would be wrong. Cost: image and reference, forward and backward; the reference is run once for a whole batch, and
    once more for its score.
    """

    baseline: float = 0.0
    tie_breaking: str = "share"
    grid = "pixel"

    def __post_init__(self) -> None:
        check_choice("tie_breaking", self.tie_breaking, tuple(RESCALE))

    @property
    def fixed_output(self) -> str:
        return "logit"

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        if not model.is_relu_only:
            raise ModelError(
                f"{self.info.name} has rules for ReLUs only: with no rule for GELU, LayerNorm or attention, it would "
                f"be input times gradient at those of {model.name}; use input_x_gradient, or integrated_gradients, "
                "whose map sums to the difference in score"
            )
        return ()

    def compute(self, context: Context) -> Attribution:
        self.passes(context.model)  # of a sub-network nobody asked before
        needs_images(self.info.name, context)
        inputs, model = context.model.cast(context.inputs), context.model
        reference = torch.full_like(inputs[0], self.baseline)
        context = context.with_output("logit")
        cache = context.with_inputs(inputs, ReferenceModel(model, reference)).run_pass(
            Pass((_SHARES,), RESCALE[self.tie_breaking])
        )
        found = cache[_SHARES][0]
        start = model.logits(reference[None]).expand_as(cache.logits)
        ends = context.target.score(cache.logits), context.target.score(start)
        change = ends[0] - ends[1]
        missed = (found.sum(dim=(1, 2)) - change).abs()
        epsilon = torch.finfo(model.dtype).eps
        allowed = max(1e-6, 1e4 * epsilon) * (found.abs().sum(dim=(1, 2)) + change.abs())
        allowed += 16 * epsilon * (ends[0].abs() + ends[1].abs())  # what rounding makes of two equal scores
        if bool((missed > allowed).any()):
            raise TracingError(
                f"{model.name}: deeplift misses the difference in score by {float(missed.max()):.3g}; the model or the "
                "target has something on the way that is not linear and has no rule; use integrated_gradients"
            )
        return Attribution(found, {})
