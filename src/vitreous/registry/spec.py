"""The composition language: ``name``, ``name@preset``, ``name(argument, key=value)``, nested.

    spec     = name ["@" preset] ["(" [argument {"," argument}] ")"]
    argument = [key "="] value
    value    = number | "text" | true | false | none | word | spec

A word is a method where the parameter takes a method, and text elsewhere. Where the first parameter takes several
methods, all arguments without a key are such.
"""

from __future__ import annotations

import math
import re
import types
from typing import Any, NamedTuple, Union, get_args, get_origin

from vitreous.errors import SpecError, nearest, one_line
from vitreous.registry.registry import Parameter, Registry

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))"
    r"|(?P<word>[A-Za-z_][\w.:-]*(?:\+\+)?)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>[@(),=]))"
)
_WORD = re.compile(r"[A-Za-z_][\w.:-]*")  # text that a spec may hold without quotes
_CONSTANTS = {"true": True, "false": False, "none": None}
_MAX_DEPTH = 20
_MAX_DIGITS = 40


def format_value(value: Any) -> str:
    """Write a value such that a spec reads it again; text that is no plain word gets quotes."""
    if value is not None and not isinstance(value, str | int | float):
        value = str(value)  # an object names itself
    if isinstance(value, str):
        needs_no_quotes = _WORD.fullmatch(value) and value.lower() not in _CONSTANTS
        return value if needs_no_quotes else f"'{value}'" if '"' in value else f'"{value}"'
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def split_specs(text: str) -> list[str]:
    """Cut ``a,b(c, d),e`` at the commas that are not inside brackets."""
    specs, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            specs.append("")
        else:
            specs[-1] += letter
    return [spec.strip() for spec in specs if spec.strip()]


def parse_spec(spec: Any, base: type, registry: Registry[Any]) -> Any:
    """Return the object that a spec describes; an instance of ``base`` is returned as it is."""
    if isinstance(spec, base):
        return spec
    if not isinstance(spec, str):
        raise SpecError(f"a {registry.noun} is a spec or a {base.__name__}, got {type(spec).__name__}")
    return _Parser(registry.resolve(spec.strip()) or spec, base, registry).parse()


class Token(NamedTuple):
    """A number, a word, a quoted text, a sign, or the end."""

    kind: str
    text: str
    at: int


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a spec, which need not be complete; the last one is the end."""
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _error(text, len(text) - len(text[at:].lstrip()), "this cannot be read")
        kind = match.lastgroup or ""
        tokens.append(Token(kind, match.group(kind), match.start(kind)))
        at = match.end()
    return [*tokens, Token("end", "", end)]


def _error(text: str, at: int, complaint: str) -> SpecError:
    before, after = text[:at], text[at : at + 60] or "(end)"
    return SpecError(one_line(f"{complaint} at character {at + 1}: {before}▸{after}"))


class _Call(NamedTuple):
    name: Token
    preset: Token | None
    args: list[tuple[Token | None, Any, Token]]
    """Key, value, and the token with which the value begins."""
    has_brackets: bool


class _Parser:
    """Reads one spec; every complaint shows where.

    Parameters of the type ``base`` take a spec themselves, those of the type ``tuple[base, ...]`` several.
    """

    def __init__(self, text: str, base: type, registry: Registry[Any]) -> None:
        self.text, self.base, self.registry, self.noun = text, base, registry, registry.noun
        self.several: Any = tuple[base, ...]  # type: ignore[valid-type]
        self.tokens, self.next = tokenize(text), 0

    def parse(self) -> Any:
        call = self._call(0)
        if self._peek().kind != "end":
            raise self._error(self._peek().at, "nothing more was expected")
        return self._build(call)

    # -- text to calls ---------------------------------------------------------------------------------

    def _call(self, depth: int) -> _Call:
        if depth > _MAX_DEPTH:
            raise self._error(self._peek().at, f"nested more than {_MAX_DEPTH} deep")
        name = self._take("word", f"a {self.noun} name")
        preset = self._take("word", "a preset name") if self._skip("@") else None
        args: list[tuple[Token | None, Any, Token]] = []
        has_brackets = self._skip("(")
        if has_brackets and not self._skip(")"):
            args.append(self._argument(depth))
            while not self._skip(")"):
                if not self._skip(","):
                    raise self._error(self._peek().at, "expected ',' or ')'")
                args.append(self._argument(depth))
        return _Call(name, preset, args, has_brackets)

    def _argument(self, depth: int) -> tuple[Token | None, Any, Token]:
        key = None
        if self._peek().kind == "word" and self.tokens[self.next + 1].text == "=":
            key = self._take("word", "a name")
            self._skip("=")
        token = self._peek()
        if token.kind == "word":
            return key, self._call(depth + 1), token
        if token.kind not in ("number", "text"):
            raise self._error(token.at, "expected a value")
        self.next += 1
        return key, token.text[1:-1] if token.kind == "text" else self._number(token), token

    def _number(self, token: Token) -> int | float:
        number = float(token.text) if len(token.text) <= _MAX_DIGITS else math.inf
        if not math.isfinite(number):
            raise self._error(token.at, "this number is too large")
        return int(token.text) if re.fullmatch(r"[+-]?[0-9]+", token.text) else number

    def _peek(self) -> Token:
        return self.tokens[self.next]

    def _skip(self, sign: str) -> bool:
        is_next = self._peek().kind == "sign" and self._peek().text == sign
        self.next += is_next
        return is_next

    def _take(self, kind: str, what: str) -> Token:
        token = self._peek()
        if token.kind != kind:
            raise self._error(token.at, f"expected {what}")
        self.next += 1
        return token

    def _error(self, at: int, complaint: str) -> SpecError:
        return _error(self.text, at, complaint)

    # -- calls to objects ------------------------------------------------------------------------------

    def _build(self, call: _Call) -> Any:
        if not call.has_brackets and call.preset is None:
            spec = self.registry.resolve(call.name.text)
            if spec is not None and "(" in spec:  # a composition here, with a name of its own elsewhere
                return _Parser(spec, self.base, self.registry).parse()
        try:
            info = self.registry.find(call.name.text)
        except SpecError as error:
            raise self._error(call.name.at, str(error)) from None
        values = self._values(info, call)
        for parameter in info.parameters:
            if parameter.required and parameter.name not in values:
                raise self._error(call.name.at, f"{info.name} needs {parameter.name}{info.example}")
        try:
            return info.factory(**values)
        except SpecError as error:
            raise self._error(call.name.at, str(error)) from None

    def _values(self, info: Any, call: _Call) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if call.preset is not None:
            if call.preset.text not in info.presets:
                has = f"(it has: {', '.join(info.presets) or 'none'})"
                raise self._error(call.preset.at, f"{info.name} has no preset {call.preset.text!r} {has}")
            values |= info.presets[call.preset.text]
        for index, (key, value, token) in enumerate(call.args):
            parameter = self._parameter(info, index, key, token)
            converted = self._convert(info, parameter, value, token)
            if parameter.kind == self.several and not (key and parameter.name in values):
                converted = (*values.get(parameter.name, ()), converted)
            elif parameter.name in values and not (call.preset and key):
                raise self._error((key or token).at, f"{parameter.name} is given twice")
            values[parameter.name] = converted
        return values

    def _parameter(self, info: Any, index: int, key: Token | None, token: Token) -> Parameter:
        """Return the parameter that an argument is for."""
        parameters: dict[str, Parameter] = {parameter.name: parameter for parameter in info.parameters}
        if key is not None:
            if key.text in parameters:
                return parameters[key.text]
            has = f"(it has: {', '.join(parameters) or 'none'}){nearest(key.text, parameters)}"
            raise self._error(key.at, f"{info.name} has no parameter {key.text!r} {has}")
        positional = list(parameters.values())
        if positional and positional[0].kind == self.several:
            return positional[0]
        if index >= len(positional):
            raise self._error(token.at, f"{info.name} takes {len(positional)} arguments")
        return positional[index]

    def _convert(self, info: Any, parameter: Parameter, value: Any, token: Token) -> Any:
        """Return the value as a type that the parameter takes."""
        kinds = _kinds(parameter)
        if isinstance(value, _Call):
            if self.base in kinds or self.several in kinds:
                return self._build(value)
            if value.has_brackets or value.preset:
                raise self._error(token.at, f"{parameter.name} of {info.name} is not a {self.noun}")
            value = _CONSTANTS.get(value.name.text.lower(), value.name.text)
        if type(value) is int and int not in kinds and float in kinds:
            value = float(value)
        if type(value) not in kinds:
            names = {type(None): "none", self.several: f"{self.noun}s"}
            expected = " or ".join(names.get(kind) or kind.__name__.lower() for kind in kinds)
            raise self._error(token.at, f"{parameter.name} of {info.name} takes {expected}")
        return value


def _kinds(parameter: Parameter) -> tuple[Any, ...]:
    """Return the types that a parameter accepts."""
    is_union = get_origin(parameter.kind) in (Union, types.UnionType)
    return get_args(parameter.kind) if is_union else (parameter.kind,)
