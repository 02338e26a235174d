"""Several explanations of one image side by side, and explanations as a page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from vitreous import io as disk
from vitreous import viz
from vitreous.errors import VitreousError, one_line
from vitreous.html import Section, figure, report
from vitreous.registry.defaults import display_name
from vitreous.results.explanation import PERCENTILE, Explanation

__all__ = ["Comparison", "to_html"]

_OUTPUTS = {"prob": "probability", "logprob": "log-probability", "callable": "value of the function"}


class Comparison(Sequence[Explanation]):
    """Several explanations of one image side by side: one row per target, one column per method.

    Made by ``vt.compare``. A sequence of explanations, row by row; a spec gives that of the first row.

    Parameters
    ----------
    rows : sequence of sequences of Explanation
        One row per target.

    Examples
    --------
    >>> compared = vt.compare(model, image, ["rollout", "ixg"])
    >>> len(compared), compared["ixg"].method
    (2, 'ixg')
    """

    def __init__(self, rows: Sequence[Sequence[Explanation]]) -> None:
        self.rows = [list(row) for row in rows]
        self._explanations = [explanation for row in self.rows for explanation in row]

    def __len__(self) -> int:
        return len(self._explanations)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._explanations)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str):
            return self._explanations[index]
        for explanation in self._explanations:
            if index in (explanation.method, display_name(explanation.method)):
                return explanation
        raise KeyError(index)

    def __repr__(self) -> str:
        first = self[0]
        lines = [
            f"Comparison of {len(self)} maps of {first.name} on {first.model}, which predicts {first.prediction}",
            f"methods: {', '.join(display_name(explanation.method) for explanation in self.rows[0])}",
            f"classes: {', '.join(str(row[0].explained) for row in self.rows)}",
        ]
        return "\n  ".join(one_line(line) for line in lines)

    def _repr_html_(self) -> str:
        return figure(self.panel(), self[0].model)

    def panel(self, *args: Any, **options: Any) -> Image.Image:
        """Return one labelled picture; the arguments are those of ``sheet``."""
        return self.sheet(*args, **options).image()

    def sheet(
        self,
        tile: int = viz.TILE,
        percentile: float = PERCENTILE,
        scale: Literal["each", "group", "panel"] = "each",
        columns: int = 4,
        zoom: float = 1.0,
    ) -> viz.Sheet:
        """Return the panel as a page on which text is text.

        Parameters
        ----------
        tile : int, default 320
            The longer side of each picture in pixels.
        percentile : float, default 99.0
            Of the sizes of the values: the strongest colour.
        scale : {"each", "group", "panel"}, default "each"
            Every map has a colour scale of its own, maps of one method share one, or all do.
        columns : int, default 4
            The most tiles in a line.
        zoom : float, default 1.0
            2 doubles the tiles and all text.

        Returns
        -------
        Sheet
            The page.
        """
        if columns < 1:
            raise VitreousError(f"columns={columns} must be at least 1")
        rows: list[list[viz.Cell]] = []
        titles: list[str] = []
        for row in self.rows:
            first = row[0]
            predicted = f"predicted: {first.prediction.label} ({first.prediction.probability:.2f})"
            cells = [viz.Cell(first.image, None, first.name, predicted), *map(_cell, row)]
            width = math.ceil(len(cells) / math.ceil(len(cells) / columns))  # lines of equal length
            lines = [cells[start : start + width] for start in range(0, len(cells), width)]
            rows += lines
            specific = next((explanation for explanation in row if explanation.class_specific), first)
            titles += [specific.title, *[""] * (len(lines) - 1)]
        try:
            return viz.sheet(rows, self[0].model, percentile, tile, scale, titles, zoom)
        except ValueError as error:
            raise VitreousError(str(error)) from error

    def show(self) -> None:
        """Show the panel."""
        viz.display(self.panel())

    def save(self, path: str | Path, *, overwrite: bool = False, **options: Any) -> Path:
        """Write the panel as one picture, SVG and PDF with text as text; return the path.

        Parameters
        ----------
        path : str or Path
            Where to: the ending says in which form.
        overwrite : bool, default False
            Replace what is there.
        **options
            The arguments of ``sheet``.
        """
        disk.check_file(path, overwrite)
        disk.write_file(path, viz.encoded(self.sheet(**options), path), overwrite=overwrite)
        return Path(path)


def _cell(explanation: Explanation) -> viz.Cell:
    """Return a tile that says which method explains what of the class."""
    note = "the same for every class"
    if explanation.class_specific:
        note = " and ".join(_OUTPUTS.get(output, output) for output in explanation.output.split(" and "))
        note += "; the sign is a convention" if explanation.signed is False else ""
    spec = explanation.method
    return viz.Cell(explanation.image, explanation.map.numpy(), display_name(spec), note, spec, explanation.signed)


def to_html(results: Explanation | Comparison | Sequence[Explanation]) -> str:
    """Return a page with the maps: one section for each image, or for each target of a comparison.

    Parameters
    ----------
    results : Explanation, Comparison or sequence of Explanation
        What to show.

    Returns
    -------
    str
        One self-contained page, pictures inline.

    Examples
    --------
    >>> page = vt.to_html(vt.explain(model, images[:2], "ixg"))
    >>> page.count("<section")
    2
    """
    explanations = [results] if isinstance(results, Explanation) else list(results)
    if not explanations:
        raise VitreousError("there is nothing to show: give at least one explanation")
    if isinstance(results, Comparison):
        first = results[0]
        lead = f"{first.model} predicts {first.prediction.label} ({first.prediction.probability:.2f})."
        title = f"{first.name}, explained by {len(results.rows[0])} methods"
        return report(title, lead, [_section(row) for row in results.rows])
    by_image: dict[str, list[Explanation]] = {}
    for explanation in explanations:
        by_image.setdefault(explanation.source or explanation.name, []).append(explanation)
    models = ", ".join(dict.fromkeys(explanation.model for explanation in explanations))
    methods = ", ".join(dict.fromkeys(display_name(explanation.method) for explanation in explanations))
    lead = f"{len(explanations)} maps by {methods}. Each has its own scale: its strongest patch is 1."
    return report(f"What {models} saw", lead, [_section(group) for group in by_image.values()])


def _section(explanations: Sequence[Explanation]) -> Section:
    first = explanations[0]
    text = f"The model predicts {first.prediction.label} ({first.prediction.probability:.2f})."
    images = [(first.image, f"{first.name}, as the model sees it")]
    images += [(one.overlay(size=max(320, *one.image.size)), one.caption) for one in explanations]
    probability = "" if first.probability is None else f" {first.probability:.2f}"
    is_one_class = len({one.label for one in explanations}) == 1
    heading = f"{first.name}: why {first.label}?{probability}" if is_one_class else first.name
    return Section(heading, text, images)
