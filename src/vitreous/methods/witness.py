"""Witness: start layers count as much as a second method bears them out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import MapError, SpellingError
from vitreous.methods.base import Answer, Method, computed, resized, resolve_layer
from vitreous.methods.combine import LayerSum
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Pass, Session

__all__ = ["Witness", "borne_out"]


@register(
    "witness", family="combinator", builds_on=("mehri2024skipplus",), cost_note="base + by", models="transformers"
)
@dataclass(frozen=True)
class Witness(LayerSum):
    """A base method summed over start layers, each weighed by how much a second method bears it out.

    ``sum_{l=start}^{L-1} max(0, r_l)^power A_l / mean |A_l|`` with ``A_l`` the map of the base from start layer l, as
    in ``plus``, and ``r_l`` its Pearson correlation with the map of ``by``. In some models the early start layers carry
    most of the mass and little but noise; two methods that reach their maps by different ways are unlikely to share
    noise. Where no layer agrees with the witness, all count the same. Extras: ``layers``, one map per start layer, and
    ``weights``, what each counted, at most 1. Our own; it builds on PLUS (Mehri et al., CVPR Workshops 2024).
    """

    base: Method
    by: Method
    start: int = 0
    power: float = 1.0
    via: str = "auto"
    upsample: bool = False
    combine = "scaled"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.power <= 16:
            raise SpellingError(f"power={self.power} must be above 0, and at most 16")

    @property
    def class_specific(self) -> bool:
        return self.base.class_specific or self.by.class_specific

    @property
    def cost(self) -> tuple[float, float]:
        return self.base.cost[0] + self.by.cost[0], self.base.cost[1] + self.by.cost[1]

    def first(self, view: View) -> int:
        return resolve_layer(view, self.start)

    def forwards(self, view: View) -> float:
        return super().forwards(view) + self.by.forwards(view)

    def asks(self, view: View) -> tuple[Pass, ...]:
        return *super().asks(view), *self.by.asks(view)

    def compute(self, session: Session) -> Answer:
        terms = at_least_float32(self.stacked(session))
        seen = resized(at_least_float32(computed(session, self.by).map), terms.shape[-2:])
        for maps, method in ((terms, self.base), (seen, self.by)):
            if not torch.isfinite(maps).all():  # a weight of 0 would hide it
                raise MapError(f"{method.spelling} gave values that are not finite, inside {self.info.name}")
        weights = borne_out(terms, seen, self.power)
        sizes = terms.abs().mean(dim=(2, 3))
        shares = weights / torch.where(sizes > 0, sizes, 1)
        return Answer((terms * shares[:, :, None, None]).sum(dim=1), {"layers": terms, "weights": weights})


def borne_out(terms: Tensor, seen: Tensor, power: float) -> Tensor:
    """Return the weight ``[B, L]`` of every term ``[B, L, h, w]``, by its correlation with a map ``[B, h, w]``."""
    each, other = ((maps - maps.mean(dim=(-2, -1), keepdim=True)).flatten(-2) for maps in (terms, seen.unsqueeze(1)))
    lengths = each.norm(dim=2) * other.norm(dim=2)
    correlation = (each * other).sum(dim=2) / torch.where(lengths > 0, lengths, 1)
    weights = correlation.clamp(0, 1) ** power
    nobody = (weights == 0).all(dim=1, keepdim=True)
    return torch.where(nobody, torch.ones_like(weights), weights)
