"""Class activation maps on token features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.readout import dot, wide
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Reduce, Trace

__all__ = ["GradCAM", "HiResCAM", "TokenCAM"]


class TokenCAM(Method):
    """Features are the output of a block's first norm: in the last block, the last place where patches reach the class.

    Maps are the sum over channels before any ReLU. Layer terms, for ``plus``, are taken at the block's input, and
    their channel weights average over all tokens (SkipPLUS).
    """

    layer: int
    layered = True
    at_features: ClassVar[Reduce]
    at_input: ClassVar[Reduce]

    def ask(self, view: View) -> Pass:
        return Pass((self._features(view),))

    def read(self, trace: Trace) -> Tensor:
        return trace.tokens_to_grid(trace[self._features(trace.view)][0])

    def ask_layers(self, view: View, layers: Sequence[int]) -> Pass:
        return Pass((Keep("input", type(self).at_input, tuple(layers), grad=True),))

    def read_layers(self, trace: Trace, layers: Sequence[int]) -> list[Tensor]:
        terms = trace[Keep("input", type(self).at_input, tuple(layers), grad=True)]
        return [trace.tokens_to_grid(term) for term in terms]

    def _features(self, view: View) -> Keep:
        return Keep("norm1", type(self).at_features, (resolve_layer(view, self.layer),), grad=True)


def weighted_by_patches(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_k mean_patches(G_k) F_k``."""
    assert gradient is not None
    weight = wide(gradient)[:, view.prefix :].mean(dim=1, keepdim=True)
    return (wide(value) * weight).sum(dim=-1)


def weighted_by_tokens(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_k mean_tokens(G_k) F_k``, prefix tokens included in the mean."""
    assert gradient is not None
    return (wide(value) * wide(gradient).mean(dim=1, keepdim=True)).sum(dim=-1)


@register("gradcam", family="CAM", papers=("selvaraju2017gradcam",))
@dataclass(frozen=True)
class GradCAM(TokenCAM):
    """Channels weighted by their mean gradient over the patches.

    ``sum_k mean_xy(G_k) F_k`` at the output of the block's first norm.
    """

    layer: int = -1
    at_features = weighted_by_patches
    at_input = weighted_by_tokens


@register("hirescam", family="CAM", papers=("draelos2020hirescam",))
@dataclass(frozen=True)
class HiResCAM(TokenCAM):
    """Features times gradient, place by place.

    ``sum_k G_k F_k`` at the output of the block's first norm; its layer term is that of ``ixg``.
    """

    layer: int = -1
    at_features = dot
    at_input = dot
