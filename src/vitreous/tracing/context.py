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
        model: VisionModel,
        inputs: Tensor,
        target: Target,
        seed: int = 0,
        batch: int | InnerBatch | None = None,
        memory_gb: float | None = None,
        on_progress: Callable[[int], None] | None = None,
        grid: str | None = None,
    ) -> None:
        self.inputs = model.cast(inputs)
        model.check_inputs(self.inputs)
        model.verify(self.inputs)
        self.model, self.seed, self.memory_gb, self.on_progress = (
            model.shared_copy(),
            check_seed(seed),
            memory_gb,
            on_progress,
        )
        size = inner_batch(model, self.inputs, memory_gb) if batch is None else batch
        self.batching, self.grid = size if isinstance(size, InnerBatch) else InnerBatch(max(1, size)), grid
        self._target = target
        self._origin, self._place = inputs.detach().to(self.inputs.device), ""  # what random draws follow
        self._caches: list[tuple[Composite, ActivationCache]] = []
        self._by_output: dict[str, Context] = {}
        self.memo: dict[Any, Any] = {}
        """What methods keep here for others of this session."""
        self.shared: dict[Any, Any] | None = None
        """What is true of every class: shared by the sessions of several classes over the same inputs, if any."""

    def prepare(self, passes: Iterable[Pass]) -> None:
        """Run all of these passes now, equal ones once, for each value of the class that they ask for.

        What needs no backward rides along with the first pass that runs one, whatever its value.
        """
        wanted: dict[str | None, list[Pass]] = {}
        for pass_run in (each.resolve(self.model) for each in passes):
            wanted.setdefault(pass_run.output if pass_run.backward else None, []).append(replace(pass_run, output=None))
        own = wanted.get(None, [])
        if len(wanted) > 1 and not any(each.backward for each in own):
            wanted[next(value for value in wanted if value is not None)] += wanted.pop(None, [])
        for value, some in wanted.items():
            (self if value is None else self.with_output(value))._prepare(some)

    def _prepare(self, passes: Sequence[Pass]) -> None:
        missing = [pass_run for pass_run in passes if not pass_run.patches and self._find_cache(pass_run) is None]
        if missing:
            for each in merge(missing):
                self._execute(each)

    def run_pass(self, ask: Pass) -> ActivationCache:
        """Return the trace that answers this pass."""
        ask = ask.resolve(self.model)
        if ask.output is not None:
            chosen = self.with_output(ask.output) if ask.backward else self
            return chosen.run_pass(replace(ask, output=None))
        if ask.patches:  # another forward: asked for by one method, and no answer for others
            return self._compute(ask, self.target)
        cache = self._find_cache(ask)
        if cache is None:
            self._execute(ask)
            cache = self._caches[-1][1]
        return cache

    @property
    def batch(self) -> int:
        """How many inputs go together in this session and all that it opens."""
        return self.batching.size

    @property
    def logits(self) -> Tensor:
        """The logits of the inputs; a bare forward only if no pass has run yet."""
        if not self._caches:
            known = next((each for each in self._by_output.values() if each._caches), None)
            if known is not None:
                return known.logits
            self._execute(Pass())
        return self._caches[0][1].logits

    @property
    def probabilities(self) -> Tensor:
        return probabilities(self.logits, self._target.class_subset)

    @property
    def target(self) -> Target:
        """The target with its classes known."""
        if self._target.classes is None and self._target.function is None:
            self._target = self._target.resolve(self.logits)
        return self._target

    @property
    def requested_target(self) -> Target:
        """The target as it was given; its classes may not be known yet, and no pass is run to learn them."""
        return self._target

    def with_inputs(self, inputs: Tensor, model: VisionModel | None = None, repeat: int = 1) -> Context:
        """Open a session on other inputs, ``repeat`` of them for each of these, explaining the same classes."""
        forked = self._like(inputs, self.target.repeat(repeat), model)
        if isinstance(model, SubModel) and repeat == 1:  # tokens of the same images, which rounding may change
            forked._origin, forked._place = self._origin, f"{self._place}[{model.first}]"
        return forked

    def slice_images(self, start: int, stop: int) -> Context:
        """Open a session on some of the images; they keep their random numbers, but share no passes."""
        cut = self._like(self.inputs[start:stop], self.target.slice_images(start, stop))
        cut._origin, cut._place = self._origin[start:stop], self._place
        return cut

    def with_output(self, output: str) -> Context:
        """Return the session that explains another value of the same classes; methods that ask for it share it."""
        target = self._explained()
        if target.function is not None or target.output == output:
            return self
        if output not in self._by_output:
            self._by_output[output] = self._like(self.inputs, replace(target, output=output))
            self._by_output[output]._origin, self._by_output[output]._place = self._origin, self._place
        return self._by_output[output]

    def _explained(self) -> Target:
        """The target without a pass to learn its classes, where that can be."""
        return self._target

    def _like(self, inputs: Tensor, target: Target, model: VisionModel | None = None) -> Context:
        how = self.seed, self.batching, self.memory_gb, self.on_progress, self.grid
        return Context(model or self.model, inputs, target, *how)

    def prng_key(self, purpose: str) -> PRNGKey:
        """Return the random numbers of every image for one purpose, the same wherever it stands in a batch."""
        return PRNGKey.of_images(self.seed, purpose + self._place, self._origin)

    def expect(self, inputs: int) -> None:
        """Say that more inputs will be run than the method told beforehand, to whoever counts them."""
        more = getattr(self.on_progress, "expect", None)
        if more is not None:
            more(inputs)

    def _find_cache(self, ask: Pass) -> ActivationCache | None:
        for rules, cache in self._caches:
            lent = not ask.backward and rules.propagates != "relevance"  # a walk's values are in float64
            if (rules == ask.composite or lent) and all(cache.has(keep) for keep in ask.records):
                return cache
        if ask.backward:
            return None
        return next((found for each in self._by_output.values() if (found := each._find_cache(ask)) is not None), None)

    def _execute(self, ask: Pass) -> None:
        self._caches.append((ask.composite, self._compute(ask, self._target)))

    def _compute(self, ask: Pass, target: Target) -> ActivationCache:
        def part(start: int, stop: int) -> ActivationCache:
            cache = run(self.model, self.inputs[start:stop], ask, target.slice_images(start, stop))
            if self.on_progress is not None:
                self.on_progress(stop - start)
            return cache

        return ActivationCache.join(self.batching.run(part, len(self.inputs), ask.weight))


Choose = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""``(logits [B, C], explained class [B], classes of the images' own [B, K] or None) -> classes [B, slots]``.

The explained class is the first; classes outside the softmax have the logit minus infinity. An image with fewer
classes than there are slots has -1 in its last ones."""


class ContrastContexts:
    """The classes that a session's target is compared with, chosen from the logits, and one session for each.

    ``sessions`` answer the passes of any method for their own class; what one of them is asked for is run for all.
    The first is that of the explained class, and shares its passes with the session it came from.
    """

    def __init__(self, context: Context, slots: int, choose: Choose) -> None:
        self.choose = choose
        self.target = context.target if isinstance(context, ContrastContext) else context._target
        self._classes: Tensor | None = None
        self.contexts: list[Context] = [ContrastContext(self, context, slot) for slot in range(slots)]
        common: dict[Any, Any] = {} if context.shared is None else context.shared
        for each in self.contexts:
            each.shared = common
        if context._caches:
            self.fix_classes(self.classes_of(context.logits, 0, len(context.inputs)))

    @property
    def classes(self) -> Tensor:
        """The classes ``[B, K]``, the explained one first; -1 where an image has fewer than others."""
        if self._classes is None:
            self.contexts[0].target  # noqa: B018 - the first forward settles them
        assert self._classes is not None
        return self._classes[:, : _used(self._classes)]

    def classes_of(self, logits: Tensor, start: int, stop: int) -> Tensor:
        """Return the classes ``[b, slots]`` of images ``start .. stop - 1``."""
        if self._classes is not None:
            return self._classes[start:stop]
        explained = self.target.slice_images(start, stop).resolve(logits).classes
        assert explained is not None
        scores = class_logits(logits, self.target.class_subset)
        return self.choose(
            scores, explained.to(scores.device), self.target.slice_images(start, stop).compare_classes
        ).cpu()

    def targets_of(self, classes: Tensor, start: int, stop: int, slots: Sequence[int]) -> list[Target]:
        """Return one target per slot; an image without a class of its own there repeats its first one."""
        filled = torch.where(classes < 0, classes[:, :1], classes)
        return [replace(self.target.slice_images(start, stop), classes=filled[:, slot]) for slot in slots]

    def fix_classes(self, classes: Tensor) -> None:
        """Fix the classes of all images."""
        if self._classes is None:
            self._classes = classes
            slots = range(len(self.contexts))
            for context, target in zip(self.contexts, self.targets_of(classes, 0, len(classes), slots), strict=True):
                context._target = target


class ContrastContext(Context):
    """The session of one of several classes."""

    def __init__(self, rivals: ContrastContexts, context: Context, slot: int) -> None:
        super().__init__(
            context.model, context.inputs, context._target, context.seed, context.batching, context.memory_gb,
            context.on_progress, context.grid,
        )  # fmt: skip
        self.rivals, self.slot = rivals, slot
        self._origin, self._place = context._origin, context._place
        if slot == 0:
            self._caches = context._caches

    @property
    def target(self) -> Target:
        if self.rivals._classes is None:
            self._execute(Pass())
        return self._target

    def _explained(self) -> Target:
        return self.target

    def _execute(self, ask: Pass) -> None:
        rivals = self.rivals
        waiting = [context for context in rivals.contexts if context._find_cache(ask) is None]

        def part(start: int, stop: int) -> tuple[Tensor, list[ActivationCache]]:
            chosen: list[Tensor] = []

            def targets(logits: Tensor) -> list[Target]:
                chosen.append(rivals.classes_of(logits, start, stop))
                used = range(_used(chosen[0])) if ask.backward else range(1)
                slots = [slot for slot in used if rivals.contexts[slot] in waiting] or [0]
                return rivals.targets_of(chosen[0], start, stop, slots)

            caches = run_for_targets(self.model, self.inputs[start:stop], ask, targets)
            if self.on_progress is not None:
                self.on_progress(stop - start)
            return chosen[0], caches

        parts = self.batching.run(part, len(self.inputs), ask.weight)
        rivals.fix_classes(torch.cat([classes for classes, _ in parts]))
        joined = [ActivationCache.join(caches) for caches in _padded([caches for _, caches in parts])]
        for place, each in enumerate(waiting):  # slots that no image uses repeat the last trace; nobody reads it
            each._caches.append((ask.composite, joined[min(place, len(joined) - 1)]))


def _used(classes: Tensor) -> int:
    """How many slots any image has a class in."""
    return int((classes >= 0).any(dim=0).sum())


def _padded(parts: Sequence[list[ActivationCache]]) -> list[list[ActivationCache]]:
    """Turn the traces of each part into those of each slot; a part with fewer repeats its last one."""
    most = max(len(caches) for caches in parts)
    full = [[*caches, *(caches[-1].copy() for _ in range(most - len(caches)))] for caches in parts]
    return [list(slot) for slot in zip(*full, strict=True)]
