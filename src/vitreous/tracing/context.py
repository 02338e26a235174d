"""A context: some inputs, one target, and every pass over them run once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.models import VisionModel
from vitreous.models.submodels import SubModel
from vitreous.tracing.memory import InnerBatch, Part, inner_batch
from vitreous.tracing.prng import PRNGKey, check_seed
from vitreous.tracing.records import ActivationCache, Pass
from vitreous.tracing.rules import Composite
from vitreous.tracing.runner import merge, run_for_targets
from vitreous.tracing.targets import Target, class_logits, probabilities


class Context:
    """Answers the passes of any number of methods over the same inputs and target.

    ``prepare`` runs what several methods will need, merged; ``run_pass`` returns a cache, and runs the pass only if no
    earlier one covers it. ``with_inputs`` opens a context on other inputs (noisy copies, a sub-network) with the class
    fixed, ``with_output`` one on the same inputs for another output of the class.

    Parameters
    ----------
    model : VisionModel
        The context works on a shared copy of it, so that passes and methods install what they need on modules that no
        one else knows.
    inputs : Tensor
        What enters the model.
    target : Target
        What is explained.
    seed : int, default 0
        What random numbers follow, beside each image and a purpose.
    batch : int or InnerBatch, optional
        How many inputs go through the model together; as many as the memory budget allows, where it is left out.
    memory_gb : float, optional
        That budget.
    on_progress : callable, optional
        Called with the number of inputs that have just been run, by this context and all that it opens.
    grid : str, optional
        Where the map will be wanted, ``"token"`` or ``"pixel"``, if not on the method's own grid.
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
        # a structural copy that shares the weights: hooks on it are seen by nobody else, in no other thread
        self.model, self.seed, self.memory_gb = model.shared_copy(), check_seed(seed), memory_gb
        self.on_progress, self.grid = on_progress, grid
        size = inner_batch(model, self.inputs, memory_gb) if batch is None else batch
        self.batching = size if isinstance(size, InnerBatch) else InnerBatch(max(1, size))
        self._target = target
        self._origin, self._path = inputs.detach().to(self.inputs.device), ""  # what random numbers follow
        self._caches: list[tuple[Composite, ActivationCache]] = []
        self._by_output: dict[str, Context] = {}
        self.memo: dict[Any, Any] = {}
        """What methods keep here for others of this context."""
        self.shared: dict[Any, Any] | None = None
        """What is true of every class: shared by the contexts of several classes over the same inputs, if any."""

    # -- passes ----------------------------------------------------------------------------------------

    def prepare(self, passes: Iterable[Pass]) -> None:
        """Run all of these passes now, equal ones once, for each output of the class that they name.

        What needs no backward rides along with the first pass that has one, whatever its output.
        """
        groups: dict[str | None, list[Pass]] = {}
        for pass_ in passes:
            resolved = replace(pass_.resolve(self.model), output=None)
            groups.setdefault(pass_.output if pass_.backward else None, []).append(resolved)
        if len(groups) > 1 and not any(pass_.backward for pass_ in groups.get(None, [])):
            riders = groups.pop(None, [])
            next(iter(groups.values())).extend(riders)
        for output, group in groups.items():
            context = self if output is None else self.with_output(output)
            missing = [pass_ for pass_ in group if not pass_.patches and context._find_cache(pass_) is None]
            for pass_ in merge(missing):
                context._execute(pass_)

    def run_pass(self, pass_: Pass) -> ActivationCache:
        """Return the cache of this pass, or of an earlier one that covers it."""
        pass_ = pass_.resolve(self.model)
        if pass_.output is not None:
            context = self.with_output(pass_.output) if pass_.backward else self
            return context.run_pass(replace(pass_, output=None))
        if pass_.patches:  # another forward: needed by one method, and no answer for others
            alone = self.with_target(self.target)
            alone._execute(pass_)
            return alone._caches[-1][1]
        cache = self._find_cache(pass_)
        if cache is None:
            self._execute(pass_)
            cache = self._caches[-1][1]
        return cache

    def _find_cache(self, pass_: Pass) -> ActivationCache | None:
        """Return a cache that holds what this pass records.

        Composites leave forward values as they are, so a pass without a backward may read any cache, also that of
        another output; only those of relevance hold other numbers, in float64.
        """
        for composite, cache in self._caches:
            is_lent = not pass_.backward and composite.propagates != "relevance"
            if (composite == pass_.composite or is_lent) and all(cache.has(record) for record in pass_.records):
                return cache
        if pass_.backward:
            return None
        caches = (context._find_cache(pass_) for context in self._by_output.values())
        return next((cache for cache in caches if cache is not None), None)

    def _execute(self, pass_: Pass) -> None:
        """Run a pass over all inputs, as many at once as fit, and keep its cache."""
        caches: list[ActivationCache] = []
        for part in self.batching.parts(len(self.inputs), pass_.weight):
            with part:
                targets = [self._target.slice_images(part.start, part.stop)]
                caches += run_for_targets(self.model, self.inputs[part.start : part.stop], pass_, targets)
                self._report(part)
        self._caches.append((pass_.composite, ActivationCache.join(caches)))

    def _report(self, part: Part) -> None:
        if self.on_progress is not None:
            self.on_progress(part.stop - part.start)

    # -- inputs and target -----------------------------------------------------------------------------

    @property
    def batch(self) -> int:
        """How many inputs go together in this context and all that it opens."""
        return self.batching.size

    @property
    def logits(self) -> Tensor:
        """The logits of the inputs; a forward of their own only if no pass has run yet."""
        if not self._caches:
            for context in self._by_output.values():
                if context._caches:
                    return context.logits
            self._execute(Pass())
        return self._caches[0][1].logits

    @property
    def probabilities(self) -> Tensor:
        return probabilities(self.logits, self._target.class_subset)

    @property
    def target(self) -> Target:
        """The target with its classes resolved."""
        if self._target.classes is None and self._target.function is None:
            self._target = self._target.resolve(self.logits)
        return self._target

    @property
    def requested_target(self) -> Target:
        """The target as it was given; its classes may not be resolved yet, and no pass is run to learn them."""
        return self._target

    def prng_key(self, purpose: str) -> PRNGKey:
        """Return the random numbers of every image for one purpose, the same wherever it stands in a batch."""
        return PRNGKey.of_images(self.seed, purpose + self._path, self._origin)

    def expect(self, inputs: int) -> None:
        """Say that more inputs will be run than the method foretold, to whoever counts them."""
        expect = getattr(self.on_progress, "expect", None)
        if expect is not None:
            expect(inputs)

    # -- other contexts --------------------------------------------------------------------------------

    def with_inputs(self, inputs: Tensor, model: VisionModel | None = None, repeat: int = 1) -> Context:
        """Return a context on other inputs, ``repeat`` of them for each of these, explaining the same classes."""
        context = self._derive(inputs, self.target.repeat(repeat), model)
        if isinstance(model, SubModel) and repeat == 1:  # tokens of the same images, which rounding may change
            context._origin, context._path = self._origin, f"{self._path}[{model.first}]"
        return context

    def batched_copies(self, make: Callable[[int, int], Tensor], count: int) -> Iterator[tuple[Context, int, int]]:
        """Yield contexts on ``count`` changed copies of every image, as many as go together, copies of one adjacent.

        Parameters
        ----------
        make : callable
            ``(start, stop) -> [B, stop - start, ...]``: these copies of all images.
        count : int
            How many copies there are of each image.

        Yields
        ------
        tuple of (Context, int, int)
            The context, and which copies of each image are in it: ``start`` and ``stop``.
        """
        step = max(1, self.batch // len(self.inputs))
        for start in range(0, count, step):
            stop = min(count, start + step)
            yield self.with_inputs(make(start, stop).flatten(0, 1), repeat=stop - start), start, stop

    def slice_images(self, start: int, stop: int) -> Context:
        """Return a context on some of the images; they keep their random numbers, but share no passes."""
        context = self._derive(self.inputs[start:stop], self.target.slice_images(start, stop))
        context._origin, context._path = self._origin[start:stop], self._path
        return context

    def with_output(self, output: str) -> Context:
        """Return the context that explains another output of the same classes; methods that need it share it."""
        target = self.requested_target
        if target.function is not None or target.output == output:
            return self
        if output not in self._by_output:
            self._by_output[output] = self.with_target(replace(target, output=output))
        return self._by_output[output]

    def with_target(self, target: Target, seed: int | None = None) -> Context:
        """Return a context that explains another target of the same inputs, with the same seed or another.

        The model was verified on these inputs, and is not again.
        """
        other = object.__new__(Context)
        vars(other).update(vars(self), _target=target, seed=self.seed if seed is None else check_seed(seed))
        vars(other).update(_caches=[], _by_output={}, memo={}, shared=None)
        return other

    def _derive(self, inputs: Tensor, target: Target, model: VisionModel | None = None) -> Context:
        return Context(
            model or self.model, inputs, target, self.seed, self.batching, self.memory_gb, self.on_progress, self.grid
        )


Choose = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""``(logits [B, C], explained class [B], classes of the images' own [B, K] or None) -> classes [B, slots]``.

The explained class is the first; classes outside the softmax have the logit minus infinity. An image with fewer
classes than there are slots has -1 in its last ones."""


class ContrastContexts:
    """The classes that a context's target is compared with, chosen from the logits, and one context for each.

    ``contexts`` answer the passes of any method for their own class; what one of them runs is run for all: one forward,
    and one backward for each class. The first is that of the explained class, and shares its passes with the context it
    came from.
    """

    def __init__(self, context: Context, slots: int, choose: Choose) -> None:
        self.choose = choose
        self.target = context.requested_target
        self.chosen: Tensor | None = None
        self.contexts = [ContrastContext(self, context, slot) for slot in range(slots)]
        shared: dict[Any, Any] = {} if context.shared is None else context.shared
        for contrast_context in self.contexts:
            contrast_context.shared = shared
        if context._caches:
            self.fix_classes(self.classes_of(context.logits, 0, len(context.inputs)))

    @property
    def classes(self) -> Tensor:
        """The classes ``[B, K]``, the explained one first; -1 where an image has fewer than others."""
        if self.chosen is None:
            self.contexts[0].settle()
        assert self.chosen is not None
        return self.chosen[:, : _num_used(self.chosen)]

    def classes_of(self, logits: Tensor, start: int, stop: int) -> Tensor:
        """Return the classes ``[b, slots]`` of images ``start .. stop - 1``."""
        if self.chosen is not None:
            return self.chosen[start:stop]
        target = self.target.slice_images(start, stop)
        explained = target.resolve(logits).classes
        assert explained is not None
        scores = class_logits(logits, self.target.class_subset)
        return self.choose(scores, explained.to(scores.device), target.compare_classes).cpu()

    def targets_of(self, classes: Tensor, start: int, stop: int, slots: Iterable[int]) -> list[Target]:
        """Return one target per slot; an image without a class of its own there repeats its first one."""
        filled = torch.where(classes < 0, classes[:, :1], classes)
        return [replace(self.target.slice_images(start, stop), classes=filled[:, slot]) for slot in slots]

    def fix_classes(self, classes: Tensor) -> None:
        """Fix the classes of all images."""
        if self.chosen is None:
            self.chosen = classes
            targets = self.targets_of(classes, 0, len(classes), range(len(self.contexts)))
            for context, target in zip(self.contexts, targets, strict=True):
                context._target = target


class ContrastContext(Context):
    """The context of one of several classes."""

    def __init__(self, family: ContrastContexts, context: Context, slot: int) -> None:
        vars(self).update(vars(context.with_target(context.requested_target)))
        self._family = family
        if slot == 0:
            self._caches = context._caches

    @property
    def target(self) -> Target:
        self.settle()
        return self._target

    @property
    def requested_target(self) -> Target:
        return self.target

    def settle(self) -> None:
        """Choose the classes, by a forward if none has run."""
        if self._family.chosen is None:
            self._execute(Pass())

    def _execute(self, pass_: Pass) -> None:
        family = self._family
        waiting = [context for context in family.contexts if context._find_cache(pass_) is None]

        classes: list[Tensor] = []
        parts: list[list[ActivationCache]] = []
        for part in self.batching.parts(len(self.inputs), pass_.weight):
            with part:
                chosen: list[Tensor] = []

                def targets(
                    logits: Tensor, start: int = part.start, stop: int = part.stop, chosen: list[Tensor] = chosen
                ) -> list[Target]:
                    chosen.append(family.classes_of(logits, start, stop))
                    used = range(_num_used(chosen[0])) if pass_.backward else range(1)
                    slots = [slot for slot in used if family.contexts[slot] in waiting] or [0]
                    return family.targets_of(chosen[0], start, stop, slots)

                parts.append(run_for_targets(self.model, self.inputs[part.start : part.stop], pass_, targets))
                classes += chosen
                self._report(part)
        family.fix_classes(torch.cat(classes))
        joined = [ActivationCache.join(caches) for caches in _by_slot(parts)]
        for index, context in enumerate(waiting):  # slots that no image uses repeat the last cache; nobody reads it
            context._caches.append((pass_.composite, joined[min(index, len(joined) - 1)]))


def _num_used(classes: Tensor) -> int:
    """How many slots any image has a class in."""
    return int((classes >= 0).any(dim=0).sum())


def _by_slot(parts: Sequence[list[ActivationCache]]) -> list[list[ActivationCache]]:
    """Turn the caches of each part into those of each slot; a part with fewer repeats its last one."""
    most = max(len(caches) for caches in parts)
    full = [[*caches, *(caches[-1].copy() for _ in range(most - len(caches)))] for caches in parts]
    return [list(slot) for slot in zip(*full, strict=True)]
