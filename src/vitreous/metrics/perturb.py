"""What a state looks like: functions that write perturbed images into a batch, or make pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import VitreousError
from vitreous.metrics import baselines as road
from vitreous.metrics.baselines import SUBSTRATES, baseline_images
from vitreous.metrics.ranking import order, scaled, token_map, unit_ranks
from vitreous.metrics.requests import RankedRemoval
from vitreous.models import VisionModel

__all__ = ["Chunk", "Write", "fade", "masked", "perturbed", "select"]

Write = Callable[[Tensor, int, int], Tensor | None]
"""Writes states ``start .. stop - 1`` of a run into a slice of the batch buffer; returns which pixels ``[n, H, W]``
are still missing, to be filled in by ``road.complete``, if any are."""


@dataclass
class Chunk:
    """Some images and what is made of them once: substrates, tokens, the noise of ROAD."""

    view: VisionModel
    inputs: Tensor
    images: Mapping[str, Tensor]
    scored: Tensor
    seed: int = 0
    tokens: Tensor | None = None
    noise: Tensor | None = None

    @classmethod
    def of(cls, model: VisionModel, inputs: Tensor, baselines: Sequence[str], scored: Tensor, seed: int) -> Chunk:
        """Make the substrates of some images."""
        made = {s: baseline_images(s, inputs, model.preprocess, seed) for s in baselines if s in SUBSTRATES}
        return cls(model, inputs, made, scored, seed)

    def baseline(self, name: str, image: int) -> Tensor:
        images = self.images[name]
        return images[0] if len(images) == 1 else images[image]

    def noise_of(self, image: int) -> Tensor:
        if self.noise is None:
            self.noise = road.noise(self.inputs, self.view.preprocess, self.seed)
        return self.noise[image]


def select(chunk: Chunk, image: int, baseline: str, keep: bool, spans: Tensor, ranks: Tensor) -> Write:
    """Return what writes the states of some spans ``[J, 2]``: pixels of these ranks kept, or removed."""
    low, high = spans[:, 0].view(-1, 1, 1, 1), spans[:, 1].view(-1, 1, 1, 1)
    from_top = bool((spans[:, 0] == 0).all())
    picture = chunk.inputs[image]

    def inside(start: int, stop: int) -> Tensor:
        below = ranks < high[start:stop]
        return below if from_top else below & (ranks >= low[start:stop])

    if SUBSTRATES[baseline].imputes:
        return _impute(chunk, image, (lambda a, b: ~inside(a, b)) if keep else inside)
    other = chunk.baseline(baseline, image)
    top, rest = (picture, other) if keep else (other, picture)

    def write(out: Tensor, start: int, stop: int) -> None:
        torch.where(inside(start, stop), top, rest, out=out)

    return write


def masked(chunk: Chunk, image: int, baseline: str, gone: Tensor) -> Write:
    """Return what writes the image without each of the masks ``[m, h, w]``, enlarged to pixels cell by cell."""
    size = chunk.inputs.shape[-2:]
    if tuple(gone.shape[1:]) != tuple(size):
        gone = F.interpolate(gone[:, None].to(torch.uint8), size=size, mode="nearest-exact")[:, 0].bool()
    if SUBSTRATES[baseline].imputes:
        impute = _impute(chunk, image, lambda start, stop: gone[start:stop, None])
        nothing = gone.flatten(1).all(dim=1)  # nothing is left to fill in from: the mean colour

        def fill(out: Tensor, start: int, stop: int) -> Tensor | None:
            missing = impute(out, start, stop)
            assert missing is not None
            bare = nothing[start:stop]
            out[bare] += chunk.inputs[image].mean(dim=(1, 2), keepdim=True)
            return missing & ~bare[:, None, None]

        return fill

    def write(out: Tensor, start: int, stop: int) -> None:
        torch.where(gone[start:stop, None], chunk.baseline(baseline, image), chunk.inputs[image], out=out)

    return write


def fade(weights: Tensor, chunk: Chunk, baseline: str, image: int) -> Write:
    """Return what writes the image faded into the substrate by the map."""

    def write(out: Tensor, start: int, stop: int) -> None:
        bare = chunk.baseline(baseline, image).expand_as(chunk.inputs[image])
        out.copy_(torch.lerp(bare, chunk.inputs[image], weights.to(chunk.inputs)))

    return write


def _impute(chunk: Chunk, image: int, gone: Callable[[int, int], Tensor]) -> Write:
    """Return what leaves removed pixels, which hold their noise, to be filled in from those that are left."""

    def write(out: Tensor, start: int, stop: int) -> Tensor:
        removed = gone(start, stop)
        torch.where(removed, chunk.noise_of(image), chunk.inputs[image], out=out)
        return removed[:, 0]

    return write


def perturbed(
    model: VisionModel,
    inputs: Tensor,
    maps: Tensor,
    need: RankedRemoval,
    *,
    upsample: str = "bilinear",
    ties: str = "random",
    seed: int = 0,
) -> Tensor:
    """Return the states of a need as images ``[B, J, 3, H, W]``, for maps ``[B, h, w]``: what the model was shown.

    Tokens leave the sequence, and no pixel is painted over; here their patches turn grey.
    """
    if need.by != "map":
        raise VitreousError("only states in the order of a map can be had as images")
    inputs = model.cast(inputs)
    baseline = "zero_norm" if need.unit == "token" else need.baseline
    chunk = Chunk.of(model, inputs, [baseline], inputs.new_zeros(len(inputs), 1), seed)
    spans = torch.tensor(need.spans, dtype=torch.int32, device=inputs.device)
    maps = maps.to(inputs.device)
    states = inputs.new_empty(len(inputs), len(spans), *inputs.shape[1:])
    for image in range(len(inputs)):
        own = maps[image : image + 1]
        if need.unit.startswith("blend:"):
            weights = scaled(own, (inputs.shape[-2], inputs.shape[-1]), need.unit[6:])[0]
            write = fade(weights, chunk, baseline, image)
        elif need.unit == "token":
            write = _greyed(model, chunk, image, need, own, ties, seed)
        else:
            size = (inputs.shape[-2], inputs.shape[-1])
            ranks = unit_ranks(own, size, need.unit, upsample, ties, seed)[0]
            write = select(chunk, image, baseline, need.keep, spans, ranks)
        missing = write(states[image], 0, len(spans))
        if missing is not None:
            states[image] = road.complete(states[image], missing)
    return states


def _greyed(
    model: VisionModel, chunk: Chunk, image: int, need: RankedRemoval, own: Tensor, ties: str, seed: int
) -> Write:
    height, width = model.grid(chunk.inputs)
    ranked = order(token_map(own, model, chunk.inputs).flatten(1), ties, seed)[0]
    gone = torch.zeros(len(need.spans), height * width, dtype=torch.bool, device=own.device)
    for state, (low, stop) in enumerate(need.spans):
        gone[state, ranked[low:stop]] = True
    gone = ~gone if need.keep else gone
    return masked(chunk, image, "zero_norm", gone.view(-1, height, width))
