"""Methods on the information bottleneck: IBA at one layer, IBA* at every layer, CoIBA through several at once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import MapError, ModelError, SpecError, TargetError, VitreousError, VitreousWarning
from vitreous.methods.base import Attribution, Method, resolve_layer
from vitreous.methods.bottleneck import (
    Bottlenecks,
    Objective,
    Optimised,
    Prior,
    grid_after,
    last_read,
    layers_of,
    refuse_unread,
    stage_of,
)
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Activation, ActivationCache, Context, Pass, Record, Target, activation_value, upcast
from vitreous.tracing.statistics import ActivationStats, noise, statistics_of
from vitreous.tracing.statistics_collect import SCENES, VERSION, world_moments

__all__ = ["IBA", "CoIBA", "IBAStar"]

_MOST_SIGMA = 100
_NOISE = 200  # images, where statistics are to come from noise
_WORDS = {"world": f"world:{SCENES}", "own": "own tokens", "noise": f"noise:{_NOISE}"}


class Bottleneck(Method):
    """What the bottleneck methods share: the clean pass, the prior of the noise, the target.

    ``stats`` is where mean and deviation of the noise come from: ``world`` (64 rendered scenes of the bundled world,
    run once for a model and input size, then kept), a file that ``vitreous stats`` made of photographs, a
    ``Statistics``, ``noise`` (200 images of uniform noise, run anew for every batch) or ``own`` (the tokens of the
    image itself, channel by channel: free, and not what the paper has).

    The places of a feature map are damped as the original for convolutional networks has it: ratios are smoothed by a
    Gaussian of ``sigma`` places, 1 if nothing is said, and what was different from zero in at most 1 % of the images is
    set to zero and has no information. Where attention mixes tokens, neighbours are nothing special: no smoothing.
    """

    beta: float
    steps: int
    samples: int
    lr: float
    stats: str | ActivationStats
    sigma: float | None

    def __post_init__(self) -> None:
        if self.sigma is not None and not 0 <= self.sigma <= _MOST_SIGMA:
            raise SpecError(f"sigma={self.sigma} must be between 0 and {_MOST_SIGMA} places")
        if self.steps < 2:
            raise SpecError(f"steps={self.steps} must be at least 2: the last one changes nothing")
        if self.samples < 1:
            raise SpecError(f"samples={self.samples} must be at least 1")
        if not 0 < self.lr < math.inf:
            raise SpecError(f"lr={self.lr} must be a positive number")
        if not 0 <= self.beta < math.inf:
            raise SpecError(f"beta={self.beta} must be a number from 0 on")
        if not isinstance(self.stats, ActivationStats) and not self.stats:
            raise SpecError("stats is empty; it takes world, own, noise or a file that `vitreous stats` made")

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        """Return the layers that get a bottleneck."""
        raise VitreousError(f"{self.info.name} must define layers")

    def site(self, model: VisionModel) -> str:
        """Return the place in a block whose statistics are needed."""
        raise VitreousError(f"{self.info.name} must define site")

    @property
    def updates(self) -> int:
        """How often the ratios change: the published code runs one step more and reads what was before it."""
        return self.steps - 1

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.info.cost
        share = self.updates * self.samples / 90
        return 1 + (forwards - 1) * share, backwards * share

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + self.updates * self.samples

    @property
    def notes(self) -> dict[str, Any]:
        if self.stats in _WORDS:
            return {"statistics": _WORDS[str(self.stats)]}
        return {"statistics": self._given().description}

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "stats": str(self.stats)}

    @property
    def dependencies(self) -> dict[str, str]:
        if self.stats == "world":
            return {"stats": f"scenes of version {VERSION}"}  # their numbers follow from the weights
        return {} if self.stats in _WORDS else {"stats": self._given().fingerprint}

    @property
    def fixed_output(self) -> str:
        return "logprob"

    def records(self, model: VisionModel) -> list[Record]:
        return [*self.clean(model), *([self._own(model)] if self.stats == "own" else [])]

    def clean(self, model: VisionModel) -> tuple[Record, ...]:
        """What the first bottleneck of every optimisation sees, and what enters its block."""
        raise VitreousError(f"{self.info.name} must define clean")

    def _own(self, model: VisionModel) -> Record:
        return Record(self.site(model), token_moments, self.layers(model), grad=False)

    def _given(self) -> ActivationStats:
        return self.stats if isinstance(self.stats, ActivationStats) else ActivationStats.load(self.stats)

    def width(self, model: VisionModel) -> float:
        """Return how far ratios are smoothed, in places."""
        return self.sigma if self.sigma is not None else 0.0 if model.has_residual_stream else 1.0

    def priors(self, context: Context, cache: ActivationCache, like: Tensor) -> list[Prior]:
        """Return mean and deviation of the noise at every layer; on feature maps, also what is ever active."""
        model, layers = context.model, self.layers(context.model)
        usual = world_moments(context, self.site(model), layers) if self.stats == "world" else None
        if isinstance(usual, str):
            text = f"{self.info.name}: {usual}; the noise follows the image's own tokens instead of scenes (stats=own)"
            warnings.warn(text, VitreousWarning, stacklevel=2)
            cache = context.run_pass(Pass((self._own(model),)))
        if self.stats == "own" or isinstance(usual, str):
            moments = [(own[:, 0], own[:, 1], (own != 0).any(dim=1)) for own in cache[self._own(model)]]
            return self._priors(model, moments, like)
        if usual is None:
            size = context.inputs.shape[-2:]
            given = self._noise(context) if self.stats == "noise" else self._given()
            usual = [given.of(model, size, self.site(model), layer) for layer in layers]
        moments = [(each.mean[None], each.std[None], each.active[None]) for each in usual]
        return self._priors(model, moments, like)

    def _priors(
        self, model: VisionModel, moments: Sequence[tuple[Tensor, Tensor, Tensor]], like: Tensor
    ) -> list[Prior]:
        like = upcast(like)
        if model.has_residual_stream:
            return [Prior.of(mean, std, like) for mean, std, _ in moments]
        widths = [model.embed_dim_at(layer + 1) for layer in self.layers(model)]
        return [
            Prior.of(mean, std, like, active, width) for (mean, std, active), width in zip(moments, widths, strict=True)
        ]

    def _noise(self, context: Context) -> ActivationStats:
        if context.inputs.ndim != 4:
            raise ModelError(f"{self.info.name}: statistics of noise need a model of images, not of tokens")
        total: ActivationStats | None = None
        for inputs in noise(context.model, _NOISE, context.inputs.shape[-2:], context.seed, min(context.batch, 32)):
            part = statistics_of(context.model, inputs, "noise")
            total = part if total is None else total.merge(part)
        assert total is not None
        return total

    def target(self, context: Context) -> Target:
        """Return the target whose score is the relevance: the log-probability, or what a callable says."""
        target = context.target
        if target.function is None and target.output == "prob":
            raise TargetError(f"{self.info.name} explains the log-probability; output='prob' has no meaning here")
        return replace(target, output="logprob")


@register_method("coiba", family="bottleneck", papers=("hong2025coiba",), cost=(61, 60), revision=2)
@dataclass(frozen=True)
class CoIBA(Bottleneck):
    """What passes bottlenecks at several layers that share one damping ratio per token.

    ``Z_l = λ R_l + (1 - λ) ε_l`` at the output of the first norm of blocks start .. stop - 1, ``λ = sigmoid(α)`` one
    number per token (prefix tokens too), ``ε_l ~ N(μ_l, σ_l²)``. Adam lowers ``-log p(class) + β I[R; Z]``, with the
    first layer's information as the bound of all (Eq. 8). The map is that information at the end, in bits. Only what
    enters attention is damped; the residual stream is not. Blocks: the upper two thirds; in a hierarchical model the
    last stage of at least 14 x 14 tokens. In a convolutional network the outputs of a stage's blocks are damped, with
    one ratio per place, smoothed over neighbours (``sigma`` places: 1 there, 0 elsewhere). ``compress=layers``
    compresses the mean of all layers' information instead (Eq. 4), ``damping=channel`` has a ratio for every channel,
    ``ratios=layer`` for every layer; ``watch`` writes every layer's information down. ``half`` runs the replicas in
    float16, on a GPU. Extras, step by step: ``information``, ``relevance``, ``accuracy``, ``layer_information``. Hong
    et al., CVPR 2025. Cost: ``(steps - 1) samples`` forwards and backwards of those blocks, one forward, and 64 for the
    first picture of a model (``stats=world``).
    """

    start: int | None = None
    stop: int | None = None
    beta: float = 1.0
    steps: int = 10
    samples: int = 10
    lr: float = 1.0
    stats: str | ActivationStats = "world"
    compress: str = "first"
    damping: str = "token"
    ratios: str = "shared"
    watch: bool = False
    half: bool = False
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("compress", self.compress, ("first", "layers"))
        check_choice("damping", self.damping, ("token", "channel"))
        check_choice("ratios", self.ratios, ("shared", "layer"))

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        third = 0 if model.stages or not model.has_residual_stream else round(model.depth / 3)
        return layers_of(model, self.start, self.stop, third)

    def clean(self, model: VisionModel) -> tuple[Record, ...]:
        first, point = self.layers(model)[:1], self.site(model)
        before = "resid_pre" if model.has_residual_stream else point
        return tuple(Record(name, activation_value, first, grad=False) for name in (before, point))

    def site(self, model: VisionModel) -> str:
        return model.branch_point

    def num_forwards(self, model: VisionModel) -> float:
        return super().num_forwards(model) + (self.samples if self.compress == "layers" else 0)

    def compute(self, context: Context) -> Attribution:
        if self.half and context.inputs.device.type != "cuda":
            raise ModelError(f"coiba: half=true runs in float16 on a GPU, and the model is on {context.inputs.device}")
        model, target = context.model, self.target(context)
        layers, point = self.layers(model), self.site(model)
        cache = self.record(context)
        tokens, clean = (cache[keep][0] for keep in self.clean(model))
        if not model.has_residual_stream:  # the output of a block is the input of the next, or of the head
            layers, point = tuple(layer + 1 for layer in layers), "resid_pre"
            if self.damping == "channel" and len({model.embed_dim_at(layer) for layer in layers}) > 1:
                raise ModelError(f"coiba: blocks of {model.name} differ in their channels; use damping=token")
        objective = Objective(
            self.beta,
            self.updates,
            self.samples,
            self.lr,
            by_channel=self.damping == "channel",
            by_layer=self.ratios == "layer",
            every_term=self.compress == "layers",
            watch=self.watch,
            half=self.half,
            sigma=self.width(model),
        )
        grid = cache.grid_at(layers[0])
        with torch.inference_mode(False):
            priors = self.priors(context, cache, clean)
            places = Bottlenecks(context, point, layers, tokens, clean, priors, target, objective, "coiba", grid)
            optimised = places.optimise()
        if self.half and not torch.isfinite(optimised.bits).all():
            raise MapError(f"coiba: the information in {model.name} in float16 is not finite; use half=false")
        return Attribution(cache.tokens_to_grid(optimised.bits, layers[0]), optimised.history)


class OneLayer(Bottleneck):
    """IBA: one bottleneck in the residual stream, at the output of a block."""

    damping: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("damping", self.damping, ("token", "channel"))

    def site(self, model: VisionModel) -> str:
        return "resid_post"

    def clean(self, model: VisionModel) -> tuple[Record, ...]:
        return (Record("resid_post", activation_value, self.layers(model), grad=False),)

    def _each(self, context: Context) -> list[tuple[Tensor, Optimised]]:
        """Return the map and all else that was found at each layer, one optimisation after the other."""
        model, target, layers = context.model, self.target(context), self.layers(context.model)
        for layer in layers:
            refuse_unread(self, model, layer)
        cache = self.record(context)
        outputs = cache[self.clean(model)[0]]
        by_channel = self.damping == "channel"
        how = Objective(self.beta, self.updates, self.samples, self.lr, by_channel, sigma=self.width(model))
        made = []
        with torch.inference_mode(False):
            priors = self.priors(context, cache, outputs[0])
            for layer, tokens, prior in zip(layers, outputs, priors, strict=True):
                after, grid = (layer + 1,), cache.grid_at(layer + 1)  # the input of the next block, or of the head
                places = Bottlenecks(context, "resid_pre", after, tokens, tokens, (prior,), target, how, "iba", grid)
                optimised = places.optimise()
                made.append((cache.tokens_to_grid(optimised.bits, layer + 1), optimised))
        return made


@register_method(
    "iba",
    family="bottleneck",
    papers=("schulz2020iba", "hong2025coiba"),
    cost=(54, 53),
    revision=3,
)
@dataclass(frozen=True)
class IBA(OneLayer):
    """What passes one bottleneck in the residual stream, with a damping ratio per token and channel.

    ``Z = λ R + (1 - λ) ε`` at the output of a block, ``λ = sigmoid(α)`` of the shape of R, ``ε ~ N(μ, σ²)``. Adam
    lowers ``-log p(class) + β I[R; Z]``, I the mean over tokens and channels. The map is I summed over channels, in
    bits. ``layer`` is half-way up: the sixth block of twelve, as the CoIBA paper says (its script has the fifth).
    ``damping=token`` has one ratio for all channels of a token. On feature maps of convolutional networks λ is smoothed
    over neighbours by a Gaussian of ``sigma`` = 1 places, and what is hardly ever active is left out, as in the
    original; elsewhere ``sigma`` is 0. Summed over layers (``plus``) it is ``iba_star``. Extras, step by step:
    ``information``, ``relevance``, ``accuracy``. Schulz et al., ICLR 2020. Cost: ``(steps - 1) samples`` forwards and
    backwards of the blocks above, and one forward.
    """

    layer: int | None = None
    beta: float = 10.0
    steps: int = 10
    samples: int = 10
    lr: float = 1.0
    stats: str | ActivationStats = "world"
    damping: str = "channel"
    sigma: float | None = None

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        if self.layer is not None:
            return (resolve_layer(model, self.layer),)
        stage = stage_of(model)
        return (min(stage.start + max(0, len(stage) // 2 - 1), max(0, last_read(model))),)

    def at_layer(self, model: VisionModel, layer: int) -> IBA | None:
        return replace(self, layer=layer) if layer <= last_read(model) else None

    def compute(self, context: Context) -> Attribution:
        ((bits, all_else),) = self._each(context)
        return Attribution(bits, all_else.history)


@register_method(
    "iba_star",
    family="bottleneck",
    papers=("hong2025coiba", "schulz2020iba"),
    cost=(496, 495),
    revision=2,
)
@dataclass(frozen=True)
class IBAStar(OneLayer):
    """IBA at every layer, the maps summed.

    ``sum_l iba(layer=l)`` over the outputs of blocks start .. stop - 1: all of them but those from which patches no
    longer reach the class, and in a hierarchical model those of one grid. The paper says only that the maps are
    combined linearly. Extras: ``layers``, one map each. Hong et al., CVPR 2025, where it is the motivation of CoIBA.
    Cost: that of IBA at each layer, with one clean forward for all.
    """

    start: int | None = None
    stop: int | None = None
    beta: float = 10.0
    steps: int = 10
    samples: int = 10
    lr: float = 1.0
    stats: str | ActivationStats = "world"
    damping: str = "channel"
    sigma: float | None = None

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        layers = layers_of(model, self.start, self.stop, 0)
        if self.stop is not None:
            return layers
        # what leaves the last block of a stage is on the next stage's grid
        grid = grid_after(model, layers[0])
        same = [layer for layer in layers if grid_after(model, layer) == grid]
        return tuple(layer for layer in same if layer <= last_read(model)) or layers[:1]

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + self.updates * self.samples * len(self.layers(model))

    def compute(self, context: Context) -> Attribution:
        maps = [bits for bits, _ in self._each(context)]
        if len({map_.shape for map_ in maps}) > 1:
            raise ModelError(f"iba_star: blocks {self.layers(context.model)} end on different grids; lower stop")
        layers = torch.stack(maps, dim=1)
        return Attribution(layers.sum(dim=1), {"layers": layers})


def token_moments(a: Activation) -> Tensor:
    """Mean and deviation over the tokens of each image, channel by channel: ``[B, 2, 1, D]``."""
    return torch.stack([a.value.mean(dim=1, keepdim=True), a.value.std(dim=1, keepdim=True)], dim=1)
