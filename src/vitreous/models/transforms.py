"""Preprocessing as people have it: a timm configuration, an image processor, a ``Compose`` or any other callable.

Whoever made a transform makes the pixels. What can be written as data becomes a ``Preprocess`` if that makes the same
pixels of some pictures, with the versions that are installed; any other transform is used as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from PIL import Image

from vitreous.errors import ModelError, one_line
from vitreous.models.callables import OWN, Transform, match, steps_of
from vitreous.models.preprocess import Preprocess

__all__ = ["OWN", "Transform", "as_preprocess", "match", "preprocess_of", "timm_preprocess"]

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_CONFIG = {"input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode"}


def as_preprocess(given: Any) -> Preprocess:
    """Understand what a user hands in as ``preprocess=``."""
    if isinstance(given, Preprocess):
        return given
    if isinstance(given, Mapping):
        return timm_preprocess(given)
    if hasattr(given, "image_mean") and hasattr(given, "size"):
        return preprocess_of(given)
    if not callable(given):
        raise ModelError(
            f"preprocess: a {type(given).__name__} is none; give a vt.Preprocess, timm's configuration, an image "
            "processor, or a function from a PIL image to a tensor"
        )
    return match(given, _of_steps(given))


def timm_preprocess(config: Mapping[str, Any]) -> Preprocess:
    """Return what timm makes of its configuration, such as ``timm.data.resolve_model_data_config`` gives."""
    if not config.keys() & _CONFIG:
        raise ModelError(f"preprocess: {list(config)!r:.80} holds none of {', '.join(sorted(_CONFIG))}")
    usual, size = Preprocess(), config.get("input_size")
    try:
        data = Preprocess(
            size=usual.size if size is None else (int(size[-2]), int(size[-1])),
            mean=tuple(float(value) for value in config.get("mean") or usual.mean),
            std=tuple(float(value) for value in config.get("std") or usual.std),
            interpolation=str(config.get("interpolation") or usual.interpolation),
            crop=float(config.get("crop_pct") or usual.crop),
            mode=str(config.get("crop_mode") or usual.mode),
        )
    except (TypeError, ValueError, IndexError) as error:
        raise ModelError(f"preprocess: the configuration cannot be read: {one_line(str(error))}") from error
    return data if len(data.mean) != 3 else _by_timm(data)  # a photograph has three colours


@lru_cache(maxsize=64)
def _by_timm(data: Preprocess) -> Preprocess:
    from timm.data import create_transform

    function = create_transform(
        (3, *data.size),
        is_training=False,
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        crop_pct=data.crop,
        crop_mode=data.mode,
    )
    return match(function, data)


def _of_steps(given: Any) -> Preprocess | None:
    """Read resize, centre crop and normalisation from a ``Compose``, or from the transform of torchvision's weights."""
    found: dict[str, Any] = {}
    for step in steps_of(given):
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


@dataclass(frozen=True)
class _Processed:
    """An image processor as a function of one picture; unlike a lambda it can be pickled."""

    processor: Any

    def __call__(self, photo: Image.Image) -> Any:
        return self.processor(photo, return_tensors="pt")


def preprocess_of(processor: Any, size: tuple[int, int] | None = None) -> Preprocess:
    """Return what an image processor does, or what it would do for another input size.

    The share of the picture that is cut out stays the same. Where the aspect ratio is kept, only a square can be asked
    of a processor; another shape is cut as a ``Preprocess`` does.
    """
    data = None
    with suppress(ModelError):  # what cannot be written as data is used as it is
        data = _of_processor(processor)
    if data is not None and size is not None and size != data.size:
        data = replace(data, size=size)
        high, wide = (math.floor(side / data.crop) for side in size)
        if data.mode == "center" and high != wide:
            return data
        sides = {"shortest_edge": high} if data.mode == "center" else {"height": high, "width": wide}
        settings = {**processor.to_dict(), "size": sides, "crop_size": {"height": size[0], "width": size[1]}}
        processor = type(processor).from_dict(settings)
    return match(_Processed(processor), data)


def _of_processor(processor: Any) -> Preprocess:
    """Read an image processor as data.

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
