"""Spellings that someone types: what they mean and cost, what is wrong with them and where, and how they may go on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import vitreous as vt
from vitreous.errors import SpecError, VitreousError
from vitreous.registry import format_value
from vitreous.registry.defaults import EFFORT_LEVELS, display_name
from vitreous.web.schemas import Refused

__all__ = ["MOST_PASSES", "allowed", "completions", "looked_at", "passes", "understood"]

MOST_PASSES = 20_000
"""Forwards of one map, a backward counted as two: some minutes for a small model, and more than any default needs."""
_MOST_BYTES = 2**28  # of the maps that a method returns
_COUNTED = ("samples", "masks", "steps")  # parameters whose price is in the passes
_LARGEST, _LARGEST_FLOAT = 1024, 1e6
_WORDS = {"stats": ("world", "own", "noise"), "background": ("normal", "scenes")}
"""What parameters that may name files take here."""
_MOST_SHOWN = 40
_WHERE = re.compile(r"^(.*) at character (\d+): ", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][\w.:+-]*\Z")
_REST = re.compile(r"[\w.:+-]*")


def understood(spec: str | None, model: vt.VisionModel) -> vt.Method:
    """Return the method that is meant, a step of effort included; refuse what this server will not do."""
    if spec is None or spec in EFFORT_LEVELS:
        spec = vt.recommended_method(spec or EFFORT_LEVELS[0], model)
    how = vt.get_method(spec)
    allowed(how, model)
    return how


def passes(how: vt.Method, model: vt.VisionModel) -> float:
    """Return what a map costs: forwards, and twice the backwards."""
    return how.num_forwards(model) + 2 * how.cost[1]


def allowed(how: vt.Method, model: vt.VisionModel) -> None:
    """Refuse what would take hours or more memory than there is, and what reads files."""
    for part in how.components():
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            given = getattr(part, field.name)
            words = _WORDS.get(field.name, ())
            if words and given not in words:
                text = f"{part.info.name}: the explorer reads no files; {field.name} is {', '.join(words)}"
                raise Refused(422, text)
            _check_number(part.info.name, field.name, given)
    how.passes(model)
    price = passes(how, model)
    if not price <= MOST_PASSES:
        told = f"{display_name(how.spec):.60} would run the model {price:,.0f} times for one map"
        raise Refused(422, f"{told}, over {MOST_PASSES:,}; use the command line for that")
    height, width = model.preprocess.size if how.grid == "pixel" else model.grid()
    if 4 * how.num_maps(model) * height * width > _MOST_BYTES:
        raise Refused(422, f"{how.spec:.60} returns {how.num_maps(model):,} maps; use the command line for that")


def _check_number(name: str, parameter: str, given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return
    whole = isinstance(given, int)
    most = MOST_PASSES if parameter in _COUNTED else _LARGEST if whole or "sigma" in parameter else _LARGEST_FLOAT
    if not abs(given) <= most:
        raise Refused(422, f"{name}: {parameter}={given:g} is over {most:,.0f}; use the command line for that")


def looked_at(spec: str, model: vt.VisionModel) -> dict[str, Any]:
    """Return what a spelling means and costs on a model, or what is wrong with it and where."""
    try:
        how = understood(spec, model)
    except VitreousError as error:
        found = _WHERE.match(str(error)) if isinstance(error, SpecError) else None
        at = None if found is None else min(int(found[2]) - 1, len(spec))
        message = str(error) if found is None else found[1]
        return {"ok": False, "error": {"message": message, "at": at}}
    return {
        "ok": True,
        "spelling": how.spec,
        "title": display_name(how.spec),
        "forwards": how.num_forwards(model),
        "backwards": how.cost[1],
        "class_specific": how.class_specific,
        "signed": how.signed,
        "grid": how.grid,
    }


# -- how it may go on --------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Where a word is being typed: inside which call, after which key, and what was given before."""

    inside: str | None
    key: str | None
    given: tuple[str, ...]
    first: bool
    """Whether the call has no argument yet."""
    preset_of: str | None = None


def completions(text: str, cursor: int) -> list[dict[str, Any]]:
    """Return what may stand at the cursor, the likeliest first: names of methods, presets, parameters, values."""
    before = text[:cursor]
    found = _WORD.search(before)
    start = cursor if found is None else found.start()
    rest = _REST.match(text, cursor)
    end = cursor if rest is None or found is None else rest.end()
    place = _place(before[:start])
    if place is None:
        return []
    typed = before[start:].lower()
    offered = [(word, note) for word, note in _offered(place) if typed in word.lower() and word != text[start:end]]
    offered.sort(key=lambda pair: not pair[0].lower().startswith(typed))
    return [{"text": word, "start": start, "end": end, "note": note} for word, note in offered[:_MOST_SHOWN]]


def _place(before: str) -> _Place | None:
    """Read what stands before a word; ``None`` inside quotes, where nothing can be offered."""
    calls: list[tuple[str, list[str], list[int]]] = []  # name, keys given, how many arguments
    word, key, quote, closed = "", None, "", False
    for letter in before:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "(":
            calls.append((word.partition("@")[0], [], [0]))
            word, key = "", None
        elif letter == ")":
            if calls:
                calls.pop()
            word, closed = "", True
            continue
        elif letter == ",":
            if calls:
                calls[-1][2][0] += 1
            word, key = "", None
        elif letter == "=":
            key, word = word, ""
            if calls:
                calls[-1][1].append(key)
        elif letter.isspace():
            continue
        else:
            word += letter
        closed = False
    if quote or closed:
        return None
    preset_of = word[:-1] if word.endswith("@") else None
    if word and preset_of is None:
        return None
    if not calls:
        return _Place(None, None, (), True, preset_of)
    name, keys, count = calls[-1]
    return _Place(name, key, tuple(keys), count[0] == 0, preset_of)


def _offered(place: _Place) -> Iterator[tuple[str, str]]:
    infos = {info.name: info for info in vt.list_methods()}
    if place.preset_of is not None:
        info = _called(place.preset_of, infos.values())
        for name, values in ({} if info is None else info.presets).items():
            yield name, ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults"
        return
    info = None if place.inside is None else _called(place.inside, infos.values())
    if place.inside is not None and info is None:
        return
    takes = [] if info is None else [p for p in info.parameters if _methods(p.kind)]
    several = bool(takes) and takes[0].kind == tuple[vt.Method, ...]
    if place.key is not None:
        parameter = next((p for p in ([] if info is None else info.parameters) if p.name == place.key), None)
        if parameter is None:
            return
        if parameter in takes:
            yield from _names(infos.values())
        elif parameter.kind is bool:
            yield from (("true", ""), ("false", ""))
        elif parameter.default is not dataclasses.MISSING:
            yield _written(parameter.default), "default"
        return
    if info is None or (takes and (place.first or several)):
        if info is None:
            yield from ((step, "a step of effort") for step in EFFORT_LEVELS)
        yield from _names(infos.values())
    for parameter in () if info is None else info.parameters:
        if parameter not in takes and parameter.name not in place.given:
            yield f"{parameter.name}=", f"default {_written(parameter.default)}"


def _names(infos: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for info in infos:
        yield (f"{info.name}(" if info.is_combinator else info.name), f"{info.family}; {info.cost_text}"


def _called(name: str, infos: Iterable[Any]) -> Any:
    return next((info for info in infos if name in (info.name, *info.aliases)), None)


def _methods(kind: Any) -> bool:
    return kind in (vt.Method, tuple[vt.Method, ...])


def _written(default: Any) -> str:
    return "" if default is dataclasses.MISSING else format_value(default)
