"""Attention times its gradient: where the model looks, for this class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import SpecError
from vitreous.methods.base import Attribution, LayerwiseMethod, Method, resolve_layer
from vitreous.methods.ops import (
    attention_point,
    discard_weakest,
    downwards,
    initial_row,
    pooling_records,
    positive,
    push,
    refuse_in_windows,
    rollout_step_mixed,
)
from vitreous.methods.registry import register_method
from vitreous.methods.rollout import AttentionRow, mean_rows
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Activation, ActivationCache, Context, Pass, Record, Reduce, activation_value

__all__ = ["AttentionCAM", "AttentionGradient", "Generic", "GradSAM", "GradientRollout", "LeGrad"]


@register_method(
    "generic",
    family="attention x gradient",
    papers=("chefer2021generic",),
    aliases=("chefer2", "genatt", "transformer_mm"),
    presets={"bt": {"clamp": "after"}},
    models="transformers",
)
@dataclass(frozen=True)
class Generic(LayerwiseMethod):
    """Relevance that gathers in every block along positive attention times gradient.

    ``E_l = mean_h (A_l * dA_l)+``, ``R = I``, ``R <- R + E_l R`` upwards; here its one row that matters, downwards:
    ``r <- r + r E_l``. Clamp first, then average heads; ``clamp=after`` (preset ``bt``, as the Bidirectional
    Transformers code does) averages first. Attention pooling starts the row with its own ``E``. Layer term (for
    ``plus``): the row of ``E_l``, which makes ``plus(generic)`` Grad-SAM read at the class token. Inside windows the
    row passes each block window by window; where patches were merged they share equally what their sum got.
    """

    start: int = 0
    clamp: str = "before"

    def __post_init__(self) -> None:
        check_choice("clamp", self.clamp, ("before", "after"))

    @property
    def _product(self) -> Reduce:
        return positive if self.clamp == "before" else positive_mean

    def records(self, model: VisionModel) -> list[Record]:
        return [self._matrices(model), *pooling_records(model, self._product)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        keep = self._matrices(cache.model)
        row = initial_row(cache, cache[keep][0], self._product)
        for layer, matrix in downwards(cache, keep):
            row = cache.unmerged(row, layer)
            row = row + push(row, matrix, cache.model.windows(layer))
        return cache.tokens_to_grid(row, keep.layers[0])

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record(attention_point(model), positive_row, tuple(layers))]

    def _matrices(self, model: VisionModel) -> Record:
        layers = tuple(range(resolve_layer(model, self.start), model.depth))
        return Record(attention_point(model), self._product, layers)


@register_method(
    "grad_rollout",
    family="attention x gradient",
    builds_on=("abnar2020quantifying", "chefer2021transformer"),
    presets={"vit_explain": {"discard": 0.9, "released": True}},
    models="transformers",
)
@dataclass(frozen=True)
class GradientRollout(Method):
    """Rollout of attention times gradient.

    ``F_l = (mean_h A_l * dA_l)+``, ``r <- r (F_l + I) / rowsum`` from the last block to the first. The preset
    ``vit_explain`` follows a popular script, whose gradients are those of the scores before the softmax, in the order
    of the backward pass (the last block's meet the first block's attention), with 90 % of the entries dropped and
    column j divided by the sum of row j; it then divides by the maximum, which belongs to the picture. Inside windows
    the row passes each block window by window and merged patches share equally; the script has no meaning there.
    """

    discard: float = 0.0
    released: bool = False

    def records(self, model: VisionModel) -> list[Record]:
        layers, point = tuple(range(model.depth)), attention_point(model)
        if self.released:
            refuse_in_windows(model, "the script pairs the first block with the last")
            return [Record(point, activation_value, layers, grad=False), Record(point, score_gradient, layers)]
        if self.discard:
            refuse_in_windows(model, f"discard={self.discard} takes a share of all entries")
        return [Record(point, positive_mean, layers), *pooling_records(model, positive_mean)]

    def attribution(self, cache: ActivationCache) -> Tensor:
        keeps = self.records(cache.model)
        if self.released:
            pairs = zip(cache[keeps[0]], reversed(cache[keeps[1]]), strict=True)
            matrices = [(attention * gradient).mean(dim=1).clamp_(min=0) for attention, gradient in pairs]
            row = cache.model.pooling.row(matrices[0])
        else:
            matrices = cache[keeps[0]]
            row = initial_row(cache, matrices[0], positive_mean)
        for layer, matrix in reversed(list(enumerate(matrices))):
            kept = discard_weakest(matrix, self.discard, keep_first=False)
            normalise = "released" if self.released else "row"
            row = rollout_step_mixed(cache.unmerged(row, layer), kept, normalise, cache.model.windows(layer))
        return cache.tokens_to_grid(row)


def gradient_row(a: Activation) -> Tensor:
    """The row of ``mean_h dA`` that the model reads."""
    return mean_rows(a.model, lambda slopes: slopes, a.grad).to(a.value.dtype)


def head_weighted(a: Activation) -> Tensor:
    """``mean_h mean_patches(dA[h]) A[h]`` over the rows that the model reads."""
    patches = slice(0 if a.value.shape[-2] == 1 else a.model.num_prefix_tokens, None)

    def weighted(weights: Tensor, slopes: Tensor) -> Tensor:
        return slopes[..., patches].mean(dim=-1, keepdim=True) * weights

    return mean_rows(a.model, weighted, a.value, a.grad)


@register_method("attgrad", family="attention x gradient", papers=("mehri2024skipplus",), models="transformers")
@dataclass(frozen=True)
class AttentionGradient(AttentionRow):
    """The gradient of one block's attention, averaged over heads.

    ``mean_h dA_l[CLS, patches]``, signed: how the target would grow if the model looked there more.
    """

    layer: int = -1
    reduce = gradient_row


@register_method("attcam", family="attention x gradient", papers=("chefer2021transformer",), models="transformers")
@dataclass(frozen=True)
class AttentionCAM(AttentionRow):
    """Grad-CAM with the heads of one attention map as channels.

    ``w_h = mean over patches of dA[h, CLS, patches]``, ``map = mean_h w_h A[h, CLS, patches]``, before any ReLU. Papers
    that compare with "Grad-CAM" on ViTs often mean this. With attention pooling the last map is the pooling's own.
    Inside windows each row has a weight of its own, the mean over the places of its window.
    """

    layer: int = -1
    reduce = head_weighted


@register_method(
    "gradsam",
    family="attention x gradient",
    papers=("barkan2021gradsam", "mehri2024skipplus"),
    presets={"plus": {"reduce": "row"}},
    models="transformers",
)
@dataclass(frozen=True)
class GradSAM(Method):
    """Attention times its positive gradient, averaged over blocks, heads and one token axis.

    ``mean_l mean_h A_l * (dA_l)+``, then the mean over queries (what a token receives). Third-party codes disagree on
    the axis: ``reduce=keys`` is the other mean, ``reduce=row`` (preset ``plus``) the row the model reads, which is
    ``plus(generic)`` divided by the depth. In a hierarchical model every block's term is brought to the first grid,
    merged patches sharing equally.
    """

    reduce: str = "queries"

    def __post_init__(self) -> None:
        check_choice("reduce", self.reduce, tuple(_AXES))

    def records(self, model: VisionModel) -> list[Record]:
        return [Record(attention_point(model), _AXES[self.reduce], tuple(range(model.depth)))]

    def attribution(self, cache: ActivationCache) -> Tensor:
        terms = []
        for layer, kept in enumerate(cache[self.records(cache.model)[0]]):
            term = cache.row(kept, layer)
            for below in reversed(range(layer)):
                term = cache.unmerged(term, below)
            terms.append(term)
        return cache.tokens_to_grid(torch.stack(terms).mean(dim=0))


@register_method(
    "legrad", family="attention x gradient", papers=("bousselham2024legrad",), cost=(2, 1), models="transformers"
)
@dataclass(frozen=True)
class LeGrad(Method):
    """The positive gradient of each block's own class score with respect to its attention.

    ``s_l``: the head on the mean of all output tokens of block l. ``G_l = d s_l / d A_l`` inside that block alone;
    ``map = sum_l mean_h mean_queries (G_l)+``; attention values never enter. ``last`` is how many blocks from the top
    (0: all, as the paper presents it; the released code uses 2). The release min-maxes once at the end. In a
    hierarchical model the head can read the tokens of the last stage alone: the sum runs over its blocks, on its grid.
    """

    last: int = 0

    def __post_init__(self) -> None:
        if self.last < 0:
            raise SpecError(f"last={self.last} must be at least 0")

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + len(self._layers(model))

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("resid_pre", activation_value, self._layers(model), grad=False)]

    def compute(self, context: Context) -> Attribution:
        cache, model = self.record(context), context.model
        (inputs,), layers = self.records(model), self._layers(model)
        own = Record(attention_point(model), positive_gradient_received, (0,))
        terms = []
        for layer, tokens in zip(layers, cache[inputs], strict=True):
            lens = context.with_inputs(tokens, model.logit_lens(layer))
            received = cache.row(lens.run_pass(Pass((own,)))[own][0], layer)
            terms.append(cache.tokens_to_grid(received, layer))
        stacked = torch.stack(terms, dim=1)
        return Attribution(stacked.sum(dim=1), {"layers": stacked})

    def _layers(self, model: VisionModel) -> tuple[int, ...]:
        return tuple(model.stages[-1] if model.stages else range(model.depth))[-self.last :]


def positive_row(a: Activation) -> Tensor:
    """The row of ``mean_h (A * dA)+`` that the model reads."""
    return mean_rows(a.model, lambda weights, slopes: (weights * slopes).clamp_(min=0), a.value, a.grad)


def positive_mean(a: Activation) -> Tensor:
    """``(mean_h A * dA)+``: heads averaged before the clamp."""
    return (a.value * a.grad).mean(dim=-3).clamp_(min=0)


def positive_received(a: Activation) -> Tensor:
    """``mean_h mean_queries A (dA)+``: what each token receives."""
    return _token_mean((a.value * a.grad).clamp_(min=0), -2)


def positive_given(a: Activation) -> Tensor:
    """``mean_h mean_keys A (dA)+``: what each token gives."""
    return _token_mean((a.value * a.grad).clamp_(min=0), -1)


def positive_gradient_received(a: Activation) -> Tensor:
    """``mean_h mean_queries (dA)+``."""
    return _token_mean(a.grad.clamp(min=0).to(a.value.dtype), -2)


def _token_mean(values: Tensor, axis: int) -> Tensor:
    """The mean over heads and one token axis; inside windows its sum, which ``whole_row`` makes a mean over all."""
    return values.mean(dim=(-3, axis)) if values.ndim == 4 else values.mean(dim=-3).sum(dim=axis)


def score_gradient(a: Activation) -> Tensor:
    """The gradient with respect to the scores before the softmax: ``A * (dA - rowsum(A * dA))``."""
    return a.value * (a.grad - (a.value * a.grad).sum(dim=-1, keepdim=True))


_AXES: dict[str, Reduce] = {"queries": positive_received, "keys": positive_given, "row": positive_row}
