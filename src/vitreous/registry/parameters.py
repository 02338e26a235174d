"""Parameters that must be one of a few words, or not too small.

The parameters of what is spelled: the fields of a dataclass, with their types and defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, get_type_hints

from vitreous.errors import SpecError, VitreousError

__all__ = [
    "Parameter",
    "at_least",
    "check_choice",
    "check_memory",
    "parameters_of",
]

_MOST_MEMORY = 2**20  # GiB


def check_choice(name: str, given: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if given not in choices:
        raise SpecError(f"{name}={given!r} is not one of {', '.join(choices)}")


def at_least(name: str, value: float, least: float) -> None:
    """Refuse a number that is too small to mean anything."""
    if not value >= least:
        raise SpecError(f"{name}={value} must be at least {least:g}")


def check_memory(memory_gb: Any) -> None:
    """Refuse a budget that is no number of GiB; without one, there is a default."""
    if memory_gb is None:
        return
    if isinstance(memory_gb, bool) or not isinstance(memory_gb, Real) or not 0 < float(memory_gb) <= _MOST_MEMORY:
        raise VitreousError(
            f"memory={memory_gb!r:.60} is not a number of GiB: give one above 0 and up to {_MOST_MEMORY}"
        )


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method or a metric."""

    name: str
    kind: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


def parameters_of(make: Any, **known: Any) -> tuple[Parameter, ...]:
    """Return the fields of a dataclass, those that must be given by name last; ``known`` are types of its hints."""
    hints = get_type_hints(make, localns=known)
    fields = sorted(dataclasses.fields(make), key=lambda field: bool(field.kw_only))
    return tuple(Parameter(field.name, hints[field.name], field.default) for field in fields)
