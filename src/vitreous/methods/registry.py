"""Every method by name, with what there is to know about it as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vitreous.methods.base import Method
from vitreous.registry import Paper, Parameter, Registry, find_papers, parameters_of, parse_spec
from vitreous.registry.defaults import METHOD_SYNONYMS

__all__ = ["MethodInfo", "find", "get_method", "list_methods", "register_method"]

KINDS_OF_MODELS = ("all", "transformers", "ViT", "ReLU")
"""``transformers`` have attention, in windows or not, and a stream of tokens that all blocks add to; a ``ViT`` has
attention between all tokens, and can leave some out; ``ReLU`` are those without any other activation on the way."""

M = TypeVar("M", bound=type[Method])


@dataclass(frozen=True)
class MethodInfo:
    """One line of ``vitreous methods``."""

    name: str
    family: str
    factory: type[Method]
    aliases: tuple[str, ...] = ()
    papers: tuple[Paper, ...] = ()
    class_specific: bool = True
    counts: tuple[str | float, str | float] = (1, 1)
    """Forwards and backwards per image, as numbers or names of parameters."""
    cost_note: str = ""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    is_slow: bool = False
    """Whether it takes long although it runs the model but a few times."""
    revision: int = 1
    """Counted up whenever its numbers change, so that older results are known as such."""
    models: str = "all"
    """Which models it is for, one of ``KINDS_OF_MODELS``."""
    builds_on: tuple[Paper, ...] = ()
    """Papers whose ideas it uses without being proposed there: it is our own, or nobody's."""

    @property
    def summary(self) -> str:
        """The first line of the method's docstring."""
        return (self.factory.__doc__ or "").strip().splitlines()[0]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return parameters_of(self.factory, MethodInfo=MethodInfo)

    @property
    def num_bases(self) -> int:
        """How many methods it is made of, at least."""
        return sum({Method: 1, tuple[Method, ...]: 2}.get(parameter.kind, 0) for parameter in self.parameters)

    @property
    def is_combinator(self) -> bool:
        """Whether it is made of other methods."""
        return self.num_bases > 0

    @property
    def example(self) -> str:
        """Words that show how its bases are given."""
        return f", as in {self.name}({', '.join(['ixg', 'generic'][: self.num_bases])})"

    @property
    def models_text(self) -> str:
        """Which models it is for, in words: a combinator that takes all takes those of its base."""
        return "as its base" if self.is_combinator and self.models == "all" else self.models

    @property
    def cost(self) -> tuple[float, float]:
        """Forwards and backwards per image with the usual parameters."""
        forwards, backwards = (getattr(self.factory, n) if isinstance(n, str) else n for n in self.counts)
        return forwards, backwards

    @property
    def cost_text(self) -> str:
        """The price in forwards and backwards, in words."""
        forwards, backwards = self.cost
        return self.cost_note or f"{forwards:g} F" + (f" + {backwards:g} B" if backwards else "")


FAMILIES = (
    "attention",
    "attention x gradient",
    "path",
    "token gradient",
    "CAM",
    "decomposition",
    "LRP",
    "input",
    "bottleneck",
    "sampling",
    "perturbation",
    "combinator",
    "control",
)
"""The order of families in tables; families of other packages come last."""

SHELF: Registry[MethodInfo] = Registry("method", "vitreous.methods", FAMILIES, METHOD_SYNONYMS)


def register_method(
    name: str,
    *,
    family: str,
    papers: tuple[str | Paper, ...] = (),
    aliases: tuple[str, ...] = (),
    class_specific: bool = True,
    cost: tuple[str | float, str | float] = (1, 1),
    cost_note: str = "",
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    slow: bool = False,
    revision: int = 1,
    models: str = "all",
    builds_on: tuple[str | Paper, ...] = (),
) -> Callable[[M], M]:
    """Give a method class its name; used as a decorator on a frozen dataclass.

    ``cost`` are forwards and backwards per image, as numbers or names of parameters.
    ``papers`` propose it, ``builds_on`` are those whose ideas it uses without being proposed there: keys of
    ``papers.PAPERS`` or ``Paper`` objects of one's own.
    """

    def decorate(make: M) -> M:
        facts = (class_specific, cost, cost_note, presets or {}, slow, revision, models)
        info = MethodInfo(name, family, make, aliases, find_papers(papers), *facts, find_papers(builds_on))
        SHELF.add(info)
        make.info = info
        return make

    return decorate


def find(name: str) -> MethodInfo:
    """Return the method called ``name`` or one of its aliases."""
    return SHELF.find(name)


def list_methods() -> list[MethodInfo]:
    """Return all methods, family by family."""
    return SHELF.all()


def get_method(spec: str | Method) -> Method:
    """Return the method that a spelling means; a method is returned as it is."""
    made: Method = parse_spec(spec, Method, SHELF)
    return made
