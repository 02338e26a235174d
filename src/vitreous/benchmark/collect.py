"""From the files of a run to tables: what was measured on every image, whichever unit and plan did it.

Cells are looked up by what they are (image, method, metric, seed), never by the unit that happens to hold them. A cell
whose unit is not finished is NaN and counted; an image that could not be read is named with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np

from vitreous.benchmark.data import SourceImages
from vitreous.benchmark.plan import map_cell, score_cell, units_by_cell, wanted_units
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.ranking import average_seeds
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import Arrays
from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit, digest_of
from vitreous.errors import VitreousError
from vitreous.evaluation.runner import Cost
from vitreous.metrics import get_metric
from vitreous.metrics.ranking import FLAGS, Array, Curve
from vitreous.registry.defaults import CONTROLS
from vitreous.results import ScoreTable
from vitreous.results.table import ScoreRecord

_CACHED_MAPS = 16  # arrays of maps: those of a few methods, not of a whole unit
_RECORDED = ("output", "class_subset", "precision", "interpolation", "tie_breaking", "nan_policy", "target")


def _wanted_configs(plans: Sequence[RecordedPlan], protocol: Protocol) -> list[RunConfig]:
    """Return one configuration for each model and data set that is wanted, with all that was planned for it.

    The last one counts, before all that fits the protocol as it is now; its rows and columns are those that the
    protocol asks for, in its order.
    """
    configs = [config for plan in plans for config in plan.configs]
    latest = {(config.data, config.label): config for config in configs}
    latest |= {(config.data, config.label): config for config in configs if _fits(config, protocol)}
    controls = CONTROLS if protocol.evaluation.controls else ()
    wanted = []
    for data, model in product(protocol.datasets, protocol.models):
        if (data.label, model.label) in latest:
            config = _with_everything_planned(latest[data.label, model.label], configs)
            rows = dict.fromkeys((*protocol.methods_of(model), *controls))
            wanted.append(config.restricted_to(rows, data.metrics or protocol.evaluation.metrics))
    return wanted


def _fits(config: RunConfig, protocol: Protocol) -> bool:
    """Whether a configuration is of the model and the explained class that the protocol has now."""
    spec = next((model for model in protocol.models if model.label == config.label), None)
    is_same_model = spec is None or digest_of(asdict(spec)) == digest_of(config.model)
    return is_same_model and config.evaluation.target == protocol.evaluation.target


def _with_everything_planned(config: RunConfig, configs: Sequence[RunConfig]) -> RunConfig:
    """Return a configuration with everything that was ever planned for the same identity."""
    names = (config.identity, config.label, config.data)
    same = [other for other in configs if (other.identity, other.label, other.data) == names]
    merged: dict[str, Any] = {
        name: {label: value for other in (*same, config) for label, value in getattr(other, name).items()}
        for name in ("methods", "method_digests", "metrics", "metric_digests")
    }
    return replace(config, modes=tuple(sorted({mode for other in same for mode in other.modes})), **merged)


@dataclass(frozen=True)
class Missing:
    """How many cells were wanted, how many of them no finished unit has, and which metrics have none at all."""

    wanted: int
    cells: int
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class DoneUnit:
    """A finished unit, the plan that it is of, and its description."""

    unit: Unit
    plan: RecordedPlan
    info: Mapping[str, Any]

    @property
    def config(self) -> RunConfig:
        return self.plan.config_of(self.unit)

    @property
    def seconds(self) -> float:
        return float(self.info.get("seconds", 0.0))

    @property
    def device(self) -> str:
        return " ".join(str(self.info[name]) for name in ("device", "hardware") if self.info.get(name))

    @property
    def versions(self) -> str:
        return ", ".join(f"{package} {version}" for package, version in self.info.get("versions", {}).items())


@dataclass(frozen=True, eq=False)
class RunScores:
    """One model on one data set: a table for each seed, and what is to be known about how they came about.

    ``table`` has the mean over seeds of every image: means, intervals and tests are of it. ``digests`` are those of the
    images in its rows. ``unreadable`` gives names and reasons, ``uncertain`` those of images whose true class the model
    gives less than the protocol asks for, ``failed`` those on which an external method failed, by method. ``units`` are
    all that count and are finished.
    """

    config: RunConfig
    seeds: tuple[int, ...]
    tables: tuple[ScoreTable, ...]
    digests: tuple[str, ...]
    unreadable: Mapping[str, str]
    uncertain: Mapping[str, str]
    failed: Mapping[str, Mapping[str, str]]
    missing: Missing
    units: tuple[DoneUnit, ...]
    _files: _RunFiles = field(repr=False)

    @property
    def label(self) -> str:
        return self.config.label

    @property
    def data(self) -> str:
        return self.config.data

    @cached_property
    def table(self) -> ScoreTable:
        """The scores of every image, averaged over seeds."""
        return average_seeds(self.tables)

    @cached_property
    def seed_scores(self) -> dict[tuple[str, str], Array]:
        """Scores ``[seeds, images]`` by method and metric; empty with one seed."""
        cells = self.table.scores if len(self.tables) > 1 else ()
        return {cell: np.stack([table[cell] for table in self.tables]) for cell in cells}

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The seconds of all units, by kind."""
        seconds = {"attribution": 0.0, "scoring": 0.0}
        for done in self.units:
            seconds["scoring" if done.unit.is_scoring else "attribution"] += done.seconds
        return {kind: total for kind, total in seconds.items() if total}

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """The seconds of each method over all its maps, where units record them."""
        costs: dict[str, Cost] = {}
        for done in self.units:
            for label, cost in zip(done.unit.methods, done.info.get("costs", ()), strict=False):
                for name in _same_methods(self.config, done.config, label):
                    total = asdict(costs.get(name, Cost()))
                    costs[name] = Cost(**{kind: total[kind] + more for kind, more in cost.items()})
        return costs

    def map(self, image: str, method: str, mode: str | None = None) -> Array | None:
        """Return the map of an image, with the first seed; ``None`` where it is not there (yet)."""
        return self._files.map(self.config, self.seeds[0], image, method, mode or self.config.modes[0])


def collect(store: Store, images: Mapping[str, SourceImages] | None = None) -> list[RunScores]:
    """Return the scores of a run so far, for each model and data set, in the order of the protocol.

    ``images`` by the label of their data set give the order of the rows, names and groups; without them, rows and
    groups are those that the run was last asked for. Models of which no unit is finished are there too, with a table
    that has no rows.
    """
    plans, protocol, files = store.plans(), store.protocol(), _RunFiles(store)
    if not plans:
        raise VitreousError(f"nothing was planned in {store.path} yet")
    return [
        _Collector(files, config, protocol, (images or {}).get(config.data)).scores()
        for config in _wanted_configs(plans, protocol)
    ]


def _same_methods(config: RunConfig, other: RunConfig, label: str) -> list[str]:
    """Return the rows that the method of another configuration is, whatever it is called there."""
    return [name for name in config.methods if config.made_of(name) == other.made_of(label)]


def _same_metrics(config: RunConfig, other: RunConfig, label: str) -> list[str]:
    metric = other.metrics[label], other.metric_digest(label)
    return [name for name, spec in config.metrics.items() if (spec, config.metric_digest(name)) == metric]


class _RunFiles:
    """The files of a run, and which unit has each cell."""

    def __init__(self, store: Store) -> None:
        self.store, self.plans = store, store.plans()
        self.image_digests = (store.manifest() or {})["wanted"].get("image_digests", {})
        self.by_cell = units_by_cell(self.plans)
        self.names = {image: name for plan in self.plans for image, name in plan.names.items()}
        self._read_arrays = lru_cache(maxsize=_CACHED_MAPS)(store.read_arrays)

    @cached_property
    def units(self) -> dict[str, tuple[RecordedPlan, Unit]]:
        """Every unit that has a cell which counts, in the order of the plans."""
        counting = set(self.by_cell.values())
        return {unit.id: (plan, unit) for plan, unit in wanted_units(self.plans) if unit.id in counting}

    def units_of(self, config: RunConfig) -> list[Unit]:
        """Return the units of an identity and data set; of the identity alone, where the data set needed no plan."""
        units = [(plan.config_of(unit), unit) for plan in self.plans for unit in plan.units]
        same = [(own, unit) for own, unit in units if own.identity == config.identity]
        return [unit for own, unit in same if own.data == config.data] or [unit for _, unit in same]

    def finished(self, config: RunConfig, images: set[str]) -> Iterator[tuple[DoneUnit, Arrays]]:
        """Yield every finished unit of an identity and some images, one at a time.

        Maps stay on disk: they may be many times larger than all scores.
        """
        for plan, unit in self.units.values():
            if plan.config_of(unit).identity == config.identity and not images.isdisjoint(unit.images):
                read = self.store.read
                result = read(unit.id) if unit.is_scoring else self.store.read_arrays(unit.id, ())
                if result is not None:
                    yield DoneUnit(unit, plan, result.info), result.arrays

    def map(self, config: RunConfig, seed: int, image: str, method: str, mode: str) -> Array | None:
        unit_id = self.by_cell.get(map_cell(config, seed, image, method, mode))
        if unit_id is None:
            return None
        plan, unit = self.units[unit_id]
        planned_config, made_of = plan.config_of(unit), config.made_of(method)
        number = [planned_config.made_of(label) for label in unit.methods].index(made_of)  # by any label
        maps, rows = f"maps/{number}", f"rows/{number}/{mode}"
        result = self._read_arrays(unit_id, (maps, rows))
        if result is None or image not in result.info.get("images", ()):
            return None
        row = result.arrays[rows][result.info["images"].index(image)]
        return np.asarray(result.arrays[maps][row])


class _Collector:
    """One model on one data set: reads its files, and stacks what they have."""

    def __init__(self, files: _RunFiles, config: RunConfig, protocol: Protocol, lookup: SourceImages | None) -> None:
        self.files, self.config, self.lookup = files, config, lookup
        units = files.units_of(config)
        self.seeds = tuple(seed for seed in protocol.evaluation.seeds if seed in {unit.seed for unit in units})
        if lookup is not None:
            groups = [lookup.entry(digest).group for digest in lookup.digests]
            self.digests: tuple[str, ...] = lookup.digests
        else:
            all_planned = tuple(dict.fromkeys(image for unit in units for image in unit.images))
            digests, groups = files.image_digests.get(config.data, (all_planned, ()))
            self.digests = tuple(digests)
        self.groups = {} if None in groups else dict(zip(self.digests, groups, strict=False))

    def scores(self) -> RunScores:
        config, results = self.config, list(self.files.finished(self.config, set(self.digests)))
        units = tuple(done for done, _ in results)
        scoring = [item for item in results if item[0].unit.is_scoring and item[0].unit.seed in self.seeds]
        records = [record for done, arrays in scoring for record in self._records(done, arrays)]
        has_scores = {image for record in records for image in record.images}
        rows = tuple(image for image in self.digests if image in has_scores)
        measured = {record.metric for record in records}
        metrics = tuple(label for label in config.metrics if label in measured)
        unreadable, uncertain = (self._left_out(units, reason) for reason in ("unreadable", "uncertain"))
        return RunScores(
            config=config,
            seeds=self.seeds,
            tables=tuple(self._table(seed, rows, metrics, records, scoring) for seed in self.seeds),
            digests=rows,
            unreadable=unreadable,
            uncertain=uncertain,
            failed=self._failed(units),
            missing=self._missing(metrics, records, {*unreadable, *uncertain}),
            units=units,
            _files=self.files,
        )

    def _left_out(self, units: Sequence[DoneUnit], reason: str) -> dict[str, str]:
        wanted = set(self.digests)
        texts = {image: text for done in units for image, text in done.info.get(reason, {}).items()}
        return {self._name(image): text for image, text in texts.items() if image in wanted}

    def _records(self, done: DoneUnit, arrays: Arrays) -> Iterator[ScoreRecord]:
        """Yield what a unit measured, for the images whose scores are this unit's to give."""
        unit, images, by_cell = done.unit, done.info.get("images", ()), self.files.by_cell
        for i, j in product(range(len(unit.methods)), range(len(unit.metrics))) if images else ():
            curves = _curves(arrays, f"curve/{i}/{j}/")
            for method in _same_methods(self.config, done.config, unit.methods[i]):
                for metric in _same_metrics(self.config, done.config, unit.metrics[j]):
                    cells = (score_cell(self.config, unit.seed, image, method, metric) for image in images)
                    rows = [row for row, cell in enumerate(cells) if by_cell.get(cell) == unit.id]
                    own_curves = {name: Curve(curve.x, curve.y[rows]) for name, curve in curves.items()}
                    own_images, parts = tuple(images[row] for row in rows), arrays[f"parts/{i}/{j}"][rows]
                    yield ScoreRecord(method, metric, unit.seed, own_images, parts, own_curves)

    def _table(
        self,
        seed: int,
        rows: tuple[str, ...],
        metrics: tuple[str, ...],
        records: Sequence[ScoreRecord],
        scoring: Sequence[tuple[DoneUnit, Arrays]],
    ) -> ScoreTable:
        groups: list[Any] = [self.groups.get(image) for image in rows]
        return ScoreTable.from_records(
            (record for record in records if record.seed == seed),
            {image: self._name(image) for image in rows},
            tuple(self.config.methods),
            {label: get_metric(self.config.metrics[label]) for label in metrics},
            widths={record.metric: record.parts.shape[1] for record in records},
            degenerate=self._degenerate(seed, scoring),
            confidence=_confidence(rows, scoring),
            plan=self._plan(seed, metrics),
            seed=seed,
            groups=None if None in groups or not rows else tuple(map(int, groups)),
        )

    def _degenerate(self, seed: int, scoring: Sequence[tuple[DoneUnit, Arrays]]) -> dict[str, dict[str, int]]:
        """Return how many maps of a method were constant, zero or not finite: of one explained class, the most."""
        kinds = {code: kind for code, kind in enumerate(FLAGS) if code}
        most = {name: dict.fromkeys(kinds.values(), 0) for name in self.config.methods}
        codes: dict[tuple[str, str], dict[str, int]] = {}
        for done, arrays in scoring:
            for name in (name for name in arrays if name.startswith("flags/") and done.unit.seed == seed):
                _, i, mode = name.split("/", 2)
                for method in _same_methods(self.config, done.config, done.unit.methods[int(i)]):
                    of_unit = dict(zip(done.info["images"], arrays[name].tolist(), strict=True))
                    codes[method, mode] = {**of_unit, **codes.get((method, mode), {})}
        for (method, _), by_image in codes.items():
            counts = Counter(by_image.values())
            most[method] = {kind: max(most[method][kind], counts[code]) for code, kind in kinds.items()}
        return most

    def _name(self, image: str) -> str:
        return str(self.lookup.entry(image).name) if self.lookup is not None else self.files.names.get(image, image)

    def _failed(self, units: Sequence[DoneUnit]) -> dict[str, dict[str, str]]:
        failed: dict[str, dict[str, str]] = {}
        for done in units:
            for label, reasons in done.info.get("failed", {}).items():
                for name in _same_methods(self.config, done.config, label):
                    failed.setdefault(name, {}).update(reasons)
        return failed

    def _missing(self, metrics: Sequence[str], records: Sequence[ScoreRecord], left_out: set[str]) -> Missing:
        config = self.config
        images = {image for image in self.digests if self._name(image) not in left_out}
        wanted = len(images) * len(config.methods) * len(config.metrics) * len(self.seeds)
        there = sum(len(images.intersection(record.images)) for record in records)
        return Missing(wanted, wanted - there, tuple(label for label in config.metrics if label not in metrics))

    def _plan(self, seed: int, metrics: Sequence[str]) -> dict[str, Any]:
        config = self.config
        return {
            "methods": {label: {"spec": spec} for label, spec in config.methods.items()},
            "metrics": {label: {"spec": config.metrics[label]} for label in metrics},
            "size": config.size,
            **{name: getattr(config.evaluation, name) for name in _RECORDED},
            "device": config.device,
            "dtype": config.dtype,
            "seed": seed,
            "model": config.model.get("name", config.label),
        }


def _curves(arrays: Arrays, start: str) -> dict[str, Curve]:
    """Return the curves of a method in a metric by their names: ``start`` and ``number/name/x`` or ``/y``."""
    curves = {}
    for name in (name.removesuffix("/y") for name in arrays if name.startswith(start) and name.endswith("/y")):
        x = np.asarray(arrays[f"{name}/x"], np.float64)
        curves[name.removeprefix(start).partition("/")[2]] = Curve(x, arrays[f"{name}/y"])
    return curves


def _confidence(rows: Sequence[str], scoring: Sequence[tuple[DoneUnit, Arrays]]) -> dict[str, Array]:
    """Return the probability of each kind of class for every row; the first unit that has one counts."""
    columns: dict[str, dict[str, float]] = {}
    for done, arrays in scoring:
        for name in (name for name in arrays if name.startswith("confidence/")):
            column = columns.setdefault(name.partition("/")[2], {})
            for image, value in zip(done.info["images"], arrays[name].tolist(), strict=True):
                column.setdefault(image, value)
    return {name: np.array([column.get(row, np.nan) for row in rows]) for name, column in columns.items()}
