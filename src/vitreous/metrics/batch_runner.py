"""Runs states: takes them from any request, fills batches, runs the model, keeps a few numbers of each state.

Batches are filled across images, maps, baselines, requests and steps, in one buffer that is written in place. Only the
logits and log-probabilities of the scored classes and the arg-max stay, on the device, until one copy at the end.
Token states are batched by the number of tokens kept, so that nothing is padded. Half precision is audited: a sample of
the states is run again in float32.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import ModelError, TargetError
from vitreous.metrics.baselines import inpaint
from vitreous.metrics.perturb import Renderer, Write
from vitreous.metrics.ranking import Array
from vitreous.models import VisionModel
from vitreous.registry import check_parameters, choice, number
from vitreous.tracing.memory import InnerBatch, inner_batch
from vitreous.tracing.prng import check_seed
from vitreous.tracing.runner import refuse_not_finite

_log = logging.getLogger(__name__)
_AUDITED = 32  # states that are run again together; after each such group they are picked half as often
_SIZES = ("images_per_unit", "attribution_batch", "forward_batch")
_AUTOCAST = {"float32": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class EvaluationConfig:
    """How a set of scores is made; the same in ``evaluate``, in a benchmark file and in the batch runner.

    The sizes at the end are numbers, not guesses: with the same sizes the same bits come out, with others the last
    digits of a score may differ and nothing else, so they are no part of its identity.

    Parameters
    ----------
    target : str, default "pred"
        The class that is explained where a metric has none of its own: the predicted one (``"pred"``), the true one
        (``"label"``), or the one given with each sample (``"given"``).
    output : str, default "logit"
        What is explained of the class: ``"logit"``, ``"prob"`` or ``"logprob"``.
    class_subset : tuple of int, optional
        The classes that the softmax is restricted to; all of them by default.
    precision : str, default "float32"
        Of the forwards that metrics need: ``"float32"`` is the model's own, ``"float16"`` and ``"bfloat16"`` are
        audited against it.
    interpolation : str, default "bilinear"
        How maps are enlarged to pixels: ``"bilinear"`` or ``"nearest"``.
    tie_breaking : str, default "random"
        The order of equal values: ``"random"``, ``"raster"`` or ``"reverse_raster"``.
    nan_policy : str, default "exclude"
        Maps that are not finite have no score (``"exclude"``), rank their values lowest (``"lowest"``) or are an
        error (``"raise"``).
    seed : int, default 0
        The seed of everything random.
    memory_gb : float, default 4.0
        The budget in GiB of what a method computes outside its passes.
    images_per_unit : int, default 32
        How many images are explained and scored together.
    attribution_batch : int, default 32
        How many inputs go through one pass that explains.
    forward_batch : int, default 32
        How many perturbed images go through one forward.
    """

    target: str = choice("pred", "label", "given")
    output: str = choice("logit", "prob", "logprob")
    class_subset: tuple[int, ...] | None = None
    precision: str = choice("float32", "float16", "bfloat16")
    interpolation: str = choice("bilinear", "nearest")
    tie_breaking: str = choice("random", "raster", "reverse_raster")
    nan_policy: str = choice("exclude", "lowest", "raise")
    seed: int = 0
    memory_gb: float = 4.0
    images_per_unit: int = number(32, "[1, inf)")
    attribution_batch: int = number(32, "[1, inf)")
    forward_batch: int = number(32, "[1, inf)")

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_parameters(self)

    def identity(self) -> dict[str, Any]:
        """Return the fields that can change a number by more than its last digits."""
        return {name: value for name, value in vars(self).items() if name not in ("memory_gb", *_SIZES)}


@dataclass(frozen=True)
class Audit:
    """How far half precision was off.

    Parameters
    ----------
    states : int
        How many states were compared.
    log_probability, probability : float
        Largest difference of a scored log-probability, and of a probability.
    agreement : float
        Share of states with the same arg-max.
    """

    states: int
    log_probability: float
    probability: float
    agreement: float

    def __or__(self, other: Audit | None) -> Audit:
        """Return the audit of the states of both."""
        if other is None:
            return self
        total, largest = self.states + other.states, max(self.log_probability, other.log_probability)
        agreement = (self.agreement * self.states + other.agreement * other.states) / total
        return Audit(total, largest, max(self.probability, other.probability), agreement)


@dataclass
class Auditor:
    """Picks one image of a batch now and then, and runs it again with ``exact``.

    Token states are compared at once, batches 0, 8, 64, 512 … of them: their sequences differ in length.
    """

    exact: Callable[[Tensor, Tensor | None], Tensor]
    image_batches: int = 0
    token_batches: int = 0
    stride: int = 1
    samples: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    compared: list[Tensor] = field(default_factory=list)

    def add(self, inputs: Tensor, keep: Tensor | None, classes: Tensor, logprobs: Tensor) -> None:
        """Perhaps pick a state from a batch of images that was just run, or compare some of a batch of token states."""
        if keep is not None:
            if self.token_batches in {0, *(8**power for power in range(1, 12))}:
                self._compare(inputs[:4], classes[:4], logprobs[:4], keep[:4])
            self.token_batches += 1
            return
        if self.image_batches % self.stride == 0:
            row = [self.image_batches % len(inputs)]
            self.samples.append((inputs[row], classes[row], logprobs[row]))
            if len(self.samples) == _AUDITED:
                self._compare_samples()
                self.stride *= 2
        self.image_batches += 1

    def result(self) -> Audit | None:
        """Return the differences, if there was anything to compare."""
        self._compare_samples()
        if not self.compared:
            return None
        rows = torch.cat(self.compared).cpu()
        log_probability, probability, _ = rows.amax(dim=0).tolist()
        return Audit(len(rows), log_probability, probability, float(rows[:, 2].mean()))

    def _compare_samples(self) -> None:
        if self.samples:
            self._compare(*(torch.cat(column) for column in zip(*self.samples, strict=True)))
            self.samples = []

    def _compare(self, inputs: Tensor, classes: Tensor, logprobs: Tensor, keep: Tensor | None = None) -> None:
        exact = self.exact(inputs, keep)
        expected, actual = exact.gather(1, classes), logprobs.gather(1, classes)
        rows = [
            (expected - actual).abs().amax(dim=1),
            (expected.exp() - actual.exp()).abs().amax(dim=1),
            (exact.argmax(dim=1) == logprobs.argmax(dim=1)).to(expected.dtype),
        ]
        self.compared.append(torch.stack(rows, dim=1).float())


_Batch = tuple[Tensor, Tensor | None, Tensor, Array]
"""Inputs, the patches that token states keep, explained classes, and where the answers go."""


class _Tokens(NamedTuple):
    """Token states with equally many tokens: images of a batch, and which of their patches stay."""

    tokens: Tensor
    rows: Tensor
    keep: Tensor
    classes: Tensor
    slots: Array

    def part(self, rows: slice) -> _Tokens:
        return _Tokens(self.tokens, self.rows[rows], self.keep[rows], self.classes[rows], self.slots[rows])


class Readings(NamedTuple):
    """For every slot: log-probability and logit of the scored classes ``[n, S]``, and the arg-max ``[n]``."""

    log_probability: Array
    logit: Array
    arg_max: Array


class BatchRunner:
    """Runs states of one model; slots, numbered from 0, say where each answer will stand.

    Of the configuration it takes the precision, the classes of the softmax, and how many states go together; what runs
    out of memory is run in smaller parts, and no larger ones are tried again. ``on_progress`` is called with the number
    of states that have just been run.
    """

    def __init__(
        self,
        model: VisionModel,
        config: EvaluationConfig | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.config, self.on_progress = model.shared_copy(), config or EvaluationConfig(), on_progress
        self._verify = model.verify
        self.inner_batch = InnerBatch(self.config.forward_batch)
        self.batch_size = self.config.forward_batch
        self.states: Counter[int] = Counter()
        """How many states were run, by the number of patch tokens kept; 0 stands for whole images."""
        self.audit: Audit | None = None
        self._autocast = _AUTOCAST[self.config.precision]
        self._class_offset = _class_offset(model, self.config.class_subset)
        self._auditor = (
            None
            if self._autocast is None
            else Auditor(lambda inputs, keep: self._run(inputs, keep, exact=True).log_softmax(dim=1))
        )
        self.renderer = Renderer(self)
        self.num_slots = self._filled = 0
        self._buffer = self._classes = torch.empty(0)
        self._pending: list[Array] = []
        self._missing: list[tuple[slice, Tensor | None]] = []
        self._queues: dict[int, list[_Tokens]] = {}
        self._slots: list[Array] = []
        self._answers: list[Tensor] = []

    # -- adding states ---------------------------------------------------------------------------------

    def reserve(self, *shape: int) -> Array:
        """Return new slots in an array of this shape."""
        first, self.num_slots = self.num_slots, self.num_slots + int(np.prod(shape))
        return np.arange(first, self.num_slots).reshape(shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Run these images now and return all their logits, ``[B, C]``."""
        self._verify(self.model.cast(inputs[:1]))
        logits = []
        for start in range(0, len(inputs), self.batch_size):
            part = self.model.cast(inputs[start : start + self.batch_size])
            logits.append(self._run(part))
            self._report(0, len(part))
        return torch.cat(logits)

    def record(self, logits: Tensor, classes: Tensor, slots: Array) -> None:
        """Keep the answers of states whose logits ``[B, C]`` are computed."""
        logprobs, scored = logits.log_softmax(dim=1).gather(1, classes).float(), logits.gather(1, classes).float()
        self._answers.append(torch.cat([logprobs, scored, logits.argmax(dim=1, keepdim=True).float()], dim=1))
        self._slots.append(slots)

    def add_images(self, write: Write, size: tuple[int, int], classes: Tensor, slots: Array) -> None:
        """Queue states that are images, scored for ``classes`` ``[S]``, or each for its own ``[n, S]``."""
        if not len(self._buffer):
            self._buffer = torch.empty(self.batch_size, 3, *size, device=self.model.device, dtype=self.model.dtype)
            self._classes = torch.empty(self.batch_size, classes.shape[-1], device=self.model.device, dtype=torch.int64)
        start = 0
        while start < len(slots):
            stop = min(len(slots), start + self.batch_size - self._filled)
            rows = slice(self._filled, self._filled + stop - start)
            self._missing.append((rows, write(self._buffer[rows], start, stop)))
            self._classes[rows] = classes if classes.ndim == 1 else classes[start:stop]
            self._pending.append(slots[start:stop])
            self._filled, start = rows.stop, stop
            if self._filled == self.batch_size:
                self._answer(*self._take_images())

    def add_tokens(self, tokens: Tensor, rows: Tensor, keep: Tensor, classes: Tensor, slots: Array) -> None:
        """Queue states of images ``tokens[rows]``, of which only the patches ``keep`` ``[n, k]`` are run."""
        queue = self._queues.setdefault(keep.shape[1], [])
        queue.append(_Tokens(tokens, rows, keep, classes, slots))
        while sum(len(states.slots) for states in queue) >= self.batch_size:
            self._answer(*self._take_tokens(queue))

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the tokens of these images as they enter the first block."""
        if not self.model.can_drop_tokens:
            raise ModelError(f"{self.model.name} cannot leave tokens out: its layers need the whole grid")
        with torch.no_grad(), self._precision():
            return self.model.embed(self.model.cast(inputs))

    # -- running them ----------------------------------------------------------------------------------

    def finish(self) -> Readings:
        """Run what is left and return all answers, copied from the device at once."""
        self.renderer.finish()
        if self._filled:
            self._answer(*self._take_images())
        for queue in self._queues.values():
            while queue:
                self._answer(*self._take_tokens(queue))
        answers = torch.cat(self._answers).cpu().numpy()
        by_slot = np.empty_like(answers)
        by_slot[np.concatenate(self._slots)] = answers
        scored = answers.shape[1] // 2
        log_probability, logit, arg_max = np.split(by_slot, [scored, 2 * scored], axis=1)
        if self._auditor is not None:
            self.audit = self._auditor.result()
            _log.info("half precision against float32: %s", self.audit)
        return Readings(log_probability, logit, arg_max[:, 0].astype(np.int64))

    def _take_images(self) -> _Batch:
        """Return the batch of images, their missing pixels filled in all at once, and begin another."""
        inputs, classes = self._buffer[: self._filled], self._classes[: self._filled]
        missing = [(rows, mask) for rows, mask in self._missing if mask is not None]
        if missing:
            rows = torch.cat([torch.arange(rows.start, rows.stop) for rows, _ in missing]).to(inputs.device)
            inputs[rows] = inpaint(inputs[rows], torch.cat([mask for _, mask in missing]))
        slots = np.concatenate(self._pending)
        self._filled, self._pending, self._missing = 0, [], []
        return inputs, None, classes, slots

    def _take_tokens(self, queue: list[_Tokens]) -> _Batch:
        """Return as many states of a queue as go together."""
        taken, free = [], self.batch_size
        while queue and free:
            states = queue.pop(0)
            if len(states.slots) > free:
                queue.insert(0, states.part(slice(free, None)))
            taken.append(states.part(slice(free)))
            free -= len(taken[-1].slots)
        inputs = torch.cat([self._kept_tokens(states) for states in taken])
        keep, classes = torch.cat([states.keep for states in taken]), torch.cat([states.classes for states in taken])
        return inputs, keep, classes, np.concatenate([states.slots for states in taken])

    def _answer(self, inputs: Tensor, keep: Tensor | None, classes: Tensor, slots: Array) -> None:
        """Run one batch, keep its answers, perhaps audit it, and report it."""
        logits = self._run(inputs, keep)
        self.record(logits, classes, slots)
        if self._auditor is not None:
            self._auditor.add(inputs, keep, classes, logits.log_softmax(dim=1))
        self._report(0 if keep is None else keep.shape[1], len(inputs))

    def _kept_tokens(self, states: _Tokens) -> Tensor:
        """Return prefix tokens and the patches that stay, ``[n, prefix + k, D]``."""
        num_prefix = self.model.num_prefix_tokens
        prefix = torch.arange(num_prefix, device=states.keep.device).expand(len(states.keep), -1)
        return states.tokens[states.rows[:, None], torch.cat([prefix, states.keep + num_prefix], dim=1)]

    def _run(self, inputs: Tensor, keep: Tensor | None = None, exact: bool = False) -> Tensor:
        """Return the logits of images, or of the tokens that ``keep`` left, in at least float32."""
        model, parts = self.model, []
        with torch.no_grad(), self._precision(exact):
            for part in self.inner_batch.parts(len(inputs)):
                with part:
                    rows = inputs[part.start : part.stop]
                    rows = rows.to(model.dtype) if exact else rows
                    tokens = model.embed(rows) if keep is None else rows
                    own_keep = None if keep is None else keep[part.start : part.stop]
                    parts.append(model.forward_head(model.forward_blocks(tokens, keep=own_keep)))
        logits = torch.cat(parts)
        if self._autocast is None or exact:
            refuse_not_finite(model, logits)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if logits.shape[1] == 1:  # one logit tells two classes apart, half of it for the one and half against the other
            return torch.cat([-logits, logits], dim=1) / 2
        return logits if self._class_offset is None else logits + self._class_offset

    def _precision(self, exact: bool = False) -> AbstractContextManager[object]:
        half = self._autocast is not None and not exact  # off also where the surroundings have it on
        return torch.autocast(self.model.device.type, dtype=self._autocast, enabled=half)

    def _report(self, num_tokens: int, states: int) -> None:
        self.states[num_tokens] += states
        if self.on_progress is not None:
            self.on_progress(states)


def default_forward_batch(
    model: VisionModel, memory_gb: float | None = None, size: tuple[int, int] | None = None
) -> int:
    """Return how many states go together: what fills the device, and no more than a budget allows."""
    usual = 32 if model.device.type == "cpu" else 256
    if memory_gb is None:
        return usual
    probe = torch.empty(1, 3, *(size or model.preprocess.size), dtype=model.dtype, device=model.device)
    return min(usual, inner_batch(model, probe, memory_gb))


def _class_offset(model: VisionModel, class_subset: Sequence[int] | None) -> Tensor | None:
    """Return what is added to the logits: nothing for the classes that stay, minus infinity for the others."""
    if class_subset is None:
        return None
    if not class_subset or min(class_subset) < 0 or max(class_subset) >= model.num_classes:
        raise TargetError(f"class_subset must be a list of indices within 0..{model.num_classes - 1}")
    offset = torch.full((model.num_classes,), -torch.inf, device=model.device)
    offset[list(class_subset)] = 0
    return offset
