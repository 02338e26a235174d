"""Layer-wise relevance propagation with the rules of Chefer et al.: relevance of attention, or down to the pixels.

Relevance propagation as input times a modified gradient: conservative LRP and AttnLRP.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods.base import Attribution, Method, resolve_layer
from vitreous.methods.input_gradient import times_gradient, to_map
from vitreous.methods.ops import attention_point, dot, initial_row, pad_prefix, push, start_keeps, upcast
from vitreous.methods.registry import register_method
from vitreous.methods.rollout import mean_rows, row_maps
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import ActivationCache, Composite, Context, Pass, Record, whole
from vitreous.tracing.rules.composites import COMPOSITES, DEFAULTS, ORIGINAL, OURS, composed
from vitreous.tracing.rules.gradient import ATTNLRP, conservative

__all__ = [
    "AttnLRP",
    "ConservativeLRP",
    "FullLRP",
    "LRP",
    "LRPRollout",
    "PartialLRP",
    "TransAtt",
]

RULES: dict[str, Composite] = {"ours": OURS, "original": ORIGINAL}


def own_precision(cache: ActivationCache, value: Tensor) -> Tensor:
    """Bring what was walked in float64 back to what maps of this model have."""
    return value.to(upcast(torch.empty(0, dtype=cache.model.dtype)).dtype)


def relevant(model: VisionModel, attention: Tensor, relevance: Tensor | None) -> Tensor:
    """``mean_h (R_A)+``: ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    assert relevance is not None
    return relevance.clamp(min=0).mean(dim=-3)


def relevant_row(model: VisionModel, attention: Tensor, relevance: Tensor | None) -> Tensor:
    """The row of ``mean_h (R_A)+`` that the model reads."""
    assert relevance is not None
    return mean_rows(model, lambda part: part.clamp(min=0), relevance)


def gathered(cache: ActivationCache, row: Tensor, layers: Sequence[int], matrices: Sequence[Tensor]) -> Tensor:
    """Return ``r <- r + r M_l`` from the last of these layers to the first, on the first layer's grid."""
    for layer, matrix in zip(reversed(layers), reversed(matrices), strict=True):
        row = cache.unmerged(row, layer)
        row = row + push(row, matrix, cache.windows(layer))
    return own_precision(cache, cache.tokens_to_grid(row, layers[0]))


@register_method(
    "transatt",
    family="LRP",
    papers=("chefer2021transformer",),
    aliases=("chefer1", "t_lrp"),
    cost=(2, 2),
    cost_note="2 F + 1 B + a walk in float64",
    presets={"eval": {"start": 1}, "tis": {"start": 0}},
    models="transformers",
)
@dataclass(frozen=True)
class TransAtt(Method):
    """The relevance of attention times its gradient, gathered along the blocks.

    ``E_l = mean_h (dA_l * R_A,l)+`` with ``R_A`` the relevance of the attention weights (rules of Chefer et al.,
    ``rules=ours`` or ``original``), ``C = (I + E_last) ... (I + E_start)``; here its one row, ``r <- r + r E_l``. Rows
    are not normalised, in the paper as in the code. ``start``: the authors' notebooks, InFlow and TIS have 0, their
    evaluation scripts and IIA 1 (preset ``eval``). The walk runs in float64 whatever the model's dtype; the release, in
    float32, drifts far from its own float64 result on real weights. One forward and backward for the gradient, one
    forward and a walk for the relevance.
    """

    start: int = 0
    rules: str = "ours"

    def __post_init__(self) -> None:
        check_choice("rules", self.rules, tuple(RULES))

    def compute(self, context: Context) -> Attribution:
        """Gradient and relevance of a few images at a time: all heads of all blocks exist for them only."""
        weight = Pass(composite=RULES[self.rules]).weight
        parts = context.batching.run(
            lambda start, stop: self._part(context.slice_images(start, stop)), len(context.inputs), weight
        )
        return Attribution(torch.cat(parts), {})

    def _part(self, context: Context) -> Tensor:
        model = context.model
        layers = tuple(range(resolve_layer(model, self.start), model.depth))
        keeps = (Record(attention_point(model), whole, layers, grad=True), *start_keeps(model, whole, True))
        gradients = context.run_pass(Pass(keeps))
        relevances = context.run_pass(Pass(keeps, RULES[self.rules]))

        def terms(keep: Record) -> list[Tensor]:
            pairs = zip(gradients[keep], relevances[keep], strict=True)
            return [(gradient.double() * relevance).clamp_(min=0).mean(dim=-3) for gradient, relevance in pairs]

        matrices = terms(keeps[0])
        if model.pooling.uses_attention:
            row = pad_prefix(terms(keeps[1])[0].flatten(1), matrices[0].shape[1])
        else:
            row = initial_row(gradients, matrices[0], whole, True)
        return gathered(gradients, row, layers, matrices)


class Relevant(Method):
    """A map read from one walk with Chefer's rules."""

    rules: str

    def __post_init__(self) -> None:
        check_choice("rules", self.rules, tuple(RULES))


@register_method(
    "partial_lrp",
    family="LRP",
    papers=("chefer2021transformer", "voita2019analyzing"),
    cost_note="1 F + a walk in float64",
    presets={"bt": {"rules": "ours"}},
    models="transformers",
)
@dataclass(frozen=True)
class PartialLRP(Relevant):
    """The relevance of one block's attention.

    ``mean_h (R_A)+`` at the row that is read, relevance walked from the class down to the last block (``layer``) with
    the ``original`` rules of Chefer's code; the Bidirectional Transformers code has the same with ``ours``.
    """

    layer: int = -1
    rules: str = "original"

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        layer = resolve_layer(model, self.layer)
        if model.pooling.uses_attention and layer == model.depth - 1:
            return (Pass(start_keeps(model, relevant_row, True), RULES[self.rules]),)
        return (Pass((Record(attention_point(model), relevant_row, (layer,), grad=True),), RULES[self.rules]),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        (keep,) = self.single_pass(cache.model).records
        if keep.point != "pool_weights":
            return own_precision(cache, row_maps(cache, keep)[0])
        height, width = cache.grid
        row = pad_prefix(cache[keep][0], height * width + cache.model.num_prefix_tokens)
        return own_precision(cache, cache.tokens_to_grid(row))


@register_method(
    "lrp_rollout",
    family="LRP",
    papers=("chefer2021transformer",),
    cost_note="1 F + a walk in float64",
    models="transformers",
)
@dataclass(frozen=True)
class LRPRollout(Relevant):
    """The relevance of attention, multiplied through the blocks.

    ``r <- r (mean_h (R_A,l)+ + I)`` from the last block to ``start``, without normalisation.
    """

    start: int = 0
    rules: str = "ours"

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        layers = tuple(range(resolve_layer(model, self.start), model.depth))
        keeps = (Record(attention_point(model), relevant, layers, grad=True), *start_keeps(model, relevant, True))
        return (Pass(keeps, RULES[self.rules]),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        keep = self.single_pass(cache.model).records[0]
        row = initial_row(cache, cache[keep][0], relevant, True)
        return gathered(cache, row, keep.layers, cache[keep])


def summed(model: VisionModel, value: Tensor, relevance: Tensor | None) -> Tensor:
    """Relevance of pixels summed over channels, of tokens over their width."""
    assert relevance is not None
    return relevance.sum(dim=1 if relevance.ndim == 4 else -1)


@register_method(
    "full_lrp",
    family="LRP",
    papers=("chefer2021transformer", "bach2015pixelwise"),
    cost_note="1 F + a walk in float64",
    models="transformers",
)
@dataclass(frozen=True)
class FullLRP(Relevant):
    """Relevance down to the pixels.

    The ``original`` rules of Chefer's code through all blocks, then a box rule at the patch embedding, summed over
    channels. They do not conserve relevance: each sign group of a linear layer gets all of it. Values grow by orders of
    magnitude from block to block; the release in float32 is noise on real weights.
    """

    rules: str = "original"
    grid = "pixel"

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (Pass((Record("pixels", summed, grad=True),), RULES[self.rules]),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        (value,) = cache[self.single_pass(cache.model).records[0]]
        return own_precision(cache, cache.tokens_to_grid(value) if value.ndim == 2 else value)


@register_method(
    "lrp",
    family="LRP",
    papers=("bach2015pixelwise",),
    cost_note="1 F + a walk in float64",
    presets={name: {"rules": name, "at": "pixels"} for name in COMPOSITES},
)
@dataclass(frozen=True)
class LRP(Method):
    """Relevance by rules of one's own choice, at the tokens that enter a block or at the pixels.

    ``rules`` is a text ``"place=rule, place=rule:size"``. Places are ``linear``, ``conv`` (as ``linear``, unless told),
    ``patch`` (the patch embedding; the first layer of a convolutional network), ``norm``, ``batchnorm``,
    ``activation``, ``attention`` and ``residual``. Layers: ``epsilon``, ``gamma:0.25``, ``zplus``, ``alphabeta:2``
    (alpha; beta is one less), ``flat``, ``wsquare``, patches also ``zbox``. Norms: ``identity``, or ``epsilon``, linear
    with their deviation held. Attention: ``epsilon``, weights held, all to the values, or ``uniform``, half to the
    weights and through them to queries and keys. Residual sums: ``epsilon``, shares by value, or ``uniform``.

    On a convolutional network a batch norm is folded into the layer before it, for the walk only; one that follows no
    layer has the rule ``batchnorm``, and lets relevance pass by default. The largest number of a pooling window gets
    all, a mean shares by value. A text may begin with a composite, and a preset of the same name goes down to the
    pixels: ``epsilon_plus`` (linear layers epsilon, convolutions z-plus), ``epsilon_plus_flat`` (and the first layer
    flat), ``epsilon_alpha2_beta1``, ``epsilon_alpha2_beta1_flat``.

    Left out: ``linear=gamma:0.05, patch=gamma:0.25, norm=epsilon, activation=identity, attention=epsilon,
    residual=epsilon``, a point of the grid that the AttnLRP paper searches for vision transformers; on a convolutional
    network, ``epsilon_plus_flat``. ``linear=epsilon`` with ``norm=identity`` divides by sums that cancel, and explodes
    in trained models. The walk starts with the logit of the class (of any score: each logit times its slope), and is
    summed over the width of a token, or the channels of a pixel (``at=pixels``). Biases keep their shares: the sum is
    the logit only where they are zero.
    """

    rules: str = ""
    at: str = "tokens"
    layer: int = 0

    def __post_init__(self) -> None:
        check_choice("at", self.at, ("tokens", "pixels"))
        composed(self.rules)

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "pixel" if self.at == "pixels" else "token"

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        layer = resolve_layer(model, self.layer)
        keep = Record(
            "resid_pre" if self.at == "tokens" else "pixels", summed, (layer,) if self.at == "tokens" else (0,), True
        )
        usual = DEFAULTS if model.has_residual_stream else COMPOSITES["epsilon_plus_flat"]
        return (Pass((keep,), composed(self.rules, usual)),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        (value,) = cache[self.single_pass(cache.model).records[0]]
        layer = resolve_layer(cache.model, self.layer) if self.at == "tokens" else 0
        return own_precision(cache, cache.tokens_to_grid(value, layer) if value.ndim == 2 else value)


class GradientLRP(Method):
    """Input times gradient under a table of rules: at the tokens that enter a block, or at the pixels."""

    at: str
    layer: int

    def __post_init__(self) -> None:
        check_choice("at", self.at, ("tokens", "pixels"))

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "pixel" if self.at == "pixels" else "token"

    @property
    @abstractmethod
    def table(self) -> Composite:
        """What flows backward."""

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        layer = resolve_layer(model, self.layer)
        keep = (
            Record("resid_pre", dot, (layer,), grad=True)
            if self.at == "tokens"
            else Record("pixels", times_gradient, grad=True)
        )
        return (Pass((keep,), self.table),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        (value,) = cache[self.single_pass(cache.model).records[0]]
        if self.at == "pixels":
            return to_map(cache, value)
        return cache.tokens_to_grid(value, resolve_layer(cache.model, self.layer))


@register_method(
    "cp_lrp",
    family="LRP",
    papers=("ali2022xai",),
    aliases=("conservative_lrp",),
    presets={"lxt": {"gelu": "identity"}, "lnargs": {"mean": "held"}},
    models="transformers",
)
@dataclass(frozen=True)
class ConservativeLRP(GradientLRP):
    """Input times gradient with the attention weights and the deviations of the norms held constant.

    Relevance of a token is ``sum_d x_d dx_d`` at the tokens that enter block ``layer``, or of a pixel (``at=pixels``).
    ``gelu=plain`` leaves activations to their gradient, as the authors' model has none; ``identity`` (preset ``lxt``)
    lets relevance pass them unchanged, which conserves it where biases are zero and makes the map DecompX without bias.
    ``mean=held`` (preset ``lnargs``) takes the means of the norms as constants too. One forward and one backward.
    """

    gelu: str = "plain"
    mean: str = "flows"
    at: str = "tokens"
    layer: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gelu", self.gelu, ("plain", "identity"))
        check_choice("mean", self.mean, ("flows", "held"))

    @property
    def table(self) -> Composite:
        return conservative(self.gelu == "identity", self.mean == "held")


@register_method("attnlrp", family="LRP", papers=("achtibat2024attnlrp",), models="transformers")
@dataclass(frozen=True)
class AttnLRP(GradientLRP):
    """Relevance through everything, queries and keys included, as input times gradient with four local edits.

    Activations keep their gate, norms their deviation, products hand on halves (values 1/2, queries and keys 1/4 of
    their gradient), a gated MLP too; softmax, sums and linear layers keep their gradient (epsilon rule, epsilon to 0).
    ``sum_d x_d dx_d`` at the tokens of block ``layer``, or at the pixels (``at=pixels``). Not exactly conservative: the
    softmax takes relevance. The authors tune gamma rules for vision: ``lrp(rules=...)`` has them. One forward and one
    backward.
    """

    at: str = "tokens"
    layer: int = 0

    @property
    def table(self) -> Composite:
        return ATTNLRP
