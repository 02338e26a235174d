"""A transform that is a callable: compared with data, or else used as it is, its crop found by measuring.

Preprocessing as people have it: a timm configuration, an image processor, a ``Compose`` or any other callable.

Whoever made a transform makes the pixels. What can be written as data becomes a ``Preprocess`` if that makes the same
pixels of some pictures, with the versions that are installed; any other transform is used as it is.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.errors import ImageError, ModelError, VitreousError, VitreousWarning, one_line
from vitreous.models.preprocess import FILTERS, Box, Preprocess, measure_region

__all__ = [
    "Function",
    "OWN",
    "Transform",
    "as_preprocess",
    "match",
    "preprocess_of",
    "steps_of",
    "timm_preprocess",
]

Function = Callable[[Image.Image], Any]

OWN = "own"
"""The mode of a transform whose crop is none of those of a ``Preprocess``."""


def match(function: Function, data: Preprocess | None) -> Preprocess:
    """Return data that makes the same pixels as a function, or else the function, as a ``Transform``.

    ``data`` is what the function is expected to do. Libraries have not always resized with the filter that they were
    asked for, so that the others are tried too. Each is compared on pictures of noise.
    """
    if data is None:
        return Transform(function)
    for interpolation in dict.fromkeys((data.interpolation, *FILTERS)):
        tried = replace(data, interpolation=interpolation)
        if all(_same(tried, function, photo) for photo in _trials(data)):
            return tried
    return Transform(function, data)


def _same(data: Preprocess, function: Function, photo: Image.Image) -> bool:
    try:
        one, other = data.inputs(photo)[0], _call(function, photo)
    except Exception:  # of a callable of the user's own; a Transform says why
        return False
    return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-5)


@dataclass(frozen=True, init=False)
class Transform(Preprocess):
    """A callable from a PIL image to a tensor ``[3, H, W]``, used as it is.

    ``size``, ``mean`` and ``std`` are what it does to a black and a white picture. ``data`` says what else is known of
    it: if the crop lies where that says, up to a pixel that is rounded otherwise, its ``crop`` and ``mode`` are taken.
    The mode of any other callable is ``"own"``. Where the crop lies in a photograph is measured, with four more calls
    for each new size of photograph; it is not known of those that are
    random, or that mirror, turn or bend what they are given.
    """

    function: Function = field(default=lambda photo: None, repr=False, compare=False)
    digest: str = ""
    """Tells functions apart by what they make of some pictures."""
    is_random: bool = field(default=False, repr=False, compare=False)
    """Whether the function makes another input of the same picture each time."""

    def __init__(self, function: Function, data: Preprocess | None = None, **changes: Any) -> None:
        if changes:
            raise ModelError("a Transform does what its function does: give another function, or a vt.Preprocess")
        facts = {**_ask(function), "function": function, "interpolation": OWN, "crop": 1.0, "mode": OWN}
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)
        if data is not None and self._is_like(data):
            for name, fact in vars(data).items():
                object.__setattr__(self, name, fact)

    def inputs(self, photo: Image.Image) -> tuple[torch.Tensor, Image.Image, Box | None]:
        if self.mode != OWN:
            self._placed(*photo.size)  # refuses a photograph that would be blown up beyond all bounds
        try:
            tensor = _call(self.function, photo)
        except VitreousError:
            raise
        except Exception as error:
            raise ImageError(f"preprocess fails on a picture of {_words(photo)}: {_reason(error)}") from error
        if tuple(tensor.shape[-2:]) != self.size:
            raise ImageError(
                f"preprocess makes {list(tensor.shape)} of a picture of {_words(photo)}, "
                f"but {[3, *self.size]} of others"
            )
        return tensor, self.to_image(tensor), self.region(*photo.size)

    def resize_and_crop(self, photo: Image.Image) -> tuple[Image.Image, Box]:
        """Return the picture the model sees; it counts as the whole photograph where its place is not known."""
        _, seen, region = self.inputs(photo)
        return seen, region or (0.0, 0.0, float(photo.width), float(photo.height))

    def region(self, width: int, height: int) -> Box | None:
        """Return where the input lies in a photograph of this size, as measured; None if that cannot be told."""
        if self.is_random:
            return None
        known = None if self.mode == OWN else super().region(width, height)
        return _measured(self, width, height) or known

    def steps(self) -> tuple[Any, ...]:
        return tuple(steps_of(self.function))

    def _colours(self, photo: Image.Image) -> np.ndarray[Any, np.dtype[np.float64]]:
        tensor = _call(self.function, photo).double()
        mean, std = (torch.tensor(values).double().view(-1, 1, 1) for values in (self.mean, self.std))
        return (tensor * std + mean).numpy()

    def _is_like(self, data: Preprocess) -> bool:
        """Whether data has the size and colours of the function, and says where it crops pictures."""
        colours = np.allclose((self.mean, self.std), (data.mean, data.std), rtol=1e-3, atol=1e-4)
        if self.size != data.size or not colours:
            return False
        height, width = data.size
        for photo in _trials(data)[:2]:
            region, told = self.region(*photo.size), data.region(*photo.size)
            if region is None or told is None:
                return False
            across, down = (told[2] - told[0]) / width, (told[3] - told[1]) / height
            if np.abs((np.array(region) - told) / (across, down, across, down)).max() > 1.5:
                return False
        return True


@lru_cache(maxsize=4096)
def _measured(transform: Transform, width: int, height: int) -> Box | None:
    try:
        return measure_region(transform._colours, width, height)
    except Exception:  # the call for the photograph itself says why
        return None


def steps_of(function: Any) -> Iterator[Any]:
    """Yield a function, or what a chain of functions such as a ``Compose`` is made of."""
    steps = getattr(function, "transforms", None)
    if isinstance(steps, list | tuple):
        for step in steps:
            yield from steps_of(step)
    else:
        yield function


# -- asking it -------------------------------------------------------------------------------------------


@cache
def _photos() -> tuple[Image.Image, ...]:
    """Pictures of noise to know a callable by: one wide, one high."""
    draws = np.random.default_rng(0)
    shapes = (300, 431, 3), (389, 320, 3)
    return tuple(Image.fromarray(draws.integers(0, 256, shape, dtype=np.uint8)) for shape in shapes)


@lru_cache(maxsize=4)
def _trials(data: Preprocess) -> tuple[Image.Image, ...]:
    """Pictures of noise to compare with: one to be made smaller, whatever the size, one high, one tiny.

    And some on which libraries that round otherwise differ: where the side that is cut is of a fraction of a pixel,
    below a half and above, and where half a pixel is left over beside the crop, next to an even number and to an odd.
    """
    draws = np.random.default_rng(1)
    high, wide = data.size
    shapes: dict[Any, tuple[int, int]] = {"wide": (int(1.5 * high), int(2.3 * wide)), "high": (103, 61), "tiny": (5, 7)}
    for long in range(41, 97):
        for width, height in ((long, 40), (40, long)):
            scaled = data._scaled_size(width, height)
            axis = int(height > width)
            left, exact = scaled[axis] - data.size[1 - axis], scaled[1 - axis] * long / 40
            if left % 2 and exact % 1:
                shapes.setdefault((left % 4, exact % 1 > 0.5), (height, width))
    return tuple(Image.fromarray(draws.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes.values())


def _call(function: Function, photo: Image.Image) -> torch.Tensor:
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


def _ask(function: Function) -> dict[str, Any]:
    """Find size, colours and digest of a callable from what it makes of black, white and pictures of noise."""
    plain = [Image.new("RGB", (431, 300), colour) for colour in ("black", "white")]
    try:
        black, white, *noise = [_call(function, photo) for photo in (*plain, *_photos())]
        again = _call(function, _photos()[0])
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"preprocess fails on a PIL image: {_reason(error)}") from error
    sizes = {tuple(each.shape) for each in (black, white, *noise)}
    if len(sizes) > 1:
        raise ModelError(f"preprocess makes inputs of several sizes, {sorted(sizes)}; resize and crop to one")
    is_random = not again.equal(noise[0])
    if is_random:
        warnings.warn(
            "preprocess makes another input of the same picture each time; give the transform for evaluation",
            VitreousWarning,
            stacklevel=6,
        )
    ends = torch.stack([black, white]).double().flatten(2)
    brighter = (ends[1] - ends[0]).amin(dim=0)
    if not bool(brighter.max() > 0):
        raise ModelError("preprocess makes no brighter input of a white picture than of a black one")
    low, high = ends[:, :, brighter > brighter.max() / 2].median(dim=2).values  # not in margins that it fills
    std = 1 / (high - low)
    digest = hashlib.blake2b(digest_size=8)
    for each in (black, white, *noise):
        digest.update(each.float().contiguous().numpy().tobytes())
    mean, deviation = (tuple(round(float(v), 6) + 0.0 for v in values) for values in (-low * std, std))
    size = (int(black.shape[1]), int(black.shape[2]))
    return {"size": size, "mean": mean, "std": deviation, "digest": digest.hexdigest(), "is_random": is_random}


def _words(photo: Image.Image) -> str:
    return f"{photo.width} x {photo.height} pixels"


def _reason(error: Exception) -> str:
    return one_line(str(error))[:160] or type(error).__name__


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
        height, width = (math.floor(side / data.crop) for side in size)
        if data.mode == "center" and height != width:
            return data
        sides = {"shortest_edge": height} if data.mode == "center" else {"height": height, "width": width}
        settings = {**processor.to_dict(), "size": sides, "crop_size": {"height": size[0], "width": size[1]}}
        processor = type(processor).from_dict(settings)
    return match(_Processed(processor), data)


def _of_processor(processor: Any) -> Preprocess:
    """Read an image processor as data.

    A size of two sides squashes, the shortest edge keeps the aspect ratio; a centre crop of ``c`` out of ``s`` pixels
    is a crop of ``c / s``.
    """
    size = getattr(processor, "size", None)
    height, width, short = (_side(size, key) for key in ("height", "width", "shortest_edge"))
    kept = _side(getattr(processor, "crop_size", None), "height"), _side(getattr(processor, "crop_size", None), "width")
    crops = bool(getattr(processor, "do_center_crop", False)) and None not in kept
    if height is not None and width is not None:
        mode, resized = "squash", (height, width)
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
