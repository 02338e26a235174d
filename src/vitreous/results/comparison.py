"""Several explanations of one image side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from vitreous import disk, show
from vitreous.results.explanation import PERCENTILE, Explanation, display
from vitreous.words.defaults import known_as

__all__ = ["Comparison"]


class Comparison(Sequence[Explanation]):
    """Several explanations of one image side by side: one row per target, one column per method."""

    def __init__(self, rows: Sequence[Sequence[Explanation]]) -> None:
        self.rows = [list(row) for row in rows]
        self._all = [each for row in self.rows for each in row]

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        methods = ", ".join(known_as(each.method) for each in self.rows[0])
        return f"Comparison({methods}; {', '.join(row[0].label for row in self.rows)})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            found = [each for each in self._all if index in (each.method, known_as(each.method))]
            if not found:
                raise KeyError(index)
            return found[0]
        return self._all[index]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._all)

    def panel(
        self, tile: int = 224, percentile: float = PERCENTILE, scale: Any = "group", columns: int = 8
    ) -> Image.Image:
        """Return one labelled picture, at most ``columns`` tiles wide; maps of one method share one colour scale."""
        rows: list[list[show.Cell]] = []
        for row in self.rows:
            first = row[0]
            said = f"said: {first.prediction.label} ({first.prediction.probability:.2f})"
            cells = [show.Cell(first.image, None, first.name, said)]
            for each in row:
                given = "" if each.probability is None else f" ({each.probability:.2f})"
                how, what = known_as(each.method), f"{each.label}{given}"
                cells.append(show.Cell(each.image, each._array, how, what, group=each.method))
            rows.extend(cells[start : start + columns] for start in range(0, len(cells), columns))
        first = self._all[0]
        return show.panel(rows, f"{first.model}, {first.value}", percentile, tile, scale)

    def show(self) -> None:
        """Show the panel."""
        display(self.panel())

    def save(self, path: str | Path, *, overwrite: bool = False, **look: Any) -> Path:
        """Write the panel as one picture; further arguments are those of ``panel``."""
        disk.check_file(path, overwrite)
        picture = show.encoded(self.panel(**look), path)
        disk.write_file(path, picture, overwrite=overwrite)
        return Path(path)

    def _repr_html_(self) -> str:
        return show.figure(self.panel(), self._all[0].model)
