"""Vector transformations: attention weighed by what it does to the vectors that it moves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods.base import Attribution, Method
from vitreous.methods.ops import initial_row, pooling_records, positive, push
from vitreous.methods.registry import register_method
from vitreous.methods.rollout import mean_row
from vitreous.methods.value_weighted import block_weights, head_projection, layer_weights
from vitreous.models import Norm, VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import VALUES, Activation, ActivationCache, Block, Context, Record

__all__ = ["Measure", "VTranM"]

_SMALL = 1e-8


@dataclass(frozen=True)
class Measure:
    """How much a transformation keeps of a vector: ``ratio[j] * necc[j]``, either of them left out on demand.

    ``ratio = ||E~|| / ||E||``, ``necc = softmax over tokens of cos(E, E~)``, E the vector before and E~ after.
    """

    original: str
    length: bool
    necc: bool

    def before(self, norm: Norm, stream: Tensor) -> Tensor:
        """E: the residual stream itself, or what the norm in front of the branch makes of it."""
        return stream if self.original == "residual" else norm(stream)

    def weigh(self, original: Tensor, lengths: Tensor, product: Tensor) -> Tensor:
        """Return the weights of the tokens (last axis) from ``||E||``, ``||E~||`` and ``<E, E~>``."""
        weights = torch.ones_like(lengths)
        if self.length:
            weights = weights * lengths / original.clamp(min=_SMALL)
        if self.necc:
            cosine = product / (original * lengths).clamp(min=_SMALL)
            weights = weights * cosine.softmax(dim=-1)
        return weights

    def heads(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """Return the transformation weights of the heads ``[B, H, N]``, and what rows of attention are divided by.

        ``E~_h = P_h v_h`` is never written out: with ``K_h = P_h^T P_h``, ``||E~||^2 = v^T K_h v`` and
        ``<E, E~> = (P_h^T E) . v``.
        """
        weights, values = block_weights(block), block.attn_values
        projection, deviation = head_projection(weights, block.attn_weights, values)
        before = self.before(weights.norm1, block.resid_pre)
        gram = projection.transpose(-2, -1) @ projection  # [H, d, d]
        lengths = ((values @ gram) * values).sum(dim=-1).clamp_(min=0).sqrt_()
        product = (torch.einsum("bnk,hkd->bhnd", before, projection) * values).sum(dim=-1)
        original = before.norm(dim=-1).unsqueeze(1)
        return self.weigh(original, lengths, product), deviation if self.length else None


@dataclass(frozen=True)
class Update(Measure):
    """``mean_h (dA_h)+ * (A_h W_h)`` of a block: ``[B, N, N]``."""

    def __call__(self, block: Block) -> Tensor:
        weights, deviation = self.heads(block)
        moved = block.grad.clamp(min=0) * block.attn_weights * weights.unsqueeze(2)
        update = moved.mean(dim=1)
        return update if deviation is None else update / deviation


@dataclass(frozen=True)
class HeadWeights(Measure):
    """``mean_h W_h`` of a block's attention: ``[B, N]``."""

    def __call__(self, block: Block) -> Tensor:
        weights, deviation = self.heads(block)
        mean = weights.mean(dim=1)
        return mean if deviation is None else mean / deviation.squeeze(-1)


@dataclass(frozen=True)
class MLPWeights(Measure):
    """``W`` of a block's MLP: ``[B, N]``."""

    def __call__(self, block: Block) -> Tensor:
        before = self.before(layer_weights(block.model, block.layer).norm2, block.resid_mid)
        after = block.resid_post - block.resid_mid
        return self.weigh(before.norm(dim=-1), after.norm(dim=-1), (before * after).sum(dim=-1))


def token_lengths(a: Activation) -> Tensor:
    """The length of every token vector."""
    lengths: Tensor = a.value.norm(dim=-1)
    return lengths


_LENGTHS = Record("resid_pre", token_lengths, (0,), grad=False)


@register_method("vtranm", family="decomposition", papers=("wu2024tokentm",), aliases=("tokentm",), models="ViT")
@dataclass(frozen=True)
class VTranM(Method):
    """Relevance that gathers along attention, weighed by what a block does to the vectors it moves.

    A branch adds ``E~`` to the stream. Its tokens weigh ``W[j] = ||E~[j]|| / ||E[j]|| * softmax_j cos(E[j], E~[j])``.
    Attention: ``E~_h[j] = P_h v_h[j]`` per head, ``U = I + mean_h (dA_h)+ * (A_h diag W_h)``; MLP: ``U = I + diag W``.
    ``C = U_L ... U_1 diag ||x_0||``; here its one row that matters, from the top: ``r <- r U``, O(L N^2). The lengths
    and cosines of all heads come from Gram matrices of the projections. One forward, one backward.

    Switches of the paper's ablation: ``aggregate=false`` is its baseline, the update of block 0 alone; ``length=false``
    leaves ratios (and ``||x_0||``) out, ``necc=false`` the cosines; without both, attention is that of ``generic``.

    The paper mentions neither LayerNorm nor biases, and no code of its authors is known. Chosen here: E is the
    residual stream (``original=residual``; ``normalised``: after the LayerNorm of the branch), E~ includes value biases
    and LayerScale, not the bias of the projection. The paper differentiates the probability, so ``output=prob``
    whatever value was asked for; ``output=none`` takes that one. The map depends on it: I is fixed, so the scale of dA
    counts. Extras, one map per block: ``attention`` (the row that is read), ``weights`` and ``mlp_weights``.
    """

    original: str = "residual"
    aggregate: bool = True
    length: bool = True
    necc: bool = True
    output: str | None = "prob"

    def __post_init__(self) -> None:
        check_choice("original", self.original, ("residual", "normalised"))
        if self.output is not None:
            check_choice("output", self.output, VALUES)

    def compute(self, context: Context) -> Attribution:
        cache = self.record(context)
        return Attribution(self._map(cache), self._extras(cache))

    def records(self, model: VisionModel) -> list[Record]:
        return [self._updates(model), *self._weights(model), _LENGTHS, *pooling_records(model, positive)]

    def _updates(self, model: VisionModel) -> Record:
        layers = range(model.depth) if self.aggregate else range(1)
        return Record("block", Update(self.original, self.length, self.necc), tuple(layers))

    def _weights(self, model: VisionModel) -> tuple[Record, Record, Record]:
        layers, switches = tuple(range(model.depth)), (self.original, self.length, self.necc)
        return (
            Record("attn_weights", mean_row, layers, grad=False),
            Record("block", HeadWeights(*switches), layers, grad=False),
            Record("block", MLPWeights(*switches), layers, grad=False),
        )

    def _map(self, cache: ActivationCache) -> Tensor:
        updates = cache[self._updates(cache.model)]
        if not self.aggregate:
            row = cache.model.pooling.row(updates[0])
            return cache.tokens_to_grid(row + push(row, updates[0]))
        row = initial_row(cache, updates[0], positive)
        for update, mlp in zip(reversed(updates), reversed(cache[self._weights(cache.model)[2]]), strict=True):
            row = row * (1 + mlp)
            row = row + push(row, update)
        if self.length:
            row = row * cache[_LENGTHS][0]
        return cache.tokens_to_grid(row)

    def _extras(self, cache: ActivationCache) -> dict[str, Tensor]:
        names = ("attention", "weights", "mlp_weights")
        return {
            name: torch.stack([cache.tokens_to_grid(row) for row in cache[keep]], dim=1)
            for name, keep in zip(names, self._weights(cache.model), strict=True)
        }
