"""Every method by name, with what there is to know about it as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vitreous.methods.base import Method
from vitreous.registry import Paper, Parameter, Registry, find_papers, parameters_of, parse_spec
from vitreous.registry.defaults import METHOD_SYNONYMS

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
        return self.cost_of(self.factory)

    def cost_of(self, parameters: Any) -> tuple[float, float]:
        """Return forwards and backwards per image with the parameters of a method."""
        forwards, backwards = (getattr(parameters, n) if isinstance(n, str) else n for n in self.counts)
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

REGISTRY: Registry[MethodInfo] = Registry("method", "vitreous.methods", FAMILIES, METHOD_SYNONYMS)


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

    Parameters
    ----------
    name : str
        What it is called in specs.
    family : str
        The family it is listed with.
    papers : tuple of str or Paper, default ()
        The papers that propose it: keys of known references, or ``Paper`` objects of one's own.
    aliases : tuple of str, default ()
        Other names.
    class_specific : bool, default True
        Whether its map depends on the class.
    cost : tuple of float or str, default (1, 1)
        Forwards and backwards per image, as numbers or names of parameters.
    cost_note : str, default ""
        The cost in words, where numbers do not say it.
    presets : mapping, optional
        Parameters by preset.
    slow : bool, default False
        Whether it takes long although it runs the model but a few times.
    revision : int, default 1
        Counted up whenever its numbers change, so that older results are known as such.
    models : {"all", "transformers", "ViT", "ReLU"}, default "all"
        Which models it is for.
    builds_on : tuple of str or Paper, default ()
        Papers whose ideas it uses without being proposed there.

    Returns
    -------
    callable
        The decorator.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from vitreous.methods.registry import REGISTRY
    >>> from vitreous.tracing import Record
    >>> def norm(a):
    ...     return a.value.norm(dim=-1)
    >>> @vt.register_method("token_norm", family="token gradient", class_specific=False, cost=(1, 0))
    ... @dataclass(frozen=True)
    ... class TokenNorm(vt.Method):
    ...     def records(self, model):
    ...         return [Record("resid_post", norm, (model.depth - 1,), grad=False)]
    >>> vt.explain(model, image, "token_norm").map.shape
    torch.Size([16, 16])
    >>> del REGISTRY.by_name["token_norm"]
    """

    def decorate(factory: M) -> M:
        facts = (class_specific, cost, cost_note, presets or {}, slow, revision, models)
        info = MethodInfo(name, family, factory, aliases, find_papers(papers), *facts, find_papers(builds_on))
        REGISTRY.add(info)
        factory.info = info
        return factory

    return decorate


def list_methods() -> list[MethodInfo]:
    """Return all methods, family by family.

    Returns
    -------
    list of MethodInfo
        What there is to know about each.

    Examples
    --------
    >>> vt.list_methods()[0].name
    'raw_attention'
    """
    return REGISTRY.all()


def get_method(spec: str | Method) -> Method:
    """Return the method that a spec means.

    Parameters
    ----------
    spec : str or Method
        ``name``, ``name@preset`` or ``name(args, key=value)``, nested; a method is returned as it is.

    Returns
    -------
    Method
        The method.

    Raises
    ------
    SpecError
        If the text names no method, or parameters that it does not have.

    Examples
    --------
    >>> vt.get_method("skipplus(decompx)").spec
    'skipplus(decompx)'
    """
    method: Method = parse_spec(spec, Method, REGISTRY)
    return method
