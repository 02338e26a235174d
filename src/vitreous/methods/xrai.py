"""XRAI: integrated gradients averaged over regions; the regions come from a segmentation at several scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.methods.base import Attribution, Method
from vitreous.methods.input_gradient import integrated_gradient, refuse_tokens
from vitreous.methods.ops import compute_once
from vitreous.methods.registry import register_method
from vitreous.registry import number
from vitreous.tracing import Context, upcast

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCALES = (50, 100, 150, 250, 500, 1200)
_CHUNK = 8192  # edges between two looks at which of them can still join anything


# -- segmentation after Felzenszwalb and Huttenlocher ------------------------------------------------------


class _Edges(NamedTuple):
    """Pairs of neighbouring pixels and how far their colours are apart, nearest first."""

    one: Ints
    other: Ints
    cost: Floats

    def take(self, index: Ints | slice) -> _Edges:
        return _Edges(self.one[index], self.other[index], self.cost[index])


def segment(image: Floats, scales: Sequence[float], sigma: float = 0.8, min_size: int = 20) -> list[Ints]:
    """Return the segments of an image ``[H, W, C]`` as labels ``[H, W]`` from 0 on, for every scale.

    The image is blurred (``sigma``, mirrored borders); each pixel is joined to its eight neighbours by an edge that
    costs the Euclidean distance of their colours. Edges are taken in order of cost, equal ones right, down, down-right,
    down-left. Two segments become one if the edge between them costs less than ``Int(S) + scale / 255 / |S|`` of both,
    Int being the largest cost inside. In the same order, segments of fewer than ``min_size`` pixels join a neighbour.
    scikit-image has the same rule, but rounds the limits to float32 and leaves the order of equal costs open.
    """
    edges, shape = _edges(_blurred(image, sigma)), image.shape[:2]
    pixels = shape[0] * shape[1]
    labels = []
    for scale in scales:
        label, sizes = _join(edges, np.arange(pixels), np.ones(pixels, dtype=np.int64), scale=scale / 255)
        between = np.flatnonzero(label[edges.one] != label[edges.other])
        label, _ = _join(edges.take(between), label, sizes, min_size=min_size)
        labels.append(np.unique(label, return_inverse=True)[1].astype(np.int64).reshape(shape))
    return labels


def _blurred(image: Floats, sigma: float) -> Floats:
    """Blur an image; in numpy, since the last bit of an exponential decides which of two edges comes first."""
    if sigma == 0:
        return image
    radius = int(4 * sigma + 0.5)
    kernel = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    kernel /= kernel.sum()
    for axis in (0, 1):
        side = image.shape[axis]
        margin = [(radius, radius) if dim == axis else (0, 0) for dim in range(3)]
        padded = np.pad(image, margin, mode="symmetric")
        image = np.sum([weight * padded.take(range(i, i + side), axis) for i, weight in enumerate(kernel)], axis=0)
    return image


def _edges(image: Floats) -> _Edges:
    pixel = np.arange(image.shape[0] * image.shape[1]).reshape(image.shape[:2])
    every, but_last, but_first = slice(None), slice(None, -1), slice(1, None)
    pairs = [
        ((every, but_first), (every, but_last)),
        ((but_first, every), (but_last, every)),
        ((but_first, but_first), (but_last, but_last)),
        ((but_last, but_first), (but_first, but_last)),
    ]
    one, other = (np.concatenate([pixel[pair[i]].ravel() for pair in pairs]) for i in (0, 1))
    cost = np.concatenate([np.sqrt(((image[a] - image[b]) ** 2).sum(axis=-1)).ravel() for a, b in pairs])
    order = np.argsort(cost, kind="stable")
    return _Edges(one[order], other[order], cost[order])


def _join(edges: _Edges, label: Ints, sizes: Ints, scale: float | None = None, min_size: int = 0) -> tuple[Ints, Ints]:
    """Join segments edge by edge, by the rule of a ``scale``, or else where one has fewer than ``min_size`` pixels.

    Segments are trees of pixels. Return the root of each pixel, and the size of the segment of every root. Costs rise,
    so a segment whose limit has been reached never grows again. Edges that can join nothing any more are left out, a
    chunk at a time; only the others are gone through one by one.
    """
    parent, size, limit = list(range(len(label))), sizes.tolist(), [scale or 0.0] * len(label)
    limits = np.array(limit)
    for start in range(0, len(edges.cost), _CHUNK):
        chunk = edges.take(slice(start, start + _CHUNK))
        one, other = label[chunk.one], label[chunk.other]
        if scale is None:
            open_edges = np.minimum(sizes[one], sizes[other]) < min_size
        else:
            open_edges = np.minimum(limits[one], limits[other]) > chunk.cost[0]
        live = np.flatnonzero((one != other) & open_edges)
        joined: list[int] = []
        for a, b, cost in zip(one[live].tolist(), other[live].tolist(), chunk.cost[live].tolist(), strict=True):
            while parent[a] != a:
                a = parent[a]
            while parent[b] != b:
                b = parent[b]
            if size[a] < size[b]:
                a, b = b, a
            if a == b or (size[b] >= min_size if scale is None else cost >= min(limit[a], limit[b])):
                continue
            parent[b] = a
            size[a] += size[b]
            limit[a] = cost + (scale or 0.0) / size[a]
            joined += (a, b)
        if joined:
            label = _relabel(label, parent, joined)
            sizes[joined] = [size[root] for root in joined]
            limits[joined] = [limit[root] for root in joined]
    return label, sizes


def _relabel(label: Ints, parent: list[int], changed: list[int]) -> Ints:
    """Return the root of every pixel after some roots got another one above them."""
    above = np.arange(len(label))
    above[changed] = [parent[root] for root in changed]
    while not np.array_equal(further := above[above], above):
        above = further
    return above[label]


# -- the method --------------------------------------------------------------------------------------------


@register_method("xrai", family="input", papers=("kapishnikov2019xrai", "felzenszwalb2004efficient"), cost=(200, 200))
@dataclass(frozen=True)
class XRAI(Method):
    r"""Integrated gradients averaged over regions, the best regions first.

    .. math::
        A = \max_c \frac{1}{2} \sum_{x^0} (x - x^0)_c \frac{1}{T} \sum_t \frac{\partial s}{\partial x_c}
            \bigl(x^0 + t (x - x^0)\bigr), \qquad
        M_p = \frac{1}{|R_k|} \sum_{q \in R_k} A_q \quad \text{for } p \in R_k

    where :math:`x^0` is the smallest and the largest value of the image, t are T evenly spaced numbers from 0 to 1, and
    :math:`R_k` are the pixels that the k-th region adds: the one with the highest mean of A over the pixels that no
    earlier one has. What is left over gets its own mean, so the map sums to A.

    Parameters
    ----------
    steps : int, default 100
        The number T of points of each path.
    fast : bool, default False
        Rank regions once, by the mean over all of their pixels.
    side : int, default 224
        Rows and columns of the image that is segmented.
    min_size : int, default 150
        The least number of pixels of a segment.
    radius : int, default 5
        The disk by which segments grow, in pixels of the input.
    new : int, default 50
        The least number of new pixels of a region, in pixels of the input; regions with fewer are dropped.

    Notes
    -----
    The image, scaled to [-1, 1] by its own smallest and largest value and resized to ``side`` x ``side`` (bicubic), is
    segmented after Felzenszwalb and Huttenlocher (sigma 0.8) at the scales 50, 100, 150, 250, 500 and 1200, and brought
    back to the image's size (nearest). Which region comes next is a matter of order: rounding can exchange two whose
    means are almost the same. Released code resizes with a cubic spline and a Gaussian, here it is torch's antialiased
    bicubic; at 224 x 224 neither changes anything. An image of one colour is one segment. Not here: other attributions,
    other segments, an area to stop at. The tokens of a sub-network are refused. Cost: ``2 steps`` forwards and
    backwards, and half a second per image on one core.

    References
    ----------
    Kapishnikov et al., "XRAI: Better Attributions Through Regions", ICCV 2019.
    Felzenszwalb and Huttenlocher, "Efficient Graph-Based Image Segmentation", IJCV 2004.

    Examples
    --------
    >>> vt.explain(model, image, "xrai(steps=2, side=64)").map.shape
    torch.Size([128, 128])
    """

    steps: int = number(100, "[2, inf)")
    fast: bool = False
    side: int = number(224, "[1, inf)")
    min_size: int = number(150, "[1, inf)")
    radius: int = number(5, "[0, inf)")
    new: int = number(50, "[1, inf)")
    grid = "pixel"

    @property
    def cost(self) -> tuple[float, float]:
        return 2 * self.steps, 2 * self.steps

    def compute(self, context: Context) -> Attribution:
        refuse_tokens("xrai", context)
        inputs = context.inputs
        nodes = torch.linspace(0, 1, self.steps, dtype=torch.float64).to(inputs)
        weights = torch.full_like(upcast(nodes), 1 / self.steps)
        baselines = inputs.amin(dim=(1, 2, 3), keepdim=True), inputs.amax(dim=(1, 2, 3), keepdim=True)
        dark, light = (integrated_gradient(context, baseline, nodes, weights) for baseline in baselines)
        pixels = ((dark + light) / 2).amax(dim=1)
        maps = [
            _rank(attribution, _regions(labels, self.radius), self.new, self.fast)
            for attribution, labels in zip(pixels.double().cpu().numpy(), self._segments(context), strict=True)
        ]
        return Attribution(torch.from_numpy(np.stack(maps)).to(pixels), {})

    def _segments(self, context: Context) -> list[list[Ints]]:
        """Return the labels ``[H, W]`` of every image at every scale; the same for all classes of a comparison."""

        def segments() -> list[list[Ints]]:
            return [_segment_labels(image, self.side, self.min_size) for image in context.inputs.double().cpu()]

        return compute_once(context, ("xrai", self.side, self.min_size), segments, for_all_classes=True)


def _segment_labels(image: Tensor, side: int, min_size: int) -> list[Ints]:
    low, most = image.min(), image.max()
    scaled = 2 * (image - low) / (most - low) - 1 if most > low else torch.zeros_like(image)
    size = image.shape[-2:]
    if tuple(size) != (side, side):
        scaled = F.interpolate(scaled[None], (side, side), mode="bicubic", align_corners=False, antialias=True)[0]
    labels = segment(scaled.permute(1, 2, 0).numpy(), SCALES, min_size=min_size)
    rows, columns = (((np.arange(n) + 0.5) * side / n).astype(np.int64) for n in size)
    return [label[rows[:, None], columns] for label in labels]


def _regions(labels: Sequence[Ints], radius: int) -> list[Ints]:
    """Return the pixels of every segment of every scale, each grown by a disk.

    A pixel holds the set of segments that reach it, one bit each, so that all of a scale grow together.
    """
    regions = []
    for label in labels:
        count = int(label.max()) + 1
        bits = np.zeros((-(-count // 64), *label.shape), dtype=np.uint64)
        rows, columns = np.indices(label.shape)
        bits[label // 64, rows, columns] = np.uint64(1) << (label % 64).astype(np.uint64)
        grown = _dilated(bits, radius).reshape(len(bits), -1)
        for index in range(count):
            pixels = np.flatnonzero((grown[index // 64] >> np.uint64(index % 64)) & np.uint64(1))
            if len(pixels):
                regions.append(pixels)
    return regions


def _dilated(bits: NDArray[np.uint64], radius: int) -> NDArray[np.uint64]:
    """Return the union over a disk around every pixel of ``[..., H, W]``."""
    height, width = bits.shape[-2:]
    widened = [bits]  # by so many columns to either side
    for reach in range(1, radius + 1):
        wider = widened[-1].copy()
        if reach < width:
            wider[..., reach:] |= bits[..., :-reach]
            wider[..., :-reach] |= bits[..., reach:]
        widened.append(wider)
    grown: NDArray[np.uint64] = widened[radius].copy()
    for shift in range(1, min(radius, height - 1) + 1):
        row = widened[math.isqrt(radius**2 - shift**2)]
        grown[..., shift:, :] |= row[..., :-shift, :]
        grown[..., :-shift, :] |= row[..., shift:, :]
    return grown


def _rank(attribution: Floats, regions: list[Ints], min_new: int, fast: bool) -> Floats:
    """Return the map of one image: regions one after the other, each with the mean over what it adds."""
    values = attribution.ravel()
    result, free = np.empty_like(values), np.ones(len(values), dtype=bool)
    counts = np.array([len(pixels) for pixels in regions])
    sums = np.array([values[pixels].sum() for pixels in regions])
    if fast:
        means = np.array([values[pixels].mean() for pixels in regions])
        for number in np.argsort(-means, kind="stable"):
            pixels = regions[number][free[regions[number]]]
            if len(pixels) >= min_new:
                result[pixels], free[pixels] = values[pixels].mean(), False
    else:
        table = _regions_of_pixels(regions, len(values))
        while (counts >= min_new).any():
            best = int(np.where(counts >= min_new, sums / np.maximum(counts, 1), -np.inf).argmax())
            pixels = regions[best][free[regions[best]]]
            result[pixels], free[pixels] = values[pixels].mean(), False
            # each pixel is taken once, so all of this together goes over the table once
            others, size = table[pixels], len(counts) + 1
            counts -= np.bincount(others.ravel(), minlength=size)[:-1]
            lost = np.repeat(values[pixels], others.shape[1])
            sums -= np.bincount(others.ravel(), lost, minlength=size)[:-1]
    if free.any():
        result[free] = values[free].mean()
    return result.reshape(attribution.shape)


def _regions_of_pixels(regions: list[Ints], pixels: int) -> Ints:
    """Return the regions that hold each pixel ``[pixels, most]``, filled up with a number past the last."""
    pixel = np.concatenate(regions)
    region = np.repeat(np.arange(len(regions)), [len(members) for members in regions])
    order = np.argsort(pixel, kind="stable")
    pixel, region = pixel[order], region[order]
    counts = np.bincount(pixel, minlength=pixels)
    column = np.arange(len(pixel)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((pixels, int(counts.max())), len(regions))
    table[pixel, column] = region
    return table
