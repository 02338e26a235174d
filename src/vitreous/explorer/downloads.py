"""What is on the screen as a file: a picture, a panel with text as text, the raw values, a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import vitreous as vt
from vitreous import show
from vitreous.explorer.wire import Refused
from vitreous.words import check_choice
from vitreous.words.defaults import known_as

__all__ = ["FORMATS", "Look", "file_name", "written"]

FORMATS = {"png": "image/png", "svg": "image/svg+xml", "npy": "application/octet-stream", "html": "text/html"}
_TILE = 360
_ACROSS = 4


@dataclass(frozen=True)
class Look:
    """How maps are drawn: the strongest opacity, the percentile of the strongest colour, and what is left out."""

    opacity: float = 0.55
    clip: float = 99.0
    positive: bool = False
    smooth: bool = True
    shared: bool = False

    @classmethod
    def of(cls, given: Any) -> Look:
        """Read a look as the page has it."""
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise Refused(422, "look must be a JSON object")
        signed = given.get("signed")
        return cls(
            _number(given, "opacity", 0.0, 1.0, 0.55),
            _number(given, "clip", 1.0, 100.0, 99.0),
            signed is False or signed == "positive",
            given.get("smooth") is not False,
            given.get("shared") is True,
        )

    @property
    def mode(self) -> Literal["bilinear", "nearest"]:
        return "bilinear" if self.smooth else "nearest"

    def values(self, e: vt.Explanation) -> tuple[np.ndarray[Any, Any], bool | None]:
        """Return a map as it is drawn, and whether its sign means anything."""
        plain = e.map.numpy()
        return (np.maximum(plain, 0), False) if self.positive else (plain, e.signed)


def _number(given: Mapping[str, Any], name: str, low: float, high: float, default: float) -> float:
    found = given.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not low <= found <= high:
        raise Refused(422, f"look: {name}={found!r:.40} is not a number from {low:g} to {high:g}")
    return float(found)


def file_name(maps: Sequence[vt.Explanation], ending: str) -> str:
    """Return a name that a header can hold, whatever the picture is called."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", maps[0].name).strip("-.")[:60]
    return f"vitreous-{plain or 'maps'}.{ending}"


def written(form: str, maps: Sequence[vt.Explanation], look: Look) -> tuple[bytes, str]:
    """Return the content of a file of these maps, and how its name ends."""
    check_choice("format", form, tuple(FORMATS))
    if form == "npy":
        return _values(maps)
    if form == "html":
        return _page(maps, look).encode(), form
    buffer = io.BytesIO()
    show.encoded(_sheet(maps, look), f"maps.{form}")(buffer)
    return buffer.getvalue(), form


def _values(maps: Sequence[vt.Explanation]) -> tuple[bytes, str]:
    """One array of all maps, ``[h, w]`` or ``[n, h, w]``; one by one where they differ in size."""
    arrays = [each.map.numpy() for each in maps]
    buffer = io.BytesIO()
    if len({each.shape for each in arrays}) > 1:
        np.savez(buffer, *arrays)
        return buffer.getvalue(), "npz"
    np.save(buffer, arrays[0] if len(arrays) == 1 else np.stack(arrays))
    return buffer.getvalue(), "npy"


def _sheet(maps: Sequence[vt.Explanation], look: Look) -> show.Sheet:
    first = maps[0]
    said = f"said: {first.prediction.label} ({first.prediction.probability:.2f})"
    cells = [show.Cell(first.image, None, first.name, said)]
    for each in maps:
        values, signed = look.values(each)
        note = each.title if each.class_specific else "the same for every class"
        cells.append(show.Cell(each.image, values, known_as(each.method), note, each.method, signed))
    across = math.ceil(len(cells) / math.ceil(len(cells) / _ACROSS))  # lines of equal length
    rows = [cells[start : start + across] for start in range(0, len(cells), across)]
    rule: Literal["each", "panel"] = "panel" if look.shared else "each"
    return show.sheet(rows, first.model, look.clip, _TILE, rule, alpha=look.opacity, mode=look.mode)


def _page(maps: Sequence[vt.Explanation], look: Look) -> str:
    first, shown = maps[0], [look.values(each) for each in maps]
    together = show.Scale.of([values for values, _ in shown], look.clip, _signed(shown)) if look.shared else None
    pictures = [(show.resized(first.image, _TILE), f"{first.name}, as the model sees it")]
    for each, (values, signed) in zip(maps, shown, strict=True):
        scale = together or show.Scale.of([values], look.clip, signed)
        drawn = show.overlay(show.resized(each.image, _TILE), values, scale, look.opacity, None, look.mode)
        what = known_as(each.method) if not each.class_specific else f"{known_as(each.method)}: {each.title}"
        pictures.append((drawn, f"{what}; {scale.caption()}"))
    said = f"{first.model} said {first.prediction.label} ({first.prediction.probability:.2f})."
    told = f"Opacity {look.opacity:g}" + ("; only what is above zero." if look.positive else ".")
    section = show.Section(first.name, told, pictures)
    return show.report(f"{first.name}, seen by {first.model}", said, [section], f"Vitreous {vt.__version__}")


def _signed(shown: Sequence[tuple[np.ndarray[Any, Any], bool | None]]) -> bool:
    return any(signed is not False and bool((values < 0).any()) for values, signed in shown)
