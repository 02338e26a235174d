"""Explanations as a page to read: pictures inline, every word as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vitreous import show
from vitreous.errors import VitreousError
from vitreous.results.comparison import Comparison
from vitreous.results.explanation import Explanation
from vitreous.words.defaults import known_as

__all__ = ["page"]


def page(shown: Explanation | Comparison | Sequence[Explanation]) -> str:
    """Return a page with the maps: one section for each picture, or for each target of a comparison."""
    if isinstance(shown, Comparison):
        return _of_comparison(shown)
    return _of_explanations([shown] if isinstance(shown, Explanation) else list(shown))


def _of_explanations(explanations: Sequence[Explanation]) -> str:
    if not explanations:
        raise VitreousError("there is nothing to show: give at least one explanation")
    by_picture: dict[str, list[Explanation]] = {}
    for each in explanations:
        by_picture.setdefault(each.source or each.name, []).append(each)
    sections = [_section(found) for found in by_picture.values()]
    models = ", ".join(dict.fromkeys(each.model for each in explanations))
    return show.report(f"What {models} saw", _lead(explanations), sections)


def _of_comparison(comparison: Comparison) -> str:
    first = comparison[0]
    sections = [_section(row) for row in comparison.rows]
    said = f"{first.model} said {first.prediction.label} ({first.prediction.probability:.2f})."
    return show.report(f"{first.name}, seen by {len(comparison.rows[0])} methods", said, sections)


def _lead(explanations: Sequence[Explanation]) -> str:
    methods = ", ".join(dict.fromkeys(known_as(each.method) for each in explanations))
    return f"{len(explanations)} maps by {methods}. Each has its own scale: its strongest patch is 1."


def _section(found: Iterable[Explanation]) -> show.Section:
    maps = list(found)
    first = maps[0]
    said = f"The model said {first.prediction.label} ({first.prediction.probability:.2f})."
    pictures = [(first.image, f"{first.name}, as the model sees it")]
    pictures += [(each.overlay(size=max(320, *each.image.size)), each.caption) for each in maps]
    given = "" if first.probability is None else f" {first.probability:.2f}"
    heading = f"{first.name}: why {first.label}?{given}" if len({each.label for each in maps}) == 1 else first.name
    return show.Section(heading, said, pictures)
