"""The audit: half precision held against float32 on a sample of the states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Audit", "Auditor"]

_TOGETHER = 32  # states that are run again together; after each such group they are picked half as often


@dataclass(frozen=True)
class Audit:
    """How far half precision was off."""

    states: int
    log_probability: float
    """Largest difference of a scored log-probability."""
    probability: float
    """Largest difference of a scored probability."""
    agreement: float
    """Share of states with the same arg-max."""

    def __str__(self) -> str:
        return (
            f"audit of {self.states} states against float32: log p differs by at most {self.log_probability:.2g}, "
            f"p by {self.probability:.2g}, arg-max agrees on {self.agreement:.1%}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __or__(self, other: Audit | None) -> Audit:
        """Return what both found together."""
        if other is None:
            return self
        total = self.states + other.states
        return Audit(
            total,
            max(self.log_probability, other.log_probability),
            max(self.probability, other.probability),
            (self.agreement * self.states + other.agreement * other.states) / total,
        )


class _Sample(NamedTuple):
    inputs: Tensor
    classes: Tensor
    found: Tensor


class Auditor:
    """Picks one image of a batch now and then, and runs it again with ``exact``.

    Token states are compared on the spot, batches 0, 8, 64, 512 … of them: their sequences differ in length.
    """

    def __init__(self, exact: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        self._exact = exact
        self._images, self._tokens, self._stride = 0, 0, 1
        self._picked: list[_Sample] = []
        self._compared: list[Tensor] = []

    def images(self, inputs: Tensor, classes: Tensor, logprobs: Tensor) -> None:
        """Perhaps pick a state from a batch of images that was just run."""
        if self._images % self._stride == 0:
            row = slice(self._images % len(inputs), self._images % len(inputs) + 1)
            self._picked.append(_Sample(inputs[row].clone(), classes[row].clone(), logprobs[row].clone()))
            if len(self._picked) == _TOGETHER:
                self._flush()
                self._stride *= 2
        self._images += 1

    def tokens(self, inputs: Tensor, keep: Tensor, classes: Tensor, logprobs: Tensor) -> None:
        """Perhaps compare some of a batch of token states that was just run."""
        if self._tokens in {0, *(8**power for power in range(1, 12))}:
            few = slice(0, 4)
            self._compare(self._exact(inputs[few], keep[few]), _Sample(inputs[few], classes[few], logprobs[few]))
        self._tokens += 1

    def verdict(self) -> Audit | None:
        """Return what was found, if there was anything to look at."""
        self._flush()
        if not self._compared:
            return None
        rows = torch.cat(self._compared).cpu()
        worst = rows.amax(dim=0)
        return Audit(len(rows), float(worst[0]), float(worst[1]), float(rows[:, 2].mean()))

    def _flush(self) -> None:
        if self._picked:
            inputs, classes, logprobs = (torch.cat(column) for column in zip(*self._picked, strict=True))
            self._compare(self._exact(inputs, None), _Sample(inputs, classes, logprobs))
            self._picked = []

    def _compare(self, exact: Tensor, sample: _Sample) -> None:
        one, other = exact.gather(1, sample.classes), sample.found.gather(1, sample.classes)
        rows = [
            (one - other).abs().amax(dim=1),
            (one.exp() - other.exp()).abs().amax(dim=1),
            (exact.argmax(dim=1) == sample.found.argmax(dim=1)).to(one.dtype),
        ]
        self._compared.append(torch.stack(rows, dim=1).float())
