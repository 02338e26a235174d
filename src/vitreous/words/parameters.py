"""The parameters of what is spelled: the fields of a dataclass, with their types and defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints

__all__ = ["Parameter", "parameters_of"]


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
