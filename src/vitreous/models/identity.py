"""Which model made a number: digests of its weights, its structure and settings, its code, and its preprocessing.

Structure is what the tree of modules looks like: paths, types, plain attributes, hooks. An attribute counts if some
code of the model may read it, and no forward writes it: what a forward notes about its input is no setting. Code is
everything that is neither of Vitreous nor of a library it runs with: classes, hooks, functions that were put in the
place of others. Device, training mode, gradient flags, names of classes and places of files are no part of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet, finalize, ref

from torch import Tensor, nn

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
_asked: WeakKeyDictionary[nn.Module, Snapshot] = WeakKeyDictionary()
_waiting: WeakKeyDictionary[nn.Module, tuple[finalize[Any, Any], WeakSet[Snapshot]]] = WeakKeyDictionary()
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
    """A model at one moment. Its weights are read when the identity is asked for.

    They must not have changed in between: nobody can say then which they were. Cost: two milliseconds, and a tenth of a
    forward for the identity.
    """

    def __init__(self, view: View, description: Description | None = None) -> None:
        origin = view if view.user is None else view.user
        description = description or Description(origin.model, origin)
        self._module, self._view_tensors = ref(origin.model), description.view_tensors
        self._state = state_of([*description.tensors, *self._view_tensors])
        self._weights = ""
        self._parts = {
            "structure": digest_of(description.lines),
            "preprocessing": _preprocessing_of(origin.preprocess),
            "code": "+".join(filter(None, (description.code, origin.factory))),
        }

    @classmethod
    def of_result(cls, view: View) -> Snapshot:
        """Return one for what may outlive the model: it is read when that goes, if nobody has asked before."""
        origin = view if view.user is None else view.user
        description = Description(origin.model, origin)
        taken = cls(origin, description)
        _wait(origin.model, description.tensors, taken)
        return taken

    @classmethod
    def of_question(cls, view: View) -> Snapshot:
        """Return the one of an earlier question, if it was not read yet and nothing seems to have changed."""
        taken, module = cls(view), (view if view.user is None else view.user).model
        with _guard:
            earlier = _asked.get(module)
            is_same = earlier is not None and (earlier._state, earlier._parts) == (taken._state, taken._parts)
            if earlier is None or earlier._weights or not is_same:
                earlier = _asked[module] = taken
            return earlier

    @property
    def identity(self) -> ModelIdentity:
        """What the model was when this was taken, with every byte of its weights.

        If they were changed since, this is equal to no other identity, and a warning says so.
        """
        module = self._module()
        if not self._weights and module is not None:
            self.read(Description(module).tensors)
            if not self._weights.startswith(_UNKNOWN):
                with _guard:
                    _known[module] = self._state, self._weights
        self._weights = self._weights or _UNKNOWN + uuid4().hex
        if self._weights.startswith(_UNKNOWN):
            text = "the model was changed before its result was stored: what is stored now is never used again"
            warnings.warn(text, VitreousWarning, stacklevel=3)
        return ModelIdentity(self._weights, **self._parts)

    @property
    def recent(self) -> ModelIdentity:
        """The identity, of weights that were read before if nothing seems to have changed: for what is in memory."""
        module = self._module()
        with _guard:
            then, digest = (None, "") if module is None else _known.get(module, (None, ""))
        return ModelIdentity(digest, **self._parts) if then == self._state else self.identity

    def read(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Read the weights, unless that was done or they are not the same any more."""
        named = [*tensors, *self._view_tensors]
        if not self._weights:
            is_same = state_of(named) == self._state
            self._weights = fingerprint_of(named) if is_same else _UNKNOWN + uuid4().hex


def _wait(module: nn.Module, tensors: Sequence[tuple[str, Tensor]], snapshot: Snapshot) -> None:
    """Read the weights of a model for its snapshots when it goes, as after ``explain(load(name), image)``.

    Aliases of the latest tensors are held: these have no hooks, which may refer to the model and keep it alive.
    """
    aliases = [(name, tensor.detach()) for name, tensor in tensors]
    with _guard:
        before = _waiting.get(module)
        snapshots = WeakSet[Snapshot]() if before is None else before[1]
        snapshots.add(snapshot)
        finalizer = finalize(module, _read_all, aliases, snapshots)
        finalizer.atexit = False
        _waiting[module] = finalizer, snapshots
    if before is not None:
        before[0].detach()


def _read_all(tensors: Sequence[tuple[str, Tensor]], snapshots: WeakSet[Snapshot]) -> None:
    for snapshot in list(snapshots):
        with suppress(Exception):  # such as a device that is gone too
            snapshot.read(tensors)


def state(module: nn.Module) -> Any:
    """Return what is another when a model was changed, without reading all of its weights."""
    description = Description(module)
    return state_of(description.tensors), digest_of(description.lines)


def _preprocessing_of(preprocess: Preprocess) -> str:
    """Return the digest of a preprocessing: its numbers, and the code of a user's function."""
    steps = [each for each in preprocess.steps() if is_external(each)]
    code = settled(preprocess, code_digest(steps, noun="your preprocess")) if steps else ""
    numbers = sorted(preprocess.to_json().items())
    return code if is_unknown(code) else digest_of([type_name(type(preprocess)), numbers, code])
