"""Transitions of whole blocks, MLP included: relevance that follows what both branches do to the vectors they move."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods import ops
from vitreous.methods.base import Attribution, Method
from vitreous.methods.registry import register_method
from vitreous.methods.rollout import mean_row
from vitreous.methods.value_weighted import block_weights, head_projection, layer_weights
from vitreous.models import Norm, VisionModel
from vitreous.registry import choice
from vitreous.tracing import VALUES, Activation, ActivationCache, Block, Context, Pass, Record, activation_value

_SMALL = 1e-8


@dataclass(frozen=True)
class TransformationWeights:
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
class Update(TransformationWeights):
    """``mean_h (dA_h)+ * (A_h W_h)`` of a block: ``[B, N, N]``."""

    def __call__(self, block: Block) -> Tensor:
        weights, deviation = self.heads(block)
        moved = block.grad.clamp(min=0) * block.attn_weights * weights.unsqueeze(2)
        update = moved.mean(dim=1)
        return update if deviation is None else update / deviation


@dataclass(frozen=True)
class HeadWeights(TransformationWeights):
    """``mean_h W_h`` of a block's attention: ``[B, N]``."""

    def __call__(self, block: Block) -> Tensor:
        weights, deviation = self.heads(block)
        mean = weights.mean(dim=1)
        return mean if deviation is None else mean / deviation.squeeze(-1)


@dataclass(frozen=True)
class MLPWeights(TransformationWeights):
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
    r"""Relevance that gathers along attention, weighed by what a block does to the vectors it moves.

    .. math:: C = U_L \cdots U_1 \operatorname{diag} \lVert x_0 \rVert, \quad
        U_{\mathrm{attn}} = I + \frac{1}{H} \sum_h (\nabla A_h)^+ \odot (A_h \operatorname{diag} W_h), \quad
        U_{\mathrm{mlp}} = I + \operatorname{diag} W

    where a branch that adds :math:`\tilde E` to the stream E weighs its tokens by
    :math:`W_j = \lVert \tilde E_j \rVert / \lVert E_j \rVert \cdot \mathrm{softmax}_j \cos(E_j, \tilde E_j)`; for the
    heads of attention :math:`\tilde E_{hj} = P_h v_{hj}`. Here its one row that matters, from the top:
    :math:`r \leftarrow r U`. Extras, one map per block: ``attention`` (the row that is read), ``weights`` and
    ``mlp_weights``.

    Parameters
    ----------
    original : {"residual", "normalised"}, default "residual"
        Whether E is the residual stream, or what the LayerNorm of the branch makes of it.
    aggregate : bool, default True
        ``False`` is the baseline of the paper's ablation, the update of block 0 alone.
    length : bool, default True
        Whether ratios of lengths (and :math:`\lVert x_0 \rVert`) take part.
    necc : bool, default True
        Whether cosines take part; without both, attention is that of ``generic``.
    output : {"prob", "logit", "logprob"} or None, default "prob"
        Which output of the class is differentiated, whatever was asked for; ``None`` for the one that was. The map
        depends on it: I is fixed, so the scale of the gradient counts.

    Notes
    -----
    The paper mentions neither LayerNorm nor biases, and no code of its authors is known. Chosen here: E is the residual
    stream, :math:`\tilde E` includes value biases and LayerScale, not the bias of the projection. Lengths and cosines
    of all heads come from Gram matrices of the projections. One forward and one backward.

    References
    ----------
    Wu et al., "Token Transformation Matters: Towards Faithful Post-hoc Explanation for Vision Transformer", CVPR 2024.

    Examples
    --------
    >>> vt.explain(model, image, "vtranm").map.shape
    torch.Size([16, 16])
    """

    original: str = choice("residual", "normalised")
    aggregate: bool = True
    length: bool = True
    necc: bool = True
    output: str | None = choice("prob", *VALUES, optional=True)

    def compute(self, context: Context) -> Attribution:
        cache = self.record(context)
        rows = zip(("attention", "weights", "mlp_weights"), self._weights(context.model), strict=True)
        extras = {name: torch.stack([cache.tokens_to_grid(row) for row in cache[rec]], dim=1) for name, rec in rows}
        return Attribution(self.attribution(cache), extras)

    def records(self, model: VisionModel) -> list[Record]:
        return [self._updates(model), *self._weights(model), _LENGTHS, *ops.pooling_records(model, ops.positive)]

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

    def attribution(self, cache: ActivationCache) -> Tensor:
        updates = cache[self._updates(cache.model)]
        if not self.aggregate:
            row = cache.model.pooling.row(updates[0])
            return cache.tokens_to_grid(ops.accumulate(row, updates[0]))
        row = ops.initial_row(cache, updates[0], ops.pooling_records(cache.model, ops.positive))
        for update, mlp in zip(reversed(updates), reversed(cache[self._weights(cache.model)[2]]), strict=True):
            row = ops.accumulate(row * (1 + mlp), update)
        if self.length:
            row = row * cache[_LENGTHS][0]
        return cache.tokens_to_grid(row)


# -- InFlow ----------------------------------------------------------------------------------------------------------


def max_weighted_heads(a: Activation) -> Tensor:
    """``max_h I_h A_h``."""
    return (ops.head_importance(a.value, a.grad) * a.value).amax(dim=1)


def gradient_mean(a: Activation) -> Tensor:
    """``mean_h dA``."""
    return a.grad.mean(dim=1)


def pooling_flow(a: Activation) -> Tensor:
    """The same for a pooling by attention, which has no stream beside it: ``(mean_h dA * max_h I_h A_h)+``, sum 1."""
    flow = (gradient_mean(a) * max_weighted_heads(a)).clamp_(min=0)
    return flow / flow.sum(dim=-1, keepdim=True).clamp(min=ops.SMALL)


def branch_shares(block: Block) -> Tensor:
    """``[B, 2, N]``: the part of attention in the middle of a block, and what the MLP makes of each token."""
    stream, middle, output = block.resid_pre, block.resid_mid, block.resid_post
    before, attended, between, mlp = (v.norm(dim=-1) for v in (stream, middle - stream, middle, output - middle))
    part, last = (new / (old + new).clamp(min=ops.SMALL) for old, new in ((before, attended), (between, mlp)))
    ratio = mlp / between.clamp(min=ops.SMALL)
    ratio = ratio / ratio.sum(dim=1, keepdim=True).clamp(min=ops.SMALL)
    return torch.stack([part, ratio * last + 1 - last], dim=1)


_OWN = Record("attn_weights", gradient_mean, (0,))


@register_method("inflow", family="path", papers=("walker2025explaining",), cost=(2, 2), models="ViT")
@dataclass(frozen=True)
class InFlow(Method):
    r"""The flow of each block through attention and residual stream, multiplied through the blocks.

    .. math:: T = \bigl( \tilde A \operatorname{diag} w + \operatorname{diag} (1 - w) \bigr) \operatorname{diag} c,
        \quad \tilde A = \bigl( g \odot \max_h I_h A_h \bigr)^+, \quad r \leftarrow r \, \frac{T}{\mathrm{rowsum}}

    from the last block to the first, with :math:`I_h` of the target as in ``bt_h`` and :math:`g = \frac{1}{H} \sum_h
    \partial s_l / \partial A_h`: :math:`s_l` is the head on the mean of all normed output tokens of the block, taken as
    the mean of what the head says to each token alone, which is the same for a head that is linear after its norm. With
    x the input of the block, a what attention adds, y = x + a and m what the MLP adds, as lengths of each token:
    :math:`w = a / (x + a)`, :math:`w' = m / (y + m)`, :math:`q = (m / y) / \sum (m / y)`, :math:`c = q w' + 1 - w'`.

    Parameters
    ----------
    mlp : bool, default True
        Whether c takes part; without it, an ablation of the release.

    Notes
    -----
    A pooling by attention has no stream beside it: r starts with its own :math:`\tilde A`, divided by the sum. Nothing
    divided by nothing is nothing. A pass through the model, and one through each block alone.

    References
    ----------
    Walker et al., "Explaining ViTs Using Information Flow", AISTATS 2025.

    Examples
    --------
    >>> vt.explain(model, image, "inflow").map.shape
    torch.Size([16, 16])
    """

    mlp: bool = True

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + model.depth

    def records(self, model: VisionModel) -> list[Record]:
        return [*self._block_records(model), *ops.pooling_records(model, pooling_flow)]

    def compute(self, context: Context) -> Attribution:
        model = context.model
        cache = self.record(context)
        inputs, fused, parts = (cache[record] for record in self._block_records(model))
        row = ops.initial_row(cache, fused[0], ops.pooling_records(model, pooling_flow))
        for layer in reversed(range(model.depth)):
            lens = context.with_inputs(inputs[layer], model.logit_lens(layer, per_token=True))
            (gradient,) = lens.run_pass(Pass((_OWN,)))[_OWN]
            moved, mlp = parts[layer].unbind(dim=1)
            flow = (gradient * fused[layer]).clamp_(min=0) * moved.unsqueeze(1) + torch.diag_embed(1 - moved)
            if self.mlp:
                flow = flow * mlp.unsqueeze(1)
            row = ops.row_times(row / flow.sum(dim=2).clamp(min=ops.SMALL), flow)
        return Attribution(cache.tokens_to_grid(row), {})

    def _block_records(self, model: VisionModel) -> tuple[Record, Record, Record]:
        layers = tuple(range(model.depth))
        return (
            Record("resid_pre", activation_value, layers, grad=False),
            Record("attn_weights", max_weighted_heads, layers),
            Record("block", branch_shares, layers, grad=False),
        )
