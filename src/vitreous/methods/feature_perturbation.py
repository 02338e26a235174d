"""What the class loses when the model's own features are perturbed: masks of feature clusters, suppressed attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.methods import masking, ops
from vitreous.methods.base import Attribution, Method
from vitreous.methods.cam import FeatureMap
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice, number
from vitreous.tracing import VALUES, Activation, Context, Record, activation_value, upcast
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.runner import logits_with_patches


def complete_linkage(distances: Tensor, threshold: float, valid: Tensor | None = None) -> Tensor:
    """Return the cluster ``[B, n]`` of each of n items, from their distances ``[B, n, n]``, numbered by first members.

    Two clusters are as far apart as their farthest members; the closest two are joined as long as they are closer than
    ``threshold``. Under complete linkage no merger brings a cluster closer to another. So two that are each other's
    nearest stay so until they are joined, and all such pairs can be joined at once: some thirty rounds for 768 items
    instead of 767 mergers, with the same result unless distances are equal. Of equal ones the first counts. Items that
    are not ``valid`` have the cluster -1.
    """
    size, device = distances.shape[1], distances.device
    valid = distances.new_ones(distances.shape[:2], dtype=torch.bool) if valid is None else valid
    apart = torch.maximum(distances, distances.transpose(1, 2))  # what is nearest must be so from both sides
    apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    batch, index = torch.arange(len(apart), device=device).unsqueeze(1), torch.arange(size, device=device)
    stays, other, cluster = valid, index.expand(len(apart), -1), index.expand(len(apart), -1)
    while True:
        count = stays.sum(dim=1, keepdim=True)
        remaining = stays.byte().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]
        absorbed = other.gather(1, remaining)
        for _ in range(2):  # rows, then columns
            apart = torch.maximum(apart[batch, remaining], apart[batch, absorbed]).transpose(1, 2).contiguous()
        position = (stays.cumsum(dim=1) - 1).clamp(min=0)
        cluster = position.gather(1, torch.minimum(other, index)).gather(1, cluster)
        index = index[: remaining.shape[1]]
        alive = index < count  # an image may have fewer left than others
        apart = apart.masked_fill(~(alive.unsqueeze(2) & alive.unsqueeze(1)), torch.inf)
        if len(index) == 0:
            break
        # the least pair of all, the first of them if there are several, is always mutual: every round makes progress
        nearest, partner = apart.min(dim=2)
        joined = (partner.gather(1, partner) == index) & (nearest < threshold)
        if not joined.any():
            break
        other = torch.where(joined, partner, index)
        stays = alive & (other >= index)
    return cluster.masked_fill(~valid, -1)


class _Masks(NamedTuple):
    """The masks of all images one after the other, on the grid of the features: there they are linear, and small.

    ``values [R, h, w]`` are from 0 to 1 once they are enlarged; mask r is the one of number ``numbers[r]`` of image
    ``images[r]``.
    """

    values: Tensor
    images: Tensor
    numbers: Tensor


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
    r"""The mean effect of the masks that reach a pixel, masks being clusters of feature channels.

    .. math::
        M_p = \frac{1}{K} \sum_{i=1}^{K} \frac{\delta_i\, m_{ip}}{\sum_j m_{jp}}, \qquad
        \delta_i = s\bigl(x m_i + \epsilon_i (1 - m_i)\bigr) - s\bigl(x + \epsilon_i (1 - m_i)\bigr) + s(x)

    The channels of the patches are enlarged to the image (bilinear) and min-maxed; agglomerative clustering (cosine
    distance, complete linkage) makes K groups of them, and mask :math:`m_i` is the sum of a group, min-maxed.
    :math:`\epsilon_i` is normal noise, one draw for each image and mask.

    Parameters
    ----------
    layer : int, default -1
        The block whose features are clustered.
    point : {"auto", "norm1", "norm2", "resid_pre", "resid_post"}, default "auto"
        Where in the block, as for CAMs: the output of the last block's first norm in a class-token model, the last
        stage in a hierarchical one.
    threshold : float, default 0.1
        The distance below which clusters are joined.
    noise : float, default 0.1
        The deviation of the noise in normalised units.
    output : {"prob", "logit", "logprob"}, default "prob"
        The score of the class.

    Notes
    -----
    All of delta is above zero as a rule, so the order of pixels counts, not signs. On the tokens of a sub-network
    (``plus``) masks and noise change the patches' tokens. A channel or group that is the same everywhere is left out,
    and a pixel that no mask reaches is zero, where the released code divides 0 by 0. Extras: ``clusters``, how many.
    Cost: two forwards per mask, and one more; how many masks there are depends on the image.

    References
    ----------
    Xie et al., "ViT-CX: Causal Explanation of Vision Transformers", IJCAI 2023.

    Examples
    --------
    >>> vt.explain(model, image, "vit_cx(threshold=0.5)").map.shape
    torch.Size([128, 128])
    """

    threshold: float = number(0.1, "[0, inf)")
    noise: float = number(0.1, "[0, inf)")
    output: str = choice("prob", *VALUES)
    grid = "pixel"

    def num_forwards(self, model: VisionModel) -> float:
        return 1  # and those of the masks, announced when their number is known

    def records(self, model: VisionModel) -> list[Record]:
        return [self.features(model, activation_value, grad=False)]

    def compute(self, context: Context) -> Attribution:
        batch, size = len(context.inputs), masking.masked_size(context)
        clean = replace(context.target, output=self.output).score(self.record(context).logits)
        masks, scores = self._score_masks(context)
        masked, noisy = scores.view(-1, 2).unbind(dim=1)
        effect = (masked - noisy + clean[masks.images]).to(masks.values)
        count = torch.bincount(masks.images, minlength=batch)
        rows = F.one_hot(masks.images, batch).to(masks.values).T  # [B, R]: which masks an image has
        flat, grid = masks.values.flatten(1), masks.values.shape[1:]
        total, cover = (
            ops.resize_map(((rows * weight) @ flat).view(-1, *grid), size)
            for weight in (effect, torch.ones_like(effect))
        )
        reached = cover > 1e-6
        maps = torch.where(reached, total / torch.where(reached, cover, 1), 0) / count.clamp(min=1).view(-1, 1, 1)
        return Attribution(maps.to(upcast(context.inputs).dtype), {"clusters": count})

    def _make_masks(self, context: Context) -> _Masks:
        (features,) = self.records(context.model)
        cache = self.record(context)
        (tokens,) = cache[features]
        size, tolerance = masking.masked_size(context), 8 * torch.finfo(upcast(tokens).dtype).eps
        channels = tokens.shape[2]

        def part(start: int, stop: int) -> _Masks:
            rows = tokens[start:stop].transpose(1, 2).double()
            maps = self.lay_out(cache, rows.flatten(0, 1))
            masks, valid = _cluster(maps.view(-1, channels, *maps.shape[1:]), size, self.threshold, tolerance)
            images, numbers = valid.nonzero().unbind(dim=1)
            return _Masks(masks[valid], images + start, numbers)

        # distances of channels, their copies and what is picked of them exist at the same time
        parts = ops.run_in_parts(context, part, len(tokens), 6 * channels**2 * 8)
        masks = _Masks(*(torch.cat(column) for column in zip(*parts, strict=True)))
        context.expect(2 * len(masks.images))
        return masks

    def _score_masks(self, context: Context) -> tuple[_Masks, Tensor]:
        """Return the masks, and the scores ``[2 R]``: through each of them, then with its noise alone.

        Both serve all classes of a comparison.
        """
        key = replace(self, output="logit")
        masks = ops.compute_once(context, (key, "masks"), lambda: self._make_masks(context), for_all_classes=True)
        draws = context.prng_key("vit_cx")

        def logits(start: int, stop: int) -> Tensor:
            return masking.logits_of_inputs(context.model, self._perturbed(context, masks, draws, start, stop))

        return masks, masking.score_rows(context, masks.images.repeat_interleave(2), logits, self.output, key)

    def _perturbed(self, context: Context, masks: _Masks, draws: PRNGKey, start: int, stop: int) -> Tensor:
        """Return inputs ``start .. stop - 1``: every mask has two, and their noise is the same."""
        pairs = slice(start // 2, (stop + 1) // 2)
        images = masks.images[pairs]
        inputs = upcast(context.inputs[images])
        mask = ops.resize_map(masks.values[pairs].to(inputs), masking.masked_size(context)).clamp(0, 1)
        normal = draws.select(images).at(masks.numbers[pairs]).normal(*inputs.shape[1:]).to(inputs)
        complement = 1 - masking.mask_inputs(context.model, torch.ones_like(inputs), mask)
        noise = self.noise * normal * complement
        both = torch.stack([masking.mask_inputs(context.model, inputs, mask) + noise, inputs + noise], dim=1).flatten(
            0, 1
        )
        return both[start - 2 * pairs.start : stop - 2 * pairs.start]


class _Enlargement:
    """What enlarged maps have in common, from the small maps: enlarging is linear, row by row and column by column.

    ``rows [H, h]`` and ``columns [W, w]`` are the two matrices of bilinear enlarging. Between two cells a map is
    bilinear, so its extremes are at the first and last pixels there: ``row_ends`` and ``column_ends``.
    """

    def __init__(self, maps: Tensor, size: tuple[int, int]) -> None:
        self.rows, self.columns = (_bilinear(*sides).to(maps) for sides in zip(maps.shape[-2:], size, strict=True))
        self.row_ends, self.column_ends = _cell_ends(self.rows), _cell_ends(self.columns)

    def min_max(self, maps: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Min-max maps ``[B, C, h, w]`` by their enlarged extremes; also return which are not the same everywhere."""
        ends = (self.row_ends @ maps @ self.column_ends.T).flatten(2)
        low, top = ends.amin(dim=2), ends.amax(dim=2)
        varies = top - low > tolerance * torch.maximum(low.abs(), top.abs())
        spread = torch.where(varies, top - low, 1)[..., None, None]
        return ((maps - low[..., None, None]) / spread).masked_fill(~varies[..., None, None], 0), varies

    def cosines(self, maps: Tensor) -> Tensor:
        """Return the cosines ``[B, C, C]`` of the enlarged maps; of a map of zeros, zero."""
        weighted = (self.rows.T @ self.rows) @ maps @ (self.columns.T @ self.columns)
        products = weighted.flatten(2) @ maps.flatten(2).transpose(1, 2)
        length = products.diagonal(dim1=1, dim2=2).sqrt()
        length = torch.where(length > 0, length, 1)
        return products / length.unsqueeze(1) / length.unsqueeze(2)


def _cluster(channels: Tensor, size: tuple[int, int], threshold: float, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the masks ``[B, K, h, w]`` of channels ``[B, C, h, w]``, and which of them an image has: ``[B, K]``."""
    enlargement = _Enlargement(channels, size)
    maps, varies = enlargement.min_max(channels, tolerance)
    groups = complete_linkage(1 - enlargement.cosines(maps), threshold, varies)
    members = F.one_hot(groups + 1)[:, :, 1:].to(maps).transpose(1, 2)  # [B, K, C], without the group of those left out
    sums = (members @ maps.flatten(2)).view(len(maps), -1, *maps.shape[2:])
    return enlargement.min_max(sums, tolerance)


def _bilinear(small: int, large: int) -> Tensor:
    """Return the matrix ``[large, small]`` of linear enlarging, half-pixel centres."""
    unit = torch.eye(small, dtype=torch.float64)
    return F.interpolate(unit[None], size=large, mode="linear", align_corners=False)[0].T


def _cell_ends(matrix: Tensor) -> Tensor:
    """Return the first and last of the rows that lie between the same two cells."""
    centre = torch.arange(len(matrix), dtype=torch.float64) + 0.5
    cell = (centre * (matrix.shape[1] / len(matrix)) - 0.5).floor().to(matrix.device)
    change = torch.ones(len(matrix) + 1, dtype=torch.bool, device=matrix.device)
    change[1:-1] = cell[1:] != cell[:-1]
    return matrix[change[1:] | change[:-1]]


def no_attention(a: Activation) -> Tensor:
    """Keep no attention: it is recorded only so that a model that does not show it is refused."""
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
    r"""How much the log-probability falls when attention to one patch is suppressed in all blocks and heads.

    .. math::
        M_j = \log p - \log p^{(j)}, \qquad
        A'_k = \frac{A_k^{f_k} (\min_i A_i)^{1 - f_k}}{\sum_m A_m^{f_m} (\min_i A_i)^{1 - f_m}}

    which is the softmax of the scores before it, shifted so that each row starts at zero, and multiplied by the factor
    f in the column of patch j: :math:`A' = \operatorname{softmax}(f_k (S - \min S))`.

    Parameters
    ----------
    factor : float, default 0.1
        The factor f of the suppressed patch, from 0 to below 1.
    similarity : float or None, default None
        Patches whose embedding, as it enters the first block, has a cosine c above it with that of j are suppressed
        too, by :math:`(1 - f)(1 - c) + f`; ``@magma`` takes 0.6.
    output : {"logprob", "logit", "prob"}, default "logprob"
        The score of the class; the difference of log-probabilities is that of the cross entropies.

    Notes
    -----
    The released code has the other sign, and its demonstration squares the map; its variant for BLIP multiplies scores
    as they are, so that attention to j may rise: it is not here. Where A underflows to zero, so does what is left of
    the column. The attention of a pooling is not touched. Refused where attention stays inside windows. Cost: one
    forward with explicit attention per patch, and one more.

    References
    ----------
    Deiseroth et al., "AtMan: Understanding Transformer Predictions Through Memory Efficient Attention Manipulation",
    NeurIPS 2023.

    Examples
    --------
    >>> print(vt.get_method("atman@magma"))
    atman(similarity=0.6)
    """

    factor: float = number(0.1, "[0, 1)")
    similarity: float | None = number(None, "[0, 1]")
    output: str = choice("logprob", *VALUES)

    def num_forwards(self, model: VisionModel) -> float:
        height, width = model.grid()
        return 1 + height * width

    def records(self, model: VisionModel) -> list[Record]:
        return [masking.TOKENS, Record("attn_weights", no_attention, tuple(range(model.depth)), grad=False)]

    def compute(self, context: Context) -> Attribution:
        model, cache = context.model, self.record(context)
        (tokens,), target = cache[masking.TOKENS], replace(context.target, output=self.output)
        patches = upcast(tokens[:, model.num_prefix_tokens :])
        unit = F.normalize(patches, dim=2)  # a vector of zeros is like none
        cosines = None if self.similarity is None else unit @ unit.transpose(1, 2)

        def logits(images: Tensor, copies: Tensor) -> Tensor:
            suppressed = self._suppressed(copies, cosines, images, model.num_prefix_tokens)
            every = dict.fromkeys(range(model.depth), suppressed)
            return logits_with_patches(model, tokens[images], 0, "attn_weights", every)

        key = replace(self, output="logit")  # what the model says is the same for every class and output of it
        scores = masking.score_copies(context, patches.shape[1], logits, self.output, key)
        return Attribution((target.score(cache.logits)[:, None] - scores).reshape(-1, *cache.grid), {})

    def _suppressed(self, patches: Tensor, cosines: Tensor | None, images: Tensor, prefix: int) -> SuppressedColumns:
        """Return what suppresses patches ``[b]`` of images ``[b]``, and those like them."""
        columns = patches.unsqueeze(1)
        if cosines is None or self.similarity is None:
            return SuppressedColumns(columns + prefix, torch.full_like(columns, self.factor, dtype=torch.float64))
        similar = cosines[images, patches]
        factors = (1 - self.factor) * (1 - similar) + self.factor
        factors = factors.masked_fill(similar <= self.similarity, 1.0).scatter(1, columns, self.factor)
        least = factors.topk(int((factors < 1).sum(dim=1).max()), dim=1, largest=False)
        return SuppressedColumns(least.indices + prefix, least.values)


@dataclass(frozen=True, eq=False)
class SuppressedColumns:
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
        # a row that has all its weight on the patch has no other token for it
        return torch.where(total > 0, changed / total, weights).to(attention.dtype)
