"""Graph-based segmentation after Felzenszwalb and Huttenlocher (IJCV 2004), at several scales of one picture.

XRAI: integrated gradients, averaged over regions that are ranked by how much of it they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import SpecError
from vitreous.methods.base import Attribution, Method
from vitreous.methods.input_gradient import integrated, needs_images
from vitreous.methods.registry import register_method
from vitreous.tracing import Context, upcast

__all__ = [
    "SCALES",
    "XRAI",
    "segmented",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_AT_ONCE = 8192  # edges between two looks at which of them can still join anything


class _Edges(NamedTuple):
    """Pairs of neighbouring pixels and how far their colours are apart, nearest first."""

    one: Ints
    other: Ints
    cost: Floats


def segmented(picture: Floats, scales: Sequence[float], sigma: float = 0.8, least: int = 20) -> list[Ints]:
    """Return the segments of a picture ``[H, W, C]`` as labels ``[H, W]`` from 0 on, for every scale.

    The picture is blurred (``sigma``, mirrored borders); each pixel is joined to its eight neighbours by an edge that
    costs the Euclidean distance of their colours. Edges are taken in order of cost, equal ones right, down, down-right,
    down-left. Two segments become one if the edge between them costs less than ``Int(S) + scale / 255 / |S|`` of both,
    Int being the largest cost inside. In the same order, segments of fewer than ``least`` pixels join a neighbour.
    scikit-image has the same rule, but rounds the limits to float32 and leaves the order of equal costs open.
    """
    edges, shape = _edges(_blurred(picture, sigma)), picture.shape[:2]
    found = []
    for scale in scales:
        label, sizes = _grown(edges, shape[0] * shape[1], scale / 255)
        label = _without_small(edges, label, sizes, least)
        found.append(np.unique(label, return_inverse=True)[1].astype(np.int64).reshape(shape))
    return found


def _blurred(picture: Floats, sigma: float) -> Floats:
    if sigma == 0:
        return picture
    radius = int(4 * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        side = picture.shape[axis]
        margin = [(radius, radius) if each == axis else (0, 0) for each in range(3)]
        wider = np.pad(picture, margin, mode="symmetric")
        picture = np.sum([k * wider.take(range(i, i + side), axis) for i, k in enumerate(kernel)], axis=0)
    return picture


def _edges(picture: Floats) -> _Edges:
    places = np.arange(picture.shape[0] * picture.shape[1]).reshape(picture.shape[:2])
    every, here, there = slice(None), slice(None, -1), slice(1, None)
    ways = [((every, there), (every, here)), ((there, every), (here, every))]
    ways += [((there, there), (here, here)), ((here, there), (there, here))]
    one = np.concatenate([places[a].ravel() for a, _ in ways])
    other = np.concatenate([places[b].ravel() for _, b in ways])
    cost = np.concatenate([np.sqrt(((picture[a] - picture[b]) ** 2).sum(axis=-1)).ravel() for a, b in ways])
    order = np.argsort(cost, kind="stable")
    return _Edges(one[order], other[order], cost[order])


def _grown(edges: _Edges, pixels: int, scale: float) -> tuple[Ints, Ints]:
    """Join pixels by the rule; return the root of each, and the size of the segment of every root.

    Costs rise, so a segment whose limit has been reached never grows again. Edges inside a segment or at one that has
    stopped are left out, a whole stretch at a time; only the others are gone through one by one.
    """
    label, open_until = np.arange(pixels), np.full(pixels, scale)
    parent, size, limit = list(range(pixels)), [1] * pixels, [scale] * pixels
    for first in range(0, len(edges.cost), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        cost, one, other = edges.cost[part], label[edges.one[part]], label[edges.other[part]]
        growing = open_until > cost[0]
        live = (one != other) & growing[one] & growing[other]
        joined: list[int] = []
        for a, b, c in zip(one[live].tolist(), other[live].tolist(), cost[live].tolist(), strict=True):
            while parent[a] != a:
                a = parent[a]
            while parent[b] != b:
                b = parent[b]
            if a != b and c < limit[a] and c < limit[b]:
                if size[a] < size[b]:
                    a, b = b, a
                parent[b] = a
                size[a] += size[b]
                limit[a] = c + scale / size[a]
                joined += (a, b)
        if joined:
            label = _followed(parent, joined, label)
            open_until[joined] = [limit[each] for each in joined]
    return label, np.asarray(size)


def _without_small(edges: _Edges, label: Ints, sizes: Ints, least: int) -> Ints:
    """Join segments of fewer than ``least`` pixels to the neighbour at their nearest edge; return all roots."""
    parent, size = list(range(len(label))), sizes.tolist()
    between = np.flatnonzero(label[edges.one] != label[edges.other])
    for first in range(0, len(between), _AT_ONCE):
        part = between[first : first + _AT_ONCE]
        one, other = label[edges.one[part]], label[edges.other[part]]
        live = (one != other) & (np.minimum(sizes[one], sizes[other]) < least)
        joined: list[int] = []
        for a, b in zip(one[live].tolist(), other[live].tolist(), strict=True):
            while parent[a] != a:
                a = parent[a]
            while parent[b] != b:
                b = parent[b]
            if a != b and (size[a] < least or size[b] < least):
                if size[a] < size[b]:
                    a, b = b, a
                parent[b] = a
                size[a] += size[b]
                joined += (a, b)
        if joined:
            label = _followed(parent, joined, label)
            sizes[joined] = [size[each] for each in joined]
    return label


def _followed(parent: list[int], changed: list[int], label: Ints) -> Ints:
    """Return the root of every pixel after some roots got another one above them."""
    up: NDArray[Any] = np.arange(len(label))
    up[changed] = [parent[each] for each in changed]
    while True:
        further = up[up]
        if np.array_equal(further, up):
            return up[label]
        up = further


SCALES = (50, 100, 150, 250, 500, 1200)


@register_method("xrai", family="input", papers=("kapishnikov2019xrai", "felzenszwalb2004efficient"), cost=(200, 200))
@dataclass(frozen=True)
class XRAI(Method):
    """Integrated gradients averaged over regions, the best regions first.

    Attribution: ``(x - x0)`` times the mean gradient at ``steps`` evenly spaced points from x0 to x, both included,
    for x0 = the smallest and x0 = the largest value of the image (in normalised space); the mean of both, and of the
    channels the largest. Regions: the image, scaled to [-1, 1] by its own smallest and largest value and resized to
    ``side`` x ``side`` (bicubic), is segmented after Felzenszwalb and Huttenlocher (sigma 0.8, at least ``min_size``
    pixels) at the scales 50, 100, 150, 250, 500 and 1200; brought back to the image's size (nearest), each segment
    grows by a disk of ``radius`` pixels. Again and again the region with the highest mean attribution over the pixels
    that no earlier one has is added, and these pixels get that mean; regions with fewer than ``new`` such pixels are
    dropped. What is left over gets its own mean, so the map sums to the attribution under it. ``fast`` ranks regions
    once, by the mean over all of their pixels.

    Which region comes next is a matter of order: rounding can exchange two whose means are almost the same.
    ``radius`` and ``new`` are pixels of the input whatever its size. Released code resizes with a cubic spline and a
    Gaussian, here it is torch's antialiased bicubic; at 224 x 224 neither changes anything. An image of one colour is
    one segment. Not here: other attributions, other segments, an area to stop at. Needs images; tokens of a sub-network
    are refused. Kapishnikov et al., ICCV 2019. Cost: ``2 steps`` forwards and backwards, and half a second per image on
    one core.
    """

    steps: int = 100
    fast: bool = False
    side: int = 224
    min_size: int = 150
    radius: int = 5
    new: int = 50
    grid = "pixel"

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise SpecError(f"steps={self.steps} must be at least 2")
        for name in ("side", "min_size", "new"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}={getattr(self, name)} must be at least 1")
        if self.radius < 0:
            raise SpecError(f"radius={self.radius} must be at least 0")

    @property
    def cost(self) -> tuple[float, float]:
        return 2 * self.steps, 2 * self.steps

    def compute(self, context: Context) -> Attribution:
        needs_images("xrai", context)
        inputs = context.inputs
        nodes = torch.linspace(0, 1, self.steps, dtype=torch.float64).to(inputs)
        weights = torch.full_like(upcast(nodes), 1 / self.steps)
        ends = inputs.amin(dim=(1, 2, 3), keepdim=True), inputs.amax(dim=(1, 2, 3), keepdim=True)
        one, other = (integrated(context, end, nodes, weights)[0] for end in ends)
        pixels = ((one + other) / 2).amax(dim=1)
        maps = [
            _ranked(attribution, _regions(labels, self.radius), self.new, self.fast)
            for attribution, labels in zip(pixels.double().cpu().numpy(), self._segments(context), strict=True)
        ]
        return Attribution(torch.from_numpy(np.stack(maps)).to(pixels), {})

    def _segments(self, context: Context) -> list[list[Ints]]:
        """Return the labels ``[H, W]`` of every image at every scale; the same for all classes of a comparison."""
        known, key = context.memo if context.shared is None else context.shared, ("xrai", self.side, self.min_size)
        if key not in known:
            known[key] = [_labels(image, self.side, self.min_size) for image in context.inputs.double().cpu()]
        found: list[list[Ints]] = known[key]
        return found


def _labels(image: Tensor, side: int, least: int) -> list[Ints]:
    low, high = image.min(), image.max()
    scaled = 2 * (image - low) / (high - low) - 1 if high > low else torch.zeros_like(image)
    size = image.shape[-2:]
    if tuple(size) != (side, side):
        scaled = F.interpolate(scaled[None], (side, side), mode="bicubic", align_corners=False, antialias=True)[0]
    labels = segmented(scaled.permute(1, 2, 0).numpy(), SCALES, least=least)
    down, across = (((np.arange(n) + 0.5) * side / n).astype(np.int64) for n in size)
    return [label[down[:, None], across] for label in labels]


def _regions(labels: Sequence[Ints], radius: int) -> list[Ints]:
    """Return the pixels of every segment of every scale, each grown by a disk.

    A pixel holds the set of segments that reach it, one bit each, so that all of a scale grow together.
    """
    found = []
    for label in labels:
        count = int(label.max()) + 1
        bits = np.zeros((-(-count // 64), *label.shape), dtype=np.uint64)
        rows, columns = np.indices(label.shape)
        bits[label // 64, rows, columns] = np.uint64(1) << (label % 64).astype(np.uint64)
        grown = _dilated(bits, radius).reshape(len(bits), -1)
        for segment in range(count):
            has = (grown[segment // 64] >> np.uint64(segment % 64)) & np.uint64(1)
            pixels = np.flatnonzero(has)
            if len(pixels):
                found.append(pixels)
    return found


def _dilated(bits: NDArray[np.uint64], radius: int) -> NDArray[np.uint64]:
    """Return the union over a disk around every place of ``[..., H, W]``."""
    height, width = bits.shape[-2:]
    wider = [bits]  # by so many columns to either side
    for reach in range(1, radius + 1):
        next_one = wider[-1].copy()
        if reach < width:
            next_one[..., reach:] |= bits[..., :-reach]
            next_one[..., :-reach] |= bits[..., reach:]
        wider.append(next_one)
    grown: NDArray[np.uint64] = wider[radius].copy()
    for down in range(1, min(radius, height - 1) + 1):
        row = wider[math.isqrt(radius**2 - down**2)]
        grown[..., down:, :] |= row[..., :-down, :]
        grown[..., :-down, :] |= row[..., down:, :]
    return grown


def _ranked(attribution: Floats, regions: list[Ints], least: int, fast: bool) -> Floats:
    """Return the map of one image: regions one after the other, each with the mean over what it adds."""
    values = attribution.ravel()
    found, free = np.empty_like(values), np.ones(len(values), dtype=bool)

    def add(pixels: Ints) -> None:
        found[pixels], free[pixels] = values[pixels].mean(), False

    if fast:
        means = np.array([values[pixels].mean() for pixels in regions])
        for each in np.argsort(-means, kind="stable"):
            pixels = regions[each][free[regions[each]]]
            if len(pixels) >= least:
                add(pixels)
    else:
        counts = np.array([len(pixels) for pixels in regions])
        sums = np.array([values[pixels].sum() for pixels in regions])
        table = _table(regions, len(values))
        while (counts >= least).any():
            best = int(np.where(counts >= least, sums / np.maximum(counts, 1), -np.inf).argmax())
            pixels = regions[best][free[regions[best]]]
            add(pixels)
            # each pixel is taken once, so all of this together goes over the table once
            others, size = table[pixels], len(counts) + 1
            counts -= np.bincount(others.ravel(), minlength=size)[:-1]
            lost = np.repeat(values[pixels], others.shape[1])
            sums -= np.bincount(others.ravel(), lost, minlength=size)[:-1]
    if free.any():
        found[free] = values[free].mean()
    return found.reshape(attribution.shape)


def _table(regions: list[Ints], pixels: int) -> Ints:
    """Return the regions that hold each pixel ``[pixels, most]``, filled up with a number past the last."""
    pixel = np.concatenate(regions)
    region = np.repeat(np.arange(len(regions)), [len(each) for each in regions])
    order = np.argsort(pixel, kind="stable")
    pixel, region = pixel[order], region[order]
    counts = np.bincount(pixel, minlength=pixels)
    place = np.arange(len(pixel)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((pixels, int(counts.max())), len(regions))
    table[pixel, place] = region
    return table
