"""Attention times its gradient: where the model looks, for this class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vitreous.methods import ops
from vitreous.methods.base import Attribution, LayerwiseMethod, Method
from vitreous.methods.registry import register_method
from vitreous.methods.rollout import AttentionRow, mean_rows
from vitreous.models import VisionModel
from vitreous.models.structure import Windows
from vitreous.registry import choice, number
from vitreous.tracing import Activation, ActivationCache, Context, Pass, Record, Reduce, activation_value


def positive_row(a: Activation) -> Tensor:
    """The row of ``mean_h (A * dA)+`` that the model reads."""
    return mean_rows(a.model, lambda weights, slopes: (weights * slopes).clamp_(min=0), a.value, a.grad)


def positive_mean(a: Activation) -> Tensor:
    """``(mean_h A * dA)+``: heads averaged before the clamp."""
    return (a.value * a.grad).mean(dim=-3).clamp_(min=0)


def positive_received(a: Activation) -> Tensor:
    """``mean_h mean_queries A (dA)+``: what each token receives."""
    return _token_mean((a.value * a.grad).clamp_(min=0), -2)


def positive_sent(a: Activation) -> Tensor:
    """``mean_h mean_keys A (dA)+``: what each token gives."""
    return _token_mean((a.value * a.grad).clamp_(min=0), -1)


def positive_gradient_received(a: Activation) -> Tensor:
    """``mean_h mean_queries (dA)+``."""
    return _token_mean(a.grad.clamp(min=0), -2)


def _token_mean(values: Tensor, axis: int) -> Tensor:
    """The mean over heads and one token axis; inside windows its sum, of which the cache makes a mean over all."""
    return values.mean(dim=(-3, axis)) if values.ndim == 4 else values.mean(dim=-3).sum(dim=axis)


def score_gradient(a: Activation) -> Tensor:
    """The gradient with respect to the scores before the softmax: ``A * (dA - rowsum(A * dA))``."""
    return a.value * (a.grad - (a.value * a.grad).sum(dim=-1, keepdim=True))


_AXES: dict[str, Reduce] = {"queries": positive_received, "keys": positive_sent, "row": positive_row}

_register = partial(register_method, family="attention x gradient", models="transformers")


@_register(
    "generic",
    papers=("chefer2021generic",),
    aliases=("chefer2", "genatt", "transformer_mm"),
    presets={"bt": {"clamp": "after"}},
)
@dataclass(frozen=True)
class Generic(LayerwiseMethod):
    r"""Relevance that gathers in every block along positive attention times gradient.

    .. math:: E^{(l)} = \frac{1}{H} \sum_h \left( A^{(l)}_h \odot \nabla A^{(l)}_h \right)^+, \qquad
        R \leftarrow R + E^{(l)} R

    from :math:`R = I` upwards; here its one row that matters, downwards: :math:`r \leftarrow r + r E^{(l)}`. Attention
    pooling starts the row with its own :math:`E`. The map of a layer, for ``plus``, is the row of :math:`E^{(l)}`,
    which makes ``plus(generic)`` Grad-SAM read at the class token.

    Parameters
    ----------
    start : int, default 0
        The lowest block.
    clamp : {"before", "after"}, default "before"
        Whether entries are clamped before heads are averaged, as in the paper, or after, as in the code of the
        Bidirectional Transformers (preset ``bt``).

    Notes
    -----
    Inside windows the row passes each block window by window; where patches were merged they share equally what their
    sum got. One forward and one backward.

    References
    ----------
    Chefer et al., "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
    ICCV 2021.

    Examples
    --------
    >>> vt.explain(model, image, "generic").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    clamp: str = choice("before", "after")

    @property
    def _product(self) -> Reduce:
        return ops.positive if self.clamp == "before" else positive_mean

    def records(self, model: VisionModel) -> list[Record]:
        return ops.chain_records(model, self._product, self.start)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return ops.rollout_of(cache, self.records(cache.model))

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record(ops.attention_point(model), positive_row, tuple(layers))]


@_register(
    "grad_rollout",
    builds_on=("abnar2020quantifying", "chefer2021transformer"),
    presets={"vit_explain": {"discard": 0.9, "released": True}},
)
@dataclass(frozen=True)
class GradientRollout(Method):
    r"""Rollout of attention times gradient.

    .. math:: F^{(l)} = \Bigl( \frac{1}{H} \sum_h A^{(l)}_h \odot \nabla A^{(l)}_h \Bigr)^+, \qquad
        r \leftarrow r \, \frac{F^{(l)} + I}{\mathrm{rowsum}}

    from the last block to the first.

    Parameters
    ----------
    discard : float, default 0.0
        The share of the weakest entries that is dropped first.
    released : bool, default False
        Follow a popular script (preset ``vit_explain``, with 90 % dropped): gradients are those of the scores before
        the softmax, in the order of the backward pass, so that the last block's meet the first block's attention, and
        column j is divided by the sum of row j. The script then divides by the maximum, which belongs to the picture.

    Notes
    -----
    Inside windows the row passes each block window by window and merged patches share equally; the script has no
    meaning there. One forward and one backward.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020.
    Chefer et al., "Transformer Interpretability Beyond Attention Visualization", CVPR 2021.

    Examples
    --------
    >>> vt.explain(model, image, "grad_rollout").map.shape
    torch.Size([16, 16])
    """

    discard: float = number(0.0, "[0, 1)")
    released: bool = False

    def records(self, model: VisionModel) -> list[Record]:
        if self.released:
            ops.refuse_in_windows(model, "the script pairs the first block with the last")
            layers = tuple(range(model.depth))
            value = Record("attn_weights", activation_value, layers, grad=False)
            return [value, Record("attn_weights", score_gradient, layers)]
        if self.discard:
            ops.refuse_in_windows(model, f"discard={self.discard} takes a share of all entries")
        return ops.chain_records(model, positive_mean)

    def attribution(self, cache: ActivationCache) -> Tensor:
        mix = ops.mix_residual_by_column if self.released else ops.mix_residual

        def step(row: Tensor, matrix: Tensor, windows: Windows | None) -> Tensor:
            return mix(row, ops.discard_weakest(matrix, self.discard, keep_first=False), windows)

        records = self.records(cache.model)
        if not self.released:
            return ops.rollout_of(cache, records, step)
        pairs = zip(cache[records[0]], reversed(cache[records[1]]), strict=True)
        matrices = [(attention * gradient).mean(dim=1).clamp_(min=0) for attention, gradient in pairs]
        return ops.rollout(cache, cache.model.pooling.row(matrices[0]), records[0].layers, matrices, step)


def gradient_row(a: Activation) -> Tensor:
    """The row of ``mean_h dA`` that the model reads."""
    return mean_rows(a.model, lambda grad: grad, a.grad)


def head_weighted(a: Activation) -> Tensor:
    """``mean_h mean_patches(dA[h]) A[h]`` over the rows that the model reads."""
    patches = slice(0 if a.value.shape[-2] == 1 else a.model.num_prefix_tokens, None)

    def weighted(weights: Tensor, slopes: Tensor) -> Tensor:
        return slopes[..., patches].mean(dim=-1, keepdim=True) * weights

    return mean_rows(a.model, weighted, a.value, a.grad)


@_register("attgrad", papers=("mehri2024skipplus",))
@dataclass(frozen=True)
class AttentionGradient(AttentionRow):
    r"""The gradient of one block's attention, averaged over heads.

    .. math:: M_j = \frac{1}{H} \sum_h \nabla A^{(l)}_{h, \mathrm{CLS}, j}

    signed: how the target would grow if the model looked there more.

    Parameters
    ----------
    layer : int, default -1
        The block :math:`l`.

    Notes
    -----
    Cost: one forward and one backward.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "attgrad").map.shape
    torch.Size([16, 16])
    """

    layer: int = -1
    reduce = gradient_row


@_register("attcam", papers=("chefer2021transformer",))
@dataclass(frozen=True)
class AttentionCAM(AttentionRow):
    r"""Grad-CAM with the heads of one attention map as channels.

    .. math:: M_j = \frac{1}{H} \sum_h w_h A_{h, \mathrm{CLS}, j}, \qquad
        w_h = \frac{1}{n} \sum_j \nabla A_{h, \mathrm{CLS}, j}

    over the n patches, before any ReLU. Papers that compare with "Grad-CAM" on ViTs often mean this.

    Parameters
    ----------
    layer : int, default -1
        The block. With attention pooling the last map is the pooling's own.

    Notes
    -----
    Inside windows each row has a weight of its own, the mean over the positions of its window. One forward and one
    backward.

    References
    ----------
    Chefer et al., "Transformer Interpretability Beyond Attention Visualization", CVPR 2021.

    Examples
    --------
    >>> vt.explain(model, image, "attcam").map.shape
    torch.Size([16, 16])
    """

    layer: int = -1
    reduce = head_weighted


@_register("gradsam", papers=("barkan2021gradsam", "mehri2024skipplus"), presets={"plus": {"reduce": "row"}})
@dataclass(frozen=True)
class GradSAM(Method):
    r"""Attention times its positive gradient, averaged over blocks, heads and one token axis.

    .. math:: M_j = \frac{1}{L H N} \sum_{l, h, i} A^{(l)}_{hij} \bigl( \nabla A^{(l)}_{hij} \bigr)^+

    Parameters
    ----------
    reduce : {"queries", "keys", "row"}, default "queries"
        The token axis that is averaged, on which third-party codes disagree: queries (what a token receives), keys, or
        the row the model reads (preset ``plus``), which is ``plus(generic)`` divided by the depth.

    Notes
    -----
    In a hierarchical model every block's term is brought to the first grid, merged patches sharing equally. One forward
    and one backward.

    References
    ----------
    Barkan et al., "Grad-SAM: Explaining Transformers via Gradient Self-Attention Maps", CIKM 2021.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "gradsam").map.shape
    torch.Size([16, 16])
    """

    reduce: str = choice("queries", *_AXES)

    def records(self, model: VisionModel) -> list[Record]:
        return [Record(ops.attention_point(model), _AXES[self.reduce], tuple(range(model.depth)))]

    def attribution(self, cache: ActivationCache) -> Tensor:
        terms = []
        for layer, value in enumerate(cache[self.records(cache.model)[0]]):
            term = cache.row(value, layer)
            for below in reversed(range(layer)):
                term = cache.unmerged(term, below)
            terms.append(term)
        return cache.tokens_to_grid(torch.stack(terms).mean(dim=0))


@_register("legrad", papers=("bousselham2024legrad",), cost=(2, 1))
@dataclass(frozen=True)
class LeGrad(Method):
    r"""The positive gradient of each block's own class score with respect to its attention.

    .. math:: M_j = \sum_l \frac{1}{H N} \sum_{h, i}
        \left( \frac{\partial s_l}{\partial A^{(l)}_{hij}} \right)^+

    with :math:`s_l` the head on the mean of all output tokens of block l, differentiated inside that block alone;
    attention values never enter. Extras: ``layers``, one map per block.

    Parameters
    ----------
    last : int, default 0
        How many blocks from the top; 0 for all, as the paper presents it. The released code uses 2.

    Notes
    -----
    The release min-maxes once at the end. In a hierarchical model the head can read the tokens of the last stage alone:
    the sum runs over its blocks, on its grid. One forward, and one more of each block with its backward.

    References
    ----------
    Bousselham et al., "LeGrad: An Explainability Method for Vision Transformers via Feature Formation Sensitivity",
    arXiv 2024.

    Examples
    --------
    >>> vt.explain(model, image, "legrad").map.shape
    torch.Size([16, 16])
    """

    last: int = number(0, "[0, inf)")

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + len(self._layers(model))

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("resid_pre", activation_value, self._layers(model), grad=False)]

    def compute(self, context: Context) -> Attribution:
        cache, model = self.record(context), context.model
        (inputs,), layers = self.records(model), self._layers(model)
        own = Record(ops.attention_point(model), positive_gradient_received, (0,))
        terms = []
        for layer, tokens in zip(layers, cache[inputs], strict=True):
            lens = context.with_inputs(tokens, model.logit_lens(layer))
            received = cache.row(lens.run_pass(Pass((own,)))[own][0], layer)
            terms.append(cache.tokens_to_grid(received, layer))
        stacked = torch.stack(terms, dim=1)
        return Attribution(stacked.sum(dim=1), {"layers": stacked})

    def _layers(self, model: VisionModel) -> tuple[int, ...]:
        return tuple(model.stages[-1] if model.stages else range(model.depth))[-self.last :]
