"""The lines that make a map again: in Python, and on the command line.

What is on the screen as a file: a picture, a panel with text as text, the raw values, a page.
"""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import vitreous as vt
from vitreous import viz as show
from vitreous.html import Section, report
from vitreous.registry import check_choice
from vitreous.registry.defaults import display_name
from vitreous.web.images import Photo, scene_of
from vitreous.web.schemas import Question, Refused

__all__ = [
    "FORMATS",
    "Look",
    "file_name",
    "python",
    "shell",
    "why",
    "written",
]

_OPTIONS = {"labels": "--class-names", "prompts": "--prompt"}
"""Words of ``load`` that are called otherwise on the command line."""
_CHANGES = {
    "pairs": "world.pair({})",
    "shortcut": "world.betray({})",
    "moved": "world.betray({}, moved=True)",
    "difficult": "world.difficult({}, 0.5)",
    "bare": "world.remove_parts({}, whole_share=0.0)",
}


def python(questions: Sequence[Question], photos: Mapping[str, Photo], options: Mapping[str, Any]) -> str:
    """Return a few lines of Python; ``options`` are what the models were loaded with."""
    made, lines = ["import vitreous as vt"], []
    before: tuple[str, str] | None = None
    for some in _groups(questions):
        first = some[0]
        if before is None or before[0] != first.model:
            given = "".join(f", {name}={value!r}" for name, value in options.items())
            lines.append(f"view = vt.load({first.model!r}{given})")
        if before is None or before[1] != first.picture:
            found = scene_of(first.picture)
            if found is not None and "from vitreous import world" not in made:
                made.append("from vitreous import world")
                made.append("from vitreous.world.dataset import pictures")
            lines += [f"picture = {photos[first.picture].name!r}"] if found is None else _scene(*found)
        before = first.model, first.picture
        lines += _asked(some)
    return "\n".join([*made, "", *lines])


def _scene(kind: str, place: int) -> list[str]:
    start = place + (kind == "difficult")
    scene = f'world.World("test", 1, start={start}).batch()'
    changed = _CHANGES.get(kind, "{}").format(scene)
    return [f"(picture,) = pictures(world.render({changed}).images)"]


def _asked(some: Sequence[Question]) -> list[str]:
    first = some[0]
    how = [f"target={first.target}"] if first.target is not None else []
    how += [f"contrast={first.contrast}"] if first.contrast is not None else []
    how += [f"value={first.output!r}"] if first.output != "logit" else []
    how += [f"seed={first.seed}"] if first.seed else []
    rest = "".join(f", {each}" for each in how)
    methods = [each.method or "" for each in some]
    if len(methods) == 1:
        return [f"e = vt.explain(view, picture, {methods[0]!r}{rest})", "e.show()"]
    listed = ", ".join(map(repr, methods))
    return [f"found = vt.compare(view, picture, [{listed}]{rest})", "found.show()"]


def shell(questions: Sequence[Question], photos: Mapping[str, Photo], options: Mapping[str, Any]) -> str:
    """Return the same as commands, one a line."""
    lines = []
    for number, some in enumerate(_groups(questions), 1):
        first = some[0]
        before, place = _files(first.picture, photos[first.picture].name)
        lines += [each for each in before if each not in lines]
        words = ["vitreous", "compare", place, "--model", first.model]
        words += [word for name, value in options.items() for word in _option(name, value)]
        words += [word for each in some for word in ("--method", each.method or "")]
        words += ["--target", str(first.target)] if first.target is not None else []
        words += ["--contrast", str(first.contrast)] if first.contrast is not None else []
        words += ["--value", first.output] if first.output != "logit" else []
        words += ["--seed", str(first.seed)] if first.seed else []
        words += ["--out", f"maps-{number}.png" if len(_groups(questions)) > 1 else "maps.png"]
        lines.append(shlex.join(words))
    return "\n".join(lines)


def why(question: Question, photo: Photo, options: Mapping[str, Any]) -> str:
    """Return the command that writes the page of one picture."""
    lines, place = _files(question.picture, photo.name)
    words = ["vitreous", "why", place, "--model", question.model]
    words += [word for name, value in options.items() for word in _option(name, value)]
    words += ["--method", question.method or ""]
    words += ["--target", str(question.target)] if question.target is not None else []
    words += ["--seed", str(question.seed)] if question.seed else []
    return "\n".join([*lines, shlex.join(words)])


def _files(picture: str, name: str) -> tuple[list[str], str]:
    """Return the commands that a picture needs to be a file, and the file."""
    found = scene_of(picture)
    if found is None:
        return [], name
    kind, start = found
    several = kind == "difficult"
    many = ["--n", "3" if several else "1", "--start", str(start), "--kind", kind]
    render = shlex.join(["vitreous", "world", "render", "--out", picture, *many])
    return [render], f"{picture}/scene-{int(several):04d}.png"


def _option(name: str, value: Any) -> list[str]:
    flag = _OPTIONS.get(name, "--" + name.replace("_", "-"))
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    values = value if isinstance(value, list | tuple) else [value]
    return [word for each in values for word in (flag, str(each))]


def _groups(questions: Sequence[Question]) -> list[list[Question]]:
    """Return questions that differ in their method alone together, in the order in which they came."""
    groups: dict[Any, list[Question]] = {}
    for question in questions:
        key = question.model, question.picture, question.target, question.contrast, question.output, question.seed
        if question not in groups.setdefault(key, []):
            groups[key].append(question)
    return list(groups.values())


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
    arrays = [map_.map.numpy() for map_ in maps]
    buffer = io.BytesIO()
    if len({array.shape for array in arrays}) > 1:
        np.savez(buffer, *arrays)
        return buffer.getvalue(), "npz"
    np.save(buffer, arrays[0] if len(arrays) == 1 else np.stack(arrays))
    return buffer.getvalue(), "npy"


def _sheet(maps: Sequence[vt.Explanation], look: Look) -> show.Sheet:
    first = maps[0]
    said = f"said: {first.prediction.label} ({first.prediction.probability:.2f})"
    cells = [show.Cell(first.image, None, first.name, said)]
    for map_ in maps:
        values, signed = look.values(map_)
        note = map_.title if map_.class_specific else "the same for every class"
        cells.append(show.Cell(map_.image, values, display_name(map_.method), note, map_.method, signed))
    across = math.ceil(len(cells) / math.ceil(len(cells) / _ACROSS))  # lines of equal length
    rows = [cells[start : start + across] for start in range(0, len(cells), across)]
    rule: Literal["each", "panel"] = "panel" if look.shared else "each"
    return show.sheet(rows, first.model, look.clip, _TILE, rule, alpha=look.opacity, mode=look.mode)


def _page(maps: Sequence[vt.Explanation], look: Look) -> str:
    first, shown = maps[0], [look.values(map_) for map_ in maps]
    together = show.Scale.of([values for values, _ in shown], look.clip, _signed(shown)) if look.shared else None
    pictures = [(show.resized(first.image, _TILE), f"{first.name}, as the model sees it")]
    for map_, (values, signed) in zip(maps, shown, strict=True):
        scale = together or show.Scale.of([values], look.clip, signed)
        drawn = show.overlay(show.resized(map_.image, _TILE), values, scale, look.opacity, None, look.mode)
        what = display_name(map_.method) if not map_.class_specific else f"{display_name(map_.method)}: {map_.title}"
        pictures.append((drawn, f"{what}; {scale.caption()}"))
    said = f"{first.model} said {first.prediction.label} ({first.prediction.probability:.2f})."
    told = f"Opacity {look.opacity:g}" + ("; only what is above zero." if look.positive else ".")
    section = Section(first.name, told, pictures)
    return report(f"{first.name}, seen by {first.model}", said, [section], f"Vitreous {vt.__version__}")


def _signed(shown: Sequence[tuple[np.ndarray[Any, Any], bool | None]]) -> bool:
    return any(signed is not False and bool((values < 0).any()) for values, signed in shown)
