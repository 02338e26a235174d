"""The information bottleneck: how much of each token can give way to noise before the class is lost.

Where the model has the value R (tokens x channels), what goes on is ``Z = λ R + (1 - λ) ε`` with ``λ = sigmoid(α)`` and
``ε ~ N(μ, σ²)``, the usual mean and deviation there. Adam lowers ``-log p(class) + β I``, where I is the information
that still passes: the divergence of ``p(Z | R)`` from ``N(μ, σ²)``, in closed form. On feature maps λ is smoothed over
neighbours, and what has hardly ever been active is left out, as the original for convolutional networks has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, ModelError
from vitreous.methods import ops
from vitreous.methods.base import Attribution
from vitreous.models import VisionModel
from vitreous.tracing import ActivationCache, Context, Target, resolve_layer, upcast
from vitreous.tracing.memory import InnerBatch
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.runner import logits_with_patches
from vitreous.tracing.targets import class_logits

_LEAST_GRID = 14  # rows and columns of the stage of a hierarchical model that is looked at, if there is such a one
_ALPHA = 5.0  # λ = 0.993: at the start almost everything passes
_LEAST_DEVIATION = 0.01
_LOSS_SCALE = 1024.0
_BETAS, _EPS = (0.9, 0.999), 1e-8  # Adam's

# -- layers ------------------------------------------------------------------------------------------------


def grid_after(model: VisionModel, layer: int) -> tuple[int, int]:
    """Return rows and columns of what leaves a block."""
    return model.grid(layer=layer + 1) if layer + 1 < model.depth else model.last_grid()


def _stages(model: VisionModel) -> list[tuple[range, tuple[int, int]]]:
    """Return the layers of each grid, with the grid: of what enters a block, or leaves it without a residual stream."""
    if model.has_residual_stream:
        return [(stage, model.grid(layer=stage.start)) for stage in model.stages or (range(model.depth),)]
    grids = [grid_after(model, layer) for layer in range(model.depth)]
    groups = [(grid, list(layers)) for grid, layers in groupby(range(model.depth), key=grids.__getitem__)]
    return [(range(layers[0], layers[-1] + 1), grid) for grid, layers in groups]


def stage_of(model: VisionModel, layer: int | None = None) -> range:
    """Return the layers of one grid: those with a layer, or of the last stage of at least 14 x 14, or the longest."""
    stages = _stages(model)
    if layer is not None:
        at = resolve_layer(model, layer) if len(stages) > 1 else 0
        return next(stage for stage, _ in stages if at in stage)
    fine = [stage for stage, grid in stages if min(grid) >= _LEAST_GRID]
    return fine[-1] if fine else max((stage for stage, _ in stages), key=lambda stage: (len(stage), stage.start))


def layers_of(model: VisionModel, start: int | None, stop: int | None, skip: int) -> tuple[int, ...]:
    """Return layers ``start .. stop - 1`` inside one stage; without a start, the first ``skip`` of it are left out."""
    if stop is not None and stop < 0:
        stop += model.depth
    stage = stage_of(model, start if start is not None or stop is None else stop - 1)
    first = stage.start + skip if start is None else resolve_layer(model, start)
    last = stage.stop if stop is None else stop
    if not first < last <= model.depth:
        raise ModelError(f"layers {first} .. {last} are none: start must be below stop, stop at most {model.depth}")
    if first not in stage or last - 1 not in stage:
        raise ModelError(f"layers {first} .. {last} of {model.name} lie on several grids; stay inside one stage")
    return tuple(range(first, last))


def last_read_block(model: VisionModel) -> int:
    """Return the last block from whose output patches still reach the class."""
    return model.depth - (2 if model.pooling.kind in ("token", "pair") else 1)


# -- noise and information ---------------------------------------------------------------------------------


class Blur(NamedTuple):
    """A Gaussian over the tokens of a grid ``[h, w]``, row by row and column by column; a prefix stays as it is.

    ``rows`` ``[h, h]`` and ``columns`` ``[w, w]`` take weighted means: the kernel ends at ``round(2 sigma)`` tokens to
    either side, and what lies beyond an edge is the mirror image of what is inside.
    """

    rows: Tensor
    columns: Tensor
    prefix: int

    @classmethod
    def of(cls, sigma: float, grid: tuple[int, int], prefix: int, like: Tensor) -> Blur | None:
        """Return the blur of a grid; none where it would change nothing."""
        radius = round(2 * sigma)
        if radius == 0:
            return None
        rows, columns = (_reflected_means(side, ops.gaussian_kernel(sigma, radius)).to(like) for side in grid)
        return cls(rows, columns, prefix)

    def __call__(self, values: Tensor) -> Tensor:
        """Return ``[B, N, C]`` blurred."""
        height, width = len(self.rows), len(self.columns)
        patches = values[:, self.prefix :].reshape(len(values), height, width, -1)
        smooth = torch.einsum("ih,jw,bhwc->bijc", self.rows, self.columns, patches).flatten(1, 2)
        return torch.cat([values[:, : self.prefix], smooth], dim=1) if self.prefix else smooth


def _reflected_means(side: int, kernel: Tensor) -> Tensor:
    """Return the weights of all tokens in a row for each of them, ``[side, side]``, mirrored at the ends."""
    offset = torch.arange(len(kernel)) - len(kernel) // 2
    period = max(1, 2 * (side - 1))
    source = (torch.arange(side)[:, None] + offset).remainder(period)
    source = torch.minimum(source, period - source) if side > 1 else torch.zeros_like(source)
    return torch.zeros(side, side, dtype=torch.float64).scatter_add_(1, source, kernel.expand(side, -1))


def information(alpha: Tensor, surprise: Tensor, blur: Blur | None = None) -> Tensor:
    """Return the divergence of ``N(λR + (1-λ)μ, (1-λ)²σ²)`` from ``N(μ, σ²)`` in nats, ``surprise = ((R-μ)/σ)²``.

    ``k = ½ (λ² surprise + (1-λ)² - 1) - log(1-λ)``. It is linear in the surprise, so that where λ is the same for all
    channels their mean surprise gives their mean information. Written such that large α do not overflow and small
    ones do not cancel: ``(1-λ)² - 1 = -λ (2-λ)`` and ``-log(1-λ) = softplus(α)``. A blur takes means, so that what is
    left, ``1 - λ``, is the blurred ``sigmoid(-α)``.
    """
    ratio, noise_ratio = torch.sigmoid(alpha), torch.sigmoid(-alpha)
    if blur is None:
        return 0.5 * ratio * (ratio * surprise - 1 - noise_ratio) + F.softplus(alpha)
    ratio, noise_ratio = blur(ratio), blur(noise_ratio)
    tiny = torch.finfo(noise_ratio.dtype).tiny
    return 0.5 * ratio * (ratio * surprise - 1 - noise_ratio) - noise_ratio.clamp(min=tiny).log()


class Prior(NamedTuple):
    """Mean and deviation of the noise at one layer, ``[B or 1, N or 1, D]``.

    ``active`` is 1 where values were ever different from zero, and 0 elsewhere: nothing passes there.
    """

    mean: Tensor
    std: Tensor
    active: Tensor | None = None

    @classmethod
    def of(
        cls, mean: Tensor, std: Tensor, like: Tensor, active: Tensor | None = None, width: int | None = None
    ) -> Prior:
        """Return the prior with the least deviation allowed, where and in the type of ``like`` ``[B, N, D]``.

        ``width`` is D where it is not that of ``like``.
        """
        tokens, width = like.shape[1], like.shape[2] if width is None else width
        if mean.shape[-1] != width or mean.shape[-2] not in (1, tokens):
            raise ModelError(
                f"statistics of shape {list(mean.shape[-2:])} do not fit tokens of shape {[tokens, width]}"
            )
        active = None if active is None or bool(active.all()) else active.to(like)
        return cls(mean.to(like), std.to(like).clamp(min=_LEAST_DEVIATION), active)

    def rows(self, images: Tensor) -> Prior:
        """Return the prior of these images, one row each."""
        if len(self.mean) == 1:
            return self
        return Prior(self.mean[images], self.std[images], None if self.active is None else self.active[images])

    def surprise(self, value: Tensor, by_channel: bool) -> Tensor:
        """Return ``((R - μ) / σ)²`` of every channel, or its mean over the active ones: ``[B, N, D or 1]``."""
        squared = ((value - self.mean) / self.std) ** 2
        if by_channel:
            return squared
        if self.active is None:
            return squared.mean(dim=-1, keepdim=True)
        counts = self.active.sum(dim=-1, keepdim=True)
        return (squared * self.active).sum(dim=-1, keepdim=True) / counts.clamp(min=1)

    def where_active(self, bits: Tensor) -> Tensor:
        """Return the information ``[B, N, D or 1]`` where what is not active has none: channels count alike."""
        if self.active is None:
            return bits
        return bits * (self.active.mean(dim=-1, keepdim=True) if bits.shape[-1] == 1 else self.active)


# -- optimisation ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Objective:
    """What is optimised, and how.

    ``by_channel``: a ratio for every channel of a token instead of one for all. ``by_layer``: ratios of its own for
    every layer instead of shared ones. ``every_term``: compress the mean of the information of all layers (Eq. 4 of
    CoIBA) instead of that of the first (Eq. 8). ``watch``: record the information of every layer even so. ``half``: the
    replicas run in float16 where torch holds that safe; ratios, information and Adam do not. ``sigma``: how wide the
    ratios are blurred over neighbours, in tokens.
    """

    beta: float
    updates: int
    samples: int
    lr: float
    by_channel: bool = False
    by_layer: bool = False
    every_term: bool = False
    watch: bool = False
    half: bool = False
    sigma: float = 0.0


@dataclass(eq=False)
class Bottlenecks:
    """Bottlenecks at one hook point of several layers, for a batch of images, each with ratios and Adam of its own.

    ``point`` is ``norm1``, or ``resid_pre`` of a block (of the head, for the layer after the last). ``tokens`` enter
    block ``layers[0]``; the blocks below were run once. ``clean`` is what the first bottleneck sees, on ``grid``. The
    replicas of all images make one long batch that is cut to fit into memory. The noise belongs to (image, step, layer,
    replica), and does not depend on how the batch is cut.
    """

    context: Context
    cache: ActivationCache
    point: str
    layers: Sequence[int]
    tokens: Tensor
    clean: Tensor
    priors: Sequence[Prior]
    target: Target
    objective: Objective
    purpose: str

    def __post_init__(self) -> None:
        samples, batch = self.objective.samples, self.context.batch
        self.clean, grid = upcast(self.clean), self.cache.grid_at(self.layers[0])
        self.surprise = self.priors[0].surprise(self.clean, self.objective.by_channel)  # of the first: never changes
        self.blur = Blur.of(self.objective.sigma, grid, self.context.model.num_prefix_tokens, self.clean)
        self.replicas = self.target.repeat(samples)
        self.inner = InnerBatch(batch - batch % samples if batch > samples else batch)  # whole images where possible
        self.key = self.context.prng_key(self.purpose)

    def optimise(self) -> Attribution:
        """Return the information of every patch in bits, and the history ``[B, updates, ...]`` by name."""
        objective, (batch, tokens, width) = self.objective, self.clean.shape
        shape = batch, len(self.layers) if objective.by_layer else 1, tokens, width if objective.by_channel else 1
        alpha = self.clean.new_full(shape, _ALPHA)
        first = second = torch.zeros_like(alpha)  # Adam, element by element, so that images do not see each other
        steps: list[tuple[Tensor, ...]] = []
        for number in range(objective.updates):
            gradient, score, hits, passed = self._step(alpha, number, True)
            terms = passed.mean(dim=2)
            if objective.every_term:
                compressed = terms.mean(dim=1)
            else:
                slope, compressed = self._compression(alpha)
                gradient[:, 0] += slope
            steps.append((compressed, score, hits, terms))
            first = torch.lerp(gradient, first, _BETAS[0])
            second = torch.lerp(gradient**2, second, _BETAS[1])
            mean = first / (1 - _BETAS[0] ** (number + 1))
            size = (second / (1 - _BETAS[1] ** (number + 1))).sqrt()
            alpha = alpha - objective.lr * mean / (size + _EPS)
        if objective.every_term:
            bits = self._step(alpha, objective.updates, False)[-1].mean(dim=1)
        else:
            bits = self._first_information(alpha[:, 0]).mean(dim=-1)
        columns = (torch.stack(values, dim=1) for values in zip(*steps, strict=True))
        history = dict(zip(("information", "relevance", "accuracy", "layer_information"), columns, strict=True))
        if self.target.classes is None:
            del history["accuracy"]
        if history["layer_information"].shape[2] == 0:
            del history["layer_information"]
        if objective.half and not torch.isfinite(bits).all():
            name = self.context.model.name
            raise MapError(f"{self.purpose}: the information in {name} in float16 is not finite; use half=false")
        return Attribution(self.cache.tokens_to_grid(bits * (width / math.log(2)), self.layers[0]), history)

    def _first_information(self, alpha: Tensor) -> Tensor:
        return self.priors[0].where_active(information(alpha, self.surprise, self.blur))

    def _compression(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``β dI/dα`` ``[B, N, C]`` and I ``[B]`` of the first bottleneck, mean over tokens and channels."""
        with torch.enable_grad():
            leaf = alpha[:, 0].detach().requires_grad_()
            bits = self._first_information(leaf).mean(dim=(1, 2))
            (gradient,) = torch.autograd.grad(self.objective.beta * bits.sum(), leaf)
        return gradient, bits.detach()

    def _step(self, alpha: Tensor, number: int, backward: bool) -> tuple[Tensor, ...]:
        """Run all replicas of all images once, in parts that fit into memory.

        Return gradient ``[B, K, N, C]``, score and hits ``[B]``, information ``[B, layers, N]``.
        """
        batch, samples = len(alpha), self.objective.samples
        total = torch.zeros_like(alpha)

        def part(start: int, stop: int) -> list[Tensor]:
            gradient, *results = self._run_replicas(alpha, number, start, stop, backward)
            for image in range(start // samples, (stop - 1) // samples + 1) if backward else ():
                total[image] += gradient[max(0, image * samples - start) : (image + 1) * samples - start].sum(dim=0)
            if self.context.on_progress is not None:
                self.context.on_progress(stop - start)
            return results

        size = self.inner.size
        results = self.inner.run(part, batch * samples)
        if self.inner.size < size:  # what was too much here is too much for every other method
            self.context.batching.size = self.inner.size
        columns = (torch.cat(column) for column in zip(*results, strict=True))
        means = (column.reshape(batch, samples, *column.shape[1:]).mean(dim=1) for column in columns)
        return total / samples, *means

    def _run_replicas(self, alpha: Tensor, number: int, start: int, stop: int, backward: bool) -> tuple[Tensor, ...]:
        """Run replicas ``start .. stop - 1``: gradient, score, hit and the information of every layer, row by row."""
        objective = self.objective
        replicas = torch.arange(start, stop, device=alpha.device)
        images = replicas // objective.samples
        with torch.inference_mode(False), torch.set_grad_enabled(backward):
            leaf = alpha[images].detach().requires_grad_(backward)
            watched: list[Tensor] = []
            patches = {
                layer: partial(
                    self._add_noise,
                    alpha=leaf[:, index if objective.by_layer else 0],
                    prior=prior.rows(images),
                    key=self.key.at(number, index).select(images).at(replicas % objective.samples),
                    watched=watched,
                )
                for index, (layer, prior) in enumerate(zip(self.layers, self.priors, strict=True))
            }
            logits = logits_with_patches(
                self.context.model, self.tokens[images], self.layers[0], self.point, patches, objective.half
            )
            target = self.replicas.slice_images(start, stop)
            score = target.score(logits)
            terms = torch.stack(watched, dim=1) if watched else leaf.new_zeros(len(leaf), 0, leaf.shape[2])
            gradient = leaf.new_zeros(0)
            if backward:
                loss = -score.sum()
                if objective.every_term:
                    loss = loss + objective.beta * terms.mean(dim=(1, 2)).sum()
                scale = _LOSS_SCALE if objective.half else 1.0  # small gradients would be zero in float16
                (gradient,) = torch.autograd.grad(scale * loss, leaf)
                gradient = gradient / scale
        return gradient, score.detach().to(alpha), _hits(target, logits).to(alpha), terms.detach()

    def _add_noise(self, value: Tensor, alpha: Tensor, prior: Prior, key: PRNGKey, watched: list[Tensor]) -> Tensor:
        """Return ``Z = λ R + (1 - λ) ε``; note the information that passes where it is wanted."""
        objective, blur = self.objective, self.blur
        with torch.autocast(value.device.type, enabled=False):  # the model may run in float16; what is learnt does not
            tokens = upcast(value.flatten(1, 2) if value.ndim == 4 else value)
            if objective.every_term or objective.watch:
                with torch.set_grad_enabled(objective.every_term and torch.is_grad_enabled()):
                    surprise = prior.surprise(tokens, objective.by_channel)
                    watched.append(prior.where_active(information(alpha, surprise, blur)).mean(dim=-1))
            noise = key.normal(*tokens.shape[1:]).to(tokens).mul_(prior.std).add_(prior.mean)
            ratio = torch.sigmoid(alpha)
            mixed = torch.lerp(noise, tokens, ratio if blur is None else blur(ratio))
            mixed = mixed if prior.active is None else mixed * prior.active
            return mixed.to(value).view_as(value)


def _hits(target: Target, logits: Tensor) -> Tensor:
    """Return 1 where a replica is still seen as the explained class, ``[R]``."""
    if target.classes is None:
        return logits.new_zeros(len(logits))
    return class_logits(logits.detach(), target.class_subset).argmax(dim=1) == target.classes.clone().to(logits.device)
