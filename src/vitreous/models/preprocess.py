"""From a photograph to a model's input and back: size, crop and colours, with the geometry kept.

Where the input of a transform lies in a photograph: measured, by showing it where each pixel comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.errors import ImageError, ModelError

__all__ = [
    "Box",
    "FILTERS",
    "Preprocess",
    "measure_region",
]

Box = tuple[float, float, float, float]
"""(left, top, right, bottom) of the region the model saw, in pixels of the original photograph."""

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}

_LONGEST = 32768  # pixels of a side


@dataclass(frozen=True)
class Preprocess:
    """How a photograph becomes an input, as data.

    The photograph is resized with Pillow's filter ``interpolation`` and cut to ``size`` around its centre. ``mode``
    says to what it is resized, where ``t`` is ``size / crop``, rounded down:

    - ``"center"``: the aspect ratio is kept, and both sides are as long as those of ``t``, or longer;
    - ``"squash"``: to ``t``, whatever the aspect ratio is;
    - ``"border"``: the aspect ratio is kept, neither side is longer than that of ``t``, and what is missing is filled
      with the mean colour.

    This definition belongs to Vitreous and does not move with the version of another library. A model of timm, Hugging
    Face or torchvision has a ``Preprocess`` only if it was seen to make the same pixels as that library's transform.
    """

    size: tuple[int, int] = (224, 224)
    """Height and width of the model's input."""
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
            if not isinstance(getattr(self, name), Sequence):
                raise ModelError(f"preprocess: {name}={getattr(self, name)!r:.60} is not a tuple of numbers")
        if len(self.size) != 2 or not all(map(_is_side, self.size)):
            raise ModelError(f"preprocess: size={self.size!r:.60} is not a height and a width from 1 to {_LONGEST}")
        if not all(map(_is_finite, self.mean)):
            raise ModelError(f"preprocess: mean={self.mean!r:.60} holds what is not a finite number")
        if not all(_is_finite(value) and value > 0 for value in self.std):
            raise ModelError(f"preprocess: std={self.std!r:.60} holds what is not a finite number above 0")
        if len(self.mean) != len(self.std):
            raise ModelError(f"preprocess: {len(self.mean)} values of mean do not go with {len(self.std)} of std")
        if not (_is_finite(self.crop) and self.crop > 0):
            raise ModelError(f"preprocess: crop={self.crop!r:.60} is not a finite number above 0")

    def resize_and_crop(self, photo: Image.Image) -> tuple[Image.Image, Box]:
        """Return the picture the model sees, at its input size, and where it lies in the photograph."""
        scaled, (left, top) = self._placed(*photo.size)
        resized = photo.convert("RGB").resize(scaled, FILTERS[self.interpolation])
        seen = Image.new("RGB", self.size[::-1], tuple(round(255 * value) for value in self.mean))
        seen.paste(resized, (-left, -top))
        return seen, self._region(*photo.size)

    def region(self, width: int, height: int) -> Box | None:
        """Return where the input lies in a photograph of this size; None if that is not known."""
        return self._region(width, height)

    def inputs(self, photo: Image.Image) -> tuple[torch.Tensor, Image.Image, Box | None]:
        """Return the input of a photograph, the picture the model sees, and where it lies if that is known."""
        seen, box = self.resize_and_crop(photo)
        return self.to_tensor(seen), seen, box

    def to_tensor(self, seen: Image.Image) -> torch.Tensor:
        """Return the normalised input ``[3, H, W]`` of a picture already cut to size."""
        pixels = torch.from_numpy(np.array(seen.convert("RGB"), dtype=np.uint8)).permute(2, 0, 1)
        return self.normalize(pixels.to(torch.float32) / 255)

    def to_image(self, inputs: torch.Tensor) -> Image.Image:
        """Undo the normalisation of one input ``[3, H, W]``: the picture behind a tensor."""
        pixels = self.denormalize(inputs.detach().to("cpu", torch.float32))
        array = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        return Image.fromarray(array)

    def normalize(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return ``(pixels - mean) / std`` of colours from 0 to 1, ``[..., 3, H, W]``."""
        mean, std = (pixels.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels - mean) / std

    def denormalize(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the colours behind normalised inputs: ``inputs * std + mean``."""
        mean, std = (inputs.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return inputs * std + mean

    def to_json(self) -> dict[str, Any]:
        """Return everything that tells one preprocessing from another, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.compare}

    def steps(self) -> tuple[Any, ...]:
        """Return the functions that it is made of, where it is not data alone."""
        return ()

    def _region(self, width: int, height: int) -> Box:
        scaled, (left, top) = self._placed(width, height)
        across, down = width / scaled[0], height / scaled[1]
        return left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down

    def _placed(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the size to which a photograph is resized, and where the crop begins in that."""
        if width < 1 or height < 1:
            raise ImageError(f"picture of {width} x {height} pixels is empty")
        scaled = self._scaled_size(width, height)
        if max(scaled) > _LONGEST and max(scaled) > 4 * max(self.size):
            raise ImageError(f"picture of {width} x {height} pixels is too long and thin for a {self.size} crop")
        high, wide = self.size
        return scaled, (_margin(scaled[0], wide), _margin(scaled[1], high))

    def _scaled_size(self, width: int, height: int) -> tuple[int, int]:
        high, wide = (math.floor(side / self.crop) for side in self.size)
        if self.mode == "squash":
            return wide, high
        if self.mode == "border":
            ratio = min(wide / width, high / height)
            return max(1, round(width * ratio)), max(1, round(height * ratio))
        if high == wide:  # the short side becomes exactly this long
            short, long = min(width, height), max(width, height)
            length = int(high * long / short)
            return (high, length) if width <= height else (length, high)
        ratio = max(wide / width, high / height)
        return round(width * ratio), round(height * ratio)


def _is_side(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and 1 <= int(value) <= _LONGEST


def _is_finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)


def _margin(length: int, wanted: int) -> int:
    """Return how much to cut before a centred window; negative where the picture must be padded instead."""
    return round((length - wanted) / 2) if length >= wanted else -((wanted - length) // 2)


Array = np.ndarray[Any, np.dtype[np.float64]]
_LEAST = 8
"""Pixels along a side below which nothing is measured: nearly all of them are at an edge."""
_NOISE = 4 / 255
"""How far a colour may be off: bytes are rounded, and a filter overshoots."""


def measure_region(function: Callable[[Image.Image], Array], width: int, height: int) -> Box | None:
    """Return where the input lies in a photograph of this size, to less than a pixel of the input.

    ``function`` makes ``[3, H, W]``, colours from 0 to 1, of a photograph. It is shown a ramp of grey that rises along
    one side of the photograph, and the same ramp falling. The difference of the two says where a pixel comes from,
    whatever colour a transform fills its margins with, and is zero in those; their sum is white, unless they were
    cropped by what is in them. A line is fitted to the difference, away from the edges of the photograph, where a
    filter has no neighbours to ask. None if it is no line, as of what is mirrored, turned or bent, or if the photograph
    is too small to tell.
    """
    if min(width, height) < _LEAST:
        return None
    across, down = (_ramps(function, width, height, axis) for axis in (1, 0))
    inside = (np.abs(across[0]) > 0.02) | (np.abs(down[0]) > 0.02)  # zero in both: a margin, and the very centre
    if not inside.any() or any(np.quantile(np.abs(total - 1)[inside], 0.9) > _NOISE for _, total in (across, down)):
        return None
    columns, rows = _ends(across[0] / 2 + 0.5, inside, width), _ends(down[0].T / 2 + 0.5, inside.T, height)
    return None if columns is None or rows is None else (columns[0], rows[0], columns[1], rows[1])


def _ramps(function: Callable[[Image.Image], Array], width: int, height: int, axis: int) -> tuple[Array, Array]:
    """Return difference and sum of what is made of a rising and a falling ramp of grey, each from 0 to 1."""
    length, other = (height, width) if axis == 0 else (width, height)
    golden = np.arange(other) * 0.6180339887498949 % 1  # what bytes round away is spread evenly over the other side
    ramp = np.floor(255 * (np.arange(length) + 0.5) / length + golden[:, None]).clip(0, 255).astype(np.uint8)
    ramp = ramp.T if axis == 0 else ramp
    rising, falling = (
        function(Image.fromarray(np.repeat(grey[:, :, None], 3, axis=2))).mean(axis=0) for grey in (ramp, 255 - ramp)
    )
    return rising - falling, rising + falling


def _ends(share: Array, inside: np.ndarray[Any, np.dtype[np.bool_]], length: int) -> tuple[float, float] | None:
    """Fit a line to how far along the photograph each column comes from; return the photograph's pixels at its ends."""
    at = np.arange(share.shape[1]) + 0.5
    count = inside.sum(axis=0)
    mean = np.where(inside, share, 0).sum(axis=0) / count.clip(1)
    slope, start = 1 / length, 0.0
    for _ in range(3):  # the slope says how wide a filter is
        margin = 3 * max(1 / length, slope)
        fit = (2 * count >= count.max()) & (mean > margin) & (mean < 1 - margin)
        if fit.sum() < 3:
            return None
        slope, start = np.polyfit(at[fit], mean[fit], 1)
        if slope <= 0:
            return None
    bent = np.abs(share - (start + slope * at))[:, fit][inside[:, fit]]
    if np.quantile(bent, 0.9) > (1 / length + slope + _NOISE) / 2:
        return None
    return float(start * length), float((start + slope * share.shape[1]) * length)
