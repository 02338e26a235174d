"""Where bottlenecks are: which layers share a grid, from which patches are read, which places are neighbours.

The information bottleneck: how much of each token can give way to noise before the class is lost.

At a place with the value R (tokens x channels), what goes on is ``Z = λ R + (1 - λ) ε`` with ``λ = sigmoid(α)`` and
``ε ~ N(μ, σ²)``, the usual mean and deviation there. Adam lowers ``-log p(class) + β I``, where I is the information
that still passes: the divergence of ``p(Z | R)`` from ``N(μ, σ²)``, in closed form.

On feature maps λ is smoothed over neighbouring places, and what has hardly ever been active is left out, as the
original for convolutional networks has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, ModelError
from vitreous.methods.base import Method, resolve_layer
from vitreous.models import VisionModel
from vitreous.tracing import Context, Target, upcast
from vitreous.tracing.memory import InnerBatch
from vitreous.tracing.runner import logits_with_patches
from vitreous.tracing.targets import class_logits

__all__ = [
    "Blur",
    "Bottlenecks",
    "Objective",
    "Optimised",
    "Prior",
    "grid_after",
    "information",
    "last_read",
    "layers_of",
    "refuse_unread",
    "stage_of",
]

_LEAST_GRID = 14  # rows and columns of the stage of a hierarchical model that is looked at, if there is such a one


def grid_after(model: VisionModel, layer: int) -> tuple[int, int]:
    """Return rows and columns of what leaves a block."""
    return model.grid(layer=layer + 1) if layer + 1 < model.depth else model.last_grid()


def stage_of(model: VisionModel) -> range:
    """Return the layers of one grid: all, or the last stage of at least 14 x 14 tokens, or else the longest."""
    stages = _stages(model)
    fine = [stage for stage, grid in stages if min(grid) >= _LEAST_GRID]
    return fine[-1] if fine else max((stage for stage, _ in stages), key=lambda stage: (len(stage), stage.start))


def layers_of(model: VisionModel, start: int | None, stop: int | None, third: int) -> tuple[int, ...]:
    """Return layers ``start .. stop - 1`` inside one stage; what is not given follows from the model."""
    end = None if stop is None else stop + model.depth if stop < 0 else stop
    known = start if start is not None else None if end is None else end - 1
    stage, stages = stage_of(model), _stages(model)
    if len(stages) > 1 and known is not None:
        known = resolve_layer(model, known)
        stage = next(each for each, _ in stages if known in each)
    first = stage.start + third if start is None else resolve_layer(model, start)
    last = stage.stop if end is None else end
    if not first < last <= model.depth:
        raise ModelError(f"layers {first} .. {last} are none: start must be below stop, stop at most {model.depth}")
    if first not in stage or last - 1 not in stage:
        raise ModelError(f"layers {first} .. {last} of {model.name} lie on several grids; stay inside one stage")
    return tuple(range(first, last))


def last_read(model: VisionModel) -> int:
    """Return the last block from whose output patches still reach the class."""
    return model.depth - (2 if model.pooling.kind in ("token", "pair") else 1)


def refuse_unread(method: Method, model: VisionModel, layer: int) -> None:
    """Refuse a layer from whose output no patch reaches the class."""
    if layer > last_read(model):
        raise MapError(
            f"{method.info.name}: in {model.name} patches do not reach the class from the output of block {layer}; "
            f"use a layer below it"
        )


def _stages(model: VisionModel) -> list[tuple[range, tuple[int, int]]]:
    """Return the layers of each grid, with the grid: of what enters a block, or leaves it where no stream does."""
    if model.has_residual_stream:
        stages = model.stages or (range(model.depth),)
        return [(stage, model.grid(layer=stage.start)) for stage in stages]
    grids = [grid_after(model, layer) for layer in range(model.depth)]
    parts = [(grid, list(group)) for grid, group in groupby(range(model.depth), key=grids.__getitem__)]
    return [(range(part[0], part[-1] + 1), grid) for grid, part in parts]


class Blur(NamedTuple):
    """A Gaussian over the places of a grid ``[h, w]``, row by row and column by column; a prefix stays as it is.

    ``down`` ``[h, h]`` and ``across`` ``[w, w]`` take weighted means: the kernel ends at ``round(2 sigma)`` places to
    either side, and what lies beyond an edge is the mirror image of what is inside.
    """

    down: Tensor
    across: Tensor
    prefix: int

    @classmethod
    def of(cls, sigma: float, grid: tuple[int, int], prefix: int, like: Tensor) -> Blur | None:
        """Return the blur of a grid; none where it would change nothing."""
        reach = round(2 * sigma)
        if reach == 0:
            return None
        down, across = (_means(side, sigma, reach).to(like) for side in grid)
        return cls(down, across, prefix)

    def __call__(self, values: Tensor) -> Tensor:
        """Return ``[B, N, C]`` blurred."""
        height, width = len(self.down), len(self.across)
        places = values[:, self.prefix :].reshape(len(values), height, width, -1)
        smooth = torch.einsum("ih,jw,bhwc->bijc", self.down, self.across, places).flatten(1, 2)
        return torch.cat([values[:, : self.prefix], smooth], dim=1) if self.prefix else smooth


def _means(side: int, sigma: float, reach: int) -> Tensor:
    """Return the Gaussian weights of all places in a row for each of them, ``[side, side]``."""
    steps = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (steps.double() / sigma) ** 2)
    period = max(1, 2 * (side - 1))
    read = (torch.arange(side)[:, None] + steps).remainder(period)
    read = torch.minimum(read, period - read) if side > 1 else torch.zeros_like(read)
    return torch.zeros(side, side, dtype=torch.float64).scatter_add_(
        1, read, (weights / weights.sum()).expand(side, -1)
    )


_ALPHA = 5.0  # λ = 0.993: at the start almost everything passes
_LEAST_DEVIATION = 0.01
_SCALE = 1024.0
_BETAS, _EPS = (0.9, 0.999), 1e-8


def information(alpha: Tensor, surprise: Tensor, blur: Blur | None = None) -> Tensor:
    """Return the divergence of ``N(λR + (1-λ)μ, (1-λ)²σ²)`` from ``N(μ, σ²)`` in nats, ``surprise = ((R-μ)/σ)²``.

    ``k = ½ (λ² surprise + (1-λ)² - 1) - log(1-λ)``. It is linear in the surprise, so that where λ is the same for all
    channels their mean surprise gives their mean information. Written such that large α do not overflow and small
    ones do not cancel: ``(1-λ)² - 1 = -λ (2-λ)`` and ``-log(1-λ) = softplus(α)``. A blur takes means, so that what is
    left, ``1 - λ``, is the blurred ``sigmoid(-α)``.
    """
    kept, left = torch.sigmoid(alpha), torch.sigmoid(-alpha)
    if blur is None:
        return 0.5 * kept * (kept * surprise - 1 - left) + F.softplus(alpha)
    kept, left = blur(kept), blur(left)
    return 0.5 * kept * (kept * surprise - 1 - left) - left.clamp(min=torch.finfo(left.dtype).tiny).log()


class Prior(NamedTuple):
    """Mean and deviation of the noise at one place, ``[B or 1, N or 1, D]``.

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
            fits, given = [tokens, width], list(mean.shape[-2:])
            raise ModelError(f"statistics of shape {given} do not fit tokens of shape {fits}")
        active = None if active is None or bool(active.all()) else active.to(like)
        return cls(mean.to(like), std.to(like).clamp(min=_LEAST_DEVIATION), active)

    def rows(self, images: Tensor) -> Prior:
        """Return the prior of these images, one row each."""
        if len(self.mean) == 1:
            return self
        return Prior(*(None if each is None else each[images] for each in self))  # type: ignore[arg-type]

    def surprise(self, value: Tensor, by_channel: bool) -> Tensor:
        """Return ``((R - μ) / σ)²`` of every channel, or its mean over the active ones: ``[B, N, D or 1]``."""
        squared = ((value - self.mean) / self.std) ** 2
        if by_channel:
            return squared
        if self.active is None:
            return squared.mean(dim=-1, keepdim=True)
        counts = self.active.sum(dim=-1, keepdim=True)
        return (squared * self.active).sum(dim=-1, keepdim=True) / counts.clamp(min=1)

    def counted(self, passing: Tensor) -> Tensor:
        """Return the information ``[B, N, D or 1]`` where what is not active has none: channels count alike."""
        if self.active is None:
            return passing
        return passing * (self.active.mean(dim=-1, keepdim=True) if passing.shape[-1] == 1 else self.active)


@dataclass(frozen=True)
class Objective:
    """What is optimised, and how.

    ``by_channel``: a ratio for every channel of a token instead of one for all. ``by_layer``: ratios of its own for
    every layer instead of shared ones. ``every_term``: compress the mean of the information of all layers (Eq. 4 of
    CoIBA) instead of that of the first (Eq. 8). ``watch``: write the information of every layer down even so. ``half``:
    the replicas run in float16 where torch holds that safe; ratios, information and Adam do not. ``sigma``: how wide
    the ratios are blurred over neighbouring places, in places.
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


class Optimised(NamedTuple):
    """The information of every token ``[B, N]`` in bits, and the history ``[B, updates, ...]`` by name."""

    bits: Tensor
    history: dict[str, Tensor]


class _Step(NamedTuple):
    """One forward and backward: gradient ``[B, K, N, C]``, score and hits ``[B]``, information ``[B, layers, N]``."""

    gradient: Tensor
    score: Tensor
    hits: Tensor
    terms: Tensor


@dataclass(eq=False)
class Bottlenecks:
    """Bottlenecks at one place of several layers, for a batch of images, each with ratios and Adam of its own.

    ``site`` is ``norm1``, or ``input`` of a block (of the head, for the layer after the last). ``tokens`` enter block
    ``layers[0]``; the blocks below were run once. ``clean`` is what the first bottleneck sees, on ``grid``. The
    replicas of all images make one long batch that is cut to fit into memory. The noise belongs to (image, step, layer,
    replica), and does not depend on how the batch is cut.
    """

    session: Context
    site: str
    layers: Sequence[int]
    tokens: Tensor
    clean: Tensor
    priors: Sequence[Prior]
    target: Target
    objective: Objective
    purpose: str
    grid: tuple[int, int]

    def __post_init__(self) -> None:
        how = self.objective
        self.clean = upcast(self.clean)
        self.shown = self.priors[0].surprise(self.clean, how.by_channel)  # of the first bottleneck: never changes
        self.blur = Blur.of(how.sigma, self.grid, self.session.model.num_prefix_tokens, self.clean)
        self.repeated = self.target.repeat(how.samples)
        at_once = self.session.batch
        whole = at_once - at_once % how.samples if at_once > how.samples else at_once  # whole images where possible
        self.inner = InnerBatch(whole)
        self.draws = self.session.prng_key(self.purpose)

    def optimise(self) -> Optimised:
        """Return what passes once the ratios have been optimised."""
        how, (batch, tokens, width) = self.objective, self.clean.shape
        shape = batch, len(self.layers) if how.by_layer else 1, tokens, width if how.by_channel else 1
        alpha = self.clean.new_full(shape, _ALPHA)
        adam = _Adam(alpha, how.lr)
        steps: list[tuple[Tensor, ...]] = []
        for number in range(how.updates):
            step = self._step(alpha, number, True)
            gradient, terms = step.gradient, step.terms.mean(dim=2)
            if how.every_term:
                compressed = terms.mean(dim=1)
            else:
                pull, compressed = self._pull(alpha)
                gradient[:, 0] += pull
            steps.append((compressed, step.score, step.hits, terms))
            alpha = adam(gradient)
        history = [torch.stack(each, dim=1) for each in zip(*steps, strict=True)]
        return Optimised(self._passing(alpha) * (width / math.log(2)), self._named(history))

    def _passing(self, alpha: Tensor) -> Tensor:
        """Return the information of every token at the end, ``[B, N]``, mean over channels and what was compressed."""
        if self.objective.every_term:
            return self._step(alpha, self.objective.updates, False).terms.mean(dim=1)
        return self._shown(alpha[:, 0]).mean(dim=-1)

    def _shown(self, alpha: Tensor) -> Tensor:
        return self.priors[0].counted(information(alpha, self.shown, self.blur))

    def _named(self, history: list[Tensor]) -> dict[str, Tensor]:
        compressed, score, hits, terms = history
        named = {"information": compressed, "relevance": score}
        if self.target.classes is not None:
            named["accuracy"] = hits
        if terms.shape[2] > 0:
            named["layer_information"] = terms
        return named

    def _pull(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``β dI/dα`` ``[B, N, C]`` and I ``[B]`` of the first bottleneck, mean over tokens and channels."""
        with torch.enable_grad():
            leaf = alpha[:, 0].detach().requires_grad_()
            passing = self._shown(leaf).mean(dim=(1, 2))
            (gradient,) = torch.autograd.grad(self.objective.beta * passing.sum(), leaf)
        return gradient, passing.detach()

    def _step(self, alpha: Tensor, number: int, backward: bool) -> _Step:
        """Run all replicas of all images once, in parts that fit into memory."""
        batch, samples = len(alpha), self.objective.samples
        total = torch.zeros_like(alpha)

        def part(start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
            gradient, *told = self._rows(alpha, number, start, stop, backward)
            for image in range(start // samples, (stop - 1) // samples + 1) if backward else ():
                total[image] += gradient[max(0, image * samples - start) : (image + 1) * samples - start].sum(dim=0)
            if self.session.on_progress is not None:
                self.session.on_progress(stop - start)
            return told[0], told[1], told[2]

        tried = self.inner.size
        parts = self.inner.run(part, batch * samples)
        if self.inner.size < tried:  # what was too much here is too much for the whole session
            self.session.batching.size = self.inner.size
        score, hits, terms = (torch.cat(each) for each in zip(*parts, strict=True))
        means = (each.reshape(batch, samples, *each.shape[1:]).mean(dim=1) for each in (score, hits, terms))
        return _Step(total / samples, *means)

    def _rows(self, alpha: Tensor, number: int, start: int, stop: int, backward: bool) -> tuple[Tensor, ...]:
        """Run replicas ``start .. stop - 1``: gradient, score, hit and the information of every layer, row by row."""
        model, how = self.session.model, self.objective
        images = torch.arange(start, stop, device=alpha.device) // how.samples
        with torch.inference_mode(False), torch.set_grad_enabled(backward):
            leaf = alpha[images].detach().requires_grad_(backward)
            dampers = [
                _Damper(self, number, index, start, stop, leaf[:, index if how.by_layer else 0], prior.rows(images))
                for index, prior in enumerate(self.priors)
            ]
            changes = dict(zip(self.layers, dampers, strict=True))
            logits = logits_with_patches(model, self.tokens[images], self.layers[0], self.site, changes, how.half)
            target = self.repeated.slice_images(start, stop)
            score = target.score(logits)
            noted = [damper.passing for damper in dampers if damper.passing is not None]
            terms = torch.stack(noted, dim=1) if noted else leaf.new_zeros(len(leaf), 0, leaf.shape[2])
            gradient = leaf.new_zeros(0)
            if backward:
                loss = -score.sum()
                if how.every_term:
                    loss = loss + how.beta * terms.mean(dim=(1, 2)).sum()
                scale = _SCALE if how.half else 1.0  # small gradients would be zero in float16
                (gradient,) = torch.autograd.grad(scale * loss, leaf)
                gradient = gradient / scale
        return gradient, score.detach().to(alpha), _hits(target, logits).to(alpha), terms.detach()

    def draw(self, number: int, index: int, start: int, stop: int, shape: torch.Size) -> Tensor:
        """Return standard normal numbers for these replicas at one layer and step, ``[stop - start, N, D]``."""
        rows = torch.arange(start, stop, device=self.draws.keys.device)
        samples = self.objective.samples
        return self.draws.at(number, index).select(rows // samples).at(rows % samples).normal(*shape[1:])


@dataclass(eq=False)
class _Damper:
    """``Z = λ R + (1 - λ) ε`` at one layer; notes the information that passes where someone asked."""

    whole: Bottlenecks
    number: int
    index: int
    start: int
    stop: int
    alpha: Tensor
    prior: Prior
    passing: Tensor | None = None

    def __call__(self, value: Tensor) -> Tensor:
        with torch.autocast(value.device.type, enabled=False):  # the model may run in float16; what is learnt does not
            return self._damped(value)

    def _damped(self, value: Tensor) -> Tensor:
        tokens = upcast(value.flatten(1, 2) if value.ndim == 4 else value)
        how = self.whole.objective
        if how.every_term or how.watch:
            with torch.set_grad_enabled(how.every_term and torch.is_grad_enabled()):
                surprise = self.prior.surprise(tokens, how.by_channel)
                passing = information(self.alpha, surprise, self.whole.blur)
                self.passing = self.prior.counted(passing).mean(dim=-1)
        noise = self.whole.draw(self.number, self.index, self.start, self.stop, tokens.shape).to(tokens)
        noise = noise.mul_(self.prior.std).add_(self.prior.mean)
        ratio = torch.sigmoid(self.alpha)
        ratio = ratio if self.whole.blur is None else self.whole.blur(ratio)
        damped = torch.lerp(noise, tokens, ratio)
        damped = damped if self.prior.active is None else damped * self.prior.active
        return damped.to(value).view_as(value)


class _Adam:
    """Adam, element by element, so that images do not see each other."""

    def __init__(self, start: Tensor, lr: float) -> None:
        self.at, self.lr, self.count = start, lr, 0
        self.first, self.second = torch.zeros_like(start), torch.zeros_like(start)

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return where the next step leads."""
        self.count += 1
        self.first = torch.lerp(gradient, self.first, _BETAS[0])
        self.second = torch.lerp(gradient**2, self.second, _BETAS[1])
        mean = self.first / (1 - _BETAS[0] ** self.count)
        size = (self.second / (1 - _BETAS[1] ** self.count)).sqrt()
        self.at = self.at - self.lr * mean / (size + _EPS)
        return self.at


def _hits(target: Target, logits: Tensor) -> Tensor:
    """Return 1 where a replica is still seen as the explained class, ``[R]``."""
    if target.classes is None:
        return logits.new_zeros(len(logits))
    return class_logits(logits.detach(), target.class_subset).argmax(dim=1) == target.classes.clone().to(logits.device)
