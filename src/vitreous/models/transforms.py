"""Preprocessing as people have it: a timm configuration, an image processor, a ``Compose`` or any other callable.

What can be written as data becomes a ``Preprocess``, having been tried against the original on pictures. Any other
callable is used as it is: its size and colours are found by asking it, and where its crop lies stays unknown.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.errors import ImageError, ModelError, VitreousWarning, one_line
from vitreous.models.preprocess import Box, Preprocess

__all__ = ["Transform", "as_preprocess", "preprocess_of"]

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_CONFIG = {"input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode"}


def as_preprocess(given: Any) -> Preprocess:
    """Understand what a user hands in as ``preprocess=``."""
    if isinstance(given, Preprocess):
        return given
    if isinstance(given, Mapping):
        return _of_config(given)
    if hasattr(given, "image_mean") and hasattr(given, "size"):
        return preprocess_of(given)
    if not callable(given):
        raise ModelError(
            f"preprocess: a {type(given).__name__} is none; give a vt.Preprocess, timm's configuration, an image "
            "processor, or a function from a PIL image to a tensor"
        )
    whole = _asked(given)
    data = _of_steps(given)
    if data is not None and all(_same(data.inputs(photo)[0], _call(given, photo)) for photo in _photos()):
        return data
    return whole


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other.to(one.dtype), rtol=0, atol=1e-5)


@dataclass(frozen=True)
class Transform(Preprocess):
    """A callable from a PIL image to a tensor ``[3, H, W]``.

    Its ``size``, ``mean`` and ``std`` are what it does to a black and a white picture. Where its crop lies in the
    photograph is not known, so that maps are drawn on what the model saw.
    """

    function: Callable[[Image.Image], Any] = field(default=lambda photo: None, repr=False, compare=False)
    digest: str = ""
    """Tells functions apart by what they make of some pictures."""

    def inputs(self, photo: Image.Image) -> tuple[torch.Tensor, Image.Image, Box | None]:
        tensor = _call(self.function, photo)
        if tuple(tensor.shape[-2:]) != self.size:
            raise ImageError(
                f"preprocess makes {list(tensor.shape)} of a picture of {photo.width} x {photo.height} pixels, "
                f"but {[3, *self.size]} of others"
            )
        return tensor, self.picture(tensor), None

    def see(self, photo: Image.Image) -> tuple[Image.Image, Box]:
        """Return the picture the model sees; it counts as the whole photograph."""
        return self.inputs(photo)[1], (0.0, 0.0, float(photo.width), float(photo.height))


# -- callables -----------------------------------------------------------------------------------------


@cache
def _photos() -> tuple[Image.Image, ...]:
    """Pictures of noise to try a callable on: one wide, one high."""
    draws = np.random.default_rng(0)
    shapes = (300, 431, 3), (389, 320, 3)
    return tuple(Image.fromarray(draws.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes)


def _call(function: Callable[[Image.Image], Any], photo: Image.Image) -> torch.Tensor:
    """Ask a callable for the input of one picture: a tensor, or a batch of one, or a table that holds it."""
    made = function(photo.convert("RGB"))
    made = made.get("pixel_values") if isinstance(made, Mapping) else made
    made = made[0] if isinstance(made, list | tuple) and len(made) == 1 else made
    made = torch.from_numpy(made) if isinstance(made, np.ndarray) else made
    if isinstance(made, torch.Tensor):
        made = made[0] if made.ndim == 4 and len(made) == 1 else made
        if made.ndim == 3 and made.shape[0] == 3 and made.is_floating_point():
            return made.as_subclass(torch.Tensor).detach().to("cpu", torch.float32)
        raise ModelError(f"preprocess makes {list(made.shape)} of {made.dtype}, not floats [3, H, W], of a picture")
    raise ModelError(f"preprocess makes a {type(made).__name__}, not a tensor [3, H, W], of a picture")


def _asked(function: Callable[[Image.Image], Any]) -> Transform:
    """Find size and colours of a callable from what it makes of black, white and some pictures of noise."""
    plain = [Image.new("RGB", (431, 300), colour) for colour in ("black", "white")]
    try:
        black, white, *noise = [_call(function, photo) for photo in (*plain, *_photos())]
        again = _call(function, _photos()[0])
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"preprocess fails on a PIL image: {one_line(str(error))[:160]}") from error
    sizes = {tuple(each.shape) for each in (black, white, *noise)}
    if len(sizes) > 1:
        raise ModelError(f"preprocess makes inputs of several sizes, {sorted(sizes)}; resize and crop to one")
    if not again.equal(noise[0]):
        warnings.warn(
            "preprocess makes another input of the same picture each time; give the transform for evaluation",
            VitreousWarning,
            stacklevel=4,
        )
    low, high = (each.double().flatten(1).median(dim=1).values for each in (black, white))
    if not bool((high - low > 0).all()):
        raise ModelError("preprocess makes no brighter input of a white picture than of a black one")
    std = 1 / (high - low)
    digest = hashlib.blake2b(digest_size=8)
    for each in (black, white, *noise):
        digest.update(each.float().contiguous().numpy().tobytes())
    mean, deviation = (tuple(round(float(v), 6) for v in values) for values in (-low * std, std))
    size = (int(black.shape[1]), int(black.shape[2]))
    return Transform(size, mean, deviation, crop=1.0, mode="squash", function=function, digest=digest.hexdigest())


# -- what can be written as data -----------------------------------------------------------------------


def _of_config(config: Mapping[str, Any]) -> Preprocess:
    """Read timm's configuration of the data, such as ``timm.data.resolve_model_data_config`` gives."""
    if not config.keys() & _CONFIG:
        raise ModelError(f"preprocess: {list(config)!r:.80} holds none of {', '.join(sorted(_CONFIG))}")
    usual, size = Preprocess(), config.get("input_size")
    try:
        return Preprocess(
            size=usual.size if size is None else (int(size[-2]), int(size[-1])),
            mean=tuple(float(value) for value in config.get("mean") or usual.mean),
            std=tuple(float(value) for value in config.get("std") or usual.std),
            interpolation=str(config.get("interpolation") or usual.interpolation),
            crop=float(config.get("crop_pct") or usual.crop),
            mode=str(config.get("crop_mode") or usual.mode),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise ModelError(f"preprocess: the configuration cannot be read: {one_line(str(error))}") from error


def _steps(given: Any) -> Iterator[Any]:
    steps = getattr(given, "transforms", None)
    if isinstance(steps, list | tuple):
        for step in steps:
            yield from _steps(step)
    else:
        yield given


def _of_steps(given: Any) -> Preprocess | None:
    """Read resize, centre crop and normalisation from a ``Compose``, or from the transform of torchvision's weights."""
    found: dict[str, Any] = {}
    for step in _steps(given):
        kind = type(step).__name__
        if kind == "ImageClassification":
            found = {"size": step.resize_size, "crop": step.crop_size, "filter": step.interpolation}
            found |= {"mean": step.mean, "std": step.std}
        elif kind == "Resize":
            found |= {"size": step.size, "filter": step.interpolation}
        elif kind == "CenterCrop":
            found["crop"] = step.size
        elif kind == "Normalize":
            found |= {"mean": step.mean, "std": step.std}
    size, crop = (_sides(found.get(name)) for name in ("size", "crop"))
    if size is None or (crop is None and len(size) == 1):
        return None
    resized = (size[0], size[-1])
    seen = resized if crop is None else (crop[0], crop[-1])
    filters = str(getattr(found["filter"], "value", found["filter"]))
    try:
        return Preprocess(
            size=seen,
            mean=tuple(round(float(value), 6) for value in found.get("mean", (0.0,) * 3)),
            std=tuple(round(float(value), 6) for value in found.get("std", (1.0,) * 3)),
            interpolation=filters,
            crop=_ratio(seen[0], resized[0]),
            mode="center" if len(size) == 1 else "squash",
        )
    except ModelError:
        return None


def _sides(size: Any) -> tuple[int, ...] | None:
    if size is None:
        return None
    return (int(size),) if isinstance(size, int) else tuple(int(side) for side in size)


def preprocess_of(processor: Any) -> Preprocess:
    """Return what an image processor does, as data.

    A size of two sides squashes, the shortest edge keeps the aspect ratio; a centre crop of ``c`` out of ``s`` pixels
    is a crop of ``c / s``.
    """
    size = getattr(processor, "size", None)
    high, wide, short = (_side(size, key) for key in ("height", "width", "shortest_edge"))
    kept = _side(getattr(processor, "crop_size", None), "height"), _side(getattr(processor, "crop_size", None), "width")
    crops = bool(getattr(processor, "do_center_crop", False)) and None not in kept
    if high is not None and wide is not None:
        mode, resized = "squash", (high, wide)
    elif short is not None:
        mode, resized = "center", (short, short)
    else:
        raise ModelError(f"{type(processor).__name__} resizes to {size}, which is no fixed size")
    seen = (int(kept[0]), int(kept[1])) if crops else resized  # type: ignore[arg-type]
    crop = _ratio(seen[0], resized[0])
    if math.floor(seen[1] / crop) != resized[1]:
        raise ModelError(f"{type(processor).__name__} crops {resized} to {seen}, each side by another ratio")
    normal = getattr(processor, "do_normalize", True)
    resample = int(getattr(processor, "resample", 2))
    if resample not in _FILTERS:
        raise ModelError(f"{type(processor).__name__} resizes with filter {resample}, which is not supported")
    return Preprocess(
        size=seen,
        mean=tuple(map(float, processor.image_mean)) if normal else (0.0,) * 3,
        std=tuple(map(float, processor.image_std)) if normal else (1.0,) * 3,
        interpolation=_FILTERS[resample],
        crop=crop,
        mode=mode,
    )


def _side(size: Any, key: str) -> int | None:
    if isinstance(size, int):
        return size
    side = size.get(key) if isinstance(size, dict) else getattr(size, key, None)
    return None if side is None else int(side)


def _ratio(crop: int, resized: int) -> float:
    """Return a ratio with ``floor(crop / ratio) == resized``, also where the quotient is rounded."""
    ratio = crop / resized
    return ratio if math.floor(crop / ratio) == resized else crop / (resized + 0.5)
