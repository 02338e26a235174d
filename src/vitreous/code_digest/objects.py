"""Classes, functions and objects as plain data: what their code and their bound values are."""

from __future__ import annotations

import copyreg
import dis
import hashlib
import json
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from vitreous.code_digest.sources import is_from_file, is_library, report, source_of
from vitreous.code_digest.writes import codes_of, wrapped_by, writes_of
from vitreous.errors import one_line

_UNKNOWN = "unknown "
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_FUNCTION = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class _UnknownCode(Exception):
    """Something whose code or value cannot be known."""


def is_external(thing: Any) -> bool:
    """Whether the code of a class, a function or an object is neither of Vitreous nor of a library it runs with."""
    return not is_library(_home(thing).partition(".")[0])


def is_unknown(digest: str) -> bool:
    """Whether this stands for code that cannot be known: it equals no other digest, not even of the same thing."""
    return digest.startswith(_UNKNOWN)


def code_digest(thing: Any, names: Mapping[int, str] | None = None, noun: str = "") -> str:
    """Return a digest of the code of a class, a function or an object, and of the values that are bound in it.

    Objects in ``names``, by ``id``, count by these names alone: such as the modules of a model that has its own digest.
    ``noun`` is what a warning calls the thing.
    It does not depend on where files lie, nor on their line ends. Nothing is imported for it. Where the code cannot be
    known a warning says why, and the digest is one that nothing else ever has.
    """
    try:
        description = _Description(names=names)
        text = json.dumps([description.of(thing), sorted(description.sources.items())])
    except Exception as error:  # whatever an object does when it is looked at: then it cannot be known
        why = str(error) if isinstance(error, _UnknownCode) else type(error).__name__
        name = one_line(noun or str(getattr(thing, "__qualname__", type(thing).__qualname__)))
        report(f"the code of {name} cannot be known ({one_line(why)}): what it computes is never used again")
        return _UNKNOWN + uuid4().hex
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class _Description:
    """Describes objects as plain data, each object once."""

    def __init__(self, sources: dict[str, Any] | None = None, names: Mapping[int, str] | None = None) -> None:
        self.names: Mapping[int, str] = {} if names is None else names
        self.sources: dict[str, Any] = {} if sources is None else sources
        self.numbers: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no two objects have one id

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return [kind.__name__, repr(value)]
        if kind is tuple:  # which tuples are one object is up to the compiler
            return ["tuple", *map(self.of, value)]
        if kind in (set, frozenset):  # their order is that of hashes, another one in every process
            return [kind.__name__, *sorted(json.dumps(_Description(self.sources, self.names).of(v)) for v in value)]
        if id(value) in self.names:
            return ["name", self.names[id(value)]]
        if id(value) in self.numbers:
            return ["again", self.numbers[id(value)]]
        self._remember(value)
        if kind is list:
            return ["list", *map(self.of, value)]
        if kind is dict:
            return ["dict", *([self.of(key), self.of(member)] for key, member in _in_order(value))]
        return self._thing(value)

    def _remember(self, value: Any) -> None:
        self.numbers[id(value)] = len(self.numbers)
        self.alive.append(value)

    def _thing(self, value: Any) -> Any:
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, _FUNCTION):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__, self._has_source(value.__name__)]
        return self._object(value)

    def _has_source(self, home: str) -> bool:
        """Whether a module is known by files, which are then described."""
        if home not in self.sources:
            self.sources[home] = source_of(home)
        return self.sources[home] is not None

    # -- objects -----------------------------------------------------------------------------------------

    def _object(self, value: Any) -> Any:
        if isinstance(value, partial):
            return ["partial", *map(self.of, (value.func, value.args, value.keywords))]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__func__), self._owner(value.__self__, value.__func__)]
        functions = wrapped_by(value)
        if functions is not None:
            return [type(value).__name__, *map(self.of, functions)]
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MappingProxyType):
            return self.of(dict(value))
        array = _array(value)
        if array is not None:
            return array
        if _home(value).partition(".")[0] == "vitreous" and isinstance(getattr(value, "fingerprint", None), str):
            return [type(value).__qualname__, value.fingerprint]  # models, methods and statistics know their own
        if callable(value) and is_external(value):
            return self._reduced(value, writes_of([type(value).__call__], type(value)).attributes)
        return self._reduced(value)

    def _owner(self, value: Any, method: Any) -> Any:
        """Describe the object that a method is bound to, without what that method writes."""
        if isinstance(value, type) or not is_external(value) or id(value) in self.numbers.keys() | self.names.keys():
            return self.of(value)
        self._remember(value)
        return self._reduced(value, writes_of([method], type(value)).attributes)

    def _reduced(self, value: Any, written: frozenset[str] = frozenset()) -> Any:
        """Describe an object by what it would be stored as, but for the attributes that its code writes."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            stored = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            raise _UnknownCode(f"{type(value).__qualname__}: {error}") from None
        if isinstance(stored, str):  # the name of something global, perhaps of a function that remembers its results
            home, wrapped = str(getattr(value, "__module__", "")), getattr(value, "__wrapped__", None)
            return ["object", self.of(type(value)), stored, self._has_source(home), self.of(wrapped)]
        parts = [list(part) if isinstance(part, Iterator) else part for part in stored[:5]]
        if written and len(parts) > 2 and isinstance(parts[2], dict):
            parts[2] = {name: value for name, value in parts[2].items() if name not in written}
        return ["object", self.of(type(value)), *map(self.of, parts)]

    # -- code --------------------------------------------------------------------------------------------

    def _class(self, cls: type) -> Any:
        if not is_external(cls):
            return ["class", cls.__module__, cls.__qualname__]
        has_source = self._has_source(cls.__module__)
        facts: list[Any] = [self.of(base) for base in cls.__bases__ if is_external(base)]
        for key, member in _in_order({k: var for k, var in vars(cls).items() if not _is_internal(k, var)}):
            try:
                facts.append([key, self.of(member)])
            except _UnknownCode:
                if not has_source:
                    raise
        return ["class", cls.__module__ if has_source else "", cls.__qualname__, *facts]

    def _function(self, function: Any) -> Any:
        home, name = _home(function), str(getattr(function, "__qualname__", ""))
        code = getattr(function, "__code__", None)
        if code is None:
            owner = getattr(function, "__self__", None)
            if owner is not None and not isinstance(owner, types.ModuleType):
                return ["function", name, self.of(owner)]
            return ["function", home, name, self._has_source(home)]
        written = writes_of([function]).variables
        variables = zip(code.co_freevars, function.__closure__ or (), strict=False)
        cells = [cell for name, cell in variables if name not in written]
        bound = [_contents(cells), function.__defaults__, function.__kwdefaults__]
        facts = ["function", *map(self.of, bound)]
        if not is_external(function) or (is_from_file(code, home) and self._has_source(home)):
            return [home, name, *facts, *([self._code(code)] if "<" in name else [])]  # several may have that name
        return [self._code(code), *facts, *self._references(function, written)]

    def _references(self, function: Any, written: frozenset[str]) -> list[Any]:
        """Describe the globals and the modules that a function refers to."""
        globals_, imports = _references(function.__code__)
        read = [name for name in globals_ if name in function.__globals__ and name not in written]
        used = [[name, self.of(function.__globals__[name])] for name in read]
        return [used, [[name, self._has_source(name)] for name in imports]]

    def _code(self, code: types.CodeType) -> Any:
        facts = (code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return ["code", code.co_flags, code.co_argcount, *map(list, facts), *map(self.of, code.co_consts)]


def _in_order(values: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the items in an order that does not depend on when each was set, where keys can be sorted."""
    try:
        return sorted(values.items(), key=lambda item: item[0])
    except TypeError:
        return list(values.items())


def _contents(cells: Iterable[Any]) -> list[Any]:
    contents = []
    for cell in cells:
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # a variable that is not set yet
            contents.append(...)
    return contents


def _is_internal(key: str, member: Any) -> bool:
    """Whether a class has this member from Python, not from whoever wrote the class."""
    if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return True
    return key.startswith("_abc_") or key == "info" or (key.startswith("__") and not callable(member))


def _array(value: Any) -> Any:
    """Describe a tensor or an array by its content; ``None`` for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            content, facts = flat.numpy().tobytes(), [str(value.dtype), list(value.shape)]
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise _UnknownCode(f"a tensor without values: {error}") from None
    elif numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        content, facts = value.tobytes(), [str(value.dtype), list(value.shape)]
    else:
        return None
    return ["array", *facts, hashlib.blake2b(content, digest_size=16).hexdigest()]


def _references(code: types.CodeType) -> tuple[list[str], list[str]]:
    """Return the global names and the modules that code refers to, those of its inner functions included."""
    names: dict[str, set[str]] = {"LOAD_GLOBAL": set(), "LOAD_NAME": set(), "IMPORT_NAME": set()}
    for part in codes_of(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in names:
                names[instruction.opname].add(str(instruction.argval))
    return sorted(names["LOAD_GLOBAL"] | names["LOAD_NAME"]), sorted(names["IMPORT_NAME"] - {""})


def _home(thing: Any) -> str:
    """Return the name of the module that the code of a thing is in."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__
    if isinstance(thing, types.MethodType | partial):
        return _home(thing.__func__ if isinstance(thing, types.MethodType) else thing.func)
    if isinstance(thing, types.FunctionType):  # whatever a decorator says
        return str(thing.__globals__.get("__name__", "__main__"))
    owner = thing if isinstance(thing, type | types.BuiltinFunctionType) else type(thing)
    return str(getattr(owner, "__module__", None) or "builtins")
