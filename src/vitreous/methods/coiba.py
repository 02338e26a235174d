"""Methods on the information bottleneck: IBA at one layer, IBA* at every layer, CoIBA through several at once."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import MapError, ModelError, SpellingError, TargetError, VitreousError, VitreousWarning
from vitreous.methods.base import Answer, Method, resolve_layer
from vitreous.methods.bottleneck import Bottlenecks, Objective, Optimised, Prior
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Session, Target, Trace, whole
from vitreous.passes.scenes import SCENES, VERSION, world_moments
from vitreous.passes.statistics import Statistics, noise, statistics_of
from vitreous.words import check_choice

__all__ = ["IBA", "CoIBA", "IBAStar"]

_NOISE = 200  # images, where statistics are to come from noise
_WORDS = {"world": f"world:{SCENES}", "own": "own tokens", "noise": f"noise:{_NOISE}"}
_LEAST_GRID = 14  # rows and columns of the stage of a hierarchical model that is looked at, if there is such a one


class Bottleneck(Method):
    """What the bottleneck methods share: the clean pass, the prior of the noise, the target.

    ``stats`` is where mean and deviation of the noise come from: ``world`` (64 rendered scenes of the bundled world,
    run once for a model and input size, then kept), a file that ``vitreous stats`` made of photographs, a
    ``Statistics``, ``noise`` (200 images of uniform noise, run anew for every batch) or ``own`` (the tokens of the
    image itself, channel by channel: free, and not what the paper has).
    """

    beta: float
    steps: int
    samples: int
    lr: float
    stats: str | Statistics

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise SpellingError(f"steps={self.steps} must be at least 2: the last one changes nothing")
        if self.samples < 1:
            raise SpellingError(f"samples={self.samples} must be at least 1")
        if not 0 < self.lr < math.inf:
            raise SpellingError(f"lr={self.lr} must be a positive number")
        if not 0 <= self.beta < math.inf:
            raise SpellingError(f"beta={self.beta} must be a number from 0 on")
        if not isinstance(self.stats, Statistics) and not self.stats:
            raise SpellingError("stats is empty; it takes world, own, noise or a file that `vitreous stats` made")

    def layers(self, view: View) -> tuple[int, ...]:
        """Return the layers that get a bottleneck."""
        raise VitreousError(f"{self.info.name} must define layers")

    def site(self, view: View) -> str:
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

    def forwards(self, view: View) -> float:
        return 1 + self.updates * self.samples

    @property
    def notes(self) -> dict[str, Any]:
        if self.stats in _WORDS:
            return {"statistics": _WORDS[str(self.stats)]}
        return {"statistics": self._given().told}

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "stats": str(self.stats)}

    @property
    def ingredients(self) -> dict[str, str]:
        if self.stats == "world":
            return {"stats": f"scenes of version {VERSION}"}  # their numbers follow from the weights
        return {} if self.stats in _WORDS else {"stats": self._given().fingerprint}

    @property
    def own_value(self) -> str:
        return "logprob"

    def asks(self, view: View) -> tuple[Pass, ...]:
        own = (self._own(view),) if self.stats == "own" else ()
        return (Pass((*self.clean(view), *own)),)

    def clean(self, view: View) -> tuple[Keep, ...]:
        """What the first bottleneck of every optimisation sees, and what enters its block."""
        raise VitreousError(f"{self.info.name} must define clean")

    def _own(self, view: View) -> Keep:
        return Keep(self.site(view), token_moments, self.layers(view))

    def _given(self) -> Statistics:
        return self.stats if isinstance(self.stats, Statistics) else Statistics.load(self.stats)

    def priors(self, session: Session, trace: Trace, like: Tensor) -> list[Prior]:
        """Return mean and deviation of the noise at every layer."""
        view, layers = session.view, self.layers(session.view)
        usual = world_moments(session, self.site(view), layers) if self.stats == "world" else None
        if isinstance(usual, str):
            text = f"{self.info.name}: {usual}; the noise follows the image's own tokens instead of scenes (stats=own)"
            warnings.warn(text, VitreousWarning, stacklevel=2)
            trace = session.trace(Pass((self._own(view),)))
        if self.stats == "own" or isinstance(usual, str):
            return [Prior.of(own[:, 0], own[:, 1], like) for own in trace[self._own(view)]]
        if usual is None:
            size = session.inputs.shape[-2:]
            given = self._noise(session) if self.stats == "noise" else self._given()
            usual = [given.of(view, size, self.site(view), layer) for layer in layers]
        return [Prior.of(each.mean[None], each.std[None], like) for each in usual]

    def _noise(self, session: Session) -> Statistics:
        if session.inputs.ndim != 4:
            raise ModelError(f"{self.info.name}: statistics of noise need a model of images, not of tokens")
        total: Statistics | None = None
        for inputs in noise(session.view, _NOISE, session.inputs.shape[-2:], session.seed, min(session.batch, 32)):
            part = statistics_of(session.view, inputs, "noise")
            total = part if total is None else total.merge(part)
        assert total is not None
        return total

    def target(self, session: Session) -> Target:
        """Return the target whose score is the relevance: the log-probability, or what a callable says."""
        target = session.target
        if target.function is None and target.value == "prob":
            raise TargetError(f"{self.info.name} explains the log-probability; value='prob' has no meaning here")
        return replace(target, value="logprob")


@register("coiba", family="bottleneck", papers=("hong2025coiba",), cost=(61, 60), revision=2, models="transformers")
@dataclass(frozen=True)
class CoIBA(Bottleneck):
    """What passes bottlenecks at several layers that share one damping ratio per token.

    ``Z_l = λ R_l + (1 - λ) ε_l`` at the output of the first norm of blocks start .. stop - 1, ``λ = sigmoid(α)`` one
    number per token (prefix tokens too), ``ε_l ~ N(μ_l, σ_l²)``. Adam lowers ``-log p(class) + β I[R; Z]``, with the
    first layer's information as the bound of all (Eq. 8). The map is that information at the end, in bits. Only what
    enters attention is damped; the residual stream is not. Blocks: the upper two thirds; in a hierarchical model the
    last stage of at least 14 x 14 tokens. ``compress=layers`` compresses the mean of all layers' information instead
    (Eq. 4), ``damping=channel`` has a ratio for every channel, ``ratios=layer`` for every layer; ``watch`` writes
    every layer's information down. ``half`` runs the replicas in float16, on a GPU. Extras, step by step:
    ``information``, ``relevance``, ``accuracy``, ``layer_information``. Hong et al., CVPR 2025. Cost:
    ``(steps - 1) samples`` forwards and backwards of those blocks, one forward, and 64 for the first picture of a
    model (``stats=world``).
    """

    start: int | None = None
    stop: int | None = None
    beta: float = 1.0
    steps: int = 10
    samples: int = 10
    lr: float = 1.0
    stats: str | Statistics = "world"
    compress: str = "first"
    damping: str = "token"
    ratios: str = "shared"
    watch: bool = False
    half: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("compress", self.compress, ("first", "layers"))
        check_choice("damping", self.damping, ("token", "channel"))
        check_choice("ratios", self.ratios, ("shared", "layer"))

    def layers(self, view: View) -> tuple[int, ...]:
        third = 0 if view.stages else round(view.depth / 3)
        return _range(view, self.start, self.stop, third)

    def clean(self, view: View) -> tuple[Keep, ...]:
        first = self.layers(view)[:1]
        return Keep("input", whole, first), Keep(self.site(view), whole, first)

    def site(self, view: View) -> str:
        return view.branch_site

    def forwards(self, view: View) -> float:
        return super().forwards(view) + (self.samples if self.compress == "layers" else 0)

    def compute(self, session: Session) -> Answer:
        if self.half and session.inputs.device.type != "cuda":
            raise ModelError(f"coiba: half=true runs in float16 on a GPU, and the model is on {session.inputs.device}")
        target, layers = self.target(session), self.layers(session.view)
        trace = session.trace(self.only_pass(session.view))
        tokens, clean = (trace[keep][0] for keep in self.clean(session.view))
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
        )
        with torch.inference_mode(False):
            priors = self.priors(session, trace, at_least_float32(clean))
            optimised = Bottlenecks(
                session, self.site(session.view), layers, tokens, clean, priors, target, objective, "coiba"
            ).optimise()
        if self.half and not torch.isfinite(optimised.bits).all():
            raise MapError(f"coiba: the information in {session.view.name} in float16 is not finite; use half=false")
        return Answer(trace.tokens_to_grid(optimised.bits, layers[0]), optimised.history)


class OneLayer(Bottleneck):
    """IBA: one bottleneck in the residual stream, at the output of a block."""

    damping: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("damping", self.damping, ("token", "channel"))

    def site(self, view: View) -> str:
        return "output"

    def clean(self, view: View) -> tuple[Keep, ...]:
        return (Keep("output", whole, self.layers(view)),)

    def _each(self, session: Session) -> list[tuple[Tensor, Optimised]]:
        """Return the map and all else that was found at each layer, one optimisation after the other."""
        view, target, layers = session.view, self.target(session), self.layers(session.view)
        for layer in layers:
            _refuse_unread(self, view, layer)
        trace = session.trace(self.only_pass(view))
        outputs = trace[self.clean(view)[0]]
        objective = Objective(self.beta, self.updates, self.samples, self.lr, by_channel=self.damping == "channel")
        made = []
        with torch.inference_mode(False):
            priors = self.priors(session, trace, at_least_float32(outputs[0]))
            for layer, tokens, prior in zip(layers, outputs, priors, strict=True):
                # the output of a block is the input of the next, or of the head
                places = Bottlenecks(session, "input", (layer + 1,), tokens, tokens, (prior,), target, objective, "iba")
                optimised = places.optimise()
                made.append((trace.tokens_to_grid(optimised.bits, min(layer + 1, view.depth - 1)), optimised))
        return made


@register(
    "iba",
    family="bottleneck",
    papers=("schulz2020iba", "hong2025coiba"),
    cost=(54, 53),
    revision=3,
    models="transformers",
)
@dataclass(frozen=True)
class IBA(OneLayer):
    """What passes one bottleneck in the residual stream, with a damping ratio per token and channel.

    ``Z = λ R + (1 - λ) ε`` at the output of a block, ``λ = sigmoid(α)`` of the shape of R, ``ε ~ N(μ, σ²)``. Adam
    lowers ``-log p(class) + β I[R; Z]``, I the mean over tokens and channels. The map is I summed over channels, in
    bits. ``layer`` is half-way up: the sixth block of twelve, as the CoIBA paper says (its script has the fifth). No
    smoothing of α over neighbours, which the original for convolutional networks has. ``damping=token`` has one ratio
    for all channels of a token. Summed over layers (``plus``) it is ``iba_star``. Extras, step by step:
    ``information``, ``relevance``, ``accuracy``. Schulz et al., ICLR 2020. Cost: ``(steps - 1) samples`` forwards and
    backwards of the blocks above, and one forward.
    """

    layer: int | None = None
    beta: float = 10.0
    steps: int = 10
    samples: int = 10
    lr: float = 1.0
    stats: str | Statistics = "world"
    damping: str = "channel"

    def layers(self, view: View) -> tuple[int, ...]:
        if self.layer is not None:
            return (resolve_layer(view, self.layer),)
        stage = _stage(view)
        return (min(stage.start + max(0, len(stage) // 2 - 1), max(0, _last_read(view))),)

    def at_layer(self, view: View, layer: int) -> IBA | None:
        return replace(self, layer=layer) if layer <= _last_read(view) else None

    def compute(self, session: Session) -> Answer:
        ((bits, all_else),) = self._each(session)
        return Answer(bits, all_else.history)


@register(
    "iba_star",
    family="bottleneck",
    papers=("hong2025coiba", "schulz2020iba"),
    cost=(496, 495),
    revision=2,
    models="transformers",
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
    stats: str | Statistics = "world"
    damping: str = "channel"

    def layers(self, view: View) -> tuple[int, ...]:
        layers = _range(view, self.start, self.stop, 0)
        if self.stop is not None:
            return layers
        # what leaves the last block of a stage is on the next stage's grid
        grid = view.grid(layer=layers[0])
        same = [layer for layer in layers if view.grid(layer=min(layer + 1, view.depth - 1)) == grid]
        return tuple(layer for layer in same if layer <= _last_read(view)) or layers[:1]

    def forwards(self, view: View) -> float:
        return 1 + self.updates * self.samples * len(self.layers(view))

    def compute(self, session: Session) -> Answer:
        maps = [bits for bits, _ in self._each(session)]
        if len({each.shape for each in maps}) > 1:
            raise ModelError(f"iba_star: blocks {self.layers(session.view)} end on different grids; lower stop")
        layers = torch.stack(maps, dim=1)
        return Answer(layers.sum(dim=1), {"layers": layers})


def token_moments(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """Mean and deviation over the tokens of each image, channel by channel: ``[B, 2, 1, D]``."""
    return torch.stack(
        [at_least_float32(value).mean(dim=1, keepdim=True), at_least_float32(value).std(dim=1, keepdim=True)], dim=1
    )


def _stage(view: View) -> range:
    """Return the layers of one grid: all, or the last stage of at least 14 x 14 tokens, or else the longest."""
    if not view.stages:
        return range(view.depth)
    fine = [stage for stage in view.stages if min(view.grid(layer=stage.start)) >= _LEAST_GRID]
    return fine[-1] if fine else max(view.stages, key=lambda stage: (len(stage), stage.start))


def _range(view: View, start: int | None, stop: int | None, third: int) -> tuple[int, ...]:
    """Return layers ``start .. stop - 1`` inside one stage; what is not given follows from the model."""
    end = None if stop is None else stop + view.depth if stop < 0 else stop
    known = start if start is not None else None if end is None else end - 1
    stage = _stage(view)
    if view.stages and known is not None:
        known = resolve_layer(view, known)
        stage = next(each for each in view.stages if known in each)
    first = stage.start + third if start is None else resolve_layer(view, start)
    last = stage.stop if end is None else end
    if not first < last <= view.depth:
        raise ModelError(f"layers {first} .. {last} are none: start must be below stop, stop at most {view.depth}")
    if first not in stage or last - 1 not in stage:
        raise ModelError(f"layers {first} .. {last} of {view.name} lie on several grids; stay inside one stage")
    return tuple(range(first, last))


def _last_read(view: View) -> int:
    """Return the last block from whose output patches still reach the class."""
    return view.depth - (2 if view.pooling.kind in ("token", "pair") else 1)


def _refuse_unread(method: Method, view: View, layer: int) -> None:
    if layer > _last_read(view):
        raise MapError(
            f"{method.info.name}: in {view.name} patches do not reach the class from the output of block {layer}; "
            f"use a layer below it"
        )
