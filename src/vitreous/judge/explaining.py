"""The maps of one unit: every method for every class that is asked for, nothing twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data import Sample
from vitreous.errors import TargetError, VitreousError
from vitreous.judge.foreign import Foreign
from vitreous.judge.plan import Plan
from vitreous.methods import Method, answer
from vitreous.metrics import Explained, Maps, Need
from vitreous.metrics.curves import Array
from vitreous.models import View
from vitreous.models.parts import SubView
from vitreous.passes import Pass, Session, Target
from vitreous.passes.memory import InnerBatch
from vitreous.passes.random import Draws
from vitreous.passes.target import class_sets

__all__ = ["Cost", "Explaining"]


@dataclass
class Cost:
    """The seconds of a method for some maps: what it did by itself, and the passes that it shares, each taken whole.

    Their sum is about what it takes alone: a shared pass may do more than one of its methods needs. A result that two
    methods are made of is counted with the first of them.
    """

    own: float = 0.0
    shared: float = 0.0
    maps: int = 0


@dataclass
class Explaining:
    """Explains the pictures of a unit by the methods of its plan, which share their passes."""

    view: View
    plan: Plan
    samples: Sequence[Sample]
    inputs: Tensor
    tick: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self.inner = InnerBatch(self.plan.inner)
        self.costs = {name: Cost() for name in self.plan.methods}
        sets = [sample.among for sample in self.samples]
        if None in sets and any(each is not None for each in sets):
            raise TargetError(f"{self.samples[sets.index(None)].picture.name} has no set of classes, but others have")
        self.among = None if None in sets else class_sets(self.view, len(sets), sets)

    def maps(self, classes: Mapping[str, Tensor]) -> dict[str, Maps]:
        """Explain every picture for every class; ``classes`` has one per picture for each mode."""
        passes, rows = _passes(classes)
        values: dict[str, list[Tensor]] = {name: [] for name in self.plan.methods}
        for number, (images, wanted) in enumerate(passes):
            asked = [name for name, how in self.plan.methods.items() if number == 0 or how.class_specific]
            for name, maps in self._explain(self.view, asked, images, self.inputs[images], wanted).items():
                values[name].append(maps)
        everyone = np.arange(len(self.inputs))
        return {
            name: Maps(torch.cat(values[name]), rows if how.class_specific else dict.fromkeys(rows, everyone))
            for name, how in self.plan.methods.items()
        }

    def again(
        self, needs: Mapping[str, Iterable[Explained]], classes: Mapping[str, Tensor], looked: Tensor
    ) -> dict[str, dict[tuple[Need, str], Array]]:
        """Explain as the metrics ask for it: other images, another seed, class or model; ``[B, count, h, w]`` each."""
        made: dict[str, dict[tuple[Need, str], Array]] = {name: {} for name in self.plan.methods}
        for mode, wanted in needs.items():
            for need in dict.fromkeys(wanted):
                for name, maps in self._once_more(need, classes[mode], looked).items():
                    made[name][need, mode] = maps
        return made

    def _once_more(self, need: Explained, classes: Tensor, looked: Tensor) -> dict[str, Array]:
        seen = self.view if need.under is None else need.under(self.view)
        for name, how in self.plan.methods.items():
            if isinstance(how, Foreign) and not how.live:
                raise VitreousError(f"{name}: {how.what} cannot be made again, which a metric asks for")
            if isinstance(how, Foreign) and how.bound and need.under is not None:
                raise VitreousError(f"{name} knows its own model only, a metric asks about another: give a callable")
            if isinstance(how, Foreign) and isinstance(seen, SubView):  # a callable would get the model it is a part of
                raise VitreousError(
                    f"{name}: a {how.what} cannot be asked about {seen.name} with another head or start"
                )
        inputs, count = self.inputs, need.count
        if need.images is not None:
            inputs = need.images.of(inputs, self.view.preprocess, self.plan.seed).flatten(0, 1)
        if need.target != "same":
            others = looked.scatter(1, classes[:, None].to(looked.device), -torch.inf)
            if need.target == "random":
                chance = Draws.of_images(self.plan.seed, "other class", self.inputs).uniform(looked.shape[1])
                others = torch.where(others == -torch.inf, -1.0, chance.to(others))
            classes = others.argmax(dim=1)
        images = torch.arange(len(self.inputs)).repeat_interleave(count)
        by_method = self._explain(
            seen, list(self.plan.methods), images, inputs, classes[images.to(classes.device)], need.seed
        )
        return {name: maps.view(-1, count, *maps.shape[1:]).cpu().numpy() for name, maps in by_method.items()}

    def _explain(
        self, view: View, names: Sequence[str], images: Tensor, inputs: Tensor, wanted: Tensor, seed: int | None = None
    ) -> dict[str, Tensor]:
        """Return the maps of some methods; ``images`` says which picture each input was made of."""
        plan, by_method = self.plan, dict[str, Tensor]()
        seed = plan.seed if seed is None else seed
        hows = {name: plan.methods[name] for name in names}
        own = {name: how for name, how in hows.items() if isinstance(how, Method)}
        if own:
            among = None if self.among is None else self.among[images]
            aim = Target(classes=wanted.cpu(), value=plan.value, only=plan.only, among=among)
            session = Session(view, inputs, aim, seed, self.inner, plan.memory, self._alive)
            self._share(session, own)
            for name, method in own.items():
                began = self._now()
                by_method[name] = answer(session, [method], check=False)[0].map
                self._spent(name, self._now() - began, len(inputs))
        for name, how in hows.items():
            if isinstance(how, Foreign):
                some = [self.samples[image] for image in images.tolist()]
                began = self._now()
                by_method[name] = how.maps(name, view, some, inputs, wanted)
                self._spent(name, self._now() - began, len(inputs))
                self._alive(len(inputs))
        return by_method

    def _share(self, session: Session, methods: Mapping[str, Method]) -> None:
        """Run every pass that these methods are known to need, equal ones once, and note how long each took.

        As ``prepare`` does it, but one pass at a time: those of the value that is explained first, and what needs no
        backward along with the first.
        """
        kinds: dict[Any, dict[str, list[Pass]]] = {}
        for name, method in methods.items():
            for each in method.asks(session.view):
                kind = (each.value, each.rules) if each.backward else None
                kinds.setdefault(kind, {}).setdefault(name, []).append(each)
        forward = kinds.pop(None, {})
        order = sorted(kinds, key=lambda kind: kind[0] is not None) or [None]
        for name, asks in forward.items():
            kinds.setdefault(order[0], {}).setdefault(name, []).extend(asks)
        for kind in order:
            readers = kinds.get(kind, {})
            began = self._now()
            with torch.autocast(session.inputs.device.type, enabled=False):
                session.prepare([each for asks in readers.values() for each in asks])
            taken = self._now() - began
            for name in readers:
                self._spent(name, taken, shared=len(readers) > 1)

    def _now(self) -> float:
        if self.inputs.is_cuda:
            torch.cuda.synchronize(self.inputs.device)
        return time.perf_counter()

    def _spent(self, name: str, seconds: float, maps: int = 0, shared: bool = False) -> None:
        cost = self.costs[name]
        cost.own += 0.0 if shared else seconds
        cost.shared += seconds if shared else 0.0
        cost.maps += maps

    def _alive(self, inputs: int) -> None:
        """Say that a batch is done, which is a moment to stop at; explaining runs no states."""
        if self.tick is not None:
            self.tick(0)


def _passes(classes: Mapping[str, Tensor]) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Any]]:
    """Return which images to explain for which classes, nothing twice, and the rows of each mode."""
    passes: list[tuple[Tensor, Tensor]] = []
    rows: dict[str, Any] = {}
    total = 0
    known: dict[str, Tensor] = {}
    for mode, wanted in classes.items():
        mine: Array = np.full(len(wanted), -1)
        for earlier, their in known.items():
            mine = np.where((mine < 0) & (wanted == their).cpu().numpy(), rows[earlier], mine)
        new = np.flatnonzero(mine < 0)
        if len(new):
            mine[new] = total + np.arange(len(new))
            total += len(new)
            images = torch.from_numpy(new)
            passes.append((images, wanted[images.to(wanted.device)]))
        rows[mode], known[mode] = mine, wanted
    return passes, rows
