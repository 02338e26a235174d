"""Several classes over the same inputs: every pass is one forward, and one backward for each class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.passes.ask import Pass
from vitreous.passes.runner import run_targets
from vitreous.passes.session import Session
from vitreous.passes.target import Target, class_logits
from vitreous.passes.trace import Trace

__all__ = ["Choose", "Rivals"]

Choose = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""``(logits [B, C], explained class [B], classes of the images' own [B, K] or None) -> classes [B, slots]``.

The explained class is the first; classes outside the softmax have the logit minus infinity. An image with fewer
classes than there are slots has -1 in its last ones."""


class Rivals:
    """The classes that a session's target is compared with, chosen from the logits, and one session for each.

    ``sessions`` answer the passes of any method for their own class; what one of them is asked for is run for all.
    The first is that of the explained class, and shares its passes with the session it came from.
    """

    def __init__(self, session: Session, slots: int, choose: Choose) -> None:
        self.choose = choose
        self.target = session.target if isinstance(session, Rival) else session._target
        self._classes: Tensor | None = None
        self.sessions: list[Session] = [Rival(self, session, slot) for slot in range(slots)]
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


class Rival(Session):
    """The session of one of several classes."""

    def __init__(self, rivals: Rivals, session: Session, slot: int) -> None:
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

        def part(start: int, stop: int) -> tuple[Tensor, list[Trace]]:
            chosen: list[Tensor] = []

            def targets(logits: Tensor) -> list[Target]:
                chosen.append(rivals.classes_of(logits, start, stop))
                used = range(_used(chosen[0])) if ask.backward else range(1)
                slots = [slot for slot in used if rivals.sessions[slot] in waiting] or [0]
                return rivals.targets_of(chosen[0], start, stop, slots)

            traces = run_targets(self.view, self.inputs[start:stop], ask, targets)
            if self.tick is not None:
                self.tick(stop - start)
            return chosen[0], traces

        parts = self.inner.run(part, len(self.inputs), ask.weight)
        rivals.settle(torch.cat([classes for classes, _ in parts]))
        joined = [Trace.join(traces) for traces in _padded([traces for _, traces in parts])]
        for place, each in enumerate(waiting):  # slots that no image uses repeat the last trace; nobody reads it
            each._traces.append((ask.rules, joined[min(place, len(joined) - 1)]))


def _used(classes: Tensor) -> int:
    """How many slots any image has a class in."""
    return int((classes >= 0).any(dim=0).sum())


def _padded(parts: Sequence[list[Trace]]) -> list[list[Trace]]:
    """Turn the traces of each part into those of each slot; a part with fewer repeats its last one."""
    most = max(len(traces) for traces in parts)
    full = [[*traces, *(traces[-1].copy() for _ in range(most - len(traces)))] for traces in parts]
    return [list(slot) for slot in zip(*full, strict=True)]
