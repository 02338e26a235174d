"""DeepLift's rescale rule: what is not linear hands on the slope between an image and a reference.

The reference is the last row of every batch (``models.BesideView``). With the multiplier ``m = (y - y0) / (x - x0)`` in
the place of a slope, the gradient times ``x - x0`` sums to the difference in score, as far as all else is linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.passes.operations import IN_PLACE, RELUS
from vitreous.passes.rules.relevance import flowing
from vitreous.passes.rules.table import Call, Rule, Rules

__all__ = ["RESCALE"]


def refuse(call: Call, what: str) -> ModelError:
    """Say that something on the way is not linear and has no multiplier."""
    name = call.view.name if call.view is not None else "this model"
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
    (high, wide), (down, across) = _pair(options["kernel_size"]), _pair(options.get("dilation", 1))
    step, padding = _pair(options.get("stride") or options["kernel_size"]), _pair(options.get("padding", 0))
    rows, columns = ((count - 1) * each + 1 for count, each in zip(out.shape[2:], step, strict=True))
    beyond = [  # how far the last window reaches: with ceil_mode further than the padding
        max(padding[0], rows + (high - 1) * down - padding[0] - x.shape[2]),
        max(padding[1], columns + (wide - 1) * across - padding[1] - x.shape[3]),
    ]
    padded = F.pad(x, (padding[1], beyond[1], padding[0], beyond[0]), value=-torch.inf)
    places = [
        (..., slice(top, top + rows, step[0]), slice(left, left + columns, step[1]))
        for top in range(0, high * down, down)
        for left in range(0, wide * across, across)
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


def _rules(first: bool) -> Rules:
    return Rules.of(
        activation=RescaledReLU(),
        gate=NoMultiplier(),
        max_pool=RescaledPool(first),
        product=OneFactor(),
        norm=NoMultiplier(),
        softmax=NoMultiplier(),
    )


RESCALE = {"share": _rules(first=False), "first": _rules(first=True)}
"""DeepLift with the rescale rule, as a table, by what becomes of ties of max poolings."""
