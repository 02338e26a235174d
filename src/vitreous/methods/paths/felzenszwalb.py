"""Graph-based segmentation after Felzenszwalb and Huttenlocher (IJCV 2004), at several scales of one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["segmented"]

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
