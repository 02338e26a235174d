"""How far methods agree: the mean similarity of their maps of the same images, for every pair of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import disk
from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import Interval
from vitreous.metrics.curves import Array
from vitreous.results.formats import aligned, comma_separated, html_rows, markdown
from vitreous.show import figures

__all__ = ["SCHEMA", "Agreement"]

SCHEMA = "vitreous.agreement/1"


@dataclass(frozen=True, eq=False)
class Agreement:
    """A matrix of mean similarities ``[M, M]`` with the ends of their 95 % bootstrap intervals.

    ``per_image`` ``[n, M, M]`` is what every image has to say, NaN where one of the maps is not finite; ``None`` for
    similarities of whole sets of maps (CKA). ``by`` names the similarity, ``grid`` where the maps were compared.
    """

    methods: tuple[str, ...]
    images: tuple[str, ...]
    by: str
    grid: str
    matrix: Array
    low: Array
    high: Array
    per_image: Array | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, pair: tuple[str, str]) -> float:
        """Return the mean similarity of two methods."""
        return float(self.matrix[self._at(pair)])

    def interval(self, one: str, other: str) -> Interval:
        """Return the interval of that mean."""
        at = self._at((one, other))
        return Interval(float(self.low[at]), float(self.high[at]))

    def _at(self, pair: tuple[str, str]) -> tuple[int, int]:
        for word in pair:
            if word not in self.methods:
                raise VitreousError(f"no method {word!r} in this agreement{nearest(word, self.methods)}")
        return self.methods.index(pair[0]), self.methods.index(pair[1])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; NaN is ``None``."""
        arrays = {"mean": self.matrix, "low": self.low, "high": self.high}
        return {
            "schema": SCHEMA,
            "plan": dict(self.plan),
            "images": list(self.images),
            "methods": list(self.methods),
            "by": self.by,
            "grid": self.grid,
            **{name: _plain(each) for name, each in arrays.items()},
            "per_image": None if self.per_image is None else _plain(self.per_image),
        }

    @classmethod
    def load(cls, path: str | Path) -> Agreement:
        """Read an agreement that was saved as ``.json``."""
        try:
            data = json.loads(Path(path).read_bytes().decode(errors="surrogateescape"))
            if data.get("schema") != SCHEMA:
                raise VitreousError(f"{path} is no agreement of the form {SCHEMA}, but {data.get('schema')!r}")
            shape = (len(data["methods"]),) * 2
            mean, low, high = (np.array(data[name], np.float64).reshape(shape) for name in ("mean", "low", "high"))
            each = data["per_image"]
            per_image = None if each is None else np.array(each, np.float64).reshape(len(data["images"]), *shape)
            names = tuple(data["methods"]), tuple(data["images"]), data["by"], data["grid"]
            return cls(*names, mean, low, high, per_image, data["plan"])
        except OSError as error:
            raise VitreousError(f"{path} cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise VitreousError(f"{path} is no agreement: {type(error).__name__} {error}") from None

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything as ``.json``, or the pairs as ``.csv``, whole or not at all."""
        path = Path(path)
        if path.suffix not in (".json", ".csv"):
            raise VitreousError(f"{path} must end in .json or .csv")
        text = self.to_csv() if path.suffix == ".csv" else json.dumps(self.to_json(), allow_nan=False) + "\n"
        disk.write_file(path, text.encode(errors="surrogateescape"), overwrite=overwrite)
        return path

    def to_csv(self) -> str:
        """Return one line per pair of methods: mean, interval."""
        numbers = np.stack([self.matrix, self.low, self.high], axis=-1)
        rows = [
            [one, other, *("" if math.isnan(value) else repr(value) for value in numbers[i, j].tolist())]
            for i, one in enumerate(self.methods)
            for j, other in enumerate(self.methods)
            if i < j
        ]
        return comma_separated([["one", "other", "mean", "low", "high"], *rows])

    def plot(self, *, path: str | Path | None = None, overwrite: bool = False, width: str | float = "column") -> Any:
        """Return the matrix as a matplotlib figure; with a path, also write it."""
        note = f"{self.by} of maps on the {self.grid} grid, {len(self.images)} images."
        figure = figures.matrix(self.matrix, self.methods, "Agreement", note, width=width)
        if path is not None:
            figures.save(figure, path, overwrite=overwrite)
        return figure

    def to_markdown(self) -> str:
        """Return the matrix in Markdown."""
        return markdown(self._rows())

    def __str__(self) -> str:
        return aligned(self._rows())

    def __repr__(self) -> str:
        return f"Agreement of {self._size}\n{self}"

    def _repr_html_(self) -> str:
        return html_rows(self._rows(), self._size)

    @property
    def _size(self) -> str:
        return f"{len(self.methods)} methods by {self.by} on the {self.grid} grid, {len(self.images)} pictures"

    def _rows(self) -> list[list[str]]:
        cells = [["-" if math.isnan(value) else f"{value:.3f}" for value in row] for row in self.matrix.tolist()]
        return [["", *self.methods], *([name, *row] for name, row in zip(self.methods, cells, strict=True))]


def _plain(values: Array) -> Any:
    """Return numbers as nested lists."""
    return [_plain(each) for each in values] if values.ndim else None if np.isnan(values) else float(values)
