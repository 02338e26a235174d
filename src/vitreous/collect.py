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

from vitreous.errors import ImageError, VitreousError, VitreousWarning
from vitreous.images import OnError, count, image_files, pictures
from vitreous.models import View, view
from vitreous.passes.memory import in_parts, inner_batch
from vitreous.passes.statistics import Statistics, noise, statistics_of

__all__ = ["statistics"]

_FEW = 10
_MOST_AT_ONCE = 32
_SAVE_EVERY = 60.0  # seconds
Progress = Callable[[float, "int | None"], None]


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

    ``images`` may be whatever ``explain`` takes. With ``out`` they are written there, now and then on the way too;
    ``resume`` goes on where an earlier run over the same pictures stopped. Cost: one forward per picture.
    """
    looked_at = view(model)
    if (images is None) == (noise is None):
        raise VitreousError("statistics need either images or noise=N")
    if noise is not None and noise < 2:
        raise VitreousError(f"noise={noise} must be at least 2")
    if batch_size is not None and batch_size < 1:
        raise VitreousError(f"batch_size={batch_size} must be at least 1")
    if out is not None:
        _refuse_impossible(Path(out))
    source = _Noise(looked_at, noise, seed) if noise is not None else _Pictures(looked_at, images, on_error)
    total = _begin(looked_at, source, out, overwrite, resume)
    probe = torch.empty(1, 3, *looked_at.preprocess.size, dtype=looked_at.dtype, device=looked_at.device)
    at_once = batch_size or min(_MOST_AT_ONCE, inner_batch(looked_at, probe, memory))
    saved, written = time.monotonic(), total
    try:
        for taken, batch in source.batches(0 if total is None else total.taken, at_once):
            for found in () if batch is None else in_parts(_part(looked_at, batch, source.kind), len(batch), at_once):
                total = found if total is None else total.merge(found)
            if total is not None:
                total = replace(total, taken=taken, names=source.digest(taken))
            if progress is not None:
                progress(taken, source.total)
            if out is not None and total is not None and time.monotonic() - saved > _SAVE_EVERY:
                total.save(out)
                saved, written = time.monotonic(), total
    finally:  # what was finished is kept, also after an error or Ctrl-C
        if out is not None and total is not None and total is not written:
            total.save(out)
    if total is None or total.count < 2:
        seen = 0 if total is None else total.count
        raise VitreousError(f"statistics of {seen} pictures have no deviation; give at least two")
    if total.count < _FEW:
        text = f"statistics of {total.count} images are rough; ten or more are advised"
        warnings.warn(text, VitreousWarning, stacklevel=2)
    return total if out is None else replace(total, path=str(out))


def _part(view: View, batch: Tensor, kind: str) -> Callable[[int, int], Statistics]:
    return lambda start, stop: statistics_of(view, batch[start:stop], kind)


class _Noise:
    """Images of uniform noise; they are made anew up to where a collection stopped."""

    kind = "noise"

    def __init__(self, view: View, total: int, seed: int) -> None:
        self.view, self.total, self.seed = view, total, seed

    def digest(self, taken: int) -> str:
        return f"seed {self.seed}"

    def batches(self, taken: int, at_once: int) -> Iterator[tuple[int, Tensor | None]]:
        every = noise(self.view, self.total, self.view.preprocess.size, self.seed, 1)
        for batch in _cut(islice(every, taken, None), at_once):
            taken += len(batch)
            yield taken, torch.cat(batch)


class _Pictures:
    """Pictures of any source; files are known by name, so that those already taken need not be read again."""

    kind = "images"

    def __init__(self, view: View, source: Any, on_error: OnError | None) -> None:
        self.view, self.source, self.on_error = view, source, on_error
        self.files = _files(source)
        self.total = len(self.files) if self.files is not None else count(source)

    def digest(self, taken: int) -> str:
        """Return what tells these pictures from others: a digest of the first names."""
        if self.files is None:
            return ""
        names = "\n".join(path.name for path in self.files[:taken])
        return hashlib.blake2b(names.encode(errors="replace"), digest_size=16).hexdigest()

    def batches(self, taken: int, at_once: int) -> Iterator[tuple[int, Tensor | None]]:
        """Yield how many pictures were taken by then, and those of the batch that could be read."""
        if self.files is not None:
            for first in range(taken, len(self.files), at_once):
                part = self.files[first : first + at_once]
                found = [each for path in part for each in pictures(path, self.view, self.on_error)]
                yield first + len(part), _stacked([each.tensor for each in found])
            return
        for batch in _cut(islice(pictures(self.source, self.view, self.on_error), taken, None), at_once):
            taken += len(batch)
            yield taken, _stacked([each.tensor for each in batch])


def _begin(
    view: View, source: _Noise | _Pictures, out: str | Path | None, overwrite: bool, resume: bool
) -> Statistics | None:
    """Return what an earlier run left to go on with, if it is of the same model and the same pictures."""
    if out is None or not os.path.lexists(out) or (overwrite and not resume):
        return None
    if not resume:
        raise VitreousError(f"{out} is there already; choose another place, or allow overwriting or resuming")
    found = Statistics.load(out)
    if (found.model, found.source) != (view.name, source.kind):
        raise VitreousError(f"{out} holds statistics of {found.source} in {found.model}; it cannot be resumed here")
    if found.names != source.digest(found.taken) or (source.total is not None and found.taken > source.total):
        raise VitreousError(f"{out} was made from other pictures; it cannot be resumed with these")
    return found


def _refuse_impossible(out: Path) -> None:
    """Complain before the work about a place that cannot be written after it."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise VitreousError(f"could not write {out}: {getattr(error, 'strerror', None) or error}") from None
    if out.is_dir():
        raise VitreousError(f"could not write {out}: it is a folder")


def _files(source: Any) -> list[Path] | None:
    """Return the files meant by a path or a list of paths, and ``None`` for any other source."""
    if isinstance(source, str | Path):
        return image_files(source)
    if isinstance(source, list | tuple) and source and all(isinstance(each, str | Path) for each in source):
        return [path for each in source for path in image_files(each)]
    return None


def _cut(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while part := list(islice(items, size)):
        yield part


def _stacked(tensors: Sequence[Tensor]) -> Tensor | None:
    if len({each.shape for each in tensors}) > 1:
        raise ImageError("tensors of different sizes cannot share statistics")
    return torch.stack(list(tensors)) if tensors else None
