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
    between 0 and 1. A number that is what the reference has gets its gradient.
    """

    def __call__(self, call: Call) -> Any:
        names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
        if given.pop("return_indices", False):
            raise refuse(call, "a pooling that tells where its numbers are from")
        return _Pooled.apply(given.pop("input"), given)


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, options: dict[str, Any]) -> Tensor:
        out, places = F.max_pool2d(x, **options, return_indices=True)
        ctx.save_for_backward(x, out, places)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, out, places = ctx.saved_tensors
        flow, way, gain = grads[0][:-1], x[:-1] - x[-1:], out[:-1] - out[-1:]
        winners = torch.where(gain >= 0, places[:-1], places[-1:])
        share = _put(flow * gain, winners, way)
        plain = _put(flow, places[:-1], way)
        return torch.cat([torch.where(way == 0, plain, share / way), torch.zeros_like(x[-1:])]), None


def _put(values: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Add values ``[B, C, h, w]`` up at their places of maps ``[B, C, H, W]``; windows may overlap."""
    flat = torch.zeros_like(like).flatten(2)
    return flat.scatter_add_(2, places.flatten(2), values.flatten(2)).view_as(like)


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


RESCALE = Rules.of(
    activation=RescaledReLU(),
    gate=NoMultiplier(),
    max_pool=RescaledPool(),
    product=OneFactor(),
    norm=NoMultiplier(),
    softmax=NoMultiplier(),
)
"""DeepLift with the rescale rule, as a table."""
