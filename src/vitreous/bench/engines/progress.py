"""How far a run is: its pace while it goes on, and what its folder tells at any time."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vitreous.bench.planning import wanted_units
from vitreous.bench.store import RecordedPlan, Store
from vitreous.bench.units import Unit

__all__ = ["Pace", "Status", "in_words", "status"]


@dataclass
class Pace:
    """The rate of a run since it was first looked at, and the time that is left at this rate."""

    began: float = field(default_factory=time.monotonic)
    first: float | None = None

    def line(self, done: float, total: float | None) -> str:
        """Return a line such as ``12/80 units, 0.9 per second, 1 min 16 s left``."""
        self.first = done if self.first is None else self.first
        passed, here = time.monotonic() - self.began, done - self.first
        text = f"{done:.0f}/{total or 0:.0f} units"
        if here <= 0 or passed <= 0:
            return text
        rate = here / passed
        told = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
        return f"{text}, {told}, {in_words(((total or 0) - done) / rate)} left"


def in_words(seconds: float) -> str:
    """Return a time as people say it."""
    whole = round(seconds)
    for name, size, smaller, less in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // less} {smaller}"
    return f"{whole} s"


@dataclass(frozen=True)
class Status:
    """What the folder of a run tells.

    ``models`` has units done and all of them by label; ``left`` is the time that one worker needs for the rest, from
    the seconds of finished units of the same kind, if there are any. ``unreadable`` and ``unsure`` are reasons by the
    names of pictures that are left out, ``raised`` those on which a method of others failed,
    by method, ``versions`` how many units are from which version of Vitreous, ``failures``
    what went wrong with a unit, try by try, finished or not.
    """

    protocol: str
    models: Mapping[str, tuple[int, int]]
    revisions: Mapping[int, str]
    failures: Mapping[str, list[str]]
    unreadable: Mapping[str, str]
    unsure: Mapping[str, str]
    raised: Mapping[str, Mapping[str, str]]
    versions: Mapping[str, int]
    broken: tuple[str, ...]
    seconds: float
    left: float | None
    size: int

    @property
    def done(self) -> int:
        return sum(done for done, _ in self.models.values())

    @property
    def total(self) -> int:
        return sum(total for _, total in self.models.values())

    def to_json(self) -> dict[str, Any]:
        return {"schema": "vitreous.status/1", "done": self.done, "total": self.total, **asdict(self)}


def status(store: Store) -> Status:
    """Read how far a run is; every finished unit is asked for its words."""
    plans, finished = store.plans(), store.finished()
    done: Counter[str] = Counter()
    total: Counter[str] = Counter()
    took: dict[tuple[str, bool], list[float]] = defaultdict(list)
    open_units: list[tuple[RecordedPlan, Unit]] = []
    out: dict[str, dict[str, str]] = {"unreadable": {}, "unsure": {}}
    raised: dict[str, dict[str, str]] = {}
    broken, seconds, versions = [], 0.0, Counter[str]()
    for plan, unit in wanted_units(plans):
        label = plan.settings[unit.setting].label
        total[label] += 1
        said = store.said(unit.id) if unit.id in finished else None
        if said is None:
            open_units.append((plan, unit))
            broken += [unit.id] if unit.id in finished else []
            continue
        done[label] += 1
        seconds += said.get("seconds", 0.0)
        versions[said.get("versions", {}).get("vitreous", "unknown")] += 1
        took[label, unit.judges].append(said.get("seconds", 0.0) / len(unit.pictures))
        for what, reasons in out.items():
            reasons |= {plan.names[picture]: why for picture, why in said.get(what, {}).items()}
        for name, reasons in said.get("raised", {}).items():
            raised.setdefault(name, {}).update(reasons)
    manifest = store.manifest() or {}
    return Status(
        protocol=manifest.get("wanted", {}).get("protocol", {}).get("name", "?"),
        models={label: (done[label], count) for label, count in total.items()},
        revisions={plan.revision: plan.why for plan in plans},
        failures=store.failures(),
        unreadable=out["unreadable"],
        unsure=out["unsure"],
        raised=raised,
        versions=dict(versions),
        broken=tuple(broken),
        seconds=seconds,
        left=_left(open_units, took),
        size=store.size,
    )


def _left(open_units: list[tuple[RecordedPlan, Unit]], took: Mapping[tuple[str, bool], list[float]]) -> float | None:
    """Return the seconds that are left at the mean pace of a picture; ``None`` where some kind has none yet."""
    seconds = 0.0
    for plan, unit in open_units:
        paces = took.get((plan.settings[unit.setting].label, unit.judges))
        if not paces:
            return None
        seconds += sum(paces) / len(paces) * len(unit.pictures)
    return seconds
