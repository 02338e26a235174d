"""Guided backpropagation: at a ReLU only what is positive goes on, in the forward and in the backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.passes.operations import IN_PLACE, RELUS
from vitreous.passes.rules.table import Call, Rule, Rules

__all__ = ["GUIDED", "Guided"]

_GATES = (torch.sigmoid, F.sigmoid, Tensor.sigmoid)


@dataclass(frozen=True)
class Guided(Rule):
    """``dx = [x > 0] (dy)+`` at a ReLU. A sigmoid that weighs channels keeps its gradient; others have no such rule."""

    def __call__(self, call: Call) -> Any:
        if call.func in _GATES:
            return call.plain()
        if call.func not in RELUS:
            name = call.view.name if call.view is not None else "this model"
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


GUIDED = Rules.of(activation=Guided(), gate=Guided())
"""Guided backpropagation, as a table."""
