"""Parameters of methods that take a few words, or numbers of an interval: the field says which, and is checked."""

from __future__ import annotations

from dataclasses import field, fields
from typing import Any

from vitreous.registry import check_choice, check_intervals


def choice(default: str | None, *others: str, optional: bool = False) -> Any:
    """Return a field that takes one of a few words, the default among them, and ``None`` where that is the default."""
    words = others if default is None or default in others else (default, *others)
    return field(default=default, metadata={"choices": words, "optional": optional or default is None})


def number(default: float | None, interval: str) -> Any:
    """Return a field that takes numbers of an interval such as ``"[0, 1)"``, and ``None`` where that is the default."""
    return field(default=default, metadata={"interval": interval, "optional": default is None})


def check_parameters(method: Any) -> None:
    """Refuse what a parameter of a dataclass does not take."""
    for parameter in fields(method):
        name, value, limits = parameter.name, getattr(method, parameter.name), parameter.metadata
        if value is None and limits.get("optional"):
            continue
        if "choices" in limits:
            check_choice(name, value, limits["choices"])
        if "interval" in limits:
            check_intervals(method, **{name: limits["interval"]})
