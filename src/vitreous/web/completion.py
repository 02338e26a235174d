"""Which models, methods and classes there are; what a method spec means and costs, and how it may go on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import vitreous as vt
from vitreous import viz
from vitreous.errors import SpecError, VitreousError
from vitreous.methods.base import refuse_unfit  # what explain would refuse is known before it is asked for
from vitreous.registry import format_value
from vitreous.registry.defaults import EFFORT_LEVELS, display_name
from vitreous.registry.spec import tokenize
from vitreous.web import Refused
from vitreous.web.schemas import attributes

MOST_PASSES = 20_000
"""Forwards of one map, a backward counted as two: some minutes for a small model, and more than any default needs."""
_MOST_BYTES = 2**28  # of the maps that a method returns
_COUNTS = ("samples", "masks", "steps")  # parameters whose price is in the passes
_LARGEST, _LARGEST_FLOAT = 1024, 1e6
_CHOICES = {"stats": ("world", "own", "noise"), "background": ("normal", "scenes")}
"""What parameters that may name files take here."""
_ELSEWHERE = "use the command line for that"
_MOST_CLASSES, _MOST_COMPLETIONS = 50, 40
_DEFAULT_METHODS = ("generic", "gradcam", "skipplus(decompx)")
"""What stands beside the quick level when the page opens."""
_POSITION = re.compile(r"^(.*) at character (\d+): ", re.DOTALL)
_WORD_BEFORE, _WORD_AFTER = re.compile(r"[A-Za-z_][\w.:+-]*\Z"), re.compile(r"[\w.:+-]*")

# -- models, methods, classes --------------------------------------------------------------------------


def describe_models(models: Mapping[str, vt.VisionModel]) -> dict[str, Any]:
    """Return what the page knows about the models and methods when it opens."""
    return {
        "version": vt.__version__,
        "models": [_describe_model(name, model) for name, model in models.items()],
        "methods": list_methods(next(iter(models.values()))),
        "efforts": [
            {"name": level, "spec": {name: vt.recommended_method(level, model) for name, model in models.items()}}
            for level in EFFORT_LEVELS
        ],
        "colours": {"signed": viz.DIVERGING.tolist(), "unsigned": viz.SEQUENTIAL.tolist()},
    }


def _describe_model(name: str, model: vt.VisionModel) -> dict[str, Any]:
    methods = [spec for spec in _DEFAULT_METHODS if _refusal(vt.get_method(spec), model) is None]
    description = attributes(model, "depth", "attention")
    return {"name": name, "grid": model.grid(), "default_methods": [EFFORT_LEVELS[0], *methods], **description}


def list_methods(model: vt.VisionModel) -> list[dict[str, Any]]:
    """Return every method with what it costs on this model, or why it means nothing there."""
    return [_describe_method(info, model) for info in vt.list_methods()]


def _describe_method(info: Any, model: vt.VisionModel) -> dict[str, Any]:
    entry = attributes(info, "name", "family", "summary", "cost_text", "is_combinator", "aliases")
    if info.is_combinator:
        return entry
    method = info.factory()
    entry |= attributes(method, "class_specific", "grid")
    if (reason := _refusal(method, model)) is not None:
        return entry | {"refused": reason}
    return entry | {"forwards": method.num_forwards(model), "backwards": method.cost[1]}


def _refusal(method: vt.Method, model: vt.VisionModel) -> str | None:
    """Return why a method means nothing on a model, where that is known before it runs."""
    for component in method.components():
        if component.models == "ViT" and model.attention != "global":
            return f"{component.info.name} is not for {model.name}, whose attention does not reach everywhere"
    try:
        refuse_unfit([method], model)
        method.passes(model)
    except VitreousError as error:
        return str(error)
    return None


def list_classes(model: vt.VisionModel, query: str) -> list[dict[str, Any]]:
    """Return the classes that fit a query best: by number, by how a name begins, by what it holds."""
    words, names = query.casefold().split(), model.class_names or ()
    ranked = []
    for index in range(max(model.num_classes, 2)):
        label = model.label(index)
        name = (names[index] if index < len(names) else label).casefold()
        if query.strip() == str(index):
            ranked.append((0, index, label))
        elif all(word in name for word in words):
            is_prefix, begins_words = name.startswith(" ".join(words)), all(f" {word}" in f" {name}" for word in words)
            ranked.append((1 if is_prefix else 2 if begins_words else 3, index, label))
    return [{"index": index, "label": label} for _, index, label in sorted(ranked)[:_MOST_CLASSES]]


# -- what a spec means ---------------------------------------------------------------------------------


def parse_method(spec: str | None, model: vt.VisionModel) -> vt.Method:
    """Return the method of a spec, a level of effort included; refuse what this server will not do."""
    if spec is None or spec in EFFORT_LEVELS:
        spec = vt.recommended_method(spec or EFFORT_LEVELS[0], model)
    method = vt.get_method(spec)
    check_allowed(method, model)
    return method


def num_passes(method: vt.Method, model: vt.VisionModel) -> float:
    """Return what a map costs: forwards, and twice the backwards."""
    return method.num_forwards(model) + 2 * method.cost[1]


def check_allowed(method: vt.Method, model: vt.VisionModel) -> None:
    """Refuse what would take hours or more memory than there is, and what reads files."""
    for component in method.components():
        for field in dataclasses.fields(component):  # type: ignore[arg-type]
            _check_parameter(component.info.name, field.name, getattr(component, field.name))
    method.passes(model)
    passes, num_maps = num_passes(method, model), method.num_maps(model)
    if not passes <= MOST_PASSES:
        text = f"{display_name(method.spec):.60} would run the model {passes:,.0f} times for one map"
        raise Refused(422, f"{text}, over {MOST_PASSES:,}; {_ELSEWHERE}")
    height, width = model.preprocess.size if method.grid == "pixel" else model.grid()
    if 4 * num_maps * height * width > _MOST_BYTES:
        raise Refused(422, f"{method.spec:.60} returns {num_maps:,} maps; {_ELSEWHERE}")


def _check_parameter(method: str, name: str, value: Any) -> None:
    choices = _CHOICES.get(name, ())
    if choices and value not in choices:
        raise Refused(422, f"{method}: the explorer reads no files; {name} is {', '.join(choices)}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        most = _LARGEST if isinstance(value, int) or "sigma" in name else _LARGEST_FLOAT
        most = MOST_PASSES if name in _COUNTS else most
        if not abs(value) <= most:
            raise Refused(422, f"{method}: {name}={value:g} is over {most:,.0f}; {_ELSEWHERE}")


def describe_spec(spec: str, model: vt.VisionModel) -> dict[str, Any]:
    """Return what a spec means and costs on a model, or what is wrong with it and where."""
    try:
        method = parse_method(spec, model)
    except VitreousError as error:
        match = _POSITION.match(str(error)) if isinstance(error, SpecError) else None
        if match is None:
            return {"ok": False, "error": {"message": str(error), "at": None}}
        return {"ok": False, "error": {"message": match[1], "at": min(int(match[2]) - 1, len(spec))}}
    cost = {"forwards": method.num_forwards(model), "backwards": method.cost[1]}
    return {"ok": True, **attributes(method, "spec", "class_specific"), **cost}


# -- how a spec may go on ------------------------------------------------------------------------------


class _Call(NamedTuple):
    """A call that is being typed: its method, the keys that it has, and how many arguments are complete."""

    name: str
    keys: Sequence[str] = ()
    num_arguments: int = 0


def complete(text: str, cursor: int) -> list[dict[str, Any]]:
    """Return what may stand at the cursor, the likeliest first: names of methods, presets, parameters, values."""
    before = text[:cursor]
    match = _WORD_BEFORE.search(before)
    start = cursor if match is None else match.start()
    after = match and _WORD_AFTER.match(text, cursor)
    end = after.end() if after else cursor
    word = before[start:].lower()
    offers = [offer for offer in _offers(before[:start]) if word in offer[0].lower() and offer[0] != text[start:end]]
    offers.sort(key=lambda offer: not offer[0].lower().startswith(word))
    return [{"text": name, "start": start, "end": end, "note": note} for name, note in offers[:_MOST_COMPLETIONS]]


def _offers(before: str) -> Iterator[tuple[str, str]]:
    """Give the words that may follow, each with a note; none inside quotes, and where something is wrong already."""
    try:
        tokens = [token.text for token in tokenize(before)[:-1]]
    except SpecError:
        return
    infos = vt.list_methods()
    if not tokens:
        yield from [*((level, "a level of effort") for level in EFFORT_LEVELS), *_names(infos)]
        return
    call, last = _open_call(tokens), tokens[-1]
    info = _find(["", *tokens][-2] if last == "@" else call.name, infos)
    if info is not None and last == "@":
        for name, values in info.presets.items():
            yield name, ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults"
    elif info is not None and last in ("(", ",", "="):
        yield from (_values if last == "=" else _arguments)(info, call, infos)


def _open_call(tokens: Sequence[str]) -> _Call:
    """Return the innermost call that is not closed; one without a name outside of all."""
    calls = [_Call("")]
    for index, token in enumerate(tokens):
        previous, call = tokens[index - 1] if index else "", calls[-1]
        if token == "(":
            calls.append(_Call(tokens[index - 3] if "@" in tokens[max(0, index - 2) : index] else previous))
        elif token == ")" and len(calls) > 1:
            calls.pop()
        elif token == ",":
            calls[-1] = call._replace(num_arguments=call.num_arguments + 1)
        elif token == "=":
            calls[-1] = call._replace(keys=(*call.keys, previous))
    return calls[-1]


def _values(info: Any, call: _Call, infos: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Give the values of the parameter whose key was typed."""
    parameter = next((parameter for parameter in info.parameters if parameter.name == call.keys[-1]), None)
    if parameter is None:
        return
    if _takes_methods(parameter):
        yield from _names(infos)
    elif parameter.kind is bool:
        yield from (("true", ""), ("false", ""))
    elif not parameter.required:
        yield format_value(parameter.default), "default"


def _arguments(info: Any, call: _Call, infos: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Give the methods that a call may take next, and the parameters that it does not have yet."""
    bases = [parameter for parameter in info.parameters if _takes_methods(parameter)]
    if bases and (not call.num_arguments or bases[0].kind == tuple[vt.Method, ...]):
        yield from _names(infos)
    for parameter in info.parameters:
        if parameter not in bases and parameter.name not in call.keys:
            default = "" if parameter.required else format_value(parameter.default)
            yield f"{parameter.name}=", f"default {default}"


def _names(infos: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for info in infos:
        yield (f"{info.name}(" if info.is_combinator else info.name), f"{info.family}; {info.cost_text}"


def _find(name: str, infos: Iterable[Any]) -> Any:
    return next((info for info in infos if name in (info.name, *info.aliases)), None)


def _takes_methods(parameter: Any) -> bool:
    return parameter.kind in (vt.Method, tuple[vt.Method, ...])
