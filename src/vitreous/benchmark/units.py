"""Units of work: what is to be explained or scored, as plain data, known by a digest of all that can change a number.

An *attribution* unit makes the maps of some methods for a group of images; a *scoring* unit reads stored maps of the
same images and evaluates them. Neither knows where or in which order it runs. A plan records units with the
configuration of each model, and is refused in a line where it is not what it should be.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from vitreous.benchmark.protocol import checked
from vitreous.benchmark.protocol_io import Checker, protocol_from_json
from vitreous.metrics import EvaluationConfig

T = TypeVar("T")

SCHEMA, _PLAN_SCHEMA = "vitreous.run/1", "vitreous.plan/1"
_DIGEST = re.compile(r"[0-9a-f]{32}")
_IMAGE = re.compile(r"[^\W_]{8,64}")
_MODES = ("given", "pred", "label")
_MOST_SIDE, _MOST_THREADS = 2**15, 2**12
_CONFIG_FIELDS = tuple(f.name for f in fields(EvaluationConfig) if f.name != "seed")
"""Of a recorded configuration; the seed is that of a unit."""
_BATCH_SIZES = ("images_per_unit", "attribution_batch", "forward_batch", "memory_gb")


def digest_of(value: Any) -> str:
    """Return a digest of plain data."""
    text = json.dumps(value, sort_keys=True, default=str, allow_nan=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_digest(text: Any) -> bool:
    """Whether this is what ``digest_of`` returns: units are files of this name, so that nothing else may be one."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True)
class _Preprocessing:
    """What a configuration must say about how images are prepared."""

    size: tuple[int, int] = field(metadata={"least": 1, "most": _MOST_SIDE})
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    interpolation: str = ""
    crop: float = 1.0
    mode: str = ""


@dataclass(frozen=True)
class RunConfig:
    """How the units of one model are run: who the model is, the methods and metrics, and the evaluation.

    ``methods`` and ``metrics`` are specs by label; ``method_digests`` are those of what the methods are made of,
    ``metric_digests`` those of the code of metrics that are not of Vitreous. Batch sizes and ``threads`` change the
    last bits of a number and nothing else.
    """

    label: str
    model: Mapping[str, Any]
    fingerprint: str
    dtype: str
    device: str
    size: tuple[int, int] = field(metadata={"least": 1, "most": _MOST_SIDE})
    preprocess: Mapping[str, Any]
    methods: Mapping[str, str]
    method_digests: Mapping[str, str]
    metrics: Mapping[str, str]
    modes: tuple[str, ...] = checked(("given",), filled=True, choices=_MODES)
    data: str = ""
    has_labels: bool = False
    least_confidence: float | None = None
    threads: int = checked(1, least=1, most=_MOST_THREADS)
    metric_digests: Mapping[str, str] = field(default_factory=dict)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def metric_digest(self, label: str) -> str:
        """Return the digest of a metric's code; nothing for those of Vitreous."""
        return self.metric_digests.get(label, "")

    def made_of(self, label: str) -> tuple[str, str]:
        """Return what a method is, whatever it is called: its spec and digest."""
        return self.methods[label], self.method_digests[label]

    def restricted_to(self, methods: Collection[str], metrics: Collection[str]) -> RunConfig:
        """Return the configuration with these methods and metrics alone, of those it has; lists give an order."""
        rows, columns = _in_order_of(methods, self.methods), _in_order_of(metrics, self.metrics)
        return replace(
            self,
            methods={label: self.methods[label] for label in rows},
            method_digests={label: self.method_digests[label] for label in rows},
            metrics={label: self.metrics[label] for label in columns},
            metric_digests={label: self.metric_digests[label] for label in columns if label in self.metric_digests},
        )

    @property
    def batch_sizes(self) -> dict[str, Any]:
        return {name: getattr(self.evaluation, name) for name in _BATCH_SIZES}

    def difference_in_batches(self, other: RunConfig) -> str:
        names = ("attribution_batch", "forward_batch")
        return ", ".join(f"{name} {self.batch_sizes[name]} to {other.batch_sizes[name]}" for name in names)

    def with_batch_sizes(self, **sizes: Any) -> RunConfig:
        return replace(self, evaluation=replace(self.evaluation, **sizes))

    @cached_property
    def identity(self) -> str:
        """A digest of what numbers depend on beyond rounding, beside methods, metrics, seed and images."""
        facts = self.to_json()
        for name in (*_BATCH_SIZES, "threads", "device", "metric_digests"):
            del facts[name]
        apart = ("methods", "method_digests", "metrics", "modes", "label", "model", "data")
        return digest_of({**facts, **dict.fromkeys(apart)})

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as plain data, that of the evaluation beside the rest: digests are of these keys."""
        facts = asdict(self)
        evaluation = facts.pop("evaluation")
        return {**facts, **{name: evaluation[name] for name in _CONFIG_FIELDS}}

    @classmethod
    def from_json(cls, data: Any, check: Checker, key: str) -> RunConfig:
        """Return the configuration that a plan records, with every value checked."""
        table = check.value(data, Mapping[str, Any], key)
        evaluation = {name: table[name] for name in _CONFIG_FIELDS if name in table}
        config = check.record(cls, {name: value for name, value in table.items() if name not in evaluation}, key)
        if missing := sorted({f.name for f in fields(_Preprocessing)} - config.preprocess.keys()):
            raise check.wrong(f"{key}.preprocess", sorted(config.preprocess), f"{missing[0]} is missing")
        known_record(check, _Preprocessing, config.preprocess, f"{key}.preprocess")
        if config.method_digests.keys() != config.methods.keys():
            digests = sorted(config.method_digests)
            raise check.wrong(f"{key}.method_digests", digests, "must be there for each of the methods and no other")
        return replace(config, evaluation=check.record(EvaluationConfig, evaluation, key))


def known_record(check: Checker, kind: type[T], table: Mapping[str, Any], key: str = "") -> T:
    """Return a record of those keys of a table that are read again; a table may have others."""
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return check.record(kind, {name: value for name, value in table.items() if name in names}, key)


def _in_order_of(labels: Collection[str], table: Mapping[str, str]) -> list[str]:
    if isinstance(labels, set):
        return [label for label in table if label in labels]
    return [label for label in labels if label in table]


@dataclass(frozen=True)
class Unit:
    """One piece of work on a group of images, which are known by their digests.

    An attribution unit has ``modes``, the kinds of class that are explained (``given``, ``pred`` or ``label``). A
    scoring one has ``metrics``; it finds its maps by image, method, seed and mode. ``config`` is the number of its
    configuration in the plan, and ``id`` a digest of everything.
    """

    id: str
    config: int
    seed: int
    images: tuple[str, ...]
    methods: tuple[str, ...]
    modes: tuple[str, ...] = checked((), choices=_MODES)
    metrics: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        config: RunConfig,
        number: int,
        seed: int,
        images: Sequence[str],
        methods: Sequence[str],
        modes: Sequence[str] = (),
        metrics: Sequence[str] = (),
    ) -> Unit:
        """Return the unit with its digest."""
        unit = cls("", number, seed, tuple(images), tuple(sorted(methods)), tuple(modes), tuple(metrics))
        return replace(unit, id=unit.digest(config))

    def digest(self, config: RunConfig) -> str:
        """Return the digest of all that this unit depends on."""
        metric_digests = {name: config.metric_digest(name) for name in self.metrics if config.metric_digest(name)}
        facts = {
            **config.to_json(),
            **dict.fromkeys(("label", "model", "data")),  # words for it: weights and images have digests
            "methods": {name: list(config.made_of(name)) for name in sorted(self.methods)},
            "method_digests": None,
            "modes": list(self.modes),
            "metrics": {name: config.metrics[name] for name in sorted(self.metrics)},
            "seed": self.seed,
            "pictures": list(self.images),
        }
        del facts["metric_digests"]
        return digest_of({**facts, "metric_digests": metric_digests} if metric_digests else facts)

    @property
    def is_scoring(self) -> bool:
        """Whether it evaluates maps, and does not make them."""
        return bool(self.metrics)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, check: Checker, key: str) -> Unit:
        """Return the unit that a file records, with every value checked that can be without its configuration."""
        unit = check.record(cls, data, key)
        if not is_digest(unit.id):
            raise check.wrong(f"{key}.id", unit.id, "is no digest")
        for name in ("images", "methods", "modes", "metrics"):
            values = getattr(unit, name)
            if len(set(values)) < len(values):
                raise check.wrong(f"{key}.{name}", list(values), "has something twice")
        if not all(map(_IMAGE.fullmatch, unit.images)) or not unit.images:
            raise check.wrong(f"{key}.images", list(unit.images), "must be digests")
        if not unit.methods or bool(unit.modes) == bool(unit.metrics):
            raise check.wrong(key, unit.id, "must have methods, and either metrics or kinds of class")
        return unit

    def check(self, configs: Sequence[RunConfig], names: Collection[str], where: Checker, key: str) -> None:
        """Refuse a unit that is not what its plan can mean: its id must be the digest of its content."""
        if not 0 <= self.config < len(configs):
            raise where.wrong(f"{key}.config", self.config, f"there are {len(configs)} configs, counted from 0")
        config = configs[self.config]
        for kind in ("methods", "metrics"):
            if unknown := set(getattr(self, kind)) - getattr(config, kind).keys():
                raise where.wrong(f"{key}.{kind}", min(unknown), f"is not among the {kind} of its config")
        if self.digest(config) != self.id:
            raise where.wrong(f"{key}.id", self.id, "is not the digest of its content")
        if nameless := set(self.images) - set(names):
            raise where.wrong(f"{key}.images", min(nameless), "has no name in names")


@dataclass(frozen=True)
class RecordedPlan:
    """Configurations and units as they were decided once; ``revision`` counts from 1.

    ``names`` are those of the images by their digests. ``replaces`` are units of earlier plans that these stand for:
    memory ran out, and they are run in smaller batches. ``versions`` are those of the code that planned.
    """

    revision: int = field(metadata={"least": 1})
    configs: tuple[Any, ...]
    units: tuple[Any, ...]
    why: str
    names: Mapping[str, str]
    replaces: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def config_of(self, unit: Unit) -> RunConfig:
        config: RunConfig = self.configs[unit.config]
        return config

    def to_json(self) -> dict[str, Any]:
        configs, units = [config.to_json() for config in self.configs], [asdict(unit) for unit in self.units]
        return {"schema": _PLAN_SCHEMA, **vars(self), "configs": configs, "units": units}

    @classmethod
    def from_json(cls, data: Any, file: str | Path) -> RecordedPlan:
        """Return the plan that a file records; what it cannot mean is refused in a line."""
        check = Checker(file)
        plan = check.record(cls, _without_schema(data, _PLAN_SCHEMA, check))
        configs = tuple(RunConfig.from_json(table, check, f"configs[{n}]") for n, table in enumerate(plan.configs))
        units = tuple(Unit.from_json(table, check, f"units[{n}]") for n, table in enumerate(plan.units))
        for number, unit in enumerate(units):
            unit.check(configs, plan.names, check, f"units[{number}]")
        for number, unit_id in enumerate(plan.replaces):
            if not is_digest(unit_id):
                raise check.wrong(f"replaces[{number}]", unit_id, "is no digest")
        return replace(plan, configs=configs, units=units)


def _without_schema(data: Any, schema: str, check: Checker) -> Any:
    if not isinstance(data, dict):
        return data
    if data.get("schema") != schema:
        raise check.wrong("schema", data.get("schema"), f"this version reads {schema}")
    return {key: value for key, value in data.items() if key != "schema"}


@dataclass(frozen=True)
class _Manifest:
    """The keys of ``run.json``."""

    wanted: Mapping[str, Any]
    vitreous: str = "?"


@dataclass(frozen=True)
class _Wanted:
    """What a manifest says that is read again, beside the protocols."""

    images: int | None = None
    checkpoint: Mapping[str, str] | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    image_digests: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=dict)


def check_manifest(data: Any, file: Path) -> dict[str, Any]:
    """Return the content of ``run.json``, with every value checked that is read again."""
    check = Checker(file)
    wanted = check.record(_Manifest, _without_schema(data, SCHEMA, check)).wanted
    known_record(check, _Wanted, wanted, "wanted")
    for key in ("protocol", "named"):
        if key in wanted:
            protocol_from_json(wanted[key], f"{file}: wanted.{key}")
    locations = wanted.get("data")
    if not isinstance(locations, str | None):
        check.value(locations, Mapping[str, str], "wanted.data")
    return dict(data)
