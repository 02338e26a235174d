"""Every metric by name, with what there is to know about it as data; spelled as methods are."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypeVar, get_type_hints

from vitreous.errors import SpellingError, nearest
from vitreous.methods import Paper
from vitreous.methods.registry import Parameter
from vitreous.methods.spelling import Reader
from vitreous.metrics.base import Metric
from vitreous.metrics.papers import PAPERS

__all__ = ["Info", "find", "metric", "metrics", "register"]

M = TypeVar("M", bound=type[Metric])

_BY_NAME: dict[str, Info] = {}
_ALIASES: dict[str, str] = {}
_third_parties_loaded = False


@dataclass(frozen=True)
class Info:
    """One line of ``vitreous metrics``."""

    name: str
    family: str
    make: type[Metric]
    aliases: tuple[str, ...] = ()
    papers: tuple[Paper, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of the metric's docstring."""
        return inspect.cleandoc(self.make.__doc__ or "").splitlines()[0]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The metric's own parameters first, those of all metrics last."""
        hints = get_type_hints(self.make, localns={"Info": Info})
        fields = sorted(dataclasses.fields(self.make), key=lambda each: bool(each.kw_only))
        return tuple(Parameter(f.name, hints[f.name], f.default) for f in fields)

    @property
    def higher_is_better(self) -> bool:
        """The direction, with the parameters left as they are."""
        return self.make().higher_is_better

    @property
    def needs_labels(self) -> bool:
        """Whether true classes have to be known, with the parameters left as they are."""
        return self.make().needs_labels

    @property
    def forwards(self) -> int:
        """States of its own per image and method, at 224 x 224 pixels in 14 x 14 patches."""
        return self.make().forwards()


def register(
    name: str,
    *,
    family: str,
    papers: tuple[str | Paper, ...] = (),
    aliases: tuple[str, ...] = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[M], M]:
    """Give a metric class its name; used as a decorator on a dataclass.

    ``papers`` are keys of ``papers.PAPERS`` or ``Paper`` objects of one's own.
    """

    def decorate(make: M) -> M:
        cited = tuple(PAPERS[each] if isinstance(each, str) else each for each in papers)
        info = Info(name, family, make, aliases, cited, presets or {})
        for word in (name, *aliases):
            if word in _BY_NAME or word in _ALIASES:
                raise SpellingError(f"two metrics are called {word!r}")
        make.info = info
        _BY_NAME[name] = info
        _ALIASES.update(dict.fromkeys(aliases, name))
        return make

    return decorate


def find(name: str) -> Info:
    """Return the metric called ``name`` or one of its aliases."""
    _load_third_parties()
    info = _BY_NAME.get(_ALIASES.get(name, name))
    if info is None:
        raise SpellingError(f"unknown metric {name!r}{nearest(name, [*_BY_NAME, *_ALIASES])}")
    return info


def metrics() -> list[Info]:
    """Return all metrics, family by family."""
    _load_third_parties()
    families = list(dict.fromkeys(info.family for info in _BY_NAME.values()))
    return sorted(_BY_NAME.values(), key=lambda info: families.index(info.family))


def metric(spelling: str | Metric) -> Metric:
    """Return the metric that a spelling means; a metric is returned as it is."""
    if isinstance(spelling, Metric):
        return spelling
    if not isinstance(spelling, str):
        raise SpellingError(f"a metric is a spelling or a Metric, got {type(spelling).__name__}")
    made: Metric = _Reader(spelling).read()
    return made


class _Reader(Reader):
    noun = "metric"

    def find(self, name: str) -> Any:
        return find(name)


def _load_third_parties() -> None:
    """Import what other packages offer under ``vitreous.metrics``; importing it registers it."""
    global _third_parties_loaded
    if not _third_parties_loaded:
        _third_parties_loaded = True
        for entry in entry_points(group="vitreous.metrics"):
            entry.load()
