"""``statistics``: what a model's activations are usually like, over pictures or over noise."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import disk
from vitreous.data import OnError, Progress, count, cut, file_digest, image_files, pictures
from vitreous.errors import ImageError, VitreousError, VitreousWarning
from vitreous.models import View, view
from vitreous.passes.memory import in_parts, inner_batch
from vitreous.passes.random import check_seed
from vitreous.passes.statistics import Statistics, maker_of, noise, statistics_of

__all__ = ["statistics"]

_FEW = 10
_MOST_AT_ONCE = 32
_SAVE_EVERY = 60.0  # seconds


def statistics(
    model: View | nn.Module,
    images: Any = None,
    *,
    noise: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    seed: int = 0,
    batch_size: int | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
    on_error: OnError | None = None,
) -> Statistics:
    """Return mean and deviation of the activations over pictures, or over ``noise`` images of uniform noise.

    ``images`` may be whatever ``explain`` takes. With ``out`` they are written there; what is done on the way is kept
    now and then beside it (``out.partial``), and ``resume`` goes on from there, or adds to a finished file, if model
    and pictures are the same. Cost: one forward per picture.
    """
    looked_at, partial = view(model), None if out is None else Path(f"{out}.partial")
    if (images is None) == (noise is None):
        raise VitreousError("statistics need either images or noise=N")
    if noise is not None and noise < 2:
        raise VitreousError(f"noise={noise} must be at least 2")
    if batch_size is not None and batch_size < 1:
        raise VitreousError(f"batch_size={batch_size} must be at least 1")
    check_seed(seed)
    if out is not None:
        disk.check_file(out, overwrite=overwrite or resume)
    source = _Noise(looked_at, noise, seed) if noise is not None else _Pictures(looked_at, images, on_error)
    if out is None or partial is None:
        return _collect(looked_at, source, None, None, batch_size, memory, progress)
    with disk.lock(out, patience=0):
        begun = _begin(looked_at, source, Path(out), partial, overwrite, resume)
        collected = _collect(looked_at, source, begun, partial, batch_size, memory, progress)
        if collected.maker != maker_of(looked_at):
            raise VitreousError(f"{looked_at.name} was changed while its statistics were collected; start again")
        collected.save(out, overwrite=True, held=True)
        disk.discard(partial)
    return replace(collected, path=str(out))


def _collect(
    looked_at: View,
    source: _Noise | _Pictures,
    total: Statistics | None,
    partial: Path | None,
    batch_size: int | None,
    memory: float | None,
    progress: Progress | None,
) -> Statistics:
    """Take in what is left of the source; what was finished is kept at ``partial``, also after an error or Ctrl-C."""
    probe = torch.empty(1, 3, *looked_at.preprocess.size, dtype=looked_at.dtype, device=looked_at.device)
    at_once = batch_size or min(_MOST_AT_ONCE, inner_batch(looked_at, probe, memory))
    saved, written = time.monotonic(), total
    try:
        for taken, batch in source.batches(total, at_once):
            for part in () if batch is None else in_parts(_part(looked_at, batch, source.kind), len(batch), at_once):
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


def _part(view: View, batch: Tensor, kind: str) -> Callable[[int, int], Statistics]:
    return lambda start, stop: statistics_of(view, batch[start:stop], kind)


class _Noise:
    """Images of uniform noise; they are made anew up to where a collection stopped."""

    kind = "noise"

    def __init__(self, view: View, total: int, seed: int) -> None:
        self.view, self.total, self.seed = view, total, seed

    def digest(self, taken: int) -> str:
        return f"seed {self.seed}"

    def batches(self, begun: Statistics | None, at_once: int) -> Iterator[tuple[int, Tensor | None]]:
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

    def __init__(self, view: View, source: Any, on_error: OnError | None) -> None:
        self.view, self.source, self.on_error = view, source, on_error
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

    def batches(self, begun: Statistics | None, at_once: int) -> Iterator[tuple[int, Tensor | None]]:
        """Yield how many pictures were taken by then, and those of the batch that could be read."""
        before = 0 if begun is None else begun.taken
        if self.files is not None:
            self._remember(begun, (_bytes(path) for path in self.files[:before]))
            for part in cut(iter(self.files[before:]), at_once):
                readable = [each for path in part for each in pictures(path, self.view, self.on_error)]
                for path in part:
                    self._know(_bytes(path))
                yield self._digested, _stacked([each.tensor for each in readable])
            return
        every = pictures(self.source, self.view, self.on_error, seen=False)
        self._remember(begun, (each.digest for each in islice(every, before)))
        for batch in cut(every, at_once):
            for each in batch:
                self._know(each.digest)
            yield self._digested, _stacked([each.tensor for each in batch])

    def _remember(self, begun: Statistics | None, digests: Iterator[str]) -> None:
        for digest in digests:
            self._know(digest)
        if begun is not None and (self._digested, self.digest(self._digested)) != (begun.taken, begun.pictures):
            raise _others(begun)


def _others(begun: Statistics) -> VitreousError:
    return VitreousError(f"{begun.path} was made from other pictures; it cannot be resumed with these")


def _bytes(path: Path) -> str:
    try:
        return file_digest(path)
    except ImageError:  # told when it is read
        return "unreadable"


def _begin(
    view: View, source: _Noise | _Pictures, out: Path, partial: Path, overwrite: bool, resume: bool
) -> Statistics | None:
    """Return what an earlier run left to go on with, if it is of the same model."""
    there = [path for path in (partial, out) if os.path.lexists(path)]
    if partial in there:
        Statistics.load(partial)  # what is no such thing is not ours to write over
    if not there or (overwrite and not resume):
        return None
    if not resume:
        raise VitreousError(f"{there[0]} is there already; choose another place, or allow overwriting or resuming")
    earlier = Statistics.load(there[0])
    if (earlier.model, earlier.source, earlier.maker) != (view.name, source.kind, maker_of(view)):
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
    if len({each.shape for each in tensors}) > 1:
        raise ImageError("tensors of different sizes cannot share statistics")
    return torch.stack(list(tensors)) if tensors else None
