"""Digests of tensors, fast enough to be taken of all weights before anything on disk is used or written.

The bytes of a tensor are read as 32-bit words in rows of 8192. A row becomes one number of 64 bits, the sum of its
words, each times a random key of its place, modulo 2^64, on the device where it is; the numbers are digested. Words
have half the bits of keys so that the topmost bit of a word counts too: signs are there. A digest is the same on every
device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["fingerprint_of", "state_of"]

_ROW = 8192
_BYTES = 4 * _ROW
_ROWS_AT_ONCE = {"cpu": 32}  # what is written out stays in the cache of a core
_MANY_ROWS = 2**11
_PROBES = 8


def fingerprint_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the digest of named tensors, of every byte. Cost: about a tenth of a forward; one synchronisation."""
    named = [(name, _dense(tensor)) for name, tensor in tensors]
    digest = hashlib.blake2b(digest_size=16)
    with torch.no_grad():
        for (name, tensor), sums in zip(named, _sums([tensor for _, tensor in named]), strict=True):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            digest.update(sums)
    return digest.hexdigest()


def state_of(tensors: Sequence[tuple[str, Tensor]]) -> Any:
    """Return what is another when a tensor was exchanged or changed, without reading all of it.

    What is written through ``tensor.data`` or NumPy leaves no trace in a version: a few values of each tensor tell, if
    they are among those that changed. That is enough to look up what is in memory, never for what is on disk.
    """
    versions = tuple((name, _place(t), None if t.is_inference() else t._version) for name, t in tensors)
    return versions, _probes([_dense(tensor) for _, tensor in tensors])


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor.detach().to_dense()


def _place(tensor: Tensor) -> int:
    """Return where the values are; of a sparse tensor, which has no one place, itself."""
    return tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)


def _sums(tensors: Sequence[Tensor]) -> list[bytes]:
    """Return the sums of the rows of each tensor, the last one padded; those of one place in memory once."""
    places = [(t.device, t.data_ptr(), t.dtype, t.shape, t.stride()) for t in tensors]
    distinct = dict(zip(places, tensors, strict=True))
    sums: dict[Any, bytes] = {}
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        mine = {place: _bytes(tensor) for place, tensor in distinct.items() if tensor.device == device}
        ends = torch.zeros(len(mine), _BYTES, dtype=torch.uint8, device=device)
        rows = []
        for end, flat in zip(ends, mine.values(), strict=True):
            whole = len(flat) // _BYTES * _BYTES
            end[: len(flat) - whole].copy_(flat[whole:])
            rows.append(_row_sums(flat[:whole]))
        numbers = torch.cat([_row_sums(ends.view(-1)), *rows]).cpu().numpy()
        first = len(mine)
        for number, (place, own) in enumerate(zip(mine, rows, strict=True)):
            sums[place] = numbers[first : first + len(own)].tobytes() + numbers[number : number + 1].tobytes()
            first += len(own)
    return [sums[place] for place in places]


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat if flat.data_ptr() % 4 == 0 and flat.storage_offset() % 4 == 0 else flat.clone()


def _row_sums(flat: Tensor) -> Tensor:
    """Return the sums of rows of bytes."""
    words, keys = flat.view(torch.int32).view(-1, _ROW), _keys(flat.device)
    sums = torch.empty(len(words), dtype=torch.int64, device=flat.device)
    if not len(words):
        return sums
    at_once = _ROWS_AT_ONCE.get(flat.device.type, _MANY_ROWS)
    wide = torch.empty(min(at_once, len(words)), _ROW, dtype=torch.int64, device=flat.device)
    for start in range(0, len(words), at_once):
        some = words[start : start + at_once]
        part = wide[: len(some)].copy_(some)
        if flat.device.type == "cpu":
            torch.mv(part, keys, out=sums[start : start + len(some)])
        else:
            torch.sum(part.mul_(keys), dim=1, out=sums[start : start + len(some)])
    return sums


@lru_cache(maxsize=8)
def _keys(device: torch.device) -> Tensor:
    drawn = hashlib.shake_256(b"vitreous fingerprint").digest(8 * _ROW)
    with torch.inference_mode(False):
        return torch.from_numpy(np.frombuffer(drawn, "<i8").astype(np.int64)).to(device)


def _probes(tensors: Sequence[Tensor]) -> bytes:
    """Return a few values of each tensor."""
    with torch.no_grad():
        few = [t.detach().reshape(-1)[:: max(1, t.numel() // _PROBES)][: _PROBES + 1].double() for t in tensors]
        homes = dict.fromkeys(each.device for each in few)
        return b"".join(torch.cat([e for e in few if e.device == home]).cpu().numpy().tobytes() for home in homes)
