"""``bench run``: from a protocol to a plan, and from a plan to finished units."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.benchmark.changes import change_messages, refuse_other_model, stale_units
from vitreous.benchmark.data import Options, Part, changed
from vitreous.benchmark.methods import is_code, method_of
from vitreous.benchmark.plan import Cell, as_before, asks_more, missing_units, open_tasks, places, sources, wanted_units
from vitreous.benchmark.protocol import ModelSpec, Protocol
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import Found
from vitreous.benchmark.units import RecordedPlan, RunConfig, Task, Unit
from vitreous.benchmark.worker import Job, Worker, mixed, modes_of, versions
from vitreous.datasets import Sample
from vitreous.errors import ImageError, VitreousError, VitreousWarning, one_line
from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.methods import Method
from vitreous.models import ModelIdentity, Preprocess, VisionModel, load
from vitreous.progress import Progress
from vitreous.world.dataset import add_world

__all__ = ["TRIES", "BenchmarkRun", "Options", "Part", "UnitsFailed"]

TRIES = 3
_MOST_FAILED = 3  # units that may fail for good before a process gives up


class UnitsFailed(VitreousError):
    """Some units failed each time they were tried; all others that could be done are."""


class BenchmarkRun:
    """A protocol, its pictures and models, and the folder where what was found is kept."""

    def __init__(
        self,
        protocol: Protocol,
        out: str | Path,
        options: Options | None = None,
        *,
        named: Protocol | None = None,
        seen: Mapping[str, Any] | None = None,
    ) -> None:
        """``named`` is the protocol before a command changed it, ``seen`` what the manifest wanted when it did."""
        add_world()
        self.named, self.seen = named or protocol, seen
        self.options = options or Options()
        self.protocol = protocol.with_weights(self.options.checkpoint or {}).runnable()
        self.parts = [Part(part, self.options) for part in self.protocol.parts()]
        self.store = Store(out)
        self._places: tuple[int, dict[Cell, str]] | None = None
        self._obstacles: dict[tuple[Any, ...], str] = {}

    @cached_property
    def worker(self) -> Worker:
        return Worker(_Everywhere(self.parts), self._loaded, lambda setting, name: self._method(setting.methods[name]))

    def _method(self, text: str) -> Method | ExternalExplainer:
        return method_of(text, self.protocol.methods.values())

    def _loaded(self, setting: RunConfig) -> VisionModel:
        return self._load(next(spec for spec in self.protocol.models if spec.label == setting.label))

    def _spec(self, setting: RunConfig) -> ModelSpec | None:
        """Return the model that a setting is of, which may have another label now; ``None`` if it is not wanted."""
        specs = {spec.label: spec for spec in self.protocol.models}
        if setting.label in specs:
            return specs[setting.label]
        known = (other for plan in self.store.plans() for other in plan.settings if other.label in specs)
        return next((specs[other.label] for other in known if other.identity == setting.identity), None)

    def _load(self, spec: ModelSpec) -> VisionModel:
        checkpoint = (self.options.checkpoint or {}).get(spec.label, spec.checkpoint)
        loaded = load(spec.name, checkpoint=checkpoint, device=self.options.device)
        side = spec.size or loaded.preprocess.size[0]
        if loaded.preprocess.size != (side, side):  # the model is built for another size, not only its pictures
            loaded = load(spec.name, checkpoint=checkpoint, device=self.options.device, img_size=side)
        own = loaded.preprocess
        asked = {
            "size": spec.size and (side, side),
            "crop": spec.resize and side / spec.resize,
            "mode": spec.crop,
            "interpolation": spec.interpolation,
            "mean": spec.mean,
            "std": spec.std,
        }
        asked = {name: value for name, value in asked.items() if value and value != getattr(own, name)}
        if asked:  # a protocol's own numbers, whatever the transform of the model's library
            usual = {field.name: getattr(own, field.name) for field in dataclasses.fields(Preprocess)}
            loaded.preprocess = Preprocess(**{**usual, **asked})
        return loaded

    # -- planning ----------------------------------------------------------------------------------------

    def prepare(self) -> Store:
        """Begin the run or open it, and record a plan for what is missing of what is wanted."""
        for part in self.parts:
            part.check()
        sources = [part.pictures.source.to_json() for part in self.parts]
        wanted: dict[str, Any] = {"protocol": self.protocol.to_json(), "named": self.named.to_json()}
        wanted |= {**self.options.to_json(), "sources": sources}
        wanted["pictures"] = {part.protocol.data.label: part.listed for part in self.parts}
        decided = self._decided()
        self._refuse_changes([setting for setting, _ in decided], self.store.plans())
        self.store = Store.create(self.store.path, wanted, self.seen)
        self._warn_damaged(self.store.mend())
        with self.store.planning() as plans:
            self._refuse_changes([setting for setting, _ in decided], plans)
            settings = [as_before(setting, plans) for setting, _ in decided]
            stale = stale_units(settings, plans, self.store.finished())
            units: list[Unit] = []
            for number, (setting, (_, part)) in enumerate(zip(settings, decided, strict=True)):
                seeds, pictures = part.protocol.evaluation.seeds, part.pictures.digests
                units += missing_units(setting, number, seeds, pictures, plans, stale)
            changes = change_messages(settings, units, plans)
            if units or stale or any(asks_more(setting, plans) for setting in settings):
                named = {digest: name for part in self.parts for digest, name in part.names.items()}
                names = {picture: named[picture] for unit in units for picture in unit.pictures}
                why = "wanted" if not plans else "extended" if units else "other labels"
                self.store.add_plan(settings, units, "; ".join(changes) or why, names, stale, self._versions)
        for text in changes:
            warnings.warn(text, VitreousWarning, stacklevel=2)
        self._tell_versions()
        self._warn_left()
        return self.store

    @property
    def _versions(self) -> dict[str, str]:
        return versions({text: self._method(text) for text in self.protocol.methods.values()})

    def _warn_damaged(self, broken: Mapping[str, str]) -> None:
        if broken:
            unit, why = next(iter(broken.items()))
            files = f"units/{unit}.npz is" if len(broken) == 1 else f"{len(broken)} files such as units/{unit}.npz are"
            text = f"{self.store.path}: {files} damaged and made again: {why}"
            warnings.warn(text, VitreousWarning, stacklevel=3)

    def _warn_left(self) -> None:
        """Say which units of the run are left, since they are of what is not wanted or not named now."""
        left = [
            (plan, unit) for plan, task in open_tasks(self.store.plans(), self.store.finished()) for unit in task.units
        ]
        reasons = Counter(reason for plan, unit in left if (reason := self._obstacle(plan, unit)))
        for reason, count in reasons.items():
            units = "1 unfinished unit is" if count == 1 else f"{count} unfinished units are"
            warnings.warn(f"{self.store.path}: {units} left: {reason}", VitreousWarning, stacklevel=3)

    def _obstacle(self, plan: RecordedPlan, unit: Unit) -> str:
        """Return why a unit of the run cannot be done by this command; nothing if it can."""
        key = plan.revision, unit.setting, unit.methods, unit.pictures
        if key not in self._obstacles:
            self._obstacles[key] = self._find_obstacle(plan, unit)
        return self._obstacles[key]

    def _find_obstacle(self, plan: RecordedPlan, unit: Unit) -> str:
        setting = plan.settings[unit.setting]
        code = next((setting.methods[name] for name in unit.methods if self._is_foreign(setting.methods[name])), None)
        if code is not None:
            return f"{one_line(code)} is code to import, which this command does not name"
        if self._spec(setting) is None:
            return f"the model {one_line(setting.label)} is not wanted now"
        if _part_of(self.parts, setting.data, unit.pictures) is None:
            return f"the pictures {one_line(setting.data)} are not wanted now"
        return ""

    def _is_foreign(self, spec: str) -> bool:
        return is_code(spec) and spec not in self.protocol.methods.values()

    def _tell_versions(self) -> None:
        """Say so where another version goes on with what is there."""
        told = mixed((self.store.said(unit) for unit in self.store.finished()), versions()) if self.tasks() else ""
        if told:
            text = f"{self.store.path}: {told}: numbers may differ; the report says whose are whose"
            warnings.warn(text, VitreousWarning, stacklevel=3)

    def _decided(self) -> list[tuple[RunConfig, Part]]:
        found = []
        for spec in self.protocol.models:
            parts = [part for part in self.parts if spec in part.protocol.models]
            model = self._load(spec)
            found += [(part.setting(spec, model), part) for part in parts]
        return found

    def _refuse_changes(self, settings: Sequence[RunConfig], plans: Sequence[RecordedPlan]) -> None:
        """Refuse to go on with other models or pictures under names that the run knows."""
        models = {known.label: known for plan in plans for known in plan.settings}
        for setting in settings:
            if setting.label in models:
                identity = ModelIdentity.parse(setting.fingerprint)
                refuse_other_model(models[setting.label], identity, "choose another place for the new ones")
        for part in self.parts:
            self._refuse_pictures(part, plans)

    def _refuse_pictures(self, part: Part, plans: Sequence[RecordedPlan]) -> None:
        label, word = part.protocol.data.label, part.pictures.source.word
        finished = self.store.finished()
        for plan in plans:
            mine = {number for number, setting in enumerate(plan.settings) if setting.data == label}
            units = [unit for unit in plan.units if unit.setting in mine]
            names = {plan.names[picture]: picture for unit in units for picture in unit.pictures}
            there = {plan.names[picture] for unit in units if unit.id not in finished for picture in unit.pictures}
            for name, picture in names.items():
                lost = name not in part.numbers
                if (lost and name in there) or (not lost and picture not in part.names):
                    raise VitreousError(changed(name, word, lost))

    # -- running -----------------------------------------------------------------------------------------

    def tasks(self, shard: tuple[int, int] | None = None) -> list[tuple[RecordedPlan, Task]]:
        """Return what is left to do and can be done here; of a ``shard`` (i, n), counted from 0, its part."""
        tasks = open_tasks(self.store.plans(), self.store.finished(), shard)
        possible = ((plan, [unit for unit in task.units if not self._obstacle(plan, unit)]) for plan, task in tasks)
        return [(plan, Task(tuple(units))) for plan, units in possible if units]

    def refuse_unreadable(self) -> None:
        """Refuse a run that is done if no picture of a data set could be read: it has found nothing."""
        plans = self.store.plans()
        for part in self.parts:
            wanted, unreadable = set(part.pictures.digests), dict[str, str]()
            for plan, unit in wanted_units(plans):
                if unit.judges or wanted.isdisjoint(unit.pictures):
                    continue
                said = self.store.said(unit.id)
                if said is None or said.get("pictures") or said.get("unsure"):
                    break
                unreadable |= {plan.names[picture]: why for picture, why in said.get("unreadable", {}).items()}
            else:
                if unreadable:
                    word, why = part.pictures.source.word, next(iter(unreadable.values()))
                    raise ImageError(one_line(f"none of the {len(wanted)} pictures of {word} can be read: {why}"))

    def job(self, plan: RecordedPlan, piece: Unit) -> Job:
        """Return a unit with all that it needs."""
        setting = self._current(plan.settings[piece.setting], piece)
        names = {picture: plan.names[picture] for picture in piece.pictures}
        where = sources(self._where(), setting, piece, modes_of(setting, piece)) if piece.judges else {}
        return Job(piece, setting, plan.revision, names, where)

    def _current(self, setting: RunConfig, unit: Unit) -> RunConfig:
        """Return a setting with the labels that its model and pictures have in this protocol."""
        spec, part = self._spec(setting), _part_of(self.parts, setting.data, unit.pictures)
        if spec is None or part is None:
            raise VitreousError(f"unit {unit.id} is of a model or of pictures that are not wanted now")
        labels = spec.label, part.protocol.data.label
        if labels == (setting.label, setting.data):
            return setting
        return dataclasses.replace(setting, label=labels[0], data=labels[1])

    def _where(self) -> dict[Cell, str]:
        plans = self.store.plans()
        if self._places is None or self._places[0] != len(plans):
            self._places = len(plans), places(plans)
        return self._places[1]

    def work(
        self,
        shard: tuple[int, int] | None = None,
        progress: Progress | None = None,
        began: Callable[[str], None] | None = None,
    ) -> None:
        """Do what is left, here and now, next to whoever else is at it; wait for nobody. ``began`` is told each id."""
        failed: dict[str, str] = {}
        while self._round(shard, progress, began or _nobody, failed):
            pass
        if failed:
            raise UnitsFailed(f"{len(failed)} units failed {TRIES} times, such as {next(iter(failed.values()))}")

    def _round(
        self,
        shard: tuple[int, int] | None,
        progress: Progress | None,
        began: Callable[[str], None],
        failed: dict[str, str],
    ) -> bool:
        """Go once through what is left; say whether anything has changed by it, so that there may be more."""
        moved, known = False, len(self.store.plans())
        for plan, task in self.tasks(shard):
            for piece in task.units:
                if piece.id in failed or not self._done(self.job(plan, piece), began, failed):
                    continue  # someone else is at it, or at what it reads
                moved = True
                if progress is not None:
                    progress(*self.counts())
            if len(self.store.plans()) > known:
                return True  # there is a new revision: what is left is another list
            if len(failed) >= _MOST_FAILED:
                return False
        return moved

    def _done(self, job: Job, began: Callable[[str], None], failed: dict[str, str]) -> bool:
        """Do a unit, unless it is done, another process is at it or what it reads is not there yet."""
        if not job.reads <= self.store.finished():
            return False
        with self.store.claim(job.unit.id) as mine:
            if not mine:
                return self.store.said(job.unit.id) is not None
            began(job.unit.id)
            found = self._tried(job, failed)
            return found is not None and self.keep(job, found)

    def _tried(self, job: Job, failed: dict[str, str]) -> Found | None:
        """Run a unit, a few times if it fails by surprise; what is raised on purpose would be raised again."""
        for attempt in range(1, TRIES + 1):
            try:
                return self.worker.found(job, self.store.read)
            except VitreousError:
                raise
            except Exception as error:
                reason = one_line(f"{type(error).__name__}: {error}")
                self.store.note_failure(job.unit.id, reason)
                time.sleep(0.1 * attempt)
        failed[job.unit.id] = reason
        return None

    def keep(self, job: Job, found: Found) -> bool:
        """Write down what a unit found; the caller holds its claim.

        Where memory ran out on the way, its numbers hang on when that was. They are dropped, and what is left of this
        model, this unit first, is run in smaller parts by a new revision of the plan.
        """
        arrays, said = found
        smaller = job.smaller(said)
        if smaller is not None:
            self._revise(job, smaller)
            return False
        tries = self.store.failures().get(job.unit.id, [])
        self.store.write(job.unit.id, arrays, {**said, "retried": tries})
        return True

    def _revise(self, job: Job, smaller: RunConfig) -> None:
        with self.store.planning() as plans:
            units = {unit.id: plan for plan, unit in wanted_units(plans)}
            if job.unit.id not in units:
                return  # another process has seen to it
            plan, finished = units[job.unit.id], self.store.finished()
            left = [each for each in plan.units if each.setting == job.unit.setting and each.id in units]
            left = [each for each in left if each.id not in finished]
            smaller = smaller.narrowed({m for u in left for m in u.methods}, {m for u in left for m in u.metrics})
            less = [Unit.of(smaller, 0, u.seed, u.pictures, u.methods, u.modes, u.metrics) for u in left]
            names = {picture: plan.names[picture] for unit in left for picture in unit.pictures}
            sizes = (
                f"inner {job.setting.attribution_batch} to {smaller.attribution_batch}, "
                f"states {job.setting.forward_batch} to {smaller.forward_batch}"
            )
            why = f"out of memory on {smaller.label}: {sizes}"
            self.store.add_plan([smaller], less, why, names, [each.id for each in left], self._versions)

    def counts(self) -> tuple[int, int]:
        """Return how many units are finished, and how many there are."""
        units, finished = wanted_units(self.store.plans()), self.store.finished()
        return sum(unit.id in finished for _, unit in units), len(units)


def _nobody(unit: str) -> None:
    """Nobody is told."""


class _Everywhere:
    """The pictures of all data sets of a run."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def sample(self, data: str, name: str, digest: str, model: VisionModel) -> Sample:
        return next(part for part in self.parts if part.protocol.data.label == data).sample(name, digest, model)


def _part_of(parts: Sequence[Part], label: str, pictures: Sequence[str]) -> Part | None:
    """Return the data set with this label, or the one that has these pictures under another label now."""
    named = (part for part in parts if part.protocol.data.label == label)
    return next(named, None) or next((part for part in parts if part.names.keys() >= set(pictures)), None)
