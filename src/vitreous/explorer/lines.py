"""The lines that make a map again: in Python, and on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.explorer.pictures import Photo, scene_of
from vitreous.explorer.wire import Question

__all__ = ["python", "shell", "why"]

_OPTIONS = {"labels": "--names", "prompts": "--prompt"}
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
                made.append("from vitreous.world.files import pictures")
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
    how += [f"against={first.against}"] if first.against is not None else []
    how += [f"value={first.value!r}"] if first.value != "logit" else []
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
        words += ["--against", str(first.against)] if first.against is not None else []
        words += ["--value", first.value] if first.value != "logit" else []
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
    for each in questions:
        key = each.model, each.picture, each.target, each.against, each.value, each.seed
        if each not in groups.setdefault(key, []):
            groups[key].append(each)
    return list(groups.values())
