"""What several methods agree on: their mean rank, or start layers weighed by a second method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import SpecError
from vitreous.methods import ops
from vitreous.methods.base import Attribution, BaseWrapper, Method, compute_shared, refuse_not_finite
from vitreous.methods.combinators import LayerSum
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import Context, Pass, upcast

_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.abs().amax(dim=(2, 3), keepdim=True),
    "scaled": ops.mean_size,
}
"""What a map is divided by before it is averaged."""


@register_method(
    "consensus", family="combinator", builds_on=("bhatt2020evaluating",), cost_note="its bases, passes shared"
)
@dataclass(frozen=True)
class Consensus(BaseWrapper):
    r"""The mean rank of each patch over several methods.

    .. math:: M_j = \sum_m w_m \frac{\operatorname{rank}_m(j)}{n - 1}

    with the rank, from 0, of patch j in the map of method m among its n patches; equal values share their mean rank.

    Parameters
    ----------
    bases : tuple of Method
        Two methods or more.
    combine : {"rank", "mean", "scaled", "matched"}, default "rank"
        The mean of the ranks; of the maps themselves, each divided by its largest or by its mean absolute value; or,
        ``"matched"``, the patches in the order of their mean ranks with the values of the first map, sorted (histogram
        matching), so that the map keeps the first one's signs and contrast. Patches of equal mean rank share the mean
        of their values.
    weights : str, default ""
        Those of the methods, such as ``"2,1"``; without them all count the same.

    Notes
    -----
    Our own; it builds on the aggregation of explanations. Maps on other grids are brought to the token grid first:
    pixels are summed into patches, coarser maps enlarged. Extras: ``ranks``, one map per method, and ``disagreement``,
    the standard deviation of these ranks over the methods. Cost: that of the methods, which share their passes.

    References
    ----------
    Bhatt et al., "Evaluating and Aggregating Feature-based Model Explanations", IJCAI 2020.

    Examples
    --------
    >>> vt.explain(model, image, "consensus(ixg, generic)").extras["ranks"].shape
    torch.Size([2, 16, 16])
    """

    bases: tuple[Method, ...]
    combine: str = choice("rank", *_SIZES, "matched")
    weights: str = ""
    grid = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bases, tuple) or not all(isinstance(base, Method) for base in self.bases):
            raise SpecError("consensus takes a tuple of methods")
        if len(self.bases) < 2:
            raise SpecError(f"consensus needs at least two methods, got {len(self.bases)}")
        self._normalised_weights()

    def _normalised_weights(self) -> list[float]:
        """Return the weight of every method; they sum to 1."""
        try:
            weights = [float(word) for word in self.weights.split(",")] if self.weights else [1.0] * len(self.bases)
        except ValueError:
            weights = []
        if len(weights) != len(self.bases) or not all(0 < weight < math.inf for weight in weights):
            raise SpecError(f"weights={self.weights!r} must be {len(self.bases)} positive numbers, such as '2,1'")
        return [weight / sum(weights) for weight in weights]

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return tuple(run for base in self.bases for run in base.passes(model))

    def compute(self, context: Context) -> Attribution:
        context.prepare(self.passes(context.model))
        grid = context.model.grid(context.inputs)
        base_maps = [refuse_not_finite(compute_shared(context, base).map, base, self) for base in self.bases]
        maps = torch.stack([ops.resize_map(upcast(base_map), grid) for base_map in base_maps], dim=1)
        ranks = ops.mean_ranks(maps)
        terms = ops.divide(maps, _SIZES[self.combine](maps)) if self.combine in _SIZES else ranks
        total = (terms * maps.new_tensor(self._normalised_weights()).view(-1, 1, 1)).sum(dim=1)
        if self.combine == "matched":
            total = ops.match_values(total, maps[:, 0])
        return Attribution(total, {"ranks": ranks, "disagreement": ranks.std(dim=1, correction=0)})


@register_method(
    "witness", family="combinator", builds_on=("mehri2024skipplus",), cost_note="base + by", models="transformers"
)
@dataclass(frozen=True)
class AgreementWeighted(LayerSum):
    r"""A base method summed over start layers, each weighed by how much a second method bears it out.

    .. math:: M = \sum_{l=start}^{L-1} \max(0, r_l)^{power} \frac{A_l}{\operatorname{mean} |A_l|}

    with :math:`A_l` the map of the base from start layer l, as in ``plus``, and :math:`r_l` its Pearson correlation
    with the map of ``by``.

    Parameters
    ----------
    base : Method
        The method that is summed.
    by : Method
        The method that its maps are compared with.
    start : int, default 0
        The lowest start layer.
    power : float, default 1.0
        The exponent, at most 16.
    via : {"auto", "layers", "subnetwork"}, default "auto"
        As for ``plus``.
    upsample : bool, default False
        As for ``plus``.

    Notes
    -----
    Our own; it builds on PLUS. In some models the early start layers carry most of the mass and little but noise; two
    methods that reach their maps by different ways are unlikely to share noise. Where no layer agrees, all count the
    same. Extras: ``layers``, one map per start layer, and ``weights``, what each counted, at most 1. Cost: that of both
    methods.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "witness(decompx, generic)").extras["weights"].shape
    torch.Size([8])
    """

    base: Method
    by: Method
    start: int = 0
    power: float = number(1.0, "(0, 16]")
    via: str = choice("auto", "layers", "subnetwork")
    upsample: bool = False
    combine = "scaled"

    def num_forwards(self, model: VisionModel) -> float:
        return super().num_forwards(model) + self.by.num_forwards(model)

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return *super().passes(model), *self.by.passes(model)

    def compute(self, context: Context) -> Attribution:
        terms = refuse_not_finite(upcast(self.layer_maps(context)), self.base, self)
        other = ops.resize_map(upcast(compute_shared(context, self.by).map), terms.shape[-2:])
        weights = agreement(terms, refuse_not_finite(other, self.by, self), self.power)
        shares = ops.divide(weights, terms.abs().mean(dim=(2, 3)))
        return Attribution((terms * shares[:, :, None, None]).sum(dim=1), {"layers": terms, "weights": weights})


def agreement(terms: Tensor, other: Tensor, power: float) -> Tensor:
    """Return the weight ``[B, L]`` of every term ``[B, L, h, w]``, by its correlation with a map ``[B, h, w]``."""
    one, two = ((maps - maps.mean(dim=(-2, -1), keepdim=True)).flatten(-2) for maps in (terms, other.unsqueeze(1)))
    correlation = ops.divide((one * two).sum(dim=2), one.norm(dim=2) * two.norm(dim=2))
    weights = correlation.clamp(0, 1) ** power
    return torch.where((weights == 0).all(dim=1, keepdim=True), torch.ones_like(weights), weights)
