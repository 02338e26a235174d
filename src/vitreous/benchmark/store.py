"""A run on disk: what is wanted, every recorded plan, and one file for each finished unit.

    run.json             the manifest: what is measured, with what
    plans/0001.json      a plan: configurations and units; a later plan adds units, and changes none
    units/<id>.npz       the result of a unit; numpy alone reads it
    failures/<id>.json   what went wrong with a unit, and how often it was tried
    verified.json        sizes and times of unit files whose content was verified: they are not read at each start

Files appear whole, by one rename. A run may come from anybody: what it says is checked before it is used, and a file
that cannot be opened is one line. A unit of which the content is damaged is taken for missing, and made again.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from vitreous import __version__
from vitreous import io as disk
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.protocol_io import Checker, protocol_from_json, read_json
from vitreous.benchmark.unit_file import DamagedUnit, UnitResult, check_unit, read_unit
from vitreous.benchmark.units import SCHEMA, RecordedPlan, Unit, check_manifest, is_digest
from vitreous.errors import VitreousError, one_line

_MOST_REASON = 500  # characters
_MOST_UNIT = 2**31  # bytes: a unit is some megabytes
_PLANNING_TIMEOUT = 600.0  # seconds: planning opens models
_PLAN = re.compile(r"[0-9]{4,9}\.json")
_VERIFIED = "verified.json"


@dataclass(frozen=True)
class _Verified:
    """A unit file whose content was verified: what tells that it has not changed, and which code made it."""

    stamp: tuple[int, ...]
    versions: Mapping[str, str]


class Store:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._plans: dict[str, RecordedPlan] = {}
        self._units: tuple[int, dict[str, Unit]] = 0, {}
        self.unit_versions: list[Mapping[str, str]] = []
        """The versions of the code that made each finished unit; ``mend`` reads them."""

    # -- the run -----------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, wanted: Mapping[str, Any], previous: Mapping[str, Any] | None = None) -> Store:
        """Open a run that is there for the same thing, or begin it; a folder that is not ours is refused.

        ``wanted`` may extend what the run's manifest wanted before (``previous``; empty: there was no run): then it is
        refused where another process has written another protocol since, which it does not know of.
        """
        store = cls(path)
        with disk.lock(store.path / "run"):
            manifest = store.manifest()
            if manifest is None:
                if any(not name.startswith(".vitreous-") for name in os.listdir(store.path)):
                    raise VitreousError(f"{path} holds something that is no run of ours; choose another place")
                store._write("run.json", {"schema": SCHEMA, "vitreous": __version__, "wanted": dict(wanted)})
            elif manifest["wanted"] != (new := json.loads(json.dumps(wanted))):
                protocols = [(previous or {}).get("protocol"), new.get("protocol")]
                if previous is not None and manifest["wanted"].get("protocol") not in protocols:
                    raise VitreousError(f"{path} was changed by another command meanwhile: run this one again")
                store._write("run.json", {**manifest, "wanted": dict(wanted)}, overwrite=True)  # units stay
        return store

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open a run that is there."""
        store = cls(path)
        if store.manifest() is None:
            raise VitreousError(f"{path} is no run: there is no run.json in it")
        return store

    def manifest(self) -> dict[str, Any] | None:
        """Return the content of ``run.json``; ``None`` where there is none."""
        file = self.path / "run.json"
        try:
            return check_manifest(read_json(file), file)
        except FileNotFoundError:
            return None

    @property
    def wanted(self) -> dict[str, Any]:
        """What the manifest says that is measured; empty where there is none."""
        wanted: dict[str, Any] = (self.manifest() or {}).get("wanted", {})
        return wanted

    def protocol(self) -> Protocol:
        """Return the protocol that this is a run of."""
        wanted = self.wanted
        if "protocol" not in wanted:
            raise VitreousError(f"{self.path / 'run.json'}: wanted.protocol is missing")
        return protocol_from_json(wanted["protocol"], f"{self.path / 'run.json'}: wanted.protocol")

    # -- plans -------------------------------------------------------------------------------------------

    def plans(self) -> list[RecordedPlan]:
        """Return every plan, the first one first."""
        names = [name for name in self._names("plans") if _PLAN.fullmatch(name)]
        for number, name in enumerate(sorted(names, key=lambda name: int(name[:-5])), 1):
            if name not in self._plans:  # what is written is never changed
                plan = self._read_plan(name)
                if plan.revision != number or name != _plan_name(number):
                    other = "" if plan.revision == int(name[:-5]) else f", and says that it is plan {plan.revision}"
                    raise VitreousError(f"{self.path / 'plans' / name} is plan file {number} of the run{other}")
                self._plans[name] = plan
        return list(self._plans.values())

    def _read_plan(self, name: str) -> RecordedPlan:
        file = self.path / "plans" / name
        try:
            return RecordedPlan.from_json(read_json(file), file)
        except FileNotFoundError:
            raise VitreousError(f"{file} leads nowhere") from None

    def add_plan(self, plan: RecordedPlan) -> None:
        """Record a plan, whose revision must be the next one; the caller holds ``planning``."""
        self._write(f"plans/{_plan_name(plan.revision)}", plan.to_json())

    @contextmanager
    def planning(self) -> Iterator[list[RecordedPlan]]:
        """Be the only one to add a plan; gives those that are there."""
        with disk.lock(self.path / "planning", timeout=_PLANNING_TIMEOUT):
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
                self._units = len(plans), {planned.id: planned for plan in plans for planned in plan.units}
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

        A file that cannot be opened is an error: what it holds may be whole. One that was verified before, and has the
        same size, inode and times of change since, is not read again.
        """
        before, verified = self._read_verified(), {}
        damaged = {}
        for unit in sorted(self.finished()):
            status = os.lstat(self._unit(unit))  # what tells that a file has not changed; nothing of it is read
            stamp = status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode
            if unit in before and before[unit].stamp == stamp:
                verified[unit] = before[unit]
                continue
            try:
                result = self._read(unit)
                versions = {} if result is None else result.info.get("versions", {})
                verified[unit] = _Verified(stamp, versions)
            except DamagedUnit as error:
                damaged[unit] = str(error)
        for unit in damaged:
            with self.claim(unit) as is_mine:
                if is_mine:
                    disk.discard(self._unit(unit))
        if verified != before:
            self._write(_VERIFIED, {unit: asdict(record) for unit, record in verified.items()}, overwrite=True)
        self.unit_versions = [record.versions for record in verified.values()]
        return damaged

    def _read_verified(self) -> dict[str, _Verified]:
        """Return the unit files that were verified here; none where the list cannot be read."""
        with suppress(FileNotFoundError, VitreousError):
            check = Checker(_VERIFIED)
            return dict(check.value(read_json(self.path / _VERIFIED), Mapping[str, _Verified], "units"))
        return {}

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

    def put(self, unit: str, content: bytes) -> None:
        """Write the file of a unit as it is; the caller holds its claim."""
        disk.write_file(_no_link(self._unit(unit)), content, overwrite=True, held=True)

    def read(self, unit: str) -> UnitResult | None:
        """Return the result of a unit; ``None`` where it is missing or its content is damaged."""
        with suppress(DamagedUnit):
            return self._read(unit)
        return None

    def read_arrays(self, unit: str, names: Iterable[str]) -> UnitResult | None:
        """Return some arrays of a unit and its description; what else is in it stays on disk."""
        with suppress(DamagedUnit, KeyError):
            return self._read(unit, names)
        return None

    def info(self, unit: str) -> dict[str, Any] | None:
        """Return the description of a unit without its arrays."""
        result = self.read_arrays(unit, ())
        return None if result is None else result.info

    def _read(self, unit: str, names: Iterable[str] | None = None) -> UnitResult | None:
        path = self._unit(unit)
        try:
            with disk.open_file(path, _MOST_UNIT) as file:
                result = read_unit(file, os.fstat(file.fileno()).st_size, names)
        except FileNotFoundError:
            if path.is_symlink():
                raise VitreousError(f"{path} cannot be read: it is a link that leads nowhere") from None
            return None
        except OSError as error:
            raise VitreousError(one_line(f"{path} cannot be read: {error.strerror or error}")) from None
        except VitreousError as error:
            raise VitreousError(f"{path} {error}") from None
        check_unit(result, unit, self._planned(unit), complete=names is None)
        return result

    def content(self, unit: str) -> bytes:
        """Return the file of a finished unit as it is."""
        return read_bytes(self._unit(unit), _MOST_UNIT)

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
        failures: dict[str, list[str]] = {}
        for name in self._names("failures"):
            file, unit = self.path / "failures" / name, name.removesuffix(".json")
            if name != unit and is_digest(unit):
                with suppress(FileNotFoundError):
                    failures[unit] = _tries(read_json(file), file)
        return failures

    def _write(self, name: str, data: Any, *, overwrite: bool = False) -> None:
        text = json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"
        disk.write_file(_no_link(self.path / name), text.encode(), overwrite=overwrite)


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file of a run; what cannot be read is one line."""
    try:
        return disk.read_file(path, most)
    except OSError as error:
        raise VitreousError(one_line(f"{path} cannot be read: {error.strerror or error}")) from None


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


# -- how far it is -----------------------------------------------------------------------------------------


@dataclass
class Status:
    """How far a run is.

    ``models`` has units done and all of them by label; ``left`` is the time that one worker needs for the rest, from
    the seconds of finished units of the same kind, if there are any. ``unreadable`` and ``uncertain`` are reasons by
    the names of images that are left out, ``failed`` those on which an external method failed, by method, ``versions``
    how many units are from which version of Vitreous, ``failures`` what went wrong with a unit, try by try, finished or
    not.
    """

    protocol: str
    revisions: Mapping[int, str]
    failures: Mapping[str, list[str]]
    size: int
    models: dict[str, tuple[int, int]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    uncertain: dict[str, str] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    seconds: float = 0.0
    left: float | None = None

    @property
    def done(self) -> int:
        return sum(done for done, _ in self.models.values())

    @property
    def total(self) -> int:
        return sum(total for _, total in self.models.values())

    def to_json(self) -> dict[str, Any]:
        return {"schema": "vitreous.status/1", "done": self.done, "total": self.total, **asdict(self)}


def status(store: Store) -> Status:
    """Read how far a run is; of every finished unit the description is read."""
    plans, finished = store.plans(), store.finished()
    name = store.wanted.get("protocol", {}).get("name", "?")
    state = Status(name, {plan.revision: plan.why for plan in plans}, store.failures(), store.size)
    paces: dict[tuple[str, bool], list[float]] = defaultdict(list)
    images_left: Counter[tuple[str, bool]] = Counter()
    for plan, unit in wanted_units(plans):
        label = plan.config_of(unit).label
        kind = label, unit.is_scoring
        info = store.info(unit.id) if unit.id in finished else None
        done, total = state.models.get(label, (0, 0))
        state.models[label] = done + (info is not None), total + 1
        if info is None:
            images_left[kind] += len(unit.images)
            state.damaged += (unit.id,) if unit.id in finished else ()
            continue
        state.seconds += info.get("seconds", 0.0)
        version = info.get("versions", {}).get("vitreous", "unknown")
        state.versions[version] = state.versions.get(version, 0) + 1
        paces[kind].append(info.get("seconds", 0.0) / len(unit.images))
        for key, reasons in (("unreadable", state.unreadable), ("uncertain", state.uncertain)):
            reasons |= {plan.names[image]: why for image, why in info.get(key, {}).items()}
        for method, reasons in info.get("failed", {}).items():
            state.failed.setdefault(method, {}).update(reasons)
    if images_left.keys() <= paces.keys():  # at the mean pace of an image; of some kind there may be none yet
        state.left = sum((fmean(paces[kind]) * count for kind, count in images_left.items()), 0.0)
    return state
