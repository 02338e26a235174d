"""What a run records as JSON: its manifest and its plans, refused in a line where they are not what they should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.bench.protocol import protocol_of_json
from vitreous.bench.records import Checker
from vitreous.bench.units import Setting, Unit, is_digest

__all__ = ["SCHEMA", "RecordedPlan", "check_manifest"]

SCHEMA = "vitreous.run/1"


class RecordedPlan:
    """Settings and units as they were decided once; ``revision`` counts from 1.

    ``names`` are those of the pictures by their digests. ``replaces`` are units of earlier plans that these stand for:
    memory ran out, and they are run in smaller parts. ``versions`` are those of the code that planned.
    """

    def __init__(
        self,
        revision: int,
        settings: list[Setting],
        units: list[Unit],
        why: str,
        names: Mapping[str, str],
        replaces: Sequence[str] = (),
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.revision, self.settings, self.units, self.why = revision, settings, units, why
        self.names, self.replaces, self.versions = dict(names), tuple(replaces), dict(versions or {})

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "vitreous.plan/1",
            "revision": self.revision,
            "why": self.why,
            "versions": self.versions,
            "settings": [setting.to_json() for setting in self.settings],
            "units": [unit.to_json() for unit in self.units],
            "names": self.names,
            "replaces": list(self.replaces),
        }

    @classmethod
    def from_json(cls, data: Any, file: str | Path) -> RecordedPlan:
        """Return the plan that a file records; what it cannot mean is refused in a line."""
        check = Checker(file)
        made = check.record(_Plan, data)
        if made.schema != _PLAN_SCHEMA:
            raise check.wrong("schema", made.schema, f"this version reads {_PLAN_SCHEMA}")
        settings = [Setting.from_json(own, check, f"settings[{n}]") for n, own in enumerate(made.settings)]
        units = [Unit.from_json(own, check, f"units[{n}]") for n, own in enumerate(made.units)]
        for number, unit in enumerate(units):
            unit.check(settings, made.settings, check, f"units[{number}]")
            lost = next((picture for picture in unit.pictures if picture not in made.names), None)
            if lost is not None:
                raise check.wrong(f"units[{number}].pictures", lost, "has no name in names")
        for number, unit_id in enumerate(made.replaces):
            if not is_digest(unit_id):
                raise check.wrong(f"replaces[{number}]", unit_id, "is no digest")
        if made.revision < 1:
            raise check.wrong("revision", made.revision, "must be at least 1")
        return cls(made.revision, settings, units, made.why, made.names, made.replaces, made.versions)


_PLAN_SCHEMA = "vitreous.plan/1"


@dataclass(frozen=True)
class _Plan:
    """The keys of a plan's file."""

    revision: int
    settings: tuple[Any, ...]
    units: tuple[Any, ...]
    why: str
    names: Mapping[str, str]
    replaces: tuple[str, ...]
    schema: str = _PLAN_SCHEMA
    versions: Mapping[str, str] | None = None


@dataclass(frozen=True)
class _Manifest:
    """The keys of ``run.json``."""

    schema: str
    wanted: Mapping[str, Any]
    vitreous: str = "?"


@dataclass(frozen=True)
class _Wanted:
    """What a manifest says that is read again, beside the protocols."""

    images: int | None = None
    checkpoint: Mapping[str, str] | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    pictures: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=dict)


def check_manifest(data: Any, file: Path) -> dict[str, Any]:
    check = Checker(file)
    if isinstance(data, dict) and data.get("schema") != SCHEMA:
        raise check.wrong("schema", data.get("schema"), f"this version reads {SCHEMA}")
    wanted = check.record(_Manifest, data).wanted
    names = _Wanted.__dataclass_fields__
    check.record(_Wanted, {key: value for key, value in wanted.items() if key in names}, "wanted")
    for key in ("protocol", "named"):
        if key in wanted:
            protocol_of_json(wanted[key], f"{file}: wanted.{key}")
    places = wanted.get("data")
    if not isinstance(places, str | None):
        check.value(places, Mapping[str, str], "wanted.data")
    return dict(data)
