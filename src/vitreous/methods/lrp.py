"""Layer-wise relevance propagation: relevance of attention, of tokens or of pixels, by rules or as a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.methods import ops
from vitreous.methods.base import Attribution, Method
from vitreous.methods.input_gradient import summed_gradient, times_gradient
from vitreous.methods.registry import register_method
from vitreous.methods.rollout import mean_rows
from vitreous.models import VisionModel
from vitreous.registry import choice
from vitreous.tracing import Activation, ActivationCache, Context, Pass, Record, Reduce, activation_grad, upcast
from vitreous.tracing.rules import Composite
from vitreous.tracing.rules.composites import COMPOSITES, DEFAULTS, ORIGINAL, OURS, composed
from vitreous.tracing.rules.gradient import ATTNLRP, conservative

RULES = {"ours": OURS, "original": ORIGINAL}


def relevant(a: Activation) -> Tensor:
    """``mean_h (R_A)+``: ``[B, N, N]``, or ``[B, W, t, t]`` inside windows."""
    return a.grad.clamp(min=0).mean(dim=-3)


def relevant_row(a: Activation) -> Tensor:
    """The row of ``mean_h (R_A)+`` that the model reads."""
    return mean_rows(a.model, lambda relevance: relevance.clamp(min=0), a.grad)


_register = partial(register_method, family="LRP", models="transformers")
_register_walk = partial(_register, cost_note="1 F + a walk in float64")


@_register(
    "transatt",
    papers=("chefer2021transformer",),
    aliases=("chefer1", "t_lrp"),
    cost=(2, 2),
    cost_note="2 F + 1 B + a walk in float64",
    presets={"eval": {"start": 1}, "tis": {"start": 0}},
)
@dataclass(frozen=True)
class TransAtt(Method):
    r"""The relevance of attention times its gradient, gathered along the blocks.

    .. math:: E^{(l)} = \frac{1}{H} \sum_h \left( \nabla A^{(l)}_h \odot R_{A^{(l)}_h} \right)^+, \qquad
        C = (I + E^{(L - 1)}) \cdots (I + E^{(\mathrm{start})})

    with :math:`R_A` the relevance of the attention weights; here its one row, :math:`r \leftarrow r + r E^{(l)}`. Rows
    are not normalised, in the paper as in the code.

    Parameters
    ----------
    start : int, default 0
        The lowest block. The authors' notebooks, InFlow and TIS have 0, their evaluation scripts and IIA 1 (``eval``).
    rules : {"ours", "original"}, default "ours"
        Which rules of Chefer et al. relevance follows.

    Notes
    -----
    The walk runs in float64 whatever the model's dtype; the release, in float32, drifts far from its own float64 result
    on real weights. One forward and backward for the gradient, one forward and a walk for the relevance.

    References
    ----------
    Chefer et al., "Transformer Interpretability Beyond Attention Visualization", CVPR 2021.

    Examples
    --------
    >>> vt.explain(model, image, "transatt").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    rules: str = choice("ours", *RULES)

    def compute(self, context: Context) -> Attribution:
        """Gradient and relevance of a few images at a time: all heads of all blocks exist for them only."""
        weight = Pass(composite=RULES[self.rules]).weight
        parts = context.batching.run(
            lambda start, stop: self._part(context.slice_images(start, stop)), len(context.inputs), weight
        )
        return Attribution(torch.cat(parts), {})

    def _part(self, context: Context) -> Tensor:
        records = tuple(ops.chain_records(context.model, activation_grad, self.start))
        gradients = context.run_pass(Pass(records))
        relevances = context.run_pass(Pass(records, RULES[self.rules]))

        def products(record: Record) -> list[Tensor]:
            pairs = zip(gradients[record], relevances[record], strict=True)
            return [(gradient.double() * relevance).clamp_(min=0).mean(dim=-3) for gradient, relevance in pairs]

        matrices, *pooled = map(products, records)
        if pooled:
            row = ops.pad_prefix(pooled[0][0].flatten(1), matrices[0].shape[1])
        else:
            row = ops.initial_row(gradients, matrices[0])
        return ops.rollout(gradients, row, records[0].layers, matrices).to(upcast(gradients.logits))


class Relevance(Method):
    """A map read from one walk, in float64 until it is a map."""

    def attribution(self, cache: ActivationCache) -> Tensor:
        return super().attribution(cache).to(upcast(cache.logits))


class CheferRelevance(Relevance):
    """A map read from one walk with Chefer's rules."""

    rules: str

    @property
    def composite(self) -> Composite:
        return RULES[self.rules]


@_register_walk(
    "partial_lrp", papers=("chefer2021transformer", "voita2019analyzing"), presets={"bt": {"rules": "ours"}}
)
@dataclass(frozen=True)
class PartialLRP(CheferRelevance):
    r"""The relevance of one block's attention.

    .. math:: M_j = \frac{1}{H} \sum_h \bigl( R_{A^{(l)}_h} \bigr)^+_{\mathrm{CLS}, j}

    relevance walked from the class down to the block.

    Parameters
    ----------
    layer : int, default -1
        The block.
    rules : {"original", "ours"}, default "original"
        Which rules of Chefer et al. relevance follows; the code of the Bidirectional Transformers has ``"ours"``
        (preset ``bt``).

    Notes
    -----
    One forward and a walk in float64.

    References
    ----------
    Chefer et al., "Transformer Interpretability Beyond Attention Visualization", CVPR 2021.
    Voita et al., "Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be Pruned",
    ACL 2019.

    Examples
    --------
    >>> vt.explain(model, image, "partial_lrp").map.shape
    torch.Size([16, 16])
    """

    layer: int = -1
    rules: str = choice("original", *RULES)

    def records(self, model: VisionModel) -> list[Record]:
        return ops.row_records(model, relevant_row, self.layer)


@_register_walk("lrp_rollout", papers=("chefer2021transformer",))
@dataclass(frozen=True)
class LRPRollout(CheferRelevance):
    r"""The relevance of attention, multiplied through the blocks.

    .. math:: r \leftarrow r \Bigl( \frac{1}{H} \sum_h \bigl( R_{A^{(l)}_h} \bigr)^+ + I \Bigr)

    from the last block down, without normalisation.

    Parameters
    ----------
    start : int, default 0
        The lowest block.
    rules : {"ours", "original"}, default "ours"
        Which rules of Chefer et al. relevance follows.

    Notes
    -----
    One forward and a walk in float64.

    References
    ----------
    Chefer et al., "Transformer Interpretability Beyond Attention Visualization", CVPR 2021.

    Examples
    --------
    >>> vt.explain(model, image, "lrp_rollout").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    rules: str = choice("ours", *RULES)

    def records(self, model: VisionModel) -> list[Record]:
        return ops.chain_records(model, relevant, self.start)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return ops.rollout_of(cache, self.records(cache.model)).to(upcast(cache.logits))


@_register_walk("full_lrp", papers=("chefer2021transformer", "bach2015pixelwise"))
@dataclass(frozen=True)
class FullLRP(CheferRelevance):
    r"""Relevance down to the pixels.

    .. math:: M_{uv} = \sum_c R_{cuv}

    by the rules of Chefer et al. through all blocks, then a box rule at the patch embedding.

    Parameters
    ----------
    rules : {"original", "ours"}, default "original"
        Which rules relevance follows. The original ones do not conserve it: each sign group of a linear layer gets all
        of it.

    Notes
    -----
    Values grow by orders of magnitude from block to block; the release in float32 is noise on real weights. One forward
    and a walk in float64.

    References
    ----------
    Chefer et al., "Transformer Interpretability Beyond Attention Visualization", CVPR 2021.
    Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation",
    PLOS ONE 2015.

    Examples
    --------
    >>> vt.explain(model, image, "full_lrp").map.shape
    torch.Size([128, 128])
    """

    rules: str = choice("original", *RULES)
    grid = "pixel"

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("pixels", summed_gradient)]


class TokensOrPixels(Relevance):
    """A map of the tokens that enter a block, or of the pixels."""

    reduce: ClassVar[Reduce]
    at: str
    layer: int

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "pixel" if self.at == "pixels" else "token"

    def records(self, model: VisionModel) -> list[Record]:
        return [Record("resid_pre" if self.at == "tokens" else "pixels", type(self).reduce, (self.layer,))]


@_register_walk(
    "lrp",
    papers=("bach2015pixelwise",),
    presets={name: {"rules": name, "at": "pixels"} for name in COMPOSITES},
    models="all",
)
@dataclass(frozen=True)
class LRP(TokensOrPixels):
    r"""Relevance by rules of one's own choice, at the tokens that enter a block or at the pixels.

    .. math:: R_i = \sum_j \frac{x_i \rho(W)_{ji}}{\sum_k x_k \rho(W)_{jk}} R_j

    with one :math:`\rho` per kind of operation. The walk starts with the logit of the class (of any score: each logit
    times its slope), and is summed over the width of a token, or the channels of a pixel. Biases keep their shares: the
    sum is the logit only where they are zero.

    Parameters
    ----------
    rules : str, default ""
        ``"place=rule, place=rule:size"``. Places are ``linear``, ``conv`` (as ``linear``, unless given), ``patch`` (the
        patch embedding; the first layer of a convolutional network), ``norm``, ``batchnorm``, ``activation``,
        ``attention`` and ``residual``. Layers: ``epsilon``, ``gamma:0.25``, ``zplus``, ``alphabeta:2`` (alpha; beta is
        one less), ``flat``, ``wsquare``, patches also ``zbox``. Norms: ``identity``, or ``epsilon``, linear with their
        deviation held. Attention: ``epsilon``, weights held, all to the values, or ``uniform``, half to the weights and
        through them to queries and keys. Residual sums: ``epsilon``, shares by value, or ``uniform``. A text may begin
        with a composite: ``epsilon_plus`` (linear layers epsilon, convolutions z-plus), ``epsilon_plus_flat`` (and the
        first layer flat), ``epsilon_alpha2_beta1``, ``epsilon_alpha2_beta1_flat``. Presets of these names go down to
        the pixels.
    at : {"tokens", "pixels"}, default "tokens"
        Where the walk ends.
    layer : int, default 0
        The block whose input it ends at.

    Notes
    -----
    Left out, rules are ``linear=gamma:0.05, patch=gamma:0.25, norm=epsilon, activation=identity, attention=epsilon,
    residual=epsilon``, a point of the grid that the AttnLRP paper searches for vision transformers; on a convolutional
    network, ``epsilon_plus_flat``. ``linear=epsilon`` with ``norm=identity`` divides by sums that cancel, and explodes
    in trained models. On a convolutional network a batch norm is folded into the layer before it, for the walk only;
    one that follows no layer has the rule ``batchnorm``, and lets relevance pass by default. The largest number of a
    pooling window gets all, a mean shares by value. One forward and a walk in float64.

    References
    ----------
    Bach et al., "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation",
    PLOS ONE 2015.

    Examples
    --------
    >>> vt.explain(model, image, "lrp").map.shape
    torch.Size([16, 16])
    """

    rules: str = ""
    at: str = choice("tokens", "pixels")
    layer: int = 0
    reduce = summed_gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        composed(self.rules)

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        usual = DEFAULTS if model.has_residual_stream else COMPOSITES["epsilon_plus_flat"]
        return (Pass(tuple(self.records(model)), composed(self.rules, usual)),)


@_register(
    "cp_lrp",
    papers=("ali2022xai",),
    aliases=("conservative_lrp",),
    presets={"lxt": {"gelu": "identity"}, "lnargs": {"mean": "held"}},
)
@dataclass(frozen=True)
class ConservativeLRP(TokensOrPixels):
    r"""Input times gradient with the attention weights and the deviations of the norms held constant.

    .. math:: R_j = \sum_d x_{jd} \, \frac{\partial s}{\partial x_{jd}}

    at the tokens that enter a block, or at the pixels, in the network so held.

    Parameters
    ----------
    gelu : {"plain", "identity"}, default "plain"
        ``"plain"`` leaves activations to their gradient, as the authors' model has none; ``"identity"`` (preset
        ``lxt``) lets relevance pass them unchanged, which conserves it where biases are zero and makes the map DecompX
        without bias.
    mean : {"flows", "held"}, default "flows"
        ``"held"`` (preset ``lnargs``) takes the means of the norms as constants too.
    at : {"tokens", "pixels"}, default "tokens"
        Where relevance is read.
    layer : int, default 0
        The block whose input it is read at.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Ali et al., "XAI for Transformers: Better Explanations through Conservative Propagation", ICML 2022.

    Examples
    --------
    >>> vt.explain(model, image, "cp_lrp").map.shape
    torch.Size([16, 16])
    """

    gelu: str = choice("plain", "identity")
    mean: str = choice("flows", "held")
    at: str = choice("tokens", "pixels")
    layer: int = 0
    reduce = times_gradient

    @property
    def composite(self) -> Composite:
        return conservative(self.gelu == "identity", self.mean == "held")


@_register("attnlrp", papers=("achtibat2024attnlrp",))
@dataclass(frozen=True)
class AttnLRP(TokensOrPixels):
    r"""Relevance through everything, queries and keys included, as input times gradient with four local edits.

    .. math:: R_j = \sum_d x_{jd} \, \frac{\partial s}{\partial x_{jd}}

    where activations keep their gate, norms their deviation, products hand on halves (values 1/2, queries and keys 1/4
    of their gradient), a gated MLP too; softmax, sums and linear layers keep their gradient (the epsilon rule, epsilon
    to 0).

    Parameters
    ----------
    at : {"tokens", "pixels"}, default "tokens"
        Where relevance is read.
    layer : int, default 0
        The block whose input it is read at.

    Notes
    -----
    Not exactly conservative: the softmax takes relevance. The authors tune gamma rules for vision: ``lrp(rules=...)``
    has them. One forward and one backward.

    References
    ----------
    Achtibat et al., "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers", ICML 2024.

    Examples
    --------
    >>> vt.explain(model, image, "attnlrp").map.shape
    torch.Size([16, 16])
    """

    at: str = choice("tokens", "pixels")
    layer: int = 0
    reduce = times_gradient
    composite = ATTNLRP
