"""Agglomerative clustering with complete linkage, up to a distance, of many images at once.

ViT-CX: masks made of the features themselves, and what the model says about an image seen through them.

AtMan: what the class loses when nobody attends to a patch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import SpecError
from vitreous.methods.base import Attribution, Method
from vitreous.methods.cam import FeatureMap
from vitreous.methods.masking import scores_of_logits, scores_of_rows
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import VALUES, Activation, Context, Record, activation_value, upcast
from vitreous.tracing.memory import budget_bytes, in_parts
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.runner import logits_with_patches

__all__ = [
    "AtMan",
    "ViTCX",
    "complete_linkage",
]


def complete_linkage(distances: Tensor, threshold: float, there: Tensor | None = None) -> Tensor:
    """Return the cluster ``[B, n]`` of each of n things, from their distances ``[B, n, n]``, counted by first members.

    Two clusters are as far apart as their farthest members; the closest two are joined as long as they are closer than
    ``threshold``. Under complete linkage no merger brings a cluster closer to another. So two that are each other's
    nearest stay so until they are joined, and all such pairs can be joined at once: some thirty rounds for 768 things
    instead of 767 mergers, with the same result unless distances are equal. Of equal ones the first counts. Things that
    are not ``there`` have the cluster -1.
    """
    size, device = distances.shape[1], distances.device
    there = distances.new_ones(distances.shape[:2], dtype=torch.bool) if there is None else there
    apart = torch.maximum(distances, distances.transpose(1, 2))  # what is nearest must be so from both sides
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    batch, here = torch.arange(len(apart), device=device).unsqueeze(1), torch.arange(size, device=device)
    stays, other, cluster = there, here.expand(len(apart), -1), here.expand(len(apart), -1)
    while True:
        count = stays.sum(dim=1, keepdim=True)
        kept = stays.byte().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]
        taken = other.gather(1, kept)
        for _ in range(2):  # rows, then columns
            apart = torch.maximum(apart[batch, kept], apart[batch, taken]).transpose(1, 2).contiguous()
        place = (stays.cumsum(dim=1) - 1).clamp(min=0)
        cluster = place.gather(1, torch.minimum(other, here)).gather(1, cluster)
        here = here[: kept.shape[1]]
        alive = here < count  # an image may have fewer left than others
        apart = apart.masked_fill(~(alive.unsqueeze(2) & alive.unsqueeze(1)), torch.inf)
        if len(here) == 0:
            break
        # the least pair of all, the first of them if there are several, is always mutual: every round makes progress
        nearest, partner = apart.min(dim=2)
        joined = (partner.gather(1, partner) == here) & (nearest < threshold)
        if not joined.any():
            break
        other = torch.where(joined, partner, here)
        stays = alive & (other >= here)
    return cluster.masked_fill(~there, -1)


class Masks(NamedTuple):
    """The masks of all images one after the other, on the grid of the features: there they are linear, and small."""

    values: Tensor
    """``[R, h, w]``, from 0 to 1 once they are enlarged."""
    images: Tensor
    """Whose mask each is, ``[R]``."""
    numbers: Tensor
    """Which of that image's it is, ``[R]``."""


@register_method(
    "vit_cx",
    family="perturbation",
    papers=("xie2023vitcx",),
    cost=(121, 0),
    cost_note="1 F + 2 F per cluster",
    models="transformers",
)
@dataclass(frozen=True)
class ViTCX(FeatureMap):
    """The mean effect of the masks that reach a pixel, masks being clusters of feature channels.

    Channels F_k of the patches are enlarged to the image (bilinear) and min-maxed; agglomerative clustering (cosine
    distance, complete linkage, joined below ``threshold``) makes K groups, and mask M_i is the sum of a group,
    min-maxed. With noise ``e_i = noise N(0, 1)`` in normalised space, one for each image and mask, and p the
    probability of the class (``score``: ``prob``, ``logit`` or ``logprob``): ``delta_i = p(x M_i + e_i (1 - M_i)) -
    p(x + e_i (1 - M_i)) + p(x)``, map ``(1 / K) sum_i delta_i M_i / sum_j M_j`` pixel by pixel. All of delta is above
    zero as a rule, so places count, not signs. ``site`` and ``layer`` as in CAMs: the output of the last block's first
    norm in a class-token model, the last stage in a hierarchical one. On the tokens of a sub-network (``plus``) masks
    and noise change the patches' tokens. A channel or group that is the same everywhere is left out, and a pixel that
    no mask reaches is zero, where the released code divides 0 by 0. Cost: two forwards per mask, and one more; how
    many masks there are depends on the image. Extras: ``clusters``, how many.
    """

    threshold: float = 0.1
    noise: float = 0.1
    output: str = "prob"
    grid = "pixel"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("output", self.output, VALUES)
        for name in ("threshold", "noise"):
            given = getattr(self, name)
            if not 0 <= given < math.inf:
                raise SpecError(f"{name}={given} must be a number from 0 on")

    @property
    def fixed_output(self) -> str:
        return self.output

    def num_forwards(self, model: VisionModel) -> float:
        return 1  # and those of the masks, told when their number is known

    def records(self, model: VisionModel) -> list[Record]:
        return [self.features(model, activation_value, grad=False)]

    def compute(self, context: Context) -> Attribution:
        batch, size = len(context.inputs), _size(context)
        clean = replace(context.target, output=self.output).score(self.record(context).logits)
        masks, scores = self._scored(context)
        shown, plain = scores.view(-1, 2).unbind(dim=1)
        effect = (shown - plain + clean[masks.images]).to(masks.values)
        count = torch.bincount(masks.images, minlength=batch)
        rows = F.one_hot(masks.images, batch).to(masks.values).T  # [B, R]: which masks an image has
        flat = masks.values.flatten(1)
        weighed, cover = ((rows * weight) @ flat for weight in (effect, torch.ones_like(effect)))
        grid = masks.values.shape[1:]
        total, cover = (_enlarged(each.view(-1, *grid), size) for each in (weighed, cover))
        reached = cover > 1e-6
        found = torch.where(reached, total / torch.where(reached, cover, 1), 0) / count.clamp(min=1).view(-1, 1, 1)
        return Attribution(found.to(upcast(context.inputs).dtype), {"clusters": count})

    # -- masks -------------------------------------------------------------------------------------------

    def _masks(self, context: Context) -> Masks:
        (features,) = self.records(context.model)
        cache = self.record(context)
        (tokens,) = cache[features]
        size, least = _size(context), 8 * torch.finfo(upcast(tokens).dtype).eps
        channels = tokens.shape[2]

        def part(start: int, stop: int) -> Masks:
            rows = tokens[start:stop].transpose(1, 2).double()
            maps = self.lay_out(cache, rows.flatten(0, 1))
            found, own = _clustered(maps.view(-1, channels, *maps.shape[1:]), size, self.threshold, least)
            images, numbers = own.nonzero().unbind(dim=1)
            return Masks(found[own], images + start, numbers)

        # distances of channels, their copies and what is picked of them exist at the same time
        bytes_each = 6 * channels**2 * 8
        at_once = max(1, int(budget_bytes(tokens.device, context.memory_gb) / bytes_each))
        parts = in_parts(part, len(tokens), at_once)
        return Masks(*(torch.cat(each) for each in zip(*parts, strict=True)))

    # -- scores ------------------------------------------------------------------------------------------

    def _scored(self, context: Context) -> tuple[Masks, Tensor]:
        """Return the masks, and the scores ``[2 R]``: through each of them, then with its noise alone.

        Both serve all classes of a comparison.
        """
        key = replace(self, output="logit")
        known = context.memo if context.shared is None else context.shared
        if (key, "masks") not in known:
            known[key, "masks"] = self._masks(context)
            context.expect(2 * len(known[key, "masks"].images))
        masks: Masks = known[key, "masks"]
        model, draws = context.model, context.prng_key("vit_cx")

        def logits(start: int, stop: int) -> Tensor:
            return model.forward_head(
                model.forward_blocks(model.embed(self._seen(context, masks, draws, start, stop).to(model.dtype)))
            )

        return masks, scores_of_rows(context, masks.images.repeat_interleave(2), logits, self.output, key)

    def _seen(self, context: Context, masks: Masks, draws: PRNGKey, start: int, stop: int) -> Tensor:
        """Return inputs ``start .. stop - 1``: every mask has two, and their noise is the same."""
        pairs = slice(start // 2, (stop + 1) // 2)
        images = masks.images[pairs]
        inputs = upcast(context.inputs[images])
        mask = _enlarged(masks.values[pairs].to(inputs), _size(context)).clamp(0, 1)
        if inputs.ndim == 4:
            mask = mask.unsqueeze(1)
        else:
            mask = F.pad(mask.flatten(1), (context.model.num_prefix_tokens, 0), value=1.0).unsqueeze(2)
        drawn = draws.select(images).at(masks.numbers[pairs]).normal(*inputs.shape[1:])
        beside = self.noise * drawn.to(inputs) * (1 - mask)
        both = torch.stack([inputs * mask + beside, inputs + beside], dim=1).flatten(0, 1)
        return both[start - 2 * pairs.start : stop - 2 * pairs.start]


class Enlarging(NamedTuple):
    """What enlarged maps have in common, from the small maps: enlarging is linear, row by row and column by column.

    ``down [H, h]`` and ``across [W, w]`` are the two matrices of bilinear enlarging. ``ends`` are the same of the first
    and last pixel between two cells only: in between a map is bilinear, so its extremes are there.
    """

    down: Tensor
    across: Tensor
    ends: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, maps: Tensor, size: tuple[int, int]) -> Enlarging:
        both = [_linear(small, large).to(maps) for small, large in zip(maps.shape[-2:], size, strict=True)]
        return cls(both[0], both[1], (_ends(both[0]), _ends(both[1])))

    def spread(self, maps: Tensor, least: float) -> tuple[Tensor, Tensor]:
        """Min-max maps ``[B, C, h, w]`` by their enlarged extremes; also return which are not the same everywhere."""
        down, across = self.ends
        edges = (down @ maps @ across.T).flatten(2)
        low, height = edges.amin(dim=2), edges.amax(dim=2)
        varies = height - low > least * torch.maximum(low.abs(), height.abs())
        width = torch.where(varies, height - low, 1)[..., None, None]
        return ((maps - low[..., None, None]) / width).masked_fill(~varies[..., None, None], 0), varies

    def cosines(self, maps: Tensor) -> Tensor:
        """Return the cosines ``[B, C, C]`` of the enlarged maps; of a map of zeros, zero."""
        weighed = (self.down.T @ self.down) @ maps @ (self.across.T @ self.across)
        products = weighed.flatten(2) @ maps.flatten(2).transpose(1, 2)
        length = products.diagonal(dim1=1, dim2=2).sqrt()
        length = torch.where(length > 0, length, 1)
        return products / length.unsqueeze(1) / length.unsqueeze(2)


def _clustered(channels: Tensor, size: tuple[int, int], threshold: float, least: float) -> tuple[Tensor, Tensor]:
    """Return the masks ``[B, K, h, w]`` of channels ``[B, C, h, w]``, and which of them an image has: ``[B, K]``."""
    enlarging = Enlarging.of(channels, size)
    maps, varies = enlarging.spread(channels, least)
    groups = complete_linkage(1 - enlarging.cosines(maps), threshold, varies)
    members = F.one_hot(groups + 1)[:, :, 1:].to(maps).transpose(1, 2)  # [B, K, C], without the group of those left out
    sums = (members @ maps.flatten(2)).view(len(maps), -1, *maps.shape[2:])
    return enlarging.spread(sums, least)


def _linear(small: int, large: int) -> Tensor:
    """Return the matrix ``[large, small]`` of linear enlarging, half-pixel centres."""
    unit = torch.eye(small, dtype=torch.float64)
    return F.interpolate(unit[None], size=large, mode="linear", align_corners=False)[0].T


def _ends(matrix: Tensor) -> Tensor:
    """Return the first and last of the rows that lie between the same two cells."""
    place = torch.arange(len(matrix), dtype=torch.float64) + 0.5
    cell = (place * (matrix.shape[1] / len(matrix)) - 0.5).floor().to(matrix.device)
    change = torch.ones(len(matrix) + 1, dtype=torch.bool, device=matrix.device)
    change[1:-1] = cell[1:] != cell[:-1]
    return matrix[change[1:] | change[:-1]]


def _enlarged(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _size(context: Context) -> tuple[int, int]:
    """Height and width of what is masked: pixels, or the patches of a sub-network."""
    if context.inputs.ndim == 4:
        return context.inputs.shape[-2], context.inputs.shape[-1]
    return context.model.grid(context.inputs)


def nothing(a: Activation) -> Tensor:
    """Keep no attention: it is asked for only so that a model that does not show it is refused."""
    return a.value.new_zeros(len(a.value))


@register_method(
    "atman",
    family="perturbation",
    papers=("deiseroth2023atman",),
    cost=(197, 0),
    cost_note="1 F per patch + 1 F",
    presets={"magma": {"similarity": 0.6}},
    models="ViT",
)
@dataclass(frozen=True)
class AtMan(Method):
    """How much the log-probability falls when attention to one patch is suppressed in all blocks and heads.

    Scores S before the softmax, shifted so that each row starts at zero, are multiplied by ``factor`` in the column of
    patch j: ``A' = softmax(f_j (S - rowmin S))``. From A itself that is ``A_k^f_k rowmin(A)^(1 - f_k)``, each row
    divided by its sum: the softmax's own constant and any positive scale drop out. Map: ``log p - log p'`` of the class
    (``score``: ``logprob``, ``logit`` or ``prob``), which is the difference of the cross entropies. With ``similarity``
    patches whose embedding, as it enters the first block, has a cosine c above it with that of j are suppressed too, by
    ``(1 - f)(1 - c) + f``; ``magma`` takes 0.6. The released code has the other sign, and its demonstration squares the
    map; its variant for BLIP multiplies scores as they are, so that attention to j may rise: it is not here. Where A
    underflows to zero, so does what is left of the column. The attention of a pooling is not touched. Refused where
    attention stays inside windows. Cost: one forward with explicit attention per patch, and one more.
    """

    factor: float = 0.1
    similarity: float | None = None
    output: str = "logprob"

    def __post_init__(self) -> None:
        check_choice("output", self.output, VALUES)
        if not 0 <= self.factor < 1:
            raise SpecError(f"factor={self.factor} must be from 0 to less than 1")
        if self.similarity is not None and not 0 <= self.similarity <= 1:
            raise SpecError(f"similarity={self.similarity} must be a cosine from 0 to 1")

    @property
    def fixed_output(self) -> str:
        return self.output

    def num_forwards(self, model: VisionModel) -> float:
        height, width = model.grid()
        return 1 + height * width

    def records(self, model: VisionModel) -> list[Record]:
        tokens = Record("resid_pre", activation_value, (0,), grad=False)
        return [tokens, Record("attn_weights", nothing, tuple(range(model.depth)), grad=False)]

    def compute(self, context: Context) -> Attribution:
        model, cache = context.model, self.record(context)
        (tokens,), target = cache[self.records(model)[0]], replace(context.target, output=self.output)
        patches = tokens.shape[1] - model.num_prefix_tokens
        alike = None if self.similarity is None else _cosines(tokens[:, model.num_prefix_tokens :])

        def without(images: Tensor, own: Tensor) -> Tensor:
            change = self._change(own, None if alike is None else alike[images, own], model.num_prefix_tokens)
            return logits_with_patches(
                model, tokens[images], 0, "attn_weights", dict.fromkeys(range(model.depth), change)
            )

        key = replace(self, output="logit")  # what the model says is the same for every class and value of it
        left = scores_of_logits(context, patches, without, self.output, key)
        return Attribution((target.score(cache.logits)[:, None] - left).reshape(-1, *cache.grid), {})

    def _change(self, own: Tensor, cosines: Tensor | None, prefix: int) -> Suppressed:
        """Return the change for patches ``own [b]``, given their cosines ``[b, n]`` with all others where asked."""
        if cosines is None:
            columns = own.unsqueeze(1)
            return Suppressed(columns + prefix, torch.full_like(columns, self.factor, dtype=torch.float64))
        assert self.similarity is not None
        factors = (1 - self.factor) * (1 - cosines) + self.factor
        factors = factors.masked_fill(cosines <= self.similarity, 1.0).scatter(1, own.unsqueeze(1), self.factor)
        least = factors.topk(int((factors < 1).sum(dim=1).max()), dim=1, largest=False)
        return Suppressed(least.indices + prefix, least.values)


@dataclass(frozen=True, eq=False)
class Suppressed:
    """Suppress some columns ``[b, k]`` of attention ``[b, H, N, N]``, each by its own factor; a factor of 1 is none."""

    columns: Tensor
    factors: Tensor

    def __call__(self, attention: Tensor) -> Tensor:
        weights = upcast(attention)
        columns = self.columns[:, None, None].expand(-1, *weights.shape[1:3], -1)
        factors = self.factors.to(weights)[:, None, None]
        lowest = weights.amin(dim=3, keepdim=True)
        changed = weights.scatter(3, columns, weights.gather(3, columns) ** factors * lowest ** (1 - factors))
        total = changed.sum(dim=3, keepdim=True)
        # a row that has all its weight on the patch has no other place for it
        return torch.where(total > 0, changed / total, weights).to(attention.dtype)


def _cosines(patches: Tensor) -> Tensor:
    """Return the cosines ``[B, n, n]`` of the patches of each image; a vector of zeros is like none."""
    unit = F.normalize(upcast(patches), dim=2)
    return unit @ unit.transpose(1, 2)
