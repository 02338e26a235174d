"""Every metric by name, with what there is to know about it as data; spelled as methods are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from vitreous.metrics.base import Metric
from vitreous.words import Paper, Parameter, Shelf, cited, parameters_of, understood

if TYPE_CHECKING:
    from vitreous.metrics.verdicts import Verdict

__all__ = ["Info", "find", "metric", "metrics", "register"]

M = TypeVar("M", bound=type[Metric])


@dataclass(frozen=True)
class Info:
    """One line of ``vitreous metrics``."""

    name: str
    family: str
    make: type[Metric]
    aliases: tuple[str, ...] = ()
    papers: tuple[Paper, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    example: str = ""
    """Words that show how a required parameter is given; there is none so far."""
    builds_on: tuple[Paper, ...] = ()
    """Papers whose ideas it uses without being proposed there: it is our own."""

    @property
    def summary(self) -> str:
        """The first line of the metric's docstring."""
        return inspect.cleandoc(self.make.__doc__ or "").splitlines()[0]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The metric's own parameters first, those of all metrics last."""
        return parameters_of(self.make, Info=Info)

    @property
    def higher_is_better(self) -> bool:
        """The direction, with the parameters left as they are."""
        return self.make().higher_is_better

    @property
    def needs_labels(self) -> bool:
        """Whether true classes have to be known, with the parameters left as they are."""
        return self.make().needs_labels

    @property
    def truth(self) -> tuple[str, ...]:
        """What has to be known about every picture: ``mask``, ``boxes``, ``parts`` or any ``region``."""
        return self.make().truth

    @property
    def explanations(self) -> int:
        """Further maps of each image that have to be made, for a model of twelve blocks."""
        return self.make().explanations()

    @property
    def per_part(self) -> bool:
        """Whether all methods share a state more for every known part of an image."""
        return self.make().per_part

    @property
    def shared_forwards(self) -> int:
        """States of each image that all methods share."""
        return self.make().shared_forwards()

    @property
    def verdict(self) -> Verdict | None:
        """What the shipped trial found about it; ``None`` if no trial has seen it."""
        from vitreous.metrics.verdicts import verdict

        return verdict(self.make())

    @property
    def forwards(self) -> int:
        """States of its own per image and method, at 224 x 224 pixels in 14 x 14 patches."""
        return self.make().forwards()


SHELF: Shelf[Info] = Shelf("metric", "vitreous.metrics")


def register(
    name: str,
    *,
    family: str,
    papers: tuple[str | Paper, ...] = (),
    aliases: tuple[str, ...] = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    builds_on: tuple[str | Paper, ...] = (),
) -> Callable[[M], M]:
    """Give a metric class its name; used as a decorator on a dataclass.

    ``papers`` propose it, ``builds_on`` are those whose ideas it uses without being proposed there: keys of
    ``papers.PAPERS`` or ``Paper`` objects of one's own.
    """

    def decorate(make: M) -> M:
        info = Info(name, family, make, aliases, cited(papers), presets or {}, builds_on=cited(builds_on))
        SHELF.add(info)
        make.info = info
        return make

    return decorate


def find(name: str) -> Info:
    """Return the metric called ``name`` or one of its aliases."""
    return SHELF.find(name)


def metrics() -> list[Info]:
    """Return all metrics, family by family."""
    return SHELF.all()


def metric(spelling: str | Metric) -> Metric:
    """Return the metric that a spelling means; a metric is returned as it is."""
    made: Metric = understood(spelling, Metric, SHELF)
    return made
