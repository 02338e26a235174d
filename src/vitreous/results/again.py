"""The call that makes a page again, and what in it only its reader has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitreous.methods import Method, method
from vitreous.models import View
from vitreous.passes.target import plain_target
from vitreous.results.explanation import Explanation

__all__ = ["DIGITS", "again"]

DIGITS = 12
"""Of a fingerprint, on a page."""


def again(view: View, e: Explanation, asked: Mapping[str, Any]) -> str:
    """Return the call of ``why`` in Python; below it what each name stands for that cannot be written out.

    ``asked`` are its arguments, in order. A model is loaded as it was, as long as its weights are those that were
    loaded; otherwise it is one in hand, told by its fingerprint.
    """
    weights = (e.identity or {}).get("weights", "")[:DIGITS]
    model, names = "model", [f"model: a {type(view.model).__name__} of your own, fingerprint {weights}"]
    if view.recipe is not None and view.recipe.holds(view.model):
        model, names = view.recipe.code()
        names += [f"the weights are random: these have the fingerprint {weights}"] if view.recipe.is_random else []
    words = [model, "picture" if e.source is None else repr(e.source)]
    names += ["picture: the picture in hand"] if e.source is None else []
    for name, value in asked.items():
        plain = plain_target(value) if name == "target" else value
        if name == "target" and not isinstance(plain, int | str | None):
            plain = e.target
        if isinstance(value, Method):
            plain = value.spelling
            if method(plain) != value:
                words.append(f"{name}={name}")
                names.append(f"{name}: your own, {plain}")
                continue
        if plain is not None and (name, plain) != ("seed", 0):
            words.append(f"{name}={plain!r}")
    return "\n".join([f"vt.why({', '.join(words)})", *(f"# {each}" for each in names)])
