"""Protocol files: models, pictures, methods, metrics and the numbers of a paper's table, as one small TOML file.

``shipped()`` names those that come along, ``read`` takes one of these names or a path. A file is checked to the last
word before anything runs: every complaint is one line that names the file, the key and the value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, nearest, one_line

__all__ = [
    "CHOOSE",
    "PRECISIONS",
    "REQUIRES",
    "SCHEMA",
    "SOURCES",
    "DataSpec",
    "EvaluationSpec",
    "ModelSpec",
    "Protocol",
    "Published",
    "add_model",
    "protocol_of_json",
    "read",
    "replace_model",
    "shipped",
    "with_models",
]

SCHEMA = "vitreous.protocol/1"
SOURCES = (
    *("folder", "imagefolder", "csv", "json", "hf", "world"),
    *("pets", "cifar10", "cifar100", "mura", "coco", "funnybirds"),
    *("imagenet-val", "imagenet-a", "imagenet-r", "imagenet-s", "imagenet-segmentation"),
    *("quad-imagenet", "part-quad-imagenet"),
)
PRECISIONS = ("float32", "float16", "bfloat16")
CHOOSE = ("first", "random", "per-class", "listed")
REQUIRES = {
    "weights": "weights that are not public; hand in your own with --checkpoint LABEL=FILE",
    "data": "a data set that is not public",
    "training": "models that are trained first",
}
_FOLDER = Path(__file__).parent / "protocols"


@dataclass(frozen=True)
class ModelSpec:
    """A model of the table: what the paper calls it, what ``vt.load`` does, and how pictures are prepared for it.

    ``resize`` is the side that pictures are brought to before ``size`` is cut out, ``crop`` how: ``center`` (the
    shorter side), ``squash`` (both sides) or ``border`` (the longer one). What is left out is the model's own.
    ``methods`` are the labels of the rows it has, all where it is empty; ``requires`` is what it needs beforehand.
    """

    label: str
    name: str
    checkpoint: str | None = None
    size: int | None = None
    resize: int | None = None
    crop: str | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSpec:
    """Pictures: where they come from, how many (0: all) and which.

    ``path`` is a folder, a file or a name, where the source has no place of its own, ``names`` a text file for
    ``choose = "listed"``. ``classes = "own"`` restricts the softmax to those of the data set. ``least_confidence``
    leaves out, for each model, pictures to whose true class it gives a lower probability. ``models`` and ``metrics``
    are what of the protocol belongs to these pictures, all where they are empty.
    """

    source: str
    label: str = ""
    images: int = 0
    choose: str = "first"
    seed: int = 0
    path: str | None = None
    split: str | None = None
    names: str | None = None
    class_subset: str | None = None
    least_confidence: float | None = None
    models: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluationSpec:
    """What is measured and how; ``reference`` is the row that others are tested against, ``unit`` pictures of a unit.

    ``target`` is the explained class, unless a metric has its own: ``pred``, ``label``, or ``given`` by the data.
    """

    metrics: tuple[str, ...]
    target: str = "pred"
    seeds: tuple[int, ...] = (0,)
    reference: str | None = None
    controls: bool = True
    output: str = "logit"
    precision: str = "float32"
    interpolation: str = "bilinear"
    tie_breaking: str = "random"
    nan_policy: str = "exclude"
    images_per_unit: int | None = None
    batch_size: int | None = None
    memory_gb: float | None = None


@dataclass(frozen=True)
class Published:
    """A printed cell. ``value`` is in the metric's own unit, ``printed`` the number as it stands in the paper.

    ``gain`` is a printed change in percent against the row ``over``. Without a value, ``source`` says where the paper
    shows it ("figure only"); model and method may then be empty, which means all.
    """

    metric: str
    model: str = ""
    method: str = ""
    data: str = ""
    value: float | None = None
    printed: float | None = None
    error: float | None = None
    gain: float | None = None
    over: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Protocol:
    """A protocol as it was read. ``data`` is its first data set, ``also`` are others of the same table.

    ``methods`` are spellings by the label of their row; ``absent`` are rows of the paper that have none here, with the
    reason. ``requires`` is what all of it needs before it can run: words of ``REQUIRES``.
    """

    name: str
    title: str
    models: tuple[ModelSpec, ...]
    data: DataSpec
    evaluation: EvaluationSpec
    methods: Mapping[str, str]
    paper: str | None = None
    table: str | None = None
    note: str | None = None
    requires: tuple[str, ...] = ()
    also: tuple[DataSpec, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    rows: str = "methods"
    columns: tuple[str, ...] = ("models", "metrics")
    figures: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    @property
    def cells(self) -> tuple[Published, ...]:
        """The printed cells, without those that the paper only draws."""
        return tuple(cell for cell in self.published if cell.value is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """What must be there before anything of it can run: nothing, where one of the models can."""
        if self.requires or all(model.requires for model in self.models):
            words = (*self.requires, *(word for model in self.models for word in model.requires))
            return tuple(dict.fromkeys(words))
        return ()

    def with_weights(self, labels: Collection[str]) -> Protocol:
        """Return it for one who hands in weights for some models, by their labels: these require none any more.

        Where all of it requires weights, only these models can run.
        """
        if not any(model.label in labels for model in self.models):
            return self
        common = tuple(word for word in self.requires if word == "weights")
        models = tuple(
            replace(model, requires=tuple(word for word in model.requires if word != "weights"))
            if model.label in labels
            else replace(model, requires=tuple(dict.fromkeys((*model.requires, *common))))
            for model in self.models
        )
        return replace(self, models=models, requires=tuple(word for word in self.requires if word != "weights"))

    def runnable(self) -> Protocol:
        """Return it with the models that can run; refuse where there is none."""
        if self.missing:
            needs = "; ".join(f"{word}: {REQUIRES[word]}" for word in self.missing)
            raise VitreousError(f"{self.name} cannot run here, it requires {needs}")
        return with_models(self, tuple(model for model in self.models if not model.requires))

    def methods_of(self, model: ModelSpec) -> dict[str, str]:
        """Return the spellings of the rows that a model has, by their labels."""
        return {label: how for label, how in self.methods.items() if not model.methods or label in model.methods}

    def parts(self) -> tuple[Protocol, ...]:
        """Return one protocol per data set, each with its own models, metrics and cells, and nothing in ``also``."""
        return tuple(self._part(data) for data in (self.data, *self.also))

    def _part(self, data: DataSpec) -> Protocol:
        return replace(
            self,
            data=data,
            also=(),
            models=tuple(model for model in self.models if not data.models or model.label in data.models),
            evaluation=replace(self.evaluation, metrics=data.metrics or self.evaluation.metrics),
            published=tuple(cell for cell in self.published if cell.data == data.label),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as plain data."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return {"schema": SCHEMA, **plain}


def shipped() -> list[str]:
    """Return the names of the protocols that come along."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def read(name_or_path: str | Path) -> Protocol:
    """Read a protocol that comes along, by its name, a file of one's own, or the JSON file that a report wrote."""
    from vitreous.benchmark.protocol_io import read_file, read_record  # which know what is defined here

    known = shipped()
    if isinstance(name_or_path, str) and name_or_path in known:
        return read_file(_FOLDER / f"{name_or_path}.toml")
    path = Path(name_or_path)
    if not path.is_file():
        what = one_line(repr(str(name_or_path)))[:200]
        raise VitreousError(f"{what} is no file and no protocol that comes along{nearest(str(name_or_path), known)}")
    return read_record(path) if path.suffix == ".json" else read_file(path)


def replace_model(protocol: Protocol, name: str, size: int | None = None) -> Protocol:
    """Return the same protocol with another model, by any name that ``vt.load`` knows.

    It prepares pictures as its own weights want, in another ``size`` if one is given. Rows and data sets are those of
    the model with the most rows, of those that can run. Published cells stay as they are: they are those of others.
    """
    like = _fullest(protocol)
    sets = [each for each in (protocol.data, *protocol.also) if not each.models or like.label in each.models]
    sets = [replace(set_, models=()) for set_ in sets]
    needs = tuple(word for word in protocol.requires if word not in ("weights", "training"))
    model = ModelSpec(label=name, name=name, size=size, methods=like.methods)
    return replace(protocol, models=(model,), data=sets[0], also=tuple(sets[1:]), requires=needs)


def add_model(protocol: Protocol, model: str | ModelSpec, size: int | None = None) -> Protocol:
    """Return the same protocol with one more model, by its name or its spec; rows and data as for ``replace_model``."""
    like = _fullest(protocol)
    if isinstance(model, str):
        model = ModelSpec(label=model, name=model, size=size, methods=like.methods)
    label = model.label

    def seen(data: DataSpec) -> DataSpec:
        known = like.label in data.models and label not in data.models
        return replace(data, models=(*data.models, label)) if known else data

    also = tuple(seen(each) for each in protocol.also)
    return replace(protocol, models=(*protocol.models, model), data=seen(protocol.data), also=also)


def _fullest(protocol: Protocol) -> ModelSpec:
    """Return the model with the most rows, of those that can run."""
    ready = [model for model in protocol.models if not model.requires] or list(protocol.models)
    return max(ready, key=lambda model: len(model.methods) or math.inf)


def with_models(protocol: Protocol, models: tuple[ModelSpec, ...]) -> Protocol:
    """Return a protocol with some of its models, and the data sets that belong to them."""
    labels = [model.label for model in models]
    sets = [each for each in (protocol.data, *protocol.also) if not each.models or set(labels) & set(each.models)]
    if not sets:
        raise VitreousError(f"{protocol.name} has no data for {', '.join(labels)}")
    return replace(protocol, models=models, data=sets[0], also=tuple(sets[1:]))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def protocol_of_json(data: Any, where: str = "the protocol of the run") -> Protocol:
    """Return the protocol that a run was begun with; ``where`` is what a complaint calls its file."""
    from vitreous.benchmark.protocol_io import recorded_protocol

    return recorded_protocol(data, where)
