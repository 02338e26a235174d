"""The composition language: ``name``, ``name@preset``, ``name(argument, key=value)``, nested.

    spelling = name ["@" preset] ["(" [argument {"," argument}] ")"]
    argument = [key "="] value
    value    = number | "text" | true | false | none | word | spelling

A word is a method where the parameter takes a method, and plain text elsewhere. Where the first parameter takes several
methods, all arguments without a key are such.

Several spellings in one text.
"""

from __future__ import annotations

import math
import re
import types
from dataclasses import dataclass
from typing import Any, Protocol, Union, get_args, get_origin

from vitreous.errors import SpecError, nearest, one_line
from vitreous.registry.parameters import Parameter
from vitreous.registry.registry import Registry

__all__ = [
    "Reader",
    "Spelled",
    "split",
    "written",
]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))"
    r"|(?P<word>[A-Za-z_][\w.:-]*(?:\+\+)?)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>[@(),=]))"
)
_WORD = re.compile(r"[A-Za-z_][\w.:-]*")  # text that a spelling may hold without quotes
_CONSTANTS = {"true": True, "false": False, "none": None}
_MOST_NESTED = 20
_LONGEST_NUMBER = 40


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class _Call:
    name: _Token
    preset: _Token | None
    args: tuple[tuple[_Token | None, Any, int], ...]
    called: bool


class Spelled(Protocol):
    """What is registered under a name."""

    @property
    def name(self) -> str: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    @property
    def presets(self) -> Any: ...

    @property
    def factory(self) -> Any: ...

    @property
    def example(self) -> str: ...


def written(value: Any) -> str:
    """Write a value such that a spelling reads it again; text that is no plain word gets quotes."""
    if value is not None and not isinstance(value, str | int | float):
        value = str(value)  # an object names itself
    if isinstance(value, str):
        plain = _WORD.fullmatch(value) and value.lower() not in _CONSTANTS
        return value if plain else f"'{value}'" if '"' in value else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def understood(spec: Any, thing: type, shelf: Registry[Any]) -> Any:
    """Return what a spelling means; a ``thing`` is returned as it is."""
    if isinstance(spec, thing):
        return spec
    if not isinstance(spec, str):
        name = f"a {shelf.noun} is a spelling or a {thing.__name__}"
        raise SpecError(f"{name}, got {type(spec).__name__}")
    return Reader(shelf.meant(spec.strip()) or spec, shelf, thing).read()


class Reader:
    """Reads one spelling of what stands on a shelf; every complaint shows where.

    Parameters of the type ``thing`` take a spelling themselves, those of the type ``tuple[thing, ...]`` several.
    """

    def __init__(self, text: str, shelf: Registry[Any], thing: type) -> None:
        self.text, self.shelf, self.thing, self.noun = text, shelf, thing, shelf.noun
        self.tokens = self._tokens()
        self.next = 0

    def read(self) -> Any:
        call = self._call(0)
        if self._peek().kind != "end":
            raise self._error(self._peek(), "nothing more was expected")
        return self._build(call)

    # -- text to calls ---------------------------------------------------------------------------------

    def _tokens(self) -> list[_Token]:
        tokens, at = [], 0
        end = len(self.text.rstrip())
        while at < end:
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                raise self._error(_Token("odd", self.text[at], at), "this cannot be read")
            kind = match.lastgroup or ""
            tokens.append(_Token(kind, match.group(kind), match.start(kind)))
            at = match.end()
        return [*tokens, _Token("end", "", end)]

    def _call(self, depth: int) -> _Call:
        if depth > _MOST_NESTED:
            raise self._error(self._peek(), f"nested more than {_MOST_NESTED} deep")
        name = self._take("word", f"a {self.noun} name")
        preset = None
        if self._skip("@"):
            preset = self._take("word", "a preset name")
        args: list[tuple[_Token | None, Any, int]] = []
        called = self._skip("(")
        if called and not self._skip(")"):
            while True:
                args.append(self._argument(depth))
                if self._skip(")"):
                    break
                if not self._skip(","):
                    raise self._error(self._peek(), "expected ',' or ')'")
        return _Call(name, preset, tuple(args), called)

    def _argument(self, depth: int) -> tuple[_Token | None, Any, int]:
        key = None
        if self._peek().kind == "word" and self.tokens[self.next + 1].text == "=":
            key = self._take("word", "a name")
            self._skip("=")
        token = self._peek()
        if token.kind == "number":
            self.next += 1
            number = float(token.text) if len(token.text) <= _LONGEST_NUMBER else math.inf
            if not math.isfinite(number):
                raise self._error(token, "this number is too large")
            whole = re.fullmatch(r"[+-]?[0-9]+", token.text)
            return key, int(token.text) if whole else number, token.at
        if token.kind == "text":
            self.next += 1
            return key, token.text[1:-1], token.at
        if token.kind == "word":
            return key, self._call(depth + 1), token.at
        raise self._error(token, "expected a value")

    def _peek(self) -> _Token:
        return self.tokens[self.next]

    def _skip(self, sign: str) -> bool:
        token = self._peek()
        if token.kind == "sign" and token.text == sign:
            self.next += 1
            return True
        return False

    def _take(self, kind: str, what: str) -> _Token:
        token = self._peek()
        if token.kind != kind:
            raise self._error(token, f"expected {what}")
        self.next += 1
        return token

    def _error(self, token: _Token, complaint: str) -> SpecError:
        before, after = self.text[: token.at], self.text[token.at : token.at + 60] or "(end)"
        return SpecError(one_line(f"{complaint} at character {token.at + 1}: {before}▸{after}"))

    # -- calls to methods ------------------------------------------------------------------------------

    def _build(self, call: _Call) -> Any:
        bare = not call.called and call.preset is None
        meant = self.shelf.meant(call.name.text) if bare else None
        if meant is not None and "(" in meant:  # a composition here, with a name of its own elsewhere
            return Reader(meant, self.shelf, self.thing).read()
        try:
            info: Spelled = self.shelf.find(call.name.text)
        except SpecError as error:
            raise self._error(call.name, str(error)) from None
        values = self._preset(info, call.preset)
        parameters = info.parameters
        several = bool(parameters) and parameters[0].kind == self._several
        for place, (key, value, at) in enumerate(call.args):
            token = key or _Token("value", "", at)
            if several and key is None:
                values[parameters[0].name] = (
                    *values.get(parameters[0].name, ()),
                    self._one_of_several(info, value, at),
                )
                continue
            if key is None and place >= len(parameters):
                raise self._error(token, f"{info.name} takes {len(parameters)} arguments")
            names = [p.name for p in parameters]
            if key is not None and key.text not in names:
                known = ", ".join(names) or "none"
                problem = f"{info.name} has no parameter {key.text!r} (it has: {known}){nearest(key.text, names)}"
                raise self._error(token, problem)
            parameter = parameters[names.index(key.text) if key else place]
            if parameter.name in values and not (call.preset and key):
                raise self._error(token, f"{parameter.name} is given twice")
            values[parameter.name] = self._value(info, parameter, value, at)
        for parameter in parameters:
            if parameter.required and parameter.name not in values:
                raise self._error(call.name, f"{info.name} needs {parameter.name}{info.example}")
        try:
            return info.factory(**values)
        except SpecError as error:
            raise self._error(call.name, str(error)) from None

    @property
    def _several(self) -> Any:
        return tuple[self.thing, ...]  # type: ignore[name-defined]

    def _preset(self, info: Any, preset: _Token | None) -> dict[str, Any]:
        if preset is None:
            return {}
        if preset.text not in info.presets:
            known = ", ".join(info.presets) or "none"
            raise self._error(preset, f"{info.name} has no preset {preset.text!r} (it has: {known})")
        return dict(info.presets[preset.text])

    def _one_of_several(self, info: Any, value: Any, at: int) -> Any:
        if not isinstance(value, _Call):
            raise self._error(_Token("value", "", at), f"{info.parameters[0].name} of {info.name} takes {self.noun}s")
        return self._build(value)

    def _value(self, info: Any, parameter: Parameter, value: Any, at: int) -> Any:
        kinds = _kinds(parameter.kind)
        if parameter.kind == self._several:
            return (self._one_of_several(info, value, at),)
        if isinstance(value, _Call):
            if self.thing in kinds:
                return self._build(value)
            if value.called or value.preset:
                raise self._error(value.name, f"{parameter.name} of {info.name} is not a {self.noun}")
            word = value.name.text
            value = _CONSTANTS.get(word.lower(), word)
        if isinstance(value, int) and not isinstance(value, bool) and int not in kinds and float in kinds:
            value = float(value)
        if type(value) not in kinds:
            wanted = " or ".join("none" if k is type(None) else k.__name__.lower() for k in kinds)
            raise self._error(_Token("value", "", at), f"{parameter.name} of {info.name} takes {wanted}")
        return value


def _kinds(kind: Any) -> tuple[type, ...]:
    """Return the plain types a parameter accepts."""
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(get_args(kind))
    return (kind,)


def split(specs: str) -> list[str]:
    """Cut ``a,b(c, d),e`` at the commas that are not inside brackets."""
    parts, depth, current = [], 0, ""
    for letter in specs:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += letter
    parts.append(current.strip())
    return [part for part in parts if part]
