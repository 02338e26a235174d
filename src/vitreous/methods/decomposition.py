"""Decomposition: how much of the target each token carries, and how much every bias of the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.methods import ops
from vitreous.methods.base import Attribution, LayerwiseMethod
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice
from vitreous.tracing import Activation, ActivationCache, Context, Record, activation_value, resolve_layer, upcast
from vitreous.tracing.decompose import explicit_contributions
from vitreous.tracing.rules import LINEARIZED


@register_method(
    "decompx", family="decomposition", papers=("modarressi2023decompx", "mehri2024skipplus"), models="transformers"
)
@dataclass(frozen=True)
class DecompX(LayerwiseMethod):
    r"""The share of each token in the target, propagated through the network, without biases.

    .. math:: M_j = \sum_d x^{(l)}_{jd} \, \frac{\partial \tilde s}{\partial x^{(l)}_{jd}}

    with :math:`\tilde s` the target of the network whose attention weights, LayerNorm deviations and activation gates
    are constants. DecompX carries a vector :math:`T_{ij}` (the share of source j in token i) through every part; each
    part is affine in its input, hence the share of source j is input times gradient in that network: one backward gives
    all start layers, where the published code propagates N x (N + 1) x D numbers once per start layer. All tokens
    together plus the share of the biases are the target.

    Parameters
    ----------
    layer : int, default 0
        The block whose input the shares start from.
    bias : {"none", "token", "absdot"}, default "none"
        ``"token"`` collects all biases as one more source: the map is the same, their share is the extra ``bias``.
        ``"absdot"`` spreads every bias b over the sources by :math:`|\langle T_{ij}, b \rangle|`, as the original for
        language models does; that is not linear, so shares are written out. The tokens alone are the target.

    Notes
    -----
    The published quotient gate is 0 where a pre-activation is exactly 0; here it is Phi(0) = 1/2. One forward and one
    backward; about N forwards per image with ``bias="absdot"``.

    References
    ----------
    Modarressi et al., "DecompX: Explaining Transformers Decisions by Propagating Token Decomposition", ACL 2023.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "decompx").map.shape
    torch.Size([16, 16])
    """

    layer: int = 0
    bias: str = choice("none", "token", "absdot")
    composite = LINEARIZED
    reduce = ops.dot

    @property
    def is_layerwise(self) -> bool:  # type: ignore[override]
        """Spread biases are not: they depend on where the shares start."""
        return self.bias != "absdot"

    def num_forwards(self, model: VisionModel) -> float:
        tokens = model.num_prefix_tokens + model.grid()[0] * model.grid()[1]
        return 1.0 if self.bias != "absdot" else 2.0 + tokens

    def records(self, model: VisionModel) -> Sequence[Record]:
        if self.bias != "absdot":
            return super().records(model)
        if model.attention != "global":
            raise ModelError(
                f"{model.name} attends inside windows: decompx(bias=absdot) does not apply; use bias=token"
            )
        return [Record("resid_pre", activation_value, (self.layer,), grad=False)]

    def compute(self, context: Context) -> Attribution:
        if self.bias == "none":
            return super().compute(context)
        cache = self.record(context)
        logits = upcast(cache.logits)
        slope = context.target.gradient(logits)  # the target, linear in the logits
        (values,) = cache[self.records(context.model)[0]]
        if self.bias == "token":
            bias = (slope * logits).sum(dim=1) - values.sum(dim=1)
            return Attribution(self.attribution(cache), {"bias": bias})
        layer = resolve_layer(context.model, self.layer)
        shares: list[Tensor] = []
        for tokens, weights in zip(values, slope, strict=True):
            shares.append(upcast(explicit_contributions(context.model, tokens, layer, context.memory_gb)) @ weights)
            if context.on_progress is not None:
                context.on_progress(1)
        return Attribution(cache.tokens_to_grid(torch.stack(shares), layer), {})


def bias_shares(a: Activation) -> Tensor:
    """``sum_d b_d * d s / d out_d`` of every token that the bias is added to."""
    return (a.grad * a.value).sum(dim=-1)


def bias_sizes(a: Activation) -> Tensor:
    """``sum_d |b_d * d s / d out_d|``."""
    return (a.grad * a.value).abs().sum(dim=-1)


def dot_sizes(a: Activation) -> Tensor:
    """``sum_d |x_d dx_d|``."""
    return (a.value * a.grad).abs().sum(dim=-1)


class BiasTerms(LayerwiseMethod):
    """Terms ``x_l * G_l`` at block inputs, and those of the biases inside each block; the head counts as one more."""

    absolute: bool

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        at_input, at_bias = (dot_sizes, bias_sizes) if self.absolute else (ops.dot, bias_shares)
        blocks = tuple(range(min(layers), model.depth + 1))
        return [Record("resid_pre", at_input, tuple(layers)), Record("biases", at_bias, blocks)]

    def terms(self, cache: ActivationCache, layer: int) -> tuple[Tensor, list[Tensor]]:
        """Return the input term ``[B, N]`` of a layer, and the bias terms ``[B, N]`` of the blocks from there on.

        What belongs to no token (biases behind the pooling) is left out, as is the class token's own entry.
        """
        inputs, biases = self.layer_records(cache.model, (layer,))
        return cache[inputs][0], [term[:, 1:] for term in cache[biases]]


@register_method("fullgrad", family="decomposition", papers=("srinivas2019full",), models="ViT")
@dataclass(frozen=True)
class FullGrad(BiasTerms):
    r"""Input times gradient of the tokens, and of every bias behind them.

    .. math:: M_j = \sum_d x^{(l)}_{jd} \frac{\partial s}{\partial x^{(l)}_{jd}}
        + \sum_b \sum_d b_d \frac{\partial s}{\partial \mathrm{out}^b_{jd}}

    over the biases b of linear layers and LayerNorms in blocks l and later, each at the token it is added to; those of
    the head belong to no patch. The map of a layer, for ``plus``, is the same from that block on.

    Parameters
    ----------
    layer : int, default 0
        The block. What enters block 0 is the patch embedding with its bias, class token and positions.
    absolute : bool, default False
        Take absolute values before summing over the width, as the original does.

    Notes
    -----
    The original is for convolutions, where biases complete the score; GELU and attention break that sum here. One
    forward and one backward.

    References
    ----------
    Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.

    Examples
    --------
    >>> vt.explain(model, image, "fullgrad").map.shape
    torch.Size([16, 16])
    """

    layer: int = 0
    absolute: bool = False

    def layer_map(self, cache: ActivationCache, layer: int) -> Tensor:
        term, biases = self.terms(cache, layer)
        return cache.tokens_to_grid(term + sum(biases, start=term * 0), layer)


@register_method(
    "fullgrad_plus", family="decomposition", papers=("mehri2024skipplus", "srinivas2019full"), models="ViT"
)
@dataclass(frozen=True)
class FullGradPlus(BiasTerms):
    r"""Input times gradient summed over blocks, and every bias of those blocks once.

    .. math:: M_j = \sum_{l \ge \mathrm{start}} \Bigl( \sum_d x^{(l)}_{jd} \frac{\partial s}{\partial x^{(l)}_{jd}}
        + \sum_{b \in l} \sum_d b_d \frac{\partial s}{\partial \mathrm{out}^b_{jd}} \Bigr)

    FullGrad composed with PLUS would count the biases of a late block once for every earlier start. In the map of a
    layer a bias belongs to its own block (those of the last norm to the last), so that ``plus(fullgrad_plus)`` is this
    and ``skipplus(fullgrad_plus)`` its upper half. The biases of the embedding are part of the first input, and not
    counted again.

    Parameters
    ----------
    start : int, default 0
        The lowest block.
    absolute : bool, default False
        Take absolute values before summing over the width.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.
    Srinivas and Fleuret, "Full-Gradient Representation for Neural Network Visualization", NeurIPS 2019.

    Examples
    --------
    >>> vt.explain(model, image, "fullgrad_plus").map.shape
    torch.Size([16, 16])
    """

    start: int = 0
    absolute: bool = False

    def records(self, model: VisionModel) -> list[Record]:
        return self.layer_records(model, self._layers(model))

    def attribution(self, cache: ActivationCache) -> Tensor:
        return torch.stack([self.layer_map(cache, layer) for layer in self._layers(cache.model)]).sum(dim=0)

    def layer_map(self, cache: ActivationCache, layer: int) -> Tensor:
        term, biases = self.terms(cache, layer)
        own = biases[0] + biases[1] if layer == cache.model.depth - 1 else biases[0]
        return cache.tokens_to_grid(term + own, layer)

    def _layers(self, model: VisionModel) -> tuple[int, ...]:
        return tuple(range(resolve_layer(model, self.start), model.depth))
