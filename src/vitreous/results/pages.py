"""The call that makes a page again, and what in it only its reader has.

Explanations as a page to read: pictures inline, every word as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitreous.errors import VitreousError
from vitreous.html import Section, report
from vitreous.methods import Method, get_method
from vitreous.models import VisionModel
from vitreous.registry.defaults import display_name
from vitreous.results.comparison import Comparison
from vitreous.results.explanation import Explanation
from vitreous.tracing.targets import plain_target

__all__ = [
    "DIGITS",
    "again",
    "to_html",
]

DIGITS = 12
"""Of a fingerprint, on a page."""


def again(vision_model: VisionModel, e: Explanation, asked: Mapping[str, Any]) -> str:
    """Return the call of ``why`` in Python; below it what each name stands for that cannot be written out.

    ``asked`` are its arguments, in order. A model is loaded as it was, as long as its weights are those that were
    loaded; otherwise it is one in hand, told by its fingerprint.
    """
    weights = (e.identity or {}).get("weights", "")[:DIGITS]
    model, names = "model", [f"model: a {type(vision_model.module).__name__} of your own, fingerprint {weights}"]
    if vision_model.load_recipe is not None and vision_model.load_recipe.holds(vision_model.module):
        model, names = vision_model.load_recipe.code()
        names += (
            [f"the weights are random: these have the fingerprint {weights}"]
            if vision_model.load_recipe.is_random
            else []
        )
    words = [model, "picture" if e.source is None else repr(e.source)]
    names += ["picture: the picture in hand"] if e.source is None else []
    for name, value in asked.items():
        plain = plain_target(value) if name == "target" else value
        if name == "target" and not isinstance(plain, int | str | None):
            plain = e.target
        if isinstance(value, Method):
            plain = value.spec
            if get_method(plain) != value:
                words.append(f"{name}={name}")
                names.append(f"{name}: your own, {plain}")
                continue
        if plain is not None and (name, plain) != ("seed", 0):
            words.append(f"{name}={plain!r}")
    return "\n".join([f"vt.why({', '.join(words)})", *(f"# {each}" for each in names)])


def to_html(shown: Explanation | Comparison | Sequence[Explanation]) -> str:
    """Return a page with the maps: one section for each picture, or for each target of a comparison."""
    if isinstance(shown, Comparison):
        return _of_comparison(shown)
    return _of_explanations([shown] if isinstance(shown, Explanation) else list(shown))


def _of_explanations(explanations: Sequence[Explanation]) -> str:
    if not explanations:
        raise VitreousError("there is nothing to show: give at least one explanation")
    by_picture: dict[str, list[Explanation]] = {}
    for explanation in explanations:
        by_picture.setdefault(explanation.source or explanation.name, []).append(explanation)
    sections = [_section(found) for found in by_picture.values()]
    models = ", ".join(dict.fromkeys(explanation.model for explanation in explanations))
    return report(f"What {models} saw", _lead(explanations), sections)


def _of_comparison(comparison: Comparison) -> str:
    first = comparison[0]
    sections = [_section(row) for row in comparison.rows]
    said = f"{first.model} said {first.prediction.label} ({first.prediction.probability:.2f})."
    return report(f"{first.name}, seen by {len(comparison.rows[0])} methods", said, sections)


def _lead(explanations: Sequence[Explanation]) -> str:
    methods = ", ".join(dict.fromkeys(display_name(explanation.method) for explanation in explanations))
    return f"{len(explanations)} maps by {methods}. Each has its own scale: its strongest patch is 1."


def _section(found: Iterable[Explanation]) -> Section:
    maps = list(found)
    first = maps[0]
    said = f"The model said {first.prediction.label} ({first.prediction.probability:.2f})."
    pictures = [(first.image, f"{first.name}, as the model sees it")]
    pictures += [(map_.overlay(size=max(320, *map_.image.size)), map_.caption) for map_ in maps]
    given = "" if first.probability is None else f" {first.probability:.2f}"
    heading = f"{first.name}: why {first.label}?{given}" if len({map_.label for map_ in maps}) == 1 else first.name
    return Section(heading, said, pictures)
