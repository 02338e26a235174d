"""Decomposition: how much of the target each token carries when the network's gates are held still.

Input times gradient, and the same for every bias of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.methods.base import Attribution, Method, resolve_layer
from vitreous.methods.ops import dot, upcast
from vitreous.methods.registry import register_method
from vitreous.methods.token_gradient import TokenTerm
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import ActivationCache, Context, Pass, Record, Reduce, explicit_contributions, whole
from vitreous.tracing.rules import FROZEN

__all__ = [
    "DecompX",
    "FullGrad",
    "FullGradPlus",
    "bias_shares",
]


@register_method(
    "decompx", family="decomposition", papers=("modarressi2023decompx", "mehri2024skipplus"), models="transformers"
)
@dataclass(frozen=True)
class DecompX(TokenTerm):
    """The share of each token in the target, propagated through the network, without biases.

    DecompX carries a vector ``T[i, j]`` (the share of source j in token i) through every part: attention weights,
    LayerNorm deviation and activation gate are constants, so each part is affine in its input. Hence the share of
    source j is input times gradient in that frozen network, ``sum_d x_l[j, d] * G_l[j, d]``: one backward gives all
    start layers, where the published code propagates N x (N + 1) x D numbers once per start layer. All tokens together
    plus the share of the biases are the target. The published quotient gate is 0 where a pre-activation is exactly 0;
    here it is Phi(0) = 1/2.

    ``bias=token`` collects all biases as one more source: the map is the same, their share is the extra ``bias``.
    ``bias=absdot`` spreads every bias b over the sources by ``|<T[i, j], b>|``, as the original for language models
    does; that is not linear, so shares are written out: about N forwards per image. The tokens alone are the target.
    """

    layer: int = 0
    bias: str = "none"
    rules = FROZEN

    def __post_init__(self) -> None:
        check_choice("bias", self.bias, ("none", "token", "absdot"))

    @property
    def has_layer_terms(self) -> bool:  # type: ignore[override]
        """Spread biases have no layer terms: they depend on where the shares start."""
        return self.bias != "absdot"

    def num_forwards(self, model: VisionModel) -> float:
        tokens = model.num_prefix_tokens + model.grid()[0] * model.grid()[1]
        return 1.0 if self.bias != "absdot" else 2.0 + tokens

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        if self.bias != "absdot":
            return super().passes(model)
        if model.attention != "global":
            raise ModelError(
                f"{model.name} attends inside windows: decompx(bias=absdot) does not apply; use bias=token"
            )
        return (Pass((Record("resid_pre", whole, (resolve_layer(model, self.layer),)),)),)

    def compute(self, context: Context) -> Attribution:
        if self.bias == "none":
            return super().compute(context)
        cache = context.run_pass(self.single_pass(context.model))
        logits = upcast(cache.logits)
        slope = context.target.gradient(logits)  # the target, linear in the logits
        (kept,) = cache[self.single_pass(context.model).records[0]]
        if self.bias == "token":
            bias = (slope * logits).sum(dim=1) - kept.sum(dim=1)
            return Attribution(self.attribution(cache), {"bias": bias})
        layer = resolve_layer(context.model, self.layer)
        shares: list[Tensor] = []
        for tokens, each in zip(kept, slope, strict=True):
            shares.append(upcast(explicit_contributions(context.model, tokens, layer, context.memory_gb)) @ each)
            if context.on_progress is not None:
                context.on_progress(1)
        return Attribution(cache.tokens_to_grid(torch.stack(shares), layer), {})


def bias_shares(model: VisionModel, bias: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_d b_d * d s / d out_d`` of every token that the bias is added to."""
    assert gradient is not None
    return (upcast(gradient) * upcast(bias)).sum(dim=-1)


def bias_sizes(model: VisionModel, bias: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_d |b_d * d s / d out_d|``."""
    assert gradient is not None
    return (upcast(gradient) * upcast(bias)).abs().sum(dim=-1)


def dot_sizes(model: VisionModel, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_d |x_d dx_d|``."""
    assert gradient is not None
    return (upcast(value) * upcast(gradient)).abs().sum(dim=-1)


class BiasTerms(Method):
    """Terms ``x_l * G_l`` at block inputs, and those of the biases inside each block; the head counts as one more."""

    absolute: bool
    has_layer_terms = True

    @property
    def _reduces(self) -> tuple[Reduce, Reduce]:
        return (dot_sizes, bias_sizes) if self.absolute else (dot, bias_shares)

    def layer_pass(self, model: VisionModel, layers: Sequence[int]) -> Pass:
        at_input, at_bias = self._reduces
        blocks = tuple(range(min(layers), model.depth + 1))
        return Pass(
            (Record("resid_pre", at_input, tuple(layers), grad=True), Record("biases", at_bias, blocks, grad=True))
        )

    def _terms(self, cache: ActivationCache, layers: Sequence[int]) -> tuple[list[Tensor], dict[int, Tensor]]:
        """Return input terms ``[B, N]`` of these layers, bias terms ``[B, N]`` of all blocks from the lowest on.

        What belongs to no token (biases behind the pooling) is left out, as is the class token's own entry.
        """
        inputs, biases = self.layer_pass(cache.model, layers).records
        bias_terms = (term[:, 1:] for term in cache[biases])
        return cache[inputs], dict(zip(biases.layers, bias_terms, strict=True))


@register_method("fullgrad", family="decomposition", papers=("srinivas2019full",), models="ViT")
@dataclass(frozen=True)
class FullGrad(BiasTerms):
    """Input times gradient of the tokens, and of every bias behind them.

    ``sum_d x_l[j, d] G_l[j, d] + sum_b sum_d b_d d s / d out_b[j, d]`` over the biases b of linear layers and
    LayerNorms in blocks l and later, each at the token it is added to; those of the head belong to no patch. The input
    is what enters block 0: patch embedding with its bias, class token and positions. The original is for convolutions,
    where biases complete the score; GELU and attention break that sum here. ``absolute`` takes absolute values before
    summing over the width, as the original does. Layer term: the same from each block.
    """

    layer: int = 0
    absolute: bool = False

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (self.layer_pass(model, (resolve_layer(model, self.layer),)),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return self.layer_maps(cache, (resolve_layer(cache.model, self.layer),))[0]

    def layer_maps(self, cache: ActivationCache, layers: Sequence[int]) -> list[Tensor]:
        terms, biases = self._terms(cache, layers)
        behind = [sum((bias for at, bias in biases.items() if at >= layer), start=terms[0] * 0) for layer in layers]
        pairs = zip(layers, terms, behind, strict=True)
        return [cache.tokens_to_grid(term + rest, layer) for layer, term, rest in pairs]


@register_method(
    "fullgrad_plus", family="decomposition", papers=("mehri2024skipplus", "srinivas2019full"), models="ViT"
)
@dataclass(frozen=True)
class FullGradPlus(BiasTerms):
    """Input times gradient summed over blocks, and every bias of those blocks once.

    ``sum_{l >= start} (x_l G_l + sum over the biases of block l)``: FullGrad composed with PLUS would count the biases
    of a late block once for every earlier start. As a layer term a bias belongs to its own block (those of the last
    norm to the last), so that ``plus(fullgrad_plus)`` is this and ``skipplus(fullgrad_plus)`` its upper half. The
    biases of the embedding are part of x_0, and not counted again.
    """

    start: int = 0
    absolute: bool = False

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (self.layer_pass(model, self._layers(model)),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return torch.stack(self.layer_maps(cache, self._layers(cache.model))).sum(dim=0)

    def layer_maps(self, cache: ActivationCache, layers: Sequence[int]) -> list[Tensor]:
        terms, biases = self._terms(cache, layers)
        last = cache.model.depth - 1
        biases[last] = biases[last] + biases[last + 1]
        pairs = zip(layers, terms, strict=True)
        return [cache.tokens_to_grid(term + biases[layer], layer) for layer, term in pairs]

    def _layers(self, model: VisionModel) -> tuple[int, ...]:
        return tuple(range(resolve_layer(model, self.start), model.depth))
