"""What the methods along a path share: the points, the gradient averaged over them, and the rows that are read.

Transition attention maps: attention as a Markov chain, weighed by the integrated gradient of its last step.

Bidirectional attributions: what the tokens perceive, weighed by what the class asks of the last attention.

Iterated integrated attributions: a path of images, and on each of its points a path of attention.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.methods.base import Attribution, Method, resolve_layer
from vitreous.methods.ops import (
    attention_point,
    downwards,
    head_mean,
    initial_row,
    pooling_records,
    positive,
    push,
    read_row,
    rollout_step_mixed,
)
from vitreous.methods.registry import register_method
from vitreous.methods.value_weighted import block_weights, head_projection
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.registry import check_at_least, check_choice
from vitreous.tracing import VALUES, Activation, ActivationCache, Block, Context, Pass, Record, Reduce

__all__ = [
    "BidirectionalHeads",
    "BidirectionalTokens",
    "Feedback",
    "IIA",
    "SMALL",
    "TAM",
    "head_importance",
    "points",
    "push_rows",
]

SMALL = 1e-30
"""What a sum that is zero is divided by, so that nothing divided by nothing is nothing."""


class Feedback(Method):
    """``W * R`` at the rows that the head reads: what reaches them, weighed by what the class asks of them.

    ``R`` gathers along one matrix per block, ``r <- r + r M_l`` from the last block down to ``start``, as many rows at
    once as the head reads: one of a class token, all of them where tokens are averaged, and then the mean over these
    rows of the product. ``W = mean_h (mean_t dA(t x))+`` is the gradient of the last attention of the model (the
    pooling's own, where it pools by attention) on the way to the image. The image itself is the last point of the way,
    so that its pass is shared with other methods; all of one session who take as many steps share the way.

    Inside windows both are as if the matrices between all patches were there: ``R`` has a row for each patch of the
    last grid, which passes each block window by window. Where patches were merged, each gets an equal part of what
    their sum got, of ``R`` when it comes there and of the columns of ``W``, so that both lie on the grid of ``start``.
    """

    start: int | None
    steps: int
    output: str | None

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps, 1)
        if self.output is not None:
            check_choice("output", self.output, VALUES)

    @abstractmethod
    def first(self, model: VisionModel) -> int:
        """The first block, where ``start`` names none."""

    @abstractmethod
    def matrices(self, model: VisionModel, layers: tuple[int, ...]) -> Record:
        """The matrices of these blocks."""

    @abstractmethod
    def pooled(self) -> tuple[Reduce, bool]:
        """What the matrix of a pooling by attention is reduced to, and whether that needs a gradient."""

    @property
    def cost(self) -> tuple[float, float]:
        return self.steps, self.steps

    def records(self, model: VisionModel) -> list[Record]:
        return [self._matrices(model), *pooling_records(model, *self.pooled()), last_gradient(model)]

    def compute(self, context: Context) -> Attribution:
        model = context.model
        cache = self.record(context)
        matrices = downwards(cache, self._matrices(model))
        weights = integrated(context, self.steps, self.output)
        windows = cache.model.windows(model.depth - 1)
        if windows is not None:
            row = self._in_windows(cache, matrices, weights, windows)
            return Attribution(cache.tokens_to_grid(row, matrices[-1][0]), {})
        reached = self.gathered(cache, self._begin(cache, matrices[0][1]), matrices)
        product = reached * F.pad(weights, (reached.shape[2] - weights.shape[2], 0))  # a pooling may see patches only
        row = product[:, 0] if model.pooling.uses_attention else model.pooling.read(product, dim=1)
        return Attribution(cache.tokens_to_grid(row), {})

    def gathered(self, cache: ActivationCache, rows: Tensor, matrices: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Return the rows ``[B, R, N]`` of ``R``, of which these are the beginning, through blocks from the last."""
        for layer, matrix in matrices:
            rows = unmerged_rows(cache, rows, layer)
            rows = rows + push_rows(rows, matrix, cache.model.windows(layer))
        return rows

    def _in_windows(
        self, cache: ActivationCache, matrices: Sequence[tuple[int, Tensor]], weights: Tensor, windows: Windows
    ) -> Tensor:
        """Return the mean over rows of ``W * R``, ``[B, N]``.

        As many rows go together as a window has places: they take as much memory as the matrices of the first block.
        """
        (last, like), first = matrices[0], matrices[-1][0]
        read = read_row(cache, like, last)
        same = torch.eye(read.shape[1], dtype=like.dtype, device=like.device)
        some = windows.patches.shape[1]
        parts = []
        for start in range(0, len(same), some):
            rows = same[start : start + some].expand(len(like), -1, -1)
            asked = push_rows(rows, weights, windows)
            for layer in reversed(range(first, last)):
                asked = unmerged_rows(cache, asked, layer)
            product = self.gathered(cache, rows, matrices) * asked
            parts.append(push(read[:, start : start + some], product))
        return torch.stack(parts).sum(dim=0)

    def _matrices(self, model: VisionModel) -> Record:
        first = self.first(model) if self.start is None else resolve_layer(model, self.start)
        return self.matrices(model, tuple(range(first, model.depth)))

    def _begin(self, cache: ActivationCache, like: Tensor) -> Tensor:
        """The rows of the identity that are read, or the one row of a pooling by attention."""
        if cache.model.pooling.uses_attention:
            return initial_row(cache, like, *self.pooled()).unsqueeze(1)
        same = torch.eye(like.shape[1], dtype=like.dtype, device=like.device)
        return same[rows_read(cache.model)].expand(len(like), -1, -1)


def push_rows(rows: Tensor, matrix: Tensor, windows: Windows | None) -> Tensor:
    """``r M`` for rows ``[B, R, N]`` and matrices ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    if windows is None:
        return rows @ matrix
    places = windows.cut(rows.flatten(0, 1))
    places = places.view(*rows.shape[:2], *places.shape[1:])
    moved = (places.transpose(1, 2) @ matrix).transpose(1, 2)
    return windows.paste(moved.flatten(0, 1)).view_as(rows)


def unmerged_rows(cache: ActivationCache, rows: Tensor, layer: int) -> Tensor:
    """Bring rows ``[B, R, N]`` over what comes out of a block to what entered it."""
    if cache.grids[layer] == cache.grids[min(layer + 1, len(cache.grids) - 1)]:
        return rows
    return cache.unmerged(rows.flatten(0, 1), layer).view(*rows.shape[:2], -1)


def rows_read(model: VisionModel) -> slice:
    """The rows from the first one to the last that the head reads."""
    stops = [rows.stop for rows in model.pooling.rows]
    return slice(0, None if None in stops else max(stops))


def read_gradient(a: Activation) -> Tensor:
    """The rows of ``dA`` that the head reads: ``[B, H, R, N]``, without the rest of it in memory.

    Inside windows those are all: ``[B, W, H, t, t]``.
    """
    grad = a.grad
    if grad.ndim == 5:
        return grad
    rows = slice(None) if a.model.pooling.uses_attention else rows_read(a.model)
    return grad[:, :, rows].clone()


def last_gradient(model: VisionModel) -> Record:
    """What is averaged along the way: the gradient of the last attention of the model."""
    if model.pooling.uses_attention:
        return Record("pool_weights", read_gradient)
    return Record(attention_point(model), read_gradient, (model.depth - 1,))


def integrated(context: Context, steps: int, output: str | None) -> Tensor:
    """Return ``W = mean_h (mean_t dA(t x))+`` at the rows that are read, ``[B, R, N]``; run once in a session.

    Inside windows it is the whole matrix of the last block, ``[B, W, t, t]``.
    ``t = 0, 1 / (steps - 1) .. 1``; one step is the image itself. The backward ends in the last block.
    """
    key = (integrated, steps, output)
    if key not in context.memo:
        context.memo[key] = _integrated(context, steps, output)
    weights: Tensor = context.memo[key]
    return weights


def _integrated(context: Context, steps: int, output: str | None) -> Tensor:
    keep = last_gradient(context.model)
    (total,) = context.run_pass(Pass((keep,), output=output))[keep]
    aimed = context if output is None else context.with_output(output)
    for some, count in points(aimed, [step / (steps - 1) for step in range(steps - 1)]):
        (gradient,) = aimed.with_inputs(some, repeat=count).run_pass(Pass((keep,)))[keep]
        total = total + gradient.reshape(-1, count, *gradient.shape[1:]).sum(dim=1)
    return (total / steps).clamp(min=0).mean(dim=-3)


def points(context: Context, way: Sequence[float]) -> Iterator[tuple[Tensor, int]]:
    """Yield ``t x`` for as many times t as go together, and how many these are; points of an image are neighbours."""
    inputs = context.inputs
    first = 0
    while first < len(way):
        some = way[first : first + max(1, context.batch // len(inputs))]
        scale = torch.tensor(some, dtype=inputs.dtype, device=inputs.device).view(-1, *[1] * (inputs.ndim - 1))
        yield (scale * inputs.unsqueeze(1)).flatten(0, 1), len(some)
        first += len(some)


@register_method(
    "tam",
    family="path",
    papers=("yuan2021explaining",),
    aliases=("t_attn",),
    cost=(20, 20),
    cost_note="20 F + 20 B of the last block",
    presets={
        "tis": {"start": 0},
        "inflow": {"start": 0, "twice": True},
        "interpretdl": {"output": "prob"},
    },
    models="transformers",
)
@dataclass(frozen=True)
class TAM(Feedback):
    """Attention as the steps of a chain from the class token, weighed by its integrated gradient.

    ``s = mean_h A[CLS]`` of the last block, ``s <- s + s mean_h A_l`` down to block ``start``;
    ``W = mean_h (mean_t dA(t x))+ [CLS]`` of the last block, with ``steps`` points t from 0 to 1, both included;
    ``map = s * W``. Where patches are averaged, the mean over their rows of that product. A pooling by attention is
    the last attention: s starts with its own row, W is its gradient. Without ``start`` the chain leaves the first third
    of the blocks out: it goes down to block 4 of 12, as released. ``steps=1`` is the gradient at the image itself.
    Cost: ``steps`` forwards, and as many backwards that end in the last block.

    Inside windows, which the paper leaves open, attention is that between all patches, zero outside the windows. All
    rows of the last grid are read; where patches were merged, each gets an equal part of s, and of W. The map lies on
    the grid of block ``start``.

    The path begins at zero in normalised space, and no difference of attention enters the product. The released scripts
    of deletion and insertion, and those of TIS (preset ``tis``), go down to block 0; the code of InFlow (``inflow``)
    also takes the last block twice (``twice``); InterpretDL (``interpretdl``) differentiates the probability, whatever
    value was asked for (``value``).
    """

    start: int | None = None
    steps: int = 20
    output: str | None = None
    twice: bool = False

    def first(self, model: VisionModel) -> int:
        return model.depth // 3

    def records(self, model: VisionModel) -> list[Record]:
        if self.twice and model.pooling.uses_attention:
            raise ModelError(f"tam: twice=true repeats the last block; {model.name} reads it by attention pooling")
        return super().records(model)

    def matrices(self, model: VisionModel, layers: tuple[int, ...]) -> Record:
        return Record(attention_point(model), head_mean, layers, grad=False)

    def pooled(self) -> tuple[Reduce, bool]:
        return head_mean, False

    def gathered(self, cache: ActivationCache, rows: Tensor, matrices: Sequence[tuple[int, Tensor]]) -> Tensor:
        if cache.model.pooling.uses_attention:
            return super().gathered(cache, rows, matrices)
        last, matrix = matrices[0]
        rows = push_rows(rows, matrix, cache.model.windows(last))
        return super().gathered(cache, rows, matrices if self.twice else matrices[1:])


def head_importance(attention: Tensor, gradient: Tensor) -> Tensor:
    """``I_h = mean_ij |(A_h^T dA_h)_ij|`` divided by its sum over heads, ``[B, H, 1, 1]``; zero without gradients.

    Inside windows ``[B, 1, H, 1, 1]``: between all patches the product is zero outside them.
    """
    all_but_heads = (-2, -1) if attention.ndim == 4 else (1, -2, -1)
    size = (attention.transpose(-2, -1) @ gradient).abs_().mean(dim=all_but_heads, keepdim=True)
    return size / size.sum(dim=-3, keepdim=True).clamp(min=SMALL)


def by_heads(a: Activation) -> Tensor:
    """``sum_h I_h A_h``."""
    return (head_importance(a.value, a.grad) * a.value).sum(dim=-3)


def by_tokens(block: Block) -> Tensor:
    """``mean_h A diag m`` with ``m[j] = ||P v[j]|| / ||x[j]||``: what attention moves of a token, in parts of it."""
    attention = block.attn_weights
    projection, deviation = head_projection(block_weights(block), attention, block.attn_values)
    moved = torch.einsum("bhnd,hkd->bnk", block.attn_values, projection)
    size = moved.norm(dim=-1) / block.resid_pre.norm(dim=-1).clamp(min=SMALL)
    matrix: Tensor = attention.mean(dim=1) * size.unsqueeze(1)
    return matrix if deviation is None else matrix / deviation


@register_method(
    "bt_h",
    family="path",
    papers=("chen2023beyond",),
    aliases=("beyond", "bi_attn"),
    cost=(20, 20),
    cost_note="20 F + 1 B + 19 B of the last block",
    presets={"tis": {"start": 0}, "interpretdl": {"output": "prob"}},
    models="transformers",
)
@dataclass(frozen=True)
class BidirectionalHeads(Feedback):
    """Attention gathered through the blocks, heads weighed by their gradient, times the integrated gradient.

    Perception: ``C_l = sum_h I_h A_l,h`` with ``I_h`` the mean of ``|A_h^T dA_h|``, divided by its sum over the heads
    of that image (a block without any gradient gives zero); ``R = I``, ``R <- R + C_l R`` upwards from block ``start``.
    Feedback: ``W = mean_h (mean_t dA(t x))+`` of the last block, as in ``tam``. ``map = (W * R)[CLS]``, by the rows of
    R that are read; the mean over rows where patches are averaged. A pooling by attention is the last attention: its
    own C is the first row, W its gradient. Without ``start`` the first quarter of the blocks is left out: blocks 3 to
    11 of 12, as released. Cost: ``steps`` forwards and backwards, all but one of these end in the last block.

    Inside windows, which the paper leaves open, A and dA are those between all patches, zero outside the windows. All
    rows of the last grid are read; where patches were merged, each gets an equal part of R, and of the columns of W.
    The map lies on the grid of block ``start``.

    TIS compares with all blocks (preset ``tis``), InterpretDL differentiates the probability (``interpretdl``). The
    release divides ``I_h`` by a sum over the whole batch, and is right for one image at a time only.
    """

    start: int | None = None
    steps: int = 20
    output: str | None = None

    def first(self, model: VisionModel) -> int:
        return model.depth // 4

    def matrices(self, model: VisionModel, layers: tuple[int, ...]) -> Record:
        return Record(attention_point(model), by_heads, layers)

    def pooled(self) -> tuple[Reduce, bool]:
        return by_heads, True


@register_method(
    "bt_t",
    family="path",
    papers=("chen2023beyond",),
    cost=(20, 20),
    cost_note="20 F + 20 B of the last block",
    presets={"released": {"start": 5}, "tis": {"start": 0}, "interpretdl": {"start": 3, "output": "prob"}},
    models="ViT",
)
@dataclass(frozen=True)
class BidirectionalTokens(Feedback):
    """Attention gathered through the blocks, tokens weighed by how much is moved, times the integrated gradient.

    ``C_l = mean_h A_l diag m_l`` with ``m[j] = ||P v[j]|| / ||x[j]||``: v the values of all heads with their bias, P
    the output projection without its bias (LayerScale included, and a norm in front of it), x the input of the block.
    The rest is ``bt_h``: ``R <- R + C_l R`` upwards from block ``start``, ``map = (W * R)[CLS]``. A pooling by
    attention starts with the mean of its heads, since it moves no token of a stream. Without ``start`` the first half
    of the blocks is left out: blocks 6 to 11 of 12, as in the evaluation script. Cost: ``steps`` forwards, and as many
    backwards that end in the last block.

    The released function begins at block 5 (preset ``released``), TIS at block 0 (``tis``), InterpretDL at block 3
    with the probability (``interpretdl``).
    """

    start: int | None = None
    steps: int = 20
    output: str | None = None

    def first(self, model: VisionModel) -> int:
        return model.depth // 2

    def matrices(self, model: VisionModel, layers: tuple[int, ...]) -> Record:
        return Record("block", by_tokens, layers, grad=False)

    def pooled(self) -> tuple[Reduce, bool]:
        return head_mean, False


@dataclass(frozen=True)
class Scaled:
    """Attention weights times a number."""

    by: float

    def __call__(self, attention: Tensor) -> Tensor:
        return attention * self.by


@register_method("iia", family="path", papers=("barkan2023visual",), cost=(36, 36), models="transformers")
@dataclass(frozen=True)
class IIA(Method):
    """Rollout of attention times gradient, averaged over a path of images and one of attention.

    For t and u in ``0, 1 / steps .. 1``: the image ``t x`` with u times its own attention in the last block, as a
    constant. ``S_l = mean_h (A_l * dA_l)+`` is averaged over these ``(steps + 1)^2`` runs, where the last block counts
    with its scaled attention; ``r <- r (S_l + I) / rowsum`` from the last block to the first. The path of attention is
    that of the last block also where attention pools; the pooling's own S, averaged in the same way, starts the row.
    Inside windows the row passes each block window by window, and merged patches share equally what their sum got.
    Cost: as many forwards and backwards as runs; sums are kept, never all runs.

    As released, with t and u in float32; the paper iterates over more layers, and multiplies gradients by the
    differences along the path.
    """

    steps: int = 5

    def __post_init__(self) -> None:
        check_at_least("steps", self.steps, 1)

    @property
    def cost(self) -> tuple[float, float]:
        runs = (self.steps + 1) ** 2
        return runs, runs

    def compute(self, context: Context) -> Attribution:
        model = context.model
        way = torch.linspace(0, 1, self.steps + 1, dtype=torch.float32).tolist()
        matrices = Record(attention_point(model), positive, tuple(range(model.depth)))
        records = (matrices, *pooling_records(model, positive))
        sums: list[Tensor] = []
        for some, count in points(context, way):
            fork = context.with_inputs(some, repeat=count)
            for time in way:
                cache = fork.run_pass(Pass(records, patches=((model.depth - 1, Scaled(time)),)))
                found = cache[matrices]
                found = [initial_row(cache, found[0], positive), *found]
                found = [each.reshape(-1, count, *each.shape[1:]).sum(dim=1) for each in found]
                sums = [total.add_(each) for total, each in zip(sums, found, strict=True)] if sums else found
        row, *means = (total / len(way) ** 2 for total in sums)
        for layer, matrix in reversed(list(enumerate(means))):
            row = rollout_step_mixed(cache.unmerged(row, layer), matrix, windows=cache.model.windows(layer))
        return Attribution(cache.tokens_to_grid(row), {})
