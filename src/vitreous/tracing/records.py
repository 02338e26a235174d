"""What a pass records: activations at hook points, reduced while it runs, and the cache that holds what they became."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError, TracingError
from vitreous.models import VisionModel
from vitreous.tracing.rules import GRADIENT, Composite
from vitreous.tracing.rules.base import upcast
from vitreous.tracing.targets import check_output

GLOBAL_POINTS = ("attn_weights", "attn_values", "block", "biases")
"""The hook points that need tokens which all attend to each other, in one order."""
POINTS = (
    "pixels", "resid_pre", "resid_post", "window_weights", "pool_weights", "norm1", "attn", "norm2", "mlp",
    *GLOBAL_POINTS,
)  # fmt: skip
"""Where an activation can be recorded.

``pixels`` is what enters the model, ``resid_pre`` and ``resid_post`` the residual stream before and after a block,
``attn_weights`` are the weights ``[B, H, N, N]``, ``window_weights`` those of a layer that attends inside windows
``[B, W, H, t, t]``, zero where nothing is attended to (``VisionModel.windows``), ``attn_values`` the value vectors
``[B, H, N, d]``, ``pool_weights`` the weights ``[B, H, 1, N]`` of attention pooling, ``norm1 attn norm2 mlp`` the
outputs inside a block. ``block`` is a whole ``Block`` at once. ``biases`` are the bias vectors ``[D]`` of linear layers
and norms, each with the gradient ``[B, N, D]`` where it is added; what they are reduced to is summed over a block.
Layer ``depth`` is the head there, where the gradient is ``[B, D]`` after the pooling."""
_WITHOUT_LAYER = ("pixels", "pool_weights")

Patch = Callable[[Tensor], Tensor]
"""Takes what a module or an attention computed, images first, and returns what it shall be instead."""


def resolve_layer(model: VisionModel, layer: int) -> int:
    """Return a layer counted from the front; negative numbers count from the end."""
    resolved = layer + model.depth if layer < 0 else layer
    if not 0 <= resolved < model.depth:
        raise ModelError(f"layer {layer} is outside 0..{model.depth - 1} of {model.name}")
    return resolved


@dataclass(frozen=True, eq=False)
class Activation:
    """What a reduction is called with: the activation of a batch at one layer, images first.

    Parameters
    ----------
    raw_value : Tensor
        The activation as the model computed it, in the model's dtype.
    raw_grad : Tensor or None
        Its gradient (under a composite: what was propagated to it), where the record asks for one.
    model : VisionModel
        The model that runs.
    layer : int
        The block; the head is layer ``depth``.
    """

    raw_value: Tensor
    raw_grad: Tensor | None
    model: VisionModel
    layer: int

    @property
    def value(self) -> Tensor:
        """The activation, in float32 or float64."""
        return upcast(self.raw_value)

    @property
    def grad(self) -> Tensor:
        """The gradient of the target with respect to the activation, in float32 or float64.

        Raises
        ------
        TracingError
            If the record does not ask for it.
        """
        if self.raw_grad is None:
            raise TracingError("this reduction needs the gradient of what it is given: use Record(...)")
        return upcast(self.raw_grad)


@dataclass(frozen=True, eq=False)
class Block(Activation):
    """Everything that went through one block, upcast; as an activation it is the attention weights.

    Parameters
    ----------
    resid_pre, resid_mid, resid_post : Tensor
        The residual stream ``[B, N, D]`` before the block, between attention and MLP, and after the block.
    attn_values : Tensor
        The value vectors ``[B, H, N, d]``.
    """

    resid_pre: Tensor
    attn_values: Tensor
    resid_mid: Tensor
    resid_post: Tensor

    @property
    def attn_weights(self) -> Tensor:
        """The attention weights ``[B, H, N, N]``; ``grad`` is their gradient."""
        return self.value


def activation_value(a: Activation) -> Tensor:
    """Keep the activation itself, in the model's dtype: it may be run again, where every bit matters."""
    return a.raw_value


def activation_grad(a: Activation) -> Tensor:
    """Keep the gradient itself."""
    return a.grad


Reduce = Callable[[Any], Tensor]
"""Takes an ``Activation`` (a ``Block`` at the point ``block``) and returns what the cache shall hold, images first."""


@dataclass(frozen=True)
class Record:
    """What to record of a pass: a hook point, what to reduce it to, and at which layers.

    The reduction runs while the pass runs, so that attention and its gradient never exist for all layers at once. Equal
    records of all methods are answered once.

    Parameters
    ----------
    point : str
        One of ``POINTS``.
    reduce : callable
        ``Activation -> Tensor`` with the images first. It must be a module-level function (or another hashable), since
        records are compared.
    layers : tuple of int, default (-1,)
        The blocks; negative numbers count from the end. Ignored at ``pixels`` and ``pool_weights``.
    grad : bool, default True
        Whether the reduction needs the gradient.
    """

    point: str
    reduce: Reduce
    layers: tuple[int, ...] = (-1,)
    grad: bool = True

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise TracingError(f"unknown hook point {self.point!r}; known: {', '.join(POINTS)}")
        if self.point in _WITHOUT_LAYER:
            object.__setattr__(self, "layers", (0,))

    @property
    def key(self) -> tuple[str, Reduce, bool]:
        return self.point, self.reduce, self.grad

    def resolve(self, model: VisionModel) -> Record:
        """Return the same record with its layers counted from the front."""
        last = model.depth - (self.point != "biases")
        if self.point in _WITHOUT_LAYER or all(0 <= layer <= last for layer in self.layers):
            return self
        return replace(self, layers=tuple(resolve_layer(model, layer) for layer in self.layers))


@dataclass(frozen=True)
class Pass:
    """One forward, and one backward if any record needs a gradient.

    Passes of equal composites and outputs run together.

    Parameters
    ----------
    records : tuple of Record
        What to record.
    composite : Composite, default GRADIENT
        The rules of what flows backward.
    output : str or None
        Which output of the class the backward starts from, ``"logit"``, ``"prob"`` or ``"logprob"``; ``None`` for the
        one that the target names.
    patches : tuple of (int, callable)
        Other attention weights for some layers, as constants: what is recorded of these weights, and their gradient, is
        that of the new ones, and nothing flows back to the queries and keys of that layer.
    """

    records: tuple[Record, ...] = ()
    composite: Composite = GRADIENT
    output: str | None = None
    patches: tuple[tuple[int, Patch], ...] = ()

    def __post_init__(self) -> None:
        if self.output is not None:
            check_output(self.output)

    @property
    def backward(self) -> bool:
        return any(record.grad for record in self.records)

    @property
    def weight(self) -> int:
        """How many times the memory of a plain pass it takes: relevance is float64, and rules keep what they divide."""
        return 5 if self.composite.propagates == "relevance" else 1

    def resolve(self, model: VisionModel) -> Pass:
        """Return the same pass with all layers counted from the front; without a backward there is nothing to steer."""
        records = tuple(record.resolve(model) for record in self.records)
        return replace(self, records=records, composite=self.composite if self.backward else GRADIENT)

    def first(self, depth: int) -> int:
        """The lowest layer that needs a gradient: -1 for the pixels, ``depth`` for none."""
        lowest = {"pixels": -1, "pool_weights": depth}
        records = [record for record in self.records if record.grad and record.layers]
        return min([depth, *(lowest.get(record.point, min(record.layers)) for record in records)])


class ActivationCache:
    """What one pass recorded, layer by layer, and the logits.

    ``cache[record]`` is the list of tensors in the order of ``record.layers``, ``cache.map(record)`` the map
    ``[B, h, w]`` of one number per token. Every tensor has the images first.
    """

    def __init__(self, model: VisionModel, inputs: Tensor) -> None:
        self.model = model
        self.grids = [model.grid(inputs, layer) for layer in range(model.depth)]
        self.last_grid = model.last_grid(inputs)
        self.batch = len(inputs)
        self.logits: Tensor = torch.empty(0)
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def store(self, record: Record, layer: int, value: Tensor) -> None:
        self._tensors[record.key, layer] = value

    def add_bias(self, record: Record, layer: int, bias: Tensor, grad: Tensor) -> None:
        """Add what one bias contributes to the sum of its block, from the gradient of the output it is part of.

        Biases behind the pooling belong to no token. A pooling by attention may leave the prefix tokens out.
        """
        if grad.ndim == 4:  # a norm of each head's queries or keys
            bias = bias.repeat(grad.shape[1])
            grad = grad.transpose(1, 2).flatten(2)
        grad = grad.reshape(len(grad), -1, grad.shape[-1])
        share = record.reduce(Activation(bias, grad, self.model, layer))
        total = self._tensors[record.key, layer]
        missing = total.shape[1] - share.shape[1]
        self.store(record, layer, total + F.pad(share, (0, missing) if share.shape[1] == 1 else (missing, 0)))

    def has(self, record: Record) -> bool:
        return all((record.key, layer) in self._tensors for layer in record.resolve(self.model).layers)

    def __getitem__(self, record: Record) -> list[Tensor]:
        record = record.resolve(self.model)
        for layer in record.layers:
            if (record.key, layer) not in self._tensors:
                raise TracingError(
                    f"{record.point} of layer {layer} was not recorded in this pass: name it in records, with the same "
                    "function at every call (no lambda)"
                )
        return [self._tensors[record.key, layer] for layer in record.layers]

    def map(self, record: Record) -> Tensor:
        """Return the map ``[B, h, w]`` of a record of one layer that holds one number per token, or per pixel."""
        (single,) = self.maps(record)
        return single

    def maps(self, record: Record) -> list[Tensor]:
        """Return one map ``[B, h, w]`` for each layer, on the grid of that layer."""
        record = record.resolve(self.model)
        return [self._map(record.point, value, layer) for layer, value in zip(record.layers, self[record], strict=True)]

    def _map(self, point: str, value: Tensor, layer: int) -> Tensor:
        if point == "pixels" and value.ndim == 3:
            return value
        if point == "pool_weights":  # the pooling may attend to the patches alone
            missing = math.prod(self.grid) + self.model.num_prefix_tokens - value.shape[1]
            return self.tokens_to_grid(F.pad(value, (missing, 0)))
        if point == "window_weights":
            value = self.row(value, layer)
        return self.tokens_to_grid(value, layer + (point == "resid_post"))

    def row(self, value: Tensor, layer: int) -> Tensor:
        """Return one number for each token of a layer, ``[B, N]``, from such or from what is known window by window.

        Of matrices ``[B, W, t, t]`` it is the row that the model reads; sums over one axis ``[B, W, t]`` become the
        means that they are over all tokens.
        """
        windows = self.model.windows(layer)
        if windows is None:
            return value
        if value.ndim == 3:
            return windows.paste(value) / math.prod(self.grids[layer])
        read = self.model.pooling.row(value.new_empty(len(value), math.prod(self.grids[layer])))
        return windows.paste(torch.matmul(windows.cut(read).unsqueeze(-2), value).squeeze(-2))

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

    def unmerged(self, row: Tensor, layer: int) -> Tensor:
        """Bring a row ``[B, N]`` over what comes out of a block to what entered it.

        Where patches were merged after the block, each gets an equal part of what their sum got: two by two, fewer at
        the lower and right edge of a grid with an odd side, so that the sum over the row stays.
        """
        fine, coarse = self.grids[layer], self.grids[min(layer + 1, len(self.grids) - 1)]
        if fine == coarse:
            return row
        rows, columns = (torch.arange(side, device=row.device) // 2 for side in fine)  # of the merged patch
        heights, widths = ((fine[axis] - 2 * i).clamp(max=2).to(row) for axis, i in enumerate((rows, columns)))
        laid_out = row.reshape(-1, *coarse)[:, rows][:, :, columns]
        return (laid_out / (heights[:, None] * widths)).flatten(1)

    def copy(self) -> ActivationCache:
        """Return a cache that holds the same tensors and may be given more of its own."""
        other = copy(self)
        other._tensors = dict(self._tensors)
        return other

    @classmethod
    def join(cls, parts: Sequence[ActivationCache]) -> ActivationCache:
        """Put the caches of several inner batches together."""
        joined = parts[0]
        if len(parts) > 1:
            joined = joined.copy()
            joined.batch = sum(part.batch for part in parts)
            joined.logits = torch.cat([part.logits for part in parts])
            # the parts let go of each tensor as it is joined, so that not everything exists twice
            joined._tensors = {key: torch.cat([part._tensors.pop(key) for part in parts]) for key in joined._tensors}
        return joined
