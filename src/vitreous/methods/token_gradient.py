"""Gradients of the token vectors at a block's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import MapError
from vitreous.methods import ops
from vitreous.methods.base import LayerwiseMethod, Method
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice
from vitreous.tracing import Activation, ActivationCache, Record, upcast


@register_method("gradient", family="token gradient", papers=("simonyan2014deep", "mehri2024skipplus"))
@dataclass(frozen=True)
class Gradient(LayerwiseMethod):
    r"""The gradient of each token vector at a block's input, as its length.

    .. math:: M_j = \left\lVert \frac{\partial s}{\partial x^{(l)}_j} \right\rVert_2

    Parameters
    ----------
    layer : int, default 0
        The block.
    reduction : {"norm", "sum"}, default "norm"
        ``"sum"`` adds the gradient up over the width. In a pre-norm model that sum is exactly zero, because every
        LayerNorm removes the mean of a token, and it is refused there.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Simonyan et al., "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
    ICLR Workshop 2014.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "gradient").map.shape
    torch.Size([16, 16])
    """

    layer: int = 0
    reduction: str = choice("norm", "sum")

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return [Record("resid_pre", grad_norm if self.reduction == "norm" else grad_sum, tuple(layers))]


@register_method("ixg", family="token gradient", papers=("shrikumar2016not", "mehri2024skipplus"))
@dataclass(frozen=True)
class InputXGradient(LayerwiseMethod):
    r"""Input times gradient of the token vectors at a block's input.

    .. math:: M_j = \sum_d x^{(l)}_{jd} \, \frac{\partial s}{\partial x^{(l)}_{jd}}

    signed. ``plus(ixg)`` is CAT.

    Parameters
    ----------
    layer : int, default 0
        The block.

    Notes
    -----
    At the last block of a class-token model it is zero but for rounding: patches enter there through one LayerNorm
    only, which ignores the length of a vector. One forward and one backward.

    References
    ----------
    Shrikumar et al., "Not Just a Black Box: Learning Important Features Through Propagating Activation Differences",
    arXiv 2016.
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "ixg").map.shape
    torch.Size([16, 16])
    """

    layer: int = 0
    reduce = ops.dot


@register_method("attixg", family="token gradient", papers=("mehri2024skipplus",), models="ViT")
@dataclass(frozen=True)
class AttentionXInputXGradient(LayerwiseMethod):
    r"""Input times gradient at a block's output, weighed by the attention each token received in that block.

    .. math:: M_j = a^{(l)}_j \sum_d x_{jd} \, \frac{\partial s}{\partial x_{jd}}, \qquad
        a^{(l)}_j = \frac{1}{H N} \sum_{h, i} A^{(l)}_{hij}

    with x the output of block l. The last block has no term: nothing follows it. So ``plus(attixg)`` is AttCAT but for
    its last term, which is zero where a class token is read.

    Parameters
    ----------
    layer : int, default 0
        The block.

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "attixg").map.shape
    torch.Size([16, 16])
    """

    layer: int = 0

    def layer_records(self, model: VisionModel, layers: Sequence[int]) -> list[Record]:
        return received_terms("resid_post", [layer for layer in layers if layer < model.depth - 1])

    def layer_map(self, cache: ActivationCache, layer: int) -> Tensor:
        if layer == cache.model.depth - 1:
            return torch.zeros(cache.batch, *cache.grid).to(upcast(cache.logits))
        (single,) = received_products(cache, "resid_post", [layer])
        return single


@register_method(
    "attcat",
    family="token gradient",
    papers=("qiang2022attcat",),
    presets={"released": {"at": "resid_pre"}, "plus": {"at": "resid_post"}},
    models="ViT",
)
@dataclass(frozen=True)
class AttCAT(Method):
    r"""Class activation tokens weighed by the attention that each token receives, summed over blocks.

    .. math:: M_j = \sum_l a^{(l)}_j \sum_d x^{(l)}_{jd} \, \frac{\partial s}{\partial x^{(l)}_{jd}}, \qquad
        a^{(l)}_j = \frac{1}{H N} \sum_{h, i} A^{(l)}_{hij}

    Parameters
    ----------
    at : {"resid_post", "resid_pre"}, default "resid_post"
        Whether x is the output of a block, as the paper writes it, or its input, as the released code has it (preset
        ``released``).

    Notes
    -----
    One forward and one backward.

    References
    ----------
    Qiang et al., "AttCAT: Explaining Transformers via Attentive Class Activation Tokens", NeurIPS 2022.

    Examples
    --------
    >>> vt.explain(model, image, "attcat").map.shape
    torch.Size([16, 16])
    """

    at: str = choice("resid_post", "resid_pre")

    def records(self, model: VisionModel) -> list[Record]:
        return received_terms(self.at, range(model.depth))

    def attribution(self, cache: ActivationCache) -> Tensor:
        return torch.stack(received_products(cache, self.at, range(cache.model.depth))).sum(dim=0)


def received_terms(point: str, layers: Sequence[int]) -> list[Record]:
    """The records of attention received, and of input times gradient at a hook point."""
    return [
        Record("attn_weights", attention_received, tuple(layers), grad=False),
        Record(point, ops.dot, tuple(layers)),
    ]


def received_products(cache: ActivationCache, point: str, layers: Sequence[int]) -> list[Tensor]:
    """The product of both, one map per layer."""
    weights, terms = (cache[record] for record in received_terms(point, layers))
    return [
        cache.tokens_to_grid(weight * term, layer) for layer, weight, term in zip(layers, weights, terms, strict=True)
    ]


def attention_received(a: Activation) -> Tensor:
    """``mean_h mean_queries A``: the attention each token receives."""
    return a.value.mean(dim=(1, 2))


def grad_norm(a: Activation) -> Tensor:
    """The length of the gradient of every token."""
    length: Tensor = torch.linalg.vector_norm(a.grad, dim=-1)
    return length


def grad_sum(a: Activation) -> Tensor:
    """The sum of the gradient over the width of every token; refused where it is zero by construction."""
    total = a.grad.sum(dim=-1)
    if total.abs().max() <= 1e-4 * grad_norm(a).max():
        raise MapError(
            f"gradient(reduction=sum) is zero on {a.model.name}: its LayerNorms remove the mean of each token; "
            "use reduction=norm"
        )
    return total
