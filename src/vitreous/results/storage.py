"""Results as text and files: what all of them share, what an explanation holds, and what tells one from all others."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import platform
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints
from weakref import ref

import numpy as np

from vitreous import __version__
from vitreous import io as disk
from vitreous.errors import VitreousError
from vitreous.html import render
from vitreous.methods import Method
from vitreous.models import Snapshot, VisionModel
from vitreous.tracing import Target

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

Rows = Sequence[Sequence[str]]
"""A table as text, the first row its head."""
MAX_BYTES = 2**31
"""Of a file that is read."""
_NUMBERS = re.compile(r"\[\s*\n([-\d.eE+,\s]|null)*\]")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


# -- tables as text ------------------------------------------------------------------------------------


def aligned(rows: Rows) -> str:
    """Return the rows in columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def text_rows(rows: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return the rows as text: all digits of a number, nothing for NaN."""
    return [[("" if math.isnan(v) else repr(v)) if isinstance(v, float) else str(v) for v in row] for row in rows]


def comma_separated(rows: Sequence[Sequence[Any]]) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(text_rows(rows))
    return text.getvalue()


def number_text(value: float, form: str = ".2f") -> str:
    """Return a number as printed; a dash where there is none."""
    return "-" if math.isnan(value) else format(value, form)


def estimate_text(value: float, interval: Sequence[float], form: str = ".2f") -> str:
    """Return a number with its interval as printed; a dash where there is none."""
    lower, upper = (number_text(end, form) for end in interval)
    return "-" if math.isnan(value) else f"{value:{form}} [{lower}, {upper}]"


def markdown(rows: Rows) -> str:
    """Return the rows as a table in Markdown, the first one its head."""
    head, *body = [[re.sub(r"([|\\`*_<])", r"\\\1", " ".join(cell.split())) for cell in row] for row in rows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def latex(rows: Rows) -> str:
    """Return the rows as a ``tabular`` that needs no package, the first one its head."""
    head, *body = [" & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in row) + r" \\" for row in rows]
    columns = "l" + "r" * (len(rows[0]) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def add_degenerate(rows: list[list[str]], head: str, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Add a column that says how many maps of each method are strange, where any is; the first row is the head."""
    if any(sum(by_kind.values()) for by_kind in counts.values()):
        rows[0].append(head)
        for row in rows[1:]:
            row.append(", ".join(f"{n} {kind}" for kind, n in counts[row[0]].items() if n))


def html_table(rows: Rows, caption: str = "") -> str:
    """Return the rows for a notebook, the first one the head."""
    return render("table.html", head=rows[0], rows=rows[1:], caption=caption)


# -- what results share --------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """Return plain data, records and arrays too; a number that is not finite is ``None``."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(kind: Any, data: Any) -> Any:
    """Return the value of a type of which ``to_plain`` made this: records, arrays, tuples and mappings of numbers."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: from_plain(hints[name], item) for name, item in data.items()})
    if origin is UnionType:
        return None if data is None else from_plain(inner[0], data)  # the other type is None
    if origin is Mapping:
        return {name: from_plain(inner[1], item) for name, item in data.items()}
    if origin is tuple:
        return tuple(from_plain(inner[0], item) for item in data)
    if origin is np.ndarray:
        return np.array(data, np.float64)
    return math.nan if kind is float and data is None else data


class ResultBase:
    """A result that prints as a table, shows itself in a notebook, and can be saved and loaded.

    A subclass is a dataclass with ``rows`` (the table as printed, the first row its head) and ``summary`` (how much
    there is, in a few words). It is written field by field, unless it has a ``to_json`` and ``from_json`` of its own.
    """

    schema: ClassVar[str]
    noun: ClassVar[str]

    @property
    def summary(self) -> str:
        """How much there is, in a few words."""
        raise NotImplementedError

    def rows(self) -> list[list[str]]:
        """Return the table as printed, the first row its head."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        return {"schema": self.schema, **to_plain(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the result whose ``to_json`` this is."""
        result: Self = from_plain(cls, {name: item for name, item in data.items() if name != "schema"})
        return result

    def to_csv(self) -> str:
        """Return the table as CSV."""
        return comma_separated(self.rows())

    def to_markdown(self) -> str:
        """Return the table as printed, in Markdown."""
        return markdown(self.rows())

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything as ``.json``, or the numbers as ``.csv``, whole or not at all; return the path."""
        path = Path(path)
        if path.suffix not in (".json", ".csv"):
            raise VitreousError(f"{path} must end in .json or .csv")
        text = _json_text(self.to_json()) if path.suffix == ".json" else self._file_csv()
        disk.write_file(path, text.encode(errors="surrogateescape"), overwrite=overwrite)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what was saved as ``.json``."""
        data = disk.read_json(path, MAX_BYTES)
        try:
            if data.get("schema") != cls.schema:
                raise VitreousError(f"{path} is no {cls.noun} of the schema {cls.schema}, but {data.get('schema')!r}")
            return cls.from_json(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise VitreousError(f"{path} is no {cls.noun}: {type(error).__name__} {error}") from None

    def _file_csv(self) -> str:
        return self.to_csv()

    def __str__(self) -> str:
        return aligned(self.rows())

    def __repr__(self) -> str:
        return f"{self.noun[:1].upper()}{self.noun[1:]} of {self.summary}\n{self}"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), self.summary)


def _json_text(data: Any) -> str:
    """Return JSON with a line for every list of numbers."""
    text = json.dumps(data, indent=1, allow_nan=False)
    return _NUMBERS.sub(lambda match: re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]"), text) + "\n"


# -- what a result is an answer to ---------------------------------------------------------------------


@dataclass(frozen=True)
class ResultIdentity:
    """Everything that can change a number of an explanation but its image: two that differ are two results.

    The weights are read when a digest is first needed. ``target`` is ``None`` for the predicted class.
    """

    model: Snapshot
    dtype: str
    device: str
    method: str
    target: int | None
    contrast: tuple[int, ...]
    output: str
    class_subset: tuple[int, ...] | None
    compare_classes: tuple[int, ...]
    grid: str | None
    seed: int

    @classmethod
    def of(
        cls,
        model: VisionModel,
        method: Method,
        target: Target,
        image: int = 0,
        grid: str | None = None,
        seed: int = 0,
        snapshot: Snapshot | None = None,
    ) -> ResultIdentity:
        """Return what explaining one image of a target means; ``snapshot`` is what the model was when that was done."""
        compare = () if target.compare_classes is None else target.compare_classes[image].tolist()
        return cls(
            model=snapshot or Snapshot.of_question(model),
            dtype=str(model.dtype),
            device=model.device.type,
            method=method.fingerprint,
            target=None if target.classes is None else int(target.classes[image]),
            contrast=() if target.contrast is None else tuple(target.contrast[image].tolist()),
            output=" and ".join(method.outputs(target.output)),
            class_subset=target.class_subset,
            compare_classes=tuple(index for index in compare if index >= 0),
            grid=grid,
            seed=seed,
        )

    @cached_property
    def weights(self) -> str:
        """The identity of the model."""
        return str(self.model.identity)

    def digest(self, image: str, target: int | None) -> str:
        """Return the digest of the result for one image and the class that was explained in the end."""
        names = ("method", "contrast", "output", "class_subset", "compare_classes", "grid", "seed")
        model = {"weights": self.weights, "dtype": self.dtype, "device": self.device}
        facts = {"facts": model, "target": target, "picture": image, **{name: getattr(self, name) for name in names}}
        return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def to_json(self, image: str, target: int | None) -> dict[str, str]:
        """Return what a manifest has of it."""
        return {"request": self.digest(image, target), "image": image, "weights": self.weights}

    def matches(self, manifest: Mapping[str, Any], image: str) -> bool:
        """Whether a manifest is that of this explanation of an image."""
        try:
            target, predicted = manifest["target"], manifest["prediction"]["target"]
            digest = manifest["identity"]["request"]
        except (KeyError, TypeError):
            return False
        wanted = predicted if self.target is None else self.target
        return bool(target == wanted and digest == self.digest(image, target))


# -- what an explanation holds --------------------------------------------------------------------------


class ClassProbability(NamedTuple):
    """A class by index and name, and how probable the model finds it.

    ``target`` and ``probability`` are ``None`` where a function of the output is explained, and ``label`` is its name.
    """

    target: int | None
    label: str
    probability: float | None

    def __str__(self) -> str:
        return self.label if self.probability is None else f"{self.label} ({self.probability:.3f})"


@dataclass(frozen=True)
class ExplanationRequest:
    """What was asked of a model about an image, beside the class.

    ``method`` is the shortest spec and ``settings`` have every parameter of it. The softmax was restricted to
    ``class_subset``; ``compare_classes`` were to be compared. ``requested_output`` is what was asked for: a method may
    explain another output of its own.
    """

    model: str
    method: str
    settings: Mapping[str, Any]
    seed: int = 0
    requested_output: str = "logit"
    contrast: tuple[int, ...] = ()
    contrast_classes: tuple[str, ...] = ()
    class_subset: tuple[int, ...] = ()
    compare_classes: tuple[int, ...] = ()

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> ExplanationRequest:
        """Return the request that a manifest records."""
        request: ExplanationRequest = from_plain(cls, {name: manifest[name] for name in cls.__dataclass_fields__})
        return request


class Origin(NamedTuple):
    """What made an explanation in this process; the model is not kept alive for it, ``snapshot`` is what it was."""

    model: ref[VisionModel | nn.Module]
    method: Method
    snapshot: Snapshot


# -- files of an explanation ---------------------------------------------------------------------------


def read_map(data: bytes) -> np.ndarray[Any, Any]:
    """Return a map that means something: real, finite, ``[h, w]``; its header is held against what is there."""
    file = io.BytesIO(data)
    kind = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if kind == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if len(shape) != 2 or 0 in shape or dtype not in (np.float32, np.float64):
        raise ValueError(f"a map is [h, w] in float32 or float64, not {list(shape)} of {dtype}")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"it is not as long as {list(shape)} of {dtype}")
    flat: np.ndarray[Any, Any] = np.frombuffer(data, dtype, offset=file.tell())
    array: np.ndarray[Any, Any] = flat.reshape(shape, order="F" if fortran else "C").copy()
    if not np.isfinite(array).all():
        raise ValueError("the map has values that are not finite")
    return array


def read_extras(data: bytes) -> dict[str, Any]:
    """Return the arrays of an archive of bounded size."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise ValueError(f"the extras take {size} bytes")
    extras = dict(np.load(io.BytesIO(data), allow_pickle=False))
    for name, array in extras.items():
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{name} holds {array.dtype}")
    return extras


def refuse_constant(text: str) -> float:
    """Refuse a constant of JSON that is no number."""
    raise ValueError(f"{text} is no number")


def versions() -> dict[str, str]:
    """Return the versions of what an explanation is made with."""
    by_package = {"python": platform.python_version(), "vitreous": __version__}
    for package in ("torch", "timm", "numpy", "pillow"):
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            by_package[package] = "unknown"
    return by_package
