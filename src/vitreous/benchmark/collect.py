"""Which rows and columns a run is asked for, of all that was ever planned in it.

From the files of a run to tables: what every picture has to say, whichever unit and plan found it.

Cells are looked up by what they are (picture, method, metric, seed), never by the unit that happens to hold them. A
cell whose unit is not finished is NaN and counted; a picture that could not be read is named with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np

from vitreous.benchmark.plan import Cell, map_cell, places, score_cell
from vitreous.benchmark.ranking import averaged, seed_scores
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import Found
from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit
from vitreous.datasets import Sample
from vitreous.errors import VitreousError
from vitreous.evaluation.runner import Cost
from vitreous.metrics import get_metric
from vitreous.metrics.base import check_widths
from vitreous.metrics.curves import Array, Curve
from vitreous.metrics.ranking import FLAGS
from vitreous.models import VisionModel
from vitreous.registry.defaults import CONTROLS
from vitreous.results import ScoreTable

__all__ = [
    "Gathered",
    "Known",
    "Missing",
    "gather",
    "settings_of",
]


def settings_of(plans: Sequence[RecordedPlan], wanted: Mapping[str, Any]) -> list[RunConfig]:
    """Return one setting for each model and data set that is wanted: the last one, with all methods planned for it."""
    protocol = wanted.get("protocol", {})
    specs = {each["label"]: each for each in protocol.get("models", ())}
    target = protocol.get("evaluation", {}).get("target")
    last: dict[tuple[str, str], RunConfig] = {}
    for fits in (False, True):  # what fits the protocol as it is now counts more
        for setting in (each for plan in plans for each in plan.settings):
            fitting = target in (None, setting.target) and specs.get(setting.label) in (None, _plain(setting.model))
            if fitting or not fits:
                last[setting.data, setting.label] = setting
    merged = [_merged(setting, plans) for setting in last.values()]
    if not protocol:
        return merged
    sets = [protocol["data"].get("label", ""), *(each.get("label", "") for each in protocol.get("also", ()))]
    known = [each for each in merged if each.label in specs and each.data in sets]
    labels = list(specs)
    return [
        _narrowed(each, protocol) for each in sorted(known, key=lambda s: (sets.index(s.data), labels.index(s.label)))
    ]


def _plain(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in model.items()}


def _merged(setting: RunConfig, plans: Iterable[RecordedPlan]) -> RunConfig:
    """Return a setting with everything that was ever planned for the same identity."""
    same = [each for plan in plans for each in plan.settings if each.identity == setting.identity]
    same = [each for each in same if (each.label, each.data) == (setting.label, setting.data)]
    methods = {name: how for each in [*same, setting] for name, how in each.methods.items()}
    marks = {name: how for each in [*same, setting] for name, how in each.method_digests.items()}
    metrics = {name: how for each in [*same, setting] for name, how in each.metrics.items()}
    metric_marks = {name: each.metric_digest(name) for each in [*same, setting] for name in each.metrics}
    modes = tuple(sorted({mode for each in same for mode in each.modes}))
    return replace(
        setting, methods=methods, method_digests=marks, metrics=metrics, metric_digests=metric_marks, modes=modes
    )


def _narrowed(setting: RunConfig, protocol: Mapping[str, Any]) -> RunConfig:
    """Return a setting with the rows and columns that the protocol asks for now, in its order."""
    spec = next(each for each in protocol["models"] if each["label"] == setting.label)
    data = next(each for each in (protocol["data"], *protocol.get("also", ())) if each.get("label", "") == setting.data)
    rows = [name for name in protocol["methods"] if not spec.get("methods") or name in spec["methods"]]
    beside = [name for name in CONTROLS if protocol["evaluation"].get("controls", True) and name not in rows]
    names = [name for name in (*rows, *beside) if name in setting.methods]
    columns = [name for name in (data.get("metrics") or protocol["evaluation"]["metrics"]) if name in setting.metrics]
    return replace(
        setting,
        methods={name: setting.methods[name] for name in names},
        method_digests={name: setting.method_digests[name] for name in names},
        metrics={name: setting.metrics[name] for name in columns},
        metric_digests={name: setting.metric_digest(name) for name in columns},
    )


class Known(Protocol):
    """Pictures that can be looked up: ``SourceImages``, where the data of a run are at hand."""

    @property
    def digests(self) -> tuple[str, ...]: ...

    def entry(self, digest: str) -> Any: ...

    def sample(self, digest: str, model: VisionModel) -> Sample: ...


@dataclass(frozen=True)
class Missing:
    """How many cells were wanted, how many of them no finished unit has, and which metrics have none at all."""

    wanted: int
    cells: int
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Gathered:
    """One model on one data set: a table for each seed, and what is to be known about how they came about.

    ``table`` has the mean over seeds of every image: means, intervals and tests are of it. ``pictures`` are the digests
    of the rows. ``unreadable`` gives names and reasons, ``unsure`` those of pictures whose true class the model gives
    less than the protocol asks for, ``raised`` those on which a method of others failed, by method. ``costs`` are the
    seconds of each method over all its maps, where units say so; ``seconds`` are those of all units, by kind. ``facts``
    are versions, devices, threads, revisions of the plan, every unit that counts, and what was audited.
    """

    setting: RunConfig
    seeds: tuple[int, ...]
    tables: tuple[ScoreTable, ...]
    pictures: tuple[str, ...]
    unreadable: Mapping[str, str]
    unsure: Mapping[str, str]
    raised: Mapping[str, Mapping[str, str]]
    missing: Missing
    costs: Mapping[str, Cost]
    seconds: Mapping[str, float]
    facts: Mapping[str, Any]
    _reader: _Reader = field(repr=False)

    @property
    def label(self) -> str:
        return self.setting.label

    @property
    def data(self) -> str:
        return self.setting.data

    @cached_property
    def table(self) -> ScoreTable:
        """The scores of every image, averaged over seeds."""
        return averaged(self.tables)

    @cached_property
    def of_seeds(self) -> dict[tuple[str, str], Array]:
        """Scores ``[seeds, images]`` by method and metric; empty with one seed."""
        return seed_scores(self.tables) if len(self.tables) > 1 else {}

    def map(self, picture: str, method: str, mode: str | None = None) -> Array | None:
        """Return the map of a picture, with the first seed; ``None`` where it is not there (yet)."""
        return self._reader.map(self.setting, self.seeds[0], picture, method, mode or self.setting.modes[0])


def gather(store: Store, pictures: Mapping[str, Known] | None = None) -> list[Gathered]:
    """Return what a run has found so far, one part for each model and data set, in the order of the protocol.

    ``pictures`` by the label of their data set give the order of the rows, names and groups; without them, rows and
    groups are those that the run was last asked for. Parts of which no unit is finished are there too, with a table
    that has no rows.
    """
    plans, wanted = store.plans(), (store.manifest() or {}).get("wanted", {})
    if not plans:
        raise VitreousError(f"nothing was planned in {store.path} yet")
    reader = _Reader(store, plans)
    return [
        _Part(reader, setting, wanted, (pictures or {}).get(setting.data)).gathered()
        for setting in settings_of(plans, wanted)
    ]


class _Reader:
    """The files of a run, and where each cell lies."""

    def __init__(self, store: Store, plans: Sequence[RecordedPlan]) -> None:
        self.store, self.plans = store, plans
        self.where: dict[Cell, str] = places(plans)
        self._kept: dict[tuple[str, str], Found | None] = {}

    @cached_property
    def units(self) -> dict[str, tuple[RecordedPlan, Unit]]:
        """Every unit that has a cell which counts, in the order of the plans."""
        known = set(self.where.values())
        found: dict[str, tuple[RecordedPlan, Unit]] = {}
        for plan in self.plans:
            found |= {unit.id: (plan, unit) for unit in plan.units if unit.id in known and unit.id not in found}
        return found

    def files(self, setting: RunConfig) -> Iterable[tuple[RecordedPlan, Unit, Found]]:
        """Yield every finished unit of an identity, one at a time."""
        for plan, unit in self.units.values():
            if plan.settings[unit.setting].identity == setting.identity:
                found = self.store.read(unit.id) if unit.judges else self._words(unit.id)
                if found is not None:
                    yield plan, unit, found

    def _words(self, unit: str) -> Found | None:
        """Return what a unit said, and leave its maps on disk: they may be many times larger than all scores."""
        said = self.store.said(unit)
        return None if said is None else ({}, said)

    def map(self, setting: RunConfig, seed: int, picture: str, method: str, mode: str) -> Array | None:
        place = self.where.get(map_cell(setting, seed, picture, method, mode))
        if place is None:
            return None
        plan, unit = self.units[place]
        theirs, own = plan.settings[unit.setting], _made_of(setting, method)
        number = next(n for n, label in enumerate(unit.methods) if _made_of(theirs, label) == own)  # by any label
        maps, rows = f"maps/{number}", f"rows/{number}/{mode}"
        if (place, rows) not in self._kept:
            kept = dict(list(self._kept.items())[-15:])  # a few at a time: those of one method, not of all of the unit
            self._kept = {**kept, (place, rows): self.store.some(place, (maps, rows))}
        found = self._kept[place, rows]
        if found is None or picture not in found[1].get("pictures", ()):
            return None
        arrays, said = found
        return np.asarray(arrays[maps][arrays[rows][said["pictures"].index(picture)]])


def _made_of(setting: RunConfig, label: str) -> tuple[str, str]:
    return setting.methods[label], setting.method_digests[label]


class _Part:
    """One model on one data set, while its files are read."""

    def __init__(self, reader: _Reader, setting: RunConfig, wanted: Mapping[str, Any], known: Known | None) -> None:
        self.reader, self.setting, self.known = reader, setting, known
        same = [(plan, unit) for plan in reader.plans for unit in plan.units if self._is_own(plan, unit)]
        own = [(plan, unit) for plan, unit in same if plan.settings[unit.setting].data == setting.data]
        own = own or same  # a later data set of the same pictures: nothing of it had to be planned
        asked = wanted.get("protocol", {}).get("evaluation", {}).get("seeds")
        planned = dict.fromkeys(unit.seed for _, unit in own)
        self.seeds = tuple(seed for seed in (asked or planned) if seed in planned)
        self.planned = tuple(dict.fromkeys(picture for _, unit in own for picture in unit.pictures))
        told, groups = wanted.get("pictures", {}).get(setting.data, (self.planned, ()))
        if known is not None:
            told, groups = known.digests, [known.entry(digest).group for digest in known.digests]
        self.all = tuple(told)
        self.groups = {} if None in groups else dict(zip(told, groups, strict=False))
        self.parts: dict[tuple[int, str, str], dict[str, Array]] = {}
        self.curves: dict[tuple[int, str, str], dict[str, tuple[Array, dict[str, Array]]]] = {}
        self.flags: dict[tuple[int, str, str], dict[str, int]] = {}
        self.confidence: dict[str, dict[str, float]] = {}
        self.names: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self.unsure: dict[str, str] = {}
        self.raised: dict[str, dict[str, str]] = {}
        self.costs: dict[str, Cost] = {}
        self.seconds: Counter[str] = Counter()
        self.facts: dict[str, Any] = {
            "versions": {},
            "devices": {},
            "threads": {},
            "units": 0,
            "done": [],
            "retried": 0,
            "revisions": {},
        }
        self.audits: list[Any] = []

    def _is_own(self, plan: RecordedPlan, unit: Unit) -> bool:
        return plan.settings[unit.setting].identity == self.setting.identity

    def gathered(self) -> Gathered:
        wanted = set(self.all)
        for plan, unit, (arrays, said) in self.reader.files(self.setting):
            if wanted.intersection(unit.pictures):
                self._noted(plan, unit, said)
                self.names |= plan.names
                theirs = plan.settings[unit.setting]
                self._judged(unit, theirs, arrays, said) if unit.judges else self._explained(unit, theirs, said)
        rows = tuple(each for each in self.all if any(each in found for found in self.parts.values()))
        bad, unsure = (
            {each: reason for each, reason in found.items() if each in wanted}
            for found in (self.unreadable, self.unsure)
        )
        columns = tuple(name for name in self.setting.metrics if any(name == cell[2] for cell in self.parts))
        tables = tuple(self._table(seed, rows, columns) for seed in self.seeds)
        return Gathered(
            setting=self.setting,
            seeds=self.seeds,
            tables=tables,
            pictures=rows,
            unreadable={self._name(each): reason for each, reason in bad.items()},
            unsure={self._name(each): reason for each, reason in unsure.items()},
            raised=self.raised,
            missing=self._missing([each for each in self.all if each not in bad and each not in unsure], columns),
            costs=self.costs,
            seconds=dict(self.seconds),
            facts={**self.facts, "audits": self.audits},
            _reader=self.reader,
        )

    # -- reading -----------------------------------------------------------------------------------------

    def _noted(self, plan: RecordedPlan, unit: Unit, said: Mapping[str, Any]) -> None:
        self.unreadable |= said.get("unreadable", {})
        self.unsure |= said.get("unsure", {})
        for label, reasons in said.get("raised", {}).items():
            for name in self._rows(plan.settings[unit.setting], label):
                self.raised.setdefault(name, {}).update(reasons)
        self.facts["units"] += 1
        revision = self.facts["revisions"].setdefault(plan.revision, {"why": plan.why, "units": 0})
        revision["units"] += 1
        device = " ".join(str(said[name]) for name in ("device", "hardware") if said.get(name))
        for kind, value in (("devices", device), ("threads", str(said.get("threads", "")))):
            self.facts[kind][value] = self.facts[kind].get(value, 0) + 1
        versions = ", ".join(f"{name} {number}" for name, number in said.get("versions", {}).items())
        self.facts["versions"][versions] = self.facts["versions"].get(versions, 0) + 1
        self.facts["done"].append((unit, plan.revision, versions, device, said))
        self.facts["retried"] += bool(said.get("retried"))
        if said.get("audit") is not None:
            self.audits.append(said["audit"])

    def _rows(self, theirs: RunConfig, label: str) -> list[str]:
        """Return our rows that a unit's method is, whatever it was called then."""
        made = _made_of(theirs, label)
        return [name for name in self.setting.methods if _made_of(self.setting, name) == made]

    def _columns(self, theirs: RunConfig, label: str) -> list[str]:
        made = theirs.metrics[label], theirs.metric_digest(label)
        return [name for name, how in self.setting.metrics.items() if (how, self.setting.metric_digest(name)) == made]

    def _explained(self, unit: Unit, theirs: RunConfig, said: Mapping[str, Any]) -> None:
        self.seconds["explaining"] += said.get("seconds", 0.0)
        for label, cost in zip(unit.methods, said.get("costs", ()), strict=False):
            for name in self._rows(theirs, label):
                whole = self.costs.setdefault(name, Cost())
                self.costs[name] = Cost(**{what: getattr(whole, what) + more for what, more in cost.items()})

    def _judged(self, unit: Unit, theirs: RunConfig, arrays: Mapping[str, Array], said: Mapping[str, Any]) -> None:
        self.seconds["judging"] += said.get("seconds", 0.0)
        pictures = said.get("pictures", [])
        if not pictures or unit.seed not in self.seeds:  # a seed that is not asked for any more
            return
        for name in (array.partition("/")[2] for array in arrays if array.startswith("confidence/")):
            column = self.confidence.setdefault(name, {})
            for picture, value in zip(pictures, arrays[f"confidence/{name}"].tolist(), strict=True):
                column.setdefault(picture, value)
        for i, theirs_method in enumerate(unit.methods):
            for method in self._rows(theirs, theirs_method):
                self._flagged(unit, i, method, arrays, pictures)
                for j, theirs_metric in enumerate(unit.metrics):
                    for label in self._columns(theirs, theirs_metric):
                        self._scored(unit, (i, j), (method, label), arrays, pictures)

    def _flagged(self, unit: Unit, i: int, method: str, arrays: Mapping[str, Array], pictures: Sequence[str]) -> None:
        for name in (array for array in arrays if array.startswith(f"flags/{i}/")):
            codes = self.flags.setdefault((unit.seed, method, name.split("/", 2)[2]), {})
            for picture, code in zip(pictures, arrays[name].tolist(), strict=True):
                codes.setdefault(picture, int(code))

    def _scored(
        self,
        unit: Unit,
        at: tuple[int, int],
        cell: tuple[str, str],
        arrays: Mapping[str, Array],
        pictures: Sequence[str],
    ) -> None:
        own = [
            row
            for row, picture in enumerate(pictures)
            if self.reader.where.get(score_cell(self.setting, unit.seed, picture, *cell)) == unit.id
        ]
        values = arrays[f"parts/{at[0]}/{at[1]}"]
        scores = self.parts.setdefault((unit.seed, *cell), {})
        check_widths(cell[1], [*[row[None] for row in islice(scores.values(), 1)], values])
        scores |= {pictures[row]: values[row] for row in own}
        start = f"curve/{at[0]}/{at[1]}/"
        for name in (array for array in arrays if array.startswith(start) and array.endswith("/y")):
            curve = name.removeprefix(start).removesuffix("/y").partition("/")[2]
            x = arrays[f"{name.removesuffix('/y')}/x"]
            _, lines = self.curves.setdefault((unit.seed, *cell), {}).setdefault(curve, (x, {}))
            lines |= {pictures[row]: arrays[name][row] for row in own}

    # -- making ------------------------------------------------------------------------------------------

    def _table(self, seed: int, rows: Sequence[str], columns: tuple[str, ...]) -> ScoreTable:
        setting, methods = self.setting, tuple(self.setting.methods)
        widths = {cell[2]: len(next(iter(found.values()))) for cell, found in self.parts.items() if found}
        cells = [(name, label) for name in methods for label in columns]
        return ScoreTable(
            images=tuple(self._name(row) for row in rows),
            methods=methods,
            metrics=columns,
            parts={cell: _stacked(self.parts.get((seed, *cell), {}), rows, widths[cell[1]]) for cell in cells},
            judges={label: get_metric(setting.metrics[label]) for label in columns},
            degenerate={name: self._degenerate(seed, name) for name in methods},
            confidence={
                name: _stacked({p: np.array([v]) for p, v in found.items()}, rows, 1)[:, 0]
                for name, found in self.confidence.items()
            },
            curves={cell: self._joined((seed, *cell), rows) for cell in cells},
            plan=self._plan(seed, columns),
            seed=seed,
            groups=self._groups(rows),
        )

    def _joined(self, cell: tuple[int, str, str], rows: Sequence[str]) -> dict[str, Curve]:
        kept = self.curves.get(cell, {})
        return {
            name: Curve(np.asarray(x, np.float64), _stacked(lines, rows, len(x))) for name, (x, lines) in kept.items()
        }

    def _degenerate(self, seed: int, name: str) -> dict[str, int]:
        """Return how many maps of a method were constant, zero or not finite: of one explained class, the most."""
        counts = [Counter(codes.values()) for (*own, _), codes in self.flags.items() if own == [seed, name]]
        return {kind: max((c[code] for c in counts), default=0) for code, kind in enumerate(FLAGS) if code}

    def _groups(self, rows: Sequence[str]) -> tuple[int, ...] | None:
        groups = [self.groups.get(row) for row in rows]
        return None if None in groups or not rows else tuple(int(group) for group in groups if group is not None)

    def _name(self, picture: str) -> str:
        if self.known is not None:
            return str(self.known.entry(picture).name)
        return self.names.get(picture, picture)

    def _missing(self, rows: Sequence[str], columns: Sequence[str]) -> Missing:
        setting = self.setting
        wanted = len(rows) * len(setting.methods) * len(setting.metrics) * len(self.seeds)
        there = sum(picture in found for found in self.parts.values() for picture in rows)
        return Missing(wanted, wanted - there, tuple(name for name in setting.metrics if name not in columns))

    def _plan(self, seed: int, columns: Sequence[str]) -> dict[str, Any]:
        setting = self.setting
        spelled = {name: {"spec": how} for name, how in setting.methods.items()}
        kept = (
            "size",
            "output",
            "class_subset",
            "precision",
            "interpolation",
            "tie_breaking",
            "nan_policy",
            "target",
            "device",
            "dtype",
        )
        return {
            "methods": spelled,
            "metrics": {name: {"spec": setting.metrics[name]} for name in columns},
            **{name: getattr(setting, name) for name in kept},
            "seed": seed,
            "model": setting.model.get("name", setting.label),
        }


def _stacked(found: Mapping[str, Array], rows: Sequence[str], width: int) -> Array:
    """Return ``[rows, width]``, NaN where a row is not there."""
    nothing = np.full(width, np.nan)
    return np.array([found.get(row, nothing) for row in rows], np.float64).reshape(len(rows), width)
