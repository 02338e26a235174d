"""Sampling tokens: what the model says when it is shown only some of the patches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError, SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.kmeans import centroids
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.methods.subsets import refuse_whole_grids, scored, with_places
from vitreous.models import View
from vitreous.passes import VALUES, Keep, Pass, Session, Trace, whole
from vitreous.passes.memory import budget_bytes, in_parts
from vitreous.words import check_choice

__all__ = ["TIS"]


@register(
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
    score: str = "prob"
    half: bool = False
    iterations: int = 100

    def __post_init__(self) -> None:
        check_choice("score", self.score, VALUES)
        if self.masks < 1 or self.iterations < 0:
            raise SpellingError(f"masks={self.masks}, iterations={self.iterations} must be at least 1 and at least 0")
        if not 0 < self.ratio <= 1:
            raise SpellingError(f"ratio={self.ratio} must be above 0 and at most 1")

    @property
    def own_value(self) -> str:
        return self.score

    @property
    def cost(self) -> tuple[float, float]:
        return 1 + self.masks * self.ratio, 0

    def forwards(self, view: View) -> float:
        return 1 + self.masks

    def asks(self, view: View) -> tuple[Pass, ...]:
        refuse_whole_grids("tis", view)
        return (Pass((Keep("input", whole, (0,)), Keep("output", whole, tuple(range(view.depth))))),)

    def compute(self, session: Session) -> Answer:
        trace = session.trace(self.only_pass(session.view))
        high, wide = trace.grid
        kept = int(self.ratio * high * wide)
        if kept < 1:
            raise ModelError(f"tis: ratio={self.ratio} of {high} x {wide} patches is less than one patch")
        images, samples, back = with_places(self._samples(session, trace, kept))
        rows = back.view(len(session.inputs), -1)
        parts = (rows, rows[:, 0::2], rows[:, 1::2]) if rows.shape[1] > 1 else (rows,)
        times = torch.stack([torch.bincount(part.flatten(), minlength=len(images)) for part in parts])
        (tokens,) = trace[self.only_pass(session.view).keeps[0]]
        scores = scored(session, "tis", tokens, images, samples, self.score, self.half)
        means, share = _mean_over_samples(scores, images, samples, times, len(session.inputs), high * wide)
        shape = (-1, high, wide)
        extras = {"kept": share.reshape(shape)}
        if len(parts) > 1:
            extras["halves"] = means[:, 1:].reshape(-1, 2, high, wide)
        return Answer(means[:, 0].reshape(shape), extras)

    def _samples(self, session: Session, trace: Trace, kept: int) -> Tensor:
        """Return the patches ``[B, masks, k]`` of each sample, in ascending order."""
        outputs = trace[self.only_pass(session.view).keeps[1]]
        rows = len(outputs) * outputs[0].shape[2]
        masks = min(self.masks, rows)
        first = session.draws("tis").permutation(rows)[:, :masks]

        def part(start: int, stop: int) -> Tensor:
            patches = [at_least_float32(each[start:stop, session.view.prefix :]) for each in outputs]
            channels = torch.cat(patches, dim=2).transpose(1, 2).contiguous()  # [b, L D, n]
            centres = centroids(channels, first[start:stop].to(channels.device), self.iterations)
            # equal values, such as those of an empty cluster, are taken from the front
            best = centres.sort(dim=2, descending=True, stable=True).indices[:, :, :kept]
            return best.sort(dim=2).values

        # distances, their lowest and the assignment of each row exist at the same time
        bytes_each = 3 * rows * masks * at_least_float32(outputs[0][:0]).element_size()
        at_once = max(1, int(budget_bytes(session.inputs.device, session.memory) / bytes_each))
        return torch.cat(in_parts(part, len(session.inputs), at_once))


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
