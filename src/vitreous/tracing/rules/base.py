"""The table: which rule each kind of operation follows, in terms of which quantity.

What flows backward is a *gradient*, perhaps a modified one (operations without a rule have their own), or *relevance*,
which every operation hands on by a rule: there, an operation without one is an error and not a gradient in disguise.

Relevance: what every operation hands on by a rule, in float64 whatever the model's dtype.

Such a pass runs wholly in float64, the forward too, with the model's own weights. Published rules divide by
numbers near zero, which magnifies the rounding of float32 until other patches come first: on real weights a walk in
float64 over activations of a forward in float32 is hardly better than the same in float32 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitreous.errors import TracingError
from vitreous.models import VisionModel
from vitreous.tracing.intercept import KINDS

__all__ = [
    "AttentionRule",
    "Back",
    "CURRENCIES",
    "Call",
    "Flows",
    "GRADIENT",
    "RelevanceRule",
    "Rule",
    "Composite",
    "carry",
    "flowing",
    "own",
    "stabilised",
]

CURRENCIES = ("gradient", "relevance")


@dataclass(frozen=True)
class Call:
    """One call of the model's forward: the function with its arguments, its kind, and where it runs."""

    kind: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    model: VisionModel | None = None
    layer: int | None = None
    """The block; ``None`` in the embedding and in the head."""

    def plain(self) -> Any:
        """Return what the model itself would have got."""
        return self.func(*self.args, **self.kwargs)


class Rule:
    """How one kind of operation behaves. Subclasses are frozen dataclasses: parameters, a seed if they draw.

    A rule is called instead of the operation. It returns the operation's own values, with a backward of its own.
    """

    def __call__(self, call: Call) -> Any:
        raise TracingError(f"the rule {type(self).__name__} does not say what a {call.kind} does")


class Flows(NamedTuple):
    """What reaches the parts of an attention."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor
    attention: Tensor | None = None
    """What reaches the weights, where the rule says; their gradient otherwise."""


class AttentionRule(Rule):
    """A rule for attention as a whole: what flows to queries, keys and values."""

    through: ClassVar[bool] = False
    """Whether anything reaches queries and keys."""

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        """Return what reaches q, k and v of ``out = attention v`` when ``flows`` has reached ``out``."""
        raise TracingError(f"the rule {type(self).__name__} does not say what attention does")


@dataclass(frozen=True)
class Composite:
    """A frozen, hashable table: passes with equal tables are one pass.

    A walk starts with the slope of the score at each logit; where it is ``scored``, with that times the logit, which is
    what a logit adds to the score. Rules divide by an output: from one, a logit below zero would turn every sign.
    """

    table: tuple[tuple[str, Rule], ...] = ()
    propagates: str = "gradient"
    scored: bool = False

    def __post_init__(self) -> None:
        if self.propagates not in CURRENCIES:
            raise TracingError(f"unknown quantity {self.propagates!r}; known: {', '.join(CURRENCIES)}")
        unknown = [kind for kind, _ in self.table if kind not in KINDS]
        if unknown:
            raise TracingError(f"no operation is of the kind {unknown[0]!r}; known: {', '.join(KINDS)}")

    @classmethod
    def of(cls, propagates: str = "gradient", scored: bool = False, **rules: Rule) -> Composite:
        """Return a table: ``Composite.of(norm=…, attention=…)``."""
        return cls(tuple(sorted(rules.items(), key=lambda pair: pair[0])), propagates, scored)

    def get(self, kind: str) -> Rule | None:
        """Return the rule of a kind of operation."""
        return next((rule for each, rule in self.table if each == kind), None)

    def __bool__(self) -> bool:
        return bool(self.table) or self.propagates != "gradient"

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind, _ in self.table)


GRADIENT = Composite()
"""Gradients as they are."""

Back = Callable[[Tensor], Sequence["Tensor | None"]]
"""``relevance of the output -> relevance of every operand``, in float64."""


class RelevanceRule(Rule):
    """A rule that says how the relevance of an output is shared among the operands that flow."""

    def __call__(self, call: Call) -> Any:
        operands = flowing(call)
        if not operands:
            return call.plain()
        out = own(call)
        return carry(out, operands, self.back(call, operands, out))

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        """Return how relevance goes from the value ``out`` to these operands."""
        raise TracingError(f"the rule {type(self).__name__} does not say what a {call.kind} does")


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, back: Back, out: Tensor, *operands: Tensor) -> Tensor:
        ctx.back, ctx.shapes = back, [operand.shape for operand in operands]
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        shares = ctx.back(flows[0])
        pairs = zip(shares, ctx.shapes, strict=True)
        return None, None, *(None if share is None else share.sum_to_size(shape) for share, shape in pairs)


def carry(out: Tensor, operands: Sequence[Tensor], back: Back) -> Tensor:
    """Return the value ``out`` as a function of the operands, whose backward shares relevance out."""
    made: Tensor = _Carry.apply(back, out, *operands)
    return made


def flowing(call: Call) -> list[Tensor]:
    """Return the operands of a call that relevance can reach."""
    given = [*call.args, *call.kwargs.values()]
    return (
        [each for each in given if isinstance(each, Tensor) and each.requires_grad] if torch.is_grad_enabled() else []
    )


def own(call: Call) -> Tensor:
    """Return what the model itself would have computed; nothing is changed in place."""

    def plain(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) and value.requires_grad else value

    with torch.no_grad():
        args = [plain(arg) for arg in call.args]
        out: Tensor = call.func(*args, **{name: plain(each) for name, each in call.kwargs.items()})
    return out


def stabilised(value: Tensor, eps: float) -> Tensor:
    """Move a denominator away from zero, in the direction of its sign."""
    return value + torch.where(value < 0, -eps, eps)
