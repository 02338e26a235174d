"""The pictures of a run, known by what they are: bytes, label and truth, never their place in a list.

One data set of a protocol: its pictures, and the setting of every model on them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from vitreous.benchmark.methods import mark_of, method_of
from vitreous.benchmark.protocol import ModelSpec, Protocol
from vitreous.benchmark.units import RunConfig
from vitreous.datasets import Sample, file_digest
from vitreous.datasets.catalog import open_source
from vitreous.datasets.dataset import DataSource, Entry
from vitreous.errors import ImageError, VitreousError, nearest, one_line
from vitreous.evaluation.config import with_batch_sizes
from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.methods import Method
from vitreous.metrics import EvaluationConfig, get_metric
from vitreous.models import VisionModel
from vitreous.registry import defaults

__all__ = [
    "Options",
    "Part",
    "SourceImages",
    "changed",
    "check_labels",
    "digest_of_entry",
]


class SourceImages:
    """The pictures of a source by their digests."""

    def __init__(self, source: DataSource) -> None:
        self.source = source

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """One digest for each entry, in order; every file is read once, none is decoded."""
        found = tuple(digest_of_entry(entry) for entry in self.source.entries)
        if len(set(found)) < len(found):
            again = next(i for i, each in enumerate(found) if each in found[:i])
            raise VitreousError(f"{self.source.word}: {self.source.entries[again].name} is there twice")
        return found

    @cached_property
    def places(self) -> dict[str, int]:
        return {digest: place for place, digest in enumerate(self.digests)}

    def entry(self, digest: str) -> Entry:
        """Return what is known about a picture without opening it."""
        if digest not in self.places:
            raise VitreousError(f"picture {digest} of this run is not in {self.source.word} any more: was it changed?")
        return self.source.entries[self.places[digest]]

    def sample(self, digest: str, model: VisionModel) -> Sample:
        self.entry(digest)
        return self.source.sample(model, self.places[digest])


def digest_of_entry(entry: Entry) -> str:
    facts = [entry.name, entry.label, entry.boxes, entry.shares, entry.group, entry.compare_classes]
    if entry.source is not None:
        facts += [entry.build_steps, _of_ingredients(entry.source)]
    told = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16)
    for path in (entry.path if entry.opener is None else None, entry.mask):
        if path is not None:
            told.update(_of_file(path).encode())
    if entry.opener is not None:
        try:
            told.update(np.ascontiguousarray(np.asarray(entry.open())).tobytes())
        except ImageError:
            told.update(b"unreadable")  # told when it is asked for
    return told.hexdigest()


@lru_cache(maxsize=8)
def _of_ingredients(source: DataSource) -> str:
    """Return one digest of all pictures that grids are made of: each grid may have any of them."""
    told = hashlib.blake2b(digest_size=16)
    for entry in source.entries:
        told.update(digest_of_entry(entry).encode())
    return told.hexdigest()


def _of_file(path: object) -> str:
    try:
        return file_digest(str(path))
    except ImageError:
        return "unreadable"


_ON_A_CPU = 8  # pictures of a unit: a unit is what is lost when a run is stopped, and what workers share


@dataclass(frozen=True)
class Options:
    """How a run is done here. ``data`` is where its pictures are, one place or one for each label of a data set."""

    data: str | Mapping[str, str] | None = None
    device: str = "auto"
    threads: int = 1
    memory_gb: float | None = None
    images: int | None = None
    checkpoint: Mapping[str, str] | None = None
    """Files of weights by the label of a model, where no hub can be reached."""

    def path(self, label: str) -> str | None:
        """Return where the pictures of a data set are, if it was said."""
        return self.data.get(label) if isinstance(self.data, Mapping) else self.data

    def to_json(self) -> dict[str, Any]:
        return {"data": self.data, "images": self.images, "checkpoint": dict(self.checkpoint or {})}


class Part:
    """One data set of a protocol, with the models and metrics that belong to it."""

    def __init__(self, protocol: Protocol, options: Options) -> None:
        self.protocol, self.options = protocol, options

    @cached_property
    def pictures(self) -> SourceImages:
        wanted = self.protocol.data
        more: dict[str, Any] = {} if wanted.split is None else {"split": wanted.split}
        source = open_source(
            wanted.source,
            self.options.path(wanted.label) or wanted.path,
            images=wanted.images if self.options.images is None else self.options.images,
            choose=wanted.choose,
            seed=wanted.seed,
            listed=wanted.names,
            **more,
        )
        return SourceImages(source)

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the pictures by their digests; every file is read for it."""
        entries = self.pictures.source.entries
        return {digest: entry.name for digest, entry in zip(self.pictures.digests, entries, strict=True)}

    @property
    def listed(self) -> list[list[Any]]:
        """Which pictures are wanted and the groups of those that have one, for those who cannot open them."""
        return [list(self.pictures.digests), list(self.pictures.source.groups or ())]

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Where in the source each name is; nothing is read for it."""
        return {entry.name: number for number, entry in enumerate(self.pictures.source.entries)}

    def sample(self, name: str, digest: str, model: VisionModel) -> Sample:
        """Read a picture, which must be the one that was planned with."""
        source, number = self.pictures.source, self.numbers.get(name)
        if number is None or digest_of_entry(source.entries[number]) != digest:
            raise VitreousError(changed(name, source.word, number is None))
        return source.sample(model, number)

    def method(self, text: str) -> Method | ExternalExplainer:
        """Return what a row of this protocol means; what only the files of a run name is not imported."""
        return method_of(text, self.protocol.methods.values())

    def check(self) -> None:
        """Refuse what cannot be understood before a model is loaded."""
        for text in self.protocol.methods.values():
            self.method(text)
        for text in self.protocol.evaluation.metrics:
            get_metric(text)

    def setting(self, spec: ModelSpec, model: VisionModel) -> RunConfig:
        """Fix every number of the units of one model."""
        judge, source, size = self.protocol.evaluation, self.pictures.source, model.preprocess.size
        methods = self.protocol.methods_of(spec)
        methods |= {name: name for name in defaults.CONTROLS if judge.controls and name not in methods}
        hows = {name: self.method(spec) for name, spec in methods.items()}
        metrics = {spec: get_metric(spec) for spec in judge.metrics}
        memory_gb = judge.memory_gb if self.options.memory_gb is None else self.options.memory_gb
        sizes = with_batch_sizes(EvaluationConfig(), model, (size[0], size[1]), judge.batch_size, memory_gb)
        return RunConfig(
            label=spec.label,
            data=self.protocol.data.label,
            model=dataclasses.asdict(spec),
            fingerprint=model.fingerprint,
            dtype=str(model.dtype).removeprefix("torch."),
            device=model.device.type,
            size=(size[0], size[1]),
            preprocess=model.preprocess.to_json(),
            methods=methods,
            method_digests={name: mark_of(methods[name], how) for name, how in hows.items()},
            metrics={name: judged.spec for name, judged in metrics.items()},
            metric_digests={name: judged.code for name, judged in metrics.items() if judged.code},
            modes=tuple(sorted({judged.explain_class for judged in metrics.values()})),
            target=judge.target,
            has_labels=source.has_labels,
            output=judge.output,
            class_subset=source.classes if self.protocol.data.class_subset == "own" else None,
            precision=judge.precision if model.device.type == "cuda" else "float32",
            interpolation=judge.interpolation,
            tie_breaking=judge.tie_breaking,
            nan_policy=judge.nan_policy,
            least_confidence=self.protocol.data.least_confidence,
            memory_gb=sizes.memory_gb,
            images_per_unit=judge.images_per_unit
            or (min(sizes.images_per_unit, _ON_A_CPU) if model.device.type == "cpu" else sizes.images_per_unit),
            attribution_batch=sizes.attribution_batch,
            forward_batch=sizes.forward_batch,
            threads=self.options.threads,
        )


def check_labels(options: Options, protocols: Sequence[Protocol]) -> None:
    """Refuse places and weights for labels that no model or data set of these protocols has."""
    models = list(dict.fromkeys(model.label for protocol in protocols for model in protocol.models))
    sets = list(dict.fromkeys(data.label for protocol in protocols for data in (protocol.data, *protocol.also)))
    places = options.data if isinstance(options.data, Mapping) else {}
    for option, noun, labels, known in (
        ("checkpoint", "model", options.checkpoint or {}, models),
        ("data", "data set", places, sets),
    ):
        for label in labels:
            if label not in known:
                text = f"--{option} {one_line(label)}=…: {protocols[0].name} has no {noun} {one_line(repr(label))}"
                if known == [""]:
                    raise VitreousError(f"{text}, only one without a label: give --data PATH")
                listed = ", ".join(one_line(each) for each in known)
                raise VitreousError(f"{text}; there is {listed}{nearest(label, known)}")


def changed(name: str, word: str, lost: bool) -> str:
    """Return in a line that a picture is not the one that was planned with."""
    if lost:
        return f"{one_line(name)}, which this run was planned with, is not among the pictures of {word} any more"
    return f"{one_line(name)} of {word} has changed since this run was planned: picture, label or truth"
