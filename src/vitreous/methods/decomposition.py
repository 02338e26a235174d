"""Decomposition: how much of the target each token carries when the network's gates are held still."""

from __future__ import annotations

from dataclasses import dataclass

from vitreous.methods.registry import register
from vitreous.methods.token_gradient import TokenTerm

__all__ = ["DecompX"]


@register("decompx", family="decomposition", papers=("modarressi2023decompx", "mehri2024skipplus"))
@dataclass(frozen=True)
class DecompX(TokenTerm):
    """The share of each token in the target, propagated through the network, without biases.

    DecompX carries a vector ``T[i, j]`` (the share of source j in token i) through every part: attention weights,
    LayerNorm deviation and activation gate are constants, so each part is affine in its input. Hence the share of
    source j is input times gradient in that frozen network, ``sum_d x_l[j, d] * G_l[j, d]``: one backward gives all
    start layers, where the published code propagates N x (N + 1) x D numbers once per start layer. All tokens together
    plus the share of the biases are the target. The published quotient gate is 0 where a pre-activation is exactly 0;
    here it is Phi(0) = 1/2.
    """

    layer: int = 0
    rules = "frozen"
