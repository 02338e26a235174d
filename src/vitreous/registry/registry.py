"""What is registered by name, by Vitreous and by other packages, and its parameters."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, get_type_hints

from vitreous.errors import SpecError, VitreousWarning, nearest, one_line


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method or a metric."""

    name: str
    kind: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


def parameters_of(factory: Any, **names: Any) -> tuple[Parameter, ...]:
    """Return the fields of a dataclass, those that must be given by name last; ``names`` are types of its hints."""
    hints = get_type_hints(factory, localns=names)
    fields = sorted(dataclasses.fields(factory), key=lambda field: bool(field.kw_only))
    return tuple(Parameter(field.name, hints[field.name], field.default) for field in fields)


def normalize_name(name: str) -> str:
    """Return a name without case, hyphens, underscores and spaces, and ``++`` as ``pp``."""
    return "".join(letter for letter in name.lower().replace("++", "pp") if letter not in "-_ \t")


T = TypeVar("T", bound=Any)
"""``MethodInfo`` or ``MetricInfo``."""


class Registry(Generic[T]):
    """Methods or metrics (``noun``) by name and alias, in the order of ``families``.

    Importing what an entry point of the ``group`` names adds it. A name is found however it is written: ``Grad-CAM++``
    is ``gradcam_pp``. Where two names differ in nothing else, only the exact ones are found. ``synonyms`` are specs by
    normalized name: what other libraries call differently.
    """

    def __init__(
        self, noun: str, group: str, families: tuple[str, ...], synonyms: Mapping[str, str] | None = None
    ) -> None:
        self.noun, self.group, self.families, self.synonyms = noun, group, families, synonyms or {}
        self.by_name: dict[str, T] = {}
        self.aliases: dict[str, str] = {}
        self.complete = False

    def add(self, info: T) -> None:
        """Register something; its name and aliases must be free."""
        for name in (info.name, *info.aliases):
            if name in self.by_name or name in self.aliases:
                raise SpecError(f"two {self.noun}s are called {name!r}")
        self.by_name[info.name] = info
        self.aliases.update(dict.fromkeys(info.aliases, info.name))

    def find(self, name: str) -> T:
        """Return what is called ``name`` or has it as an alias, in any of the usual ways to write it."""
        info = self._lookup(name)
        if info is not None:
            return info
        if (spec := self.resolve(name)) is not None:
            raise SpecError(f"the {self.noun} {name!r} is spelled {spec} here")
        raise SpecError(f"unknown {self.noun} {name!r}{nearest(name, [*self.by_name, *self.aliases])}")

    def resolve(self, name: str) -> str | None:
        """Return the spec here of what is called ``name``, spaces in it allowed; ``None`` for any other text."""
        info = self._lookup(name)
        return self.synonyms.get(normalize_name(name)) if info is None else info.name

    def _lookup(self, name: str) -> T | None:
        self._load_entry_points()
        exact = self.by_name.get(self.aliases.get(name, name))
        if exact is not None:
            return exact
        normalized = normalize_name(name)
        similar = {
            self.aliases.get(other, other)
            for other in (*self.by_name, *self.aliases)
            if normalize_name(other) == normalized
        }
        return self.by_name.get(similar.pop() if len(similar) == 1 else self.synonyms.get(normalized, ""))

    def all(self) -> list[T]:
        """Return everything, family by family."""
        self._load_entry_points()
        families = list(dict.fromkeys((*self.families, *(info.family for info in self.by_name.values()))))
        return sorted(self.by_name.values(), key=lambda info: families.index(info.family))

    def _load_entry_points(self) -> None:
        if self.complete:
            return
        self.complete = True
        for entry in entry_points(group=self.group):
            try:
                entry.load()
            except Exception as error:  # one broken package must not take the others away
                reason = one_line(f"{type(error).__name__}: {error}")[:200]
                text = f"the {self.noun} {entry.name} of another package cannot be imported ({reason})"
                warnings.warn(text, VitreousWarning, stacklevel=4)
