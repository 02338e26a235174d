"""XRAI: integrated gradients, averaged over regions that are ranked by how much of it they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import SpellingError
from vitreous.methods.base import Answer, Method
from vitreous.methods.input_gradient import integrated, needs_images
from vitreous.methods.paths.felzenszwalb import Floats, Ints, segmented
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.passes import Session

__all__ = ["SCALES", "XRAI"]

SCALES = (50, 100, 150, 250, 500, 1200)


@register("xrai", family="input", papers=("kapishnikov2019xrai", "felzenszwalb2004efficient"), cost=(200, 200))
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
            raise SpellingError(f"steps={self.steps} must be at least 2")
        for name in ("side", "min_size", "new"):
            if getattr(self, name) < 1:
                raise SpellingError(f"{name}={getattr(self, name)} must be at least 1")
        if self.radius < 0:
            raise SpellingError(f"radius={self.radius} must be at least 0")

    @property
    def cost(self) -> tuple[float, float]:
        return 2 * self.steps, 2 * self.steps

    def compute(self, session: Session) -> Answer:
        needs_images("xrai", session)
        inputs = session.inputs
        nodes = torch.linspace(0, 1, self.steps, dtype=torch.float64).to(inputs)
        weights = torch.full_like(at_least_float32(nodes), 1 / self.steps)
        ends = inputs.amin(dim=(1, 2, 3), keepdim=True), inputs.amax(dim=(1, 2, 3), keepdim=True)
        one, other = (integrated(session, end, nodes, weights)[0] for end in ends)
        pixels = ((one + other) / 2).amax(dim=1)
        maps = [
            _ranked(attribution, _regions(labels, self.radius), self.new, self.fast)
            for attribution, labels in zip(pixels.double().cpu().numpy(), self._segments(session), strict=True)
        ]
        return Answer(torch.from_numpy(np.stack(maps)).to(pixels), {})

    def _segments(self, session: Session) -> list[list[Ints]]:
        """Return the labels ``[H, W]`` of every image at every scale; the same for all classes of a comparison."""
        known, key = session.memo if session.common is None else session.common, ("xrai", self.side, self.min_size)
        if key not in known:
            known[key] = [_labels(image, self.side, self.min_size) for image in session.inputs.double().cpu()]
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
    return [each[down[:, None], across] for each in labels]


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
    high, wide = bits.shape[-2:]
    wider = [bits]  # by so many columns to either side
    for reach in range(1, radius + 1):
        next_one = wider[-1].copy()
        if reach < wide:
            next_one[..., reach:] |= bits[..., :-reach]
            next_one[..., :-reach] |= bits[..., reach:]
        wider.append(next_one)
    grown: NDArray[np.uint64] = wider[radius].copy()
    for down in range(1, min(radius, high - 1) + 1):
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
