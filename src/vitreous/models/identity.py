"""Which model made a number: digests of its weights, its structure and settings, its code, and its preprocessing.

The bytes of a tensor are read as 32-bit words in rows of 8192. A row becomes one number of 64 bits, the sum of its
words, each times a random key of its place, modulo 2^64, on the device where it is; the numbers are digested. Words
have half the bits of keys so that the topmost bit of a word counts too: signs are there. A digest is the same on every
device, and fast enough to be taken of all weights before anything on disk is used or written.

Structure is what the tree of modules looks like: paths, types, plain attributes, hooks. An attribute counts if some
code of the model may read it, and no forward writes it: what a forward notes about its input is no setting. Code is
everything that is neither of Vitreous nor of a library it runs with: classes, hooks, functions that were put in the
place of others. Device, training mode, gradient flags, names of classes and places of files are no part of it.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet, finalize, ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.code_digest import code_digest, is_external, is_unknown
from vitreous.errors import VitreousWarning
from vitreous.models.description import Description, digest_of, settled, type_name
from vitreous.models.preprocess import Preprocess

if TYPE_CHECKING:
    from vitreous.models.base import VisionModel

_ROW = 8192
_BYTES = 4 * _ROW
_PROBES = 8


def fingerprint_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the digest of named tensors, of every byte. Cost: about a tenth of a forward."""
    named = [(name, _dense(tensor)) for name, tensor in tensors]
    digest = hashlib.blake2b(digest_size=16)
    with torch.no_grad():
        sums = [_row_sums(tensor) for _, tensor in named]  # a GPU has begun with the last when the first is waited for
        for (name, tensor), numbers in zip(named, sums, strict=True):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            digest.update(numbers.cpu().numpy().tobytes())
    return digest.hexdigest()


def state_of(tensors: Sequence[tuple[str, Tensor]]) -> Any:
    """Return what is another when a tensor was exchanged or changed, without reading all of it.

    What is written through ``tensor.data`` or NumPy leaves no trace in a version: a few values of each tensor tell, if
    they are among those that changed. That is enough to look up what is in memory, never for what is on disk.
    """
    places = (t.data_ptr() if t.layout is torch.strided else id(t) for _, t in tensors)  # a sparse one has no one place
    versions = (None if t.is_inference() else t._version for _, t in tensors)
    names = (name for name, _ in tensors)
    return tuple(zip(names, places, versions, strict=True)), _probes([_dense(tensor) for _, tensor in tensors])


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.detach().to_dense()


def _row_sums(tensor: Tensor) -> Tensor:
    """Return the sums of the rows of a tensor, after which there is always one that is padded, of what is left."""
    flat, is_cpu = tensor.detach().contiguous().reshape(-1).view(torch.uint8), tensor.device.type == "cpu"
    flat = flat if flat.data_ptr() % 4 == 0 and flat.storage_offset() % 4 == 0 else flat.clone()
    in_rows = len(flat) // _BYTES * _BYTES
    end = F.pad(flat[in_rows:], (0, in_rows + _BYTES - len(flat)))
    words, last = (part.view(torch.int32).view(-1, _ROW) for part in (flat[:in_rows], end))
    count = min(len(words) or 1, 32 if is_cpu else 2**11)  # few enough to stay in the cache of a core
    buffer, keys, sums = torch.empty(count, _ROW, dtype=torch.int64, device=flat.device), _keys(flat.device), []
    for chunk in (*torch.split(words, count), last):
        rows = buffer[: len(chunk)].copy_(chunk)
        sums.append(torch.mv(rows, keys) if is_cpu else rows.mul_(keys).sum(dim=1))
    return torch.cat(sums)


@lru_cache(maxsize=8)
def _keys(device: torch.device) -> Tensor:
    numbers = hashlib.shake_256(b"vitreous fingerprint").digest(8 * _ROW)
    with torch.inference_mode(False):
        return torch.from_numpy(np.frombuffer(numbers, "<i8").astype(np.int64)).to(device)


def _probes(tensors: Sequence[Tensor]) -> bytes:
    """Return a few values of each tensor."""
    with torch.no_grad():
        few = [t.detach().reshape(-1)[:: max(1, t.numel() // _PROBES)][: _PROBES + 1].double() for t in tensors]
        devices = dict.fromkeys(values.device for values in few)
        return b"".join(torch.cat([v for v in few if v.device == device]).cpu().numpy().tobytes() for device in devices)


_UNKNOWN = "unknown "
_weight_digests: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()
_latest_snapshots: WeakKeyDictionary[nn.Module, Snapshot] = WeakKeyDictionary()
_finalizers: WeakKeyDictionary[nn.Module, tuple[finalize[Any, Any], WeakSet[Snapshot]]] = WeakKeyDictionary()
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
        digests, _, code = text.partition("+")
        weights, structure, preprocessing, *_ = *digests.split("-"), "", ""
        return cls(weights, structure, preprocessing, code)

    @property
    def has_unknown_code(self) -> bool:
        return is_unknown(self.code)

    def differences(self, other: ModelIdentity, code: bool = True) -> str:
        """Say in words what is not the same: ``"other weights and other preprocessing"``; nothing if all is."""
        nouns = {"weights": "weights", "structure": "structure or settings", "preprocessing": "preprocessing"}
        nouns |= {"code": "code"} if code else {}
        different = [f"other {noun}" for part, noun in nouns.items() if getattr(self, part) != getattr(other, part)]
        return " and ".join(filter(None, (", ".join(different[:-1]), *different[-1:])))


class Snapshot:
    """A model at one moment. Its weights are read when the identity is asked for.

    They must not have changed in between: nobody can say then which they were. Cost: two milliseconds, and a tenth of a
    forward for the identity.
    """

    def __init__(self, model: VisionModel, description: Description | None = None) -> None:
        origin = model.source_model or model
        description = description or Description(origin.module, origin)
        self._module, self._view_tensors = ref(origin.module), description.view_tensors
        self._state = state_of([*description.tensors, *self._view_tensors])
        self._weights = ""
        self._parts = {
            "structure": digest_of(description.lines),
            "preprocessing": _preprocessing_of(origin.preprocess),
            "code": "+".join(filter(None, (description.code, origin.builder_digest))),
        }

    @classmethod
    def of_result(cls, model: VisionModel) -> Snapshot:
        """Return one for what may outlive the model: it is read when that goes, if nobody has asked before."""
        origin = model.source_model or model
        description = Description(origin.module, origin)
        taken = cls(origin, description)
        _wait(origin.module, description.tensors, taken)
        return taken

    @classmethod
    def of_question(cls, model: VisionModel) -> Snapshot:
        """Return the one of an earlier question, if it was not read yet and nothing seems to have changed."""
        taken, module = cls(model), (model.source_model or model).module
        with _guard:
            earlier = _latest_snapshots.get(module)
            is_same = earlier is not None and (earlier._state, earlier._parts) == (taken._state, taken._parts)
            if earlier is None or earlier._weights or not is_same:
                earlier = _latest_snapshots[module] = taken
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
                    _weight_digests[module] = self._state, self._weights
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
            then, digest = (None, "") if module is None else _weight_digests.get(module, (None, ""))
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
        before = _finalizers.get(module)
        snapshots = WeakSet[Snapshot]() if before is None else before[1]
        snapshots.add(snapshot)
        finalizer = finalize(module, _read_all, aliases, snapshots)
        finalizer.atexit = False
        _finalizers[module] = finalizer, snapshots
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
    steps = [step for step in preprocess.steps() if is_external(step)]
    code = settled(preprocess, code_digest(steps, noun="your preprocess")) if steps else ""
    numbers = sorted(preprocess.to_json().items())
    return code if is_unknown(code) else digest_of([type_name(type(preprocess)), numbers, code])
