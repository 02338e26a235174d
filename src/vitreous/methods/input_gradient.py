"""Gradients of what enters the model: pixels, or the tokens of a sub-network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, TracingError
from vitreous.methods.base import Attribution, Method, compute_shared
from vitreous.methods.cam import GradCAM
from vitreous.methods.registry import register_method
from vitreous.models import ReferenceModel, VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import Activation, ActivationCache, Context, Pass, Record, activation_grad, upcast
from vitreous.tracing.rules.gradient import GUIDED, RESCALE

_GRADIENT = Record("pixels", activation_grad)


def sum_channels(value: Tensor) -> Tensor:
    """Sum images ``[B, C, H, W]`` over channels, tokens ``[B, N, D]`` over their width."""
    return value.sum(dim=1 if value.ndim == 4 else -1)


def input_map(context: Context, value: Tensor) -> Tensor:
    """Sum over channels; lay the tokens of a sub-network out on their grid."""
    total = sum_channels(value)
    if total.ndim == 3:
        return total
    return total[:, context.model.num_prefix_tokens :].reshape(-1, *context.model.grid(context.inputs))


def pixel_gradient(context: Context) -> Tensor:
    """Return the gradient of the score, shaped like the inputs."""
    return context.run_pass(Pass((_GRADIENT,)))[_GRADIENT][0]


def refuse_tokens(name: str, context: Context) -> None:
    """Refuse the tokens of a sub-network."""
    if context.inputs.ndim != 4:
        raise ModelError(f"{name} needs images, not the tokens of a sub-network")


def integrated_gradient(context: Context, baseline: float | Tensor, nodes: Tensor, weights: Tensor) -> Tensor:
    """Return ``(x - x0) * sum_i w_i grad s(x0 + t_i (x - x0))``, shaped like the inputs."""
    inputs = context.inputs
    difference = inputs - baseline
    origin = baseline.unsqueeze(1) if isinstance(baseline, Tensor) else baseline
    total = torch.zeros_like(upcast(inputs))

    def points(start: int, stop: int) -> Tensor:
        times = nodes[start:stop].view(1, -1, *[1] * (inputs.ndim - 1))
        return origin + times * difference.unsqueeze(1)

    for copies, start, stop in context.batched_copies(points, len(nodes)):
        gradient = pixel_gradient(copies).reshape(len(inputs), -1, *inputs.shape[1:])
        total += torch.einsum("bs...,s->b...", gradient, weights[start:stop].to(gradient))
    return upcast(difference) * total


def absolute_gradient(a: Activation) -> Tensor:
    """``sum_c |d s / d x_c|``."""
    return sum_channels(a.grad.abs())


def times_gradient(a: Activation) -> Tensor:
    """``sum_c x_c d s / d x_c``."""
    return sum_channels(a.value * a.grad)


def summed_gradient(a: Activation) -> Tensor:
    """``sum_c d s / d x_c``."""
    return sum_channels(a.grad)


def times_multiplier(a: Activation) -> Tensor:
    """``sum_c (x_c - x0_c) m_c``."""
    assert isinstance(a.model, ReferenceModel)
    return sum_channels(upcast(a.raw_value - a.model.reference) * a.grad)


@register_method("saliency", family="input", papers=("simonyan2014deep",))
@dataclass(frozen=True)
class Saliency(Method):
    r"""The size of the gradient of every pixel.

    .. math:: M = \sum_c \left| \frac{\partial s}{\partial x_c} \right|

    over the channels c of the normalised image.

    Notes
    -----
    Cost: one forward and one backward.

    References
    ----------
    Simonyan et al., "Deep Inside Convolutional Networks", ICLR Workshop 2014.

    Examples
    --------
    >>> vt.explain(model, image, "saliency").map.shape
    torch.Size([128, 128])
    """

    grid = "pixel"

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("pixels", absolute_gradient)]


@register_method("input_x_gradient", family="input", papers=("shrikumar2016not",))
@dataclass(frozen=True)
class PixelXGradient(Method):
    r"""Pixels times their gradient.

    .. math:: M = \sum_c x_c \frac{\partial s}{\partial x_c}

    over the channels c of the normalised image, signed.

    Notes
    -----
    What fades is compared with the mean colour of the training set. The same on token vectors is ``ixg``. Cost: one
    forward and one backward.

    References
    ----------
    Shrikumar et al., "Not Just a Black Box", arXiv 2016.

    Examples
    --------
    >>> vt.explain(model, image, "input_x_gradient").map.shape
    torch.Size([128, 128])
    """

    grid = "pixel"

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("pixels", times_gradient)]


@register_method(
    "integrated_gradients",
    family="input",
    papers=("sundararajan2017axiomatic",),
    aliases=("ig",),
    cost=("steps", "steps"),
)
@dataclass(frozen=True)
class IntegratedGradients(Method):
    r"""Pixels times their gradient, averaged along the straight path from a baseline.

    .. math:: M = \sum_c (x_c - x^0_c) \sum_i w_i \frac{\partial s}{\partial x_c}\bigl(x^0 + t_i (x - x^0)\bigr)

    with Gauss-Legendre nodes :math:`t_i` and weights :math:`w_i`. The map sums to :math:`s(x) - s(x^0)`.

    Parameters
    ----------
    steps : int, default 50
        How many points of the path.
    baseline : float, default 0.0
        One value in normalised space for all of :math:`x^0`; 0 is the mean colour of the training set.

    Notes
    -----
    Cost: ``steps`` forwards and backwards.

    References
    ----------
    Sundararajan et al., "Axiomatic Attribution for Deep Networks", ICML 2017.

    Examples
    --------
    >>> vt.explain(model, image, "ig(steps=4)").map.shape
    torch.Size([128, 128])
    """

    steps: int = number(50, "[1, inf)")
    baseline: float = 0.0
    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        nodes, weights = (
            torch.from_numpy(array / 2).to(context.inputs) for array in np.polynomial.legendre.leggauss(self.steps)
        )
        return Attribution(input_map(context, integrated_gradient(context, self.baseline, nodes + 0.5, weights)), {})


@register_method("guided_backprop", family="input", papers=("springenberg2015striving",), models="ReLU")
@dataclass(frozen=True)
class GuidedBackprop(Method):
    r"""The gradient of every pixel, where only what is positive passes back through a ReLU.

    .. math:: M = \sum_c g_c, \qquad \bar x = [x > 0]\,(\bar y)^+ \text{ at every ReLU } y = x^+

    with g what arrives at the normalised image, and :math:`\bar x`, :math:`\bar y` what flows backward.

    Raises
    ------
    ModelError
        Where any other activation is on the way (GELU, SiLU): there it would be the plain gradient, silently.

    Notes
    -----
    Where the image is covered with edges, so is the map, whatever the class: it fails sanity checks that the gradient
    passes. Cost: one forward and one backward.

    References
    ----------
    Springenberg et al., "Striving for Simplicity: The All Convolutional Net", ICLR Workshop 2015.

    Examples
    --------
    >>> vt.get_method("guided_backprop").info.models
    'ReLU'
    """

    grid = "pixel"
    composite = GUIDED

    def records(self, model: VisionModel) -> list[Record]:
        if not model.is_relu_only:
            raise ModelError(
                f"{self.info.name} changes gradients at ReLUs only, so it would be the plain gradient at the other "
                f"activations of {model.name}; use saliency"
            )
        return [Record("pixels", summed_gradient)]


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
    r"""Guided backpropagation where Grad-CAM is positive.

    .. math:: M = G \cdot \operatorname{enlarge}\bigl((C)^+\bigr)

    with G the map of ``guided_backprop`` and C that of ``gradcam``.

    Parameters
    ----------
    layer : int, default -1
        The layer of ``gradcam``.
    enlarge : {"bilinear", "nearest"}, default "bilinear"
        How Grad-CAM is enlarged to the image: as in the paper, or as in Captum (``@captum``).

    Raises
    ------
    ModelError
        As for ``guided_backprop``.

    Notes
    -----
    Cost: two forwards and two backwards.

    References
    ----------
    Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV 2017.

    Examples
    --------
    >>> print(vt.get_method("guided_gradcam@captum"))
    guided_gradcam(enlarge=nearest)
    """

    layer: int = -1
    enlarge: str = choice("bilinear", "nearest")
    grid = "pixel"

    @property
    def _factors(self) -> tuple[Method, Method]:
        return GuidedBackprop(), GradCAM(layer=self.layer)

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return tuple(pass_run for factor in self._factors for pass_run in factor.passes(model))

    def compute(self, context: Context) -> Attribution:
        refuse_tokens(self.info.name, context)
        guided, cam = (upcast(compute_shared(context, factor).map) for factor in self._factors)
        corners = False if self.enlarge == "bilinear" else None
        size = list(guided.shape[1:])
        enlarged = F.interpolate(cam.relu().unsqueeze(1), size=size, mode=self.enlarge, align_corners=corners)
        return Attribution(guided * enlarged[:, 0], {})


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
    r"""Pixels times their multipliers: how far each moves the logit from that of a reference.

    .. math:: M = \sum_c (x_c - x^0_c)\, m_c

    where m is the gradient in a network whose ReLUs and max poolings have the slope :math:`(y - y^0) / (x - x^0)`
    between image and reference instead of their own (the rescale rule). The map sums to :math:`s(x) - s(x^0)`, which is
    checked.

    Parameters
    ----------
    baseline : float, default 0.0
        One value in normalised space for all of :math:`x^0`; 0 is the mean colour of the training set.
    tie_breaking : {"share", "first"}, default "share"
        What a window of a max pooling gained or lost goes to its largest number. The paper has no rule for ties: the
        largest share equally, or the first takes all, as in Captum (``@captum``), so that in constant regions the map
        leans to one side. The sum is the same.

    Raises
    ------
    ModelError
        Where anything but ReLUs, max poolings and linear operations is on the way (GELU, LayerNorm, attention, a
        sigmoid that weighs channels): without a rule it would be the gradient there, and the sum would be wrong.
    TracingError
        If the sum misses the difference in score.

    Notes
    -----
    It explains logits, whatever output is asked for. Cost: image and reference, forward and backward; the reference is
    run once for a whole batch, and once more for its score.

    References
    ----------
    Shrikumar et al., "Learning Important Features Through Propagating Activation Differences", ICML 2017.

    Examples
    --------
    >>> print(vt.get_method("deeplift@captum"))
    deeplift(tie_breaking=first)
    """

    baseline: float = 0.0
    tie_breaking: str = choice("share", *RESCALE)
    grid = "pixel"
    fixed_output = "logit"

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        if not model.is_relu_only:
            raise ModelError(
                f"{self.info.name} has rules for ReLUs only: with no rule for GELU, LayerNorm or attention, it would "
                f"be input times gradient at those of {model.name}; use input_x_gradient, or integrated_gradients, "
                "whose map sums to the difference in score"
            )
        return ()

    def compute(self, context: Context) -> Attribution:
        self.passes(context.model)  # a sub-network has not been asked before
        refuse_tokens(self.info.name, context)
        inputs, model = context.model.cast(context.inputs), context.model
        reference = torch.full_like(inputs[0], self.baseline)
        context = context.with_output("logit")
        record = Record("pixels", times_multiplier)
        cache = context.with_inputs(inputs, ReferenceModel(model, reference)).run_pass(
            Pass((record,), RESCALE[self.tie_breaking])
        )
        maps = cache[record][0]
        self._check_sum(maps, context, cache, model.logits(reference[None]).expand_as(cache.logits))
        return Attribution(maps, {})

    def _check_sum(self, maps: Tensor, context: Context, cache: ActivationCache, reference_logits: Tensor) -> None:
        """Refuse maps that do not sum to the difference in score, but for rounding."""
        score, reference_score = context.target.score(cache.logits), context.target.score(reference_logits)
        change = score - reference_score
        error = (maps.sum(dim=(1, 2)) - change).abs()
        epsilon = torch.finfo(context.model.dtype).eps
        allowed = max(1e-6, 1e4 * epsilon) * (maps.abs().sum(dim=(1, 2)) + change.abs())
        allowed += 16 * epsilon * (score.abs() + reference_score.abs())  # what rounding makes of two equal scores
        if bool((error > allowed).any()):
            raise TracingError(
                f"{context.model.name}: deeplift misses the difference in score by {float(error.max()):.3g}; the model "
                "or the target has something on the way that is not linear and has no rule; use integrated_gradients"
            )
