"""Units of work: what is to be explained or judged, as plain data, known by a digest of all that can change a number.

An *explaining* unit makes the maps of some methods for a group of pictures; a *judging* unit reads stored maps of the
same pictures and scores them. Neither knows where or in which order it runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

__all__ = ["Setting", "Task", "Unit", "digest_of"]


def digest_of(value: Any) -> str:
    """Return a digest of plain data."""
    text = json.dumps(value, sort_keys=True, default=str, allow_nan=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Setting:
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
    marks: Mapping[str, str]
    metrics: Mapping[str, str]
    modes: tuple[str, ...] = ("given",)
    data: str = ""
    target: str = "pred"
    labelled: bool = False
    value: str = "logit"
    classes: tuple[int, ...] | None = None
    precision: str = "float32"
    upsample: str = "bilinear"
    ties: str = "random"
    nonfinite: str = "exclude"
    least_confidence: float | None = None
    memory: float = 4.0
    images: int = 32
    inner: int = 32
    states: int = 32
    threads: int = 1
    metric_marks: Mapping[str, str] = field(default_factory=dict)

    def metric_mark(self, label: str) -> str:
        """Return the digest of a metric's code; nothing for those of Vitreous."""
        return self.metric_marks.get(label, "")

    def narrowed(self, methods: Collection[str], metrics: Collection[str]) -> Setting:
        """Return the setting with these methods and metrics alone, by label."""
        return replace(
            self,
            methods={name: how for name, how in self.methods.items() if name in methods},
            marks={name: mark for name, mark in self.marks.items() if name in methods},
            metrics={name: how for name, how in self.metrics.items() if name in metrics},
            metric_marks={name: mark for name, mark in self.metric_marks.items() if name in metrics},
        )

    @cached_property
    def identity(self) -> str:
        """A digest of what numbers depend on beyond rounding, beside methods, metrics, seed and pictures."""
        left_out = {"images", "inner", "states", "threads", "memory", "device", "metric_marks"}
        facts = {name: value for name, value in asdict(self).items() if name not in left_out}
        apart = ("methods", "marks", "metrics", "modes", "label", "model", "data")
        return digest_of({**facts, **dict.fromkeys(apart)})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Setting:
        some = dict(data)
        some["size"], some["modes"] = tuple(some["size"]), tuple(some["modes"])
        some["classes"] = None if some["classes"] is None else tuple(some["classes"])
        return cls(**some)


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
        setting: Setting,
        number: int,
        seed: int,
        pictures: Sequence[str],
        methods: Sequence[str],
        modes: Sequence[str] = (),
        metrics: Sequence[str] = (),
    ) -> Unit:
        """Return the unit with its digest."""
        facts = {
            **setting.to_json(),
            **dict.fromkeys(("label", "model", "data")),  # words for it: weights and pictures have digests
            "methods": {name: [setting.methods[name], setting.marks[name]] for name in sorted(methods)},
            "marks": None,
            "modes": list(modes),
            "metrics": {name: setting.metrics[name] for name in sorted(metrics)},
            "metric_marks": {name: setting.metric_mark(name) for name in metrics if setting.metric_mark(name)},
            "seed": seed,
            "pictures": list(pictures),
        }
        facts = {name: fact for name, fact in facts.items() if fact or name != "metric_marks"}
        lists = tuple(pictures), tuple(sorted(methods)), tuple(modes), tuple(metrics)
        return cls(digest_of(facts), number, seed, *lists)

    @property
    def judges(self) -> bool:
        """Whether it scores maps, and does not make them."""
        return bool(self.metrics)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Unit:
        pictures, methods, modes, metrics = (tuple(data[name]) for name in ("pictures", "methods", "modes", "metrics"))
        return cls(data["id"], data["setting"], data["seed"], pictures, methods, modes, metrics)


@dataclass(frozen=True)
class Task:
    """Units of the same pictures and model, in their order: what one worker takes at a time."""

    units: tuple[Unit, ...] = field(default_factory=tuple)

    @property
    def pictures(self) -> tuple[str, ...]:
        return self.units[0].pictures
