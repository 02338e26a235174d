"""From a photograph to a model's input and back: size, crop and colours, with the geometry kept.

Preprocessing as people have it: a timm configuration, an image processor, a ``Compose`` or any other callable. Whoever
made a transform makes the pixels. What can be written as data becomes a ``Preprocess`` if that makes the same pixels of
some photographs, with the versions that are installed; any other transform is used as it is.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.errors import ImageError, ModelError, VitreousError, VitreousWarning, one_line

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) of the region that the model sees, in pixels of the original photograph."""
Function = Callable[[Image.Image], Any]
Array = np.ndarray[Any, np.dtype[np.float64]]

FILTERS = {name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos")}
OWN = "own"
"""The mode of a transform whose crop is none of those of a ``Preprocess``."""

_LONGEST = 32768  # pixels of a side
_NOISE = 4 / 255  # how far a colour may be off: bytes are rounded, and a filter overshoots


@dataclass(frozen=True)
class Preprocess:
    """How a photograph becomes an input, as data.

    The photograph is resized with Pillow's filter ``interpolation`` and cut to ``size`` around its centre. With ``t``
    standing for ``size / crop``, rounded down, ``mode`` says to what it is resized:

    - ``"center"``: the aspect ratio is kept, and both sides are as long as those of ``t``, or longer;
    - ``"squash"``: to ``t``, whatever the aspect ratio is;
    - ``"border"``: the aspect ratio is kept, neither side is longer than that of ``t``, and what is missing is filled
      with the mean colour.

    Parameters
    ----------
    size : tuple of int, default (224, 224)
        Height and width of the model's input.
    mean, std : tuple of float, default ImageNet's
        What is subtracted from each channel (colours from 0 to 1), and what it is then divided by.
    interpolation : {"bicubic", "bilinear", "nearest", "lanczos"}, default "bicubic"
        Pillow's filter.
    crop : float, default 0.875
        Share of each side that is cut out.
    mode : {"center", "squash", "border"}, default "center"
        How the aspect ratio is treated.

    Notes
    -----
    This definition belongs to Vitreous and does not move with the version of another library. A model of timm, Hugging
    Face or torchvision has a ``Preprocess`` only if it makes the same pixels as that library's own transform.

    Examples
    --------
    >>> preprocess = vt.Preprocess(size=(32, 32), crop=1.0)
    >>> inputs, seen, box = preprocess.inputs(image)
    >>> inputs.shape, box
    (torch.Size([3, 32, 32]), (0.0, 0.0, 64.0, 64.0))
    """

    size: tuple[int, int] = (224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop: float = 0.875
    mode: str = "center"

    def __post_init__(self) -> None:
        if self.interpolation not in FILTERS:
            raise ModelError(f"unknown interpolation {self.interpolation!r}; known: {', '.join(FILTERS)}")
        if self.mode not in ("center", "squash", "border"):
            raise ModelError(f"unknown crop mode {self.mode!r}; known: center, squash, border")
        for name in ("size", "mean", "std"):
            self._require(name, isinstance(getattr(self, name), Sequence), "is not a tuple of numbers")
        is_size = len(self.size) == 2 and all(map(_is_side, self.size))
        self._require("size", is_size, f"is not a height and a width from 1 to {_LONGEST}")
        self._require("mean", all(map(_is_finite, self.mean)), "holds what is not a finite number")
        self._require("std", all(map(_is_positive, self.std)), "holds what is not a finite number above 0")
        self._require("crop", _is_positive(self.crop), "is not a finite number above 0")
        if len(self.mean) != len(self.std):
            raise ModelError(f"preprocess: {len(self.mean)} values of mean do not go with {len(self.std)} of std")

    def _require(self, name: str, is_valid: bool, problem: str) -> None:
        if not is_valid:
            raise ModelError(f"preprocess: {name}={getattr(self, name)!r:.60} {problem}")

    @staticmethod
    def from_timm(config: Mapping[str, Any], size: Sequence[int] | None = None) -> Preprocess:
        """Return what timm makes of its configuration (``input_size``, ``mean`` ...), or for another ``size``."""
        config = {**config} if size is None else {**config, "input_size": size}
        if not config.keys() & _TIMM.keys():
            raise ModelError(f"preprocess: {list(config)!r:.80} holds none of {', '.join(sorted(_TIMM))}")
        try:
            data = Preprocess(**{name: read(config[key]) for key, (name, read) in _TIMM.items() if config.get(key)})
        except (TypeError, ValueError, IndexError) as error:
            raise ModelError(f"preprocess: the configuration cannot be read: {one_line(str(error))}") from error
        return data if len(data.mean) != 3 else _matched_with_timm(data)  # a photograph has three colours

    def inputs(self, photo: Image.Image) -> tuple[torch.Tensor, Image.Image, Box | None]:
        """Return the input of a photograph, the image that the model sees, and where it lies if that is known."""
        seen, box = self.resize_and_crop(photo)
        return self.to_tensor(seen), seen, box

    def resize_and_crop(self, photo: Image.Image) -> tuple[Image.Image, Box]:
        """Return the image that the model sees, at its input size, and where it lies in the photograph."""
        scaled, (left, top) = self._placement(*photo.size)
        resized = photo.convert("RGB").resize(scaled, FILTERS[self.interpolation])
        seen = Image.new("RGB", self.size[::-1], tuple(round(255 * value) for value in self.mean))
        seen.paste(resized, (-left, -top))
        return seen, self._region(*photo.size)

    def region(self, width: int, height: int) -> Box | None:
        """Return where the input lies in a photograph of this size; ``None`` if that is not known."""
        return self._region(width, height)

    def to_tensor(self, image: Image.Image) -> torch.Tensor:
        """Return the normalised input ``[3, H, W]`` of an image that is already cut to size."""
        pixels = torch.from_numpy(np.array(image.convert("RGB"), dtype=np.uint8)).permute(2, 0, 1)
        return self.normalize(pixels.to(torch.float32) / 255)

    def to_image(self, inputs: torch.Tensor) -> Image.Image:
        """Return the image behind one normalised input ``[3, H, W]``."""
        pixels = self.denormalize(inputs.detach().to("cpu", torch.float32))
        return Image.fromarray((pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return ``(pixels - mean) / std`` of colours from 0 to 1, ``[..., 3, H, W]``."""
        mean, std = (pixels.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std

    def denormalize(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the colours behind normalised inputs: ``inputs * std + mean``."""
        mean, std = (inputs.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return inputs * std + mean

    def to_json(self) -> dict[str, Any]:
        """Return everything that distinguishes one preprocessing from another, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.compare}

    def steps(self) -> tuple[Any, ...]:
        """Return the functions that it is made of, where it is not data alone."""
        return ()

    def _region(self, width: int, height: int) -> Box:
        scaled, (left, top) = self._placement(width, height)
        x, y = width / scaled[0], height / scaled[1]
        return left * x, top * y, (left + self.size[1]) * x, (top + self.size[0]) * y

    def _placement(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the size to which a photograph is resized, and where the crop begins in that."""
        if width < 1 or height < 1:
            raise ImageError(f"picture of {width} x {height} pixels is empty")
        scaled = self._scaled_size(width, height)
        if max(scaled) > _LONGEST and max(scaled) > 4 * max(self.size):
            raise ImageError(f"picture of {width} x {height} pixels is too long and thin for a {self.size} crop")
        return scaled, (_margin(scaled[0], self.size[1]), _margin(scaled[1], self.size[0]))

    def _scaled_size(self, width: int, height: int) -> tuple[int, int]:
        target_height, target_width = (math.floor(side / self.crop) for side in self.size)
        if self.mode == "squash":
            return target_width, target_height
        if self.mode == "border":
            ratio = min(target_width / width, target_height / height)
            return max(1, round(width * ratio)), max(1, round(height * ratio))
        if target_height == target_width:  # the short side becomes exactly this long
            length = int(target_height * max(width, height) / min(width, height))
            return (target_height, length) if width <= height else (length, target_height)
        ratio = max(target_width / width, target_height / height)
        return round(width * ratio), round(height * ratio)


_TIMM: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "input_size": ("size", lambda size: (int(size[-2]), int(size[-1]))),
    "mean": ("mean", lambda values: tuple(map(float, values))),
    "std": ("std", lambda values: tuple(map(float, values))),
    "interpolation": ("interpolation", str),
    "crop_pct": ("crop", float),
    "crop_mode": ("mode", str),
}
"""The settings of timm, and how each is read."""


def _is_side(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and 1 <= int(value) <= _LONGEST


def _is_finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _is_positive(value: Any) -> bool:
    return _is_finite(value) and float(value) > 0


def _margin(length: int, wanted: int) -> int:
    """Return how much to cut before a centred window; negative where the image must be padded instead."""
    return round((length - wanted) / 2) if length >= wanted else -((wanted - length) // 2)


@dataclass(frozen=True, init=False)
class Transform(Preprocess):
    """A callable from a PIL image to a tensor ``[3, H, W]``, used as it is.

    ``size``, ``mean`` and ``std`` are what it does to a black and a white image. Where the crop lies in a photograph is
    measured, with four more calls for each new size of photograph; it is not known of a callable that is random, or
    that mirrors, turns or bends what it gets.

    Parameters
    ----------
    function : callable
        From a PIL image to a tensor, a batch of one, or a mapping that holds it as ``pixel_values``.
    data : Preprocess, optional
        What else is known of it: if the crop lies where that says, up to a pixel that is rounded otherwise, its
        ``crop`` and ``mode`` are taken. The mode of any other callable is ``"own"``.
    """

    function: Function = field(default=lambda photo: None, repr=False, compare=False)
    digest: str = ""
    """Distinguishes functions by what they make of some images."""
    is_random: bool = field(default=False, repr=False, compare=False)
    """Whether the function makes another input of the same image each time."""

    def __init__(self, function: Function, data: Preprocess | None = None, **changes: Any) -> None:
        if changes:
            raise ModelError("a Transform does what its function does: give another function, or a vt.Preprocess")
        self._set({**_probe(function), "function": function, "interpolation": OWN, "crop": 1.0, "mode": OWN})
        if data is not None and self._is_like(data):
            self._set(vars(data))

    def _set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def inputs(self, photo: Image.Image) -> tuple[torch.Tensor, Image.Image, Box | None]:
        if self.mode != OWN:
            self._placement(*photo.size)  # refuses a photograph that would be enlarged beyond all bounds
        size = f"{photo.width} x {photo.height} pixels"
        try:
            tensor = _call(self.function, photo)
        except VitreousError:
            raise
        except Exception as error:
            raise ImageError(f"preprocess fails on a picture of {size}: {_reason(error)}") from error
        shape = list(tensor.shape)
        if shape != [3, *self.size]:
            raise ImageError(f"preprocess makes {shape} of a picture of {size}, but {[3, *self.size]} of others")
        return tensor, self.to_image(tensor), self.region(*photo.size)

    def resize_and_crop(self, photo: Image.Image) -> tuple[Image.Image, Box]:
        """Return the image that the model sees; it counts as the whole photograph where its place is not known."""
        _, seen, region = self.inputs(photo)
        return seen, region or (0.0, 0.0, float(photo.width), float(photo.height))

    def region(self, width: int, height: int) -> Box | None:
        """Return where the input lies in a photograph of this size, as measured; ``None`` if that is not known."""
        if self.is_random:
            return None
        declared = None if self.mode == OWN else super().region(width, height)
        return _measured(self, width, height) or declared

    def steps(self) -> tuple[Any, ...]:
        return tuple(steps_of(self.function))

    def _colours(self, photo: Image.Image) -> Array:
        return self.denormalize(_call(self.function, photo).double()).numpy()

    def _is_like(self, data: Preprocess) -> bool:
        """Whether data has the size and colours of the function, and says where it crops photographs."""
        colours = np.allclose((self.mean, self.std), (data.mean, data.std), rtol=1e-3, atol=1e-4)
        if self.size != data.size or not colours:
            return False
        for photo in _trials(data)[:2]:
            region, expected = self.region(*photo.size), data.region(*photo.size)
            if region is None or expected is None:
                return False
            left, top, right, bottom = expected
            pixel = np.array([(right - left) / data.size[1], (bottom - top) / data.size[0]] * 2)
            if np.abs((np.array(region) - expected) / pixel).max() > 1.5:
                return False
        return True


@lru_cache(maxsize=4096)
def _measured(transform: Transform, width: int, height: int) -> Box | None:
    with suppress(Exception):  # the call for the photograph itself says why
        return measure_region(transform._colours, width, height)
    return None


def _reason(error: Exception) -> str:
    return one_line(str(error))[:160] or type(error).__name__


def _call(function: Function, photo: Image.Image) -> torch.Tensor:
    """Return the input of one photograph: a tensor, a batch of one, or a mapping that holds it."""
    output = function(photo.convert("RGB"))
    output = output.get("pixel_values") if isinstance(output, Mapping) else output
    output = output[0] if isinstance(output, list | tuple) and len(output) == 1 else output
    output = torch.from_numpy(output) if isinstance(output, np.ndarray) else output
    if not isinstance(output, torch.Tensor):
        raise ModelError(f"preprocess makes a {type(output).__name__}, not a tensor [3, H, W], of a picture")
    output = output[0] if output.ndim == 4 and len(output) == 1 else output
    if output.ndim != 3 or output.shape[0] != 3 or not output.is_floating_point():
        raise ModelError(f"preprocess makes {list(output.shape)} of {output.dtype}, not floats [3, H, W], of a picture")
    return output.as_subclass(torch.Tensor).detach().to("cpu", torch.float32)


def _probe(function: Function) -> dict[str, Any]:
    """Return size, colours and digest of a callable: what it makes of black, of white and of noise."""
    black, white = (Image.new("RGB", (431, 300), colour) for colour in ("black", "white"))
    noise = _noise_photos(0, ((300, 431), (389, 320)))
    try:
        *outputs, again = (_call(function, photo) for photo in (black, white, *noise, noise[0]))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"preprocess fails on a PIL image: {_reason(error)}") from error
    sizes = sorted({tuple(output.shape) for output in outputs})
    if len(sizes) > 1:
        raise ModelError(f"preprocess makes inputs of several sizes, {sizes}; resize and crop to one")
    is_random = not again.equal(outputs[2])
    if is_random:
        text = "preprocess makes another input of the same picture each time; give the transform for evaluation"
        warnings.warn(text, VitreousWarning, stacklevel=6)
    digest = hashlib.blake2b(b"".join(output.numpy().tobytes() for output in outputs), digest_size=8).hexdigest()
    mean, std = _colour_scale(*outputs[:2])
    return {"size": sizes[0][1:], "mean": mean, "std": std, "digest": digest, "is_random": is_random}


def _colour_scale(black: torch.Tensor, white: torch.Tensor) -> Iterator[tuple[float, ...]]:
    """Return mean and deviation of a normalisation, by what it makes of a black and a white image."""
    ends = torch.stack([black, white]).double().flatten(2)
    brighter = (ends[1] - ends[0]).amin(dim=0)
    if not bool(brighter.max() > 0):
        raise ModelError("preprocess makes no brighter input of a white picture than of a black one")
    low, upper = ends[:, :, brighter > brighter.max() / 2].median(dim=2).values  # not in margins that it fills
    std = 1 / (upper - low)
    return (tuple(round(v, 6) + 0.0 for v in values.tolist()) for values in (-low * std, std))


@lru_cache(maxsize=8)
def _noise_photos(seed: int, sizes: tuple[tuple[int, int], ...]) -> tuple[Image.Image, ...]:
    draws = np.random.default_rng(seed)
    return tuple(Image.fromarray(draws.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes)


def measure_region(function: Callable[[Image.Image], Array], width: int, height: int) -> Box | None:
    """Return where the input lies in a photograph of this size, to less than a pixel of the input.

    ``function`` makes ``[3, H, W]``, colours from 0 to 1, of a photograph. It gets a ramp of grey that rises along one
    side of the photograph, and the same ramp falling. The difference of the two says where a pixel comes from, whatever
    colour a transform fills its margins with, and is zero in those; their sum is white, unless they were cropped by
    what is in them. A line is fitted to the difference, away from the edges of the photograph, where a filter lacks
    neighbours. ``None`` if it is no line, as of what is mirrored, turned or bent, or if the photograph is too small:
    below eight pixels nearly all of them are at an edge.
    """
    if min(width, height) < 8:
        return None
    (x, x_sum), (y, y_sum) = (_ramps(function, width, height, axis) for axis in (1, 0))
    inside = (np.abs(x) > 0.02) | (np.abs(y) > 0.02)  # zero in both: a margin, and the very centre
    if not inside.any() or any(np.quantile(np.abs(total - 1)[inside], 0.9) > _NOISE for total in (x_sum, y_sum)):
        return None
    columns, rows = _fit_line(x / 2 + 0.5, inside, width), _fit_line(y.T / 2 + 0.5, inside.T, height)
    return None if columns is None or rows is None else (columns[0], rows[0], columns[1], rows[1])


def _ramps(function: Callable[[Image.Image], Array], width: int, height: int, axis: int) -> tuple[Array, Array]:
    """Return difference and sum of what is made of a rising and a falling ramp of grey, each from 0 to 1."""
    length, other = (height, width) if axis == 0 else (width, height)
    golden = np.arange(other) * 0.6180339887498949 % 1  # what bytes round away is spread evenly over the other side
    ramp = np.floor(255 * (np.arange(length) + 0.5) / length + golden[:, None]).clip(0, 255).astype(np.uint8)
    ramp = ramp.T if axis == 0 else ramp
    photos = (Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2)) for grey in (ramp, 255 - ramp))
    rising, falling = (function(photo).mean(axis=0) for photo in photos)
    return rising - falling, rising + falling


def _fit_line(share: Array, inside: np.ndarray[Any, np.dtype[np.bool_]], length: int) -> tuple[float, float] | None:
    """Fit a line to how far along the photograph a column comes from; return the photograph's pixels at its ends."""
    column = np.arange(share.shape[1]) + 0.5
    count = inside.sum(axis=0)
    mean = np.where(inside, share, 0).sum(axis=0) / count.clip(1)
    slope, start = 1 / length, 0.0
    for _ in range(3):  # the slope says how wide a filter is
        margin = 3 * max(1 / length, slope)
        fit = (2 * count >= count.max()) & (mean > margin) & (mean < 1 - margin)
        if fit.sum() < 3:
            return None
        slope, start = np.polyfit(column[fit], mean[fit], 1)
        if slope <= 0:
            return None
    residual = np.abs(share - (start + slope * column))[:, fit][inside[:, fit]]
    if np.quantile(residual, 0.9) > (1 / length + slope + _NOISE) / 2:
        return None
    return float(start * length), float((start + slope * share.shape[1]) * length)


def as_preprocess(value: Any) -> Preprocess:
    """Read what a user hands in as ``preprocess=``."""
    if isinstance(value, Preprocess):
        return value
    if isinstance(value, Mapping):
        return Preprocess.from_timm(value)
    if hasattr(value, "image_mean") and hasattr(value, "size"):
        from vitreous.models.adapters.hf import from_processor

        return from_processor(value)
    if not callable(value):
        forms = "a vt.Preprocess, timm's configuration, an image processor, or a function from a PIL image to a tensor"
        raise ModelError(f"preprocess: a {type(value).__name__} is none; give {forms}")
    from vitreous.models.adapters.torchvision import data_of_steps

    return match(value, data_of_steps(value))


def match(function: Function, data: Preprocess | None) -> Preprocess:
    """Return data that makes the same pixels of noise as a function, or else the function, as a ``Transform``.

    ``data`` is what is expected. Libraries have not always resized with the filter that was named: others are tried.
    """
    if data is None:
        return Transform(function)
    for interpolation in dict.fromkeys((data.interpolation, *FILTERS)):
        candidate = replace(data, interpolation=interpolation)
        if all(_same_pixels(candidate, function, photo) for photo in _trials(data)):
            return candidate
    return Transform(function, data)


def _same_pixels(data: Preprocess, function: Function, photo: Image.Image) -> bool:
    with suppress(Exception):  # of a callable of the user's own; a Transform says why
        one, other = data.inputs(photo)[0], _call(function, photo)
        return one.shape == other.shape and torch.allclose(one, other, rtol=0, atol=1e-5)
    return False


@lru_cache(maxsize=4)
def _trials(data: Preprocess) -> tuple[Image.Image, ...]:
    """Return images of noise to compare with: one to be made smaller, whatever the size, one high, one tiny.

    And some on which libraries that round otherwise differ: where the side that is cut is of a fraction of a pixel,
    below a half and above, and where half a pixel is left over beside the crop, next to an even number and to an odd.
    """
    height, width = data.size
    sizes: dict[Any, Any] = {"wide": (int(1.5 * height), int(2.3 * width)), "high": (103, 61), "tiny": (5, 7)}
    for long in range(41, 97):
        for width, height in ((long, 40), (40, long)):
            scaled = data._scaled_size(width, height)
            axis = int(height > width)
            left, exact = scaled[axis] - data.size[1 - axis], scaled[1 - axis] * long / 40
            if left % 2 and exact % 1:
                sizes.setdefault((left % 4, exact % 1 > 0.5), (height, width))
    return _noise_photos(1, tuple(sizes.values()))


@lru_cache(maxsize=64)
def _matched_with_timm(data: Preprocess) -> Preprocess:
    from timm.data import create_transform

    options = {"interpolation": data.interpolation, "mean": data.mean, "std": data.std}
    function = create_transform((3, *data.size), is_training=False, crop_pct=data.crop, crop_mode=data.mode, **options)
    return match(function, data)


def steps_of(function: Any) -> Iterator[Any]:
    """Yield a function, or what a chain of functions such as a ``Compose`` is made of."""
    steps = getattr(function, "transforms", None)
    for step in steps if isinstance(steps, list | tuple) else ():
        yield from steps_of(step)
    if not isinstance(steps, list | tuple):
        yield function


def crop_ratio(crop: int, resized: int) -> float:
    """Return a ratio with ``floor(crop / ratio) == resized``, also where the quotient is rounded."""
    ratio = crop / resized
    return ratio if math.floor(crop / ratio) == resized else crop / (resized + 0.5)
