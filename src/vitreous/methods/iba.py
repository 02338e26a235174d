"""Methods on the information bottleneck: IBA at one layer, IBA* at every layer, CoIBA through several at once."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import MapError, ModelError, SpecError, TargetError, VitreousWarning
from vitreous.methods import ops
from vitreous.methods.base import Attribution, Method
from vitreous.methods.bottleneck import Bottlenecks, Objective, Prior, grid_after, last_read_block, layers_of, stage_of
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import ActivationCache, Context, Pass, Record, Target, activation_value, resolve_layer, upcast
from vitreous.tracing.statistics import ActivationStats, noise, statistics_of
from vitreous.tracing.statistics_collect import SCENES, VERSION, world_moments

_NOISE = 200  # images, where statistics are to come from noise
_STATS = {"world": f"world:{SCENES}", "own": "own tokens", "noise": f"noise:{_NOISE}"}


class Bottleneck(Method):
    """What the bottleneck methods share: the clean pass, the prior of the noise, the target."""

    beta: float
    steps: int
    samples: int
    lr: float
    stats: str | ActivationStats
    damping: str
    sigma: float | None
    fixed_output = "logprob"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stats == "":
            raise SpecError("stats is empty; it takes world, own, noise or a file that `vitreous stats` made")

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        """Return the layers that get a bottleneck."""
        raise NotImplementedError

    def point(self, model: VisionModel) -> str:
        """Return the hook point of a block whose statistics are needed."""
        return "resid_post"

    def clean_records(self, model: VisionModel) -> tuple[Record, ...]:
        """What enters the block of the first bottleneck of every optimisation, and what that bottleneck sees."""
        return (Record(self.point(model), activation_value, self.layers(model), grad=False),)

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
        return {"statistics": _STATS[str(self.stats)] if self.stats in _STATS else self._statistics().description}

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "stats": str(self.stats)}

    @property
    def dependencies(self) -> dict[str, str]:
        if self.stats == "world":
            return {"stats": f"scenes of version {VERSION}"}  # their numbers follow from the weights
        return {} if self.stats in _STATS else {"stats": self._statistics().fingerprint}

    def records(self, model: VisionModel) -> list[Record]:
        return [*self.clean_records(model), *([self._own_moments(model)] if self.stats == "own" else [])]

    def _own_moments(self, model: VisionModel) -> Record:
        return Record(self.point(model), ops.token_moments, self.layers(model), grad=False)

    def _statistics(self) -> ActivationStats:
        return self.stats if isinstance(self.stats, ActivationStats) else ActivationStats.load(self.stats)

    def objective(self, model: VisionModel, **options: Any) -> Objective:
        """Return what is optimised. Without ``sigma``, ratios of neighbours are smoothed where nothing mixes tokens."""
        sigma = self.sigma if self.sigma is not None else 0.0 if model.has_residual_stream else 1.0
        by_channel = self.damping == "channel"
        return Objective(self.beta, self.updates, self.samples, self.lr, by_channel, sigma=sigma, **options)

    def priors(self, context: Context, cache: ActivationCache, like: Tensor) -> list[Prior]:
        """Return mean and deviation of the noise at every layer; on feature maps, also what is ever active."""
        model, like = context.model, upcast(like)
        moments = self._moments(context, cache)
        if model.has_residual_stream:
            return [Prior.of(mean, std, like) for mean, std, _ in moments]
        widths = [model.embed_dim_at(layer + 1) for layer in self.layers(model)]
        return [Prior.of(*own[:2], like, own[2], width) for own, width in zip(moments, widths, strict=True)]

    def _moments(self, context: Context, cache: ActivationCache) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return mean, deviation and what is active at every layer, ``[B or 1, N or 1, D]``."""
        model, layers, point = context.model, self.layers(context.model), self.point(context.model)
        usual = world_moments(context, point, layers) if self.stats == "world" else None
        if isinstance(usual, str):
            text = f"{self.info.name}: {usual}; the noise follows the image's own tokens instead of scenes (stats=own)"
            warnings.warn(text, VitreousWarning, stacklevel=2)
            cache = context.run_pass(Pass((self._own_moments(model),)))
        if self.stats == "own" or isinstance(usual, str):
            own = cache[self._own_moments(model)]
            return [(value[:, 0], value[:, 1], (value != 0).any(dim=1)) for value in own]
        if usual is None:
            statistics = self._noise_statistics(context) if self.stats == "noise" else self._statistics()
            usual = [statistics.of(model, context.inputs.shape[-2:], point, layer) for layer in layers]
        return [(moment.mean[None], moment.std[None], moment.active[None]) for moment in usual]

    def _noise_statistics(self, context: Context) -> ActivationStats:
        if context.inputs.ndim != 4:
            raise ModelError(f"{self.info.name}: statistics of noise need a model of images, not of tokens")
        batches = noise(context.model, _NOISE, context.inputs.shape[-2:], context.seed, min(context.batch, 32))
        return reduce(ActivationStats.merge, (statistics_of(context.model, inputs, "noise") for inputs in batches))

    def target(self, context: Context) -> Target:
        """Return the target whose score is the relevance: the log-probability, or what a callable says."""
        target = context.target
        if target.function is None and target.output == "prob":
            raise TargetError(f"{self.info.name} explains the log-probability; output='prob' has no meaning here")
        return replace(target, output="logprob")

    def optimise_layers(self, context: Context) -> list[Attribution]:
        """Return the attribution of one bottleneck at each layer, one optimisation after the other."""
        model, layers = context.model, self.layers(context.model)
        unread = [layer for layer in layers if layer > last_read_block(model)]
        if unread:
            raise MapError(
                f"{self.info.name}: in {model.name} patches do not reach the class from the output of block "
                f"{unread[0]}; use a layer below it"
            )
        cache, objective, target = self.record(context), self.objective(model), self.target(context)
        outputs = cache[self.clean_records(model)[0]]
        with torch.inference_mode(False):
            priors = self.priors(context, cache, outputs[0])
            return [  # at the input of the next block, or of the head
                Bottlenecks(
                    context, cache, "resid_pre", (layer + 1,), tokens, tokens, (prior,), target, objective, "iba"
                ).optimise()
                for layer, tokens, prior in zip(layers, outputs, priors, strict=True)
            ]


@register_method("coiba", family="bottleneck", papers=("hong2025coiba",), cost=(61, 60), revision=2)
@dataclass(frozen=True)
class CoIBA(Bottleneck):
    r"""What passes bottlenecks at several layers that share one damping ratio per token.

    .. math::
        Z_l = \lambda R_l + (1 - \lambda)\, \epsilon_l, \qquad \lambda = \operatorname{sigmoid}(\alpha), \qquad
        \min_\alpha\; -\log p(\text{class}) + \beta\, I[R; Z], \qquad M_j = I_j

    where :math:`R_l` is the output of the first norm of block l, :math:`\epsilon_l \sim N(\mu_l, \sigma_l^2)`, I is the
    information of the first layer, the bound of all (Eq. 8), and the map is I of every token at the end, in bits.

    Parameters
    ----------
    start, stop : int or None, default None
        Blocks ``start .. stop - 1``; without them the upper two thirds, in a hierarchical model the last stage of at
        least 14 x 14 tokens.
    beta : float, default 1.0
        The weight of the information.
    steps : int, default 10
        How many steps Adam takes, the last one of which changes nothing.
    samples : int, default 10
        How many replicas with noise of their own.
    lr : float, default 1.0
        Adam's learning rate.
    stats : str or ActivationStats, default "world"
        Where mean and deviation of the noise come from: ``"world"`` (64 rendered scenes of the bundled world, run once
        for a model and input size, then kept), a file that ``vitreous stats`` made of photographs, an
        ``ActivationStats``, ``"noise"`` (200 images of uniform noise, run anew for every batch) or ``"own"`` (the
        tokens of the image itself, channel by channel: free, and not what the paper has).
    compress : {"first", "layers"}, default "first"
        What I is: the first layer's information, or the mean of all layers' (Eq. 4).
    damping : {"token", "channel"}, default "token"
        A ratio for every token, or for every channel of it.
    ratios : {"shared", "layer"}, default "shared"
        Whether layers share their ratios.
    watch : bool, default False
        Record every layer's information.
    half : bool, default False
        Run the replicas in float16, on a GPU.
    sigma : float or None, default None
        The Gaussian by which ratios are smoothed over neighbours, in tokens; without it 1 on feature maps of
        convolutional networks, and 0 elsewhere: where attention mixes tokens, neighbours are nothing special.

    Notes
    -----
    Prefix tokens have ratios too. Only what enters attention is damped; the residual stream is not. In a convolutional
    network the outputs of a stage's blocks are damped, and what was different from zero in at most 1 % of the images is
    set to zero and has no information. Extras, step by step: ``information``, ``relevance``, ``accuracy``,
    ``layer_information``. Cost: ``(steps - 1) samples`` forwards and backwards of those blocks, one forward, and 64 for
    the first picture of a model (``stats="world"``).

    References
    ----------
    Hong et al., "Comprehensive Information Bottleneck for Unveiling Universal Attribution to Interpret Vision
    Transformers", CVPR 2025.

    Examples
    --------
    >>> vt.explain(model, image, "coiba(steps=2, samples=2, stats=own)").map.shape
    torch.Size([16, 16])
    """

    start: int | None = None
    stop: int | None = None
    beta: float = number(1.0, "[0, inf)")
    steps: int = number(10, "[2, inf)")
    samples: int = number(10, "[1, inf)")
    lr: float = number(1.0, "(0, inf)")
    stats: str | ActivationStats = "world"
    compress: str = choice("first", "layers")
    damping: str = choice("token", "channel")
    ratios: str = choice("shared", "layer")
    watch: bool = False
    half: bool = False
    sigma: float | None = number(None, "[0, 100]")

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        third = 0 if model.stages or not model.has_residual_stream else round(model.depth / 3)
        return layers_of(model, self.start, self.stop, third)

    def clean_records(self, model: VisionModel) -> tuple[Record, ...]:
        first, point = self.layers(model)[:1], self.point(model)
        points = "resid_pre" if model.has_residual_stream else point, point
        return tuple(Record(point, activation_value, first, grad=False) for point in points)

    def point(self, model: VisionModel) -> str:
        return model.branch_point

    def num_forwards(self, model: VisionModel) -> float:
        return super().num_forwards(model) + (self.samples if self.compress == "layers" else 0)

    def compute(self, context: Context) -> Attribution:
        if self.half and context.inputs.device.type != "cuda":
            raise ModelError(f"coiba: half=true runs in float16 on a GPU, and the model is on {context.inputs.device}")
        model, target = context.model, self.target(context)
        layers, point = self.layers(model), self.point(model)
        cache = self.record(context)
        tokens, clean = (cache[record][0] for record in self.clean_records(model))
        if not model.has_residual_stream:  # the output of a block is the input of the next, or of the head
            layers, point = tuple(layer + 1 for layer in layers), "resid_pre"
            if self.damping == "channel" and len({model.embed_dim_at(layer) for layer in layers}) > 1:
                raise ModelError(f"coiba: blocks of {model.name} differ in their channels; use damping=token")
        by_layer, every_term = self.ratios == "layer", self.compress == "layers"
        objective = self.objective(model, by_layer=by_layer, every_term=every_term, watch=self.watch, half=self.half)
        with torch.inference_mode(False):
            priors = self.priors(context, cache, clean)
            return Bottlenecks(
                context, cache, point, layers, tokens, clean, priors, target, objective, "coiba"
            ).optimise()


@register_method("iba", family="bottleneck", papers=("schulz2020iba", "hong2025coiba"), cost=(54, 53), revision=3)
@dataclass(frozen=True)
class IBA(Bottleneck):
    r"""What passes one bottleneck in the residual stream, with a damping ratio per token and channel.

    .. math::
        Z = \lambda R + (1 - \lambda)\, \epsilon, \qquad \lambda = \operatorname{sigmoid}(\alpha), \qquad
        \min_\alpha\; -\log p(\text{class}) + \beta\, I[R; Z], \qquad M_j = \sum_d I_{jd}

    where R is the output of a block, :math:`\epsilon \sim N(\mu, \sigma^2)`, I the mean information over tokens and
    channels, and the map is in bits.

    Parameters
    ----------
    layer : int or None, default None
        The block; without it half-way up: the sixth of twelve, as the CoIBA paper says (its script has the fifth).
    beta : float, default 10.0
        The weight of the information.
    steps : int, default 10
        How many steps Adam takes, the last one of which changes nothing.
    samples : int, default 10
        How many replicas with noise of their own.
    lr : float, default 1.0
        Adam's learning rate.
    stats : str or ActivationStats, default "world"
        Where mean and deviation of the noise come from, as for ``coiba``.
    damping : {"token", "channel"}, default "channel"
        A ratio for every token, or for every channel of it.
    sigma : float or None, default None
        The Gaussian by which ratios are smoothed over neighbours, as for ``coiba``.

    Notes
    -----
    On feature maps of convolutional networks what is hardly ever active is left out, as in the original. Summed over
    layers (``plus``) it is ``iba_star``. Extras, step by step: ``information``, ``relevance``, ``accuracy``. Cost:
    ``(steps - 1) samples`` forwards and backwards of the blocks above, and one forward.

    References
    ----------
    Schulz et al., "Restricting the Flow: Information Bottlenecks for Attribution", ICLR 2020.
    Hong et al., "Comprehensive Information Bottleneck for Unveiling Universal Attribution to Interpret Vision
    Transformers", CVPR 2025.

    Examples
    --------
    >>> sorted(vt.explain(model, image, "iba(steps=2, samples=2, stats=own)").extras)
    ['accuracy', 'information', 'relevance']
    """

    layer: int | None = None
    beta: float = number(10.0, "[0, inf)")
    steps: int = number(10, "[2, inf)")
    samples: int = number(10, "[1, inf)")
    lr: float = number(1.0, "(0, inf)")
    stats: str | ActivationStats = "world"
    damping: str = choice("channel", "token", "channel")
    sigma: float | None = number(None, "[0, 100]")

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        if self.layer is not None:
            return (resolve_layer(model, self.layer),)
        stage = stage_of(model)
        return (min(stage.start + max(0, len(stage) // 2 - 1), max(0, last_read_block(model))),)

    def at_layer(self, model: VisionModel, layer: int) -> IBA | None:
        return replace(self, layer=layer) if layer <= last_read_block(model) else None

    def compute(self, context: Context) -> Attribution:
        (attribution,) = self.optimise_layers(context)
        return attribution


@register_method(
    "iba_star", family="bottleneck", papers=("hong2025coiba", "schulz2020iba"), cost=(496, 495), revision=2
)
@dataclass(frozen=True)
class IBAStar(Bottleneck):
    r"""IBA at every layer, the maps summed.

    .. math:: M = \sum_l M^{IBA}_l

    over the outputs of blocks ``start .. stop - 1``. The paper, where it is the motivation of CoIBA, says only that the
    maps are combined linearly.

    Parameters
    ----------
    start, stop : int or None, default None
        Blocks ``start .. stop - 1``; without them all but those from which patches no longer reach the class, and in a
        hierarchical model those of one grid.
    beta : float, default 10.0
        The weight of the information.
    steps : int, default 10
        How many steps Adam takes, the last one of which changes nothing.
    samples : int, default 10
        How many replicas with noise of their own.
    lr : float, default 1.0
        Adam's learning rate.
    stats : str or ActivationStats, default "world"
        Where mean and deviation of the noise come from, as for ``coiba``.
    damping : {"token", "channel"}, default "channel"
        A ratio for every token, or for every channel of it.
    sigma : float or None, default None
        The Gaussian by which ratios are smoothed over neighbours, as for ``coiba``.

    Notes
    -----
    Extras: ``layers``, one map each. Cost: that of ``iba`` at each layer, with one clean forward for all.

    References
    ----------
    Hong et al., "Comprehensive Information Bottleneck for Unveiling Universal Attribution to Interpret Vision
    Transformers", CVPR 2025.
    Schulz et al., "Restricting the Flow: Information Bottlenecks for Attribution", ICLR 2020.

    Examples
    --------
    >>> vt.explain(model, image, "iba_star(start=4, steps=2, samples=1, stats=own)").extras["layers"].shape
    torch.Size([3, 16, 16])
    """

    start: int | None = None
    stop: int | None = None
    beta: float = number(10.0, "[0, inf)")
    steps: int = number(10, "[2, inf)")
    samples: int = number(10, "[1, inf)")
    lr: float = number(1.0, "(0, inf)")
    stats: str | ActivationStats = "world"
    damping: str = choice("channel", "token", "channel")
    sigma: float | None = number(None, "[0, 100]")

    def layers(self, model: VisionModel) -> tuple[int, ...]:
        layers = layers_of(model, self.start, self.stop, 0)
        if self.stop is not None:
            return layers
        grid = grid_after(model, layers[0])  # what leaves the last block of a stage is on the next stage's grid
        read = range(last_read_block(model) + 1)
        return tuple(layer for layer in layers if grid_after(model, layer) == grid and layer in read) or layers[:1]

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + self.updates * self.samples * len(self.layers(model))

    def compute(self, context: Context) -> Attribution:
        maps = [attribution.map for attribution in self.optimise_layers(context)]
        if len({layer_map.shape for layer_map in maps}) > 1:
            raise ModelError(f"iba_star: blocks {self.layers(context.model)} end on different grids; lower stop")
        layers = torch.stack(maps, dim=1)
        return Attribution(layers.sum(dim=1), {"layers": layers})
