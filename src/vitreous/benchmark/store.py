"""How far a run is: its pace while it goes on, and what its folder tells at any time.

A run on disk: what is wanted, every recorded plan, and one file for each finished unit.

    run.json             the manifest: what is measured, with what
    plans/0001.json      a plan: settings and units; a later plan adds units, and changes none
    units/<id>.npz       what a unit found; numpy alone reads it
    failures/<id>.json   what went wrong with a unit, and how often it was tried

Files appear whole, by one rename. A run may come from anybody: what it says is checked before it is used, and a file
that cannot be opened is one line. A unit of which the content is damaged is taken for missing, and made again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitreous import __version__
from vitreous import io as disk
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.protocol import Protocol, protocol_of_json
from vitreous.benchmark.records import Checker, read_json
from vitreous.benchmark.unit_file import DamagedUnit, Found, check_unit, packed, read_unit, unpacked
from vitreous.benchmark.units import SCHEMA, RecordedPlan, RunConfig, Unit, check_manifest, is_digest
from vitreous.errors import VitreousError, one_line

__all__ = [
    "Found",
    "Pace",
    "RecordedPlan",
    "SCHEMA",
    "Status",
    "Store",
    "in_words",
    "packed",
    "status",
    "unpacked",
]


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


_MOST_REASON = 500  # characters
_MOST_UNIT = 2**31  # bytes: a unit is some megabytes
_PATIENCE = 600.0  # seconds: planning opens models
_PLAN = re.compile(r"[0-9]{4,9}\.json")


class Store:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._plans: dict[str, RecordedPlan] = {}
        self._units: tuple[int, dict[str, Unit]] = 0, {}

    # -- the run -----------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, wanted: Mapping[str, Any], seen: Mapping[str, Any] | None = None) -> Store:
        """Open a run that is there for the same thing, or begin it; a folder that is not ours is refused.

        ``wanted`` may extend what the run's manifest wanted when it was ``seen`` (empty: there was no run): then it is
        refused where another process has written another protocol since, which it does not know of.
        """
        store = cls(path)
        with disk.lock(store.path / "run"):
            known = store.manifest()
            if known is None:
                if any(not name.startswith(".vitreous-") for name in os.listdir(store.path)):
                    raise VitreousError(f"{path} holds something that is no run of ours; choose another place")
                store._write("run.json", {"schema": SCHEMA, "vitreous": __version__, "wanted": dict(wanted)})
            elif known["wanted"] != (new := json.loads(json.dumps(wanted))):
                protocols = [each.get("protocol") for each in (seen or {}, new)]
                if seen is not None and known["wanted"].get("protocol") not in protocols:
                    raise VitreousError(f"{path} was changed by another command meanwhile: run this one again")
                store._write("run.json", {**known, "wanted": dict(wanted)}, overwrite=True)  # extended: units stay
        return store

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open a run that is there."""
        store = cls(path)
        if store.manifest() is None:
            raise VitreousError(f"{path} is no run: there is no run.json in it")
        return store

    def manifest(self) -> dict[str, Any] | None:
        """Return what ``run.json`` says; ``None`` where there is none."""
        file = self.path / "run.json"
        try:
            return check_manifest(read_json(file), file)
        except FileNotFoundError:
            return None

    def protocol(self) -> Protocol:
        """Return the protocol that this is a run of."""
        wanted = (self.manifest() or {}).get("wanted", {})
        if "protocol" not in wanted:
            raise VitreousError(f"{self.path / 'run.json'}: wanted.protocol is missing")
        return protocol_of_json(wanted["protocol"], f"{self.path / 'run.json'}: wanted.protocol")

    # -- plans -------------------------------------------------------------------------------------------

    def plans(self) -> list[RecordedPlan]:
        """Return every plan, the first one first."""
        names = [name for name in self._names("plans") if _PLAN.fullmatch(name)]
        for number, name in enumerate(sorted(names, key=lambda name: int(name[:-5])), 1):
            if name not in self._plans:  # what is written is never changed
                plan = self._read_plan(name)
                if plan.revision != number or name != _plan_name(number):
                    known = "" if plan.revision == int(name[:-5]) else f", and says that it is plan {plan.revision}"
                    raise VitreousError(f"{self.path / 'plans' / name} is plan file {number} of the run{known}")
                self._plans[name] = plan
        return list(self._plans.values())

    def _read_plan(self, name: str) -> RecordedPlan:
        file = self.path / "plans" / name
        try:
            return RecordedPlan.from_json(read_json(file), file)
        except FileNotFoundError:
            raise VitreousError(f"{file} leads nowhere") from None

    def add_plan(
        self,
        settings: list[RunConfig],
        units: list[Unit],
        why: str,
        names: Mapping[str, str],
        replaces: Sequence[str] = (),
        versions: Mapping[str, str] | None = None,
    ) -> RecordedPlan:
        """Record a plan under the next number; the caller holds ``planning``."""
        plan = RecordedPlan(len(self.plans()) + 1, settings, units, why, names, replaces, versions)
        self._write(f"plans/{_plan_name(plan.revision)}", plan.to_json())
        return plan

    @contextmanager
    def planning(self) -> Iterator[list[RecordedPlan]]:
        """Be the only one to add a plan; gives those that are there."""
        with disk.lock(self.path / "planning", timeout=_PATIENCE):
            yield self.plans()

    # -- units -------------------------------------------------------------------------------------------

    def _unit(self, unit: str) -> Path:
        if not is_digest(unit):
            raise VitreousError(f"{one_line(repr(unit))[:100]} is no unit of {self.path}: it is no digest")
        return self.path / "units" / f"{unit}.npz"

    def _planned(self, unit: str) -> Unit | None:
        """Return what a plan says about a unit; plans are read again where none of those at hand has it."""
        if unit not in self._units[1]:
            plans = self.plans()
            if len(plans) != self._units[0]:
                self._units = len(plans), {own.id: own for plan in plans for own in plan.units}
        return self._units[1].get(unit)

    def _names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the run."""
        try:
            return sorted(os.listdir(self.path / folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise VitreousError(f"{self.path / folder} cannot be read: {error.strerror}") from None

    def finished(self) -> set[str]:
        """Return the units whose files are there; ``mend`` takes away what is damaged."""
        return {name[:-4] for name in self._names("units") if name.endswith(".npz") and is_digest(name[:-4])}

    def mend(self) -> dict[str, str]:
        """Remove unit files with damaged content, so that they are made again; return what is wrong with each.

        A file that cannot be opened is an error: what it holds may be whole.
        """
        broken = dict(self.damage())
        for unit in broken:
            with self.claim(unit) as mine:
                if mine:
                    disk.discard(self._unit(unit))
        return broken

    def damage(self) -> Iterator[tuple[str, str]]:
        """Yield every unit with damaged content, and what is wrong with it."""
        for unit in sorted(self.finished()):
            try:
                self._read(unit)
            except DamagedUnit as error:
                yield unit, str(error)

    @contextmanager
    def claim(self, unit: str) -> Iterator[bool]:
        """Hold a unit for oneself; gives false where it is finished, or another process has it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(disk.lock(self._unit(unit), timeout=0))
            except disk.Busy:
                yield False
                return
            yield self.read(unit) is None

    def write(self, unit: str, arrays: Mapping[str, NDArray[Any]], said: Mapping[str, Any]) -> None:
        """Write what a unit found; the caller holds its claim."""
        self.put(unit, packed(arrays, said))

    def put(self, unit: str, content: bytes) -> None:
        """Write the file of a unit as it is; the caller holds its claim."""
        disk.write_file(_no_link(self._unit(unit)), content, overwrite=True, held=True)

    def read(self, unit: str) -> Found | None:
        """Return what a unit found; ``None`` where it is missing or its content is damaged."""
        with suppress(DamagedUnit):
            return self._read(unit)
        return None

    def some(self, unit: str, names: Iterable[str]) -> Found | None:
        """Return some arrays of a unit and its words; what else is in it stays on disk."""
        with suppress(DamagedUnit, KeyError):
            return self._read(unit, names)
        return None

    def said(self, unit: str) -> dict[str, Any] | None:
        """Return the words of a unit without its arrays."""
        found = self.some(unit, ())
        return None if found is None else found[1]

    def _read(self, unit: str, names: Iterable[str] | None = None) -> Found | None:
        path = self._unit(unit)
        try:
            with disk.open_file(path, _MOST_UNIT) as file:
                found = read_unit(file, os.fstat(file.fileno()).st_size, names)
        except FileNotFoundError:
            if path.is_symlink():
                raise VitreousError(f"{path} cannot be read: it is a link that leads nowhere") from None
            return None
        except OSError as error:
            raise VitreousError(one_line(f"{path} cannot be read: {error.strerror or error}")) from None
        except VitreousError as error:
            raise VitreousError(f"{path} {error}") from None
        check_unit(found, unit, self._planned(unit), whole=names is None)
        return found

    def content(self, unit: str) -> bytes:
        """Return the file of a finished unit as it is."""
        path = self._unit(unit)
        try:
            return disk.read_file(path, _MOST_UNIT)
        except OSError as error:
            raise VitreousError(one_line(f"{path} cannot be read: {error.strerror or error}")) from None

    @property
    def size(self) -> int:
        """Bytes of all unit files."""
        total = 0
        for unit in self.finished():
            with suppress(FileNotFoundError):
                total += os.lstat(self._unit(unit)).st_size
        return total

    # -- failures ----------------------------------------------------------------------------------------

    def note_failure(self, unit: str, reason: str) -> int:
        """Record that a unit failed, and return how often it has."""
        name = f"failures/{self._unit(unit).stem}.json"
        with disk.lock(self.path / "failures" / "note"):
            tries = [*self.failures().get(unit, []), reason[:_MOST_REASON]]
            self._write(name, {"schema": "vitreous.failure/1", "tries": tries}, overwrite=True)
        return len(tries)

    def failures(self) -> dict[str, list[str]]:
        """Return why units failed, try by try."""
        found: dict[str, list[str]] = {}
        for name in self._names("failures"):
            file, unit = self.path / "failures" / name, name.removesuffix(".json")
            if name != unit and is_digest(unit):
                with suppress(FileNotFoundError):
                    found[unit] = _tries(read_json(file), file)
        return found

    def _write(self, name: str, data: Any, *, overwrite: bool = False) -> None:
        text = json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"
        disk.write_file(_no_link(self.path / name), text.encode(), overwrite=overwrite)


def _tries(data: Any, file: Path) -> list[str]:
    check = Checker(file)
    if not isinstance(data, dict) or "tries" not in data:
        raise check.wrong("tries", data, "must be a list of reasons; remove the file to go on")
    tries: tuple[str, ...] = check.value(data["tries"], tuple[str, ...], "tries")
    return list(tries)


def _plan_name(number: int) -> str:
    return f"{number:04d}.json"


def _no_link(file: Path) -> Path:
    """Return a file to write, without the link that may have its name: a run must not write elsewhere."""
    if file.is_symlink():
        disk.discard(file)
    return file
