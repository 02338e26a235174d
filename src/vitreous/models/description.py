"""A model as plain data: its modules, their settings and hooks, its tensors, and what code is from elsewhere.

An attribute is a setting if some code of the model may read it and no forward writes it. ``deviations`` says where a
model is not what its library built, and how: only there is anything verified beyond the logits.
"""

from __future__ import annotations

import enum
import hashlib
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, partialmethod
from operator import itemgetter
from threading import Lock
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from vitreous.code_digest import code_digest, functions_of, is_external, is_unknown, names_read, writes_of

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel

_PLAIN = frozenset((int, float, bool, str, complex, bytes, type(None), type(...)))
_BY_TEXT = (torch.dtype, torch.layout, torch.memory_format, slice, range, np.generic, np.dtype, re.Pattern)
_COLLECTIONS = (tuple, list, set, frozenset, dict, types.MappingProxyType)
_DESCRIPTORS = (property, classmethod, cached_property, partialmethod)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_HOOKS = tuple(name for name in vars(nn.Module()) if re.fullmatch(r"_(forward|backward)(_pre)?_hooks.*", name))
_GLOBAL_HOOKS = tuple(name for name in vars(torch_module) if re.fullmatch(r"_global_(for|back)ward.*_hooks.*", name))
_NO_SETTINGS = {
    *("pretrained_cfg", "default_cfg", "pretrained_cfg_overlay", "name_or_path", "_name_or_path", "_commit_hash"),
    *("id2label", "label2id", "transformers_version", "architectures", "torch_dtype"),
}
"""Names, labels and places that libraries keep beside a model."""
_NO_CODE_OF_MODELS = ("torch.nn.modules.module", "transformers.modeling_utils", "transformers.utils")
_NO_FACTS = {
    *("module", "name", "class_names", "preprocess", "load_recipe", "builder_digest", "source_model", "family"),
    *("declared_pooling", "deviations", "deviating_layers"),
}
"""What is left out of a ``VisionModel``: names, what has a digest of its own, and what verification notes."""
_RECORDER = "transformers.utils.output_capturing"
"""Its hooks stay on a model once somebody has asked for hidden states."""
_DEPTH = 8  # of objects in objects
_MOST_FACTS = 64

_unknown: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_guard = Lock()

HookFunction = tuple[Any, type | None]
"""A function that was put on a module, and the class whose methods it may call."""


class _Facts(NamedTuple):
    """What the code of some classes reads and writes."""

    read: frozenset[str]
    fragments: tuple[str, ...]
    """Of names that are put together."""
    written: frozenset[str]
    """Attributes of other objects than the one whose method it is."""
    own: Mapping[type, frozenset[str]]
    """By class, what its forward writes on itself."""
    called: frozenset[str]
    """Names that forwards and hooks read: methods of other objects that they may call among them."""


class Description:
    """A model, with its ``VisionModel`` if there is one: ``lines``, ``tensors``, ``view_tensors`` and ``code``."""

    def __init__(self, model: nn.Module, vision_model: VisionModel | None = None) -> None:
        self.lines: list[Any] = []
        self.tensors: list[tuple[str, Tensor]] = []
        self.external: dict[str, Any] = {}
        self._objects: dict[int, Any] = {}
        self._modules = list(model.named_modules())
        self._paths = {id(module): path for path, module in self._modules}
        patches = [(f"{type_name(kind)}.{name}", member) for kind in self._classes() for name, member in _patches(kind)]
        hooks = [hook for _, module in self._modules for hook in _functions_on(module)]
        self._functions = (*((member, None) for _, member in patches), *hooks)
        self._read_code()
        for number, (name, member) in enumerate(patches):
            self.lines.append(("patch", name, self._describe(member, f"patch {number} {name}")))
        for name in _GLOBAL_HOOKS:
            self._hooks("", name, vars(torch_module)[name])
        for path, module in self._modules:  # grows where modules are found that are not registered
            self._module(path, module)
        of_model = len(self.tensors)
        if vision_model is not None:
            self.lines.append(self._view(vision_model))
        self.view_tensors = self.tensors[of_model:]
        del self.tensors[of_model:]

    @cached_property
    def code(self) -> str:
        """A digest of all code from elsewhere; where it cannot be known, that of this model alone."""
        external = [kind for kind in self._classes() if is_external(kind)]
        if not external and not self.external:
            return ""
        names = {id(module): f"module {path}" for path, module in self._modules}
        names |= {id(tensor): f"tensor {name}" for name, tensor in (*self.tensors, *self.view_tensors)}
        noun = f"your {type(self._modules[0][1]).__name__}"
        digest = code_digest((external, sorted(self.external.items())), names, noun)
        return settled(self._modules[0][1], digest)

    def _classes(self) -> Iterable[type]:
        kinds = dict.fromkeys(type(module) for _, module in self._modules)
        return dict.fromkeys(base for kind in kinds for base in kind.__mro__)

    def _read_code(self) -> None:
        kinds = tuple(dict.fromkeys(type(module) for _, module in self._modules))
        self._facts = _facts_of(kinds, self._functions)
        self._is_setting: dict[tuple[type, str], bool] = {}

    # -- modules ---------------------------------------------------------------------------------------

    def _module(self, path: str, module: nn.Module) -> None:
        attributes, kind = vars(module), type(module)
        prefix = f"{path}." if path else ""
        line: list[Any] = [path, type_name(kind)]
        for name, child in attributes["_modules"].items():
            path_of_child = None if child is None else self._paths.get(id(child))
            if path_of_child != prefix + name:  # a module that stands in two places
                line.append(("child", name, path_of_child))
        written = self._facts.own.get(kind, frozenset()) | self._facts.written
        left_out = attributes["_non_persistent_buffers_set"] & written
        for name, tensor in (*attributes["_parameters"].items(), *attributes["_buffers"].items()):
            if tensor is None:
                line.append(("none", name))
            elif name not in left_out:
                self.tensors.append((prefix + name, tensor))
        for name in sorted(attributes.keys() - _OF_EVERY_MODULE):
            if self._counts(kind, name):
                line.append((name, self._describe(attributes[name], prefix + name)))
        self.lines.append(line)
        for name in _HOOKS:
            self._hooks(path, name, attributes.get(name) or {})

    def _hooks(self, path: str, kind: str, hooks: Mapping[int, Any]) -> None:
        own = [hook for hook in hooks.values() if getattr(hook, "__module__", None) != _RECORDER]
        for number, hook in enumerate(own):
            self.lines.append(("hook", path, kind, self._describe(hook, f"{path} {kind} {number}")))

    def _counts(self, kind: type, name: str) -> bool:
        """Whether an attribute of objects of some class is a setting: code may read it, and no forward writes it."""
        key = kind, name
        if key not in self._is_setting:
            facts, own = self._facts, self._facts.own.get(kind, frozenset())
            member = getattr(kind, name, None)
            is_read = name in facts.read or member is not None or any(text in name for text in facts.fragments)
            is_written = name in own or name in facts.written or isinstance(member, cached_property)
            self._is_setting[key] = is_read and not is_written and name not in _NO_SETTINGS
        return self._is_setting[key]

    # -- values ----------------------------------------------------------------------------------------

    def _describe(self, value: Any, path: str, depth: int = 0) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, nn.Module):
            return self._reference(value, path)
        if isinstance(value, torch.device | ref):
            return kind.__name__
        if isinstance(value, enum.Enum):
            return type_name(kind), value.name
        if isinstance(value, _BY_TEXT):
            return str(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return str(value.dtype), value.shape, hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()
        if isinstance(value, type | types.ModuleType):
            return self._code(value, path, type_name(value) if isinstance(value, type) else value.__name__)
        return type_name(kind) if depth > _DEPTH else self._compound(value, path, depth + 1)

    def _tensor(self, value: Tensor, path: str) -> Any:
        if value.is_meta:
            return "tensor without values", str(value.dtype), tuple(value.shape)
        self.tensors.append((path, value))
        return "tensor"

    def _items(self, value: Any, path: str, depth: int) -> Iterable[Any]:
        if isinstance(value, tuple | list):
            return [self._describe(item, f"{path}[{number}]", depth) for number, item in enumerate(value)]
        if isinstance(value, set | frozenset):
            return sorted(repr(self._describe(item, path, depth)) for item in value)
        items = [(repr(self._describe(key, path, depth)), item) for key, item in value.items()]
        return [(key, self._describe(item, f"{path}[{key}]", depth)) for key, item in sorted(items, key=itemgetter(0))]

    def _compound(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, _COLLECTIONS):
            return [type(value).__name__, *self._items(value, path, depth)]
        if isinstance(value, partial):
            return [
                "partial",
                *(self._describe(part, path, depth) for part in (value.func, value.args, value.keywords)),
            ]
        if isinstance(value, MethodType):
            return ["method", self._describe(value.__func__, path, depth), self._describe(value.__self__, path, depth)]
        if isinstance(value, FunctionType) and any(map(is_external, functions_of(value))):
            self.external[path] = value
            return "external"
        if isinstance(value, FunctionType | types.BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        if id(value) not in self._objects:
            self._objects[id(value)] = "itself"  # what refers to it from inside
            self._objects[id(value)] = digest_of(self._object(value, path, depth))
        return self._objects[id(value)]

    def _object(self, value: Any, path: str, depth: int) -> Any:
        """Describe an object of some class by those of its attributes that the model's code may read."""
        kind = type(value)
        line: list[Any] = [self._code(kind, f"class of {path}", type_name(kind))]
        read, written = self._facts.read, self._facts.written | _NO_SETTINGS
        if is_external(kind) or callable(value):
            members = {name: member for base in kind.__mro__[-2::-1] for name, member in vars(base).items()}
            read |= names_read(members.values())
            calls = [member for name, member in members.items() if name in self._facts.called or name == "__call__"]
            written |= writes_of(calls, kind).attributes
        for name, attribute in sorted(getattr(value, "__dict__", {}).items()):
            if name in read and name not in written:
                line.append((name, self._describe(attribute, f"{path}.{name}", depth)))
        return line

    def _reference(self, module: nn.Module, path: str) -> Any:
        """Name a module; one that is not registered is then described like the others."""
        if id(module) not in self._paths:
            for inner_path, inner in module.named_modules(prefix=path):
                if id(inner) not in self._paths:
                    self._paths[id(inner)] = inner_path
                    self._modules.append((inner_path, inner))
            self._read_code()
        return "module", self._paths[id(module)]

    def _code(self, value: Any, path: str, name: str) -> Any:
        """Note what is from elsewhere, to be known by its code."""
        if is_external(value):
            self.external[path] = value
            return "external"
        return name

    def _view(self, model: VisionModel) -> Any:
        """Describe how a ``VisionModel`` takes its module apart: its public attributes."""
        line: list[Any] = [self._code(type(model), "view", type_name(type(model)))]
        for name in sorted(vars(model)):
            value = vars(model)[name]
            if name == "pooling" and model.declared_pooling is not None:  # what is inferred follows from the model
                value = model.declared_pooling
            if not name.startswith("_") and name not in _NO_FACTS and not callable(value):
                is_inner = hasattr(value, "module") and hasattr(value, "embed") and not isinstance(value, nn.Module)
                line.append((name, self._view(value) if is_inner else self._describe(value, f"view.{name}")))
        return line


def _patches(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the members of a library's class that are not its own: functions that someone put there."""
    if not is_external(kind) and kind is not object:
        for name, member in list(vars(kind).items()):
            if _is_patch(kind, name, member):
                yield name, member if callable(member) else tuple(functions_of(member))


def _is_patch(kind: type, name: str, member: Any) -> bool:
    functions = list(functions_of(member))
    if isinstance(member, FunctionType):
        is_of_file = member.__globals__ is getattr(sys.modules.get(kind.__module__), "__dict__", None)
        if is_of_file and member.__qualname__ == f"{kind.__qualname__}.{name}":
            return False
        return any(map(is_external, functions)) or _is_of_another(member, kind, name)
    if isinstance(member, type) or not (callable(member) or isinstance(member, _DESCRIPTORS)):
        return False
    return any(map(is_external, functions)) if functions else is_external(member)


def _is_of_another(function: FunctionType, kind: type, name: str) -> bool:
    """Whether a function of a library was written as the method of another class, or under another name."""
    owner, _, own = function.__qualname__.rpartition(".")
    bases = {base.__qualname__ for base in kind.__mro__}
    return name == "forward" and own != "_forward_unimplemented" and (own != name or owner not in bases)


def _functions_on(module: nn.Module) -> Iterator[HookFunction]:
    """Yield the functions that were put on a module: hooks, and a ``forward`` of its own."""
    attributes = vars(module)
    hooks = [hook for name in _HOOKS for hook in attributes.get(name, {}).values()]
    for hook in (*hooks, attributes.get("forward")):  # None is nothing that can be called
        if isinstance(hook, FunctionType):
            yield hook, None
        elif isinstance(hook, MethodType):
            yield hook, type(hook.__self__)
        elif callable(hook):
            yield type(hook).__call__, type(hook)


_facts_by_code: dict[Any, _Facts] = {}


def _facts_of(kinds: tuple[type, ...], functions: tuple[HookFunction, ...]) -> _Facts:
    """Return what the code of classes and functions reads and writes; for the same ones, from memory."""
    key = kinds, *((function.__code__, owner) for member, owner in functions for function in functions_of(member))
    facts = _facts_by_code.get(key)
    if facts is None:
        if len(_facts_by_code) >= _MOST_FACTS:
            _facts_by_code.clear()
        facts = _facts_by_code[key] = _read_facts(kinds, functions)
    return facts


def _read_facts(kinds: Sequence[type], functions: Sequence[HookFunction]) -> _Facts:
    read = names_read(_code_of(kinds, functions))
    of_classes = {kind: writes_of([kind.forward], kind, nn.Module) for kind in kinds if issubclass(kind, nn.Module)}
    of_hooks = [writes_of([member], owner) for member, owner in functions]
    none = frozenset[str]()
    return _Facts(
        read=frozenset(name for name in read if not name.startswith("*")),
        fragments=tuple(name[1:] for name in read if name.startswith("*")),
        written=none.union(*(w.attributes for w in of_hooks), *(w.other for w in of_classes.values())),
        own={kind: w.own for kind, w in of_classes.items()},
        called=none.union(*(w.read for w in (*of_hooks, *of_classes.values()))),
    )


def _code_of(kinds: Sequence[type], functions: Sequence[HookFunction]) -> Iterator[Any]:
    """Yield functions, the members of classes and of all above them, and the functions beside these in their files."""
    yield from (member for member, _ in functions)
    owners = [owner for _, owner in functions if owner is not None and is_external(owner)]
    for kind in dict.fromkeys(base for owner in (*kinds, *owners) for base in owner.__mro__[:-1]):
        if not kind.__module__.startswith(_NO_CODE_OF_MODELS):
            yield from vars(kind).values()
            home = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
            yield from filter(lambda member: isinstance(member, FunctionType), list(home.values()))


# -- names and digests ---------------------------------------------------------------------------------


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
    """Return a digest of a value by its ``repr``."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()


# -- what is not as the library built it ---------------------------------------------------------------


def deviations(model: nn.Module) -> dict[str, str]:
    """Return the path of every module that may compute something else than its library's class, and why."""
    kinds: dict[type, str] = {}
    reasons = {path: deviation(module, kinds) for path, module in model.named_modules()}
    return {path: reason for path, reason in reasons.items() if reason}


def deviation(module: nn.Module, kinds: dict[type, str] | None = None) -> str:
    """Return why a module may compute something else than its library's class; nothing where it does not.

    ``kinds`` remembers what was found about classes.
    """
    attributes, kind = vars(module), type(module)
    if attributes["_forward_hooks"] or torch_module._global_forward_hooks:
        return "a forward hook"
    if attributes["_forward_pre_hooks"] or torch_module._global_forward_pre_hooks:
        return "a forward pre-hook"
    if parametrize.is_parametrized(module):
        return "a parametrization"
    for name, value in attributes.items():
        if isinstance(value, FunctionType | MethodType | partial) and hasattr(kind, name):
            return f"a replaced {name}"
    kinds = {} if kinds is None else kinds
    if kind not in kinds:
        kinds[kind] = _class_deviation(kind)
    return kinds[kind]


def _class_deviation(kind: type) -> str:
    for base in kind.__mro__:
        if is_external(base):
            return f"the class {base.__module__}.{base.__qualname__}"
        for name, _ in _patches(base):
            return f"a replaced {base.__name__}.{name}"
    return ""
