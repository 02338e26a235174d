"""Relevance through what convolutional networks have beside their layers: batch norm and max pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import TraceError
from vitreous.passes.rules.linear import Layer
from vitreous.passes.rules.relevance import Back, RelevanceRule, flowing
from vitreous.passes.rules.table import Call, Rule

__all__ = ["Folded", "Winner"]

_NAMES = {
    F.batch_norm: ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    torch.batch_norm: ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps"),
}


@dataclass(frozen=True)
class Folded(Rule):
    """Batch norm right after a layer is part of that layer: ``s (W x + b) + t`` is one with weights ``s W``.

    ``s = weight / sqrt(variance + eps)``, ``t = bias - s mean``, and the layer's own rule shares relevance out. Which
    layer that is, is read from what ran and not from the order of modules. A batch norm that follows anything else, as
    those of a DenseNet after a concatenation, cannot be folded: a ReLU lies between it and the next layer. There
    it follows the rule ``alone``. The model keeps its weights.
    """

    alone: Rule

    def __call__(self, call: Call) -> Any:
        if not flowing(call):
            return call.plain()
        given = {**dict(zip(_NAMES[call.func], call.args, strict=False)), **call.kwargs}
        mean, variance, x = given["running_mean"], given["running_var"], given["input"]
        if given.get("training") or mean is None or variance is None:
            raise TraceError("a batch norm that takes the statistics of the batch has no rule")
        layer = getattr(x.grad_fn, "back", None)
        if not isinstance(layer, Layer) or (layer.call.func is F.linear and x.ndim != 2):
            return self.alone(call)
        scale = (variance + given.get("eps", 1e-5)).rsqrt()
        scale = scale if given.get("weight") is None else scale * given["weight"]
        offset = -mean if layer.op.bias is None else layer.op.bias - mean
        offset = offset * scale if given.get("bias") is None else offset * scale + given["bias"]
        weight = layer.op.weight * scale.view(-1, *[1] * (layer.op.weight.ndim - 1))
        folded = {**layer.op.given, "weight": weight.detach(), "bias": offset.detach()}
        return layer.rule(replace(layer.call, args=(), kwargs=folded))


@dataclass(frozen=True)
class Winner(RelevanceRule):
    """Max pooling: the largest number of a window gets all that the window has."""

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        (x,) = operands
        kept = x.detach()

        def back(flow: Tensor) -> tuple[Tensor]:
            with torch.enable_grad():
                leaf = kept.clone().requires_grad_()
                args = [leaf if each is x else each for each in call.args]
                z = call.func(*args, **{name: leaf if each is x else each for name, each in call.kwargs.items()})
                (share,) = torch.autograd.grad(z, leaf, flow)
            return (share,)

        return back
