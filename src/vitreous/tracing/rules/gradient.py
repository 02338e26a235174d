"""The frozen network: attention weights, LayerNorm deviations and activation gates held at their forward values.

The LayerNorm mean stays in the graph. That network is affine, and input times its gradient is DecompX without bias,
from every start layer at once (``methods/decomposition.py``). Forward values are the model's own, bit for bit.

Relevance as input times a modified gradient: tables for conservative LRP and AttnLRP.

Both equal explicit relevance rules in the limit of a vanishing stabiliser, and need no denominator at all, so that they
run in the model's own dtype at the price of a backward.

Guided backpropagation: at a ReLU only what is positive goes on, in the forward and in the backward.

DeepLift's rescale rule: what is not linear hands on the slope between an image and a reference.

The reference is the last row of every batch (``models.BesideView``). With the multiplier ``m = (y - y0) / (x - x0)`` in
the place of a slope, the gradient times ``x - x0`` sums to the difference in score, as far as all else is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.tracing.intercept import IN_PLACE, RELUS
from vitreous.tracing.rules.base import AttentionRule, Call, Composite, Flows, Rule, flowing

__all__ = [
    "ATTNLRP",
    "LINEARIZED",
    "GUIDED",
    "Guided",
    "Hold",
    "HoldAttention",
    "HoldDeviation",
    "HoldGate",
    "RESCALE",
    "conservative",
]


@dataclass(frozen=True)
class Hold(Rule):
    """What comes out is a constant: the weights of a written-out attention, the gate of another branch."""

    def __call__(self, call: Call) -> Any:
        with torch.no_grad():
            return call.plain()


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
        if call.func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(self.mean, *call.args, **call.kwargs)
        if call.func in (F.rms_norm, torch.rms_norm):
            return _rms_norm(*call.args, **call.kwargs)
        return call.plain().detach()


@dataclass(frozen=True)
class HoldGate(Rule):
    """An activation ``x g(x)`` keeps its gate g. QuickGELU is written with a sigmoid, a gate; a ReLU is its own."""

    def __call__(self, call: Call) -> Any:
        if call.func in (F.gelu, F.silu):
            with torch.no_grad():
                out: Tensor = call.plain()
            return FrozenGate.apply(call.args[0] if call.args else call.kwargs["input"], out)
        plain = call.plain()
        return plain if call.func in RELUS else plain.detach()


def _layer_norm(
    held_mean: bool,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Any:
    return FrozenLayerNorm.apply(input, tuple(normalized_shape), weight, bias, eps, held_mean)


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    return FrozenRMSNorm.apply(input, tuple(normalized_shape), weight, eps)


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


class FrozenRMSNorm(torch.autograd.Function):
    """RMSNorm whose root mean square is a constant: ``dx = dy * weight / rms``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Tensor | None, eps: float | None) -> Tensor:
        dims = tuple(range(-len(shape), 0))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        full = x if x.dtype == torch.float64 else x.float()
        inverse = torch.rsqrt(full.square().mean(dim=dims, keepdim=True) + eps).to(x.dtype)
        ctx.save_for_backward(inverse if weight is None else inverse * weight)
        return F.rms_norm(x, shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None, None, None


class FrozenGate(torch.autograd.Function):
    """An activation ``x * g(x)`` whose gate ``g`` is a constant: ``dx = g dy`` (GELU: ``g = Phi``; SiLU: sigmoid).

    The gate is the quotient of output and input; both of these gates are 1/2 at zero.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward((out / x).nan_to_num_(nan=0.5))  # 0 / 0
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.saved_tensors[0], None


LINEARIZED = Composite.of(
    attention=HoldAttention(), softmax=Hold(), norm=HoldDeviation(), activation=HoldGate(), gate=Hold()
)
"""The frozen network of DecompX, as a table."""


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.factor, None


@dataclass(frozen=True)
class HalfGradient(Rule):
    """A product of two factors that flow hands half of the gradient to each: what it says is counted once."""

    def __call__(self, call: Call) -> Any:
        out = call.plain()
        return _Scaled.apply(out, 0.5) if len(flowing(call)) > 1 else out


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


def conservative(gate: bool, mean: bool) -> Composite:
    """Return conservative propagation: attention and deviations held, perhaps gates of activations, and means too."""
    held = Composite.of(attention=HoldAttention(), softmax=Hold(), norm=HoldDeviation(mean))
    gates = Composite.of(activation=HoldGate(), gate=Hold())
    return Composite(tuple(sorted(held.table + gates.table, key=lambda pair: pair[0]))) if gate else held


_GATES = (torch.sigmoid, F.sigmoid, Tensor.sigmoid)


@dataclass(frozen=True)
class Guided(Rule):
    """``dx = [x > 0] (dy)+`` at a ReLU. A sigmoid that weighs channels keeps its gradient; others have no such rule."""

    def __call__(self, call: Call) -> Any:
        if call.func in _GATES:
            return call.plain()
        if call.func not in RELUS:
            name = call.model.name if call.model is not None else "this model"
            raise ModelError(
                f"guided backpropagation changes gradients at ReLUs only, so it would be the plain gradient at the "
                f"{getattr(call.func, '__name__', 'activation')} of {name}; use saliency"
            )
        given = [*call.args, *call.kwargs.values()]
        return _Guided.apply(given[0], call.func in IN_PLACE or any(each is True for each in given[1:]))


class _Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, in_place: bool) -> Tensor:
        if in_place:
            ctx.mark_dirty(x)
        out = x.relu_() if in_place else x.relu()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (out,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(grads[0], out, 0).clamp_(min=0), None


GUIDED = Composite.of(activation=Guided(), gate=Guided())
"""Guided backpropagation, as a table."""


def refuse(call: Call, what: str) -> ModelError:
    """Say that something on the way is not linear and has no multiplier."""
    name = call.model.name if call.model is not None else "this model"
    why = f"so its map would not sum to the difference in score of {name}"
    return ModelError(f"deeplift has rules for ReLUs only, and none for {what}, {why}; use integrated_gradients")


@dataclass(frozen=True)
class RescaledReLU(Rule):
    """``m = (y - y0) / (x - x0)`` at a ReLU; its slope where x is what the reference has."""

    def __call__(self, call: Call) -> Any:
        if call.func not in RELUS:
            raise refuse(call, f"the {getattr(call.func, '__name__', 'activation')}")
        given = [*call.args, *call.kwargs.values()]
        return _Multiplied.apply(given[0], call.func in IN_PLACE or any(each is True for each in given[1:]))


class _Multiplied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, in_place: bool) -> Tensor:
        out, way = x.relu(), x[:-1] - x[-1:]
        slope = torch.where(way == 0, (x[:-1] > 0).to(x.dtype), (out[:-1] - out[-1:]) / way)
        ctx.save_for_backward(slope)
        if in_place:
            ctx.mark_dirty(x)
            return x.copy_(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        return torch.cat([grads[0][:-1] * slope, torch.zeros_like(grads[0][-1:])]), None


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
        names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
        if given.pop("return_indices", False):
            raise refuse(call, "a pooling that tells where its numbers are from")
        return _Pooled.apply(given.pop("input"), given, self.first)


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
        flow, way, gain = grads[0][:-1], x[:-1] - x[-1:], out[:-1] - out[-1:]
        how = ctx.options, ctx.first
        gained = _to_largest(flow * gain.clamp(min=0), x[:-1], out[:-1], *how)
        lost = _to_largest(flow * gain.clamp(max=0), x[-1:], out[-1:], *how)
        plain = _to_largest(flow, x[:-1], out[:-1], *how)
        slope = torch.where(way == 0, plain, (gained + lost) / way)
        return torch.cat([slope, torch.zeros_like(x[-1:])]), None, None


def _to_largest(values: Tensor, x: Tensor, out: Tensor, options: dict[str, Any], first: bool) -> Tensor:
    """Hand the number of each window ``[B, C, h, w]`` to where x is the window's largest: all to the first, or shares.

    One step for each position inside a window: windows may overlap, those of one position do not.
    """
    (height, width), (down, across) = _pair(options["kernel_size"]), _pair(options.get("dilation", 1))
    step, padding = _pair(options.get("stride") or options["kernel_size"]), _pair(options.get("padding", 0))
    rows, columns = ((count - 1) * each + 1 for count, each in zip(out.shape[2:], step, strict=True))
    beyond = [  # how far the last window reaches: with ceil_mode further than the padding
        max(padding[0], rows + (height - 1) * down - padding[0] - x.shape[2]),
        max(padding[1], columns + (width - 1) * across - padding[1] - x.shape[3]),
    ]
    padded = F.pad(x, (padding[1], beyond[1], padding[0], beyond[0]), value=-torch.inf)
    places = [
        (..., slice(top, top + rows, step[0]), slice(left, left + columns, step[1]))
        for top in range(0, height * down, down)
        for left in range(0, width * across, across)
    ]
    largest = torch.stack([padded[place] == out for place in places])
    count = largest.cumsum(dim=0, dtype=torch.int32)
    weights = (largest & (count == 1)).to(x.dtype) if first else largest.to(x.dtype) / count[-1:].clamp(min=1)
    spread = padded.new_zeros(len(values), *padded.shape[1:])
    for place, weight in zip(places, weights, strict=True):
        spread[place] += values * weight
    inner: Tensor = spread[..., padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]]
    return inner


def _pair(option: Any) -> tuple[int, int]:
    first, second = option if isinstance(option, tuple | list) else (option, option)
    return int(first), int(second)


@dataclass(frozen=True)
class OneFactor(Rule):
    """A product is linear as long as only one factor depends on the image."""

    def __call__(self, call: Call) -> Any:
        if len(flowing(call)) > 1:
            raise refuse(call, "a product of two factors that both depend on the image")
        return call.plain()


@dataclass(frozen=True)
class NoMultiplier(Rule):
    """Refuse what is not linear."""

    def __call__(self, call: Call) -> Any:
        raise refuse(call, f"the {getattr(call.func, '__name__', call.kind)}")


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
