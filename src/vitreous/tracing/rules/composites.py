"""Tables of relevance rules from words: ``"linear=gamma:0.25, patch=zbox, norm=identity"``, ``"epsilon_plus"``.

The relevance rules of Chefer et al. (CVPR 2021), as their released layers have them.

``S(a, b) = a / (b + 1e-9)``, and 0 where b is 0: the stabiliser does not follow the sign of b, so denominators near
-1e-9 blow up; that is why these walks are in float64. ``ORIGINAL`` are the layers behind "partial" and "full LRP": each
sign group of a linear layer gets the whole relevance, so that it grows from layer to layer, and sums are not rescaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import SpecError
from vitreous.tracing.rules.base import Back, Call, Composite, RelevanceRule, Rule, flowing
from vitreous.tracing.rules.gradient import Hold
from vitreous.tracing.rules.lrp import (
    NORMS,
    AlphaBeta,
    Epsilon,
    Factors,
    Flat,
    Folded,
    Gamma,
    Halves,
    Identity,
    Linear,
    LinearRule,
    MeanShare,
    NormShare,
    SumShare,
    UniformAttention,
    ValueAttention,
    Winner,
    WSquare,
    ZBox,
    summands,
)

__all__ = [
    "COMPOSITES",
    "DEFAULTS",
    "ORIGINAL",
    "OURS",
    "VOCABULARY",
    "composed",
    "safe",
]

Made = Callable[[float | None], Rule]


def _epsilon(size: float | None) -> Rule:
    return Epsilon() if size is None else Epsilon(size)


def _gamma(size: float | None) -> Rule:
    return Gamma() if size is None else Gamma(size)


def _alphabeta(alpha: float | None) -> Rule:
    return AlphaBeta() if alpha is None else AlphaBeta(alpha, alpha - 1)


_LAYERS: dict[str, Made] = {
    "epsilon": _epsilon,
    "gamma": _gamma,
    "zplus": lambda _: AlphaBeta(1.0, 0.0),
    "alphabeta": _alphabeta,
    "flat": lambda _: Flat(),
    "wsquare": lambda _: WSquare(),
}
VOCABULARY: dict[str, Mapping[str, Made]] = {
    "linear": _LAYERS,
    "conv": _LAYERS,
    "patch": {**_LAYERS, "zbox": lambda _: ZBox()},
    "norm": {"identity": lambda _: Identity(), "epsilon": lambda size: NormShare(1e-6 if size is None else size)},
    "batchnorm": {"identity": lambda _: Identity(), "epsilon": lambda size: MeanShare(1e-6 if size is None else size)},
    "activation": {"identity": lambda _: Identity()},
    "attention": {
        "epsilon": lambda size: ValueAttention(1e-6 if size is None else size),
        "uniform": lambda _: UniformAttention(),
    },
    "residual": {
        "epsilon": lambda size: SumShare(1e-6 if size is None else size),
        "uniform": lambda _: SumShare(uniform=True),
    },
}
"""Place to rule: what relevance can be told to do there."""

DEFAULTS = {
    "linear": "gamma:0.05",
    "conv": "gamma:0.05",
    "patch": "gamma:0.25",
    "norm": "epsilon",
    "batchnorm": "identity",
    "activation": "identity",
    "attention": "epsilon",
    "residual": "epsilon",
}
"""One point of the grid that the authors of AttnLRP search for vision transformers."""


def _composite(conv: str, first: str) -> dict[str, str]:
    return {**DEFAULTS, "linear": "epsilon", "conv": conv, "patch": first}


COMPOSITES = {
    "epsilon_plus": _composite("zplus", "zplus"),
    "epsilon_plus_flat": _composite("zplus", "flat"),
    "epsilon_alpha2_beta1": _composite("alphabeta:2", "alphabeta:2"),
    "epsilon_alpha2_beta1_flat": _composite("alphabeta:2", "flat"),
}
"""The usual tables for convolutional networks: linear layers, convolutions, and the first layer each have their own."""
_SIZED = ("epsilon", "gamma", "alphabeta")


def composed(text: str, usual: Mapping[str, str] = DEFAULTS) -> Composite:
    """Return the table that a text of ``place=rule`` or ``place=rule:size`` means; other places have what is usual.

    A text may begin with the name of a composite, which then is what is usual. Without one, convolutions follow
    ``linear`` where nothing else is told.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    named = bool(parts) and parts[0] in COMPOSITES
    usual = COMPOSITES[parts.pop(0)] if named else usual
    told: dict[str, str] = {}
    for part in parts:
        place, _, word = (each.strip() for each in part.partition("="))
        if place not in VOCABULARY or not word:
            known = f"one of {', '.join(VOCABULARY)}, or begin with one of {', '.join(COMPOSITES)}"
            raise SpecError(f"rules={part!r}: write place=rule with {known}")
        told[place] = word
    if "linear" in told and not named:
        told = {"conv": told["linear"], **told}
    chosen = {place: _rule(place, word) for place, word in {**usual, **told}.items()}
    held = isinstance(chosen["attention"], ValueAttention)
    return Composite.of(
        "relevance",
        scored=True,
        linear=chosen["linear"],
        conv=chosen["conv"],
        embedding=chosen["patch"],
        norm=chosen["norm"],
        batch_norm=Folded(chosen["batchnorm"]),
        activation=chosen["activation"],
        gate=chosen["activation"],
        attention=chosen["attention"],
        softmax=Hold() if held else Identity(),
        matmul=Halves(),
        add=chosen["residual"],
        product=Factors(),
        mean=MeanShare(),
        max_pool=Winner(),
    )


def _rule(place: str, word: str) -> Rule:
    name, _, size = word.partition(":")
    known = VOCABULARY[place]
    if name not in known:
        raise SpecError(f"rules: {place}={word} is not one of {', '.join(known)}")
    if size and name not in _SIZED:
        raise SpecError(f"rules: {place}={word}, but {name} has no size")
    try:
        number = float(size) if size else None
    except ValueError:
        raise SpecError(f"rules: {place}={word}, but {size!r} is not a number") from None
    least = 1.0 if name == "alphabeta" else 0.0
    if number is not None and not least <= number < float("inf"):
        raise SpecError(f"rules: {place}={word} must have a size of at least {least:g}")
    return known[name](number)


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


def _table(apart: bool) -> Composite:
    return Composite.of(
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
