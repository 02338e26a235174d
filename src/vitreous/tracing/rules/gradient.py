"""Rules that change a gradient and leave every forward value as it is, bit for bit.

The linearized network holds attention weights, LayerNorm deviations and activation gates at their forward values; the
LayerNorm mean stays in the graph. That network is affine, and input times its gradient is DecompX without bias, from
every start layer at once (``methods/decomposition.py``).

Conservative LRP and AttnLRP are input times gradient under such rules too: they equal explicit relevance rules in the
limit of a vanishing stabiliser and need no denominator at all, so that they run in the model's own dtype at the price
of a backward. So do guided backpropagation and DeepLift's rescale rule, whose reference is the last row of every batch
(``models.ReferenceModel``): with the multiplier ``m = (y - y0) / (x - x0)`` in the place of a slope, the gradient times
``x - x0`` sums to the difference in score, as far as all else is linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.tracing.rules.base import (
    LAYER_NORMS,
    NORMS,
    RELUS,
    SIGMOIDS,
    AttentionRule,
    Call,
    Composite,
    Flows,
    Rule,
    upcast,
)


@dataclass(frozen=True)
class Hold(Rule):
    """What comes out is a constant: the weights of a written-out attention, the gate of another branch."""

    def __call__(self, call: Call) -> Any:
        with torch.no_grad():
            return call.run()


@dataclass(frozen=True)
class HoldAttention(AttentionRule):
    """Attention weights are constants: ``dV = A^T dO``, and nothing for queries and keys."""

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        return Flows(None, None, attention.to(v.dtype).transpose(-2, -1) @ flows)


@dataclass(frozen=True)
class HoldDeviation(Rule):
    """What a norm divides by is a constant; so is the length of a vector (the cosine of a zero-shot head).

    With ``mean`` the mean that a LayerNorm takes away is one too.
    """

    mean: bool = False

    def __call__(self, call: Call) -> Any:
        return frozen_norm(call, mean=self.mean) if call.func in NORMS else call.run().detach()


@dataclass(frozen=True)
class HoldGate(Rule):
    """An activation ``x g(x)`` keeps its gate g. QuickGELU is written with a sigmoid, a gate; a ReLU is its own."""

    def __call__(self, call: Call) -> Any:
        if call.func not in (F.gelu, F.silu):
            out = call.run()
            return out if call.func in RELUS else out.detach()
        x = call.args[0] if call.args else call.kwargs["input"]

        def value() -> tuple[Tensor, Tensor]:
            out = call.run()
            return out, (out / x).nan_to_num_(nan=0.5)  # 0 / 0: both of these gates are 1/2 at zero

        return Held.apply(x, value)


class Held(torch.autograd.Function):
    """An operation that goes back as ``dx = slope * dy`` with a constant slope, or ``slope * (dy)+`` if ``positive``.

    ``value()`` returns the model's own output, straight through, and the slope: computed as ``slope * x``, the output
    would differ in the last bit.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Callable[[], tuple[Tensor, Tensor]], in_place: bool = False, positive: bool = False
    ) -> Tensor:
        out, slope = value()
        ctx.save_for_backward(slope)
        ctx.positive = positive
        if in_place:
            ctx.mark_dirty(x)
            out = x.copy_(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        flow = grads[0].clamp(min=0) if ctx.positive else grads[0]
        return flow * ctx.saved_tensors[0], None, None, None


def frozen_norm(call: Call, x: Tensor | None = None, mean: bool = False) -> Tensor:
    """Return a norm of its input, or of x in its place, whose deviation (and perhaps mean) is a constant."""
    is_layer_norm = call.func in LAYER_NORMS
    names = ("input", "normalized_shape", "weight", *(("bias",) if is_layer_norm else ()), "eps")
    bound = call.bind(*names)
    x, shape, weight = bound["input"] if x is None else x, tuple(bound["normalized_shape"]), bound.get("weight")
    if is_layer_norm:
        return FrozenLayerNorm.apply(x, shape, weight, bound.get("bias"), bound.get("eps", 1e-5), mean)  # type: ignore[no-any-return]

    def rms_norm() -> tuple[Tensor, Tensor]:
        dims, eps = tuple(range(-len(shape), 0)), bound.get("eps")
        mean_square = upcast(x).square().mean(dim=dims, keepdim=True)
        inverse = torch.rsqrt(mean_square + (torch.finfo(x.dtype).eps if eps is None else eps)).to(x.dtype)
        return F.rms_norm(x, shape, weight, eps), inverse if weight is None else inverse * weight

    return Held.apply(x, rms_norm)  # type: ignore[no-any-return]


class FrozenLayerNorm(torch.autograd.Function):
    """LayerNorm whose deviation is a constant: ``dx = c - mean(c)`` with ``c = dy * weight / deviation``.

    Without the mean of c where the mean of x is a constant as well.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        held_mean: bool = False,
    ) -> Tensor:
        out, _, inverse = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.save_for_backward(weight, inverse)
        ctx.dims = None if held_mean else tuple(range(-len(shape), 0))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        weight, inverse = ctx.saved_tensors
        scaled = grads[0].clone() if weight is None else grads[0] * weight
        if ctx.dims is not None:
            scaled -= scaled.mean(dim=ctx.dims, keepdim=True)
        scaled *= inverse.to(scaled.dtype)
        return scaled, None, None, None, None, None


def conservative(gate: bool, mean: bool) -> Composite:
    """Return conservative propagation: attention and deviations held, perhaps gates of activations, and means too."""
    held = Composite.of(attention=HoldAttention(), softmax=Hold(), norm=HoldDeviation(mean))
    gates = (("activation", HoldGate()), ("gate", Hold())) if gate else ()
    return Composite(tuple(sorted(held.table + gates)))


LINEARIZED = conservative(gate=True, mean=False)
"""The network of DecompX: affine, with the gates, weights and deviations of the forward."""


@dataclass(frozen=True)
class HalfGradient(Rule):
    """A product of two factors that flow hands half of the gradient to each: what it says is counted once."""

    def __call__(self, call: Call) -> Any:
        out = call.run()
        if len(call.operands) < 2:
            return out
        return Held.apply(out, lambda: (out.view_as(out), out.new_tensor(0.5)))


@dataclass(frozen=True)
class HalfAttention(AttentionRule):
    """Both products of attention hand on halves: values get half of their gradient, queries and keys a quarter."""

    through = True

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        half = flows / 2
        grad = half @ v.transpose(-2, -1)
        product = attention * grad
        scores = (product - attention * product.sum(dim=-1, keepdim=True)).mul_(scale / 2).to(q.dtype)
        values = attention.to(v.dtype).transpose(-2, -1) @ half
        return Flows(scores @ k, scores.transpose(-2, -1) @ q, values)


ATTNLRP = Composite.of(
    attention=HalfAttention(),
    matmul=HalfGradient(),
    product=HalfGradient(),
    norm=HoldDeviation(),
    activation=HoldGate(),
    gate=HoldGate(),
)
"""AttnLRP: activations by their frozen gate, norms by their frozen deviation, products by halves, softmax as it is."""


@dataclass(frozen=True)
class Guided(Rule):
    """``dx = [x > 0] (dy)+`` at a ReLU. A sigmoid that weighs channels keeps its gradient; others have no such rule."""

    def __call__(self, call: Call) -> Any:
        if call.func in SIGMOIDS:
            return call.run()
        if call.func not in RELUS:
            raise ModelError(
                f"guided backpropagation changes gradients at ReLUs only, so it would be the plain gradient at the "
                f"{call.name} of {call.model_name}; use saliency"
            )
        x, in_place = relu_arguments(call)
        return Held.apply(x, lambda: (x.relu(), x > 0), in_place, True)


def relu_arguments(call: Call) -> tuple[Tensor, bool]:
    """Return the input of a ReLU, and whether it is written over."""
    x, *options = (*call.args, *call.kwargs.values())
    return x, call.func in (torch.relu_, Tensor.relu_) or any(option is True for option in options)


GUIDED = Composite.of(activation=Guided(), gate=Guided())
"""Guided backpropagation, as a table."""


def refuse(call: Call, what: str) -> ModelError:
    """Say that something on the way is not linear and has no multiplier."""
    why = f"so its map would not sum to the difference in score of {call.model_name}"
    return ModelError(f"deeplift has rules for ReLUs only, and none for {what}, {why}; use integrated_gradients")


@dataclass(frozen=True)
class RescaledReLU(Rule):
    """``m = (y - y0) / (x - x0)`` at a ReLU; its slope where x is what the reference has."""

    def __call__(self, call: Call) -> Any:
        if call.func not in RELUS:
            raise refuse(call, f"the {call.name}")
        x, in_place = relu_arguments(call)

        def value() -> tuple[Tensor, Tensor]:
            out, change = x.relu(), x[:-1] - x[-1:]
            slope = torch.where(change == 0, (x[:-1] > 0).to(x.dtype), (out[:-1] - out[-1:]) / change)
            return out, torch.cat([slope, torch.zeros_like(x[-1:])])

        return Held.apply(x, value, in_place)


@dataclass(frozen=True)
class RescaledPool(Rule):
    """Max pooling: what a window gained goes to where it is largest, or was, if it lost: ``m = (y - y0) / (x - x0)``.

    A window that gained has its largest number in the image, one that lost had it in the reference, so that m lies
    between 0 and 1. Numbers that are largest together share equally, and each share is divided by its own change:
    where no order is given, as in the constant regions of a reference, no corner of the window is preferred. With
    ``first`` the first of them takes all, as Captum has it. A number that is what the reference has gets its gradient,
    shared likewise.
    """

    first: bool = False

    def __call__(self, call: Call) -> Any:
        options = call.bind("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        if options.pop("return_indices", False):
            raise refuse(call, "a pooling that tells where its numbers are from")
        return _Pooled.apply(options.pop("input"), options, self.first)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: dict[str, Any], first: bool) -> Tensor:
        out: Tensor = F.max_pool2d(x, **options)
        ctx.save_for_backward(x, out)
        ctx.options, ctx.first = options, first
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, out = ctx.saved_tensors
        flow, change, gain = grads[0][:-1], x[:-1] - x[-1:], out[:-1] - out[-1:]
        gained = _to_largest(flow * gain.clamp(min=0), x[:-1], out[:-1], ctx.options, ctx.first)
        lost = _to_largest(flow * gain.clamp(max=0), x[-1:], out[-1:], ctx.options, ctx.first)
        gradient = _to_largest(flow, x[:-1], out[:-1], ctx.options, ctx.first)
        slope = torch.where(change == 0, gradient, (gained + lost) / change)
        return torch.cat([slope, torch.zeros_like(x[-1:])]), None, None


def _to_largest(values: Tensor, x: Tensor, out: Tensor, options: dict[str, Any], first: bool) -> Tensor:
    """Hand the number of each window ``[B, C, h, w]`` to where x is largest in it: all to the first, or shares."""
    kernel, dilation = _pair(options["kernel_size"]), _pair(options.get("dilation", 1))
    stride, padding = _pair(options.get("stride") or options["kernel_size"]), _pair(options.get("padding", 0))
    reach = [(out.shape[2 + i] - 1) * stride[i] + (kernel[i] - 1) * dilation[i] + 1 - padding[i] for i in (0, 1)]
    beyond = [max(padding[i], reach[i] - x.shape[2 + i]) for i in (0, 1)]  # with ceil_mode further than the padding
    padded = F.pad(x, (padding[1], beyond[1], padding[0], beyond[0]), value=-torch.inf)
    windows = F.unfold(padded.flatten(0, 1).unsqueeze(1), kernel, dilation, 0, stride)
    largest = windows.view(*x.shape[:2], -1, *out.shape[2:]) == out.unsqueeze(2)  # by position inside the window
    count = largest.cumsum(dim=2, dtype=torch.int32)
    weights = (largest & (count == 1)).to(x.dtype) if first else largest.to(x.dtype) / count[:, :, -1:].clamp(min=1)
    shares = (values.unsqueeze(2) * weights).flatten(0, 1).flatten(2)
    spread = F.fold(shares, padded.shape[2:], kernel, dilation, 0, stride).view(len(values), *padded.shape[1:])
    inner: Tensor = spread[..., padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]]
    return inner


def _pair(option: Any) -> tuple[int, int]:
    return (option, option) if isinstance(option, int) else tuple(option)


@dataclass(frozen=True)
class OneFactor(Rule):
    """A product is linear as long as only one factor depends on the image."""

    def __call__(self, call: Call) -> Any:
        if len(call.operands) > 1:
            raise refuse(call, "a product of two factors that both depend on the image")
        return call.run()


@dataclass(frozen=True)
class NoMultiplier(Rule):
    """Refuse what is not linear."""

    def __call__(self, call: Call) -> Any:
        raise refuse(call, f"the {call.name}")


def _rules(first: bool) -> Composite:
    return Composite.of(
        activation=RescaledReLU(),
        gate=NoMultiplier(),
        max_pool=RescaledPool(first),
        product=OneFactor(),
        norm=NoMultiplier(),
        softmax=NoMultiplier(),
    )


RESCALE = {"share": _rules(first=False), "first": _rules(first=True)}
"""DeepLift with the rescale rule, as a table, by what becomes of ties of max poolings."""
