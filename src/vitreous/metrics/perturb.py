"""What a state looks like: functions that write perturbed images into a batch, or return them."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import VitreousError
from vitreous.metrics.baselines import BASELINES, inpaint, noise
from vitreous.metrics.ranking import Array, order, scaled, token_map, unit_ranks
from vitreous.models import VisionModel

if TYPE_CHECKING:
    from vitreous.metrics.batch_runner import BatchRunner
    from vitreous.metrics.requests import RankedRemoval

Write = Callable[[Tensor, int, int], Tensor | None]
"""Writes states ``start .. stop - 1`` of a run into a slice of the batch buffer; returns which pixels ``[n, H, W]``
are still missing, to be inpainted, if any are."""

_AHEAD = 2  # images per thread that are rendered or wait to be run: they take memory

Rendered = tuple[Array, Array]
RenderTask = tuple[Callable[[Array, Array | None, int], Rendered], Array, Array | None, int]
"""A function that draws states, and its arguments: the image, the map and a random number."""


@dataclass(frozen=True)
class ImageShape:
    """Rows and columns of the pixels and of the patch tokens, and how many blocks the model has."""

    pixels: tuple[int, int]
    tokens: tuple[int, int]
    depth: int = 12

    @classmethod
    def of(cls, model: VisionModel, inputs: Tensor) -> ImageShape:
        """Return the shape of a batch of inputs ``[B, 3, H, W]``."""
        return cls((inputs.shape[-2], inputs.shape[-1]), model.grid(inputs), model.depth)

    @property
    def num_pixels(self) -> int:
        return prod(self.pixels)

    @property
    def num_tokens(self) -> int:
        return prod(self.tokens)


def on(indices: Array, like: Tensor) -> Tensor:
    """Return an array as a tensor on the device of another."""
    return torch.from_numpy(indices).to(like.device)


class ImageBatch:
    """Some images and what is computed from them once: the named baselines, tokens, the noise of ROAD.

    ``scored`` ``[B, S]`` are the classes that every state is read for; ``ends`` says where the answers about the clean
    images stand, and about each bare baseline.
    """

    def __init__(
        self,
        model: VisionModel,
        inputs: Tensor,
        scored: Tensor,
        names: Iterable[str],
        seed: int = 0,
        annotations: Sequence[Any] = (),
    ) -> None:
        self.model, self.inputs, self.scored, self.seed, self.annotations = model, inputs, scored, seed, annotations
        self.image_shape = ImageShape.of(model, inputs)
        self.baselines = {n: BASELINES[n].make(inputs, model.preprocess, seed) for n in names if n in BASELINES}
        self.ends: dict[str, Array] = {}
        self._tokens: Tensor | None = None

    def baseline(self, name: str, image: int) -> Tensor:
        images = self.baselines[name]
        return images[0] if len(images) == 1 else images[image]

    @cached_property
    def noise(self) -> Tensor:
        """The noise that ROAD adds to each image."""
        return noise(self.inputs, self.model.preprocess, self.seed)

    def tokens(self, runner: BatchRunner) -> Tensor:
        """Return the tokens of all images as they enter the first block."""
        if self._tokens is None:
            self._tokens = runner.embed(self.inputs)
        return self._tokens


def copies(images: Tensor) -> Write:
    """Return what writes images as they are."""

    def write(out: Tensor, start: int, stop: int) -> None:
        out.copy_(images[start:stop])

    return write


def select(images: ImageBatch, image: int, baseline: str, keep: bool, spans: Tensor, ranks: Tensor) -> Write:
    """Return what writes the states of some spans ``[J, 2]``: pixels of these ranks kept, or removed."""
    first, last = spans[:, 0].view(-1, 1, 1, 1), spans[:, 1].view(-1, 1, 1, 1)
    from_top = bool((spans[:, 0] == 0).all())

    def removed(start: int, stop: int) -> Tensor:
        below = ranks < last[start:stop]
        inside = below if from_top else below & (ranks >= first[start:stop])
        return ~inside if keep else inside

    return _replaced(images, image, baseline, removed)


def masked(images: ImageBatch, image: int, baseline: str, masks: Tensor) -> Write:
    """Return what writes the image without each of the masks ``[m, h, w]``, enlarged to pixels cell by cell."""
    size, own = images.inputs.shape[-2:], images.inputs[image]
    if tuple(masks.shape[1:]) != tuple(size):
        masks = F.interpolate(masks[:, None].to(torch.uint8), size=size, mode="nearest-exact")[:, 0].bool()
    write = _replaced(images, image, baseline, lambda start, stop: masks[start:stop, None])
    is_empty = masks.flatten(1).all(dim=1)

    def fill(out: Tensor, start: int, stop: int) -> Tensor | None:
        missing, empty = write(out, start, stop), is_empty[start:stop]
        if missing is not None:  # nothing to inpaint from: the mean colour
            out[empty] += own.mean(dim=(1, 2), keepdim=True)
            missing = missing & ~empty[:, None, None]
        return missing

    return fill


def fade(images: ImageBatch, image: int, baseline: str, weights: Tensor) -> Write:
    """Return what writes the image faded into the baseline by the weights ``[H, W]``."""
    own = images.inputs[image]

    def write(out: Tensor, start: int, stop: int) -> None:
        out.copy_(torch.lerp(images.baseline(baseline, image).expand_as(own), own, weights.to(own)))

    return write


def _replaced(images: ImageBatch, image: int, baseline: str, removed: Callable[[int, int], Tensor]) -> Write:
    """Return what writes the baseline over removed pixels, or their noise, to be inpainted from the others."""
    imputes, own = BASELINES[baseline].imputes, images.inputs[image]
    other = images.noise[image] if imputes else images.baseline(baseline, image)

    def write(out: Tensor, start: int, stop: int) -> Tensor | None:
        mask = removed(start, stop)
        torch.where(mask, other, own, out=out)
        return mask[:, 0] if imputes else None

    return write


class OrderWriter:
    """Writes the states of one order after the other; ranks, weights and spans are computed once for all of them."""

    def __init__(self, images: ImageBatch, values: Tensor, interpolation: str, tie_breaking: str, seed: int) -> None:
        self.images, self.values, self.ranking = images, values, (interpolation, tie_breaking, seed)
        self.by_unit: dict[str, Tensor] = {}
        self.spans: dict[tuple[tuple[int, int], ...], Tensor] = {}

    def write(self, run: RankedRemoval, row: int, image: int) -> Write:
        """Return what writes the states of one run."""
        size, unit, blends = self.images.image_shape.pixels, run.unit, run.unit.startswith("blend:")
        if unit not in self.by_unit:
            self.by_unit[unit] = (
                scaled(self.values, size, unit[6:]) if blends else unit_ranks(self.values, size, unit, *self.ranking)
            )
        weights_or_ranks = self.by_unit[unit][row]
        if blends:
            return fade(self.images, image, run.baseline, weights_or_ranks)
        if run.spans not in self.spans:
            self.spans[run.spans] = torch.tensor(run.spans, dtype=torch.int32, device=self.values.device)
        return select(self.images, image, run.baseline, run.keep, self.spans[run.spans], weights_or_ranks)


class Renderer:
    """Draws states in threads while the model runs the last ones, and queues them in the order of their requests.

    Threads do, and no processes are needed: Qhull, the evaluation of its triangles and the encoder of WebP release the
    interpreter's lock while they work (no other thread waited longer than 8 ms for one that triangulated for 170 ms).
    At most ``_AHEAD`` images per thread are drawn or waiting. After an error, anyone's, nothing more is begun.
    """

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = weakref.proxy(runner)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._threads = max(1, cores or 1)
        self._pool = ThreadPoolExecutor(self._threads, "vitreous-draw")
        # also where an error elsewhere means that nobody finishes this
        self._shutdown = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        self._queue: deque[tuple[Future[Rendered], Tensor, Array, Array, tuple[int, ...]]] = deque()

    def add(self, task: RenderTask, classes: Tensor, slots: Array, numbers: Array) -> None:
        """Have the states of one image drawn."""
        draw, image, values, key = task
        try:
            self._queue.append((self._pool.submit(draw, image, values, key), classes, slots, numbers, image.shape))
            self._run(_AHEAD * self._threads)
        except BaseException:  # an interruption too
            self.close()
            raise

    def finish(self) -> None:
        """Wait for what is still being drawn."""
        try:
            self._run(0)
        finally:
            self.close()

    def close(self) -> None:
        """Begin nothing more, and let the threads go."""
        self._queue.clear()
        self._shutdown()

    def _run(self, most: int) -> None:
        """Queue what was drawn, the oldest first, until at most so many are waiting."""
        while len(self._queue) > most:
            future, classes, slots, numbers, shape = self._queue.popleft()
            images, values = future.result()
            expected = (len(slots), *shape)
            if images.shape != expected or images.dtype != np.uint8 or len(values) != len(slots):
                actual = f"{images.dtype} {list(images.shape)} and {len(values)} numbers"
                raise VitreousError(f"states are drawn in uint8 {list(expected)}, one number each; got {actual}")
            numbers[:] = values
            inputs = torch.stack([self._runner.model.preprocess.to_tensor(Image.fromarray(image)) for image in images])
            self._runner.add_images(copies(inputs), shape[:2], classes, slots)


def perturbed(
    model: VisionModel,
    inputs: Tensor,
    maps: Tensor,
    request: RankedRemoval,
    *,
    interpolation: str = "bilinear",
    tie_breaking: str = "random",
    seed: int = 0,
) -> Tensor:
    """Return the states of a request as images ``[B, J, 3, H, W]``, for maps ``[B, h, w]``: what the model was shown.

    Tokens leave the sequence, and no pixel is replaced; here their patches become grey.
    """
    if request.by != "map":
        raise VitreousError("only states in the order of a map can be had as images")
    inputs, maps = model.cast(inputs), maps.to(inputs.device)
    baseline = "zero_norm" if request.unit == "token" else request.baseline
    images = ImageBatch(model, inputs, inputs.new_zeros(len(inputs), 1), [baseline], seed)
    writer = OrderWriter(images, maps, interpolation, tie_breaking, seed)
    states = inputs.new_empty(len(inputs), len(request.spans), *inputs.shape[1:])
    for image in range(len(inputs)):
        if request.unit == "token":
            ranked = order(token_map(maps[[image]], model, inputs).flatten(1), tie_breaking, seed)[0]
            removed = torch.full((len(request.spans), len(ranked)), request.keep, device=ranked.device)
            for state, (start, stop) in enumerate(request.spans):
                removed[state, ranked[start:stop]] = not request.keep
            write = masked(images, image, baseline, removed.view(-1, *model.grid(inputs)))
        else:
            write = writer.write(request, image, image)
        missing = write(states[image], 0, len(request.spans))
        if missing is not None:
            states[image] = inpaint(states[image], missing)
    return states
