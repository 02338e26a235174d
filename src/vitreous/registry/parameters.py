"""What parameters may be: fields of methods and metrics that say which values they take, and the checks behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field, fields
from numbers import Real
from typing import Any

from vitreous.errors import SpecError, VitreousError

_MAX_MEMORY = 2**20  # GiB

Check = Callable[[str, Any, Any], None]
"""Refuses a value of a parameter: it takes the parameter's name, the value and the limits."""


def checked(
    default: Any, check: Check, limits: Any, *, optional: bool = False, kw_only: bool = False, **facts: Any
) -> Any:
    """Return a field whose values pass a check; ``optional`` also takes ``None``, ``facts`` go into its metadata."""
    metadata = {"check": check, "limits": limits, "optional": optional, **facts}
    return field(default=default, kw_only=kw_only, metadata=metadata)


def choice(default: str | None, *others: str, optional: bool = False, kw_only: bool = False) -> Any:
    """Return a field that takes one of a few words, the default among them, and ``None`` where that is the default."""
    words = others if default is None or default in others else (default, *others)
    is_optional = optional or default is None
    return checked(default, check_choice, words, optional=is_optional, kw_only=kw_only, choices=words)


def number(default: float | None, interval: str, *, kw_only: bool = False) -> Any:
    """Return a field that takes numbers of an interval such as ``"[0, 1)"``, and ``None`` where that is the default."""
    return checked(default, check_interval, interval, optional=default is None, kw_only=kw_only)


def check_parameters(instance: Any) -> None:
    """Refuse what a field of a dataclass does not take."""
    for parameter in fields(instance):
        value, rules = getattr(instance, parameter.name), parameter.metadata
        if "check" in rules and not (value is None and rules["optional"]):
            rules["check"](parameter.name, value, rules["limits"])


def choices_of(kind: Any) -> dict[str, tuple[str, ...]]:
    """Return the words that may stand in each field of a dataclass that takes one of a few."""
    return {item.name: item.metadata["choices"] for item in fields(kind) if "choices" in item.metadata}


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        raise SpecError(f"{name}={value!r} is not one of {', '.join(choices)}")


def check_at_least(name: str, value: float, minimum: float) -> None:
    """Refuse a number that is too small to mean anything."""
    if not value >= minimum:
        raise SpecError(f"{name}={value} must be at least {minimum:g}")


def check_interval(name: str, value: float, interval: str) -> None:
    """Refuse a number outside an interval such as ``"(0, 1]"``: above 0, and at most 1."""
    lower, upper = (float(end) for end in interval[1:-1].split(","))
    is_above = lower <= value if interval[0] == "[" else lower < value
    is_below = value <= upper if interval[-1] == "]" else value < upper
    if is_above and is_below:
        return
    limits = [f"{'at least' if interval[0] == '[' else 'above'} {lower:g}"]
    if upper < math.inf:
        limits.append(f"{'at most' if interval[-1] == ']' else 'below'} {upper:g}")
    raise SpecError(f"{name}={value} must be {' and '.join(limits)}")


def check_memory(memory_gb: Any) -> None:
    """Refuse a budget that is no number of GiB; without one, there is a default."""
    if memory_gb is None:
        return
    if isinstance(memory_gb, bool) or not isinstance(memory_gb, Real) or not 0 < float(memory_gb) <= _MAX_MEMORY:
        raise VitreousError(
            f"memory_gb={memory_gb!r:.60} is not a number of GiB: give one above 0 and up to {_MAX_MEMORY}"
        )
