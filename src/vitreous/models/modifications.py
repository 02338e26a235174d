"""What users changed about a model: hooks, replaced methods, adapters, classes of their own.

``structure`` is a cheap digest of all that decides which code a forward runs and with which settings: it is compared at
every call. ``deviations`` says where a model is not what its library built, and how: only there is anything verified
beyond the logits. Weights and buffers are no part of either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cached_property, partial, partialmethod
from itertools import islice
from types import FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

__all__ = [
    "LIBRARIES",
    "Watch",
    "Writes",
    "deviation",
    "deviations",
    "note_state",
    "state_names",
    "structure",
    "tensors_of",
]

LIBRARIES = ("torch", "timm", "transformers", "torchvision", "vitreous")
_NEUTRAL = ("builtins", "abc", "typing", "collections", "enum")
_INTERNAL = frozenset(vars(nn.Module()))
_LAST = list(vars(nn.Module())).index("_modules")
"""Every module begins with the same attributes in one order, unless something was set before torch could."""
_HELD = (bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device, property, staticmethod)
"""What a watch keeps alive, so that no other object gets its identity; none of these refers to a model."""

state_names: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""Attributes of a module that its own forward sets: they change with every call and are no setting."""


_with_state: set[int] = set()
"""Where these are kept: identities, which are looked up faster."""


def note_state(module: nn.Module, names: frozenset[str]) -> None:
    """Remember which attributes a module's own forward sets."""
    state_names[module] = state_names.get(module, frozenset()) | names
    _with_state.add(id(module))


# -- the digest --------------------------------------------------------------------------------------------


def structure(model: nn.Module) -> list[int]:
    """Return what is another when a module, a hook, a method of a class or a setting of a module was changed."""
    kinds, seen, parts, waiting = set[type](), set[int](), list[int](), [model]
    while waiting:
        module = waiting.pop()
        number = id(module)
        if number in seen:
            continue
        seen.add(number)
        kinds.add(type(module))
        attributes = module.__dict__
        if number in _with_state or next(islice(attributes, _LAST, None), "") != "_modules":
            parts.append(hash((number, *map(id, _settings(module, attributes)))))
        else:  # the same, quickly
            parts.append(hash((number, *map(id, islice(attributes.values(), _LAST + 1, None)))))
        if attributes["_forward_hooks"] or attributes["_forward_pre_hooks"]:
            parts += (*attributes["_forward_hooks"], -1, *attributes["_forward_pre_hooks"])
        if attributes["_modules"]:
            waiting += [child for child in attributes["_modules"].values() if child is not None]
    bases = {base for kind in kinds for base in kind.__mro__ if base is not object}
    parts += [hash(tuple(map(id, vars(base).values()))) for base in sorted(bases, key=id)]
    parts += (*torch_module._global_forward_hooks, -1, *torch_module._global_forward_pre_hooks)
    return parts


def _settings(module: nn.Module, attributes: dict[str, Any]) -> list[Any]:
    """Return the values of a module's attributes, less those of every module and what its own forward sets."""
    own = state_names.get(module, frozenset())
    return [value for name, value in attributes.items() if name not in _INTERNAL and name not in own]


class Watch:
    """Holds a digest good: identities are only unique among what lives, and containers change without a new one."""

    def __init__(self, model: nn.Module) -> None:
        self.is_stale = False
        self._alive: list[Any] = []
        self._containers: list[tuple[ref[nn.Module], str]] = []
        known: set[int] = set()
        for module in model.modules():
            self._keep(module)
            for name, value in vars(module).items():
                if name in _INTERNAL or name in state_names.get(module, ()):
                    continue
                self._keep(value)
                if _contents(value) is not None and id(value) not in known:
                    known.add(id(value))
                    self._containers.append((ref(module), name))
        for base in {base for module in model.modules() for base in type(module).__mro__} - {object}:
            for value in vars(base).values():
                self._keep(value)
        for content in self._content():
            self._keep(content)
        self._digest = self._digested()

    def holds(self) -> bool:
        """Whether everything that was there still is, and containers hold what they held."""
        return not self.is_stale and (not self._containers or self._digest == self._digested())

    def _keep(self, value: Any) -> None:
        if isinstance(value, _HELD):
            self._alive.append(value)
            return
        stale = ref(self)

        def gone(_: Any) -> None:
            watch = stale()
            if watch is not None:
                watch.is_stale = True

        try:
            self._alive.append(ref(value, gone))
        except TypeError:  # a plain list or dict, of which only the contents count
            return

    def _content(self) -> Iterator[Any]:
        for owner, name in self._containers:
            module = owner()
            yield from _contents(vars(module).get(name)) or () if module is not None else ()

    def _digested(self) -> int:
        return hash(tuple(map(id, self._content())))


def _contents(value: Any) -> Any:
    """Return what a container or a configuration holds; ``None`` for anything else."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | set):
        return value
    if isinstance(value, nn.Module | Tensor | type | FunctionType | MethodType | partial) or callable(value):
        return None
    inside = getattr(value, "__dict__", None)
    return inside.values() if isinstance(inside, dict) else None


# -- what a forward writes ---------------------------------------------------------------------------------


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Iterate over a module's buffers and the tensors among its attributes, but not over parameters."""
    yield from (buffer for buffer in module._buffers.values() if buffer is not None)
    for name, value in vars(module).items():
        if name in _INTERNAL:
            continue
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        yield from (each for each in inside if isinstance(each, Tensor) and not isinstance(each, nn.Parameter))


class Writes:
    """Finds what the forwards of a copy write: its tensors must be its own, and equal to those of the model."""

    def __init__(self, model: nn.Module, copy: nn.Module) -> None:
        self._pairs = list(zip(model.named_modules(), copy.modules(), strict=True))
        self._tensors = [
            (path, tensor, tensor._version, own)
            for (path, module), changed in self._pairs
            for own, tensor in zip(tensors_of(module), tensors_of(changed), strict=True)
        ]
        self._names = [{name: id(value) for name, value in vars(changed).items()} for _, changed in self._pairs]

    def tensors(self) -> set[str]:
        """Return the paths of the modules of which a tensor was changed in place."""
        return {
            path
            for path, tensor, version, own in self._tensors
            if tensor._version != version or not _is_equal(tensor, own)
        }

    def names(self) -> dict[nn.Module, frozenset[str]]:
        """Return, for modules of the model, the attributes that a forward set to something else."""
        found = {
            module: frozenset(name for name, value in vars(changed).items() if before.get(name) != id(value))
            for ((_, module), changed), before in zip(self._pairs, self._names, strict=True)
        }
        return {module: names for module, names in found.items() if names}


def _is_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of any layout hold the same values; where they cannot be compared, versions must do."""
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    try:
        return torch.equal(one, other)
    except (NotImplementedError, RuntimeError):
        return True


# -- what is not as the library built it -------------------------------------------------------------------


def deviations(model: nn.Module) -> dict[str, str]:
    """Return the path of every module that may compute something else than its library's class, and why."""
    kinds: dict[type, str] = {}
    told = {path: deviation(module, kinds) for path, module in model.named_modules()}
    return {path: why for path, why in told.items() if why}


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
    if kinds is None:
        return _class_deviation(kind)
    if kind not in kinds:
        kinds[kind] = _class_deviation(kind)
    return kinds[kind]


def _class_deviation(kind: type) -> str:
    for base in kind.__mro__:
        if base is object or base.__module__.partition(".")[0] in _NEUTRAL:
            continue
        if base.__module__.partition(".")[0] not in LIBRARIES:
            return f"the class {base.__module__}.{base.__qualname__}"
        for name, value in vars(base).items():
            if not _is_library_code(value):
                return f"a replaced {base.__name__}.{name}"
        own = vars(base).get("forward")
        if isinstance(own, FunctionType) and own.__qualname__.rpartition(".")[0] not in ("", base.__qualname__):
            return f"a replaced {base.__name__}.forward ({own.__qualname__})"
    return ""


def _is_library_code(value: Any) -> bool:
    """Whether a function of a class comes from a file of a library; what is no function does."""
    if isinstance(value, property):
        return all(_is_library_code(part) for part in (value.fget, value.fset, value.fdel))
    if isinstance(value, cached_property | partial | partialmethod):
        return _is_library_code(value.func)
    value = getattr(value, "__func__", value)
    if not isinstance(value, FunctionType):
        return True
    path = value.__code__.co_filename
    return path.startswith("<") or path.startswith(_folders())


def _folders() -> tuple[str, ...]:
    files = [getattr(sys.modules.get(name), "__file__", None) for name in LIBRARIES]
    return tuple(os.path.dirname(file) + os.sep for file in files if file)
