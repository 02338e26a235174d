"""Methods made of methods: sums over start layers, means over noisy copies, other scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.errors import MapError, SpecError
from vitreous.methods import ops
from vitreous.methods.base import (
    Attribution,
    BaseWrapper,
    LayerwiseMethod,
    Method,
    check_maps,
    compute_checked,
)
from vitreous.methods.registry import register_method
from vitreous.methods.token_gradient import InputXGradient
from vitreous.models import VisionModel
from vitreous.registry import check_at_least, choice, number
from vitreous.tracing import Context, Pass, Record, activation_value, resolve_layer, upcast

# -- sums over start layers --------------------------------------------------------------------------------

_COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda terms: terms.sum(dim=1),
    "rank": lambda terms: ops.mean_ranks(upcast(terms)).mean(dim=1),
    "scaled": lambda terms: ops.divide(terms, ops.mean_size(terms)).sum(dim=1),
}
"""How maps of the start layers ``[B, L, h, w]`` become one."""


class LayerSum(BaseWrapper):
    """``sum over l >= first of A(f_l)(x_l)``, raw and signed.

    A layerwise base gives all of it in its one pass; a base that looks at one layer is moved from layer to layer.
    ``via="subnetwork"`` runs the base on each sub-network f_l with its input x_l, the definition to the letter and the
    only way for any other base.
    """

    start: int | None
    via: str
    upsample: bool
    combine: str
    grid = "token"

    def first(self, model: VisionModel) -> int:
        """Return the lowest start layer."""
        return resolve_layer(model, self.start or 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.via == "layers" and not (self.base.is_layerwise or self.base.has_layer_choice):
            raise SpecError(f"{self.base.info.name} has no maps by layer; use via=subnetwork")

    @property
    def free(self) -> bool:
        """Whether one pass of the base gives the sum."""
        return self.base.is_layerwise and self.via != "subnetwork"

    def num_forwards(self, model: VisionModel) -> float:
        forwards = self.base.num_forwards(model)
        return forwards if self.free else 1 + forwards * len(self._layers(model))

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        if self.free and isinstance(self.base, LayerwiseMethod):
            return (self.base.layer_pass(model, self._layers(model)),)
        return ()

    def compute(self, context: Context) -> Attribution:
        layer_maps = self.layer_maps(context)
        return Attribution(_COMBINE[self.combine](layer_maps), {"layers": layer_maps})

    def layer_maps(self, context: Context) -> Tensor:
        """Return the map from every start layer, ``[B, L, h, w]``."""
        maps = self._layer_maps(context, self._layers(context.model))
        finest = max((tuple(layer_map.shape[1:]) for layer_map in maps), key=math.prod)
        stacked = torch.stack([ops.resize_map(layer_map, finest) for layer_map in maps], dim=1)
        if not self.free:
            self._refuse_multiple(stacked)
        return stacked

    def _layer_maps(self, context: Context, layers: Sequence[int]) -> list[Tensor]:
        if self.free and isinstance(self.base, LayerwiseMethod):
            cache = context.run_pass(self.base.layer_pass(context.model, layers))
            maps = [self.base.layer_map(cache, layer) for layer in layers]
            for layer_map in maps:
                check_maps(self.base.spec, layer_map, cache.batch)
            return maps
        if self.base.has_layer_choice and self.via != "subnetwork":
            moved = [method for layer in layers if (method := self.base.at_layer(context.model, layer)) is not None]
            context.prepare([pass_ for method in moved for pass_ in method.passes(context.model)])
            return [compute_checked(context, method).map for method in moved]
        record = Record("resid_pre", activation_value, tuple(layers), grad=False)
        inputs = zip(layers, context.run_pass(Pass((record,)))[record], strict=True)
        subnetworks = [
            context.with_inputs(tokens, context.model.suffix(layer, context.inputs)) for layer, tokens in inputs
        ]
        return [compute_checked(subnetwork, self.base).map for subnetwork in subnetworks]

    def _refuse_multiple(self, terms: Tensor) -> None:
        """Refuse a sum of terms ``[B, L, h, w]`` that are the same but for a factor: it is the base, made slower."""
        if terms.shape[1] < 2 or self.base.can_be_constant:
            return
        flat = terms.double().flatten(2)
        unit = flat / flat.norm(dim=2, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        if (unit - unit[:, :1]).abs().amax() <= 1e-6 and bool((flat != 0).any()):
            name = self.base.spec
            raise MapError(
                f"{self.info.name}({name}) is {name} times a number: from every start layer it gives the same map"
            )

    def _layers(self, model: VisionModel) -> tuple[int, ...]:
        """The start layers; in a hierarchical model those of one grid: its longest stage, or else that of the first."""
        layers = range(self.first(model), model.depth)
        if not model.stages or self.upsample:
            return tuple(layers)
        longest = max(model.stages, key=lambda stage: (len(stage), stage.start))
        own = next(stage for stage in model.stages if layers[0] in stage)
        return tuple(layer for layer in layers if layer in longest) or tuple(layer for layer in layers if layer in own)


@register_method("plus", family="combinator", papers=("mehri2024skipplus",), cost_note="base", models="transformers")
@dataclass(frozen=True)
class Plus(LayerSum):
    r"""A base method summed over all start layers.

    .. math:: M = \sum_{l=start}^{L-1} A(f_l)(x_l)

    with A the base, :math:`f_l` the network from block l on and :math:`x_l` its input. ``plus(ixg)`` is CAT,
    ``plus(generic)`` is Grad-SAM.

    Parameters
    ----------
    base : Method
        The method that is summed.
    start : int, default 0
        The lowest start layer.
    via : {"auto", "layers", "subnetwork"}, default "auto"
        Whether the base gives its map at every layer, or is run on each sub-network, the definition to the letter.
    upsample : bool, default False
        In a hierarchical model, sum over all stages instead of its longest one.
    combine : {"sum", "rank", "scaled"}, default "sum"
        The sum; the mean of the terms' ranks; or the sum of the terms, each divided by its mean absolute value, so that
        no start layer drowns the others.

    Notes
    -----
    Extras: ``layers``, one map per start layer. Cost: that of the base where it gives its map at every layer, and once
    per layer otherwise.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "plus(ixg)").extras["layers"].shape
    torch.Size([8, 16, 16])
    """

    base: Method
    start: int = 0
    via: str = choice("auto", "layers", "subnetwork")
    upsample: bool = False
    combine: str = choice("sum", *_COMBINE)


@register_method(
    "skipplus", family="combinator", papers=("mehri2024skipplus",), cost_note="base", models="transformers"
)
@dataclass(frozen=True)
class SkipPlus(LayerSum):
    r"""A base method summed over the start layers of the upper half.

    .. math:: M = \sum_{l=\lceil \text{skip}\, L \rceil}^{L-1} A(f_l)(x_l)

    as ``plus``. The published code starts at ``L // 2``, which differs for odd depths only.

    Parameters
    ----------
    base : Method
        The method that is summed.
    start : int or None, default None
        The lowest start layer; without it, ``skip`` says.
    via : {"auto", "layers", "subnetwork"}, default "auto"
        As for ``plus``.
    upsample : bool, default False
        As for ``plus``.
    combine : {"sum", "rank", "scaled"}, default "sum"
        As for ``plus``.
    skip : float, default 0.5
        The share of the depth that is skipped.

    Notes
    -----
    Extras: ``layers``, one map per start layer. Cost: as for ``plus``.

    References
    ----------
    Mehri et al., "SkipPLUS: Skip the First Few Layers to Better Explain Vision Transformers", CVPR Workshops 2024.

    Examples
    --------
    >>> vt.explain(model, image, "skipplus(decompx)").extras["layers"].shape
    torch.Size([4, 16, 16])
    """

    base: Method
    start: int | None = None
    via: str = choice("auto", "layers", "subnetwork")
    upsample: bool = False
    combine: str = choice("sum", *_COMBINE)
    skip: float = number(0.5, "[0, 1)")

    def first(self, model: VisionModel) -> int:
        if self.start is not None:
            return super().first(model)
        return min(model.depth - 1, math.ceil(self.skip * model.depth - 1e-9)) if model.depth > 1 else 0


@register_method("cat", family="token gradient", papers=("qiang2022attcat",), models="transformers")
@dataclass(frozen=True)
class CAT(LayerSum):
    r"""Input times gradient of the tokens, summed over all blocks: class activation tokens.

    .. math:: M_j = \sum_l \sum_d x_{l,jd} \frac{\partial s}{\partial x_{l,jd}}

    at the block inputs. The same as ``plus(ixg)``.

    Notes
    -----
    Extras: ``layers``, one map per block. Cost: one forward and one backward.

    References
    ----------
    Qiang et al., "AttCAT: Explaining Transformers via Attentive Class Activation Tokens", NeurIPS 2022.

    Examples
    --------
    >>> e = vt.explain(model, image, "cat")
    >>> bool((e.map == vt.explain(model, image, "plus(ixg)").map).all())
    True
    """

    base = InputXGradient()
    start = 0
    via = "layers"
    upsample = False
    combine = "sum"


# -- other ways to make a method of one --------------------------------------------------------------------


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
    r"""A base method averaged over noisy copies of the input.

    .. math:: M = \frac{1}{n} \sum_{i=1}^{n} A\bigl(x + \sigma (\max x - \min x)\, \epsilon_i\bigr)

    with :math:`\epsilon_i` standard normal, and the range that of each image.

    Parameters
    ----------
    base : Method
        The method A that is averaged.
    samples : int, default 10
        The number n of copies.
    sigma : float, default 0.15
        The deviation of the noise.
    absolute : bool, default False
        Take the range as 1: sigma is then in normalised units.
    kind : {"mean", "squares", "variance"}, default "mean"
        The mean of the maps, of the squared maps (SmoothGrad squared), or their variance over the copies (VarGrad);
        Captum takes the last two channel by channel, here they are of the base's map.

    Notes
    -----
    The noise depends on the seed and the image, not on its neighbours. Presets: ``@captum``, its defaults; ``@tis``,
    those of that comparison, with ``saliency`` for a base. Extras: ``deviation``, over the copies, and ``halves``, the
    means of every other copy (not for the variance). Cost: ``samples`` times the base.

    References
    ----------
    Smilkov et al., "SmoothGrad: removing noise by adding noise", ICML Workshop 2017.

    Examples
    --------
    >>> sorted(vt.explain(model, image, "smooth(ixg, samples=2)").extras)
    ['deviation', 'halves']
    """

    base: Method
    samples: int = 10
    sigma: float = number(0.15, "[0, inf)")
    absolute: bool = False
    kind: str = choice("mean", "squares", "variance")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("samples", self.samples, 2 if self.kind == "variance" else 1)

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return self.samples * forwards, self.samples * backwards

    def num_forwards(self, model: VisionModel) -> float:
        return self.samples * self.base.num_forwards(model)

    def compute(self, context: Context) -> Attribution:
        inputs, draws = context.inputs, context.prng_key("smooth")
        flat = inputs.flatten(1)
        scale = (torch.ones_like(flat[:, 0]) if self.absolute else flat.amax(1) - flat.amin(1)) * self.sigma

        def noisy(start: int, stop: int) -> Tensor:
            noise = torch.stack([draws.at(number).normal(*inputs.shape[1:]) for number in range(start, stop)], 1)
            return inputs.unsqueeze(1) + noise.to(inputs) * scale.view(-1, 1, *[1] * (inputs.ndim - 1))

        mean = squares = torch.zeros(())
        halves = ops.HalfMeans()
        for copies, start, stop in context.batched_copies(noisy, self.samples):
            maps = upcast(compute_checked(copies, self.base).map)
            maps = maps.square() if self.kind == "squares" else maps
            part = maps.reshape(len(inputs), stop - start, *maps.shape[1:])
            halves.add(part)
            # mean and squared deviations of all copies so far, after Chan, Golub and LeVeque
            difference = part.mean(dim=1) - mean
            inside = (part - part.mean(dim=1, keepdim=True)).square().sum(dim=1)
            squares = squares + inside + difference.square() * (start * (stop - start) / stop)
            mean = mean + difference * ((stop - start) / stop)
        extras = {"deviation": (squares / self.samples).sqrt()}
        if self.kind == "variance":
            return Attribution(squares / self.samples, extras)
        if self.samples > 1:
            extras["halves"] = halves.halves
        return Attribution(mean, extras)


@register_method("logprob", family="combinator", cost_note="base")
@dataclass(frozen=True)
class LogProb(BaseWrapper):
    r"""A base method for the log-probability of the class, whatever output was asked for.

    .. math:: \log p_c = y_c - \log \sum_k \exp y_k

    What speaks for the class rather than for others, each weighed by its probability. What all classes gain alike, a
    logit keeps and this does not.

    Parameters
    ----------
    base : Method
        The method that explains the log-probability.

    Notes
    -----
    Cost: that of the base.

    Examples
    --------
    >>> vt.explain(model, image, "logprob(ixg)").output
    'logprob'
    """

    base: Method

    def outputs(self, asked: str) -> tuple[str, ...]:
        return self.base.outputs("logprob")

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return tuple(replace(run, output=run.output or "logprob") for run in self.base.passes(model))

    def compute(self, context: Context) -> Attribution:
        context = context.with_output("logprob")
        context.prepare(self.base.passes(context.model))
        return compute_checked(context, self.base)
