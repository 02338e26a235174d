"""What is not as it was planned with: methods, metrics and models whose code, files or parameters have changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from vitreous.bench.hows import mark_of, method_of
from vitreous.bench.planning import wanted_units
from vitreous.bench.store import RecordedPlan
from vitreous.bench.units import Setting, Unit
from vitreous.code_digest import is_external, is_unknown
from vitreous.errors import VitreousError
from vitreous.judge.foreign import Foreign
from vitreous.metrics import metric
from vitreous.models import ModelIdentity

__all__ = ["change_messages", "check_code", "check_model", "refuse_other_model", "stale_units"]


def stale_units(settings: Sequence[Setting], plans: Sequence[RecordedPlan], finished: Collection[str]) -> list[str]:
    """Return the units that are left and were planned with other code than is here: nobody can do them any more."""
    marks = {spelling: each.marks[name] for each in settings for name, spelling in each.methods.items()}
    models = {each.label: each.fingerprint for each in settings}

    @cache
    def is_changed(noun: str, spelling: str, planned: str) -> bool:
        try:
            if noun == "metric":
                return metric(spelling).code != planned
            return (marks.get(spelling) or mark_of(spelling, method_of(spelling))) != planned
        except VitreousError:  # what is not there any more is reported by whoever tries to do the unit
            return False

    def is_stale(setting: Setting, unit: Unit) -> bool:
        return (
            models.get(setting.label, setting.fingerprint) != setting.fingerprint
            or any(is_changed("method", setting.methods[name], setting.marks[name]) for name in unit.methods)
            or any(is_changed("metric", setting.metrics[name], setting.metric_mark(name)) for name in unit.metrics)
        )

    left = [(plan.settings[unit.setting], unit) for plan, unit in wanted_units(plans) if unit.id not in finished]
    return [unit.id for setting, unit in left if is_stale(setting, unit)]


def change_messages(settings: Sequence[Setting], units: Iterable[Unit], plans: Iterable[RecordedPlan]) -> list[str]:
    """Say in a line for each thing that has changed how many of the new ``units`` there are because of it."""
    before = {
        (setting.label, setting.data, key): marks
        for plan in plans
        for unit in plan.units
        for setting in [plan.settings[unit.setting]]
        for key, marks, _, _ in _cells(setting, unit)
    }
    again: dict[str, set[str]] = defaultdict(set)
    for unit in units:
        setting = settings[unit.setting]
        for key, marks, method, column in _cells(setting, unit):
            model, how, judge = before.get((setting.label, setting.data, key), marks)
            if model != marks[0]:
                again[f"your model {setting.label} changed"].add(unit.id)
            if how != marks[1]:
                subject = f"{_owner(setting.methods[method])} method {method} {_may(marks[1])}changed"
                again[subject].add(unit.id)
            if judge != marks[2]:
                again[f"your metric {column} {_may(marks[2])}changed"].add(unit.id)
    return [
        f"{subject}: {len(ids)} {'unit is' if len(ids) == 1 else 'units are'} computed again"
        for subject, ids in again.items()
    ]


def _cells(setting: Setting, unit: Unit) -> Iterator[tuple[Any, tuple[str, str, str], str, str]]:
    """Yield every cell of a unit, the digests of model, method and metric, and the labels of the last two."""
    columns = [(name, setting.metrics[name], setting.metric_mark(name)) for name in unit.metrics]
    for label in unit.methods:
        for name, what, mark in columns or [("", mode, "") for mode in unit.modes]:
            marks = (setting.fingerprint, setting.marks[label], mark)
            for picture in unit.pictures:
                yield (picture, unit.seed, setting.methods[label], what), marks, label, name


def _may(mark: str) -> str:
    return "may have " if is_unknown(mark) else ""


@cache
def _owner(spelling: str) -> str:
    how = method_of(spelling, [spelling])  # of a setting that was just decided, by what the user names
    return "your" if isinstance(how, Foreign) or any(is_external(type(part)) for part in how.parts()) else "the"


def check_code(setting: Setting, unit: Unit, method: Callable[[Setting, str], Any]) -> None:
    """Refuse to do a unit with another method or metric than it was planned with, such as on a machine of a cluster."""
    for name in unit.methods:
        _refuse(name, setting.marks[name], mark_of(setting.methods[name], method(setting, name)))
    for name in unit.metrics:
        _refuse(name, setting.metric_mark(name), metric(setting.metrics[name]).code)


def _refuse(name: str, planned: str, here: str) -> None:
    if here != planned and not is_unknown(planned):
        text = "is not what this run was planned with: its code, files or parameters are others here"
        raise VitreousError(f"{name} {text}; give every worker the same ones, or start the run again")


def check_model(setting: Setting, identity: ModelIdentity) -> None:
    """Refuse a model that is not the one a unit was planned with."""
    planned = ModelIdentity.parse(setting.fingerprint)
    refuse_other_model(setting, identity, "give every worker the same model, or start the run again")
    if not planned.has_unknown_code:
        _refuse(setting.label, planned.code, identity.code)


def refuse_other_model(setting: Setting, identity: ModelIdentity, advice: str) -> None:
    """Refuse a model that differs in more than its code from the one that a run has under this label."""
    planned = ModelIdentity.parse(setting.fingerprint)
    different = identity.differences(planned, code=False)
    if different and not planned.structure:
        different = "another identity (an earlier version of Vitreous knew less of a model)"
    if different:
        raise VitreousError(f"{setting.label} has {different} than this run was begun with; {advice}")
