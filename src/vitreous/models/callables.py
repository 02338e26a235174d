"""A transform that is a callable: compared with data, or else used as it is, its crop found by measuring."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitreous.errors import ImageError, ModelError, VitreousError, VitreousWarning, one_line
from vitreous.models.geometry import measure_region
from vitreous.models.preprocess import FILTERS, Box, Preprocess

__all__ = ["OWN", "Function", "Transform", "match", "steps_of"]

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
        return tensor, self.picture(tensor), self.region(*photo.size)

    def see(self, photo: Image.Image) -> tuple[Image.Image, Box]:
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
        high, wide = data.size
        for photo in _trials(data)[:2]:
            region, told = self.region(*photo.size), data.region(*photo.size)
            if region is None or told is None:
                return False
            across, down = (told[2] - told[0]) / wide, (told[3] - told[1]) / high
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
    return tuple(Image.fromarray(draws.integers(0, 256, (*each, 3), dtype=np.uint8)) for each in shapes.values())


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
