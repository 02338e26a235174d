"""Composites of relevance rules from words: ``"linear=gamma:0.25, patch=zbox, norm=identity"``, ``"epsilon_plus"``.

And those of Chefer et al. (CVPR 2021), as their released layers have them. ``S(a, b) = a / (b + 1e-9)``, and 0 where b
is 0: the stabiliser does not follow the sign of b, so denominators near -1e-9 blow up; that is why these walks are in
float64. ``ORIGINAL`` are the layers behind "partial" and "full LRP": each sign group of a linear layer gets the whole
relevance, so that it grows from layer to layer, and sums are not rescaled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitreous.errors import SpecError
from vitreous.tracing.rules import lrp
from vitreous.tracing.rules.base import NORMS, Back, Call, Composite, RelevanceRule, Rule
from vitreous.tracing.rules.gradient import Hold

# -- from words ----------------------------------------------------------------------------------------------------


def _alpha_beta(alpha: float = lrp.AlphaBeta.alpha) -> lrp.AlphaBeta:
    return lrp.AlphaBeta(alpha, alpha - 1)


_LAYERS: dict[str, Rule | Callable[..., Rule]] = {
    "epsilon": lrp.Epsilon,
    "gamma": lrp.Gamma,
    "zplus": lrp.AlphaBeta(1.0, 0.0),
    "alphabeta": _alpha_beta,
    "flat": lrp.Flat(),
    "wsquare": lrp.WSquare(),
}
VOCABULARY: dict[str, Mapping[str, Rule | Callable[..., Rule]]] = {
    "linear": _LAYERS,
    "conv": _LAYERS,
    "patch": {**_LAYERS, "zbox": lrp.ZBox()},
    "norm": {"identity": lrp.Identity(), "epsilon": lrp.NormShare},
    "batchnorm": {"identity": lrp.Identity(), "epsilon": lrp.MeanShare},
    "activation": {"identity": lrp.Identity()},
    "attention": {"epsilon": lrp.ValueAttention, "uniform": lrp.UniformAttention()},
    "residual": {"epsilon": lrp.SumShare, "uniform": lrp.SumShare(uniform=True)},
}
"""Place to rule: the rules that can be chosen there, those with a size as functions of it."""

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

COMPOSITES = {
    name: {**DEFAULTS, "linear": "epsilon", "conv": conv, "patch": patch}
    for name, conv, patch in (
        ("epsilon_plus", "zplus", "zplus"),
        ("epsilon_plus_flat", "zplus", "flat"),
        ("epsilon_alpha2_beta1", "alphabeta:2", "alphabeta:2"),
        ("epsilon_alpha2_beta1_flat", "alphabeta:2", "flat"),
    )
}
"""Those of convolutional networks: linear layers, convolutions, and the first layer each have their own rule."""


def composed(text: str, defaults: Mapping[str, str] = DEFAULTS) -> Composite:
    """Return the composite that a text of ``place=rule`` or ``place=rule:size`` means; other places have the defaults.

    A text may begin with the name of a composite, which then are the defaults. Without one, convolutions follow
    ``linear`` where nothing else is given.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    is_named = bool(words) and words[0] in COMPOSITES
    defaults = COMPOSITES[words.pop(0)] if is_named else defaults
    chosen = dict(map(_parse_word, words))
    if "linear" in chosen and not is_named:
        chosen = {"conv": chosen["linear"], **chosen}
    rules = {place: _rule(place, word) for place, word in {**defaults, **chosen}.items()}
    is_held = isinstance(rules["attention"], lrp.ValueAttention)
    return Composite.of(
        "relevance",
        scored=True,
        linear=rules["linear"],
        conv=rules["conv"],
        embedding=rules["patch"],
        norm=rules["norm"],
        batch_norm=lrp.Folded(rules["batchnorm"]),
        activation=rules["activation"],
        gate=rules["activation"],
        attention=rules["attention"],
        softmax=Hold() if is_held else lrp.Identity(),
        matmul=lrp.Halves(),
        add=rules["residual"],
        product=lrp.Factors(),
        mean=lrp.MeanShare(),
        max_pool=lrp.Winner(),
    )


def _parse_word(text: str) -> tuple[str, str]:
    place, _, word = (part.strip() for part in text.partition("="))
    if place not in VOCABULARY or not word:
        places = f"one of {', '.join(VOCABULARY)}, or begin with one of {', '.join(COMPOSITES)}"
        raise SpecError(f"rules={text!r}: write place=rule with {places}")
    return place, word


def _rule(place: str, word: str) -> Rule:
    name, _, size = word.partition(":")
    rules = VOCABULARY[place]
    if name not in rules:
        raise SpecError(f"rules: {place}={word} is not one of {', '.join(rules)}")
    rule = rules[name]
    if isinstance(rule, Rule):
        if size:
            raise SpecError(f"rules: {place}={word}, but {name} has no size")
        return rule
    if not size:
        return rule()
    try:
        number = float(size)
    except ValueError:
        raise SpecError(f"rules: {place}={word}, but {size!r} is not a number") from None
    least = 1.0 if name == "alphabeta" else 0.0
    if not least <= number < float("inf"):
        raise SpecError(f"rules: {place}={word} must have a size of at least {least:g}")
    return rule(number)


# -- Chefer et al. -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SignSplit(lrp.LinearRule):
    """``z = x+ W+ + x- W-``, no bias: contributions of either sign apart, in one denominator (``ours``) or in two."""

    apart: bool = False

    def share(self, op: lrp.Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        (up, down), (plus, minus) = lrp.signs(x), lrp.signs(op.weight)
        one, other = op.forward(up, plus), op.forward(down, minus)
        if self.apart:
            return up * op.back(lrp.safe(flow, one), plus) + down * op.back(lrp.safe(flow, other), minus)
        s = lrp.safe(flow, one + other)
        return up * op.back(s, plus) + down * op.back(s, minus)


@dataclass(frozen=True)
class StreamNorm(lrp.Identity):
    """A norm lets relevance pass; where a stream goes on beside it, both flows meet as ``x * (S(R1, x) + S(R2, x))``.

    The norm before the head stands for the token that is picked after it, ``x * S(R, x)``.
    """

    def __call__(self, call: Call) -> Any:
        out = super().__call__(call)
        if call.layer is not None:
            streams = call.operands if call.func in NORMS else []
        else:
            streams = [out] if out.requires_grad else []
        for stream in streams:
            value = stream.detach()
            stream.register_hook(lambda flow, value=value: value * lrp.safe(flow, value))  # type: ignore[no-untyped-call]
        return out


@dataclass(frozen=True)
class Add(RelevanceRule):
    """A sum: each part gets ``a S(R, a + b)``.

    ``rescaled``: the shares of an image are rescaled so that both parts together get what there was, in the ratio of
    the sizes of their sums. The release sums over the whole batch; here every image has its own.
    """

    rescaled: bool = False

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        parts = [part.detach() if isinstance(part, Tensor) else part for part in lrp.summands(call)]
        is_reached = [any(part is operand for operand in operands) for part in lrp.summands(call)]

        def back(flow: Tensor) -> list[Tensor]:
            s = lrp.safe(flow, out)
            shares = [part * s for part in parts]
            if self.rescaled:
                sums, total = [_of_image(share) for share in shares], _of_image(flow)
                size = sums[0].abs() + sums[1].abs()
                wanted = [lrp.safe(part.abs(), size) * total for part in sums]
                shares = [share * lrp.safe(*pair) for share, *pair in zip(shares, wanted, sums, strict=True)]
            return [share for share, reached in zip(shares, is_reached, strict=True) if reached]

        return back


def _of_image(value: Tensor) -> Tensor:
    return value.sum(dim=tuple(range(1, value.ndim)), keepdim=True)


def _chefer(apart: bool) -> Composite:
    return Composite.of(
        "relevance",
        linear=SignSplit(apart),
        conv=SignSplit(apart),
        embedding=lrp.ZBox(),
        norm=StreamNorm(),
        activation=lrp.Identity(),
        gate=lrp.Identity(),
        softmax=lrp.Identity(),
        matmul=lrp.Halves(is_safe=True),
        attention=lrp.UniformAttention(lrp.Halves(is_safe=True)),
        add=Add(rescaled=not apart),
        product=lrp.Factors(),
        mean=lrp.MeanShare(is_safe=True),
    )


OURS = _chefer(apart=False)
ORIGINAL = _chefer(apart=True)
