"""Twins: structural copies that share the weights, so that what a pass installs never touches the user's modules.

Modules, and the containers, bound methods and partial functions that refer to them, are copied; parameters and buffers
become constants that view the same memory (training goes on and is seen); everything else is shared. Tensors that a
forward writes are the exception: a counter or a moving average is copied, and the user's does not move. A twin is
always in evaluation mode, takes milliseconds to make and belongs to whoever made it: hooks and flags on it are nobody
else's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError
from vitreous.models.changes import deviations, tensors_of

if TYPE_CHECKING:
    from vitreous.models.view import View

__all__ = ["twin", "writers"]

writers: WeakKeyDictionary[nn.Module, frozenset[str]] = WeakKeyDictionary()
"""The modules of verified models whose tensors a forward writes, by their paths."""

_PLAIN = frozenset((bool, int, float, str, bytes, type(None), type, FunctionType, BuiltinFunctionType))
_BARE = frozenset((dict, OrderedDict, set))

T = TypeVar("T", bound="nn.Module | View")


def twin(original: T, *kinds: type, trainable: bool = False, own_tensors: bool = False) -> T:
    """Return a copy of a module, or of an object of ``kinds`` that refers to modules.

    ``trainable`` keeps the flags of the parameters: gradients then gather in the copy. ``own_tensors`` copies all
    tensors that are no parameters, and not only those that a forward is known to write.
    """
    model = original if isinstance(original, nn.Module) else original.model
    try:
        with torch.inference_mode(False), torch.no_grad():
            cloned = {id(tensor) for module in _writing(model, own_tensors) for tensor in tensors_of(module)}
            return _Copier((nn.Module, *kinds), trainable, cloned)(original)  # type: ignore[no-any-return]
    except (TypeError, RuntimeError, AttributeError) as error:
        what = type(original).__name__
        raise ModelError(f"{what} cannot be copied part by part, which watching it needs: {error}") from error


def _writing(model: nn.Module, every: bool) -> Iterable[nn.Module]:
    """Return the modules whose tensors may be written: until a model is verified, all if there is code of a user's."""
    if every or (model not in writers and deviations(model)):
        return model.modules()
    paths = writers.get(model)
    return [module for path, module in model.named_modules() if path in paths] if paths else ()


class _Copier:
    def __init__(self, kinds: tuple[type, ...], trainable: bool, cloned: set[int]) -> None:
        self.kinds, self.trainable, self.cloned = kinds, trainable, cloned
        self.known: dict[int, Any] = {}
        self.seen: list[Any] = []  # kept alive, so that no identity is used twice

    def __call__(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
            return value
        found = self.known.get(id(value))
        if found is not None:
            return found
        if isinstance(value, Tensor):
            return self._note(value, self._tensor(value))
        if kind in (dict, OrderedDict):
            made = self._note(value, kind())
            for key, each in list(value.items()):
                made[key] = each if type(each) in _PLAIN else self(each)
            return made
        if kind is list:
            grown = self._note(value, [])
            grown.extend(self(each) for each in list(value))
            return grown
        if kind in (tuple, set, frozenset):
            return self._note(value, kind(self(each) for each in list(value)))
        if isinstance(value, self.kinds):
            return self._object(value)
        if isinstance(value, MethodType):
            owner = self(value.__self__)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if kind is partial:
            return partial(self(value.func), *self(value.args), **self(value.keywords))
        return value

    def _note(self, value: Any, made: Any) -> Any:
        self.known[id(value)] = made
        self.seen.append(value)
        return made

    def _object(self, value: Any) -> Any:
        made = self._note(value, object.__new__(type(value)))
        attributes = vars(made)
        attributes.update(vars(value))
        for name, each in attributes.items():  # most of what a module has: settings, hooks that nobody set
            kind = type(each)
            if kind in _PLAIN:
                continue
            attributes[name] = kind() if kind in _BARE and not each else self(each)
        if isinstance(value, nn.Module):
            attributes["training"] = False
        return made

    def _tensor(self, value: Tensor) -> Tensor:
        # a model made in inference mode has weights that no graph may hold: only those are copied
        same = value.clone() if value.is_inference() or id(value) in self.cloned else value.detach()
        if isinstance(value, nn.Parameter):
            return nn.Parameter(same, requires_grad=self.trainable and value.requires_grad)
        return same
