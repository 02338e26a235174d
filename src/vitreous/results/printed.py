"""Results in a few lines of text: what a prompt shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.errors import one_line
from vitreous.words.defaults import known_as

if TYPE_CHECKING:
    from vitreous.results.comparison import Comparison
    from vitreous.results.explanation import Explanation

__all__ = ["comparison_text", "explanation_text"]


def explanation_text(shown: Explanation) -> str:
    """Return which picture, class and method an explanation is about, and what its map is like."""
    rather = f" rather than {', '.join(shown.rivals)}" if shown.rivals else ""
    low, high = float(shown.map.min()), float(shown.map.max())
    lines = [
        f"Explanation of {shown.name}: {shown.label}{_sure(shown.probability)}{rather}, {shown.value}",
        f"method {known_as(shown.method)} on {shown.model}, which said {_said(shown)}",
        f"map {' x '.join(map(str, shown.map.shape))}, from {low:.3g} to {high:.3g}"
        + (f"; extras {', '.join(shown.extras)}" if shown.extras else ""),
    ]
    if shown.checkup is not None:
        lines.append(f"check-up {shown.checkup.verdict}: {shown.checkup.sentence}")
    return "\n  ".join(map(one_line, lines))


def comparison_text(shown: Comparison) -> str:
    """Return the methods and classes that are compared."""
    first = shown[0]
    methods = ", ".join(known_as(each.method) for each in shown.rows[0])
    classes = ", ".join(f"{row[0].label}{_sure(row[0].probability)}" for row in shown.rows)
    lines = [
        f"Comparison of {len(shown)} maps of {first.name} on {first.model}, which said {_said(first)}",
        f"methods: {methods}",
        f"classes: {classes}",
    ]
    return "\n  ".join(map(one_line, lines))


def _said(shown: Explanation) -> str:
    return f"{shown.prediction.label}{_sure(shown.prediction.probability)}"


def _sure(probability: float | None) -> str:
    return "" if probability is None else f" ({probability:.3f})"
