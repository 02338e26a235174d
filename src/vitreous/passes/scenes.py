"""What activations are usually like, learnt without a photograph: mean and deviation over scenes of the bundled world.

The scenes are always the same and no one else's, so that the numbers follow from the weights and the size of the input
alone. They are made once, and kept: in memory, and in the user's cache folder (``disk.cache_folder``), by a digest of
all that they follow from and never by a model's name. What is found there is used only if its seal is right.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous import __version__, disk
from vitreous.errors import VitreousError
from vitreous.models import Snapshot, View
from vitreous.models.parts import SubView
from vitreous.passes.memory import InnerBatch
from vitreous.passes.session import Session
from vitreous.passes.statistics import Moments, Statistics, maker_of, statistics_of
from vitreous.world import draw, render

__all__ = ["SCENES", "VERSION", "scenes", "seen_scenes", "world_moments", "world_statistics"]

SCENES = 64
VERSION = 1
"""To be counted up when the scenes or what is written down of them change: older files are then left alone."""

_FIRST = 2**52  # seeds from here on are in no split of the world
_SIDES = 16, 4096  # of what can be rendered
_AT_ONCE = 8  # always: the last bits shall not depend on anyone's budget
_MOST_KEPT, _MOST_BYTES = 16, 2**29
_log = logging.getLogger(__name__)
_kept: OrderedDict[str, Statistics] = OrderedDict()
_guard = Lock()

Told = Callable[[int], None]


def world_moments(session: Session, site: str, layers: Sequence[int]) -> list[Moments] | str:
    """Return the moments of these layers of a session's model; or, where scenes cannot tell, why.

    A sub-network gets those of the whole model, at the layers that are its own.
    """
    view, first = _whole(session.view)
    size = _size(session, view)
    if isinstance(size, str):
        return size
    made = world_statistics(view, size, site, _AT_ONCE, session.tick, session.expect)
    return [made.moments[site, first + layer] for layer in layers]


def world_statistics(
    view: View,
    size: Sequence[int],
    site: str,
    at_once: int = _AT_ONCE,
    tick: Told | None = None,
    expect: Told | None = None,
) -> Statistics:
    """Return mean and deviation of one place of every block over the scenes, made at ``size`` or known from before.

    ``expect`` is told how many inputs will have to be run, ``tick`` after each part of them. Cost: 64 forwards, the
    first time; none afterwards.
    """
    high, wide = (int(side) for side in size)
    key = _key(view, (high, wide), site, recent=True)
    with _guard:
        known = _kept.get(key)
        if known is not None:
            _kept.move_to_end(key)
    if known is None:
        key = _key(view, (high, wide), site)
        is_lasting = not Snapshot(view).recent.has_unknown_code  # otherwise nobody ever finds it again
        known = _read(key, view, (high, wide)) if is_lasting else None
        if known is None:
            known = _sealed(key, view, _made(view, (high, wide), site, at_once, tick, expect))
            if is_lasting:
                _write(key, known)
        _remember(key, known)
    return replace(known, model=view.name)


def scenes(size: Sequence[int], start: int = 0, stop: int = SCENES) -> Tensor:
    """Return some of the scenes as pictures ``[n, 3, H, W]`` in [0, 1]; those that are not square are squeezed.

    They are rendered on the CPU, for a GPU rounds otherwise.
    """
    high, wide = size
    least, most = _SIDES
    side = min(most, max(least, high, wide))
    images = render(draw(range(_FIRST + start, _FIRST + stop)), side).images
    if (high, wide) != (side, side):
        images = F.interpolate(images, (high, wide), mode="bilinear", align_corners=False, antialias=True)
    return images


def seen_scenes(view: View, size: Sequence[int], start: int = 0, stop: int = SCENES) -> Tensor:
    """Return some of the scenes as a model is to see them, on the CPU."""
    images, how = scenes(size, start, stop), view.preprocess
    mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (how.mean, how.std))
    return (images - mean) / std


def _made(
    view: View, size: tuple[int, int], site: str, at_once: int, tick: Told | None, expect: Told | None
) -> Statistics:
    if expect is not None:
        expect(SCENES)

    def part(start: int, stop: int) -> Statistics:
        made = statistics_of(view, seen_scenes(view, size, start, stop), "world", (site,))
        if tick is not None:
            tick(stop - start)
        return made

    with torch.inference_mode(False), torch.no_grad():
        total, *others = InnerBatch(max(1, at_once)).run(part, SCENES)
        for each in others:
            total = total.merge(each)
    return total


def _sealed(key: str, view: View, made: Statistics) -> Statistics:
    """Round to what will be kept, in memory as on disk, and note a digest of it."""
    exact = torch.float64 if view.dtype == torch.float64 else torch.float32
    moments = {at: Moments(each.mean.to(exact), each.square.to(exact), each.n) for at, each in made.moments.items()}
    rounded = replace(made, moments=moments)
    return replace(rounded, pictures=_seal(key, rounded))


def _seal(key: str, made: Statistics) -> str:
    return hashlib.blake2b(f"{key} {made.fingerprint}".encode(), digest_size=16).hexdigest()


def _key(view: View, size: tuple[int, int], site: str, recent: bool = False) -> str:
    """Return a digest of all that the numbers follow from; names are none of it."""
    told = [maker_of(view, recent), size, site, SCENES, VERSION, __version__]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def _remember(key: str, made: Statistics) -> None:
    """Keep the latest in memory: so many, and so many bytes."""
    with _guard:
        _kept[key] = made
        _kept.move_to_end(key)
        while len(_kept) > 1 and (len(_kept) > _MOST_KEPT or sum(map(_bytes, _kept.values())) > _MOST_BYTES):
            _kept.popitem(last=False)


def _bytes(made: Statistics) -> int:
    return sum(tensor.nbytes for each in made.moments.values() for tensor in each[:2])


# -- on disk -----------------------------------------------------------------------------------------------


def _place(key: str) -> Path | None:
    return disk.cached(f"world-{key}.safetensors")


def _read(key: str, view: View, size: tuple[int, int]) -> Statistics | None:
    """Return what an earlier run left, if it is whole and of this very model."""
    path = _place(key)
    try:
        if path is None or not path.is_file():
            return None
        disk.recover(path)  # after a writer that died
        found = Statistics.load(path)
        moments = {at: Moments(each.mean.clone(), each.square.clone(), each.n) for at, each in found.moments.items()}
        found = replace(found, model=view.name, moments=moments, path=None)
        facts = found.source, found.count, found.size, found.maker
        if facts == ("world", SCENES, size, maker_of(view)) and found.pictures == _seal(key, found):
            disk.mark_used(path)
            return found
        reason = "it is of another model, or its numbers were changed"
    except (OSError, ValueError, VitreousError) as error:
        reason = str(error)
    _log.info("statistics in the cache are made anew: %s: %s", path, reason)
    return None


def _write(key: str, made: Statistics) -> None:
    """Leave the statistics for later runs; where that cannot be, the next one makes them again."""
    path = _place(key)
    if path is None:
        return
    try:
        with disk.lock(path, patience=0):  # whoever holds it writes the same
            made.save(path, overwrite=True, held=True)
        disk.trim_cache()
    except (OSError, ValueError, VitreousError) as error:
        _log.info("statistics are not kept on disk: %s", error)


# -- parts of a model --------------------------------------------------------------------------------------


def _whole(view: View) -> tuple[View, int]:
    """Return the whole model that a view is a part of, and where in it the part begins."""
    whole, first = view.user if isinstance(view.user, SubView) else view, 0
    while isinstance(whole, SubView):
        first += whole.first
        whole = whole.whole
    return whole, first


def _size(session: Session, whole: View) -> tuple[int, int] | str:
    """Return height and width of the images, or why there is no saying what images are like."""
    inputs, view = session.inputs, session.view
    if len(whole.preprocess.mean) != 3 or (inputs.ndim == 4 and inputs.shape[1] != 3):
        return f"{view.name} does not take images of three channels"
    if inputs.ndim == 4:
        return inputs.shape[-2], inputs.shape[-1]
    if isinstance(view, SubView):
        told = view.image_size
        high, wide = whole.preprocess.size if told is None else told
        grid = view.grid()
        if told is not None or inputs.shape[1] == view.prefix + grid[0] * grid[1]:
            return high, wide
    return f"the inputs of {view.name} are tokens, and no one said of how large an image"
