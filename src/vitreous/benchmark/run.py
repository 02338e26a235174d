"""From a protocol to a plan, and from a plan to finished units."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from vitreous.benchmark.changes import change_messages, stale_units
from vitreous.benchmark.data import DatasetRun, Options, is_import, parse_explainer
from vitreous.benchmark.plan import (
    CellKey,
    has_new_rows,
    keep_batch_sizes,
    missing_units,
    open_units,
    units_by_cell,
    units_of_maps,
    wanted_units,
)
from vitreous.benchmark.protocol import ModelSpec, Protocol
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import UnitResult, pack_unit
from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit
from vitreous.benchmark.worker import Job, Worker, modes_of, other_versions, refuse_other_model, versions
from vitreous.datasets import Sample
from vitreous.errors import ImageError, VitreousError, VitreousWarning, one_line
from vitreous.evaluation.plan import Explainer
from vitreous.metrics import get_metric
from vitreous.models import ModelIdentity, Preprocess, VisionModel, load
from vitreous.progress import Progress

TRIES = 3
_MOST_FAILED = 3  # units that may fail for good before a process gives up


class UnitsFailed(VitreousError):
    """Some units failed each time they were tried; all others that could be done are."""


class BenchmarkRun:
    """A protocol, its images and models, and the folder where the results are."""

    def __init__(
        self,
        protocol: Protocol,
        out: str | Path,
        options: Options | None = None,
        *,
        named: Protocol | None = None,
        previous: Mapping[str, Any] | None = None,
    ) -> None:
        """``named`` is the protocol before a command changed it, ``previous`` what the manifest wanted when it did."""
        self.named, self.previous = named or protocol, previous
        self.options = options or Options()
        self.protocol = protocol.with_weights(self.options.checkpoint or {}).runnable()
        self.datasets = [DatasetRun(part, self.options) for part in self.protocol.per_dataset()]
        self.store = Store(out)
        self._model: tuple[ModelSpec, VisionModel] | None = None
        self._units_by_cell: tuple[int, dict[CellKey, str]] | None = None
        self._obstacles: dict[tuple[Any, ...], str] = {}

    @cached_property
    def worker(self) -> Worker:
        def sample(data: str, name: str, digest: str, model: VisionModel) -> Sample:
            return next(dataset for dataset in self.datasets if dataset.label == data).sample(name, digest, model)

        def model(config: RunConfig) -> VisionModel:
            return self.model(next(spec for spec in self.protocol.models if spec.label == config.label))

        return Worker(sample, model, self._explainer)

    def _explainer(self, text: str) -> Explainer:
        return parse_explainer(text, self.protocol.methods.values())

    def _spec(self, config: RunConfig) -> ModelSpec | None:
        """Return the model that a config is of, which may have another label now; ``None`` if it is not wanted."""
        specs = {spec.label: spec for spec in self.protocol.models}
        if config.label in specs:
            return specs[config.label]
        others = (other for plan in self.store.plans() for other in plan.configs if other.label in specs)
        return next((specs[other.label] for other in others if other.identity == config.identity), None)

    def _dataset(self, label: str, images: Sequence[str]) -> DatasetRun | None:
        """Return the data set with this label, or the one that has these images under another label now."""
        same_label = (dataset for dataset in self.datasets if dataset.label == label)
        same_images = (dataset for dataset in self.datasets if dataset.names.keys() >= set(images))
        return next(same_label, None) or next(same_images, None)

    def model(self, spec: ModelSpec) -> VisionModel:
        """Return a loaded model; the last one stays, so that work begins with what planning has loaded."""
        if self._model is None or self._model[0] != spec:
            self._model = None  # the old one goes before the new one comes
            self._model = spec, self._load(spec)
        return self._model[1]

    def _load(self, spec: ModelSpec) -> VisionModel:
        checkpoint = (self.options.checkpoint or {}).get(spec.label, spec.checkpoint)
        model = load(spec.name, checkpoint=checkpoint, device=self.options.device)
        side = spec.size or model.preprocess.size[0]
        if model.preprocess.size != (side, side):  # the model is built for another size, not only its images
            model = load(spec.name, checkpoint=checkpoint, device=self.options.device, img_size=side)
        usual = {field.name: getattr(model.preprocess, field.name) for field in dataclasses.fields(Preprocess)}
        own = {
            "size": spec.size and (side, side),
            "crop": spec.resize and side / spec.resize,
            "mode": spec.crop,
            "interpolation": spec.interpolation,
            "mean": spec.mean,
            "std": spec.std,
        }
        changed = usual | {name: value for name, value in own.items() if value}
        if changed != usual:  # a protocol's own numbers, whatever the transform of the model's library
            model.preprocess = Preprocess(**changed)
        return model

    # -- planning ----------------------------------------------------------------------------------------

    def prepare(self) -> Store:
        """Begin the run or open it, and record a plan for what is missing of what is wanted."""
        for text in self.protocol.methods.values():  # what cannot be parsed is refused before a model is loaded
            self._explainer(text)
        for text in (text for dataset in self.datasets for text in dataset.protocol.evaluation.metrics):
            get_metric(text)
        wanted = {
            "protocol": self.protocol.to_json(),
            "named": self.named.to_json(),
            **self.options.to_json(),
            "sources": [dataset.images.source.to_json() for dataset in self.datasets],
            "image_digests": {dataset.label: dataset.listed for dataset in self.datasets},
        }
        configs = self._configs()
        self._refuse_changes([config for config, _ in configs], self.store.plans())
        self.store = Store.create(self.store.path, wanted, self.previous)
        damaged = self.store.mend()
        if damaged:
            unit, why = next(iter(damaged.items()))
            several = f"{len(damaged)} files such as units/{unit}.npz are"
            files = f"units/{unit}.npz is" if len(damaged) == 1 else several
            warnings.warn(f"{self.store.path}: {files} damaged and made again: {why}", VitreousWarning, stacklevel=2)
        with self.store.planning() as plans:
            self._refuse_changes([config for config, _ in configs], plans)
            kept_sizes = [(keep_batch_sizes(config, plans), dataset) for config, dataset in configs]
            messages = self._add_plan(kept_sizes, plans)
        for text in (*messages, *self._notes()):
            warnings.warn(text, VitreousWarning, stacklevel=2)
        return self.store

    def _configs(self) -> list[tuple[RunConfig, DatasetRun]]:
        """Return the configuration of each model on each of its data sets.

        The last model first: the one that is loaded in the end is that of the first units.
        """
        by_model = []
        for spec in reversed(self.protocol.models):
            model = self.model(spec)
            datasets = [dataset for dataset in self.datasets if spec in dataset.protocol.models]
            by_model.append([(dataset.config(spec, model), dataset) for dataset in datasets])
        return [pair for pairs in reversed(by_model) for pair in pairs]

    def _add_plan(
        self, configs: Sequence[tuple[RunConfig, DatasetRun]], plans: Sequence[RecordedPlan]
    ) -> Sequence[str]:
        """Record what no plan has yet, if there is anything; return what has changed since the last one, in words."""
        own = [config for config, _ in configs]
        stale = stale_units(own, plans, self.store.finished())
        units: list[Unit] = []
        for number, (config, dataset) in enumerate(configs):
            units += missing_units(config, number, self.protocol.evaluation.seeds, dataset.images.digests, plans, stale)
        messages = change_messages(own, units, plans)
        if not (units or stale or has_new_rows(own, plans)):
            return messages
        all_names = ChainMap(*(dataset.names for dataset in reversed(self.datasets)))
        names = {image: all_names[image] for unit in units for image in unit.images}
        why = "wanted" if not plans else "extended" if units else "other labels"
        content = tuple(own), tuple(units), "; ".join(messages) or why, names, tuple(stale), self._versions
        self.store.add_plan(RecordedPlan(len(plans) + 1, *content))
        return messages

    @property
    def _versions(self) -> dict[str, str]:
        return versions({text: self._explainer(text) for text in self.protocol.methods.values()})

    def _notes(self) -> Iterator[str]:
        """Say whether another version goes on with what is there, and which units are left: nobody wants them now."""
        text = other_versions(self.store.unit_versions, versions()) if self.open_units() else ""
        if text:
            yield f"{self.store.path}: {text}: numbers may differ; the report says whose are whose"
        left = open_units(self.store.plans(), self.store.finished())
        for reason, count in Counter(self._obstacle(plan, unit) for plan, unit in left).items():
            if reason:
                units = "1 unfinished unit is" if count == 1 else f"{count} unfinished units are"
                yield f"{self.store.path}: {units} left: {reason}"

    def _obstacle(self, plan: RecordedPlan, unit: Unit) -> str:
        """Return why a unit of the run cannot be done by this command; nothing if it can."""
        key = plan.revision, unit.config, unit.methods, unit.images
        if key not in self._obstacles:
            self._obstacles[key] = self._find_obstacle(plan.config_of(unit), unit)
        return self._obstacles[key]

    def _find_obstacle(self, config: RunConfig, unit: Unit) -> str:
        for text in (config.methods[label] for label in unit.methods):
            if is_import(text) and text not in self.protocol.methods.values():
                return f"{one_line(text)} is code to import, which this command does not name"
        if self._spec(config) is None:
            return f"the model {one_line(config.label)} is not wanted now"
        if self._dataset(config.data, unit.images) is None:
            return f"the pictures {one_line(config.data)} are not wanted now"
        return ""

    def _refuse_changes(self, configs: Sequence[RunConfig], plans: Sequence[RecordedPlan]) -> None:
        """Refuse to go on with other models or images under names that the run knows."""
        planned = {config.label: config for plan in plans for config in plan.configs}
        for config in configs:
            if config.label in planned:
                identity = ModelIdentity.parse(config.fingerprint)
                refuse_other_model(planned[config.label], identity, "choose another place for the new ones")
        finished = self.store.finished()
        for plan, dataset in product(plans, self.datasets):
            units = [unit for unit in plan.units if plan.config_of(unit).data == dataset.label]
            needed = {image for unit in units if unit.id not in finished for image in unit.images}
            for image in {image for unit in units for image in unit.images} - dataset.names.keys():
                name = plan.names[image]
                if name in dataset.indices or image in needed:  # it has changed, or is gone and not done
                    raise dataset.changed(name)

    # -- running -----------------------------------------------------------------------------------------

    def open_units(self, shard: tuple[int, int] | None = None) -> list[tuple[RecordedPlan, Unit]]:
        """Return what is left to do and can be done here; of a ``shard`` (i, n), counted from 0, its part."""
        left = open_units(self.store.plans(), self.store.finished(), shard)
        return [(plan, unit) for plan, unit in left if not self._obstacle(plan, unit)]

    def refuse_unreadable(self) -> None:
        """Refuse a run that is done if no image of a data set could be read: it has no result."""
        plans = self.store.plans()
        for dataset in self.datasets:
            images, unreadable = set(dataset.images.digests), dict[str, str]()
            for plan, unit in wanted_units(plans):
                if unit.is_scoring or images.isdisjoint(unit.images):
                    continue
                info = self.store.info(unit.id)
                if info is None or info.get("images") or info.get("uncertain"):
                    break
                unreadable |= {plan.names[image]: why for image, why in info.get("unreadable", {}).items()}
            else:
                if unreadable:
                    source, why = dataset.images.source.name, next(iter(unreadable.values()))
                    raise ImageError(one_line(f"none of the {len(images)} pictures of {source} can be read: {why}"))

    def job(self, plan: RecordedPlan, unit: Unit) -> Job:
        """Return a unit with all that it needs, under the labels that its model and images have in this protocol."""
        config = plan.config_of(unit)
        spec, dataset = self._spec(config), self._dataset(config.data, unit.images)
        if spec is None or dataset is None:
            raise VitreousError(f"unit {unit.id} is of a model or of pictures that are not wanted now")
        if (spec.label, dataset.label) != (config.label, config.data):
            config = dataclasses.replace(config, label=spec.label, data=dataset.label)
        names = {image: plan.names[image] for image in unit.images}
        if not unit.is_scoring:
            return Job(unit, config, plan.revision, names)
        plans = self.store.plans()
        if self._units_by_cell is None or self._units_by_cell[0] != len(plans):
            self._units_by_cell = len(plans), units_by_cell(plans)
        maps = units_of_maps(self._units_by_cell[1], config, unit, modes_of(config, unit))
        return Job(unit, config, plan.revision, names, maps)

    def work(
        self,
        shard: tuple[int, int] | None = None,
        progress: Progress | None = None,
        on_begin: Callable[[str], None] | None = None,
    ) -> None:
        """Do what is left, here and now, next to whoever else is at it; wait for nobody. ``on_begin`` gets each id."""
        failed: dict[str, str] = {}
        has_moved = True
        while has_moved and len(failed) < _MOST_FAILED:
            has_moved, revisions = False, len(self.store.plans())
            for plan, unit in self.open_units(shard):
                if unit.id not in failed and self._do(self.job(plan, unit), on_begin, failed):
                    has_moved = True  # or else someone else is at it, or at what it reads
                    self.report(progress)
                if len(self.store.plans()) > revisions:
                    has_moved = True  # there is a new revision: what is left is another list
                    break
                if len(failed) >= _MOST_FAILED:
                    break
        if failed:
            raise UnitsFailed(f"{len(failed)} units failed {TRIES} times, such as {next(iter(failed.values()))}")

    def _do(self, job: Job, on_begin: Callable[[str], None] | None, failed: dict[str, str]) -> bool:
        """Do a unit, unless it is done, another process is at it or what it reads is not there yet."""
        if not job.reads <= self.store.finished():
            return False
        with self.store.claim(job.unit.id) as is_mine:
            if not is_mine:
                return self.store.info(job.unit.id) is not None
            if on_begin is not None:
                on_begin(job.unit.id)
            result = self._try(job, failed)
            return result is not None and self.keep(job, result)

    def _try(self, job: Job, failed: dict[str, str]) -> UnitResult | None:
        """Run a unit, a few times if it fails by surprise; what is raised on purpose would be raised again."""
        for attempt in range(1, TRIES + 1):
            try:
                return self.worker.run(job, self.store.read)
            except VitreousError:
                raise
            except Exception as error:
                reason = one_line(f"{type(error).__name__}: {error}")
                self.store.note_failure(job.unit.id, reason)
                time.sleep(0.1 * attempt)
        failed[job.unit.id] = reason
        return None

    def keep(self, job: Job, result: UnitResult) -> bool:
        """Write down the result of a unit; the caller holds its claim.

        Where memory ran out on the way, its numbers hang on when that was. They are dropped, and what is left of this
        model, this unit first, is run in smaller batches by a new revision of the plan.
        """
        smaller = job.smaller_batches(result.info)
        if smaller is not None:
            self._revise(job, smaller)
            return False
        tries = self.store.failures().get(job.unit.id, [])
        self.store.put(job.unit.id, pack_unit(result.arrays, {**result.info, "retried": tries}))
        return True

    def _revise(self, job: Job, smaller: RunConfig) -> None:
        with self.store.planning() as plans:
            plan_of = {unit.id: plan for plan, unit in wanted_units(plans)}
            if job.unit.id not in plan_of:
                return  # another process has seen to it
            plan, finished = plan_of[job.unit.id], self.store.finished()
            open_ids = plan_of.keys() - finished
            left = [unit for unit in plan.units if unit.id in open_ids and unit.config == job.unit.config]
            methods, metrics = set().union(*(u.methods for u in left)), set().union(*(u.metrics for u in left))
            smaller = smaller.restricted_to(methods, metrics)
            units = [Unit.of(smaller, 0, u.seed, u.images, u.methods, u.modes, u.metrics) for u in left]
            names = {image: plan.names[image] for unit in left for image in unit.images}
            why = f"out of memory on {smaller.label}: {job.config.difference_in_batches(smaller)}"
            content = (smaller,), tuple(units), why, names, tuple(unit.id for unit in left), self._versions
            self.store.add_plan(RecordedPlan(len(plans) + 1, *content))

    def counts(self) -> tuple[int, int]:
        """Return how many units are finished, and how many there are."""
        units, finished = wanted_units(self.store.plans()), self.store.finished()
        return sum(unit.id in finished for _, unit in units), len(units)

    def report(self, progress: Progress | None) -> None:
        """Call ``progress``, if there is any, with these counts."""
        if progress is not None:
            progress(*self.counts())
