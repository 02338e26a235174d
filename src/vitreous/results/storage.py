"""Results as text and files: what all of them share, what tells one from all others, and the folder that files them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vitreous import io as disk
from vitreous.datasets.images import file_digest
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.html import render
from vitreous.methods import Method, get_method, resolve_method
from vitreous.models import Snapshot, VisionModel, wrap
from vitreous.registry.defaults import display_name
from vitreous.tracing import Target, TargetSpec

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from vitreous.results.explanation import Explanation

__all__ = [
    "Archive",
    "ResultIdentity",
    "MAX_BYTES",
    "ResultBase",
    "aligned",
    "comma_separated",
    "html_table",
    "latex",
    "markdown",
    "plain",
    "read_extras",
    "read_map",
]

Rows = Sequence[Sequence[str]]
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


def comma_separated(rows: Rows) -> str:
    """Return the rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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


def html_table(rows: Rows, caption: str = "") -> str:
    """Return the rows for a notebook, the first one the head."""
    return render("table.html", head=rows[0], rows=rows[1:], caption=caption)


# -- what results share --------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return plain data, arrays as lists; a number that is not finite is ``None``."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class ResultBase:
    """A result that prints as a table, shows itself in a notebook, and can be saved and loaded.

    A subclass gives ``to_json``, ``from_json``, ``rows`` (the table as printed, the first row its head) and ``summary``
    (how much there is, in a few words).
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
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the result whose ``to_json`` this is."""
        raise NotImplementedError

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
        with _reading(path, cls.schema, cls.noun) as data:
            return cls.from_json(data)

    def _file_csv(self) -> str:
        return self.to_csv()

    def __str__(self) -> str:
        return aligned(self.rows())

    def __repr__(self) -> str:
        return f"{self.noun[:1].upper()}{self.noun[1:]} of {self.summary}\n{self}"

    def _repr_html_(self) -> str:
        return html_table(self.rows(), self.summary)


@contextmanager
def _reading(path: str | Path, schema: str, noun: str) -> Iterator[dict[str, Any]]:
    """Give the data of a JSON file of a schema; what is wrong with it is one line that names the file."""
    data = disk.read_json(path, MAX_BYTES)
    try:
        if data.get("schema") != schema:
            raise VitreousError(f"{path} is no {noun} of the schema {schema}, but {data.get('schema')!r}")
        yield data
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VitreousError(f"{path} is no {noun}: {type(error).__name__} {error}") from None


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
        facts = {
            "facts": {"weights": self.weights, "dtype": self.dtype, "device": self.device},
            "method": self.method,
            "target": target,
            "contrast": self.contrast,
            "output": self.output,
            "class_subset": self.class_subset,
            "compare_classes": self.compare_classes,
            "grid": self.grid,
            "seed": self.seed,
            "picture": image,
        }
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


class Archive:
    """Explanations in a folder: ``IMAGE/METHOD/CLASS``, one folder for each result, names that a person can read.

    A result is never known by its name: two images of one stem get folders of their own (``cat``, ``cat-2``), and so do
    two results whose names are alike (another seed, another model). What is what stands in the manifests.

    Parameters
    ----------
    out : str or Path
        The folder. It is created when the first explanation is saved.

    Examples
    --------
    >>> archive = vt.Archive(tmp_path / "explanations")
    >>> folder = archive.save(vt.explain(model, image, "ixg"))
    >>> folder.parent.name
    'ixg'
    """

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)

    def check(self) -> None:
        """Raise before the work where nothing can be written."""
        disk.check_folder(self.out / "explanation")

    def unique(self, paths: Sequence[Path]) -> list[Path]:
        """Return these image files without those that would go to the same place: the same bytes and name."""
        return list({(path.name, _bytes(path) or str(path)): path for path in reversed(paths)}.values())[::-1]

    @staticmethod
    def identity(
        model: VisionModel | nn.Module,
        method: str | Method | None = None,
        target: int | str | None = None,
        *,
        effort: str | None = None,
        contrast: TargetSpec = None,
        output: str = "logit",
        class_subset: Sequence[int | str] | None = None,
        grid: str | None = None,
        seed: int = 0,
    ) -> ResultIdentity:
        """Return what tells the explanation that ``explain`` with these arguments would make from all others.

        Parameters
        ----------
        model, method, target, effort, contrast, output, class_subset, grid, seed
            As in ``explain``.
        """
        vision_model = wrap(model)
        spec = Target.of(vision_model, 1, target, contrast, output, class_subset)
        if spec.function is not None:
            raise TargetError("a callable target has no identity; ask for a class")
        return ResultIdentity.of(vision_model, resolve_method(method, effort, vision_model), spec, grid=grid, seed=seed)

    def find(self, path: str | Path, identity: ResultIdentity) -> Path | None:
        """Return the folder of this explanation of an image file; ``None`` where it is not there.

        Parameters
        ----------
        path : str or Path
            The image file.
        identity : ResultIdentity
            From ``identity``. Identities that were made before the first search read the weights once.

        Examples
        --------
        >>> archive = vt.Archive(tmp_path / "found")
        >>> print(archive.find("photo.jpg", archive.identity(model, "ixg")))
        None
        """
        digest, stem = _bytes(Path(path)), self.out / disk.safe_name(Path(path).stem)
        for image_folder in _numbered(stem):
            if not os.path.lexists(image_folder):
                return None
            for folder in _results(image_folder):
                manifest = disk.manifest_of(folder)
                if manifest is not None and identity.matches(manifest, digest):
                    disk.recover(folder)
                    disk.recover(stem)
                    return folder
        raise AssertionError

    def save(self, explanation: Explanation, *, overwrite: bool = False, original: bool = False) -> Path:
        """Write an explanation to a folder of its own, and return that; the same result is replaced if allowed."""
        if explanation.identity is None:
            raise VitreousError(f"{explanation.name} cannot be filed: a callable target has no name of its own")
        stem = disk.safe_name(Path(explanation.name).stem)
        with disk.lock(self.out / stem):  # two writers do not take the same name for two things
            folder = self._folder(explanation, explanation.identity)
            return explanation.save_folder(folder, overwrite=overwrite, original=original)

    def _folder(self, explanation: Explanation, identity: Mapping[str, str]) -> Path:
        """Return the folder of this very result, or the first free one."""
        contrast = explanation.contrast_classes
        suffix = f"-not-{'-'.join(map(disk.slug, contrast))}" if contrast else ""
        image_folder = self._image_folder(explanation.name, identity["image"])
        base = image_folder / disk.slug(_method_name(explanation)) / disk.safe_name(
            disk.slug(explanation.label) + suffix
        )  # fmt: skip
        for folder in _numbered(base):
            disk.recover(folder)
            manifest = disk.manifest_of(folder)
            is_free = not os.path.lexists(folder) or (folder.is_dir() and not disk.unlisted_files(folder))
            if manifest is None and is_free:
                return folder
            if manifest is not None and _identity_of(manifest).get("request") == identity["request"]:
                return folder
        raise AssertionError

    def _image_folder(self, name: str, digest: str) -> Path:
        """Return the folder of an image: the first one that is its own or nobody's."""
        for folder in _numbered(self.out / disk.safe_name(Path(name).stem)):
            if os.path.lexists(folder) and not folder.is_dir():
                continue  # a file of the user's
            manifest = next((m for m in map(disk.manifest_of, _results(folder)) if m is not None), None)
            if manifest is None or (manifest.get("name"), _identity_of(manifest).get("image")) == (name, digest):
                return folder
        raise AssertionError


def _bytes(path: Path) -> str:
    """Return the digest of an image file; nothing if it cannot be read, which is an error when it is explained."""
    try:
        return file_digest(path)
    except ImageError:
        return ""


def _numbered(base: Path) -> Iterator[Path]:
    """Yield ``name``, ``name-2``, ``name-3`` …"""
    yield base
    for number in count(2):
        yield base.with_name(disk.safe_name(f"{base.name}-{number}"))


def _results(folder: Path) -> Iterator[Path]:
    """Yield the folders two levels down, where results are."""
    for method in sorted(folder.iterdir()) if folder.is_dir() else ():
        if method.is_dir():
            yield from (path for path in sorted(method.iterdir()) if path.is_dir())


def _method_name(explanation: Explanation) -> str:
    """Return the effort level or the spec, and the explained output unless it is the usual one or the method's own."""
    try:
        usual = " and ".join(get_method(explanation.method).outputs("logit"))
    except VitreousError:  # a method of the user's own, which no spec gives again
        usual = "logit"
    name = display_name(explanation.method)
    return name if explanation.output == usual else f"{name}-{explanation.output}"


def _identity_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    identity = manifest.get("identity")
    return identity if isinstance(identity, dict) else {}
