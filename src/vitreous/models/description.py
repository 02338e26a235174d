"""A model as plain data: its modules, their settings and hooks, its tensors, and what code is from elsewhere.

An attribute is a setting if some code of the model may read it and no forward writes it.
"""

from __future__ import annotations

import enum
import hashlib
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from vitreous.code_digest import code_digest, functions_of, is_external, is_unknown, names_read, writes_of

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel

__all__ = ["Description", "digest_of", "settled", "type_name"]

_PLAIN = frozenset((int, float, bool, str, complex, bytes, type(None), type(...)))
_BY_TEXT = (torch.dtype, torch.layout, torch.memory_format, slice, range, np.generic, np.dtype, re.Pattern)
_DICTS = (dict, types.MappingProxyType)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in vars(nn.Module()) if re.fullmatch(r"_(forward|backward)(_pre)?_hooks.*", name))
_GLOBAL_HOOKS = tuple(name for name in vars(torch_module) if re.fullmatch(r"_global_(for|back)ward.*_hooks.*", name))
_NO_SETTINGS = frozenset(
    (
        *("pretrained_cfg", "default_cfg", "pretrained_cfg_overlay", "name_or_path", "_name_or_path", "_commit_hash"),
        *("id2label", "label2id", "transformers_version", "architectures", "torch_dtype"),
    )
)
"""Names, labels and places that libraries keep beside a model."""
_NO_CODE_OF_MODELS = ("torch.nn.modules.module", "transformers.modeling_utils", "transformers.utils")
_FACTS_OF_VIEWS = frozenset(
    (
        *("module", "name", "class_names", "preprocess", "load_recipe", "builder_digest", "source_model", "family"),
        *("declared_pooling", "deviations", "deviating_layers"),
    )
)
"""What is left out of the facts of a view: names, what has a digest of its own, and what verification notes."""
_RECORDER = "transformers.utils.output_capturing"
"""Its hooks stay on a model once somebody has asked for hidden states."""
_DEPTH = 8  # of objects in objects
_MOST_FACTS = 64

_unknown: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_guard = Lock()


class _Facts(NamedTuple):
    """What the code of some classes reads and writes."""

    read: frozenset[str]
    pieces: tuple[str, ...]
    """Of names that are put together."""
    written: frozenset[str]
    """Attributes of other objects than the one whose method it is."""
    own: Mapping[type, frozenset[str]]
    """By class, what its forward writes on itself."""
    called: frozenset[str]
    """Names that forwards and hooks read: methods of other objects that they may call among them."""


class Description:
    """A model, and its view if there is one, as plain data: ``lines``, ``tensors``, ``view_tensors`` and ``code``."""

    def __init__(self, model: nn.Module, vision_model: VisionModel | None = None) -> None:
        self.lines: list[Any] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.external: dict[str, Any] = {}
        self._objects: dict[int, Any] = {}
        self._paths = {id(part): path for path, part in model.named_modules()}
        self._modules = list(model.named_modules())
        kinds = dict.fromkeys(type(part) for _, part in self._modules)
        classes = dict.fromkeys(each for kind in kinds for each in kind.__mro__)
        patches = [patch for each in classes for patch in _patches(each)]
        hooks = [hook for _, part in self._modules for hook in _functions_on(part)]
        self._functions = (*((member, None) for _, member in patches), *hooks)
        self._facts = _facts_of(tuple(kinds), self._functions)
        self._is_setting: dict[tuple[type, str], bool] = {}
        for number, (place, member) in enumerate(patches):
            self.lines.append(("patch", place, self._plain(member, f"patch {number} {place}")))
        for name in _GLOBAL_HOOKS:
            if hooks_of_all := vars(torch_module)[name]:
                self._hooks("", name, hooks_of_all)
        for path, part in self._modules:  # grows where modules are found that are not registered
            self._module(path, part)
        of_model = len(self.tensors)
        if vision_model is not None:
            self.lines.append(self._view(vision_model))
        self.view_tensors = self.tensors[of_model:]
        del self.tensors[of_model:]

    @cached_property
    def code(self) -> str:
        """A digest of all code from elsewhere; where it cannot be known, that of this model alone."""
        kinds = dict.fromkeys(type(part) for _, part in self._modules)
        external = [k for k in dict.fromkeys(k for kind in kinds for k in kind.__mro__) if is_external(k)]
        if not external and not self.external:
            return ""
        names = {id(part): f"module {path}" for path, part in self._modules}
        names |= {id(tensor): f"tensor {name}" for name, tensor in (*self.tensors, *self.view_tensors)}
        noun = f"your {type(self._modules[0][1]).__name__}"
        digest = code_digest((external, sorted(self.external.items())), names, noun)
        return settled(self._modules[0][1], digest)

    # -- modules ---------------------------------------------------------------------------------------

    def _module(self, path: str, part: nn.Module) -> None:
        attributes, kind = vars(part), type(part)
        own = self._facts.own.get(kind, frozenset())
        prefix = f"{path}." if path else ""
        line: list[Any] = [path, type_name(kind)]
        for name, child in attributes["_modules"].items():
            there = None if child is None else self._paths.get(id(child))
            if there != prefix + name:  # a module that stands in two places
                line.append(("child", name, there))
        for name, tensor in attributes["_parameters"].items():
            if tensor is None:
                line.append(("none", name))
            else:
                self.tensors.append((prefix + name, tensor))
        volatile = attributes["_non_persistent_buffers_set"]
        for name, tensor in attributes["_buffers"].items():
            if tensor is None:
                line.append(("none", name))
            elif name not in volatile or not (name in own or name in self._facts.written):
                self.tensors.append((prefix + name, tensor))
        for name in sorted(attributes.keys() - _OF_EVERY_MODULE):
            if self._counts(kind, name):
                value = attributes[name]
                line.append((name, value if type(value) in _PLAIN else self._plain(value, prefix + name)))
        self.lines.append(line)
        for name in _HOOKS:
            if attributes.get(name):
                self._hooks(path, name, attributes[name])

    def _hooks(self, path: str, kind: str, hooks: Mapping[int, Any]) -> None:
        own = [hook for hook in hooks.values() if getattr(hook, "__module__", None) != _RECORDER]
        for number, hook in enumerate(own):
            self.lines.append(("hook", path, kind, self._plain(hook, f"{path} {kind} {number}")))

    def _counts(self, kind: type, name: str) -> bool:
        """Whether an attribute of objects of some class is a setting: code may read it, and no forward writes it."""
        key = kind, name
        if key not in self._is_setting:
            facts, own = self._facts, self._facts.own.get(kind, frozenset())
            member = getattr(kind, name, None)
            is_read = name in facts.read or member is not None or any(piece in name for piece in facts.pieces)
            is_written = name in own or name in facts.written or isinstance(member, cached_property)
            self._is_setting[key] = is_read and not is_written and name not in _NO_SETTINGS
        return self._is_setting[key]

    # -- values ----------------------------------------------------------------------------------------

    def _plain(self, value: Any, place: str, depth: int = 0) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, torch.device | ref):
            return kind.__name__
        if isinstance(value, enum.Enum):
            return type_name(kind), value.name
        if isinstance(value, _BY_TEXT):
            return str(value)
        if isinstance(value, Tensor):
            if value.is_meta:
                return "tensor without values", str(value.dtype), tuple(value.shape)
            self.tensors.append((place, value))
            return "tensor"
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return str(value.dtype), value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()
        if isinstance(value, nn.Module):
            return self._reference(value, place)
        if isinstance(value, type | types.ModuleType):
            return self._code(value, place, type_name(value) if isinstance(value, type) else value.__name__)
        return type_name(kind) if depth > _DEPTH else self._compound(value, place, depth + 1)

    def _compound(self, value: Any, place: str, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, tuple | list):
            return [kind.__name__, *(self._plain(each, f"{place}[{n}]", depth) for n, each in enumerate(value))]
        if isinstance(value, _DICTS):
            items = [(repr(self._plain(key, place, depth)), each) for key, each in value.items()]
            return [
                kind.__name__,
                *((key, self._plain(each, f"{place}[{key}]", depth)) for key, each in sorted(items, key=_first)),
            ]
        if isinstance(value, set | frozenset):
            return [kind.__name__, *sorted(repr(self._plain(each, place, depth)) for each in value)]
        if isinstance(value, partial):
            return ["partial", *(self._plain(e, place, depth) for e in (value.func, value.args, value.keywords))]
        if isinstance(value, types.MethodType):
            return ["method", self._plain(value.__func__, place, depth), self._plain(value.__self__, place, depth)]
        if isinstance(value, types.FunctionType) and any(map(is_external, functions_of(value))):
            self.external[place] = value
            return "external"
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if id(value) not in self._objects:
            self._objects[id(value)] = "itself"  # what refers to it from inside
            self._objects[id(value)] = digest_of(self._object(value, place, depth))
        return self._objects[id(value)]

    def _object(self, value: Any, place: str, depth: int) -> Any:
        """Describe an object of some class by those of its attributes that the model's code may read."""
        kind = type(value)
        line: list[Any] = [self._code(kind, f"class of {place}", type_name(kind))]
        read, written = self._facts.read, self._facts.written | _NO_SETTINGS
        if is_external(kind) or callable(value):
            members = {name: member for above in kind.__mro__[-2::-1] for name, member in vars(above).items()}
            read |= names_read(members.values())
            calls = [member for name, member in members.items() if name in self._facts.called or name == "__call__"]
            written |= writes_of(calls, kind).attributes
        for name, each in sorted(getattr(value, "__dict__", {}).items(), key=_first):
            if name in read and name not in written:
                line.append((name, self._plain(each, f"{place}.{name}", depth)))
        return line

    def _reference(self, part: nn.Module, place: str) -> Any:
        """Name a module; one that is not registered is then described like the others."""
        if id(part) not in self._paths:
            for path, inner in part.named_modules(prefix=place):
                if id(inner) not in self._paths:
                    self._paths[id(inner)] = path
                    self._modules.append((path, inner))
            more = tuple(dict.fromkeys(type(inner) for _, inner in self._modules))
            self._facts, self._is_setting = _facts_of(more, self._functions), {}
        return "module", self._paths[id(part)]

    def _code(self, value: Any, place: str, name: str) -> Any:
        """Note what is from elsewhere, to be known by its code."""
        if is_external(value):
            self.external[place] = value
            return "external"
        return name

    def _view(self, model: VisionModel) -> Any:
        """Describe how a view looks at its model: its public attributes."""
        line: list[Any] = [self._code(type(model), "view", type_name(type(model)))]
        for name in sorted(vars(model)):
            value = vars(model)[name]
            if name == "pooling" and model.declared_pooling is not None:  # what is inferred follows from the model
                value = model.declared_pooling
            if not name.startswith("_") and name not in _FACTS_OF_VIEWS and not callable(value):
                inner = hasattr(value, "module") and hasattr(value, "embed") and not isinstance(value, nn.Module)
                line.append((name, self._view(value) if inner else self._plain(value, f"view.{name}")))
        return line


def _patches(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the members of a library's class that are not its own: functions that someone put there."""
    if is_external(kind) or kind is object:
        return
    home = getattr(sys.modules.get(kind.__module__), "__dict__", None)
    for name, member in list(vars(kind).items()):
        if isinstance(member, types.FunctionType):
            if member.__globals__ is home and member.__qualname__ == f"{kind.__qualname__}.{name}":
                continue
        elif isinstance(member, type) or not (callable(member) or isinstance(member, property | classmethod)):
            continue
        functions = list(functions_of(member))
        if any(map(is_external, functions)) if functions else is_external(member):
            yield f"{type_name(kind)}.{name}", member if callable(member) else tuple(functions)
        elif isinstance(member, types.FunctionType) and _is_of_another(member, kind, name):
            yield f"{type_name(kind)}.{name}", member


def _is_of_another(function: types.FunctionType, kind: type, name: str) -> bool:
    """Whether a function of a library was written as the method of another class, or under another name."""
    owner, _, own = function.__qualname__.rpartition(".")
    above = {each.__qualname__ for each in kind.__mro__}
    return name == "forward" and own != "_forward_unimplemented" and (own != name or owner not in above)


def _functions_on(part: nn.Module) -> Iterator[tuple[Any, type | None]]:
    """Yield the functions that were hung on a module, each with the class whose methods it may call."""
    attributes = vars(part)
    hung = [hook for name in _HOOKS for hook in attributes.get(name, {}).values()]
    for hook in (*hung, *(attributes[name] for name in attributes.keys() & {"forward"})):
        if isinstance(hook, types.FunctionType):
            yield hook, None
        elif isinstance(hook, types.MethodType):
            yield hook, type(hook.__self__)
        elif callable(hook):
            yield type(hook).__call__, type(hook)


_facts_known: dict[Any, _Facts] = {}


def _facts_of(kinds: tuple[type, ...], functions: tuple[tuple[Any, type | None], ...]) -> _Facts:
    """Return what the code of classes and functions reads and writes; for the same ones, from memory."""
    key = kinds, *((each.__code__, owner) for member, owner in functions for each in functions_of(member))
    facts = _facts_known.get(key)
    if facts is None:
        if len(_facts_known) >= _MOST_FACTS:
            _facts_known.clear()
        facts = _facts_known[key] = _read_facts(kinds, functions)
    return facts


def _read_facts(kinds: Sequence[type], functions: Sequence[tuple[Any, type | None]]) -> _Facts:
    members = [member for member, _ in functions]
    owners = [owner for _, owner in functions if owner is not None and is_external(owner)]
    classes = dict.fromkeys(each for above in (*kinds, *owners) for each in above.__mro__ if each is not object)
    for kind in classes:
        if not kind.__module__.startswith(_NO_CODE_OF_MODELS):
            members += vars(kind).values()
            home = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
            members += [each for each in list(home.values()) if isinstance(each, types.FunctionType)]
    writes = {kind: writes_of([kind.forward], kind, nn.Module) for kind in kinds if issubclass(kind, nn.Module)}
    hung = [writes_of([member], owner) for member, owner in functions]
    read = names_read(members)
    return _Facts(
        frozenset(name for name in read if not name.startswith("*")),
        tuple(name[1:] for name in read if name.startswith("*")),
        frozenset().union(*(each.attributes for each in hung), *(write.other for write in writes.values())),
        {kind: write.own for kind, write in writes.items()},
        frozenset().union(*(each.read for each in (*hung, *writes.values()))),
    )


# -- words ---------------------------------------------------------------------------------------------


def _first(item: tuple[Any, Any]) -> str:
    return str(item[0])


def type_name(kind: type) -> str:
    """The name of a class; one from elsewhere is known by its code, whatever the file is called."""
    return kind.__qualname__ if is_external(kind) else f"{kind.__module__}.{kind.__qualname__}"


def settled(owner: Any, digest: str) -> str:
    """Return a digest; where code cannot be known, the one that its owner got first in this process."""
    if not is_unknown(digest):
        return digest
    with _guard:
        return _unknown.setdefault(owner, digest)


def digest_of(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
