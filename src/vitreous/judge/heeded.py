"""Which of a user's words a method does not follow: said once, before the work."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from vitreous.errors import VitreousWarning
from vitreous.methods import Method
from vitreous.passes import plain_target
from vitreous.passes.target import check_value
from vitreous.words.defaults import known_as

__all__ = ["heeded"]


def heeded(hows: Sequence[Method], target: Any, value: str | None) -> None:
    """Warn of a value that some methods replace by their own, and of a class that cannot change their maps.

    ``target`` and ``value`` are as the user gave them; what was not given is not warned about.
    """
    if value is not None:
        check_value(value)
        own = {how.spelling: how.values(value) for how in hows if how.values(value) != (value,)}
        if own:
            told = ", ".join(f"{known_as(name)} explains {' and '.join(values)}" for name, values in own.items())
            _warn(f"value={value!r} is not what is explained: {told}, whatever is asked for")
    target = plain_target(target)
    if target is not None and not (isinstance(target, str) and target == "pred"):
        blind = [known_as(how.spelling) for how in hows if not how.class_specific]
        if blind:
            verb = "knows" if len(blind) == 1 else "know"
            _warn(f"{', '.join(blind)} {verb} no class: the map is the same for any target")


def _warn(text: str) -> None:
    """Warn at the line that called the library, so that Python tells it once for each of them."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "vitreous":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, VitreousWarning, stacklevel=level)
