"""Methods along a path: attention as a chain, weighed by the gradient of its last step along a path of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.methods import ops
from vitreous.methods.base import Attribution, Method
from vitreous.methods.registry import register_method
from vitreous.methods.value_weighted import block_weights, head_projection
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.registry import choice, number
from vitreous.tracing import VALUES, Activation, ActivationCache, Block, Context, Pass, Record, Reduce, resolve_layer


class PathWeighted(Method):
    """``W * R`` at the rows that the head reads: what reaches them, weighed by what the class asks of them.

    ``R`` follows one matrix per block, ``r <- r + r M_l`` from the last block down to ``start``, as many rows at once
    as the head reads: one of a class token, all of them where tokens are averaged, and then the mean over these rows of
    the product. ``W = mean_h (mean_t dA(t x))+`` is the gradient of the last attention of the model (the pooling's own,
    where it pools by attention) on the path to the image. The image itself is the last point of the path, so that its
    pass is shared with other methods; all of one context who take as many steps share the path.

    Inside windows both are as if the matrices between all patches were there: ``R`` has a row for each patch of the
    last grid, which passes each block window by window. Where patches were merged, each gets an equal part of what
    their sum got, of ``R`` when it comes there and of the columns of ``W``, so that both lie on the grid of ``start``.
    """

    start: int | None
    steps: int
    output: str | None
    divisor: ClassVar[int]
    """The first block is ``depth // divisor``, where ``start`` names none."""
    reduce: ClassVar[Reduce] = ops.head_mean
    """The matrix of a block, and the row of a pooling by attention."""
    grad: ClassVar[bool] = False

    def records(self, model: VisionModel) -> list[Record]:
        return [self.matrices(model), *self._pooling(model), last_gradient(model)]

    def matrices(self, model: VisionModel) -> Record:
        """Return the record of the matrices of all blocks from the first on."""
        first = model.depth // self.divisor if self.start is None else resolve_layer(model, self.start)
        return Record(ops.attention_point(model), type(self).reduce, tuple(range(first, model.depth)), self.grad)

    def _pooling(self, model: VisionModel) -> list[Record]:
        return ops.pooling_records(model, type(self).reduce, self.grad)

    def compute(self, context: Context) -> Attribution:
        model = context.model
        cache = self.record(context)
        record = self.matrices(model)
        matrices = list(zip(reversed(record.layers), reversed(cache[record]), strict=True))
        weights = path_gradient(context, self.steps, self.output)
        windows = model.windows(model.depth - 1)
        if windows is not None:
            row = self._in_windows(cache, matrices, weights, windows)
            return Attribution(cache.tokens_to_grid(row, record.layers[0]), {})
        like, pooling = matrices[0][1], self._pooling(model)
        if pooling:
            rows = ops.initial_row(cache, like, pooling).unsqueeze(1)
        else:
            rows = torch.eye(like.shape[1], dtype=like.dtype, device=like.device)[rows_to_read(model)]
        relevance = self.follow(cache, rows.expand(len(like), -1, -1), matrices)
        unseen = relevance.shape[2] - weights.shape[2]  # a pooling may see patches only
        product = relevance * F.pad(weights, (unseen, 0))
        row = product[:, 0] if pooling else model.pooling.read(product, dim=1)
        return Attribution(cache.tokens_to_grid(row), {})

    def follow(self, cache: ActivationCache, rows: Tensor, matrices: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Return the rows ``[B, R, N]`` of ``R``: these rows, followed through blocks from the last one."""
        for layer, matrix in matrices:
            rows = ops.unmerged_rows(cache, rows, layer)
            rows = rows + ops.rows_times(rows, matrix, cache.model.windows(layer))
        return rows

    def _in_windows(
        self, cache: ActivationCache, matrices: Sequence[tuple[int, Tensor]], weights: Tensor, windows: Windows
    ) -> Tensor:
        """Return the mean over rows of ``W * R``, ``[B, N]``.

        As many rows go together as a window has places: they take as much memory as the matrices of the first block.
        """
        (last, like), first = matrices[0], matrices[-1][0]
        read = ops.read_row(cache, like, last)
        identity = torch.eye(read.shape[1], dtype=like.dtype, device=like.device)
        step = windows.patches.shape[1]
        parts = []
        for start in range(0, len(identity), step):
            rows = identity[start : start + step].expand(len(like), -1, -1)
            gradients = ops.rows_times(rows, weights, windows)
            for layer in reversed(range(first, last)):
                gradients = ops.unmerged_rows(cache, gradients, layer)
            product = self.follow(cache, rows, matrices) * gradients
            parts.append(ops.row_times(read[:, start : start + step], product))
        return torch.stack(parts).sum(dim=0)


def rows_to_read(model: VisionModel) -> slice:
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
    rows = slice(None) if a.model.pooling.uses_attention else rows_to_read(a.model)
    return grad[:, :, rows].clone()


def last_gradient(model: VisionModel) -> Record:
    """What is averaged along the path: the gradient of the last attention of the model."""
    if model.pooling.uses_attention:
        return Record("pool_weights", read_gradient)
    return Record(ops.attention_point(model), read_gradient, (model.depth - 1,))


def path_gradient(context: Context, steps: int, output: str | None) -> Tensor:
    """Return ``W = mean_h (mean_t dA(t x))+`` at the rows that are read, ``[B, R, N]``; run once in a context.

    Inside windows it is the whole matrix of the last block, ``[B, W, t, t]``.
    ``t = 0, 1 / (steps - 1) .. 1``; one step is the image itself. The backward ends in the last block.
    """

    def integrate() -> Tensor:
        record = last_gradient(context.model)
        (total,) = context.run_pass(Pass((record,), output=output))[record]
        target = context if output is None else context.with_output(output)
        times = [step / (steps - 1) for step in range(steps - 1)]
        for points, start, stop in target.batched_copies(scaled_inputs(target, times), len(times)):
            (gradient,) = points.run_pass(Pass((record,)))[record]
            total = total + gradient.reshape(-1, stop - start, *gradient.shape[1:]).sum(dim=1)
        return (total / steps).clamp(min=0).mean(dim=-3)

    return ops.compute_once(context, (path_gradient, steps, output), integrate)


def scaled_inputs(context: Context, times: Sequence[float]) -> Callable[[int, int], Tensor]:
    """Return what makes ``t x`` for some of these times, ``[B, count, ...]``."""
    inputs = context.inputs

    def make(start: int, stop: int) -> Tensor:
        scale = torch.tensor(times[start:stop], dtype=inputs.dtype, device=inputs.device)
        return scale.view(-1, *[1] * (inputs.ndim - 1)) * inputs.unsqueeze(1)

    return make


_register = partial(register_method, family="path", cost=("steps", "steps"), models="transformers")


@_register(
    "tam",
    papers=("yuan2021explaining",),
    aliases=("t_attn",),
    cost_note="20 F + 20 B of the last block",
    presets={
        "tis": {"start": 0},
        "inflow": {"start": 0, "twice": True},
        "interpretdl": {"output": "prob"},
    },
)
@dataclass(frozen=True)
class TAM(PathWeighted):
    r"""Attention as the steps of a chain from the class token, weighed by its integrated gradient.

    .. math:: s \leftarrow s + s \bar A^{(l)}, \qquad
        W = \frac{1}{H} \sum_h \Bigl( \frac{1}{T} \sum_t \nabla A^{(L)}_h(t x) \Bigr)^+_{\mathrm{CLS}}, \qquad
        M = s \odot W

    with :math:`s = \bar A^{(L)}_{\mathrm{CLS}}` of the last block at first, down to block ``start``, and T points t
    from 0 to 1, both included. Where patches are averaged, it is the mean over their rows of that product. A pooling by
    attention is the last attention: s starts with its own row, W is its gradient.

    Parameters
    ----------
    start : int, optional
        The lowest block. Left out, the first third of the blocks is, as released: down to block 4 of 12.
    steps : int, default 20
        The number of points; 1 is the gradient at the image itself.
    output : {"logit", "prob", "logprob"}, optional
        Which output of the class is differentiated, whatever was asked for.
    twice : bool, default False
        Take the last block twice.

    Notes
    -----
    The path begins at zero in normalised space, and no difference of attention enters the product. The released scripts
    of deletion and insertion, and those of TIS (preset ``tis``), go down to block 0; the code of InFlow (``inflow``)
    also takes the last block twice; InterpretDL (``interpretdl``) differentiates the probability.

    Inside windows, which the paper leaves open, attention is that between all patches, zero outside the windows. All
    rows of the last grid are read; where patches were merged, each gets an equal part of s, and of W. The map lies on
    the grid of block ``start``.

    ``steps`` forwards, and as many backwards that end in the last block.

    References
    ----------
    Yuan et al., "Explaining Information Flow Inside Vision Transformers Using Markov Chain", NeurIPS Workshop 2021.

    Examples
    --------
    >>> vt.explain(model, image, "tam(steps=4)").map.shape
    torch.Size([16, 16])
    """

    start: int | None = None
    steps: int = number(20, "[1, inf)")
    output: str | None = choice(None, *VALUES)
    twice: bool = False
    divisor = 3

    def records(self, model: VisionModel) -> list[Record]:
        if self.twice and model.pooling.uses_attention:
            raise ModelError(f"tam: twice=true repeats the last block; {model.name} reads it by attention pooling")
        return super().records(model)

    def follow(self, cache: ActivationCache, rows: Tensor, matrices: Sequence[tuple[int, Tensor]]) -> Tensor:
        if cache.model.pooling.uses_attention:
            return super().follow(cache, rows, matrices)
        last, matrix = matrices[0]
        rows = ops.rows_times(rows, matrix, cache.model.windows(last))
        return super().follow(cache, rows, matrices if self.twice else matrices[1:])


def by_heads(a: Activation) -> Tensor:
    """``sum_h I_h A_h``."""
    return (ops.head_importance(a.value, a.grad) * a.value).sum(dim=-3)


def by_tokens(block: Block) -> Tensor:
    """``mean_h A diag m`` with ``m[j] = ||P v[j]|| / ||x[j]||``: what attention moves of a token, in parts of it."""
    attention = block.attn_weights
    projection, deviation = head_projection(block_weights(block), attention, block.attn_values)
    moved = torch.einsum("bhnd,hkd->bnk", block.attn_values, projection)
    size = moved.norm(dim=-1) / block.resid_pre.norm(dim=-1).clamp(min=ops.SMALL)
    matrix: Tensor = attention.mean(dim=1) * size.unsqueeze(1)
    return matrix if deviation is None else matrix / deviation


@_register(
    "bt_h",
    papers=("chen2023beyond",),
    aliases=("beyond", "bi_attn"),
    cost_note="20 F + 1 B + 19 B of the last block",
    presets={"tis": {"start": 0}, "interpretdl": {"output": "prob"}},
)
@dataclass(frozen=True)
class BidirectionalHeads(PathWeighted):
    r"""Attention gathered through the blocks, heads weighed by their gradient, times the integrated gradient.

    .. math:: C^{(l)} = \sum_h I_h A^{(l)}_h, \quad
        I_h \propto \frac{1}{N^2} \sum_{ij} \bigl| (A_h^T \nabla A_h)_{ij} \bigr|, \quad
        R \leftarrow R + C^{(l)} R, \quad M = (W \odot R)_{\mathrm{CLS}}

    from :math:`R = I` upwards from block ``start``; :math:`I_h` sums to 1 over the heads of an image (a block without
    any gradient gives zero), and W is the integrated gradient of the last block, as in ``tam``. It is the mean over the
    rows that are read where patches are averaged. A pooling by attention is the last attention: its own C is the first
    row, W its gradient.

    Parameters
    ----------
    start : int, optional
        The lowest block. Left out, the first quarter of the blocks is, as released: blocks 3 to 11 of 12.
    steps : int, default 20
        The number of points of the path.
    output : {"logit", "prob", "logprob"}, optional
        Which output of the class is differentiated, whatever was asked for.

    Notes
    -----
    TIS compares with all blocks (preset ``tis``), InterpretDL differentiates the probability (``interpretdl``). The
    release divides :math:`I_h` by a sum over the whole batch, and is right for one image at a time only.

    Inside windows, which the paper leaves open, A and its gradient are those between all patches, zero outside the
    windows. All rows of the last grid are read; where patches were merged, each gets an equal part of R, and of the
    columns of W. The map lies on the grid of block ``start``.

    ``steps`` forwards and backwards, all but one of which end in the last block.

    References
    ----------
    Chen et al., "Beyond Intuition: Rethinking Token Attributions inside Transformers", TMLR 2023.

    Examples
    --------
    >>> vt.explain(model, image, "bt_h(steps=4)").map.shape
    torch.Size([16, 16])
    """

    start: int | None = None
    steps: int = number(20, "[1, inf)")
    output: str | None = choice(None, *VALUES)
    divisor = 4
    reduce = by_heads
    grad = True


@_register(
    "bt_t",
    papers=("chen2023beyond",),
    cost_note="20 F + 20 B of the last block",
    presets={"released": {"start": 5}, "tis": {"start": 0}, "interpretdl": {"start": 3, "output": "prob"}},
    models="ViT",
)
@dataclass(frozen=True)
class BidirectionalTokens(PathWeighted):
    r"""Attention gathered through the blocks, tokens weighed by how much is moved, times the integrated gradient.

    .. math:: C^{(l)} = \bar A^{(l)} \operatorname{diag} m^{(l)}, \qquad
        m_j = \frac{\lVert P v_j \rVert}{\lVert x_j \rVert}, \qquad
        R \leftarrow R + C^{(l)} R, \qquad M = (W \odot R)_{\mathrm{CLS}}

    with v the values of all heads and their bias, P the output projection without its bias (LayerScale included, and a
    norm in front of it), and x the input of the block. The rest is ``bt_h``. A pooling by attention starts with the
    mean of its heads, since it moves no token of a stream.

    Parameters
    ----------
    start : int, optional
        The lowest block. Left out, the first half of the blocks is: 6 to 11 of 12, as in the evaluation script.
    steps : int, default 20
        The number of points of the path.
    output : {"logit", "prob", "logprob"}, optional
        Which output of the class is differentiated, whatever was asked for.

    Notes
    -----
    The released function begins at block 5 (preset ``released``), TIS at block 0 (``tis``), InterpretDL at block 3 with
    the probability (``interpretdl``). ``steps`` forwards, and as many backwards that end in the last block.

    References
    ----------
    Chen et al., "Beyond Intuition: Rethinking Token Attributions inside Transformers", TMLR 2023.

    Examples
    --------
    >>> vt.explain(model, image, "bt_t(steps=4)").map.shape
    torch.Size([16, 16])
    """

    start: int | None = None
    steps: int = number(20, "[1, inf)")
    output: str | None = choice(None, *VALUES)
    divisor = 2

    def matrices(self, model: VisionModel) -> Record:
        return Record("block", by_tokens, super().matrices(model).layers, grad=False)


@_register("iia", papers=("barkan2023visual",), cost=(36, 36))
@dataclass(frozen=True)
class IIA(Method):
    r"""Rollout of attention times gradient, averaged over a path of images and one of attention.

    .. math:: S^{(l)} = \frac{1}{(T + 1)^2} \sum_{t, u} \frac{1}{H} \sum_h
        \bigl( A^{(l)}_h \odot \nabla A^{(l)}_h \bigr)^+, \qquad r \leftarrow r \, \frac{S^{(l)} + I}{\mathrm{rowsum}}

    for t and u in 0, 1 / T .. 1: the image :math:`t x` with u times its own attention in the last block, as a constant,
    where the last block counts with its scaled attention; from the last block to the first. The path of attention is
    that of the last block also where attention pools; the pooling's own S, averaged in the same way, starts the row.

    Parameters
    ----------
    steps : int, default 5
        The number of steps T of both paths.

    Notes
    -----
    As released, with t and u in float32; the paper iterates over more layers, and multiplies gradients by the
    differences along the path. Inside windows the row passes each block window by window, and merged patches share
    equally what their sum got. :math:`(T + 1)^2` forwards and backwards; sums are kept, never all runs.

    References
    ----------
    Barkan et al., "Visual Explanations via Iterated Integrated Attributions", ICCV 2023.

    Examples
    --------
    >>> vt.explain(model, image, "iia(steps=1)").map.shape
    torch.Size([16, 16])
    """

    steps: int = number(5, "[1, inf)")

    @property
    def cost(self) -> tuple[float, float]:
        runs = (self.steps + 1) ** 2
        return runs, runs

    def compute(self, context: Context) -> Attribution:
        model = context.model
        times = torch.linspace(0, 1, self.steps + 1, dtype=torch.float32).tolist()
        records = ops.chain_records(model, ops.positive)
        layers = records[0].layers
        sums: list[Tensor] = []
        for points, start, stop in context.batched_copies(scaled_inputs(context, times), len(times)):
            for time in times:
                scale = partial(torch.mul, other=time)
                cache = points.run_pass(Pass(tuple(records), patches=((model.depth - 1, scale),)))
                matrices = cache[records[0]]
                terms = [ops.initial_row(cache, matrices[0], records[1:]), *matrices]
                terms = [term.reshape(-1, stop - start, *term.shape[1:]).sum(dim=1) for term in terms]
                sums = [total.add_(term) for total, term in zip(sums, terms, strict=True)] if sums else terms
        row, *means = (total / len(times) ** 2 for total in sums)
        return Attribution(ops.rollout(cache, row, layers, means, ops.mix_residual), {})
