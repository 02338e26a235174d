"""Marks and flags: what a reader should know before believing a cell of the table.

A method that asks the model about images with parts removed, in the very way in which a metric then removes them, has
seen the exam. That is no mistake, but it is an advantage over methods that have not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitreous.bench.statistics.paired import Compared
from vitreous.methods import Method
from vitreous.metrics.base import Metric
from vitreous.metrics.states.need import Geometry, Masks, States, WithoutParts
from vitreous.metrics.states.substrate import DROP
from vitreous.results import Table

__all__ = ["PERTURBS", "SHARED", "Flag", "flags", "marks", "own_perturbation"]

SHARED: Mapping[str, str] = {
    DROP: "tokens left out",
    "zero_norm": "pixels painted with the mean colour of the training set",
    "mean_channel": "pixels painted with the mean colour of the image",
    "blur_tv": "pixels blurred (Gaussian, 11 pixels)",
}
"""What methods and metrics may have in common, by the name that metrics have for it."""

_FILLS = {"zero": "zero_norm", "mean": "mean_channel", "blur": "blur_tv", "own": ""}

PERTURBS: Mapping[str, str | Mapping[str, str]] = {
    "tis": DROP,
    "refine": DROP,
    "rise": "zero_norm",
    "hsic": "zero_norm",
    "scorecam": "zero_norm",
    "occlusion": _FILLS,
    "lime": _FILLS,
    "kernel_shap": _FILLS,
    "vit_cx": "",
    "ablationcam": "",
    "atman": "",
}
"""What a method shows the model, by its name: a word of ``SHARED``, or one for each value of its ``fill`` (``drop``
leaves tokens out whatever the fill). Empty: something that no metric does (noise, a patch's own mean colour, channels,
attention). A method that is not here asks about the image itself, or follows gradients."""

_USUAL = Geometry((224, 224), (14, 14))
_NOT_FINE = ("fails", "blind")


@dataclass(frozen=True)
class Flag:
    """One thing to know; ``method`` or ``metric`` is empty where it holds for all of them."""

    kind: str
    method: str
    metric: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def own_perturbation(method: Method, metric: Metric) -> str | None:
    """Say what a method, or a part of it, shares with the perturbation of a metric; ``None`` if nothing."""
    removed = _removals(metric)
    shared: dict[str, list[str]] = {}
    for part in method.parts():
        what = _perturbed(part)
        if what in removed:
            shared.setdefault(what, []).append(part.info.name)
    told = [f"{SHARED[what]} ({', '.join(dict.fromkeys(names))})" for what, names in shared.items()]
    return "; ".join(told) or None


def _perturbed(part: Method) -> str:
    """Return what one method, its parts aside, shows the model."""
    known = PERTURBS.get(part.info.name, "")
    if isinstance(known, str):
        return known
    return DROP if getattr(part, "drop", False) else known[part.fill]  # type: ignore[attr-defined]


def _removals(metric: Metric) -> set[str]:
    """Return what takes the place of what a metric removes, in all its states."""
    needs = metric.needs(_USUAL)
    return {need.substrate for need in needs if isinstance(need, States | Masks | WithoutParts)} & set(SHARED)


def marks(methods: Mapping[str, Method], metrics: Mapping[str, Metric]) -> tuple[Flag, ...]:
    """Return a mark for every method and metric that share a perturbation."""
    found = (
        (name, label, own_perturbation(how, judge)) for name, how in methods.items() for label, judge in metrics.items()
    )
    return tuple(Flag("own perturbation", name, label, text) for name, label, text in found if text is not None)


def flags(table: Table, tests: Iterable[Compared] = (), chance: str = "random") -> tuple[Flag, ...]:
    """Return what is wrong or weak: degenerate maps, metrics that failed their trial, methods no better than chance."""
    return (*_degenerate(table), *_trials(table), *_no_better(tests, chance))


def _degenerate(table: Table) -> Sequence[Flag]:
    counts = {name: {kind: n for kind, n in table.degenerate.get(name, {}).items() if n} for name in table.methods}
    return [
        Flag(
            "degenerate maps",
            name,
            "",
            ", ".join(f"{n} {kind}" for kind, n in own.items()) + f" of {len(table.images)}",
        )
        for name, own in counts.items()
        if own
    ]


def _trials(table: Table) -> Sequence[Flag]:
    found = []
    for name, told in table.trial.items():
        if told is None or told.verdict == "not tried":
            found.append(Flag("trial", "", name, "no trial has seen this metric"))
        elif told.verdict in _NOT_FINE:
            found.append(Flag("trial", "", name, str(told)))
    return found


def _no_better(tests: Iterable[Compared], chance: str) -> Sequence[Flag]:
    words = {"worse": f"worse than {chance}", "not told apart": f"not told apart from {chance}"}
    return [
        Flag(f"no better than {chance}", each.one, each.metric, words[each.word])
        for each in tests
        if each.other == chance and each.word in words
    ]
