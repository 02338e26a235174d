"""K-means over many sets of rows at once, without waiting for the device at every step.

Sampling tokens: what the model says when it is shown only some of the patches.

Refine: samples of the tokens correct a cheap map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, ModelError, SpecError
from vitreous.methods.base import Attribution, BaseWrapper, Method, computed, resized
from vitreous.methods.masking import FILLS, cell_of, filling, refuse_whole_grids, scored, scored_rows, with_places
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import VALUES, ActivationCache, Context, Pass, Record, activation_value, upcast
from vitreous.tracing.memory import budget_bytes, in_parts

__all__ = [
    "Refine",
    "Regression",
    "TIS",
    "centroids",
    "regress",
]

_TOLERANCE = 1e-4  # the total squared shift of all centroids of a set below which it is finished
_LOOK_EVERY = 10


def centroids(rows: Tensor, first: Tensor, iterations: int) -> Tensor:
    """Return the centroids ``[B, M, n]`` of rows ``[B, R, n]``, starting from the rows ``first`` (``[B, M]`` indices).

    Lloyd's algorithm with Euclidean distances: assign each row to its nearest centroid (the first of equals), move
    each centroid to the mean of its rows; one without rows becomes zero and stays in the game. A set whose centroids
    moved by no more than 1e-4 in all, squared, is left as it is while the others go on. The device is asked only every
    ten steps whether all are finished.
    """
    batch, count = first.shape
    centres = rows.gather(1, first.unsqueeze(2).expand(-1, -1, rows.shape[2]))
    finished = torch.zeros(batch, 1, 1, dtype=torch.bool, device=rows.device)
    offsets = torch.arange(batch, device=rows.device).unsqueeze(1) * count
    flat = rows.flatten(0, 1)
    for step in range(iterations):
        # |x - c|^2 less |x|^2, which is the same for all c
        distances = torch.baddbmm(centres.square().sum(dim=2).unsqueeze(1), rows, centres.transpose(1, 2), alpha=-2)
        place = (distances.argmin(dim=2) + offsets).flatten()
        moved = _means(flat, place, batch * count).view_as(centres)
        shift = (moved - centres).square().sum(dim=(1, 2), keepdim=True)
        centres = torch.where(finished, centres, moved)
        finished = finished | (shift <= _TOLERANCE)
        if step % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(finished.all()):
            break
    return centres


def _means(rows: Tensor, place: Tensor, places: int) -> Tensor:
    """Return the mean ``[places, n]`` of the rows at each place, zero where there is none.

    The order of a sum decides its rounding, and one that changes from run to run would move the clusters:
    ``index_put_`` has a fixed order on a GPU, ``index_add_`` on a CPU, and neither on the other.
    """
    sums = rows.new_zeros(places, rows.shape[1])
    counts = torch.zeros(places, dtype=torch.int64, device=rows.device)
    counts.scatter_add_(0, place, torch.ones_like(place))
    if rows.is_cuda:
        sums.index_put_((place,), rows, accumulate=True)
    else:
        sums.index_add_(0, place, rows)
    return sums / counts.clamp(min=1).unsqueeze(1)


@register_method(
    "tis",
    family="sampling",
    papers=("englebert2023explaining",),
    cost=(513, 0),
    cost_note="1 F + masks forwards of part of the tokens",
    models="ViT",
)
@dataclass(frozen=True)
class TIS(Method):
    """The mean score of the token samples that a patch is part of.

    The outputs of all blocks, channel by channel, are L D rows over the n patches; k-means makes ``masks`` centroids of
    them. Each centroid keeps the ``int(ratio n)`` patches where it is largest, and the model sees these and the prefix
    tokens only, picked after the position embedding: ``map[i] = sum_j w_j M_ji / sum_j M_ji`` with ``w_j`` the
    probability of the class (``score``: ``prob``, ``logit`` or ``logprob``). As released, rows are not normalised, so
    deep blocks with their large values make most of the clusters, an empty cluster becomes zero, and 100 steps are the
    limit. The first centroids are random rows, each taken once. With fewer rows than masks there is one mask per row.
    A patch that no sample has gets the lowest value of the others, where the released code divides 0 by 0; the release
    min-maxes the map at the end. ``half`` scores in float16, on a GPU. Equal samples are scored once. Cost: one
    forward, and one of ``ratio`` times the length per mask. Extras: ``kept``, the share of samples with the patch, and
    ``halves``, the maps of every other sample.
    """

    masks: int = 1024
    ratio: float = 0.5
    output: str = "prob"
    half: bool = False
    iterations: int = 100

    def __post_init__(self) -> None:
        check_choice("output", self.output, VALUES)
        if self.masks < 1 or self.iterations < 0:
            raise SpecError(f"masks={self.masks}, iterations={self.iterations} must be at least 1 and at least 0")
        if not 0 < self.ratio <= 1:
            raise SpecError(f"ratio={self.ratio} must be above 0 and at most 1")

    @property
    def fixed_output(self) -> str:
        return self.output

    @property
    def cost(self) -> tuple[float, float]:
        return 1 + self.masks * self.ratio, 0

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + self.masks

    def records(self, model: VisionModel) -> list[Record]:
        refuse_whole_grids("tis", model)
        return [_TOKENS, Record("resid_post", activation_value, tuple(range(model.depth)), grad=False)]

    def compute(self, context: Context) -> Attribution:
        cache = self.record(context)
        height, width = cache.grid
        kept = int(self.ratio * height * width)
        if kept < 1:
            raise ModelError(f"tis: ratio={self.ratio} of {height} x {width} patches is less than one patch")
        images, samples, back = with_places(self._samples(context, cache, kept))
        rows = back.view(len(context.inputs), -1)
        parts = (rows, rows[:, 0::2], rows[:, 1::2]) if rows.shape[1] > 1 else (rows,)
        times = torch.stack([torch.bincount(part.flatten(), minlength=len(images)) for part in parts])
        (tokens,) = cache[_TOKENS]
        scores = scored(context, "tis", tokens, images, samples, self.output, self.half)
        means, share = _mean_over_samples(scores, images, samples, times, len(context.inputs), height * width)
        shape = (-1, height, width)
        extras = {"kept": share.reshape(shape)}
        if len(parts) > 1:
            extras["halves"] = means[:, 1:].reshape(-1, 2, height, width)
        return Attribution(means[:, 0].reshape(shape), extras)

    def _samples(self, context: Context, cache: ActivationCache, kept: int) -> Tensor:
        """Return the patches ``[B, masks, k]`` of each sample, in ascending order."""
        outputs = cache[self.records(context.model)[1]]
        rows = len(outputs) * outputs[0].shape[2]
        masks = min(self.masks, rows)
        first = context.prng_key("tis").permutation(rows)[:, :masks]

        def part(start: int, stop: int) -> Tensor:
            patches = [upcast(output[start:stop, context.model.num_prefix_tokens :]) for output in outputs]
            channels = torch.cat(patches, dim=2).transpose(1, 2).contiguous()  # [b, L D, n]
            centres = centroids(channels, first[start:stop].to(channels.device), self.iterations)
            # equal values, such as those of an empty cluster, are taken from the front
            best = centres.sort(dim=2, descending=True, stable=True).indices[:, :, :kept]
            return best.sort(dim=2).values

        # distances, their lowest and the assignment of each row exist at the same time
        bytes_each = 3 * rows * masks * upcast(outputs[0][:0]).element_size()
        at_once = max(1, int(budget_bytes(context.inputs.device, context.memory_gb) / bytes_each))
        return torch.cat(in_parts(part, len(context.inputs), at_once))


def _mean_over_samples(
    scores: Tensor, images: Tensor, samples: Tensor, times: Tensor, batch: int, patches: int
) -> tuple[Tensor, Tensor]:
    """Return the mean score of the samples with each patch, and the share ``[B, n]`` of samples that have it.

    ``times [T, S]`` says how often each sample counts; the means ``[B, T, n]`` are those of each of these counts, the
    share that of the first.
    """
    maps, shares = [], []
    for image in range(batch):
        own = images == image
        weight = times[:, own].to(scores)
        has = weight.new_zeros(weight.shape[1], patches).scatter_(1, samples[own], 1.0)
        count = weight @ has
        mean = (weight * scores[own]) @ has / count.clamp(min=1)
        lowest = mean.masked_fill(count == 0, torch.inf).amin(dim=1, keepdim=True)
        maps.append(torch.where(count == 0, lowest, mean))
        shares.append(count[0] / weight[0].sum())
    return torch.stack(maps), torch.stack(shares)


_WEAKEST = 10  # powers of 2 from which on a ridge leaves nothing of the correction
_LEVELS = 8  # different shares of kept tokens, where they are spread


@register_method(
    "refine",
    family="combinator",
    builds_on=("ribeiro2016why",),
    cost=(513, 0),
    cost_note="base + masks forwards of part of the tokens",
)
@dataclass(frozen=True)
class Refine(BaseWrapper):
    """A base map corrected by a regression of scores on random token subsets.

    ``masks`` subsets are drawn for every image, and the model sees these patches and the prefix tokens only, picked
    after the position embedding. A model that cannot leave tokens out sees the image with all other cells of its grid
    painted over: with their ``own`` mean colour, ``zero`` in normalised space, the ``mean`` colour of the image or a
    ``blur`` of it (``fill``). ``drop`` asks for one or the other; ``none`` is what the model can.

    With Z the centred indicators ``[masks, n]`` and y the centred scores, the map is ``a m + d``: m the centred base
    map, ``a`` its best multiple (least squares of y on Z m; 0 for a map without variance), and ``d = argmin |y - a Z m
    - Z d|² + λ |d|²`` what the prior leaves unexplained, ``λ = ridge tr(Z'Z) / n``; ``ridge=none`` takes
    the one of generalised cross-validation, image by image.
    ``doubt`` takes back what may be chance: of ``d_j`` stays ``max(0, 1 - doubt (e_j / d_j)²)``, with ``e_j`` its
    standard error. So ``refine(constant)`` is a plain ridge regression. Subsets come in pairs, a set and its
    complement, unless ``pairs`` is off; ``ratio`` is the share that is kept (its pair has ``1 - ratio``), spread over
    eight levels up to ``spread`` to either side. ``score``: ``prob``, ``logit`` or ``logprob`` of the class; ``half``
    scores in float16, on a GPU. Equal subsets are scored once. Extras: ``r2``, how well each half of the samples
    predicts the other; ``halves``, the map of each; ``error``, the standard error of every token; ``prior``, the share
    of the prediction that is the prior's. Cost: the base, and per mask a forward of ``ratio`` times the length, or a
    whole one where cells are painted over. Our own; it builds on LIME (Ribeiro et al., KDD 2016), which fits a ridge
    regression to random subsets without a prior.
    """

    base: Method
    masks: int = 1024
    ratio: float = 0.5
    spread: float = 0.0
    pairs: bool = True
    ridge: float | None = 1.0
    doubt: float = 0.0
    output: str = "prob"
    half: bool = False
    drop: bool | None = None
    fill: str = "own"

    def __post_init__(self) -> None:
        check_choice("output", self.output, VALUES)
        check_choice("fill", self.fill, FILLS)
        if self.masks < 8 or self.masks % 4:
            raise SpecError(f"masks={self.masks} must be at least 8, and a multiple of 4")
        if not 0 < self.ratio < 1 or not 0 <= self.spread < min(self.ratio, 1 - self.ratio):
            raise SpecError(f"ratio={self.ratio}, spread={self.spread} must leave shares between 0 and 1")
        if self.ridge is not None and not self.ridge > 0:
            raise SpecError(f"ridge={self.ridge} must be above 0; none chooses it for every image")
        if not 0 <= self.doubt < math.inf:
            raise SpecError(f"doubt={self.doubt} must be a number from 0 on")

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "token"

    @property
    def class_specific(self) -> bool:
        return True

    @property
    def fixed_output(self) -> str:
        return self.output

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return forwards + self.masks * (0.5 if self.pairs else self.ratio), backwards

    def num_forwards(self, model: VisionModel) -> float:
        return self.base.num_forwards(model) + self.masks

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        return (*((Pass((_TOKENS,)),) if self._drops(model) else ()), *self.base.passes(model))

    def _drops(self, model: VisionModel) -> bool:
        """Whether tokens leave the sequence."""
        if self.drop:
            refuse_whole_grids(f"{self.info.name}(drop=true)", model)
        return model.can_drop_tokens if self.drop is None else self.drop

    def compute(self, context: Context) -> Attribution:
        shape = context.model.grid(context.inputs)
        prior = resized(computed(context, self.base).map, shape).flatten(1).double()
        if not torch.isfinite(prior).all():
            raise MapError(f"{self.base.spec} gave values that are not finite, inside {self.info.name}")
        kept, scores = self._sampled(context, shape)
        solved = self._solve(context, kept, scores, prior)
        halves = [self._solve(context, kept[:, each::2], scores[:, each::2], prior) for each in (0, 1)]
        r2 = [_explained(kept[:, 1 - i :: 2], scores[:, 1 - i :: 2], half.map) for i, half in enumerate(halves)]
        extras = {
            "r2": torch.stack(r2, dim=1).mean(dim=1),
            "halves": torch.stack([half.map for half in halves], dim=1).view(-1, 2, *shape),
            "error": solved.error.view(-1, *shape),
            "prior": solved.prior,
        }
        like = torch.float64 if context.model.dtype == torch.float64 else torch.float32
        return Attribution(
            solved.map.view(-1, *shape).to(like), {name: extra.to(like) for name, extra in extras.items()}
        )

    def _sampled(self, context: Context, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return subsets and scores, drawn and run once for whatever is refined by the same ones."""
        how = ("drop",) if self._drops(context.model) else ("paint", self.fill)
        key = ("refine", self.masks, self.ratio, self.spread, self.pairs, self.output, self.half, *how)
        if key not in context.memo:
            kept = self._kept(context, shape[0] * shape[1])
            score = self._scores if how == ("drop",) else self._painted
            context.memo[key] = kept, score(context, kept, shape)
        sampled: tuple[Tensor, Tensor] = context.memo[key]
        return sampled

    def _kept(self, context: Context, patches: int) -> Tensor:
        """Return which patches every subset keeps, ``[B, masks, n]``; every other row is one half, with whole pairs."""
        if patches < 2:
            raise ModelError(f"{self.info.name}: an image of one patch has no subsets")
        rows = self.masks // 2 if self.pairs else self.masks
        ranks = context.prng_key("refine").bits(rows, patches).argsort(dim=2, stable=True).argsort(dim=2)
        levels = torch.arange(rows, device=ranks.device) % _LEVELS
        shares = self.ratio + self.spread * (2 * levels + 1 - _LEVELS) / _LEVELS
        counts = (shares * patches).round().clamp(1, patches - 1)
        first = ranks < counts[None, :, None]
        if not self.pairs:
            return first
        both = torch.stack([first[:, 0::2], first[:, 1::2], ~first[:, 0::2], ~first[:, 1::2]], dim=2)
        return both.flatten(1, 2)

    def _painted(self, context: Context, kept: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return the score of every image behind its subsets ``[B, masks]``; equal ones are run once."""
        model, inputs, filled = context.model, context.inputs, filling(context, self.info.name, self.fill)
        images, subsets, back = with_places(kept.long())
        if inputs.ndim == 3:
            shown = F.pad(subsets.bool(), (model.num_prefix_tokens, 0), value=True)
            places = torch.arange(shown.shape[1], device=shown.device)[:, None].expand(-1, inputs.shape[2])
        else:
            shown, wide = subsets.bool(), shape[1]
            rows, columns = (cell_of(*each).to(shown.device) for each in zip(inputs.shape[2:], shape, strict=True))
            places = (rows[:, None] * wide + columns).expand(inputs.shape[1], -1, -1)

        def logits(start: int, stop: int) -> Tensor:
            seen, of = shown[start:stop][:, places], images[start:stop]
            return model.forward_head(model.forward_blocks(model.embed(torch.where(seen, inputs[of], filled[of]))))

        found = scored_rows(context, self.info.name, logits, images, self.output, self.half)
        return found.double()[back].view(len(kept), -1)

    def _scores(self, context: Context, kept: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return the score of every subset ``[B, masks]``; equal ones are run once, those of one length together."""
        (tokens,) = context.run_pass(Pass((_TOKENS,)))[_TOKENS]
        scores = kept.new_zeros(kept.shape[:2], dtype=torch.float64)
        counts = kept[0].sum(dim=1)  # the same for all images
        for count in sorted(set(counts.tolist())):
            mine = (counts == count).nonzero().flatten()
            chosen = kept[:, mine].to(torch.uint8).sort(dim=2, descending=True, stable=True).indices[:, :, :count]
            images, subsets, back = with_places(chosen)
            found = scored(context, self.info.name, tokens, images, subsets, self.output, self.half)
            scores[:, mine] = found.double()[back].view(len(kept), -1)
        return scores

    def _solve(self, context: Context, kept: Tensor, scores: Tensor, prior: Tensor) -> Regression:
        """Regress image by image, as many at once as memory allows."""
        bytes_each = 8 * kept.shape[2] * (4 * kept.shape[1] + 4 * kept.shape[2])
        at_once = max(1, int(budget_bytes(context.inputs.device, context.memory_gb) / bytes_each))

        def part(start: int, stop: int) -> Regression:
            cut = slice(start, stop)
            return regress(kept[cut].double(), scores[cut], prior[cut], self.ridge, self.doubt)

        return Regression(*(torch.cat(each) for each in zip(*in_parts(part, len(kept), at_once), strict=True)))


class Regression(NamedTuple):
    """The map ``[B, n]``, its standard error ``[B, n]``, and which share ``[B]`` of the prediction is the prior's."""

    map: Tensor
    error: Tensor
    prior: Tensor


def regress(kept: Tensor, scores: Tensor, prior: Tensor, ridge: float | None, doubt: float = 0.0) -> Regression:
    """Regress scores ``[B, S]`` on indicators ``[B, S, n]`` around the best multiple of a prior ``[B, n]``.

    Without a ridge, each image gets the one that generalised cross-validation prefers. What is left of a correction
    with a standard error is ``max(0, 1 - doubt (error / correction)²)`` of it.
    """
    design = kept - kept.mean(dim=1, keepdim=True)
    response = scores - scores.mean(dim=1, keepdim=True)
    centred = prior - prior.mean(dim=1, keepdim=True)
    guess = (design @ centred[:, :, None])[:, :, 0]
    size = (guess**2).sum(dim=1)
    varies = ((centred**2).sum(dim=1) > 1e-20 * (prior**2).sum(dim=1)) & (size > 0)  # more than rounding
    multiple = torch.where(varies, (guess * response).sum(dim=1) / torch.where(varies, size, 1), 0)
    told = multiple[:, None] * guess
    gram = design.mT @ design
    moment = (design.mT @ (response - told)[:, :, None])[:, :, 0]
    unit = gram.diagonal(dim1=1, dim2=2).mean(dim=1)
    strength = ridge * unit if ridge is not None else _validated(gram, moment, response - told, unit)
    matrix = gram + torch.diag_embed(strength[:, None].expand(-1, gram.shape[1]))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    rest = (inverse @ moment[:, :, None])[:, :, 0]
    corrected = (design @ rest[:, :, None])[:, :, 0]
    spread = inverse @ gram
    freedom = (kept.shape[1] - 1 - spread.diagonal(dim1=1, dim2=2).sum(dim=1)).clamp(min=1)
    noise = ((response - told - corrected) ** 2).sum(dim=1) / freedom
    error = (noise[:, None] * (spread @ inverse).diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt()
    rest = rest * (1 - doubt * error**2 / torch.where(rest != 0, rest**2, 1)).clamp(min=0)
    corrected = (design @ rest[:, :, None])[:, :, 0]
    parts = (told**2).sum(dim=1), (corrected**2).sum(dim=1)
    share = parts[0] / (parts[0] + parts[1]).clamp(min=torch.finfo(torch.float64).tiny)
    return Regression(multiple[:, None] * centred + rest, error, share)


def _validated(gram: Tensor, moment: Tensor, response: Tensor, unit: Tensor) -> Tensor:
    """Return the ridge ``[B]`` with the least ``residual / freedom²`` among powers of 2 times a unit ``[B]``."""
    sizes, axes = torch.linalg.eigh(gram)
    sizes = sizes.clamp(min=0)[:, None]
    turned = (axes.mT @ moment[:, :, None]).mT
    strengths = unit[:, None] * 2.0 ** torch.arange(-1, _WEAKEST, device=gram.device)
    damped = sizes + strengths[:, :, None]
    fitted = turned / damped
    left = (response**2).sum(dim=1, keepdim=True) - 2 * (fitted * turned).sum(dim=2) + (sizes * fitted**2).sum(dim=2)
    freedom = response.shape[1] - 1 - (sizes / damped).sum(dim=2)
    best = (left / freedom**2).argmin(dim=1, keepdim=True)
    return strengths.gather(1, best)[:, 0]


def _explained(kept: Tensor, scores: Tensor, fitted: Tensor) -> Tensor:
    """Return the share of the variance of the scores that a map predicts, ``[B]``; below 0 if it is worse than none."""
    prediction = (kept.double() @ fitted[:, :, None])[:, :, 0]
    prediction = prediction - prediction.mean(dim=1, keepdim=True)
    response = scores - scores.mean(dim=1, keepdim=True)
    total = (response**2).sum(dim=1)
    left = ((response - prediction) ** 2).sum(dim=1)
    return torch.where(total > 0, 1 - left / torch.where(total > 0, total, 1), 0)


_TOKENS = Record("resid_pre", activation_value, (0,), grad=False)
