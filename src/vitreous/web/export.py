"""Maps as files, as the page draws them, and as the lines that make them again in Python and on the command line."""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

import vitreous as vt
from vitreous import viz
from vitreous.html import Section, report
from vitreous.registry.defaults import display_name
from vitreous.web.schemas import Array, CommandRequest, Question, Rendering, attributes
from vitreous.web.session import SCENES, Session, scene_of

MEDIA_TYPES = {"png": "image/png", "svg": "image/svg+xml", "html": "text/html"}
_OPTIONS = {"prompts": "--prompt"}
"""Words of ``load`` that are called otherwise on the command line."""
_TILE = 360
_COLUMNS = 4

# -- the lines that make a map again -------------------------------------------------------------------


def write_commands(session: Session, request: CommandRequest) -> dict[str, str]:
    """Return the lines of Python, and the commands, that make some maps again."""
    questions = [session.resolve(question) for question in request.questions]
    return {"python": _python_code(session, questions), "shell": _shell_commands(session, questions)}


def _python_code(session: Session, questions: Sequence[Question]) -> str:
    imports, lines = ["import vitreous as vt"], []
    model = picture = None
    for group in _groups(questions):
        first = group[0]
        if model != first.model:
            lines.append(f"model = vt.load({first.model!r}{_arguments(session.load_options)})")
        if (model, picture) != (first.model, first.picture):
            scene = scene_of(first.picture)
            if scene is None:
                lines.append(f"image = {session.photo(first.picture).name!r}")
            else:
                kind, start = scene
                imports = [imports[0], "from vitreous import world", "from vitreous.world.dataset import to_images"]
                lines.append(f"(image,) = to_images(world.render({SCENES[kind].code(start)}).images)")
        model, picture = first.model, first.picture
        arguments = _arguments(_settings(first, "target", "contrast", "output", "seed"))
        methods = [question.method for question in group]
        if len(methods) == 1:
            lines += [f"explanation = vt.explain(model, image, {methods[0]!r}{arguments})", "explanation.show()"]
        else:
            lines += [f"comparison = vt.compare(model, image, {methods!r}{arguments})", "comparison.show()"]
    return "\n".join([*imports, "", *lines])


def _arguments(options: Mapping[str, Any]) -> str:
    return "".join(f", {name}={value!r}" for name, value in options.items())


def _shell_commands(session: Session, questions: Sequence[Question]) -> str:
    lines, groups = [], _groups(questions)
    for number, group in enumerate(groups, 1):
        render, start = _command_start(session, group[0], "compare")
        lines += [line for line in render if line not in lines]
        methods = _flags({"method": [question.method for question in group]})
        settings = _flags(_settings(group[0], "target", "contrast", "output", "seed"))
        out = f"maps-{number}.png" if len(groups) > 1 else "maps.png"
        lines.append(shlex.join([*start, *methods, *settings, "--out", out]))
    return "\n".join(lines)


def why_command(session: Session, question: Question) -> str:
    """Return the command that writes the page of one image."""
    lines, start = _command_start(session, question, "why")
    settings = {"method": question.method, **_settings(question, "target", "seed")}
    return "\n".join([*lines, shlex.join([*start, *_flags(settings)])])


def _groups(questions: Iterable[Question]) -> list[list[Question]]:
    """Return questions that differ in their method alone together, in the order in which they came."""
    groups: dict[Question, list[Question]] = {}
    for question in dict.fromkeys(questions):
        groups.setdefault(question.model_copy(update={"method": None}), []).append(question)
    return list(groups.values())


def _settings(question: Question, *names: str) -> dict[str, Any]:
    """Return the named fields that are not what is usual."""
    usual = {name: (None, Question.model_fields[name].default) for name in names}
    return {name: value for name, value in attributes(question, *names).items() if value not in usual[name]}


def _command_start(session: Session, question: Question, command: str) -> tuple[list[str], list[str]]:
    """Return the commands that an image needs to be a file, and how a command about this file and its model begins."""
    render, file = [], session.photo(question.picture).name
    scene = scene_of(question.picture)
    if scene is not None:
        kind, start = scene
        index = SCENES[kind].offset
        options = _flags({"out": question.picture, "n": 3 if index else 1, "start": start, "kind": kind})
        render = [shlex.join(["vitreous", "world", "render", *options])]
        file = f"{question.picture}/scene-{index:04d}.png"
    return render, ["vitreous", command, file, *_flags({"model": question.model, **session.load_options})]


def _flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as the command line has them; a list is repeated."""
    words = []
    for name, value in options.items():
        flag = _OPTIONS.get(name, "--" + name.replace("_", "-"))
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            items = value if isinstance(value, list | tuple) else [value]
            words += [word for item in items for word in (flag, str(item))]
    return words


# -- files ---------------------------------------------------------------------------------------------


def file_name(maps: Sequence[vt.Explanation], ending: str) -> str:
    """Return a name that a header can hold, whatever the image is called."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", maps[0].name).strip("-.")[:60]
    return f"vitreous-{name or 'maps'}.{ending}"


def encode_maps(form: str, maps: Sequence[vt.Explanation], look: Rendering) -> tuple[bytes, str]:
    """Return the content of a file of these maps, and how its name ends."""
    if form == "html":
        return _page(maps, look).encode(), form
    buffer = io.BytesIO()
    if form != "npy":
        viz.encoded(_sheet(maps, look), f"maps.{form}")(buffer)
        return buffer.getvalue(), form
    arrays = [e.map.numpy() for e in maps]
    if len({array.shape for array in arrays}) > 1:
        np.savez(buffer, *arrays)
        return buffer.getvalue(), "npz"
    np.save(buffer, arrays[0] if len(arrays) == 1 else np.stack(arrays))
    return buffer.getvalue(), form


def _values(e: vt.Explanation, look: Rendering) -> tuple[Array, bool | None]:
    """Return a map as it is drawn, and whether its sign means anything."""
    values = e.map.numpy()
    return (np.maximum(values, 0), False) if look.positive else (values, e.signed)


def _mode(look: Rendering) -> Literal["bilinear", "nearest"]:
    return "bilinear" if look.smooth else "nearest"


def _sheet(maps: Sequence[vt.Explanation], look: Rendering) -> viz.Sheet:
    first = maps[0]
    prediction = f"said: {first.prediction.label} ({first.prediction.probability:.2f})"
    cells = [viz.Cell(first.image, None, first.name, prediction)]
    for e in maps:
        values, signed = _values(e, look)
        note = e.title if e.class_specific else "the same for every class"
        cells.append(viz.Cell(e.image, values, display_name(e.method), note, e.method, signed))
    columns = math.ceil(len(cells) / math.ceil(len(cells) / _COLUMNS))  # rows of equal length
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    rule: Literal["each", "panel"] = "panel" if look.shared else "each"
    return viz.sheet(rows, first.model, look.clip, _TILE, rule, alpha=look.opacity, mode=_mode(look))


def _page(maps: Sequence[vt.Explanation], look: Rendering) -> str:
    first, pairs = maps[0], [_values(e, look) for e in maps]
    is_signed = any(signed is not False and bool((values < 0).any()) for values, signed in pairs)
    shared = viz.Scale.of([values for values, _ in pairs], look.clip, is_signed) if look.shared else None
    images = [(viz.resized(first.image, _TILE), f"{first.name}, as the model sees it")]
    for e, (values, signed) in zip(maps, pairs, strict=True):
        scale = shared or viz.Scale.of([values], look.clip, signed)
        overlay = viz.overlay(viz.resized(e.image, _TILE), values, scale, look.opacity, None, _mode(look))
        name = display_name(e.method) if not e.class_specific else f"{display_name(e.method)}: {e.title}"
        images.append((overlay, f"{name}; {scale.caption()}"))
    lead = f"{first.model} said {first.prediction.label} ({first.prediction.probability:.2f})."
    text = f"Opacity {look.opacity:g}" + ("; only what is above zero." if look.positive else ".")
    section = Section(first.name, text, images)
    return report(f"{first.name}, seen by {first.model}", lead, [section], f"Vitreous {vt.__version__}")
