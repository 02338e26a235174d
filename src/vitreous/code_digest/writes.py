"""What code writes when it runs: attributes and variables that are its results, and no settings of it.

A forward that notes the size of its input, a counter, a hook that collects outputs in a list: what they leave behind
tells nothing about what they compute. It is read from the bytecode of a function and of all that it may call.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partialmethod
from typing import Any, NamedTuple

from vitreous.code_digest.sources import is_library

_MUTATORS = {
    "append", "appendleft", "extend", "insert", "add", "update", "setdefault", "move_to_end", "pop", "popitem",
    "remove", "discard", "clear",
}  # fmt: skip
_SETTERS = frozenset(("setattr", "__setattr__", "register_buffer", "__dict__"))
_GETTERS = frozenset(("getattr", "setattr", "vars", "__dict__"))
_SHORTEST_PIECE = 3
_STORES = ("STORE_ATTR", "DELETE_ATTR")
_LOADED_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_LOADED_VARIABLES = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_GLOBAL", "LOAD_NAME")
_STORED_VARIABLES = ("STORE_DEREF", "STORE_GLOBAL")


class Writes(NamedTuple):
    """Names that code writes: attributes of its own object, attributes of any other, variables around it."""

    own: frozenset[str] = frozenset()
    other: frozenset[str] = frozenset()
    variables: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    """Names of attributes that the same code reads: methods of other objects that it may call among them."""

    @property
    def attributes(self) -> frozenset[str]:
        return self.own | self.other


def writes_of(functions: Iterable[Any], owner: type | None = None, until: type = object) -> Writes:
    """Return what functions write, those included that they may call: methods of ``owner`` and global functions.

    Methods that ``until`` has are not followed, nor functions of other files of Python and libraries.
    """
    total = _Facts()
    visited: set[types.CodeType] = set()
    homes = frozenset() if owner is None else frozenset(str(base.__module__) for base in owner.__mro__)
    waiting = [(function, True) for member in functions for function in functions_of(member)]
    while waiting:
        function, is_method = waiting.pop()
        if function.__code__ in visited:
            continue
        visited.add(function.__code__)
        facts = _facts(function.__code__)
        (total.own if is_method else total.other).update(facts.own)
        total.other |= facts.other
        total.variables |= facts.variables
        total.attributes |= facts.attributes
        waiting += [(method, True) for method in _methods(owner, facts.attributes, until)]
        waiting += [(called, False) for called in _called(function, facts.globals, homes)]
    return Writes(*map(frozenset, (total.own, total.other, total.variables, total.attributes)))


def names_read(functions: Iterable[Any]) -> frozenset[str]:
    """Return the names of all attributes that functions may read, and pieces of names that they put together."""
    return frozenset().union(*(_names_read(f.__code__) for member in functions for f in functions_of(member)))


def wrapped_by(member: Any) -> tuple[Any, ...] | None:
    """Return the functions that a descriptor is made of; ``None`` for anything else."""
    if isinstance(member, property):
        return member.fget, member.fset, member.fdel
    if isinstance(member, staticmethod | classmethod):
        return (member.__func__,)
    return (member.func,) if isinstance(member, cached_property) else None


def functions_of(member: Any) -> Iterator[types.FunctionType]:
    """Yield the functions with code that a member of a class is made of, without their decorators of other origin."""
    if isinstance(member, types.MethodType | partialmethod):
        member = member.__func__ if isinstance(member, types.MethodType) else member.func
    for part in wrapped_by(member) or (member,):
        if isinstance(part, types.FunctionType):
            while part is not None:
                if isinstance(part, types.FunctionType):
                    yield part
                part = getattr(part, "__wrapped__", None)


def _methods(owner: type | None, names: Iterable[str], until: type) -> Iterator[types.FunctionType]:
    """Yield the methods of these names in a class and all classes above: ``super()`` may ask for any of them."""
    classes = [] if owner is None else [base for base in owner.__mro__ if not issubclass(until, base)]
    for name in names:
        for base in classes:
            if name in vars(base):
                yield from functions_of(vars(base)[name])


def _called(function: types.FunctionType, names: Iterable[str], homes: frozenset[str]) -> Iterator[types.FunctionType]:
    """Yield the global functions of these names: of a library, only those beside a class that is followed."""
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.FunctionType):
            home = str(value.__globals__.get("__name__", ""))
            if home in homes or not is_library(home.partition(".")[0]):
                yield value


@dataclass
class _Facts:
    """What some code writes and reads, the functions inside it included."""

    own: set[str] = field(default_factory=set)
    other: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)

    def add(self, steps: list[dis.Instruction], number: int, first: str | None) -> None:
        """Take in one step of a function whose first parameter is ``first``."""
        step, before = steps[number], steps[number - 1]
        name = str(step.argval)
        if step.opname in _STORES:
            last = before.argval[-1] if isinstance(before.argval, tuple) else before.argval  # two may be loaded at once
            is_own = before.opname.startswith("LOAD_FAST") and last == first
            (self.own if is_own else self.other).add(name)
        elif step.opname in _STORED_VARIABLES:
            self.variables.add(name)
        elif step.opname in _LOADED_ATTRIBUTES:
            self.attributes.add(name)
            if name in _MUTATORS or (name.endswith("_") and not name.endswith("__")):
                self._add_target(before)
        elif step.opname == "LOAD_GLOBAL":
            self.globals.add(name)
        elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            self._add_target(_container(steps, number))

    def _add_target(self, step: dis.Instruction | None) -> None:
        """Note what is changed in place: an attribute, or a variable that is not of the function itself."""
        if step is not None and step.opname in _LOADED_ATTRIBUTES:
            self.other.add(str(step.argval))
        elif step is not None and step.opname in _LOADED_VARIABLES:
            self.variables.add(str(step.argval))


@lru_cache(maxsize=4096)
def _facts(code: types.CodeType) -> _Facts:
    facts = _Facts()
    for part in codes_of(code):
        first = part.co_varnames[0] if part is code and part.co_argcount else None
        if _SETTERS & set(part.co_names):
            facts.own |= _identifiers(part)
        steps = [step for step in dis.get_instructions(part) if step.opname not in ("CACHE", "EXTENDED_ARG")]
        for number in range(len(steps)):
            facts.add(steps, number, first)
    return facts


def _identifiers(code: types.CodeType) -> set[str]:
    """Return the texts in code that could be names."""
    return {const for const in code.co_consts if isinstance(const, str) and const.isidentifier()}


def _container(steps: list[dis.Instruction], number: int) -> dis.Instruction | None:
    """Return the step that loads the container of ``container[key] = value``, going back over what loads the key."""
    needed = 1
    for at in range(number - 1, -1, -1):
        if needed == 0:
            return steps[at]
        step = steps[at]
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            return None
        try:
            needed -= dis.stack_effect(step.opcode, step.arg)
        except ValueError:
            return None
    return None


@lru_cache(maxsize=4096)
def _names_read(code: types.CodeType) -> frozenset[str]:
    names = set(_facts(code).attributes)
    for part in codes_of(code):
        words = _identifiers(part)
        names |= words
        if _GETTERS & set(part.co_names):  # getattr(self, f"scale_{number}")
            names |= {f"*{word}" for word in words if len(word) >= _SHORTEST_PIECE}
    return frozenset(names)


def codes_of(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code and that of all functions inside it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_of(const)
