"""Inner batches: how many inputs at once fit a budget, and what to do when the guess was too bold."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitreous.models import VisionModel
from vitreous.registry import check_memory

T = TypeVar("T")
_log = logging.getLogger(__name__)
_GIB = 2**30


def budget_bytes(device: torch.device, budget: float | None = None) -> float:
    """Return ``budget`` GiB in bytes; without one, 4 GiB on a CPU and 60 % of what is free on a GPU."""
    check_memory(budget)
    if budget is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        budget = max(1.0, 0.6 * free / _GIB) if free else 4.0
    return budget * _GIB


def inner_batch(model: VisionModel, inputs: Tensor, budget: float | None = None) -> int:
    """Return how many inputs one pass may take within ``budget`` GiB.

    A block's graph holds about twenty token-sized tensors; attention and its gradient exist for one block at a time. In
    a hierarchical model each halving of the grid halves a block's share. The input itself exists some eight times: as
    it is, as what it is compared with, its gradient, and what is made of them. Without a budget, see ``budget_bytes``.
    """
    available = budget_bytes(inputs.device, budget)
    grids = [math.prod(model.grid(inputs, layer)) for layer in range(model.depth)]
    last = grids[-1] + model.num_prefix_tokens
    vectors = sum((tokens / grids[-1]) ** 0.5 for tokens in grids) * last * model.embed_dim
    matrices = model.num_heads * last**2 if model.attention == "global" else 0
    numbers = 20 * vectors + 6 * matrices + 8 * inputs[0].numel()
    return max(1, int(available / (numbers * inputs.element_size())))


@dataclass
class InnerBatch:
    """How many inputs go together. A size that ran out of memory is halved, for good: it is not tried again."""

    size: int

    def parts(self, total: int, weight: int = 1) -> Iterator[Part]:
        """Yield ``0 .. total`` in parts of this size, each to be worked on in a ``with`` of its own.

        A part whose ``with`` runs out of memory is yielded again in smaller ones. ``weight`` says how many times the
        usual memory an input takes here: the parts are that much smaller.
        """
        start = 0
        while start < total:
            part = Part(start, min(total, start + max(1, self.size // weight)))
            yield part
            if part.is_out_of_memory:
                self.size = max(1, (part.stop - start) // 2 * weight)
                _log.warning("out of memory; going on with inner batches of %d", max(1, self.size // weight))
            else:
                start = part.stop

    def run(self, work: Callable[[int, int], T], total: int, weight: int = 1) -> list[T]:
        """Return ``work(start, stop)`` over these parts."""
        done: list[T] = []
        for part in self.parts(total, weight):
            with part:
                done.append(work(part.start, part.stop))
        return done


@dataclass
class Part:
    """Inputs ``start .. stop - 1``; used in a ``with``, it notes that memory ran out where fewer inputs may go on."""

    start: int
    stop: int
    is_out_of_memory: bool = False

    def __enter__(self) -> Part:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        is_memory = isinstance(error, RuntimeError | MemoryError) and _out_of_memory(error)
        self.is_out_of_memory = is_memory and self.stop - self.start > 1
        return self.is_out_of_memory


def in_parts(work: Callable[[int, int], T], total: int, size: int) -> list[T]:
    """The same for something that is done once."""
    return InnerBatch(size).run(work, total)


_COMPLAINTS = ("can't allocate memory", "could not create a primitive", "out of memory", "bad_alloc", "bad allocation")
"""What torch's allocators, oneDNN and C++ say when memory runs out."""


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        complaint in str(error) for complaint in _COMPLAINTS
    )
