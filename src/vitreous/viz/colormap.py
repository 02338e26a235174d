"""Numbers to colours: two perceptual colour maps, the scale that says which value gets which colour, and colour bars.

Maps arrive raw and signed. A `Scale` is the only normalisation there is; it is explicit, it can be shared
between maps, and `Scale.caption` puts it into words, so that no picture has an unstated scale.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.viz.canvas import SOFT_INK, Sheet, line_height, text_width, wrap

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]
Sharing = Literal["each", "group", "panel"]
"""Which maps share a scale: none, those of one group, or all of a panel."""

# The two matrices of OKLab: B. Ottosson, "A perceptual color space for image processing", 2020.
_LMS = np.array(  # linear sRGB to cone responses
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(  # cube roots of the cone responses to (L, a, b)
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def to_oklab(rgb: NDArray[Any]) -> Floats:
    """SRGB in [0, 1], `[..., 3]`, to OKLab (L, a, b)."""
    rgb = np.asarray(rgb, np.float64)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(linear @ _LMS.T) @ _LAB.T)


def from_oklab(lab: NDArray[Any]) -> Floats:
    """OKLab (L, a, b), `[..., 3]`, to sRGB, clipped to the gamut [0, 1]."""
    cones = np.asarray(lab, np.float64) @ np.linalg.inv(_LAB).T
    linear = np.clip(cones**3 @ np.linalg.inv(_LMS).T, 0.0, 1.0)
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))


def _table(anchors: Sequence[tuple[float, float, float]], at: NDArray[Any]) -> Bytes:
    """Colours at the 256 positions `at` in [0, 1], linear in OKLab between anchors (lightness, chroma, hue).

    An anchor sits at the position of its own lightness, so that lightness is linear by construction.
    """
    lightness, chroma, hue = np.array(anchors).T
    angle = np.radians(hue)
    position = (lightness - lightness[0]) / (lightness[-1] - lightness[0])
    lab = [np.interp(at, position, axis) for axis in (lightness, chroma * np.cos(angle), chroma * np.sin(angle))]
    return np.rint(255 * from_oklab(np.stack(lab, axis=-1))).astype(np.uint8)


_RAMP = np.linspace(0.0, 1.0, 256)
# 256 entries have no middle one. Entry 128 is zero, 1 and 255 are the ends, and entry 0 repeats entry 1.
_CENTRED = np.clip((np.arange(256) - 128) / 127, -1.0, 1.0)

# Anchors stay inside the sRGB gamut, where clipping would bend the lightness. Night, violet, magenta, red,
# orange, straw: a bright end that photographs seldom have over a dark one that dims them.
_DARK = [(0.15, 0.06, 285.0), (0.33, 0.15, 302.0), (0.50, 0.19, 348.0)]
_BRIGHT = [(0.66, 0.20, 28.0), (0.80, 0.13, 64.0), (0.95, 0.09, 102.0)]
SEQUENTIAL: Bytes = _table(_DARK + _BRIGHT, _RAMP)
_COLD, _WARM = (_table([(0.95, 0.0, h), (0.72, 0.14, h), (0.50, 0.19, h)], np.abs(_CENTRED)) for h in (260.0, 28.0))
DIVERGING: Bytes = np.where(_CENTRED[:, None] < 0, _COLD, _WARM)
JET: Bytes = np.rint(255 * np.clip(1.5 - np.abs(4 * _RAMP[:, None] - [3.0, 2.0, 1.0]), 0, 1)).astype(np.uint8)

COLOURS: dict[str, Bytes] = {"sequential": SEQUENTIAL, "diverging": DIVERGING, "jet": JET}
MISSING = 128  # the grey of values that are not finite
FLOOR = 5.0  # the percentile from which maps on a large constant are shown
_STOPS = 17  # of a gradient: an odd number, so that zero has one
_CONSTANT = 0.2  # a constant is large from this share of the limit on; maps without one have less than 0.05


def number(value: float) -> str:
    """Three significant digits, the way every number in a picture is written."""
    return f"{value:.3g}"


def percentile_name(percentile: float) -> str:
    """99.0 to "99th percentile", 100.0 to "maximum"."""
    if percentile == 100:
        return "maximum"
    digits = f"{percentile:g}"
    teen = digits[-2:] in {"11", "12", "13"}
    ending = "th" if teen or "." in digits else {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th")
    return f"{digits}{ending} percentile"


@dataclass(frozen=True)
class Scale:
    """`limit` is the value (the |value|, if signed) with the strongest colour; `signed` centres the colours on zero.

    `percentile` remembers where the limit came from: 100 is the maximum, 0 means that it was not measured
    (set by hand, or nothing to measure because every value is zero). The colours of an unsigned scale begin at
    `low`: zero, or the percentile `floor` of the values.
    """

    limit: float
    signed: bool
    percentile: float = 0.0
    low: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.signed and self.low != 0:
            raise ValueError(f"a signed scale is centred on zero and does not begin at {self.low!r}")
        if not (math.isfinite(self.limit) and math.isfinite(self.low) and self.limit > self.low):
            least = "zero" if self.low == 0 else f"{self.low!r}"
            raise ValueError(f"a scale needs a finite limit above {least}, not {self.limit!r}")

    @classmethod
    def of(cls, maps: Sequence[NDArray[Any]], percentile: float = 99.0, signed: bool | None = None) -> Scale:
        """The scale of several maps together: the percentile of |value| over all their finite values.

        A sparse map can have a percentile of zero; then the maximum is taken, and 1 if everything is zero.
        `signed` defaults to whether any value is below zero. An unsigned scale begins at zero, unless the 5th
        percentile of the values is below zero or above a fifth of the limit: then it begins there, so that what the map
        says is not lost in a haze. A map that is the same everywhere has no such place.
        """
        if not 0 < percentile <= 100:
            raise ValueError(f"percentile must be above 0 and at most 100, not {percentile!r}")
        values = np.concatenate([np.zeros(0), *(np.asarray(map, np.float64).ravel() for map in maps)])
        values = values[np.isfinite(values)]
        signed = bool((values < 0).any()) if signed is None else signed
        size = np.abs(values)
        if not size.any():
            return cls(1.0, signed)
        if not signed:
            low, limit = map(float, np.percentile(values, [min(FLOOR, percentile), percentile]))
            if low < limit and (low < 0 or low > _CONSTANT * limit):
                return cls(limit, False, float(percentile), low, FLOOR)
        limit = float(np.percentile(size, percentile))
        if limit > 0:
            return cls(limit, signed, float(percentile))
        return cls(float(size.max()), signed, 100.0)

    def unit(self, map: NDArray[Any]) -> Floats:
        """Value / limit, clipped to [-1, 1] if signed; otherwise 0 at `low`, 1 at `limit`; NaN where not finite."""
        values = np.asarray(map, np.float64)
        with np.errstate(over="ignore"):  # a huge value over a tiny limit is clipped right after
            ratio = np.clip((values - self.low) / (self.limit - self.low), -1.0 if self.signed else 0.0, 1.0)
        return np.asarray(np.where(np.isfinite(values), ratio, np.nan))

    @property
    def begins(self) -> str:
        """Where the colours begin if that is not zero, in words; nothing otherwise."""
        return f"shown from the {percentile_name(self.floor)}" if self.floor else ""

    def caption(self) -> str:
        """The scale in words, for the caption of the picture that uses it."""
        kind = "diverging, zero-centred" if self.signed else "sequential from 0"
        if self.low != 0:
            kind = f"sequential, {self.begins or 'shown from'} = {number(self.low)}"
        of = "value" if self.low != 0 else "|value|"
        if self.percentile == 0:
            return f"{kind}, strongest colour at {of} = {number(self.limit)}"
        return f"{kind}, clipped at the {percentile_name(self.percentile)} of {of} = {number(self.limit)}"


def gradient(signed: bool) -> str:
    """The colours of a scale from its low end to its high one, as CSS has them: what `colourise` does by default."""
    table = DIVERGING[1:] if signed else SEQUENTIAL
    stops = table[np.rint(np.linspace(0, len(table) - 1, _STOPS)).astype(int)]
    return f"linear-gradient(90deg,{','.join('#' + bytes(stop).hex() for stop in stops)})"


def colourise(map: NDArray[Any], scale: Scale, colours: str | None = None) -> Bytes:
    """`[h, w]` values to `[h, w, 3]` colours; by default diverging for a signed scale, else sequential.

    Zero always gets the neutral centre of "diverging". In the one-way maps ("sequential", "jet") the low end
    is where an unsigned scale begins and -limit of a signed one. Values that are not finite are mid-grey.
    """
    name = colours if colours is not None else ("diverging" if scale.signed else "sequential")
    if name not in COLOURS:
        raise ValueError(f"unknown colours {name!r}; there are {', '.join(COLOURS)}")
    unit = scale.unit(map)
    is_finite = np.isfinite(unit)
    unit = np.where(is_finite, unit, 0.0)
    upwards = (unit + 1) / 2 if scale.signed else unit
    index = 128 + 127 * unit if name == "diverging" else 255 * upwards
    pixels = COLOURS[name][np.rint(index).astype(np.intp)]
    return np.where(is_finite[..., None], pixels, np.uint8(MISSING))


# -- what colours mean, beside the image that uses them ------------------------------------------------

TIGHT = 5  # between an image and its own text
_NARROWEST = 320  # pixels of a page with text


def colour_bar(scale: Scale, relative: bool, width: int, size: int, colours: str | None = None) -> Sheet:
    """Return what the ends of a scale mean, its colours, and the values at its ends and in its middle.

    A relative bar has 1 where the limit is; otherwise the values are raw.
    """
    height, thickness = line_height(size), max(8, round(1.2 * size))
    page = Sheet(width, 2 * height + thickness + 2 * TIGHT)
    low = -scale.limit if scale.signed else scale.low
    ramp = np.linspace(low, scale.limit, width)[None].repeat(thickness, axis=0)
    page.paste(Image.fromarray(colourise(ramp, scale, colours)), (0, height + TIGHT))
    if not relative:
        marks = {0.0: number(low), 0.5: number((low + scale.limit) / 2), 1.0: number(scale.limit)}
    elif scale.floor:
        marks = {0.0: percentile_name(scale.floor), 1.0: "1"}
    else:
        marks = {0.0: "-1", 0.5: "0", 1.0: "1"} if scale.signed else {0.0: "0", 0.5: "0.5", 1.0: "1"}
    ends = {0.0: "against", 1.0: "for"} if scale.signed else {0.0: "little", 1.0: "much"}
    for y, texts in ((0, ends), (height + thickness + 2 * TIGHT, marks)):
        for share, text in texts.items():  # of the width: 0 is flush left, 1 flush right
            page.write((round(share * (width - text_width(text, size))), y), [text], size, SOFT_INK)
    return page


def colour_bars(scales: Collection[Scale], relative: bool, width: int, size: int) -> list[Sheet]:
    """Return one bar for each kind of scale: those that begin at zero, those that begin elsewhere, signed ones."""
    kinds = {(scale.signed, bool(scale.floor)): scale for scale in scales}
    return [colour_bar(kinds[kind], relative, width, size) for kind in sorted(kinds)]


def statement(scales: Collection[Scale], percentile: float, sharing: Sharing, mode: str = "bilinear") -> str:
    """Return what the colours mean, in a sentence or two."""
    if len(scales) == 1:
        text = f"Colours: {next(iter(scales)).caption()}; one scale for all maps."
    else:
        noun, rule = "maps", "Every map has its own scale"
        if sharing == "group":
            noun, rule = "groups", "Maps of one group share a scale"
        alike = "" if percentile == 100 else f", like all from the {percentile_name(percentile)} of |value| on"
        text = (
            f"{rule}: strongest patch = 1{alike}; the value of 1 is under each picture. Compare places, not colours "
            f"of different {noun}."
        )
    if any(scale.floor for scale in scales):
        floor = f"shown from the {percentile_name(FLOOR)}"
        text += f" Maps that sit on a large constant, or whose sign says nothing, are {floor}."
    sampling = "Up-sampled bilinearly" if mode == "bilinear" else "Drawn patch by patch"
    return f"{text} {sampling}; opacity grows with |value|."


def captioned(image: Image.Image, scale: Scale, caption: str, colours: str | None = None) -> Sheet:
    """Return an image with a colour bar and a caption under it, as wide as the image or as a line of text."""
    width = max(image.width, _NARROWEST)
    size = max(12, round(max(image.size) / 36))
    margin = max(8, size // 2)
    lines = wrap(caption, size, width - 2 * margin, 24)
    bar = colour_bar(scale, False, min(width - 2 * margin, 24 * size), size, colours)
    page = Sheet(width, image.height + 3 * margin + bar.height + len(lines) * line_height(size))
    page.paste(image.convert("RGB"), ((width - image.width) // 2, 0))
    page.put(bar, (margin, image.height + margin))
    page.write((margin, image.height + 2 * margin + bar.height), lines, size)
    return page
