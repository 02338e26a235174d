"""Combinators: methods made of methods.

Consensus: what several methods agree on.

Witness: start layers count as much as a second method bears them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, SpecError
from vitreous.methods.base import (
    Attribution,
    BaseWrapper,
    LayerwiseMethod,
    Method,
    check_maps,
    checked_attribution,
    computed,
    prepare,
    resized,
    resolve_layer,
)
from vitreous.methods.registry import register_method
from vitreous.methods.token_gradient import InputXGradient
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Context, Pass, Record, activation_value, upcast

__all__ = [
    "CAT",
    "Consensus",
    "LayerSum",
    "LogProb",
    "Plus",
    "SkipPlus",
    "Smooth",
    "AgreementWeighted",
    "borne_out",
    "match_values",
    "mean_ranks",
]


def _scaled(terms: Tensor) -> Tensor:
    sizes = terms.abs().mean(dim=(2, 3), keepdim=True)
    return (terms / torch.where(sizes > 0, sizes, 1)).sum(dim=1)


_COMBINED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda terms: terms.sum(dim=1),
    "rank": lambda terms: mean_ranks(upcast(terms)).mean(dim=1),
    "scaled": _scaled,
}
"""How maps of the start layers ``[B, L, h, w]`` become one."""


class LayerSum(BaseWrapper):
    """``sum over l >= first of A(f_l)(x_l)``, raw and signed.

    A layerwise base gives all of it in its one pass; a base that looks at one layer is moved from layer
    to layer. ``via="subnetwork"`` runs the base on each sub-network f_l with its input x_l, the definition to the
    letter and the only way for any other base.
    """

    via: str
    upsample: bool
    combine: str

    def first(self, model: VisionModel) -> int:
        """Return the lowest start layer."""
        return 0

    def __post_init__(self) -> None:
        check_choice("via", self.via, ("auto", "layers", "subnetwork"))
        check_choice("combine", self.combine, tuple(_COMBINED))
        if self.via == "layers" and not (self.base.is_layerwise or self.base.has_layer_choice):
            raise SpecError(f"{self.base.info.name} has no maps by layer; use via=subnetwork")

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "token"

    @property
    def free(self) -> bool:
        """Whether one pass of the base gives the sum."""
        return self.base.is_layerwise and self.via != "subnetwork"

    def num_forwards(self, model: VisionModel) -> float:
        each = self.base.num_forwards(model)
        return each if self.free else 1 + each * len(self._layers(model))

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        if self.free and isinstance(self.base, LayerwiseMethod):
            return (self.base.layer_pass(model, self._layers(model)),)
        return ()

    def compute(self, context: Context) -> Attribution:
        stacked = self.stacked(context)
        return Attribution(_COMBINED[self.combine](stacked), {"layers": stacked})

    def stacked(self, context: Context) -> Tensor:
        """Return the map from every start layer, ``[B, L, h, w]``."""
        terms = self._terms(context, self._layers(context.model))
        finest = max((tuple(term.shape[1:]) for term in terms), key=math.prod)
        stacked = torch.stack([resized(term, finest) for term in terms], dim=1)
        if not self.free:
            self._refuse_multiple(stacked)
        return stacked

    def _terms(self, context: Context, layers: Sequence[int]) -> list[Tensor]:
        if self.free and isinstance(self.base, LayerwiseMethod):
            cache = context.run_pass(self.base.layer_pass(context.model, layers))
            terms = [self.base.layer_map(cache, layer) for layer in layers]
            for term in terms:
                check_maps(self.base.spec, term, cache.batch)
            return terms
        if self.base.has_layer_choice and self.via != "subnetwork":
            moved = [self.base.at_layer(context.model, layer) for layer in layers]
            there = [each for each in moved if each is not None]
            prepare(context, there)
            return [checked_attribution(context, each).map for each in there]
        inputs = Record("resid_pre", activation_value, tuple(layers), grad=False)
        cache = context.run_pass(Pass((inputs,)))
        forks = [
            context.with_inputs(tokens, context.model.suffix(layer, context.inputs))
            for layer, tokens in zip(layers, cache[inputs], strict=True)
        ]
        return [checked_attribution(fork, self.base).map for fork in forks]

    def _refuse_multiple(self, terms: Tensor) -> None:
        """Refuse a sum of terms ``[B, L, h, w]`` that are the same but for a factor: it is the base, made slower."""
        if terms.shape[1] < 2 or self.base.can_be_constant:
            return
        flat = terms.double().flatten(2)
        unit = flat / flat.norm(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        alike = (unit - unit[:, :1]).abs().amax() <= 1e-6
        if alike and bool((flat != 0).any()):
            name = self.base.spec
            raise MapError(
                f"{self.info.name}({name}) is {name} times a number: from every start layer it gives the same map"
            )

    def _layers(self, model: VisionModel) -> tuple[int, ...]:
        """The start layers; in a hierarchical model those of one grid: its longest stage, or else that of the first."""
        layers = tuple(range(self.first(model), model.depth))
        if not model.stages or self.upsample:
            return layers
        longest = max(model.stages, key=lambda stage: (len(stage), stage.start))
        own = next(stage for stage in model.stages if layers[0] in stage)
        return tuple(layer for layer in layers if layer in longest) or tuple(layer for layer in layers if layer in own)


@register_method("plus", family="combinator", papers=("mehri2024skipplus",), cost_note="base", models="transformers")
@dataclass(frozen=True)
class Plus(LayerSum):
    """A base method summed over all start layers.

    ``sum_{l=start}^{L-1} A(f_l)(x_l)`` with f_l the network from block l on and x_l its input. ``plus(ixg)`` is CAT,
    ``plus(generic)`` is Grad-SAM. A hierarchical model is summed inside its longest stage, or over all of them with
    ``upsample``. ``combine="rank"`` takes the mean of the terms' ranks, ``"scaled"`` divides each term by its mean
    absolute value first: no start layer drowns the others. Extras: ``layers``, one map per start layer.
    """

    base: Method
    start: int = 0
    via: str = "auto"
    upsample: bool = False
    combine: str = "sum"

    def first(self, model: VisionModel) -> int:
        return resolve_layer(model, self.start)


@register_method(
    "skipplus", family="combinator", papers=("mehri2024skipplus",), cost_note="base", models="transformers"
)
@dataclass(frozen=True)
class SkipPlus(LayerSum):
    """A base method summed over the start layers of the upper half.

    ``plus`` from ``start = ceil(skip L)``, half the depth; the published code has ``L // 2``, which differs for odd
    depths only. ``combine`` as for ``plus``. Extras: ``layers``, one map per start layer.
    """

    base: Method
    start: int | None = None
    via: str = "auto"
    upsample: bool = False
    combine: str = "sum"
    skip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.skip < 1:
            raise SpecError(f"skip={self.skip} must be a share of the depth, from 0 to below 1")

    def first(self, model: VisionModel) -> int:
        if self.start is not None:
            return resolve_layer(model, self.start)
        return min(model.depth - 1, math.ceil(self.skip * model.depth - 1e-9)) if model.depth > 1 else 0


@register_method("cat", family="token gradient", papers=("qiang2022attcat",), models="transformers")
@dataclass(frozen=True)
class CAT(LayerSum):
    """Input times gradient of the tokens, summed over all blocks: class activation tokens.

    ``sum_l sum_d x_l[j, d] d s / d x_l[j, d]`` at the block inputs. The same as ``plus(ixg)``.
    """

    base = InputXGradient()
    via = "layers"
    upsample = False
    combine = "sum"


@register_method(
    "smooth",
    family="combinator",
    papers=("smilkov2017smoothgrad",),
    cost_note="samples x base",
    presets={
        "captum": {"samples": 5, "sigma": 1.0, "absolute": True},
        "tis": {"samples": 50, "sigma": 1.0, "absolute": True},
    },
)
@dataclass(frozen=True)
class Smooth(BaseWrapper):
    """A base method averaged over noisy copies of the input.

    ``mean_i A(x + sigma (max x - min x) n_i)`` with ``n_i ~ N(0, 1)``; the range is that of each image, and 1 with
    ``absolute``: sigma is then in normalised units. ``kind="squares"`` is the mean of the squared maps (SmoothGrad
    squared), ``"variance"`` their variance over the copies (VarGrad); Captum takes both channel by channel, here it is
    of the base's map. The noise depends on the seed and the image, not on its neighbours. Presets: ``captum``, its
    defaults; ``tis``, those of that comparison, with ``saliency`` for a base. Extras: ``deviation``, over the copies,
    and ``halves``, the means of every other copy (not for the variance).
    """

    base: Method
    samples: int = 10
    sigma: float = 0.15
    absolute: bool = False
    kind: str = "mean"

    def __post_init__(self) -> None:
        if self.samples < 1 or self.sigma < 0:
            raise SpecError(f"samples={self.samples}, sigma={self.sigma} must be at least 1 and at least 0")
        check_choice("kind", self.kind, ("mean", "squares", "variance"))
        if self.kind == "variance" and self.samples < 2:
            raise SpecError(f"samples={self.samples} must be at least 2 for a variance")

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return self.samples * forwards, self.samples * backwards

    def num_forwards(self, model: VisionModel) -> float:
        return self.samples * self.base.num_forwards(model)

    def compute(self, context: Context) -> Attribution:
        inputs = context.inputs
        flat = inputs.flatten(1)
        span = (torch.ones_like(flat[:, 0]) if self.absolute else flat.amax(1) - flat.amin(1)) * self.sigma
        draws = context.prng_key("smooth")
        at_once = max(1, context.batch // len(inputs))
        mean = spread = torch.zeros(())
        halves = [torch.zeros(()), torch.zeros(())]
        for first in range(0, self.samples, at_once):
            copies = min(at_once, self.samples - first)
            noise = torch.stack([draws.at(copy).normal(*inputs.shape[1:]) for copy in range(first, first + copies)], 1)
            scaled = noise.to(inputs) * span.view(-1, 1, *[1] * (inputs.ndim - 1))
            noisy = (inputs.unsqueeze(1) + scaled).flatten(0, 1)
            maps = upcast(checked_attribution(context.with_inputs(noisy, repeat=copies), self.base).map)
            maps = maps.square() if self.kind == "squares" else maps
            part = maps.reshape(len(inputs), copies, *maps.shape[1:])
            halves = [half + part[:, (first + i) % 2 :: 2].sum(dim=1) for i, half in enumerate(halves)]
            # mean and squared deviations of all copies so far, after Chan, Golub and LeVeque
            apart, total = part.mean(dim=1) - mean, first + copies
            inside = (part - part.mean(dim=1, keepdim=True)).square().sum(dim=1)
            spread = spread + inside + apart.square() * (first * copies / total)
            mean = mean + apart * (copies / total)
        extras = {"deviation": (spread / self.samples).sqrt()}
        if self.kind == "variance":
            return Attribution(spread / self.samples, extras)
        if self.samples > 1:
            extras["halves"] = torch.stack([halves[0] / -(-self.samples // 2), halves[1] / (self.samples // 2)], dim=1)
        return Attribution(mean, extras)


@register_method("logprob", family="combinator", cost_note="base")
@dataclass(frozen=True)
class LogProb(BaseWrapper):
    """A base method for the log-probability of the class, whatever value was asked for.

    ``log p_c = y_c - log sum_k exp y_k``: what speaks for the class rather than for its rivals, each weighed by its
    probability. What all classes gain alike, a logit keeps and this does not.
    """

    base: Method

    def outputs(self, asked: str) -> tuple[str, ...]:
        return self.base.outputs("logprob")

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return tuple(replace(ask, output=ask.output or "logprob") for ask in self.base.passes(model))

    def compute(self, context: Context) -> Attribution:
        own = context.with_output("logprob")
        prepare(own, [self.base])
        return checked_attribution(own, self.base)


_SIZES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.amax(dim=(2, 3), keepdim=True),
    "scaled": lambda maps: maps.mean(dim=(2, 3), keepdim=True),
}
"""What a map is divided by before it is averaged, of its absolute values."""


@register_method(
    "consensus", family="combinator", builds_on=("bhatt2020evaluating",), cost_note="its bases, passes shared"
)
@dataclass(frozen=True)
class Consensus(Method):
    """The mean rank of each patch over several methods.

    ``map = mean_m rank_m / (n - 1)``, the rank of a patch in the map of method m among its n patches, from 0; equal
    values share their mean rank. ``combine="mean"``: the mean of the maps themselves, each divided by its largest
    absolute value; ``combine="scaled"``: by its mean absolute value. ``combine="matched"``: the patches are in the
    order of their mean ranks and have the values of the first map, sorted (histogram matching), so that the map keeps
    the first one's signs and contrast; patches of equal mean rank share the mean of their values.
    ``weights`` are those of the methods, such as ``"2,1"``;
    without them all count the same. Maps on other grids are brought to the token grid first: pixels are summed into
    patches, coarser maps enlarged. The methods share their passes. Extras: ``ranks``, one map per method, and
    ``disagreement``, the standard deviation of these ranks over the methods. Our own; it builds on the aggregation of
    explanations (Bhatt et al., IJCAI 2020).
    """

    bases: tuple[Method, ...]
    combine: str = "rank"
    weights: str = ""

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, ("rank", *_SIZES, "matched"))
        if not isinstance(self.bases, tuple) or not all(isinstance(base, Method) for base in self.bases):
            raise SpecError("consensus takes a tuple of methods")
        if len(self.bases) < 2:
            raise SpecError(f"consensus needs at least two methods, got {len(self.bases)}")
        self._shares()

    def _shares(self) -> list[float]:
        """Return the weight of every method; they sum to 1."""
        try:
            given = [float(word) for word in self.weights.split(",")] if self.weights else [1.0] * len(self.bases)
        except ValueError:
            given = []
        if len(given) != len(self.bases) or not all(0 < weight < math.inf for weight in given):
            raise SpecError(f"weights={self.weights!r} must be {len(self.bases)} positive numbers, such as '2,1'")
        return [weight / sum(given) for weight in given]

    @property
    def class_specific(self) -> bool:
        return any(base.class_specific for base in self.bases)

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = zip(*(base.cost for base in self.bases), strict=True)
        return sum(forwards), sum(backwards)

    def num_forwards(self, model: VisionModel) -> float:
        return sum(base.num_forwards(model) for base in self.bases)

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return tuple(ask for base in self.bases for ask in base.passes(model))

    def compute(self, context: Context) -> Attribution:
        prepare(context, self.bases)
        grid = context.model.grid(context.inputs)
        maps = torch.stack([resized(self._finite(base, context), grid) for base in self.bases], dim=1)
        ranks = mean_ranks(maps)
        terms = ranks
        if self.combine in _SIZES:
            sizes = _SIZES[self.combine](maps.abs())
            terms = maps / torch.where(sizes > 0, sizes, 1)
        shares = maps.new_tensor(self._shares()).view(-1, 1, 1)
        shown = (terms * shares).sum(dim=1)
        if self.combine == "matched":
            shown = match_values(shown, maps[:, 0])
        return Attribution(shown, {"ranks": ranks, "disagreement": ranks.std(dim=1, correction=0)})

    def _finite(self, base: Method, context: Context) -> Tensor:
        """A rank would hide a value that is not finite."""
        maps = upcast(computed(context, base).map)
        if not torch.isfinite(maps).all():
            raise MapError(f"{base.spec} gave values that are not finite, inside {self.info.name}")
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


@register_method(
    "witness", family="combinator", builds_on=("mehri2024skipplus",), cost_note="base + by", models="transformers"
)
@dataclass(frozen=True)
class AgreementWeighted(LayerSum):
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
            raise SpecError(f"power={self.power} must be above 0, and at most 16")

    @property
    def class_specific(self) -> bool:
        return self.base.class_specific or self.by.class_specific

    @property
    def cost(self) -> tuple[float, float]:
        return self.base.cost[0] + self.by.cost[0], self.base.cost[1] + self.by.cost[1]

    def first(self, model: VisionModel) -> int:
        return resolve_layer(model, self.start)

    def num_forwards(self, model: VisionModel) -> float:
        return super().num_forwards(model) + self.by.num_forwards(model)

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return *super().passes(model), *self.by.passes(model)

    def compute(self, context: Context) -> Attribution:
        terms = upcast(self.stacked(context))
        seen = resized(upcast(computed(context, self.by).map), terms.shape[-2:])
        for maps, method in ((terms, self.base), (seen, self.by)):
            if not torch.isfinite(maps).all():  # a weight of 0 would hide it
                raise MapError(f"{method.spec} gave values that are not finite, inside {self.info.name}")
        weights = borne_out(terms, seen, self.power)
        sizes = terms.abs().mean(dim=(2, 3))
        shares = weights / torch.where(sizes > 0, sizes, 1)
        return Attribution((terms * shares[:, :, None, None]).sum(dim=1), {"layers": terms, "weights": weights})


def borne_out(terms: Tensor, seen: Tensor, power: float) -> Tensor:
    """Return the weight ``[B, L]`` of every term ``[B, L, h, w]``, by its correlation with a map ``[B, h, w]``."""
    each, other = ((maps - maps.mean(dim=(-2, -1), keepdim=True)).flatten(-2) for maps in (terms, seen.unsqueeze(1)))
    lengths = each.norm(dim=2) * other.norm(dim=2)
    correlation = (each * other).sum(dim=2) / torch.where(lengths > 0, lengths, 1)
    weights = correlation.clamp(0, 1) ** power
    nobody = (weights == 0).all(dim=1, keepdim=True)
    return torch.where(nobody, torch.ones_like(weights), weights)
