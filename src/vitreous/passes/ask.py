"""The questions a method may ask of a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from vitreous.errors import TraceError
from vitreous.models import View
from vitreous.passes.rules import PLAIN, Rules
from vitreous.passes.target import check_value

__all__ = ["BETWEEN", "SITES", "Block", "Change", "Keep", "Pass", "Reduce", "whole"]

_ATTENTION = ("attention", "windows", "values", "pool")
SITES = ("image", "input", "output", *_ATTENTION, "norm1", "attn", "norm2", "mlp", "block", "biases")
"""Where one can look. ``image`` is what enters the model, ``input`` and ``output`` the residual stream around a block,
``attention`` the weights ``[B, H, N, N]``, ``windows`` those of a layer that attends inside windows
``[B, W, H, t, t]``, zero where nothing is seen (``View.windows``), ``values`` the value vectors ``[B, H, N, d]``,
``pool`` the weights ``[B, H, 1, N]`` of attention pooling, ``norm1 attn norm2 mlp`` the outputs inside a block,
``block`` a whole ``Block`` at once, with the gradient of its attention. ``biases`` are the bias vectors ``[D]`` of
linear layers and norms, each with the gradient ``[B, N, D]`` where it is added; what they are reduced to is summed over
a block. Layer ``depth`` is the head, where the gradient is ``[B, D]`` after the pooling."""

BETWEEN = ("attention", "values", "block", "biases")
"""The sites that need tokens which all see each other, in one order."""

Reduce = Callable[[View, Any, Tensor | None], Tensor]
"""``(view, value, gradient) -> what to keep``; the gradient is ``None`` where none was asked for."""

Change = Callable[[Tensor], Tensor]
"""Takes what a place computed, images first, and returns what it shall be instead."""


class Block(NamedTuple):
    """Everything that went through one block, without a graph."""

    layer: int
    input: Tensor
    """The residual stream before it ``[B, N, D]``."""
    attention: Tensor
    values: Tensor
    middle: Tensor
    """The residual stream between attention and MLP."""
    output: Tensor


def whole(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """Keep the value itself, or its gradient where one was asked for."""
    return value if gradient is None else gradient


@dataclass(frozen=True)
class Keep:
    """One thing to write down, at some layers: a place, what to make of it there, and whether its gradient is needed.

    The reduction is applied while the pass runs, so that attention and its gradient are never held for all layers.
    It must be a module-level function (or another hashable), because equal wishes are served once.
    """

    site: str
    reduce: Reduce
    layers: tuple[int, ...] = (0,)
    grad: bool = False

    def __post_init__(self) -> None:
        if self.site not in SITES:
            raise TraceError(f"unknown site {self.site!r}; known: {', '.join(SITES)}")

    @property
    def key(self) -> tuple[str, Reduce, bool]:
        return self.site, self.reduce, self.grad


@dataclass(frozen=True)
class Pass:
    """One forward, and one backward if anything that flows back is kept. Passes of equal rules and value run together.

    ``rules`` say what flows backward, ``value`` which value of the class it starts from: ``None``, the one asked for.
    ``changes`` put other attention weights into some layers, as constants: what is kept of these weights, and their
    gradient, is that of the new ones, and nothing flows back to the queries and keys of that layer.
    """

    keeps: tuple[Keep, ...] = ()
    rules: Rules = PLAIN
    value: str | None = None
    changes: tuple[tuple[int, Change], ...] = ()

    def __post_init__(self) -> None:
        if self.value is not None:
            check_value(self.value)

    @property
    def backward(self) -> bool:
        return any(keep.grad for keep in self.keeps)

    @property
    def weight(self) -> int:
        """How many times the room of a plain pass it takes: relevance is float64, and rules keep what they divide."""
        return 5 if self.rules.currency == "relevance" else 1

    def first(self, depth: int) -> int:
        """The lowest layer that needs a gradient: -1 for the image, ``depth`` for none."""
        ends = {"image": -1, "pool": depth}
        wanted = [keep for keep in self.keeps if keep.grad and keep.layers]
        return min([depth, *(ends.get(keep.site, min(keep.layers)) for keep in wanted)])
