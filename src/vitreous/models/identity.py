"""Which model made a number: digests of its weights, its structure and settings, its code, and its preprocessing.

Structure is what the tree of modules looks like: paths, types, plain attributes, hooks. An attribute counts if some
code of the model may read it, and no forward writes it: what a forward notes about its input is no setting. Code is
everything that is neither of Vitreous nor of a library it runs with: classes, hooks, functions that were put in the
place of others. Device, training mode, gradient flags, names of classes and places of files are no part of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, ref

from torch import nn

from vitreous.code_digest import code_digest, is_external, is_unknown
from vitreous.errors import VitreousWarning
from vitreous.models.description import Description, digest_of, settled, type_name
from vitreous.models.fingerprint import fingerprint_of, state_of
from vitreous.models.preprocess import Preprocess

if TYPE_CHECKING:
    from vitreous.models.view import View

__all__ = ["ModelIdentity", "Snapshot", "state"]

_UNKNOWN = "unknown "
_known: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()
_guard = Lock()


@dataclass(frozen=True)
class ModelIdentity:
    """Digests of all that a model's numbers depend on, beside inputs, precision and device."""

    weights: str
    structure: str = ""
    preprocessing: str = ""
    code: str = ""
    """Nothing where Vitreous and its libraries have all the code."""

    def __str__(self) -> str:
        text = "-".join((self.weights, self.structure, self.preprocessing))
        return f"{text}+{self.code}" if self.code else text

    @classmethod
    def parse(cls, text: str) -> ModelIdentity:
        """Read what ``str`` wrote; of a text of an earlier version, that has less, what it has."""
        plain, _, code = text.partition("+")
        weights, structure, preprocessing, *_ = *plain.split("-"), "", ""
        return cls(weights, structure, preprocessing, code)

    @property
    def has_unknown_code(self) -> bool:
        return is_unknown(self.code)

    def differences(self, other: ModelIdentity, code: bool = True) -> str:
        """Say in words what is not the same: ``"other weights and other preprocessing"``; nothing if all is."""
        parts = {
            "other weights": self.weights != other.weights,
            "other structure or settings": self.structure != other.structure,
            "other preprocessing": self.preprocessing != other.preprocessing,
            "other code": code and self.code != other.code,
        }
        different = [name for name, is_other in parts.items() if is_other]
        return " and ".join(filter(None, (", ".join(different[:-1]), *different[-1:])))


class Snapshot:
    """A model at one moment. Its weights are only read when the digest is asked for, and then all of them.

    They must not have changed in between. Cost: a millisecond or two, and a tenth of a forward with the digest.
    """

    def __init__(self, view: View) -> None:
        origin = view if view.user is None else view.user
        description = Description(origin.model, origin)
        self._module, self._state = ref(origin.model), state_of(description.tensors)
        self._parts = {
            "structure": digest_of(description.lines),
            "preprocessing": _preprocessing_of(origin.preprocess),
            "code": "+".join(filter(None, (description.code, origin.factory))),
        }
        self._facts_of_view = [(name, each) for name, each in description.tensors if name.startswith("view.")]

    @cached_property
    def identity(self) -> ModelIdentity:
        """What the model was when this was taken, with every byte of its weights.

        If they were changed since, or the model is gone, nobody can say: this is then equal to no other.
        """
        module = self._module()
        tensors = None if module is None else [*Description(module).tensors, *self._facts_of_view]
        if module is None or tensors is None or state_of(tensors) != self._state:
            why = "is gone" if module is None else "was changed"
            text = f"the model {why} before its result was stored: the result is kept, and never used again"
            warnings.warn(text, VitreousWarning, stacklevel=3)
            return ModelIdentity(_UNKNOWN + uuid4().hex, **self._parts)
        digest = fingerprint_of(tensors)
        with _guard:
            _known[module] = self._state, digest
        return ModelIdentity(digest, **self._parts)

    @property
    def recent(self) -> ModelIdentity:
        """The identity, of weights that were read before if nothing seems to have changed: for what is in memory."""
        module = self._module()
        with _guard:
            then, digest = (None, "") if module is None else _known.get(module, (None, ""))
        return ModelIdentity(digest, **self._parts) if then == self._state else self.identity


def state(module: nn.Module) -> Any:
    """Return what is another when a model was changed, without reading all of its weights."""
    description = Description(module)
    return state_of(description.tensors), digest_of(description.lines)


def _preprocessing_of(preprocess: Preprocess) -> str:
    """Return the digest of a preprocessing: its numbers, and the code of a user's function."""
    steps = [each for each in preprocess.steps() if is_external(each)]
    code = settled(preprocess, code_digest(steps)) if steps else ""
    numbers = sorted(preprocess.to_json().items())
    return code if is_unknown(code) else digest_of([type_name(type(preprocess)), numbers, code])
