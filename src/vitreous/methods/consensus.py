"""Consensus: what several methods agree on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, SpellingError
from vitreous.methods.base import Answer, Method, computed, prepare, resized
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Pass, Session
from vitreous.words import check_choice

__all__ = ["Consensus", "match_values", "mean_ranks"]

_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.amax(dim=(2, 3), keepdim=True),
    "scaled": lambda maps: maps.mean(dim=(2, 3), keepdim=True),
}
"""What a map is divided by before it is averaged, of its absolute values."""


@register("consensus", family="combinator", builds_on=("bhatt2020evaluating",), cost_note="its bases, passes shared")
@dataclass(frozen=True)
class Consensus(Method):
    """The mean rank of each patch over several methods.

    ``map = mean_m rank_m / (n - 1)``, the rank of a patch in the map of method m among its n patches, from 0; equal
    values share their mean rank. ``how="mean"``: the mean of the maps themselves, each divided by its largest absolute
    value; ``how="scaled"``: by its mean absolute value. ``how="matched"``: the patches are in the order of their mean
    ranks and have the values of the first map, sorted (histogram matching), so that the map keeps the first one's signs
    and contrast; patches of equal mean rank share the mean of their values.
    ``weights`` are those of the methods, such as ``"2,1"``;
    without them all count the same. Maps on other grids are brought to the token grid first: pixels are summed into
    patches, coarser maps enlarged. The methods share their passes. Extras: ``ranks``, one map per method, and
    ``disagreement``, the standard deviation of these ranks over the methods. Our own; it builds on the aggregation of
    explanations (Bhatt et al., IJCAI 2020).
    """

    bases: tuple[Method, ...]
    how: str = "rank"
    weights: str = ""

    def __post_init__(self) -> None:
        check_choice("how", self.how, ("rank", *_SIZES, "matched"))
        if not isinstance(self.bases, tuple) or not all(isinstance(base, Method) for base in self.bases):
            raise SpellingError("consensus takes a tuple of methods")
        if len(self.bases) < 2:
            raise SpellingError(f"consensus needs at least two methods, got {len(self.bases)}")
        self._shares()

    def _shares(self) -> list[float]:
        """Return the weight of every method; they sum to 1."""
        try:
            given = [float(word) for word in self.weights.split(",")] if self.weights else [1.0] * len(self.bases)
        except ValueError:
            given = []
        if len(given) != len(self.bases) or not all(0 < weight < math.inf for weight in given):
            raise SpellingError(f"weights={self.weights!r} must be {len(self.bases)} positive numbers, such as '2,1'")
        return [weight / sum(given) for weight in given]

    @property
    def class_specific(self) -> bool:
        return any(base.class_specific for base in self.bases)

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = zip(*(base.cost for base in self.bases), strict=True)
        return sum(forwards), sum(backwards)

    def forwards(self, view: View) -> float:
        return sum(base.forwards(view) for base in self.bases)

    def asks(self, view: View) -> tuple[Pass, ...]:
        return tuple(ask for base in self.bases for ask in base.asks(view))

    def compute(self, session: Session) -> Answer:
        prepare(session, self.bases)
        grid = session.view.grid(session.inputs)
        maps = torch.stack([resized(self._finite(base, session), grid) for base in self.bases], dim=1)
        ranks = mean_ranks(maps)
        terms = ranks
        if self.how in _SIZES:
            sizes = _SIZES[self.how](maps.abs())
            terms = maps / torch.where(sizes > 0, sizes, 1)
        shares = maps.new_tensor(self._shares()).view(-1, 1, 1)
        shown = (terms * shares).sum(dim=1)
        if self.how == "matched":
            shown = match_values(shown, maps[:, 0])
        return Answer(shown, {"ranks": ranks, "disagreement": ranks.std(dim=1, correction=0)})

    def _finite(self, base: Method, session: Session) -> Tensor:
        """A rank would hide a value that is not finite."""
        maps = at_least_float32(computed(session, base).map)
        if not torch.isfinite(maps).all():
            raise MapError(f"{base.spelling} gave values that are not finite, inside {self.info.name}")
        return maps


def match_values(order: Tensor, values: Tensor) -> Tensor:
    """Return maps with the values of one map ``[..., h, w]`` in the order of another; equals share their mean value."""
    below, not_above = _counts(order.flatten(-2))
    sorted_values = values.flatten(-2).double().sort(dim=-1).values
    sums = F.pad(sorted_values.cumsum(dim=-1), (1, 0))
    means = (sums.gather(-1, not_above) - sums.gather(-1, below)) / (not_above - below)
    alone = sorted_values.gather(-1, below)  # as it was: a difference of sums would round it
    return torch.where(not_above - below == 1, alone, means).to(values).view_as(values)


def mean_ranks(maps: Tensor) -> Tensor:
    """Return the ranks of the values of each map ``[..., h, w]``, from 0 to 1; equal values share their mean rank."""
    below, not_above = _counts(maps.flatten(-2))
    ranks = (below + not_above - 1).to(maps) / 2
    return (ranks / max(1, ranks.shape[-1] - 1)).view_as(maps)


def _counts(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many values of each row ``[..., n]`` are below each of them, and how many are not above it."""
    values = values.contiguous()
    ordered = values.sort(dim=-1).values
    return torch.searchsorted(ordered, values), torch.searchsorted(ordered, values, right=True)
