"""Collecting activation statistics: over scenes of the bundled world, over images, or over noise.

Those over scenes need no photograph. The scenes are always the same and no one else's, so that the numbers follow from
the weights and the size of the input alone. They are made once, and kept in memory and in the user's cache folder
(``io.cached``), by a digest of all that they follow from and never by a model's name. What is read there is used only
if its seal is right.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous import __version__
from vitreous import io as disk
from vitreous.datasets import LoadedImage, OnError, batched, count_images, file_digest, image_files, load_images
from vitreous.errors import ImageError, VitreousError, VitreousWarning
from vitreous.models import Snapshot, VisionModel, wrap
from vitreous.models.submodels import SubModel
from vitreous.progress import Progress
from vitreous.registry import check_at_least
from vitreous.tracing.context import Context
from vitreous.tracing.memory import in_parts, inner_batch
from vitreous.tracing.prng import check_seed
from vitreous.tracing.statistics import ActivationStats, Moments, digest_of_model, noise, statistics_of
from vitreous.world import draw, render

SCENES = 64
VERSION = 1
"""To be counted up when the scenes or what is written down of them change: older files are then left alone."""

_FIRST = 2**52  # seeds from here on are in no split of the world
_SIDES = 16, 4096  # of what can be rendered
_SCENE_BATCH = 8  # always: the last bits shall not depend on anyone's budget
_MOST_CACHED, _MOST_BYTES = 16, 2**29
_log = logging.getLogger(__name__)
_cached: OrderedDict[str, ActivationStats] = OrderedDict()
_guard = Lock()

# -- over scenes ---------------------------------------------------------------------------------------------------


def world_moments(context: Context, point: str, layers: Sequence[int]) -> list[Moments] | str:
    """Return the moments of these layers of a context's model; or, where scenes cannot tell, why.

    A sub-network gets those of the whole model, at the layers that are its own.
    """
    model, first = _full_model(context.model)
    size = _image_size(context, model)
    if isinstance(size, str):
        return size
    stats = world_statistics(model, size, point, context.on_progress, context.expect)
    return [stats.moments[point, first + layer] for layer in layers]


def world_statistics(
    model: VisionModel,
    size: Sequence[int],
    point: str,
    on_progress: Callable[[int], None] | None = None,
    expect: Callable[[int], None] | None = None,
) -> ActivationStats:
    """Return mean and deviation at one point of every block over the scenes, made at ``size`` or read from the cache.

    ``expect`` is told how many inputs will have to be run, ``on_progress`` after each part of them. Cost: 64 forwards,
    the first time; none afterwards.
    """
    height, width = (int(side) for side in size)
    key = _key(model, (height, width), point, recent=True)
    with _guard:
        stats = _cached.get(key)
        if stats is not None:
            _cached.move_to_end(key)
    if stats is None:
        key = _key(model, (height, width), point)
        is_lasting = not Snapshot(model).recent.has_unknown_code  # otherwise nobody ever finds it again
        stats = _read(key, model, (height, width)) if is_lasting else None
        if stats is None:
            if expect is not None:
                expect(SCENES)
            stats = _over_scenes(model, (height, width), point, on_progress)
            stats = replace(stats, images_digest=_seal(key, stats))
            if is_lasting:
                _write(key, stats)
        _remember(key, stats)
    return replace(stats, model=model.name)


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


def _over_scenes(
    model: VisionModel, size: tuple[int, int], point: str, on_progress: Callable[[int], None] | None
) -> ActivationStats:
    def part(start: int, stop: int) -> ActivationStats:
        stats = statistics_of(model, seen_scenes(model, size, start, stop), "world", (point,))
        if on_progress is not None:
            on_progress(stop - start)
        return stats

    with torch.inference_mode(False), torch.no_grad():
        total = reduce(ActivationStats.merge, in_parts(part, SCENES, _SCENE_BATCH))
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32  # as it is kept, in memory and on disk
    moments = {at: Moments(m.mean.to(dtype), m.square.to(dtype), m.n) for at, m in total.moments.items()}
    return replace(total, moments=moments)


def _seal(key: str, stats: ActivationStats) -> str:
    """Return a digest of the numbers, and of all that they follow from."""
    return hashlib.blake2b(f"{key} {stats.fingerprint}".encode(), digest_size=16).hexdigest()


def _key(model: VisionModel, size: tuple[int, int], point: str, recent: bool = False) -> str:
    """Return a digest of all that the numbers follow from; names are none of it."""
    facts = [digest_of_model(model, recent), size, point, SCENES, VERSION, __version__]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _remember(key: str, stats: ActivationStats) -> None:
    """Keep the latest in memory: so many, and so many bytes."""

    def num_bytes(stats: ActivationStats) -> int:
        return sum(tensor.nbytes for moments in stats.moments.values() for tensor in moments[:2])

    with _guard:
        _cached[key] = stats
        _cached.move_to_end(key)
        while len(_cached) > 1 and (len(_cached) > _MOST_CACHED or sum(map(num_bytes, _cached.values())) > _MOST_BYTES):
            _cached.popitem(last=False)


def _read(key: str, model: VisionModel, size: tuple[int, int]) -> ActivationStats | None:
    """Return what an earlier run left on disk, if it is intact and of this very model."""
    path = disk.cached(f"world-{key}.safetensors")
    try:
        if path is None or not path.is_file():
            return None
        disk.recover(path)  # after a writer that died
        stats = ActivationStats.load(path)
        moments = {at: Moments(m.mean.clone(), m.square.clone(), m.n) for at, m in stats.moments.items()}
        stats = replace(stats, model=model.name, moments=moments, path=None)
        facts = stats.source, stats.count, stats.size, stats.model_digest
        if facts == ("world", SCENES, size, digest_of_model(model)) and stats.images_digest == _seal(key, stats):
            disk.mark_used(path)
            return stats
        reason = "it is of another model, or its numbers were changed"
    except (OSError, ValueError, VitreousError) as error:
        reason = str(error)
    _log.info("statistics in the cache are made anew: %s: %s", path, reason)
    return None


def _write(key: str, stats: ActivationStats) -> None:
    """Leave the statistics for later runs; where that cannot be, the next one makes them again."""
    path = disk.cached(f"world-{key}.safetensors")
    if path is None:
        return
    try:
        with disk.lock(path, timeout=0):  # whoever holds it writes the same
            stats.save(path, overwrite=True, held=True)
        disk.trim_cache()
    except (OSError, ValueError, VitreousError) as error:
        _log.info("statistics are not kept on disk: %s", error)


def _full_model(model: VisionModel) -> tuple[VisionModel, int]:
    """Return the full model that a sub-network is a part of, and the block where the part begins."""
    full, first = model.source_model if isinstance(model.source_model, SubModel) else model, 0
    while isinstance(full, SubModel):
        first += full.first
        full = full.inner
    return full, first


def _image_size(context: Context, full: VisionModel) -> tuple[int, int] | str:
    """Return height and width of the images, or why there is no saying what images are like."""
    inputs, model = context.inputs, context.model
    if len(full.preprocess.mean) != 3 or (inputs.ndim == 4 and inputs.shape[1] != 3):
        return f"{model.name} does not take images of three channels"
    if inputs.ndim == 4:
        return inputs.shape[-2], inputs.shape[-1]
    if isinstance(model, SubModel):
        grid = model.grid()
        if model.image_size is not None:
            return model.image_size
        if inputs.shape[1] == model.num_prefix_tokens + grid[0] * grid[1]:
            height, width = full.preprocess.size
            return height, width
    return f"the inputs of {model.name} are tokens, and no one said of how large an image"


# -- over images or noise ------------------------------------------------------------------------------------------

_FEW = 10
_LARGEST_BATCH = 32
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
    """Return mean and deviation of the activations over images, or over images of uniform noise.

    Parameters
    ----------
    model : VisionModel or nn.Module
        The model.
    images : optional
        Whatever ``explain`` takes.
    noise : int, optional
        How many images of noise, instead.
    out : str or Path, optional
        The file to write. What is done on the way is kept now and then beside it (``out.partial``).
    overwrite : bool, default False
        Whether a file that is there may be replaced.
    resume : bool, default False
        Whether to go on from what an earlier call left, or add to a finished file, of the same model and images.
    seed : int, default 0
        The seed of the noise.
    batch_size : int, optional
        How many images go through the model together.
    memory_gb : float, optional
        The memory that decides it otherwise.
    progress : callable, optional
        Called with the number of images done, and of all.
    on_error : callable, optional
        What to do with a file that cannot be read, instead of raising.

    Returns
    -------
    ActivationStats
        The statistics.

    Notes
    -----
    One forward per image.

    Examples
    --------
    >>> stats = vt.collect_activation_stats(model, noise=10)
    >>> stats.moments["resid_post", 0].mean.shape
    torch.Size([257, 192])
    """
    vision_model = wrap(model)
    if (images is None) == (noise is None):
        raise VitreousError("statistics need either images or noise=N")
    check_at_least("noise", 2 if noise is None else noise, 2)
    check_at_least("batch_size", 1 if batch_size is None else batch_size, 1)
    collection = _Collection(vision_model, images, noise, check_seed(seed), on_error)
    if batch_size is None:
        probe = torch.empty(1, 3, *vision_model.preprocess.size, dtype=vision_model.dtype, device=vision_model.device)
        batch_size = min(_LARGEST_BATCH, inner_batch(vision_model, probe, memory_gb))
    if out is None:
        return collection.run(batch_size, progress)
    disk.check_file(out, overwrite=overwrite or resume)
    partial = Path(f"{out}.partial")
    with disk.lock(out, timeout=0):
        begun = _begin(vision_model, collection.kind, Path(out), partial, overwrite, resume)
        stats = collection.run(batch_size, progress, begun, partial)
        if stats.model_digest != digest_of_model(vision_model):
            raise VitreousError(f"{vision_model.name} was changed while its statistics were collected; start again")
        stats.save(out, overwrite=True, held=True)
        disk.discard(partial)
    return replace(stats, path=str(out))


class _Collection:
    """Takes in a source image by image. Those that were seen before are only compared: files are read, not decoded."""

    def __init__(self, model: VisionModel, images: Any, num_noise: int | None, seed: int, on_error: OnError | None):
        self.model, self.kind = model, "images" if num_noise is None else "noise"
        self.stats: ActivationStats | None = None
        self.num_seen, self._digest = 0, hashlib.blake2b(digest_size=16)
        self._items: Iterator[tuple[str, Iterable[LoadedImage]]]
        files = _files(images)
        if files is not None:
            self.num_images: int | None = len(files)
            self._items = ((_digest_of(path), load_images(path, model, on_error)) for path in files)
            return
        self.num_images = count_images(images) if num_noise is None else num_noise
        source = images if num_noise is None else noise(model, num_noise, model.preprocess.size, seed, 1)
        self._items = ((image.digest, [image]) for image in load_images(source, model, on_error, draw=False))

    def run(
        self,
        batch_size: int,
        progress: Progress | None,
        begun: ActivationStats | None = None,
        partial: Path | None = None,
    ) -> ActivationStats:
        """Return the statistics of all images, going on from ``begun``; after an error or Ctrl-C, they are kept."""
        if begun is not None:
            self._skip(begun)
        saved, written = time.monotonic(), begun
        try:
            for items in batched(self._items, batch_size):
                self._add(items, batch_size)
                if progress is not None:
                    progress(self.num_seen, self.num_images)
                if partial is not None and self.stats is not None and time.monotonic() - saved > _SAVE_EVERY:
                    self.stats.save(partial, overwrite=True)
                    saved, written = time.monotonic(), self.stats
        except BaseException:
            if partial is not None and self.stats is not None and self.stats is not written:
                self.stats.save(partial, overwrite=True)
            raise
        count = 0 if self.stats is None else self.stats.count
        if self.stats is None or count < 2:
            raise VitreousError(f"statistics of {count} images have no deviation; give two")
        if count < _FEW:
            text = f"statistics of {count} images are rough; ten or more are advised"
            warnings.warn(text, VitreousWarning, stacklevel=3)
        return self.stats

    def _skip(self, begun: ActivationStats) -> None:
        """Go past the images that were seen before, which have to be the same."""
        for digest, _ in islice(self._items, begun.num_seen):
            self._update(digest)
        if (self.num_seen, self._digest.hexdigest()) != (begun.num_seen, begun.images_digest):
            raise VitreousError(f"{begun.path} was made from other images; it cannot be resumed with these")
        self.stats = begun

    def _update(self, digest: str) -> None:
        self._digest.update(digest.encode())
        self.num_seen += 1

    def _add(self, items: Sequence[tuple[str, Iterable[LoadedImage]]], batch_size: int) -> None:
        tensors = [image.tensor for _, images in items for image in images]  # of those that can be read
        if len({tensor.shape for tensor in tensors}) > 1:
            raise ImageError("tensors of different sizes cannot share statistics")
        for digest, _ in items:
            self._update(digest)

        def part(start: int, stop: int) -> ActivationStats:
            return statistics_of(self.model, torch.stack(tensors[start:stop]), self.kind)

        total = self.stats
        for stats in in_parts(part, len(tensors), batch_size):
            total = stats if total is None else total.merge(stats)
        if total is not None:
            self.stats = replace(total, num_seen=self.num_seen, images_digest=self._digest.hexdigest())


def _digest_of(path: Path) -> str:
    try:
        return file_digest(path)
    except ImageError:  # reported when it is read
        return "unreadable"


def _begin(
    model: VisionModel, kind: str, out: Path, partial: Path, overwrite: bool, resume: bool
) -> ActivationStats | None:
    """Return what an earlier run left to go on with, if it is of the same model."""
    present = [path for path in (partial, out) if os.path.lexists(path)]
    if partial in present:
        ActivationStats.load(partial)  # what is no such thing is not ours to write over
    if not present or (overwrite and not resume):
        return None
    if not resume:
        raise VitreousError(f"{present[0]} is there already; choose another place, or allow overwriting or resuming")
    earlier = ActivationStats.load(present[0])
    if (earlier.model, earlier.source, earlier.model_digest) != (model.name, kind, digest_of_model(model)):
        what = f"{earlier.source} in {earlier.model}"
        raise VitreousError(f"{present[0]} holds statistics of {what}, or of other weights; it cannot be resumed here")
    return earlier


def _files(source: Any) -> list[Path] | None:
    """Return the files meant by a path or a list of paths, and ``None`` for any other source."""
    if isinstance(source, str | Path):
        return image_files(source)
    if isinstance(source, list | tuple) and source and all(isinstance(path, str | Path) for path in source):
        return [file for path in source for file in image_files(path)]
    return None
