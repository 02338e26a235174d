"""Units of work: what is to be explained or judged, as plain data, known by a digest of all that can change a number.

An *explaining* unit makes the maps of some methods for a group of pictures; a *judging* unit reads stored maps of the
same pictures and scores them. Neither knows where or in which order it runs.

What a run records as JSON: its manifest and its plans, refused in a line where they are not what they should be.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.benchmark.protocol import protocol_of_json
from vitreous.benchmark.records import Checker

__all__ = [
    "RecordedPlan",
    "SCHEMA",
    "RunConfig",
    "Task",
    "Unit",
    "check_manifest",
    "digest_of",
    "is_digest",
]

_DIGEST = re.compile(r"[0-9a-f]{32}")
_PICTURE = re.compile(r"[^\W_]{8,64}")
_CHOICES = {
    "target": ("pred", "label", "given"),
    "output": ("logit", "prob", "logprob"),
    "precision": ("float32", "float16", "bfloat16"),
    "interpolation": ("bilinear", "nearest"),
    "tie_breaking": ("random", "raster", "reverse_raster"),
    "nan_policy": ("exclude", "lowest", "raise"),
}
_MODES = ("given", "pred", "label")
_RANGES = {"images_per_unit": 2**31, "attribution_batch": 2**31, "forward_batch": 2**31, "threads": 2**12}
_MOST_SIDE = 2**15


def digest_of(value: Any) -> str:
    """Return a digest of plain data."""
    text = json.dumps(value, sort_keys=True, default=str, allow_nan=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_digest(text: Any) -> bool:
    """Whether this is what ``digest_of`` returns: units are files of this name, so that nothing else may be one."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True)
class _Prepared:
    """What every setting says about how pictures are prepared."""

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    crop: float
    mode: str


@dataclass(frozen=True)
class RunConfig:
    """How the units of one model are run: the recorded numbers of a ``judge.Plan``, and who the model is.

    ``methods`` and ``metrics`` are spellings by label; ``marks`` are the digests of what the methods are made of,
    ``metric_marks`` those of the code of metrics that are not of Vitreous.
    ``images`` go into one unit, ``inner`` inputs into one pass, ``states`` perturbed images into one forward; with
    ``threads`` they change the last bits of a number and nothing else.
    """

    label: str
    model: Mapping[str, Any]
    fingerprint: str
    dtype: str
    device: str
    size: tuple[int, int]
    preprocess: Mapping[str, Any]
    methods: Mapping[str, str]
    method_digests: Mapping[str, str]
    metrics: Mapping[str, str]
    modes: tuple[str, ...] = ("given",)
    data: str = ""
    target: str = "pred"
    has_labels: bool = False
    output: str = "logit"
    class_subset: tuple[int, ...] | None = None
    precision: str = "float32"
    interpolation: str = "bilinear"
    tie_breaking: str = "random"
    nan_policy: str = "exclude"
    least_confidence: float | None = None
    memory_gb: float = 4.0
    images_per_unit: int = 32
    attribution_batch: int = 32
    forward_batch: int = 32
    threads: int = 1
    metric_digests: Mapping[str, str] = field(default_factory=dict)

    def metric_digest(self, label: str) -> str:
        """Return the digest of a metric's code; nothing for those of Vitreous."""
        return self.metric_digests.get(label, "")

    def narrowed(self, methods: Collection[str], metrics: Collection[str]) -> RunConfig:
        """Return the setting with these methods and metrics alone, by label."""
        return replace(
            self,
            methods={name: how for name, how in self.methods.items() if name in methods},
            method_digests={name: mark for name, mark in self.method_digests.items() if name in methods},
            metrics={name: how for name, how in self.metrics.items() if name in metrics},
            metric_digests={name: mark for name, mark in self.metric_digests.items() if name in metrics},
        )

    @cached_property
    def identity(self) -> str:
        """A digest of what numbers depend on beyond rounding, beside methods, metrics, seed and pictures."""
        left_out = {
            "images_per_unit",
            "attribution_batch",
            "forward_batch",
            "threads",
            "memory_gb",
            "device",
            "metric_digests",
        }
        facts = {name: value for name, value in asdict(self).items() if name not in left_out}
        apart = ("methods", "method_digests", "metrics", "modes", "label", "model", "data")
        return digest_of({**facts, **dict.fromkeys(apart)})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, check: Checker, key: str) -> RunConfig:
        """Return the setting that a plan records, with every value checked."""
        made = check.record(cls, data, key)
        names = _Prepared.__dataclass_fields__
        prepared = {name: value for name, value in made.preprocess.items() if name in names}
        size = check.record(_Prepared, prepared, f"{key}.preprocess").size
        for name, options in _CHOICES.items():
            if getattr(made, name) not in options:
                raise check.wrong(f"{key}.{name}", getattr(made, name), f"is not one of {', '.join(options)}")
        for name, most in _RANGES.items():
            if not 1 <= getattr(made, name) <= most:
                raise check.wrong(f"{key}.{name}", getattr(made, name), f"must be from 1 to {most}")
        if not all(1 <= side <= _MOST_SIDE for side in (*made.size, *size)):
            raise check.wrong(f"{key}.size", [*made.size, *size], f"must be from 1 to {_MOST_SIDE}")
        if not made.modes or not set(made.modes) <= set(_MODES):
            raise check.wrong(f"{key}.modes", list(made.modes), f"are kinds of class, of {', '.join(_MODES)}")
        if made.method_digests.keys() != made.methods.keys():
            raise check.wrong(
                f"{key}.marks", sorted(made.method_digests), "must be there for each of the methods and no other"
            )
        return made


@dataclass(frozen=True)
class Unit:
    """One piece of work on a group of pictures, which are known by their digests.

    An explaining unit has ``modes``, the kinds of class that are explained (``given``, ``pred`` or ``label``). A
    judging one has ``metrics``; it finds its maps by picture, method, seed and mode.
    ``setting`` is the number of its setting in the plan, and ``id`` a digest of everything.
    """

    id: str
    setting: int
    seed: int
    pictures: tuple[str, ...]
    methods: tuple[str, ...]
    modes: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        setting: RunConfig,
        number: int,
        seed: int,
        pictures: Sequence[str],
        methods: Sequence[str],
        modes: Sequence[str] = (),
        metrics: Sequence[str] = (),
    ) -> Unit:
        """Return the unit with its digest."""
        lists = tuple(pictures), tuple(sorted(methods)), tuple(modes), tuple(metrics)
        unit = cls("", number, seed, *lists)
        return replace(unit, id=unit.digest(setting, setting.to_json()))

    def digest(self, setting: RunConfig, recorded: Mapping[str, Any]) -> str:
        """Return the digest of all that this unit depends on; ``recorded`` is the setting as its plan has it.

        An earlier version may have recorded fewer values: they are not in its digests.
        """
        facts = {
            **recorded,
            **dict.fromkeys(("label", "model", "data")),  # words for it: weights and pictures have digests
            "methods": {name: [setting.methods[name], setting.method_digests[name]] for name in sorted(self.methods)},
            "method_digests": None,
            "modes": list(self.modes),
            "metrics": {name: setting.metrics[name] for name in sorted(self.metrics)},
            "metric_digests": {
                name: setting.metric_digest(name) for name in self.metrics if setting.metric_digest(name)
            },
            "seed": self.seed,
            "pictures": list(self.pictures),
        }
        return digest_of({name: fact for name, fact in facts.items() if fact or name != "metric_digests"})

    @property
    def judges(self) -> bool:
        """Whether it scores maps, and does not make them."""
        return bool(self.metrics)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, check: Checker, key: str) -> Unit:
        """Return the unit that a file records, with every value checked that can be without its setting."""
        made = check.record(cls, data, key)
        if not is_digest(made.id):
            raise check.wrong(f"{key}.id", made.id, "is no digest")
        for name in ("pictures", "methods", "modes", "metrics"):
            values = getattr(made, name)
            if len(set(values)) < len(values):
                raise check.wrong(f"{key}.{name}", list(values), "has something twice")
        if not all(map(_PICTURE.fullmatch, made.pictures)) or not made.pictures:
            raise check.wrong(f"{key}.pictures", list(made.pictures), "must be digests")
        if not made.methods or bool(made.modes) == bool(made.metrics) or not set(made.modes) <= set(_MODES):
            raise check.wrong(key, made.id, "must have methods, and either metrics or kinds of class")
        return made

    def check(
        self, settings: Sequence[RunConfig], recorded: Sequence[Mapping[str, Any]], where: Checker, key: str
    ) -> None:
        """Refuse a unit that is not what its plan can mean: its id must be the digest of its content."""
        if not 0 <= self.setting < len(settings):
            raise where.wrong(f"{key}.setting", self.setting, f"there are {len(settings)} settings, counted from 0")
        setting = settings[self.setting]
        for name, labels, known in (
            ("methods", self.methods, setting.methods),
            ("metrics", self.metrics, setting.metrics),
        ):
            for label in labels:
                if label not in known:
                    raise where.wrong(f"{key}.{name}", label, f"is not among the {name} of its setting")
        if self.digest(setting, recorded[self.setting]) != self.id:
            raise where.wrong(f"{key}.id", self.id, "is not the digest of its content")


@dataclass(frozen=True)
class Task:
    """Units of the same pictures and model, in their order: what one worker takes at a time."""

    units: tuple[Unit, ...] = field(default_factory=tuple)

    @property
    def pictures(self) -> tuple[str, ...]:
        return self.units[0].pictures


SCHEMA = "vitreous.run/1"


class RecordedPlan:
    """Settings and units as they were decided once; ``revision`` counts from 1.

    ``names`` are those of the pictures by their digests. ``replaces`` are units of earlier plans that these stand for:
    memory ran out, and they are run in smaller parts. ``versions`` are those of the code that planned.
    """

    def __init__(
        self,
        revision: int,
        settings: list[RunConfig],
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
        settings = [RunConfig.from_json(own, check, f"settings[{n}]") for n, own in enumerate(made.settings)]
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
