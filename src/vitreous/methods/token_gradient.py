"""Gradients of the token vectors at a block's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vitreous.errors import MapError
from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.ops import dot, upcast
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import ActivationCache, Pass, Record, Reduce
from vitreous.tracing.rules import PLAIN, Composite

__all__ = ["AttCAT", "AttentionXInputXGradient", "Gradient", "InputXGradient", "TokenTerm"]


class TokenTerm(Method):
    """A map made of one number per token, read at the input of a block; its layer terms are the same at each block."""

    layer: int
    has_layer_terms = True
    rules: ClassVar[Composite] = PLAIN

    @property
    def reduce(self) -> Reduce:
        return dot

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (self.layer_pass(model, (resolve_layer(model, self.layer),)),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return self.layer_maps(cache, (resolve_layer(cache.model, self.layer),))[0]

    def layer_pass(self, model: VisionModel, layers: Sequence[int]) -> Pass:
        return Pass((Record("resid_pre", self.reduce, tuple(layers), grad=True),), self.rules)

    def layer_maps(self, cache: ActivationCache, layers: Sequence[int]) -> list[Tensor]:
        terms = cache[Record("resid_pre", self.reduce, tuple(layers), grad=True)]
        return [cache.tokens_to_grid(term, layer) for layer, term in zip(layers, terms, strict=True)]


@register_method("gradient", family="token gradient", papers=("simonyan2014deep", "mehri2024skipplus"))
@dataclass(frozen=True)
class Gradient(TokenTerm):
    """The gradient of each token vector at a block's input, as its length.

    ``||d s / d x_l[j]||_2``, or ``reduction=sum``: ``sum_d d s / d x_l[j, d]``. In a pre-norm model that sum is exactly
    zero, because every LayerNorm removes the mean of a token, and it is refused there.
    """

    layer: int = 0
    reduction: str = "norm"

    def __post_init__(self) -> None:
        check_choice("reduction", self.reduction, ("norm", "sum"))

    @property
    def reduce(self) -> Reduce:
        return gradient_norm if self.reduction == "norm" else gradient_sum


@register_method("ixg", family="token gradient", papers=("shrikumar2016not", "mehri2024skipplus"))
@dataclass(frozen=True)
class InputXGradient(TokenTerm):
    """Input times gradient of the token vectors at a block's input.

    ``sum_d x_l[j, d] * d s / d x_l[j, d]``, signed. ``plus(ixg)`` is CAT. At the last block of a class-token model it
    is zero but for rounding: patches enter there through one LayerNorm only, which ignores the length of a vector.
    """

    layer: int = 0


@register_method("attixg", family="token gradient", papers=("mehri2024skipplus",), models="ViT")
@dataclass(frozen=True)
class AttentionXInputXGradient(Method):
    """Input times gradient at a block's output, weighed by the attention each token received in that block.

    ``a_l[j] sum_d x[j, d] d s / d x[j, d]`` with x the output of block l and ``a_l[j]`` the mean over heads and queries
    of ``A_l[., j]``. The last block has no term: nothing follows it. So ``plus(attixg)`` is AttCAT but for its last
    term, which is zero where a class token is read.
    """

    layer: int = 0
    has_layer_terms = True

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (self.layer_pass(model, (resolve_layer(model, self.layer),)),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        return self.layer_maps(cache, (resolve_layer(cache.model, self.layer),))[0]

    def layer_pass(self, model: VisionModel, layers: Sequence[int]) -> Pass:
        return Pass(_received_times(layers, "resid_post", model.depth - 1))

    def layer_maps(self, cache: ActivationCache, layers: Sequence[int]) -> list[Tensor]:
        received, terms = _received_times(layers, "resid_post", cache.model.depth - 1)
        products = dict(zip(terms.layers, _products(cache, received, terms), strict=True))
        nothing = torch.zeros(cache.batch, *cache.grid).to(upcast(cache.logits))
        return [products.get(layer, nothing) for layer in layers]


@register_method(
    "attcat",
    family="token gradient",
    papers=("qiang2022attcat",),
    presets={"released": {"at": "resid_pre"}, "plus": {"at": "resid_post"}},
    models="ViT",
)
@dataclass(frozen=True)
class AttCAT(Method):
    """Class activation tokens weighed by the attention that each token receives, summed over blocks.

    ``sum_l a_l[j] sum_d x[j, d] d s / d x[j, d]`` with ``a_l[j]`` the mean over heads and queries of ``A_l[., j]`` and
    x the output of block l, as the paper writes it; the released code takes its input (preset ``released``).
    """

    at: str = "resid_post"

    def __post_init__(self) -> None:
        check_choice("at", self.at, ("resid_post", "resid_pre"))

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (Pass(_received_times(range(model.depth), self.at, model.depth)),)

    def attribution(self, cache: ActivationCache) -> Tensor:
        received, terms = _received_times(range(cache.model.depth), self.at, cache.model.depth)
        return torch.stack(_products(cache, received, terms)).sum(dim=0)


def _received_times(layers: Sequence[int], point: str, stop: int) -> tuple[Record, Record]:
    """What attention-weighed token terms need: attention received, and input times gradient at a site."""
    inside = tuple(layer for layer in layers if layer < stop)
    return Record("attn_weights", received, inside), Record(point, dot, inside, grad=True)


def _products(cache: ActivationCache, attention: Record, terms: Record) -> list[Tensor]:
    pairs = zip(terms.layers, cache[attention], cache[terms], strict=True)
    return [cache.tokens_to_grid(weight * term, layer) for layer, weight, term in pairs]


def received(model: VisionModel, attention: Tensor, gradient: Tensor | None) -> Tensor:
    """``mean_h mean_queries A``: the attention each token receives."""
    return attention.mean(dim=(1, 2))


def gradient_norm(model: VisionModel, value: Tensor, gradient: Tensor | None) -> Tensor:
    """The length of the gradient of every token."""
    assert gradient is not None
    length: Tensor = torch.linalg.vector_norm(upcast(gradient), dim=-1)
    return length


def gradient_sum(model: VisionModel, value: Tensor, gradient: Tensor | None) -> Tensor:
    """The sum of the gradient over the width of every token; refused where it is zero by construction."""
    assert gradient is not None
    gradient = upcast(gradient)
    total = gradient.sum(dim=-1)
    if total.abs().max() <= 1e-4 * gradient_norm(model, value, gradient).max():
        raise MapError(
            f"gradient(reduction=sum) is zero on {model.name}: its LayerNorms remove the mean of each token; "
            "use reduction=norm"
        )
    return total
