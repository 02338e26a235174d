"""The audit: half precision held against float32 on a sample of the states.

The state engine: takes states from anyone, fills batches, runs the model, hands back a few numbers for each state.

Batches are filled across images, maps, substrates, families and steps, in one buffer that is written in place. Only the
logits and log-probabilities of the scored classes and the arg-max stay, on the device, until one copy at the end.
Token states are batched by the number of tokens kept, so that nothing is padded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ModelError, TargetError
from vitreous.metrics import baselines as road
from vitreous.metrics.config import EvaluationConfig
from vitreous.metrics.curves import Array
from vitreous.metrics.evaluation import Readings
from vitreous.metrics.perturb import Write
from vitreous.models import VisionModel
from vitreous.tracing.memory import InnerBatch, inner_batch
from vitreous.tracing.runner import refuse_not_finite

__all__ = [
    "Audit",
    "Auditor",
    "BatchRunner",
    "default_forward_batch",
]

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


_DTYPES = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
_log = logging.getLogger(__name__)


class _Tokens(NamedTuple):
    """Token states of one kept count: images of a chunk, and which of their patches stay."""

    tokens: Tensor
    rows: Tensor
    keep: Tensor
    classes: Tensor
    slots: Array

    def part(self, start: int, stop: int) -> _Tokens:
        cut = slice(start, stop)
        return _Tokens(self.tokens, self.rows[cut], self.keep[cut], self.classes[cut], self.slots[cut])


class BatchRunner:
    """Runs states of one model; slots, numbered from 0, say where each answer will stand.

    Of the configuration it takes the precision, the classes of the softmax, and how many states go together; what runs
    out of memory is run in smaller parts, and no larger ones are tried again. ``on_progress`` is called with the number
    of states that have just been run.
    """

    def __init__(
        self,
        model: VisionModel,
        config: EvaluationConfig = EvaluationConfig(),  # noqa: B008 - frozen
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.on_progress = model.shared_copy(), on_progress
        self._prove = model.verify
        self.inner = InnerBatch(config.forward_batch)
        self.batch = self.inner.size
        self.states: Counter[int] = Counter()
        """How many states were run, by the number of patch tokens kept; 0 stands for whole images."""
        self.audit: Audit | None = None
        self._half = _DTYPES[config.precision]
        self._shut = None if config.class_subset is None else _shut(model, config.class_subset)
        self._auditor = None if self._half is None else Auditor(self._exact)
        self._buffer = torch.empty(0)
        self._classes = torch.empty(0)
        self._filled = 0
        self._waiting: list[Array] = []
        self._holes: list[tuple[slice, Tensor | None]] = []
        self._queues: dict[int, list[_Tokens]] = {}
        self._slots: list[Array] = []
        self._answers: list[Tensor] = []

    # -- asking ----------------------------------------------------------------------------------------

    def look(self, inputs: Tensor) -> Tensor:
        """Run these images now and return all their logits, ``[B, C]``."""
        parts = []
        self._prove(self.model.cast(inputs[:1]))
        for start in range(0, len(inputs), self.batch):
            part = self.model.cast(inputs[start : start + self.batch])
            parts.append(self._run(part))
            self._count(0, len(part))
        return torch.cat(parts)

    def record(self, logits: Tensor, classes: Tensor, slots: Array) -> None:
        """Keep the answers of states whose logits ``[B, C]`` are known already."""
        picked, own = logits.log_softmax(dim=1).gather(1, classes).float(), logits.gather(1, classes).float()
        self._answers.append(torch.cat([picked, own, logits.argmax(dim=1, keepdim=True).float()], dim=1))
        self._slots.append(slots)

    def images(self, write: Write, size: tuple[int, int], classes: Tensor, slots: Array) -> None:
        """Queue states that are images, scored for ``classes`` ``[S]``, or each for its own ``[n, S]``."""
        if not len(self._buffer):
            self._buffer = torch.empty(self.batch, 3, *size, device=self.model.device, dtype=self.model.dtype)
            self._classes = torch.empty(self.batch, classes.shape[-1], device=self.model.device, dtype=torch.int64)
        start = 0
        while start < len(slots):
            stop = min(len(slots), start + self.batch - self._filled)
            place = slice(self._filled, self._filled + stop - start)
            self._holes.append((place, write(self._buffer[place], start, stop)))
            self._classes[place] = classes if classes.ndim == 1 else classes[start:stop]
            self._waiting.append(slots[start:stop])
            self._filled, start = place.stop, stop
            if self._filled == self.batch:
                self._flush()

    def tokens(self, tokens: Tensor, rows: Tensor, keep: Tensor, classes: Tensor, slots: Array) -> None:
        """Queue states of images ``tokens[rows]``, of which only the patches ``keep`` ``[n, k]`` are run."""
        queue = self._queues.setdefault(keep.shape[1], [])
        queue.append(_Tokens(tokens, rows, keep, classes, slots))
        while sum(len(each.slots) for each in queue) >= self.batch:
            self._flush_tokens(queue)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the tokens of these images as they enter the first block."""
        if not self.model.can_drop_tokens:
            raise ModelError(f"{self.model.name} cannot leave tokens out: its layers need the whole grid")
        with torch.no_grad(), self._cast():
            return self.model.embed(self.model.cast(inputs))

    # -- answering -------------------------------------------------------------------------------------

    def finish(self) -> Readings:
        """Run what is left and bring all answers home, in one copy."""
        if self._filled:
            self._flush()
        for queue in self._queues.values():
            while queue:
                self._flush_tokens(queue)
        slots = np.concatenate(self._slots)
        home = torch.cat(self._answers).cpu().numpy()
        sorted_home = np.empty_like(home)
        sorted_home[slots] = home
        scored = home.shape[1] // 2
        log_probability, logit, best = np.split(sorted_home, [scored, 2 * scored], axis=1)
        readings = Readings(log_probability, logit, best[:, 0].astype(np.int64))
        if self._auditor is not None:
            self.audit = self._auditor.verdict()
            _log.info("%s", self.audit)
        return readings

    def _flush(self) -> None:
        inputs, classes = self._buffer[: self._filled], self._classes[: self._filled]
        self._complete()
        logits = self._run(inputs)
        self.record(logits, classes, np.concatenate(self._waiting))
        if self._auditor is not None:
            self._auditor.images(inputs, classes, logits.log_softmax(dim=1))
        self._count(0, self._filled)
        self._filled, self._waiting, self._holes = 0, [], []

    def _complete(self) -> None:
        """Fill in what is missing in the states of the batch, all at once."""
        holes = [(place, missing) for place, missing in self._holes if missing is not None]
        if len(holes) == len(self._holes) and holes:
            batch = self._buffer[: self._filled]
            batch.copy_(road.complete(batch, torch.cat([missing for _, missing in holes])))
        elif holes:
            rows = torch.cat([torch.arange(place.start, place.stop) for place, _ in holes]).to(self._buffer.device)
            self._buffer[rows] = road.complete(self._buffer[rows], torch.cat([missing for _, missing in holes]))

    def _flush_tokens(self, queue: list[_Tokens]) -> None:
        taken, room = [], self.batch
        while queue and room:
            piece = queue.pop(0)
            if len(piece.slots) > room:
                queue.insert(0, piece.part(room, len(piece.slots)))
                piece = piece.part(0, room)
            taken.append(piece)
            room -= len(piece.slots)
        inputs = torch.cat([self._picked(piece) for piece in taken])
        keep, classes = torch.cat([piece.keep for piece in taken]), torch.cat([piece.classes for piece in taken])
        logits = self._run(inputs, keep)
        self.record(logits, classes, np.concatenate([piece.slots for piece in taken]))
        if self._auditor is not None:
            self._auditor.tokens(inputs, keep, classes, logits.log_softmax(dim=1))
        self._count(keep.shape[1], len(inputs))

    def _picked(self, piece: _Tokens) -> Tensor:
        """Return prefix and kept tokens ``[n, prefix + k, D]``, straight from the images' own."""
        prefix = torch.arange(self.model.num_prefix_tokens, device=piece.keep.device).expand(len(piece.keep), -1)
        return piece.tokens[piece.rows[:, None], torch.cat([prefix, piece.keep + self.model.num_prefix_tokens], dim=1)]

    def _run(self, inputs: Tensor, keep: Tensor | None = None, exact: bool = False) -> Tensor:
        """Return the logits of images, or of the tokens that ``keep`` left, in at least float32."""
        model = self.model

        def part(start: int, stop: int) -> Tensor:
            some = inputs[start:stop].to(model.dtype) if exact else inputs[start:stop]
            if keep is None:
                return model.forward_head(model.forward_blocks(model.embed(some)))
            return model.forward_head(model.forward_blocks(some, keep=keep[start:stop]))

        with torch.no_grad(), self._cast(exact):
            logits = torch.cat(self.inner.run(part, len(inputs)))
        if self._half is None or exact:
            refuse_not_finite(model, logits)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if logits.shape[1] == 1:  # one logit tells two classes apart, half of it for the one and half against the other
            return torch.cat([-logits, logits], dim=1) / 2
        return logits if self._shut is None else logits + self._shut

    def _exact(self, inputs: Tensor, keep: Tensor | None) -> Tensor:
        return self._run(inputs, keep, exact=True).log_softmax(dim=1)

    def _cast(self, exact: bool = False) -> AbstractContextManager[object]:
        half = self._half is not None and not exact  # off also where the surroundings have it on
        return torch.autocast(self.model.device.type, dtype=self._half, enabled=half)

    def _count(self, kept: int, states: int) -> None:
        self.states[kept] += states
        if self.on_progress is not None:
            self.on_progress(states)


def default_forward_batch(
    model: VisionModel, memory_gb: float | None = None, size: tuple[int, int] | None = None
) -> int:
    """Return how many states go together: what fills the device, and no more than a budget allows."""
    usual = 32 if model.device.type == "cpu" else 256
    if memory_gb is None:
        return usual
    height, width = size or model.preprocess.size
    probe = torch.empty(1, 3, height, width, dtype=model.dtype, device=model.device)
    return min(usual, inner_batch(model, probe, memory_gb))


def _shut(model: VisionModel, class_subset: Sequence[int]) -> Tensor:
    """Return what is added to the logits: nothing for the classes that stay, minus infinity for the others."""
    if not class_subset or min(class_subset) < 0 or max(class_subset) >= model.num_classes:
        raise TargetError(f"class_subset must be a list of indices within 0..{model.num_classes - 1}")
    shut = torch.full((model.num_classes,), -torch.inf, device=model.device)
    shut[list(class_subset)] = 0
    return shut
