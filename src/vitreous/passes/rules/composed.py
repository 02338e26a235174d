"""Tables of relevance rules from words: ``"linear=gamma:0.25, patch=zbox, norm=identity"``, ``"epsilon_plus"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vitreous.errors import SpellingError
from vitreous.passes.rules.conv import Folded, Winner
from vitreous.passes.rules.flows import (
    Factors,
    Halves,
    Identity,
    MeanShare,
    NormShare,
    SumShare,
    UniformAttention,
    ValueAttention,
)
from vitreous.passes.rules.frozen import Hold
from vitreous.passes.rules.linear import AlphaBeta, Epsilon, Flat, Gamma, WSquare, ZBox
from vitreous.passes.rules.table import Rule, Rules

__all__ = ["COMPOSITES", "DEFAULTS", "VOCABULARY", "composed"]

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


def composed(text: str, usual: Mapping[str, str] = DEFAULTS) -> Rules:
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
            raise SpellingError(f"rules={part!r}: write place=rule with {known}")
        told[place] = word
    if "linear" in told and not named:
        told = {"conv": told["linear"], **told}
    chosen = {place: _rule(place, word) for place, word in {**usual, **told}.items()}
    held = isinstance(chosen["attention"], ValueAttention)
    return Rules.of(
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
        raise SpellingError(f"rules: {place}={word} is not one of {', '.join(known)}")
    if size and name not in _SIZED:
        raise SpellingError(f"rules: {place}={word}, but {name} has no size")
    try:
        number = float(size) if size else None
    except ValueError:
        raise SpellingError(f"rules: {place}={word}, but {size!r} is not a number") from None
    least = 1.0 if name == "alphabeta" else 0.0
    if number is not None and not least <= number < float("inf"):
        raise SpellingError(f"rules: {place}={word} must have a size of at least {least:g}")
    return known[name](number)
