"""A session: some inputs, one target, and every pass over them run once.

Several classes over the same inputs: every pass is one forward, and one backward for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.models import VisionModel
from vitreous.models.submodels import SubModel
from vitreous.tracing.memory import InnerBatch, inner_batch
from vitreous.tracing.prng import PRNGKey, check_seed
from vitreous.tracing.records import ActivationCache, Pass
from vitreous.tracing.rules import Composite
from vitreous.tracing.runner import merge, run, run_for_targets
from vitreous.tracing.targets import Target, class_logits, probabilities

__all__ = [
    "Choose",
    "ContrastContexts",
    "Context",
]


class Context:
    """Answers the passes of any number of methods over the same inputs and target.

    ``prepare`` runs what several methods will ask for, merged; ``trace`` returns an answer, running the pass only if no
    earlier one covers it. ``fork`` opens a session on other inputs (noisy copies, a sub-network) with the class fixed,
    ``of_value`` one on the same inputs for another value of the class.
    ``tick`` is told how many inputs have just been run, forks included. ``view`` is a twin of the one that was given:
    passes and methods install what they need on modules that only this session knows. ``grid`` is where the map will be
    wanted, if not on the method's own.
    """

    def __init__(
        self,
        view: VisionModel,
        inputs: Tensor,
        target: Target,
        seed: int = 0,
        batch: int | InnerBatch | None = None,
        memory: float | None = None,
        tick: Callable[[int], None] | None = None,
        grid: str | None = None,
    ) -> None:
        self.inputs = view.cast(inputs)
        view.check_inputs(self.inputs)
        view.verify(self.inputs)
        self.view, self.seed, self.memory, self.tick = view.shared_copy(), check_seed(seed), memory, tick
        size = inner_batch(view, self.inputs, memory) if batch is None else batch
        self.inner, self.grid = size if isinstance(size, InnerBatch) else InnerBatch(max(1, size)), grid
        self._target = target
        self._origin, self._place = inputs.detach().to(self.inputs.device), ""  # what random draws follow
        self._traces: list[tuple[Composite, ActivationCache]] = []
        self._valued: dict[str, Context] = {}
        self.memo: dict[Any, Any] = {}
        """What methods keep here for others of this session."""
        self.common: dict[Any, Any] | None = None
        """What is true of every class: shared by the sessions of several classes over the same inputs, if any."""

    def prepare(self, passes: Iterable[Pass]) -> None:
        """Run all of these passes now, equal ones once, for each value of the class that they ask for.

        What needs no backward rides along with the first pass that runs one, whatever its value.
        """
        wanted: dict[str | None, list[Pass]] = {}
        for each in passes:
            wanted.setdefault(each.value if each.backward else None, []).append(replace(each, value=None))
        own = wanted.get(None, [])
        if len(wanted) > 1 and not any(each.backward for each in own):
            wanted[next(value for value in wanted if value is not None)] += wanted.pop(None, [])
        for value, some in wanted.items():
            (self if value is None else self.of_value(value))._prepare(some)

    def _prepare(self, passes: Sequence[Pass]) -> None:
        missing = [each for each in passes if not each.changes and self._find(each) is None]
        if missing:
            for each in merge(missing):
                self._run(each)

    def trace(self, ask: Pass) -> ActivationCache:
        """Return the trace that answers this pass."""
        if ask.value is not None:
            chosen = self.of_value(ask.value) if ask.backward else self
            return chosen.trace(replace(ask, value=None))
        if ask.changes:  # another forward: asked for by one method, and no answer for others
            return self._answer(ask, self.target)
        trace = self._find(ask)
        if trace is None:
            self._run(ask)
            trace = self._traces[-1][1]
        return trace

    @property
    def batch(self) -> int:
        """How many inputs go together in this session and all that it opens."""
        return self.inner.size

    @property
    def logits(self) -> Tensor:
        """The logits of the inputs; a bare forward only if no pass has run yet."""
        if not self._traces:
            known = next((each for each in self._valued.values() if each._traces), None)
            if known is not None:
                return known.logits
            self._run(Pass())
        return self._traces[0][1].logits

    @property
    def probabilities(self) -> Tensor:
        return probabilities(self.logits, self._target.only)

    @property
    def target(self) -> Target:
        """The target with its classes known."""
        if self._target.classes is None and self._target.function is None:
            self._target = self._target.given(self.logits)
        return self._target

    @property
    def asked(self) -> Target:
        """The target as it was given; its classes may not be known yet, and no pass is run to learn them."""
        return self._target

    def fork(self, inputs: Tensor, view: VisionModel | None = None, repeat: int = 1) -> Context:
        """Open a session on other inputs, ``repeat`` of them for each of these, explaining the same classes."""
        forked = self._like(inputs, self.target.repeat(repeat), view)
        if isinstance(view, SubModel) and repeat == 1:  # tokens of the same images, which rounding may change
            forked._origin, forked._place = self._origin, f"{self._place}[{view.first}]"
        return forked

    def part(self, start: int, stop: int) -> Context:
        """Open a session on some of the images; they keep their random numbers, but share no passes."""
        cut = self._like(self.inputs[start:stop], self.target.part(start, stop))
        cut._origin, cut._place = self._origin[start:stop], self._place
        return cut

    def of_value(self, value: str) -> Context:
        """Return the session that explains another value of the same classes; methods that ask for it share it."""
        target = self._explained()
        if target.function is not None or target.value == value:
            return self
        if value not in self._valued:
            self._valued[value] = self._like(self.inputs, replace(target, value=value))
            self._valued[value]._origin, self._valued[value]._place = self._origin, self._place
        return self._valued[value]

    def _explained(self) -> Target:
        """The target without a pass to learn its classes, where that can be."""
        return self._target

    def _like(self, inputs: Tensor, target: Target, view: VisionModel | None = None) -> Context:
        how = self.seed, self.inner, self.memory, self.tick, self.grid
        return Context(view or self.view, inputs, target, *how)

    def draws(self, purpose: str) -> PRNGKey:
        """Return the random numbers of every image for one purpose, the same wherever it stands in a batch."""
        return PRNGKey.of_images(self.seed, purpose + self._place, self._origin)

    def expect(self, inputs: int) -> None:
        """Say that more inputs will be run than the method told beforehand, to whoever counts them."""
        more = getattr(self.tick, "expect", None)
        if more is not None:
            more(inputs)

    def _find(self, ask: Pass) -> ActivationCache | None:
        for rules, trace in self._traces:
            lent = not ask.backward and rules.currency != "relevance"  # a walk's values are in float64
            if (rules == ask.rules or lent) and all(trace.has(keep) for keep in ask.keeps):
                return trace
        if ask.backward:
            return None
        return next((found for each in self._valued.values() if (found := each._find(ask)) is not None), None)

    def _run(self, ask: Pass) -> None:
        self._traces.append((ask.rules, self._answer(ask, self._target)))

    def _answer(self, ask: Pass, target: Target) -> ActivationCache:
        def part(start: int, stop: int) -> ActivationCache:
            trace = run(self.view, self.inputs[start:stop], ask, target.part(start, stop))
            if self.tick is not None:
                self.tick(stop - start)
            return trace

        return ActivationCache.join(self.inner.run(part, len(self.inputs), ask.weight))


Choose = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""``(logits [B, C], explained class [B], classes of the images' own [B, K] or None) -> classes [B, slots]``.

The explained class is the first; classes outside the softmax have the logit minus infinity. An image with fewer
classes than there are slots has -1 in its last ones."""


class ContrastContexts:
    """The classes that a session's target is compared with, chosen from the logits, and one session for each.

    ``sessions`` answer the passes of any method for their own class; what one of them is asked for is run for all.
    The first is that of the explained class, and shares its passes with the session it came from.
    """

    def __init__(self, session: Context, slots: int, choose: Choose) -> None:
        self.choose = choose
        self.target = session.target if isinstance(session, ContrastContext) else session._target
        self._classes: Tensor | None = None
        self.sessions: list[Context] = [ContrastContext(self, session, slot) for slot in range(slots)]
        common: dict[Any, Any] = {} if session.common is None else session.common
        for each in self.sessions:
            each.common = common
        if session._traces:
            self.settle(self.classes_of(session.logits, 0, len(session.inputs)))

    @property
    def classes(self) -> Tensor:
        """The classes ``[B, K]``, the explained one first; -1 where an image has fewer than others."""
        if self._classes is None:
            self.sessions[0].target  # noqa: B018 - the first forward settles them
        assert self._classes is not None
        return self._classes[:, : _used(self._classes)]

    def classes_of(self, logits: Tensor, start: int, stop: int) -> Tensor:
        """Return the classes ``[b, slots]`` of images ``start .. stop - 1``."""
        if self._classes is not None:
            return self._classes[start:stop]
        explained = self.target.part(start, stop).given(logits).classes
        assert explained is not None
        scores = class_logits(logits, self.target.only)
        return self.choose(scores, explained.to(scores.device), self.target.part(start, stop).among).cpu()

    def targets_of(self, classes: Tensor, start: int, stop: int, slots: Sequence[int]) -> list[Target]:
        """Return one target per slot; an image without a class of its own there repeats its first one."""
        filled = torch.where(classes < 0, classes[:, :1], classes)
        return [replace(self.target.part(start, stop), classes=filled[:, slot]) for slot in slots]

    def settle(self, classes: Tensor) -> None:
        """Fix the classes of all images."""
        if self._classes is None:
            self._classes = classes
            slots = range(len(self.sessions))
            for session, target in zip(self.sessions, self.targets_of(classes, 0, len(classes), slots), strict=True):
                session._target = target


class ContrastContext(Context):
    """The session of one of several classes."""

    def __init__(self, rivals: ContrastContexts, session: Context, slot: int) -> None:
        super().__init__(
            session.view, session.inputs, session._target, session.seed, session.inner, session.memory, session.tick,
            session.grid,
        )  # fmt: skip
        self.rivals, self.slot = rivals, slot
        self._origin, self._place = session._origin, session._place
        if slot == 0:
            self._traces = session._traces

    @property
    def target(self) -> Target:
        if self.rivals._classes is None:
            self._run(Pass())
        return self._target

    def _explained(self) -> Target:
        return self.target

    def _run(self, ask: Pass) -> None:
        rivals = self.rivals
        waiting = [each for each in rivals.sessions if each._find(ask) is None]

        def part(start: int, stop: int) -> tuple[Tensor, list[ActivationCache]]:
            chosen: list[Tensor] = []

            def targets(logits: Tensor) -> list[Target]:
                chosen.append(rivals.classes_of(logits, start, stop))
                used = range(_used(chosen[0])) if ask.backward else range(1)
                slots = [slot for slot in used if rivals.sessions[slot] in waiting] or [0]
                return rivals.targets_of(chosen[0], start, stop, slots)

            traces = run_for_targets(self.view, self.inputs[start:stop], ask, targets)
            if self.tick is not None:
                self.tick(stop - start)
            return chosen[0], traces

        parts = self.inner.run(part, len(self.inputs), ask.weight)
        rivals.settle(torch.cat([classes for classes, _ in parts]))
        joined = [ActivationCache.join(traces) for traces in _padded([traces for _, traces in parts])]
        for place, each in enumerate(waiting):  # slots that no image uses repeat the last trace; nobody reads it
            each._traces.append((ask.rules, joined[min(place, len(joined) - 1)]))


def _used(classes: Tensor) -> int:
    """How many slots any image has a class in."""
    return int((classes >= 0).any(dim=0).sum())


def _padded(parts: Sequence[list[ActivationCache]]) -> list[list[ActivationCache]]:
    """Turn the traces of each part into those of each slot; a part with fewer repeats its last one."""
    most = max(len(traces) for traces in parts)
    full = [[*traces, *(traces[-1].copy() for _ in range(most - len(traces)))] for traces in parts]
    return [list(slot) for slot in zip(*full, strict=True)]
