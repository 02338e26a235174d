"""Every method by name, with what there is to know about it as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypeVar, get_type_hints

from vitreous.errors import SpellingError, nearest
from vitreous.methods.base import Method
from vitreous.methods.papers import PAPERS, Paper

__all__ = ["Info", "Parameter", "find", "methods", "register"]

M = TypeVar("M", bound=type[Method])

_BY_NAME: dict[str, Info] = {}
_ALIASES: dict[str, str] = {}
_third_parties_loaded = False


@dataclass(frozen=True)
class Parameter:
    """One parameter of a method."""

    name: str
    kind: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


@dataclass(frozen=True)
class Info:
    """One line of ``vitreous methods``."""

    name: str
    family: str
    make: type[Method]
    aliases: tuple[str, ...] = ()
    papers: tuple[Paper, ...] = ()
    class_specific: bool = True
    cost: tuple[float, float] = (1, 1)
    cost_note: str = ""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refuses: bool = False
    """Whether the name is known only to say why the method means nothing here."""

    @property
    def summary(self) -> str:
        """The first line of the method's docstring."""
        return (self.make.__doc__ or "").strip().splitlines()[0]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        hints = get_type_hints(self.make, localns={"Info": Info})
        fields = dataclasses.fields(self.make)  # type: ignore[arg-type]
        return tuple(Parameter(f.name, hints[f.name], f.default) for f in fields)

    @property
    def bases(self) -> int:
        """How many methods it is made of, at least."""
        return sum({Method: 1, tuple[Method, ...]: 2}.get(parameter.kind, 0) for parameter in self.parameters)

    @property
    def combines(self) -> bool:
        """Whether it is made of other methods."""
        return self.bases > 0

    @property
    def cost_text(self) -> str:
        """The price in forwards and backwards, in words."""
        if self.refuses:
            return "refused"
        forwards, backwards = self.cost
        return self.cost_note or f"{forwards:g} F" + (f" + {backwards:g} B" if backwards else "")


def register(
    name: str,
    *,
    family: str,
    papers: tuple[str | Paper, ...] = (),
    aliases: tuple[str, ...] = (),
    class_specific: bool = True,
    cost: tuple[float, float] = (1, 1),
    cost_note: str = "",
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    refuses: bool = False,
) -> Callable[[M], M]:
    """Give a method class its name; used as a decorator on a frozen dataclass.

    ``papers`` are keys of ``papers.PAPERS`` or ``Paper`` objects of one's own.
    """

    def decorate(make: M) -> M:
        cited = tuple(PAPERS[each] if isinstance(each, str) else each for each in papers)
        info = Info(name, family, make, aliases, cited, class_specific, cost, cost_note, presets or {}, refuses)
        for word in (name, *aliases):
            if word in _BY_NAME or word in _ALIASES:
                raise SpellingError(f"two methods are called {word!r}")
        make.info = info
        _BY_NAME[name] = info
        _ALIASES.update(dict.fromkeys(aliases, name))
        return make

    return decorate


def find(name: str) -> Info:
    """Return the method called ``name`` or one of its aliases."""
    _load_third_parties()
    info = _BY_NAME.get(_ALIASES.get(name, name))
    if info is None:
        raise SpellingError(f"unknown method {name!r}{nearest(name, [*_BY_NAME, *_ALIASES])}")
    return info


def methods() -> list[Info]:
    """Return all methods, family by family."""
    _load_third_parties()
    families = list(dict.fromkeys(info.family for info in _BY_NAME.values()))
    return sorted(_BY_NAME.values(), key=lambda info: families.index(info.family))


def _load_third_parties() -> None:
    """Import what other packages offer under ``vitreous.methods``; importing it registers it."""
    global _third_parties_loaded
    if not _third_parties_loaded:
        _third_parties_loaded = True
        for entry in entry_points(group="vitreous.methods"):
            entry.load()
