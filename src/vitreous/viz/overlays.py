"""Maps on photographs: up-sampling, heat maps, blending, and the way back to the original photograph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitreous.errors import VitreousError
from vitreous.viz.colormap import Floats, Scale, colourise

Mode = Literal["bilinear", "nearest"]
Box = tuple[float, float, float, float]
Pixels = NDArray[np.float32]

_BAND = 2**20  # pixels computed at a time
_FLOOR = 0.4  # share of alpha that a zero of an unsigned map still gets
_DIM = 0.65  # brightness of the grey photograph under that zero
_FADE = 0.35  # how far a signed map's neutral regions go towards grey: a red sofa must not look like evidence
LUMA = np.array([0.299, 0.587, 0.114])


def upsample(map: NDArray[Any], size: tuple[int, int], mode: Mode = "bilinear") -> Floats:
    """`map` on `size` = (width, height) pixels, raw values kept.

    Bilinear has half-pixel centres and clamped edges: torch's `interpolate(align_corners=False)`; where an
    axis shrinks it averages (torch's `antialias=True`), so that thin structures do not vanish. Nearest takes
    the cell under the pixel's centre (torch's "nearest-exact"). A cell that is not finite stays NaN and
    leaves its neighbours alone.
    """
    values = _checked(map)
    height, width = values.shape
    return _resample(values, size, (0.0, 0.0, float(width), float(height)), mode)


def heatmap(
    map: NDArray[Any], scale: Scale, size: tuple[int, int], colours: str | None = None, mode: Mode = "bilinear"
) -> Image.Image:
    """The map alone, in colours, on `size` = (width, height) pixels. Values are interpolated, not colours."""
    return Image.fromarray(colourise(upsample(map, size, mode), scale, colours))


def overlay(
    image: Image.Image,
    map: NDArray[Any],
    scale: Scale,
    alpha: float = 0.55,
    colours: str | None = None,
    mode: Mode = "bilinear",
) -> Image.Image:
    """The map blended onto the image it explains, same size as the image; `alpha` is the strongest opacity.

    With u = value / limit, clipped: a signed map has the opacity alpha * (1 - (1 - |u|)^2), steep, but
    without the cusp at zero that would draw contours; neutral regions show the photograph, a little faded.
    An unsigned map has alpha * (floor + (1 - floor) * u); as u falls the photograph turns dim and grey, so
    that hot regions stand out. `alpha=0` is the image itself.
    """
    values = _checked(map)
    rows, columns = values.shape
    down = rows / image.height

    def paint(pixels: Pixels, top: int, bottom: int) -> Pixels:
        seen = (0.0, top * down, float(columns), bottom * down)
        return _blend(pixels, _resample(values, (image.width, bottom - top), seen, mode), scale, alpha, colours)

    return _in_bands(image, paint)


def on_photo(
    photo: Image.Image,
    map: NDArray[Any],
    box: Box,
    scale: Scale,
    alpha: float = 0.55,
    colours: str | None = None,
    mode: Mode = "bilinear",
) -> Image.Image:
    """The map drawn back on the original photograph.

    `box` = (left, top, right, bottom) is what the model saw, in pixels of the photograph; it may be
    fractional and may reach beyond the photograph (a padded input). A pixel belongs to the box if its centre
    does. The rest of the photograph is dim and grey, with a thin line around the box.
    """
    values = _checked(map)
    rows, columns = values.shape
    left, top, right, bottom = box
    if not (all(math.isfinite(edge) for edge in box) and left < right and top < bottom):
        raise ValueError(f"box is (left, top, right, bottom) with left < right and top < bottom, not {box!r}")
    x0, x1 = max(0, math.ceil(left - 0.5)), min(photo.width, math.ceil(right - 0.5))
    y0, y1 = max(0, math.ceil(top - 0.5)), min(photo.height, math.ceil(bottom - 0.5))
    if x0 >= x1 or y0 >= y1:
        raise ValueError(f"box {box!r} covers no pixel of a photograph of {photo.width} x {photo.height}")

    x_cells, y_cells = columns / (right - left), rows / (bottom - top)  # per pixel of the photograph

    def paint(pixels: Pixels, above: int, below: int) -> Pixels:
        canvas = 0.45 * _grey(pixels) + 0.12 * pixels
        first, last = max(above, y0), min(below, y1)
        if first < last:
            seen = ((x0 - left) * x_cells, (first - top) * y_cells, (x1 - left) * x_cells, (last - top) * y_cells)
            inside = (slice(first - above, last - above), slice(x0, x1))
            resampled = _resample(values, (x1 - x0, last - first), seen, mode)
            canvas[inside] = _blend(pixels[inside], resampled, scale, alpha, colours)
        return canvas

    picture = _in_bands(photo, paint)
    line = max(1, round(min(photo.size) / 300))
    # Just outside the box: no pixel of the map is hidden, and an edge beyond the photograph is not drawn.
    edge = (x0 - line, y0 - line, x1 + line - 1, y1 + line - 1)
    ImageDraw.Draw(picture).rectangle(edge, outline=(255, 255, 255), width=line)
    return picture


def resized(image: Image.Image, size: int | tuple[int, int]) -> Image.Image:
    """The image with its longer side of `size` pixels, or with `size` = (width, height)."""
    if isinstance(size, int):
        factor, least = size / max(image.size), min(1, size)
        size = max(least, round(image.width * factor)), max(least, round(image.height * factor))
    if min(size) < 1:
        raise VitreousError(f"a picture has at least one pixel, not the size {size}")
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def cut_out(photo: Image.Image, box: Box, seen: Image.Image) -> Image.Image:
    """What the model saw, in the photograph's own resolution; `seen` enlarged where it reached beyond its edges."""
    left, top, right, bottom = box
    size = max(1, round(right - left)), max(1, round(bottom - top))
    if left < 0 or top < 0 or right > photo.width or bottom > photo.height:
        return resized(seen, size)
    return photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, box=box)


def _in_bands(image: Image.Image, paint: Callable[[Pixels, int, int], Pixels]) -> Image.Image:
    """Paint over an image some rows at a time: a photograph may be large, and floats are four times larger."""
    result = Image.new("RGB", image.size)
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        bottom = min(image.height, top + rows)
        band = np.asarray(image.crop((0, top, image.width, bottom)).convert("RGB"), np.float32)
        result.paste(Image.fromarray(np.rint(paint(band, top, bottom)).astype(np.uint8)), (0, top))
    return result


def _blend(photo: Pixels, values: Floats, scale: Scale, alpha: float, colours: str | None) -> Pixels:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha!r}")
    unit = scale.unit(values)[..., None]
    strength = np.nan_to_num(np.abs(unit), nan=1.0).astype(np.float32)  # what is not finite is shown, in grey
    colour = colourise(values, scale, colours).astype(np.float32)
    if scale.signed:
        strength = 1 - (1 - strength) ** 2
        opacity = alpha * strength
        # Multiplying keeps the photograph's light and shade under pale colours, where blending would be fog.
        tint = colour / np.maximum(colour.max(axis=-1, keepdims=True), 1.0)
        under = _mix(photo, _grey(photo), _FADE + (1 - _FADE) * strength) * tint
    else:
        opacity = alpha * (_FLOOR + (1 - _FLOOR) * strength)
        under = _mix(_DIM * _grey(photo), photo, strength)
    return _mix(_mix(photo, under, min(1.0, 2 * alpha)), colour, opacity)


def _mix(first: Pixels, second: Pixels, share: Pixels | float) -> Pixels:
    return np.asarray((1 - share) * first + share * second)


def _resample(values: Floats, size: tuple[int, int], seen: Box, mode: Mode) -> Floats:
    """The region `seen` of the map (in cells; beyond the map its edge goes on) on `size` pixels."""
    width, height = size
    if width < 1 or height < 1:
        raise ValueError(f"size must be (width, height), both at least 1, not {size!r}")
    left, top, right, bottom = seen
    rows = _nearest(values.shape[0], top, bottom, height)
    columns = _nearest(values.shape[1], left, right, width)
    nearest = values[rows[:, None], columns]
    if mode == "nearest":
        return nearest
    if mode != "bilinear":
        raise ValueError(f"mode must be 'bilinear' or 'nearest', not {mode!r}")
    is_finite = np.isfinite(values)
    if is_finite.all():
        return _bilinear(values, size, seen)
    if not is_finite.any():
        return np.full((height, width), np.nan)
    weight = _bilinear(is_finite.astype(np.float64), size, seen)
    total = _bilinear(np.where(is_finite, values, 0.0), size, seen)
    visible = np.isfinite(nearest) & (weight > 0)
    return np.where(visible, total / np.where(visible, weight, 1.0), np.nan)


def _nearest(cells: int, start: float, stop: float, pixels: int) -> NDArray[np.intp]:
    centres = start + (np.arange(pixels) + 0.5) * (stop - start) / pixels
    return np.clip(np.floor(centres), 0, cells - 1).astype(np.intp)


def _bilinear(values: Floats, size: tuple[int, int], seen: Box) -> Floats:
    """Pillow's resize in float32, with the values brought to [-1, 1] so that tiny float64 maps survive."""
    peak = float(np.abs(values).max()) or 1.0
    left, top, right, bottom = seen
    height, width = values.shape
    beyond = math.ceil(max(0.0, -left, -top, right - width, bottom - height))
    source = np.pad(values / peak, beyond, mode="edge").astype(np.float32)
    region = (left + beyond, top + beyond, right + beyond, bottom + beyond)
    resized = Image.fromarray(source).resize(size, Image.Resampling.BILINEAR, box=region)
    return peak * np.asarray(resized, np.float64)


def _checked(map: NDArray[Any]) -> Floats:
    values = np.asarray(map, np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"a map has the shape [h, w], not {list(values.shape)}")
    return values


def _grey(pixels: Pixels) -> Pixels:
    return np.asarray((pixels @ LUMA.astype(np.float32))[..., None])
