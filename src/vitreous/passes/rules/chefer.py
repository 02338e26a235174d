"""The relevance rules of Chefer et al. (CVPR 2021), as their released layers have them.

``S(a, b) = a / (b + 1e-9)``, and 0 where b is 0: the stabiliser does not follow the sign of b, so denominators near
-1e-9 blow up; that is why these walks are in float64. ``ORIGINAL`` are the layers behind "partial" and "full LRP": each
sign group of a linear layer gets the whole relevance, so that it grows from layer to layer, and sums are not rescaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.passes.rules.flows import NORMS, Factors, Halves, Identity, MeanShare, UniformAttention, summands
from vitreous.passes.rules.linear import Linear, LinearRule, ZBox
from vitreous.passes.rules.relevance import Back, RelevanceRule, flowing
from vitreous.passes.rules.table import Call, Rules

__all__ = ["ORIGINAL", "OURS", "safe"]


def safe(a: Tensor, b: Tensor) -> Tensor:
    """``S(a, b)``."""
    below = b + 1e-9
    below = torch.where(below == 0, 1e-9, below)
    return torch.where(b == 0, 0.0, a / below)


@dataclass(frozen=True)
class SignSplit(LinearRule):
    """``z = x+ W+ + x- W-``, no bias: contributions of either sign apart, in one denominator (``ours``) or in two."""

    apart: bool = False

    def share(self, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        up, down = x.clamp(min=0), x.clamp(max=0)
        plus, minus = op.weight.clamp(min=0), op.weight.clamp(max=0)
        one, other = op.forward(up, plus), op.forward(down, minus)
        if self.apart:
            return up * op.back(safe(flow, one), plus) + down * op.back(safe(flow, other), minus)
        s = safe(flow, one + other)
        return up * op.back(s, plus) + down * op.back(s, minus)


@dataclass(frozen=True)
class StreamNorm(Identity):
    """A norm lets relevance pass; where a stream goes on beside it, both flows meet as ``x * (S(R1, x) + S(R2, x))``.

    The norm before the head stands for the token that is picked after it, ``x * S(R, x)``.
    """

    def __call__(self, call: Call) -> Any:
        out = super().__call__(call)
        if call.layer is not None:
            meeting = [each for each in flowing(call) if call.func in NORMS]
        else:
            meeting = [out] if out.requires_grad else []
        for stream in meeting:
            value = stream.detach()
            stream.register_hook(lambda flow, value=value: value * safe(flow, value))  # type: ignore[no-untyped-call]
        return out


@dataclass(frozen=True)
class Add(RelevanceRule):
    """A sum: each part gets ``a S(R, a + b)``.

    ``rescaled``: the shares of an image are rescaled so that both parts together get what there was, in the ratio of
    the sizes of their sums. The release sums over the whole batch; here every image has its own.
    """

    rescaled: bool = False

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        both = summands(call)
        parts = [each.detach() if isinstance(each, Tensor) else each for each in both]
        flows = [any(each is operand for operand in operands) for each in both]

        def back(flow: Tensor) -> list[Tensor]:
            s = safe(flow, out)
            shares = [part * s for part in parts]
            if self.rescaled:
                sums, there = [_of_image(share) for share in shares], _of_image(flow)
                size = sums[0].abs() + sums[1].abs()
                wanted = [safe(each.abs(), size) * there for each in sums]
                shares = [share * safe(*pair) for share, *pair in zip(shares, wanted, sums, strict=True)]
            return [share for share, wanted in zip(shares, flows, strict=True) if wanted]

        return back


def _of_image(value: Tensor) -> Tensor:
    return value.sum(dim=tuple(range(1, value.ndim)), keepdim=True)


@dataclass(frozen=True)
class SafeHalves(Halves):
    """Both factors of a matrix product get half."""

    def quotient(self, flow: Tensor, z: Tensor) -> Tensor:
        return safe(flow, z)

    def constant(self) -> MeanShare:
        return SafeMean()


@dataclass(frozen=True)
class SafeMean(MeanShare):
    """Each token gets ``x S(R, mean) / n``."""

    def quotient(self, flow: Tensor, z: Tensor) -> Tensor:
        return safe(flow, z)


def _table(apart: bool) -> Rules:
    return Rules.of(
        "relevance",
        linear=SignSplit(apart),
        conv=SignSplit(apart),
        embedding=ZBox(),
        norm=StreamNorm(),
        activation=Identity(),
        gate=Identity(),
        softmax=Identity(),
        matmul=SafeHalves(),
        attention=UniformAttention(SafeHalves()),
        add=Add(rescaled=not apart),
        product=Factors(),
        mean=SafeMean(),
    )


OURS = _table(apart=False)
ORIGINAL = _table(apart=True)
