"""A digest of weights, and one of code: what tells two models of one name apart.

Every tensor is read as 64-bit words in rows of 4096. The words of a row are multiplied with fixed odd numbers and
summed modulo 2^64, on the device where they are, and the sums are digested. One word that changes changes the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from threading import Lock
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.code_digest import code_digest, is_external, is_unknown

__all__ = ["code_of", "fingerprint", "fingerprint_of", "state"]

_ROW = 4096
_ROWS_AT_ONCE = 2**10
_PROBES = 8
_SCALARS = (bool, float, str)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_known: WeakKeyDictionary[nn.Module, tuple[Any, str]] = WeakKeyDictionary()
_unknown: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
_guard = Lock()


def fingerprint(module: nn.Module) -> str:
    """Return the digest of a module's parameters and persistent buffers, by name.

    It is computed again when a tensor was exchanged or changed in place: its version and a few of its values tell.
    """
    now = state(module)
    with _guard:
        then, digest = _known.get(module, (None, ""))
    if then != now:
        digest = fingerprint_of(module.state_dict(keep_vars=True).items())
        with _guard:
            _known[module] = now, digest
    return digest


def state(module: nn.Module) -> Any:
    """Return what is another when a tensor of a module was exchanged or changed, without reading all of it."""
    tensors = module.state_dict(keep_vars=True)
    versions = tuple((n, each.data_ptr(), each._version) for n, each in tensors.items() if not each.is_inference())
    return versions, _probes(tensors.values())


def fingerprint_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the digest of named tensors."""
    digest = hashlib.blake2b(digest_size=16)
    with torch.no_grad():
        for name, tensor in tensors:
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            digest.update(_sums(tensor.detach()).cpu().numpy().tobytes())
    return digest.hexdigest()


def code_of(module: nn.Module) -> str:
    """Return a digest of the code of a model that comes from elsewhere; nothing where Vitreous and libraries have all.

    It has the classes of all modules from elsewhere with those plain attributes that a forward does not usually set
    (numbers with a point, words, flags), and functions that were put on any module. Where it cannot be known, it is
    the same for this module in this process, and for nothing else.
    """
    kinds: dict[type, bool] = {}
    values: list[Any] = []
    for path, part in module.named_modules():
        kind = type(part)
        if kind not in kinds:
            kinds[kind] = any(is_external(each) for each in kind.__mro__)
        for name, value in vars(part).items():
            if name in _OF_EVERY_MODULE:
                continue
            value = value.__func__ if isinstance(value, MethodType) else value  # its owner may be this very model
            if is_external(value) if callable(value) else kinds[kind] and type(value) in _SCALARS:
                values.append((path, name, value))
    external = tuple(kind for kind, is_own in kinds.items() if is_own)
    digest = code_digest((external, sorted(values, key=lambda each: each[:2]))) if external or values else ""
    with _guard:
        return _unknown.setdefault(module, digest) if is_unknown(digest) else digest


def _sums(tensor: Tensor) -> Tensor:
    """Return the sum of every row of words, each word times an odd number that belongs to its place."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    words = F.pad(flat, (0, -len(flat) % (8 * _ROW))).view(torch.int64).view(-1, _ROW)
    places = torch.arange(_ROW, dtype=torch.int64, device=tensor.device)
    odd = (places * 0x5DEECE66D + 0xB) * 0x2545F4914F6CDD1D * 2 + 1  # wraps round, on purpose
    cuts = range(0, len(words), _ROWS_AT_ONCE)
    return torch.cat([words[:0, 0], *((words[at : at + _ROWS_AT_ONCE] * odd).sum(dim=1) for at in cuts)])


def _probes(tensors: Iterable[Tensor]) -> bytes:
    """Return a few values of each tensor: ``tensor.data`` can be changed without a trace in its version."""
    with torch.no_grad():
        few = [t.detach().reshape(-1)[:: max(1, t.numel() // _PROBES)][: _PROBES + 1].double() for t in tensors]
        homes = dict.fromkeys(each.device for each in few)
        return b"".join(torch.cat([e for e in few if e.device == home]).cpu().numpy().tobytes() for home in homes)
