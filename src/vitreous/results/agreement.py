"""How far methods agree: the mean similarity of their maps of the same images, for every pair of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bootstrap import Interval
from vitreous.metrics.curves import Array
from vitreous.results.formats import aligned, comma_separated, html_rows, markdown
from vitreous.results.records import plain, record, write
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
            **{name: plain(each) for name, each in arrays.items()},
            "per_image": None if self.per_image is None else plain(self.per_image),
        }

    @classmethod
    def load(cls, path: str | Path) -> Agreement:
        """Read an agreement that was saved as ``.json``."""
        with record(path, SCHEMA, "agreement") as data:
            shape = (len(data["methods"]),) * 2
            mean, low, high = (np.array(data[name], np.float64).reshape(shape) for name in ("mean", "low", "high"))
            each = data["per_image"]
            per_image = None if each is None else np.array(each, np.float64).reshape(len(data["images"]), *shape)
            names = tuple(data["methods"]), tuple(data["images"]), data["by"], data["grid"]
            return cls(*names, mean, low, high, per_image, data["plan"])

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write everything as ``.json``, or the pairs as ``.csv``, whole or not at all."""
        return write(path, {".json": self._json_text, ".csv": self.to_csv}, overwrite=overwrite)

    def _json_text(self) -> str:
        return json.dumps(self.to_json(), allow_nan=False) + "\n"

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
