"""What activations are usually like, learnt without a photograph: mean and deviation over scenes of the bundled world.

The scenes are always the same and no one else's, so that the numbers follow from the weights and the size of the input
alone. They are made once, and kept: in memory, and in the user's cache folder (``disk.cache_folder``), by a digest of
all that they follow from and never by a model's name. What is found there is used only if its seal is right.

``statistics``: what a model's activations are usually like, over pictures or over noise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous import __version__
from vitreous import io as disk
from vitreous.datasets import OnError, count, cut, file_digest, image_files, pictures
from vitreous.errors import ImageError, VitreousError, VitreousWarning
from vitreous.models import Snapshot, VisionModel, wrap
from vitreous.models.submodels import SubModel
from vitreous.progress import Progress
from vitreous.tracing.context import Context
from vitreous.tracing.memory import InnerBatch, in_parts, inner_batch
from vitreous.tracing.prng import check_seed
from vitreous.tracing.statistics import ActivationStats, Moments, maker_of, noise, statistics_of
from vitreous.world import draw, render

__all__ = [
    "SCENES",
    "VERSION",
    "scenes",
    "seen_scenes",
    "collect_activation_stats",
    "world_moments",
    "world_statistics",
]

SCENES = 64
VERSION = 1
"""To be counted up when the scenes or what is written down of them change: older files are then left alone."""

_FIRST = 2**52  # seeds from here on are in no split of the world
_SIDES = 16, 4096  # of what can be rendered
_AT_ONCE = 8  # always: the last bits shall not depend on anyone's budget
_MOST_KEPT, _MOST_BYTES = 16, 2**29
_log = logging.getLogger(__name__)
_kept: OrderedDict[str, ActivationStats] = OrderedDict()
_guard = Lock()

Told = Callable[[int], None]


def world_moments(context: Context, point: str, layers: Sequence[int]) -> list[Moments] | str:
    """Return the moments of these layers of a session's model; or, where scenes cannot tell, why.

    A sub-network gets those of the whole model, at the layers that are its own.
    """
    model, first = _whole(context.model)
    size = _size(context, model)
    if isinstance(size, str):
        return size
    made = world_statistics(model, size, point, _AT_ONCE, context.on_progress, context.expect)
    return [made.moments[point, first + layer] for layer in layers]


def world_statistics(
    model: VisionModel,
    size: Sequence[int],
    point: str,
    at_once: int = _AT_ONCE,
    on_progress: Told | None = None,
    expect: Told | None = None,
) -> ActivationStats:
    """Return mean and deviation of one place of every block over the scenes, made at ``size`` or known from before.

    ``expect`` is told how many inputs will have to be run, ``tick`` after each part of them. Cost: 64 forwards, the
    first time; none afterwards.
    """
    height, width = (int(side) for side in size)
    key = _key(model, (height, width), point, recent=True)
    with _guard:
        known = _kept.get(key)
        if known is not None:
            _kept.move_to_end(key)
    if known is None:
        key = _key(model, (height, width), point)
        is_lasting = not Snapshot(model).recent.has_unknown_code  # otherwise nobody ever finds it again
        known = _read(key, model, (height, width)) if is_lasting else None
        if known is None:
            known = _sealed(key, model, _made(model, (height, width), point, at_once, on_progress, expect))
            if is_lasting:
                _write(key, known)
        _remember(key, known)
    return replace(known, model=model.name)


def scenes(size: Sequence[int], start: int = 0, stop: int = SCENES) -> Tensor:
    """Return some of the scenes as pictures ``[n, 3, H, W]`` in [0, 1]; those that are not square are squeezed.

    They are rendered on the CPU, for a GPU rounds otherwise.
    """
    height, width = size
    least, most = _SIDES
    side = min(most, max(least, height, width))
    images = render(draw(range(_FIRST + start, _FIRST + stop)), side).images
    if (height, width) != (side, side):
        images = F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return images


def seen_scenes(model: VisionModel, size: Sequence[int], start: int = 0, stop: int = SCENES) -> Tensor:
    """Return some of the scenes as a model is to see them, on the CPU."""
    return model.preprocess.normalize(scenes(size, start, stop))


def _made(
    model: VisionModel, size: tuple[int, int], point: str, at_once: int, on_progress: Told | None, expect: Told | None
) -> ActivationStats:
    if expect is not None:
        expect(SCENES)

    def part(start: int, stop: int) -> ActivationStats:
        made = statistics_of(model, seen_scenes(model, size, start, stop), "world", (point,))
        if on_progress is not None:
            on_progress(stop - start)
        return made

    with torch.inference_mode(False), torch.no_grad():
        total, *others = InnerBatch(max(1, at_once)).run(part, SCENES)
        for other in others:
            total = total.merge(other)
    return total


def _sealed(key: str, model: VisionModel, made: ActivationStats) -> ActivationStats:
    """Round to what will be kept, in memory as on disk, and note a digest of it."""
    exact = torch.float64 if model.dtype == torch.float64 else torch.float32
    moments = {
        at: Moments(moment.mean.to(exact), moment.square.to(exact), moment.n) for at, moment in made.moments.items()
    }
    rounded = replace(made, moments=moments)
    return replace(rounded, pictures=_seal(key, rounded))


def _seal(key: str, made: ActivationStats) -> str:
    return hashlib.blake2b(f"{key} {made.fingerprint}".encode(), digest_size=16).hexdigest()


def _key(model: VisionModel, size: tuple[int, int], point: str, recent: bool = False) -> str:
    """Return a digest of all that the numbers follow from; names are none of it."""
    told = [maker_of(model, recent), size, point, SCENES, VERSION, __version__]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def _remember(key: str, made: ActivationStats) -> None:
    """Keep the latest in memory: so many, and so many bytes."""
    with _guard:
        _kept[key] = made
        _kept.move_to_end(key)
        while len(_kept) > 1 and (len(_kept) > _MOST_KEPT or sum(map(_num_bytes, _kept.values())) > _MOST_BYTES):
            _kept.popitem(last=False)


def _num_bytes(made: ActivationStats) -> int:
    return sum(tensor.nbytes for moment in made.moments.values() for tensor in moment[:2])


# -- on disk -----------------------------------------------------------------------------------------------


def _place(key: str) -> Path | None:
    return disk.cached(f"world-{key}.safetensors")


def _read(key: str, model: VisionModel, size: tuple[int, int]) -> ActivationStats | None:
    """Return what an earlier run left, if it is whole and of this very model."""
    path = _place(key)
    try:
        if path is None or not path.is_file():
            return None
        disk.recover(path)  # after a writer that died
        found = ActivationStats.load(path)
        moments = {
            at: Moments(moment.mean.clone(), moment.square.clone(), moment.n) for at, moment in found.moments.items()
        }
        found = replace(found, model=model.name, moments=moments, path=None)
        facts = found.source, found.count, found.size, found.maker
        if facts == ("world", SCENES, size, maker_of(model)) and found.pictures == _seal(key, found):
            disk.mark_used(path)
            return found
        reason = "it is of another model, or its numbers were changed"
    except (OSError, ValueError, VitreousError) as error:
        reason = str(error)
    _log.info("statistics in the cache are made anew: %s: %s", path, reason)
    return None


def _write(key: str, made: ActivationStats) -> None:
    """Leave the statistics for later runs; where that cannot be, the next one makes them again."""
    path = _place(key)
    if path is None:
        return
    try:
        with disk.lock(path, timeout=0):  # whoever holds it writes the same
            made.save(path, overwrite=True, held=True)
        disk.trim_cache()
    except (OSError, ValueError, VitreousError) as error:
        _log.info("statistics are not kept on disk: %s", error)


# -- parts of a model --------------------------------------------------------------------------------------


def _whole(model: VisionModel) -> tuple[VisionModel, int]:
    """Return the whole model that a view is a part of, and where in it the part begins."""
    whole, first = model.source_model if isinstance(model.source_model, SubModel) else model, 0
    while isinstance(whole, SubModel):
        first += whole.first
        whole = whole.whole
    return whole, first


def _size(context: Context, whole: VisionModel) -> tuple[int, int] | str:
    """Return height and width of the images, or why there is no saying what images are like."""
    inputs, model = context.inputs, context.model
    if len(whole.preprocess.mean) != 3 or (inputs.ndim == 4 and inputs.shape[1] != 3):
        return f"{model.name} does not take images of three channels"
    if inputs.ndim == 4:
        return inputs.shape[-2], inputs.shape[-1]
    if isinstance(model, SubModel):
        told = model.image_size
        height, width = whole.preprocess.size if told is None else told
        grid = model.grid()
        if told is not None or inputs.shape[1] == model.num_prefix_tokens + grid[0] * grid[1]:
            return height, width
    return f"the inputs of {model.name} are tokens, and no one said of how large an image"


_FEW = 10
_MOST_AT_ONCE = 32
_SAVE_EVERY = 60.0  # seconds


def collect_activation_stats(
    model: VisionModel | nn.Module,
    images: Any = None,
    *,
    noise: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | None = None,
    on_error: OnError | None = None,
) -> ActivationStats:
    """Return mean and deviation of the activations over pictures, or over ``noise`` images of uniform noise.

    ``images`` may be whatever ``explain`` takes. With ``out`` they are written there; what is done on the way is kept
    now and then beside it (``out.partial``), and ``resume`` goes on from there, or adds to a finished file, if model
    and pictures are the same. Cost: one forward per picture.
    """
    vision_model, partial = wrap(model), None if out is None else Path(f"{out}.partial")
    if (images is None) == (noise is None):
        raise VitreousError("statistics need either images or noise=N")
    if noise is not None and noise < 2:
        raise VitreousError(f"noise={noise} must be at least 2")
    if batch_size is not None and batch_size < 1:
        raise VitreousError(f"batch_size={batch_size} must be at least 1")
    check_seed(seed)
    if out is not None:
        disk.check_file(out, overwrite=overwrite or resume)
    source = _Noise(vision_model, noise, seed) if noise is not None else _Pictures(vision_model, images, on_error)
    if out is None or partial is None:
        return _collect(vision_model, source, None, None, batch_size, memory_gb, progress)
    with disk.lock(out, timeout=0):
        begun = _begin(vision_model, source, Path(out), partial, overwrite, resume)
        collected = _collect(vision_model, source, begun, partial, batch_size, memory_gb, progress)
        if collected.maker != maker_of(vision_model):
            raise VitreousError(f"{vision_model.name} was changed while its statistics were collected; start again")
        collected.save(out, overwrite=True, held=True)
        disk.discard(partial)
    return replace(collected, path=str(out))


def _collect(
    model: VisionModel,
    source: _Noise | _Pictures,
    total: ActivationStats | None,
    partial: Path | None,
    batch_size: int | None,
    memory_gb: float | None,
    progress: Progress | None,
) -> ActivationStats:
    """Take in what is left of the source; what was finished is kept at ``partial``, also after an error or Ctrl-C."""
    probe = torch.empty(1, 3, *model.preprocess.size, dtype=model.dtype, device=model.device)
    at_once = batch_size or min(_MOST_AT_ONCE, inner_batch(model, probe, memory_gb))
    saved, written = time.monotonic(), total
    try:
        for taken, batch in source.batches(total, at_once):
            for part in () if batch is None else in_parts(_part(model, batch, source.kind), len(batch), at_once):
                total = part if total is None else total.merge(part)
            if total is not None:
                total = replace(total, taken=taken, pictures=source.digest(taken))
            if progress is not None:
                progress(taken, source.total)
            if partial is not None and total is not None and time.monotonic() - saved > _SAVE_EVERY:
                total.save(partial, overwrite=True)
                saved, written = time.monotonic(), total
    except BaseException:
        if partial is not None and total is not None and total is not written:
            total.save(partial, overwrite=True)
        raise
    if total is None or total.count < 2:
        seen = 0 if total is None else total.count
        raise VitreousError(f"statistics of {seen} pictures have no deviation; give at least two")
    if total.count < _FEW:
        text = f"statistics of {total.count} images are rough; ten or more are advised"
        warnings.warn(text, VitreousWarning, stacklevel=3)
    return total


def _part(model: VisionModel, batch: Tensor, kind: str) -> Callable[[int, int], ActivationStats]:
    return lambda start, stop: statistics_of(model, batch[start:stop], kind)


class _Noise:
    """Images of uniform noise; they are made anew up to where a collection stopped."""

    kind = "noise"

    def __init__(self, model: VisionModel, total: int, seed: int) -> None:
        self.view, self.total, self.seed = model, total, seed

    def digest(self, taken: int) -> str:
        return f"seed {self.seed}"

    def batches(self, begun: ActivationStats | None, at_once: int) -> Iterator[tuple[int, Tensor | None]]:
        taken = 0 if begun is None else begun.taken
        if begun is not None and begun.pictures != self.digest(taken):
            raise _others(begun)
        every = noise(self.view, self.total, self.view.preprocess.size, self.seed, 1)
        for batch in cut(islice(every, taken, None), at_once):
            taken += len(batch)
            yield taken, torch.cat(batch)


class _Pictures:
    """Pictures of any source. Those taken before are looked at again, bytes only if they are files, to know them."""

    kind = "images"

    def __init__(self, model: VisionModel, source: Any, on_error: OnError | None) -> None:
        self.view, self.source, self.on_error = model, source, on_error
        self.files = _files(source)
        self.total = len(self.files) if self.files is not None else count(source)
        self._digest, self._digested = hashlib.blake2b(digest_size=16), 0

    def digest(self, taken: int) -> str:
        """Return what tells the pictures taken so far from others."""
        assert taken == self._digested
        return self._digest.hexdigest()

    def _know(self, digest: str) -> None:
        self._digest.update(digest.encode())
        self._digested += 1

    def batches(self, begun: ActivationStats | None, at_once: int) -> Iterator[tuple[int, Tensor | None]]:
        """Yield how many pictures were taken by then, and those of the batch that could be read."""
        before = 0 if begun is None else begun.taken
        if self.files is not None:
            self._remember(begun, (_digest_of(path) for path in self.files[:before]))
            for part in cut(iter(self.files[before:]), at_once):
                readable = [image for path in part for image in pictures(path, self.view, self.on_error)]
                for path in part:
                    self._know(_digest_of(path))
                yield self._digested, _stacked([each.tensor for each in readable])
            return
        every = pictures(self.source, self.view, self.on_error, seen=False)
        self._remember(begun, (each.digest for each in islice(every, before)))
        for batch in cut(every, at_once):
            for each in batch:
                self._know(each.digest)
            yield self._digested, _stacked([each.tensor for each in batch])

    def _remember(self, begun: ActivationStats | None, digests: Iterator[str]) -> None:
        for digest in digests:
            self._know(digest)
        if begun is not None and (self._digested, self.digest(self._digested)) != (begun.taken, begun.pictures):
            raise _others(begun)


def _others(begun: ActivationStats) -> VitreousError:
    return VitreousError(f"{begun.path} was made from other pictures; it cannot be resumed with these")


def _digest_of(path: Path) -> str:
    try:
        return file_digest(path)
    except ImageError:  # told when it is read
        return "unreadable"


def _begin(
    model: VisionModel, source: _Noise | _Pictures, out: Path, partial: Path, overwrite: bool, resume: bool
) -> ActivationStats | None:
    """Return what an earlier run left to go on with, if it is of the same model."""
    there = [path for path in (partial, out) if os.path.lexists(path)]
    if partial in there:
        ActivationStats.load(partial)  # what is no such thing is not ours to write over
    if not there or (overwrite and not resume):
        return None
    if not resume:
        raise VitreousError(f"{there[0]} is there already; choose another place, or allow overwriting or resuming")
    earlier = ActivationStats.load(there[0])
    if (earlier.model, earlier.source, earlier.maker) != (model.name, source.kind, maker_of(model)):
        made = f"{earlier.source} in {earlier.model}"
        raise VitreousError(f"{there[0]} holds statistics of {made}, or of other weights; it cannot be resumed here")
    if source.total is not None and earlier.taken > source.total:
        raise _others(earlier)
    return earlier


def _files(source: Any) -> list[Path] | None:
    """Return the files meant by a path or a list of paths, and ``None`` for any other source."""
    if isinstance(source, str | Path):
        return image_files(source)
    if isinstance(source, list | tuple) and source and all(isinstance(each, str | Path) for each in source):
        return [path for each in source for path in image_files(each)]
    return None


def _stacked(tensors: Sequence[Tensor]) -> Tensor | None:
    if len({tensor.shape for tensor in tensors}) > 1:
        raise ImageError("tensors of different sizes cannot share statistics")
    return torch.stack(list(tensors)) if tensors else None
