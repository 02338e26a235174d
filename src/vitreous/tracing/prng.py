"""Random numbers without a state: each is a hash of (seed, image, purpose, step, place).

So they depend neither on an image's neighbours nor on how a batch is cut, on the default dtype or on the device: the
same integers on a CPU and a GPU, floats to rounding. A whole batch takes a few vectorised integer operations. The hash
is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014, with the constants of Stafford's variant 13) over a key for
each image plus multiples of an odd constant, as that generator itself counts.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import VitreousError

_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_CHUNK = 2**23  # numbers hashed together: integers take more memory than what is made of them


class PRNGKey:
    """The random numbers of some rows (images, replicas), one ``key`` each: ``[B]`` in int64."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys

    @classmethod
    def of(cls, seed: int, purpose: str, device: torch.device | str = "cpu") -> PRNGKey:
        """Return the one row of numbers that belongs to a seed and a purpose, whatever the image."""
        return cls(torch.zeros(1, dtype=torch.int64, device=device)).at(check_seed(seed)).fold_in(purpose)

    @classmethod
    def of_images(cls, seed: int, purpose: str, images: Tensor) -> PRNGKey:
        """Return one row for each image, by its content."""
        return cls(content_keys(images)).at(check_seed(seed)).fold_in(purpose)

    def at(self, *numbers: int | Tensor) -> PRNGKey:
        """Return other numbers: those of a step, a layer, a copy, the same for all rows or one for each."""
        keys = self.keys
        for number in numbers:
            number = torch.as_tensor(number, dtype=torch.int64)
            keys = _mixed(keys ^ _mixed(number.to(keys.device) * _signed(_GAMMA) + 1))
        return PRNGKey(keys)

    def fold_in(self, purpose: str) -> PRNGKey:
        """The same for a purpose in words."""
        digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
        return self.at(int.from_bytes(digest, "little", signed=True))

    def select(self, index: Tensor) -> PRNGKey:
        """Return some rows, in this order."""
        return PRNGKey(self.keys[index.to(self.keys.device)])

    # -- numbers ---------------------------------------------------------------------------------------

    def bits(self, *shape: int) -> Tensor:
        """Return 64 random bits for each place, ``[B, *shape]``, as int64."""
        places = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=self.keys.device)
        return _mixed(self.keys[:, None] + places * _signed(_GAMMA)).view(-1, *shape)

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers in [0, 1), multiples of 2^-24, in float32."""
        return ((self.bits(*shape) >> 40) & 0xFFFFFF).to(torch.float32).mul_(2.0**-24)

    def below(self, most: int, *shape: int) -> Tensor:
        """Return whole numbers in 0 .. most - 1."""
        return (self.bits(*shape) >> 1).abs() % most

    def permutation(self, size: int) -> Tensor:
        """Return a random order of 0 .. size - 1 for each row: ``[B, size]``."""
        return self.bits(size).argsort(dim=1, stable=True)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers in float32, by the transformation of Box and Muller."""
        count = math.prod(shape)
        numbers = torch.empty(len(self.keys), count, dtype=torch.float32, device=self.keys.device)
        step = max(1, _CHUNK // max(1, count))
        for start in range(0, len(numbers), step):
            numbers[start : start + step] = PRNGKey(self.keys[start : start + step])._pairs(count)
        return numbers.view(-1, *shape)

    def _pairs(self, count: int) -> Tensor:
        """Two numbers come from the same 64 bits, so that each depends on its own place only."""
        bits = self.bits((count + 1) // 2)
        length = ((bits >> 32) & 0xFFFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-32).log_().mul_(-2).clamp_(min=0)
        angle = (bits & 0xFFFFFFFF).to(torch.float32).mul_(2 * math.pi * 2.0**-32)
        length.sqrt_()
        return torch.stack([length * angle.cos(), length * angle.sin_()], dim=-1).flatten(1)[:, :count]


def content_keys(images: Tensor) -> Tensor:
    """Return a key for each image ``[B, ...]`` from its content, in float32: ``[B]``."""
    flat = images.detach().to(torch.float32).flatten(1)
    words = F.pad(flat, (0, flat.shape[1] % 2)).contiguous().view(torch.int64)  # two numbers in a word
    places = torch.arange(words.shape[1], dtype=torch.int64, device=words.device)
    odd = _mixed(places * _signed(_GAMMA) + 1) | 1
    return _mixed((words * odd).sum(dim=1))


def check_seed(seed: int) -> int:
    """Return a seed that every generator takes."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise VitreousError(f"seed={seed!r:.60} is not a whole number from 0 to 2**63 - 1")
    return seed


def _mixed(bits: Tensor) -> Tensor:
    """Scramble 64 bits: every bit of the result depends on every bit given. Products wrap round, on purpose."""
    for shift, factor in _FACTORS:
        bits = (bits ^ _shifted(bits, shift)) * _signed(factor)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift to the right, zeros coming in."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
