"""Several explanations of one image side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous import io as disk
from vitreous import viz as show
from vitreous.errors import VitreousError
from vitreous.html import figure
from vitreous.registry.defaults import display_name
from vitreous.results.explanation import PERCENTILE, Explanation, comparison_text

__all__ = ["Comparison"]

_VALUES = {"prob": "probability", "logprob": "log-probability", "callable": "value of the function"}


class Comparison(Sequence[Explanation]):
    """Several explanations of one image side by side: one row per target, one column per method."""

    def __init__(self, rows: Sequence[Sequence[Explanation]]) -> None:
        self.rows = [list(row) for row in rows]
        self._all = [each for row in self.rows for each in row]

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return comparison_text(self)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            found = [each for each in self._all if index in (each.method, display_name(each.method))]
            if not found:
                raise KeyError(index)
            return found[0]
        return self._all[index]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._all)

    def panel(
        self,
        tile: int = show.TILE,
        percentile: float = PERCENTILE,
        scale: Any = "each",
        columns: int = 4,
        zoom: float = 1.0,
    ) -> Image.Image:
        """Return one labelled picture; the arguments are those of ``sheet``."""
        return self.sheet(tile, percentile, scale, columns, zoom).image()

    def sheet(
        self,
        tile: int = show.TILE,
        percentile: float = PERCENTILE,
        scale: Any = "each",
        columns: int = 4,
        zoom: float = 1.0,
    ) -> show.Sheet:
        """Return the panel as a page on which text is text, at most ``columns`` tiles wide.

        ``tile`` is the longer side of each picture in pixels; ``zoom=2`` doubles that and all text. ``scale``: every
        map has a colour scale of its own (``"each"``), maps of one method share one (``"group"``), or all
        (``"panel"``).
        """
        if columns < 1:
            raise VitreousError(f"columns={columns} must be at least 1")
        rows: list[list[show.Cell]] = []
        titles: list[str] = []
        for row in self.rows:
            first = row[0]
            said = f"said: {first.prediction.label} ({first.prediction.probability:.2f})"
            cells = [show.Cell(first.image, None, first.name, said), *map(_cell, row)]
            across = math.ceil(len(cells) / math.ceil(len(cells) / columns))  # lines of equal length
            lines = [cells[start : start + across] for start in range(0, len(cells), across)]
            rows += lines
            titles += [next((each for each in row if each.class_specific), first).title, *[""] * (len(lines) - 1)]
        try:
            return show.sheet(rows, self._all[0].model, percentile, tile, scale, titles, zoom)
        except ValueError as error:
            raise VitreousError(str(error)) from error

    def show(self) -> None:
        """Show the panel."""
        show.display(self.panel())

    def save(self, path: str | Path, *, overwrite: bool = False, **look: Any) -> Path:
        """Write the panel as one picture, SVG and PDF with text as text; further arguments are those of ``sheet``."""
        disk.check_file(path, overwrite)
        picture = show.encoded(self.sheet(**look), path)
        disk.write_file(path, picture, overwrite=overwrite)
        return Path(path)

    def _repr_html_(self) -> str:
        return figure(self.panel(), self._all[0].model)


def _cell(each: Explanation) -> show.Cell:
    """A tile that says which method explains what of the class."""
    if not each.class_specific:
        note = "the same for every class"
    else:
        note = " and ".join(_VALUES.get(value, value) for value in each.output.split(" and "))
        note += "; the sign is a convention" if each.signed is False else ""
    return show.Cell(each.image, each.map.numpy(), display_name(each.method), note, each.method, each.signed)
