"""What the model says when it is shown only some of the patches: TIS on chosen subsets, refine on random ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.errors import ModelError, SpecError
from vitreous.methods import masking, ops
from vitreous.methods.base import Attribution, BaseWrapper, Method, compute_shared, refuse_not_finite
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import VALUES, ActivationCache, Context, Pass, Record, activation_value, upcast

_TOLERANCE = 1e-4  # the total squared shift of all centroids of a set below which it is finished
_CHECK_EVERY = 10


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
        cluster = (distances.argmin(dim=2) + offsets).flatten()
        moved = _cluster_means(flat, cluster, batch * count).view_as(centres)
        shift = (moved - centres).square().sum(dim=(1, 2), keepdim=True)
        centres = torch.where(finished, centres, moved)
        finished = finished | (shift <= _TOLERANCE)
        if step % _CHECK_EVERY == _CHECK_EVERY - 1 and bool(finished.all()):
            break
    return centres


def _cluster_means(rows: Tensor, cluster: Tensor, clusters: int) -> Tensor:
    """Return the mean ``[clusters, n]`` of the rows of each cluster, zero where there is none.

    The order of a sum decides its rounding, and one that changes from run to run would move the clusters:
    ``index_put_`` has a fixed order on a GPU, ``index_add_`` on a CPU, and neither on the other.
    """
    sums = rows.new_zeros(clusters, rows.shape[1])
    counts = torch.zeros(clusters, dtype=torch.int64, device=rows.device)
    counts.scatter_add_(0, cluster, torch.ones_like(cluster))
    if rows.is_cuda:
        sums.index_put_((cluster,), rows, accumulate=True)
    else:
        sums.index_add_(0, cluster, rows)
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
    r"""The mean score of the token samples that a patch is part of.

    .. math:: M_i = \frac{\sum_j s_j\, m_{ji}}{\sum_j m_{ji}}

    with :math:`s_j` the score of the model on the prefix tokens and the patches of sample j only, picked after the
    position embedding. The outputs of all L blocks, channel by channel, are L D rows over the n patches; k-means makes
    ``masks`` centroids of them, and each centroid gives the sample of the patches where it is largest.

    Parameters
    ----------
    masks : int, default 1024
        How many samples; with fewer rows than masks there is one per row.
    ratio : float, default 0.5
        The share of patches in a sample, ``int(ratio n)`` of them.
    output : {"prob", "logit", "logprob"}, default "prob"
        The score of the class.
    half : bool, default False
        Score in float16, on a GPU.
    iterations : int, default 100
        The most steps of k-means.

    Notes
    -----
    As released, rows are not normalised, so deep blocks with their large values make most of the clusters, and an empty
    cluster becomes zero. The first centroids are random rows, each taken once. A patch that no sample has gets the
    lowest value of the others, where the released code divides 0 by 0; the release min-maxes the map at the end. Equal
    samples are scored once. Extras: ``kept``, the share of samples with the patch, and ``halves``, the maps of every
    other sample. Cost: one forward, and one of ``ratio`` times the length per mask.

    References
    ----------
    Englebert et al., "Explaining through Transformer Input Sampling", ICCV Workshops 2023.

    Examples
    --------
    >>> vt.explain(model, image, "tis(masks=8, iterations=2)").map.shape
    torch.Size([16, 16])
    """

    masks: int = number(1024, "[1, inf)")
    ratio: float = number(0.5, "(0, 1]")
    output: str = choice("prob", *VALUES)
    half: bool = False
    iterations: int = number(100, "[0, inf)")

    @property
    def cost(self) -> tuple[float, float]:
        return 1 + self.masks * self.ratio, 0

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + self.masks

    def records(self, model: VisionModel) -> list[Record]:
        masking.refuse_undroppable("tis", model)
        return [masking.TOKENS, Record("resid_post", activation_value, tuple(range(model.depth)), grad=False)]

    def compute(self, context: Context) -> Attribution:
        cache = self.record(context)
        height, width = cache.grid
        size = int(self.ratio * height * width)
        if size < 1:
            raise ModelError(f"tis: ratio={self.ratio} of {height} x {width} patches is less than one patch")
        subsets = self._choose_samples(context, cache, size)
        samples = masking.score_distinct(context, subsets, masking.dropped_logits(context), self.output, self.half)
        means, share = _mean_over_samples(samples, height * width)
        extras = {"kept": share.reshape(-1, height, width)}
        if means.shape[1] > 1:
            extras["halves"] = means[:, 1:].reshape(-1, 2, height, width)
        return Attribution(means[:, 0].reshape(-1, height, width), extras)

    def _choose_samples(self, context: Context, cache: ActivationCache, size: int) -> Tensor:
        """Return the patches ``[B, masks, size]`` of each sample, in ascending order."""
        outputs = cache[self.records(context.model)[1]]
        rows = len(outputs) * outputs[0].shape[2]
        masks = min(self.masks, rows)
        first = context.prng_key("tis").permutation(rows)[:, :masks]

        def part(start: int, stop: int) -> Tensor:
            patches = [upcast(output[start:stop, context.model.num_prefix_tokens :]) for output in outputs]
            channels = torch.cat(patches, dim=2).transpose(1, 2).contiguous()  # [b, L D, n]
            centres = centroids(channels, first[start:stop].to(channels.device), self.iterations)
            return masking.first_patches(centres, size).sort(dim=2).values

        # distances, their lowest and the assignment of each row exist at the same time
        bytes_per_image = 3 * rows * masks * upcast(outputs[0][:0]).element_size()
        return torch.cat(ops.run_in_parts(context, part, len(context.inputs), bytes_per_image))


def _mean_over_samples(samples: masking.DistinctScores, patches: int) -> tuple[Tensor, Tensor]:
    """Return the mean score of the samples with each patch, and the share ``[B, n]`` of samples that have it.

    The means ``[B, 1 or 3, n]`` are those of all samples, of the even ones and of the odd ones.
    """
    rows = samples.row
    parts = (rows, rows[:, 0::2], rows[:, 1::2]) if rows.shape[1] > 1 else (rows,)
    times = torch.stack([torch.bincount(part.flatten(), minlength=len(samples.images)) for part in parts])
    means, shares = [], []
    for image in range(len(rows)):
        own = samples.images == image
        weight = times[:, own].to(samples.scores)
        members = weight.new_zeros(weight.shape[1], patches).scatter_(1, samples.subsets[own], 1.0)
        count = weight @ members
        mean = (weight * samples.scores[own]) @ members / count.clamp(min=1)
        lowest = mean.masked_fill(count == 0, torch.inf).amin(dim=1, keepdim=True)
        means.append(torch.where(count == 0, lowest, mean))
        shares.append(count[0] / weight[0].sum())
    return torch.stack(means), torch.stack(shares)


_WEAKEST = 10  # powers of 2 from which on a ridge leaves nothing of the correction
_LEVELS = 8  # different shares of patches, where they are spread


@register_method(
    "refine",
    family="combinator",
    builds_on=("ribeiro2016why",),
    cost=(513, 0),
    cost_note="base + masks forwards of part of the tokens",
)
@dataclass(frozen=True)
class Refine(BaseWrapper):
    r"""A base map corrected by a regression of scores on random token subsets.

    .. math::
        M = a\, m + d, \qquad a = \arg\min_a \lVert y - a Z m \rVert^2, \qquad
        d = \arg\min_d \lVert y - a Z m - Z d \rVert^2 + \lambda \lVert d \rVert^2

    with m the centred base map, Z the centred indicators of the subsets, y the centred scores of the model on these
    patches and the prefix tokens only, and :math:`\lambda = \text{ridge} \operatorname{tr}(Z^\top Z) / n` over the n
    patches.

    Parameters
    ----------
    base : Method
        The method whose map is corrected; ``refine(constant)`` is a plain ridge regression.
    masks : int, default 1024
        How many subsets for every image, at least 8 and a multiple of 4.
    ratio : float, default 0.5
        The share of patches in a subset.
    spread : float, default 0.0
        How far shares are spread to either side, over eight levels.
    pairs : bool, default True
        Whether subsets come in pairs, a set and its complement.
    ridge : float or None, default 1.0
        The strength of the ridge; ``None`` takes that of generalised cross-validation, image by image.
    doubt : float, default 0.0
        Take back what may be chance: of :math:`d_j` stays :math:`\max(0, 1 - \text{doubt}\,(e_j / d_j)^2)`, with
        :math:`e_j` its standard error.
    output : {"prob", "logit", "logprob"}, default "prob"
        The score of the class.
    half : bool, default False
        Score in float16, on a GPU.
    drop : bool or None, default None
        Whether the other tokens are left out, after the position embedding, or painted over; without it, what the
        model can.
    fill : {"own", "zero", "mean", "blur"}, default "own"
        What is painted: the mean colour of each patch, zero in normalised space, the mean colour of the image or a blur
        of it.

    Notes
    -----
    Our own; it builds on LIME, which fits a ridge regression to random subsets without a prior. Equal subsets are
    scored once. Extras: ``r2``, how well each half of the samples predicts the other; ``halves``, the map of each;
    ``error``, the standard error of every token; ``prior``, the share of the prediction that is the base's. Cost: the
    base, and per mask a forward of ``ratio`` times the length, or a whole one where cells are painted over.

    References
    ----------
    Ribeiro et al., "'Why Should I Trust You?': Explaining the Predictions of Any Classifier", KDD 2016.

    Examples
    --------
    >>> sorted(vt.explain(model, image, "refine(ixg, masks=8)").extras)
    ['error', 'halves', 'prior', 'r2']
    """

    base: Method
    masks: int = 1024
    ratio: float = 0.5
    spread: float = 0.0
    pairs: bool = True
    ridge: float | None = 1.0
    doubt: float = number(0.0, "[0, inf)")
    output: str = choice("prob", *VALUES)
    half: bool = False
    drop: bool | None = None
    fill: str = choice("own", *masking.FILLS)
    grid = "token"
    class_specific = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masks < 8 or self.masks % 4:
            raise SpecError(f"masks={self.masks} must be at least 8, and a multiple of 4")
        if not 0 < self.ratio < 1 or not 0 <= self.spread < min(self.ratio, 1 - self.ratio):
            raise SpecError(f"ratio={self.ratio}, spread={self.spread} must leave shares between 0 and 1")
        if self.ridge is not None and not self.ridge > 0:
            raise SpecError(f"ridge={self.ridge} must be above 0; none chooses it for every image")

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return forwards + self.masks * (0.5 if self.pairs else self.ratio), backwards

    def num_forwards(self, model: VisionModel) -> float:
        return self.base.num_forwards(model) + self.masks

    def passes(self, model: VisionModel) -> tuple[Pass, ...]:
        own = (Pass((masking.TOKENS,)),) if self._drops(model) else ()
        return *own, *self.base.passes(model)

    def _drops(self, model: VisionModel) -> bool:
        """Whether tokens leave the sequence."""
        if self.drop:
            masking.refuse_undroppable(f"{self.info.name}(drop=true)", model)
        return model.can_drop_tokens if self.drop is None else self.drop

    def compute(self, context: Context) -> Attribution:
        shape = context.model.grid(context.inputs)
        base_map = refuse_not_finite(compute_shared(context, self.base).map, self.base, self)
        prior = ops.resize_map(base_map, shape).flatten(1).double()
        visible, scores = self._sample(context, shape[0] * shape[1])
        result = self._regress(context, visible, scores, prior)
        halves = [self._regress(context, visible[:, i::2], scores[:, i::2], prior).map for i in (0, 1)]
        r2 = [_explained_variance(visible[:, 1 - i :: 2], scores[:, 1 - i :: 2], half) for i, half in enumerate(halves)]
        dtype = upcast(context.inputs).dtype
        extras = {
            "r2": torch.stack(r2, dim=1).mean(dim=1),
            "halves": torch.stack(halves, dim=1).view(-1, 2, *shape),
            "error": result.error.view(-1, *shape),
            "prior": result.prior,
        }
        return Attribution(
            result.map.view(-1, *shape).to(dtype), {name: extra.to(dtype) for name, extra in extras.items()}
        )

    def _sample(self, context: Context, patches: int) -> tuple[Tensor, Tensor]:
        """Return subsets and scores ``[B, masks]``, drawn and run once for whatever is refined by the same ones."""
        copies = "drop" if self._drops(context.model) else self.fill
        key = ("refine", self.masks, self.ratio, self.spread, self.pairs, self.output, self.half, copies)

        def sample() -> tuple[Tensor, Tensor]:
            visible = self._draw_subsets(context, patches)
            return visible, self._score(context, visible)

        return ops.compute_once(context, key, sample)

    def _draw_subsets(self, context: Context, patches: int) -> Tensor:
        """Return which patches every subset has, ``[B, masks, n]``; every other row is one half, with whole pairs."""
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

    def _score(self, context: Context, visible: Tensor) -> Tensor:
        """Return the score of every subset ``[B, masks]``; those of one length together, where tokens are left out."""
        if not self._drops(context.model):
            painted = masking.painted_logits(context, self.info.name, self.fill)
            distinct = masking.score_distinct(context, visible.long(), painted, self.output, self.half)
            return distinct.scores.double()[distinct.row]
        dropped = masking.dropped_logits(context)
        scores = visible.new_zeros(visible.shape[:2], dtype=torch.float64)
        counts = visible[0].sum(dim=1)  # the same for all images
        for count in sorted(set(counts.tolist())):
            rows = (counts == count).nonzero().flatten()
            subsets = masking.first_patches(visible[:, rows], count)
            distinct = masking.score_distinct(context, subsets, dropped, self.output, self.half)
            scores[:, rows] = distinct.scores.double()[distinct.row]
        return scores

    def _regress(self, context: Context, visible: Tensor, scores: Tensor, prior: Tensor) -> Regression:
        """Regress image by image, as many at once as memory allows."""
        bytes_per_image = 8 * visible.shape[2] * (4 * visible.shape[1] + 4 * visible.shape[2])

        def part(start: int, stop: int) -> Regression:
            cut = slice(start, stop)
            return regress(visible[cut].double(), scores[cut], prior[cut], self.ridge, self.doubt)

        parts = ops.run_in_parts(context, part, len(visible), bytes_per_image)
        return Regression(*(torch.cat(column) for column in zip(*parts, strict=True)))


class Regression(NamedTuple):
    """The map ``[B, n]``, its standard error ``[B, n]``, and which share ``[B]`` of the prediction is the prior's."""

    map: Tensor
    error: Tensor
    prior: Tensor


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return matrices ``[B, S, n]`` times vectors ``[B, n]``."""
    return (matrix @ vector[:, :, None])[:, :, 0]


def regress(visible: Tensor, scores: Tensor, prior: Tensor, ridge: float | None, doubt: float = 0.0) -> Regression:
    """Regress scores ``[B, S]`` on indicators ``[B, S, n]`` around the best multiple of a prior ``[B, n]``.

    Without a ridge, each image gets the one that generalised cross-validation prefers. What is left of a correction
    with a standard error is ``max(0, 1 - doubt (error / correction)²)`` of it.
    """
    design = visible - visible.mean(dim=1, keepdim=True)
    response = scores - scores.mean(dim=1, keepdim=True)
    centred = prior - prior.mean(dim=1, keepdim=True)
    guess = _times(design, centred)
    size = (guess**2).sum(dim=1)
    varies = ((centred**2).sum(dim=1) > 1e-20 * (prior**2).sum(dim=1)) & (size > 0)  # more than rounding
    multiple = torch.where(varies, (guess * response).sum(dim=1) / torch.where(varies, size, 1), 0)
    predicted = multiple[:, None] * guess
    residual = response - predicted
    gram = design.mT @ design
    moment = _times(design.mT, residual)
    unit = gram.diagonal(dim1=1, dim2=2).mean(dim=1)
    strength = ridge * unit if ridge is not None else _cross_validated(gram, moment, residual, unit)
    matrix = gram + torch.diag_embed(strength[:, None].expand(-1, gram.shape[1]))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(matrix))
    correction = _times(inverse, moment)
    spread = inverse @ gram
    freedom = (visible.shape[1] - 1 - spread.diagonal(dim1=1, dim2=2).sum(dim=1)).clamp(min=1)
    noise = ((residual - _times(design, correction)) ** 2).sum(dim=1) / freedom
    error = (noise[:, None] * (spread @ inverse).diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt()
    correction = correction * (1 - doubt * error**2 / torch.where(correction != 0, correction**2, 1)).clamp(min=0)
    sizes = (predicted**2).sum(dim=1), (_times(design, correction) ** 2).sum(dim=1)
    share = sizes[0] / (sizes[0] + sizes[1]).clamp(min=torch.finfo(torch.float64).tiny)
    return Regression(multiple[:, None] * centred + correction, error, share)


def _cross_validated(gram: Tensor, moment: Tensor, response: Tensor, unit: Tensor) -> Tensor:
    """Return the ridge ``[B]`` with the least ``residual / freedom²`` among powers of 2 times a unit ``[B]``."""
    sizes, axes = torch.linalg.eigh(gram)
    sizes = sizes.clamp(min=0)[:, None]
    rotated = (axes.mT @ moment[:, :, None]).mT
    strengths = unit[:, None] * 2.0 ** torch.arange(-1, _WEAKEST, device=gram.device)
    damped = sizes + strengths[:, :, None]
    fitted = rotated / damped
    left = (response**2).sum(dim=1, keepdim=True) - 2 * (fitted * rotated).sum(dim=2) + (sizes * fitted**2).sum(dim=2)
    freedom = response.shape[1] - 1 - (sizes / damped).sum(dim=2)
    best = (left / freedom**2).argmin(dim=1, keepdim=True)
    return strengths.gather(1, best)[:, 0]


def _explained_variance(visible: Tensor, scores: Tensor, fitted: Tensor) -> Tensor:
    """Return the share of the variance of the scores that a map predicts, ``[B]``; below 0 if it is worse than none."""
    prediction = _times(visible.double(), fitted)
    prediction = prediction - prediction.mean(dim=1, keepdim=True)
    response = scores - scores.mean(dim=1, keepdim=True)
    total = (response**2).sum(dim=1)
    left = ((response - prediction) ** 2).sum(dim=1)
    return torch.where(total > 0, 1 - left / torch.where(total > 0, total, 1), 0)
