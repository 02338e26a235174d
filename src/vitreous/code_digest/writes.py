"""What code writes when it runs: attributes and variables that are its results, and no settings of it.

A forward that notes the size of its input, a counter, a hook that collects outputs in a list: what they leave behind
tells nothing about what they compute. It is read from the bytecode of a function and of all that it may call.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from vitreous.code_digest.sources import is_library

__all__ = ["Writes", "functions_of", "names_read", "writes_of"]

_MUTATORS = frozenset(
    (
        *("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "move_to_end"),
        *("pop", "popitem", "remove", "discard", "clear"),
    )
)
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
    own: set[str] = set()
    other: set[str] = set()
    variables: set[str] = set()
    read: set[str] = set()
    visited: set[types.CodeType] = set()
    homes = frozenset() if owner is None else frozenset(str(each.__module__) for each in owner.__mro__)
    waiting = [(function, True) for every in functions for function in functions_of(every)]
    while waiting:
        function, is_method = waiting.pop()
        if function.__code__ in visited:
            continue
        visited.add(function.__code__)
        facts = _facts(function.__code__)
        own |= facts.own if is_method else frozenset()
        other |= facts.other | (frozenset() if is_method else facts.own)
        variables |= facts.variables
        read |= facts.attributes
        waiting += [(method, True) for method in _methods(owner, facts.attributes, until)]
        waiting += [(each, False) for each in _called(function, facts.globals, homes)]
    return Writes(frozenset(own), frozenset(other), frozenset(variables), frozenset(read))


def names_read(functions: Iterable[Any]) -> frozenset[str]:
    """Return the names of all attributes that functions may read, and pieces of names that they put together."""
    return frozenset().union(*(_names_read(each.__code__) for every in functions for each in functions_of(every)))


def functions_of(member: Any) -> Iterator[types.FunctionType]:
    """Yield the functions with code that a member of a class is made of, without their decorators of other origin."""
    if isinstance(member, property):
        parts: tuple[Any, ...] = (member.fget, member.fset, member.fdel)
    elif isinstance(member, staticmethod | classmethod | types.MethodType):
        parts = (member.__func__,)
    elif isinstance(member, cached_property):
        parts = (member.func,)
    else:
        parts = (member,)
    for part in parts:
        if isinstance(part, types.FunctionType):
            yield part
            inner: Any = part
            while (inner := getattr(inner, "__wrapped__", None)) is not None:
                if isinstance(inner, types.FunctionType):
                    yield inner


def _methods(owner: type | None, names: Iterable[str], until: type) -> Iterator[types.FunctionType]:
    """Yield the methods of these names in a class and all classes above: ``super()`` may ask for any of them."""
    classes = [] if owner is None else [each for each in owner.__mro__ if not issubclass(until, each)]
    for name in names:
        for each in classes:
            if name in vars(each):
                yield from functions_of(vars(each)[name])


def _called(function: types.FunctionType, names: Iterable[str], homes: frozenset[str]) -> Iterator[types.FunctionType]:
    """Yield the global functions of these names: of a library, only those beside a class that is followed."""
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.FunctionType):
            package = str(value.__globals__.get("__name__", "")).partition(".")[0]
            if str(value.__globals__.get("__name__")) in homes or not is_library(package):
                yield value


class _Facts(NamedTuple):
    own: frozenset[str]
    other: frozenset[str]
    variables: frozenset[str]
    attributes: frozenset[str]
    globals: frozenset[str]


@lru_cache(maxsize=4096)
def _facts(code: types.CodeType) -> _Facts:
    """Read one function, those inside it included."""
    own: set[str] = set()
    other: set[str] = set()
    variables: set[str] = set()
    attributes: set[str] = set()
    global_names: set[str] = set()
    for part in _codes(code):
        first = part.co_varnames[0] if part is code and part.co_argcount else None
        steps = [
            instruction
            for instruction in dis.get_instructions(part)
            if instruction.opname not in ("CACHE", "EXTENDED_ARG")
        ]
        if _SETTERS & set(part.co_names):
            own |= {co_const for co_const in part.co_consts if isinstance(co_const, str) and co_const.isidentifier()}
        for number, step in enumerate(steps):
            name = str(step.argval)
            before = steps[number - 1] if number else None
            if step.opname in _STORES:
                is_own = first is not None and before is not None and _is_variable(before, first)
                (own if is_own else other).add(name)
            elif step.opname in _STORED_VARIABLES:
                variables.add(name)
            elif step.opname in _LOADED_ATTRIBUTES:
                attributes.add(name)
                if before is not None and (name in _MUTATORS or (name.endswith("_") and not name.endswith("__"))):
                    _add_target(before, other, variables)
            elif step.opname == "LOAD_GLOBAL":
                global_names.add(name)
            elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                target = _container(steps, number)
                if target is not None:
                    _add_target(target, other, variables)
    return _Facts(*map(frozenset, (own, other, variables, attributes, global_names)))


def _is_variable(step: dis.Instruction, name: str) -> bool:
    """Whether a step loads a variable of the function last; some Pythons load two at once."""
    last = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
    return step.opname.startswith("LOAD_FAST") and last == name


def _add_target(step: dis.Instruction, attributes: set[str], variables: set[str]) -> None:
    """Note what is changed in place: an attribute, or a variable that is not of the function itself."""
    if step.opname in _LOADED_ATTRIBUTES:
        attributes.add(str(step.argval))
    elif step.opname in _LOADED_VARIABLES:
        variables.add(str(step.argval))


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
    for part in _codes(code):
        words = {co_const for co_const in part.co_consts if isinstance(co_const, str) and co_const.isidentifier()}
        names |= words
        if _GETTERS & set(part.co_names):  # getattr(self, f"scale_{number}")
            names |= {f"*{word}" for word in words if len(word) >= _SHORTEST_PIECE}
    return frozenset(names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for co_const in code.co_consts:
        if isinstance(co_const, types.CodeType):
            yield from _codes(co_const)
