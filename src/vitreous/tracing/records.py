"""The questions a method may ask of a pass.

Where biases are added, and what they do there.

What a pass wrote down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import TracingError
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.tracing.rules import PLAIN, Composite
from vitreous.tracing.targets import check_value

__all__ = [
    "BETWEEN",
    "Block",
    "Change",
    "Record",
    "Pass",
    "Reduce",
    "SITES",
    "ActivationCache",
    "add_shares",
    "no_shares",
    "whole",
]

_ATTENTION = ("attn_weights", "window_weights", "attn_values", "pool_weights")
SITES = ("pixels", "resid_pre", "resid_post", *_ATTENTION, "norm1", "attn", "norm2", "mlp", "block", "biases")
"""Where one can look. ``image`` is what enters the model, ``input`` and ``output`` the residual stream around a block,
``attention`` the weights ``[B, H, N, N]``, ``windows`` those of a layer that attends inside windows
``[B, W, H, t, t]``, zero where nothing is seen (``VisionModel.windows``), ``values`` the value vectors ``[B, H, N,
d]``, ``pool`` the weights ``[B, H, 1, N]`` of attention pooling, ``norm1 attn norm2 mlp`` the outputs inside a block,
``block`` a whole ``Block`` at once, with the gradient of its attention. ``biases`` are the bias vectors ``[D]`` of
linear layers and norms, each with the gradient ``[B, N, D]`` where it is added; what they are reduced to is summed over
a block. Layer ``depth`` is the head, where the gradient is ``[B, D]`` after the pooling."""

BETWEEN = ("attn_weights", "attn_values", "block", "biases")
"""The sites that need tokens which all see each other, in one order."""

Reduce = Callable[[VisionModel, Any, Tensor | None], Tensor]
"""``(view, value, gradient) -> what to keep``; the gradient is ``None`` where none was asked for."""

Change = Callable[[Tensor], Tensor]
"""Takes what a place computed, images first, and returns what it shall be instead."""


class Block(NamedTuple):
    """Everything that went through one block, without a graph."""

    layer: int
    resid_pre: Tensor
    """The residual stream before it ``[B, N, D]``."""
    attn_weights: Tensor
    attn_values: Tensor
    resid_mid: Tensor
    """The residual stream between attention and MLP."""
    resid_post: Tensor


def whole(model: VisionModel, value: Tensor, gradient: Tensor | None) -> Tensor:
    """Keep the value itself, or its gradient where one was asked for."""
    return value if gradient is None else gradient


@dataclass(frozen=True)
class Record:
    """One thing to write down, at some layers: a place, what to make of it there, and whether its gradient is needed.

    The reduction is applied while the pass runs, so that attention and its gradient are never held for all layers.
    It must be a module-level function (or another hashable), because equal wishes are served once.
    """

    point: str
    reduce: Reduce
    layers: tuple[int, ...] = (0,)
    grad: bool = False

    def __post_init__(self) -> None:
        if self.point not in SITES:
            raise TracingError(f"unknown site {self.point!r}; known: {', '.join(SITES)}")

    @property
    def key(self) -> tuple[str, Reduce, bool]:
        return self.point, self.reduce, self.grad


@dataclass(frozen=True)
class Pass:
    """One forward, and one backward if anything that flows back is kept. Passes of equal rules and value run together.

    ``rules`` say what flows backward, ``value`` which value of the class it starts from: ``None``, the one asked for.
    ``changes`` put other attention weights into some layers, as constants: what is kept of these weights, and their
    gradient, is that of the new ones, and nothing flows back to the queries and keys of that layer.
    """

    records: tuple[Record, ...] = ()
    composite: Composite = PLAIN
    output: str | None = None
    patches: tuple[tuple[int, Change], ...] = ()

    def __post_init__(self) -> None:
        if self.output is not None:
            check_value(self.output)

    @property
    def backward(self) -> bool:
        return any(keep.grad for keep in self.records)

    @property
    def weight(self) -> int:
        """How many times the room of a plain pass it takes: relevance is float64, and rules keep what they divide."""
        return 5 if self.composite.propagates == "relevance" else 1

    def first(self, depth: int) -> int:
        """The lowest layer that needs a gradient: -1 for the image, ``depth`` for none."""
        ends = {"pixels": -1, "pool_weights": depth}
        wanted = [keep for keep in self.records if keep.grad and keep.layers]
        return min([depth, *(ends.get(keep.point, min(keep.layers)) for keep in wanted)])


def no_shares(cache: ActivationCache, keep: Record, layer: int, like: Tensor) -> None:
    """Start the sum of a block: one number for every token of ``like``, and before them one for what has no token."""
    cache.store(keep, layer, like.new_zeros(len(like), 1 + like.shape[1]))


def add_shares(cache: ActivationCache, keep: Record, layer: int, bias: Tensor, gradient: Tensor) -> None:
    """Add what one bias does to the sum of its block, from the gradient of the output it is part of.

    Biases behind the pooling belong to no token. A pooling by attention may leave the prefix tokens out.
    """
    if gradient.ndim == 4:  # a norm of each head's queries or keys
        bias = bias.repeat(gradient.shape[1])
        gradient = gradient.transpose(1, 2).flatten(2)
    gradient = gradient.reshape(len(gradient), -1, gradient.shape[-1])
    share = keep.reduce(cache.model, bias, gradient)
    total = cache.get(keep, layer)
    missing = total.shape[1] - share.shape[1]
    cache.store(keep, layer, total + F.pad(share, (0, missing) if share.shape[1] == 1 else (missing, 0)))


class ActivationCache:
    """The answers of one pass: what was kept, layer by layer, and the logits.

    ``trace[keep]`` is the list of kept tensors in the order of ``keep.layers``; every tensor has the images first.
    """

    def __init__(self, model: VisionModel, inputs: Tensor) -> None:
        self.model = model
        self.grids = [model.grid(inputs, layer) for layer in range(model.depth)]
        self.last_grid = model.last_grid(inputs)
        self.batch = len(inputs)
        self.logits: Tensor = torch.empty(0)
        self._kept: dict[tuple[Any, ...], Tensor] = {}

    @classmethod
    def empty(cls) -> ActivationCache:
        """Return a trace for those who keep nothing."""
        made = cls.__new__(cls)
        made.grids, made.last_grid, made.batch, made.logits, made._kept = [], (0, 0), 0, torch.empty(0), {}
        return made

    def store(self, keep: Record, layer: int, kept: Tensor) -> None:
        self._kept[keep.key, layer] = kept

    def get(self, keep: Record, layer: int) -> Tensor:
        return self._kept[keep.key, layer]

    def has(self, keep: Record, layer: int | None = None) -> bool:
        layers = keep.layers if layer is None else (layer,)
        return all((keep.key, each) in self._kept for each in layers)

    def __getitem__(self, keep: Record) -> list[Tensor]:
        for layer in keep.layers:
            if not self.has(keep, layer):
                raise TracingError(f"{keep.point} of layer {layer} was not recorded in this pass")
        return [self._kept[keep.key, layer] for layer in keep.layers]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the first block."""
        return self.grids[0]

    def grid_at(self, layer: int) -> tuple[int, int]:
        """Rows and columns of what enters a block; the layer after the last stands for what leaves the last."""
        return self.grids[layer] if layer < len(self.grids) else self.last_grid

    def tokens_to_grid(self, tokens: Tensor, layer: int = 0) -> Tensor:
        """Drop the prefix of ``[B, N]`` and lay the patches of a layer out row by row: ``[B, h, w]``."""
        height, width = self.grid_at(layer)
        patches = tokens[:, self.model.num_prefix_tokens :]
        if patches.shape[1] != height * width:
            raise TracingError(f"{patches.shape[1]} patch tokens do not fill a grid of {height} x {width}")
        return patches.reshape(len(patches), height, width)

    def windows(self, layer: int) -> Windows | None:
        """Which patches see each other at a layer, where not all do."""
        return self.model.windows(layer)

    def unmerged(self, row: Tensor, layer: int) -> Tensor:
        """Bring a row ``[B, N]`` over what comes out of a block to what entered it.

        Where patches were merged after the block, each gets an equal part of what their sum got: two by two, fewer at
        the lower and right edge of a grid with an odd side, so that the sum over the row stays.
        """
        fine, coarse = self.grids[layer], self.grids[min(layer + 1, len(self.grids) - 1)]
        if fine == coarse:
            return row
        into = [torch.arange(side, device=row.device) // 2 for side in fine]
        down, across = ((side - 2 * each).clamp(max=2).to(row) for side, each in zip(fine, into, strict=True))
        laid_out = row.reshape(-1, *coarse)[:, into[0]][:, :, into[1]]
        return (laid_out / (down[:, None] * across)).flatten(1)

    def copy(self) -> ActivationCache:
        """Return a trace that holds the same answers and may be given more of its own."""
        made = ActivationCache.__new__(ActivationCache)
        made.model, made.grids, made.last_grid = self.model, self.grids, self.last_grid
        made.batch, made.logits = self.batch, self.logits
        made._kept = dict(self._kept)
        return made

    @classmethod
    def join(cls, parts: Sequence[ActivationCache]) -> ActivationCache:
        """Put the traces of several inner batches together."""
        if len(parts) == 1:
            return parts[0]
        joined = cls.__new__(cls)
        joined.model, joined.grids, joined.last_grid = parts[0].model, parts[0].grids, parts[0].last_grid
        joined.batch = sum(part.batch for part in parts)
        joined.logits = torch.cat([part.logits for part in parts])
        # the parts let go of each piece as it is joined, so that not everything exists twice
        joined._kept = {key: torch.cat([part._kept.pop(key) for part in parts]) for key in list(parts[0]._kept)}
        return joined
