"""Decomposition: how much of the target each token carries when the network's gates are held still."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError
from vitreous.methods.base import Answer, resolve_layer
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.methods.token_gradient import TokenTerm
from vitreous.models import View
from vitreous.passes import Keep, Pass, Session, explicit_shares, whole
from vitreous.passes.rules import FROZEN
from vitreous.words import check_choice

__all__ = ["DecompX"]


@register(
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
    def layered(self) -> bool:  # type: ignore[override]
        """Spread biases have no layer terms: they depend on where the shares start."""
        return self.bias != "absdot"

    def forwards(self, view: View) -> float:
        tokens = view.prefix + view.grid()[0] * view.grid()[1]
        return 1.0 if self.bias != "absdot" else 2.0 + tokens

    def asks(self, view: View) -> tuple[Pass, ...]:
        if self.bias != "absdot":
            return super().asks(view)
        if view.attends != "everywhere":
            raise ModelError(f"{view.name} attends inside windows: decompx(bias=absdot) does not apply; use bias=token")
        return (Pass((Keep("input", whole, (resolve_layer(view, self.layer),)),)),)

    def compute(self, session: Session) -> Answer:
        if self.bias == "none":
            return super().compute(session)
        trace = session.trace(self.only_pass(session.view))
        logits = at_least_float32(trace.logits)
        slope = session.target.slope(logits)  # the target, linear in the logits
        (kept,) = trace[self.only_pass(session.view).keeps[0]]
        if self.bias == "token":
            bias = (slope * logits).sum(dim=1) - kept.sum(dim=1)
            return Answer(self.read(trace), {"bias": bias})
        layer = resolve_layer(session.view, self.layer)
        shares: list[Tensor] = []
        for tokens, each in zip(kept, slope, strict=True):
            shares.append(at_least_float32(explicit_shares(session.view, tokens, layer, session.memory)) @ each)
            if session.tick is not None:
                session.tick(1)
        return Answer(trace.tokens_to_grid(torch.stack(shares), layer), {})
