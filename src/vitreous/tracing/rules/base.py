"""The words of rules: the kinds of operations there are, calls of them, rules for them, and composites of rules.

A composite says what flows backward: a *gradient*, perhaps a modified one (operations without a rule have their own),
or *relevance*, which every operation hands on by a rule; there, an operation without one is an error and not a gradient
in disguise.

A walk of relevance runs wholly in float64, the forward too, with the model's own weights. Published rules divide by
numbers near zero, which magnifies the rounding of float32 until other patches come first: on real weights a walk in
float64 over activations of a forward in float32 is hardly better than the same in float32 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import TracingError
from vitreous.models import VisionModel

# -- operations ----------------------------------------------------------------------------------------------------

KINDS = (
    "linear", "conv", "matmul", "add", "product", "mean", "softmax", "norm", "activation", "gate", "attention",
    "embedding", "batch_norm", "max_pool",
)  # fmt: skip
"""What a rule can be given for. ``gate`` is an activation that weighs another branch of a gated MLP, ``embedding`` a
linear layer or convolution before the first block, or the first layer of a network without patches
(``VisionModel.has_patch_embedding``); which of these an operation is depends on where it runs. A fused ``attention`` is
made of two ``matmul`` and a ``softmax``. ``product`` is number by number, also by a constant or by the inverse of a
vector's length; a ``mean`` is also one over a window."""

LAYER_NORMS = (F.layer_norm, torch.layer_norm)
RMS_NORMS = (F.rms_norm, torch.rms_norm)
NORMS = (*LAYER_NORMS, *RMS_NORMS)
RELUS = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
SIGMOIDS = (torch.sigmoid, F.sigmoid, Tensor.sigmoid)
LENGTHS = (torch.norm, Tensor.norm, torch.linalg.vector_norm)

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "linear": (F.linear,),
    "conv": (F.conv2d, torch.conv2d),
    "matmul": (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm),
    "add": (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__),
    "product": (torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__, torch.neg,
                Tensor.neg, Tensor.__neg__, torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__,
                Tensor.__itruediv__, F.normalize),
    "mean": (torch.mean, Tensor.mean, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d),
    "max_pool": (F.max_pool2d, torch.max_pool2d),
    "batch_norm": (F.batch_norm, torch.batch_norm),
    "softmax": (F.softmax, torch.softmax, Tensor.softmax),
    "norm": (*NORMS, *LENGTHS),
    "activation": (F.gelu, F.silu, *RELUS, *SIGMOIDS),
    "attention": (F.scaled_dot_product_attention, F.multi_head_attention_forward),
}  # fmt: skip
OPERATIONS: dict[Callable[..., Any], str] = {func: kind for kind, funcs in _FUNCTIONS.items() for func in funcs}
"""Torch function to kind: the one table of what a vision model computes."""

CASTS = frozenset(("to", "type", "type_as", "float", "double", "half", "bfloat16"))
"""Functions that may change the dtype."""
_MOVES = """
view view_as reshape reshape_as transpose permute movedim swapaxes flatten unflatten unsqueeze squeeze expand expand_as
repeat repeat_interleave contiguous clone detach chunk split unbind __getitem__ narrow select index_select gather cat
concat stack flip roll pad t dropout requires_grad_ __get__
"""
_CARRIERS = CASTS | frozenset(_MOVES.split())


def is_carrier(func: Any) -> bool:
    """Whether a function only moves numbers: what flows backward through it is neither made nor lost."""
    return getattr(func, "__name__", "") in _CARRIERS


def keeps_values(func: Any) -> bool:
    """Whether a function gives numbers back as they are, and where they are: a cast, or dropout in evaluation mode."""
    return getattr(func, "__name__", "") in (*CASTS, "dropout", "contiguous", "clone", "detach")


def to_float64(value: Any) -> Any:
    """Return a tensor of floating point in float64, also inside lists and tuples; anything else as it is."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    return type(value)(to_float64(item) for item in value) if type(value) in (list, tuple) else value


def upcast(value: Tensor) -> Tensor:
    """Return the value in float32, or in float64 where it is."""
    return value if value.dtype == torch.float64 else value.float()


# -- rules ---------------------------------------------------------------------------------------------------------


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

    def run(self) -> Any:
        """Return what the model itself would have got."""
        return self.func(*self.args, **self.kwargs)

    def bind(self, *names: str) -> dict[str, Any]:
        """Return the arguments by name; ``names`` are those of the function's parameters, in order."""
        return dict(zip(names, self.args, strict=False)) | dict(self.kwargs)

    @property
    def operands(self) -> list[Tensor]:
        """The tensors that something flows back to."""
        if not torch.is_grad_enabled():
            return []
        values = (*self.args, *self.kwargs.values())
        return [value for value in values if isinstance(value, Tensor) and value.requires_grad]

    def value(self) -> Tensor:
        """Return what the model itself would have computed, without a graph; nothing is changed in place."""

        def detached(value: Any) -> Any:
            return value.detach().clone() if isinstance(value, Tensor) and value.requires_grad else value

        with torch.no_grad():
            kwargs = {name: detached(value) for name, value in self.kwargs.items()}
            return self.func(*map(detached, self.args), **kwargs)  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.func, "__name__", self.kind)

    @property
    def model_name(self) -> str:
        return "this model" if self.model is None else self.model.name


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


_QUANTITIES = ("gradient", "relevance")


@dataclass(frozen=True)
class Composite:
    """A frozen, hashable table *operation to rule*: passes with equal tables are one pass.

    A walk of relevance starts with the slope of the score at each logit; where it is ``scored``, with that times the
    logit, which is what a logit adds to the score. Rules divide by an output: from one, a logit below zero would turn
    every sign.
    """

    table: tuple[tuple[str, Rule], ...] = ()
    propagates: str = "gradient"
    scored: bool = False

    def __post_init__(self) -> None:
        if self.propagates not in _QUANTITIES:
            raise TracingError(f"unknown quantity {self.propagates!r}; known: {', '.join(_QUANTITIES)}")
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise TracingError(f"no operation is of the kind {unknown[0]!r}; known: {', '.join(KINDS)}")

    @classmethod
    def of(cls, propagates: str = "gradient", scored: bool = False, **rules: Rule) -> Composite:
        """Return a composite: ``Composite.of(norm=…, attention=…)``."""
        return cls(tuple(sorted(rules.items())), propagates, scored)

    def __bool__(self) -> bool:
        return bool(self.table) or self.propagates != "gradient"

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind, _ in self.table)


GRADIENT = Composite()
"""Gradients as they are."""

# -- relevance -----------------------------------------------------------------------------------------------------

Back = Callable[[Tensor], Sequence["Tensor | None"]]
"""``relevance of the output -> relevance of every operand``, in float64."""


class RelevanceRule(Rule):
    """A rule that says how the relevance of an output is shared among the operands that it can reach."""

    def __call__(self, call: Call) -> Any:
        operands = call.operands
        if not operands:
            return call.run()
        out = call.value()
        return with_backward(out, operands, self.back(call, operands, out))

    def back(self, call: Call, operands: Sequence[Tensor], out: Tensor) -> Back:
        """Return how relevance goes from the value ``out`` to these operands."""
        raise TracingError(f"the rule {type(self).__name__} does not say what a {call.kind} does")


class _WithBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, back: Back, out: Tensor, *operands: Tensor) -> Tensor:
        ctx.back, ctx.shapes = back, [operand.shape for operand in operands]
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        pairs = zip(ctx.back(flows[0]), ctx.shapes, strict=True)
        return None, None, *(None if share is None else share.sum_to_size(shape) for share, shape in pairs)


def with_backward(out: Tensor, operands: Sequence[Tensor], back: Back) -> Tensor:
    """Return the value ``out`` as a function of the operands, whose backward shares relevance out."""
    return _WithBackward.apply(back, out, *operands)  # type: ignore[no-any-return]


def stabilised(value: Tensor, eps: float) -> Tensor:
    """Move a denominator away from zero, in the direction of its sign."""
    return value + torch.where(value < 0, -eps, eps)
