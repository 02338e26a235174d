"""Which rows and columns a run is asked for, of all that was ever planned in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vitreous.bench.store import RecordedPlan
from vitreous.bench.units import Setting
from vitreous.words.defaults import BASELINES

__all__ = ["settings_of"]


def settings_of(plans: Sequence[RecordedPlan], wanted: Mapping[str, Any]) -> list[Setting]:
    """Return one setting for each model and data set that is wanted: the last one, with all methods planned for it."""
    protocol = wanted.get("protocol", {})
    specs = {each["label"]: each for each in protocol.get("models", ())}
    target = protocol.get("judge", {}).get("target")
    last: dict[tuple[str, str], Setting] = {}
    for fits in (False, True):  # what fits the protocol as it is now counts more
        for setting in (each for plan in plans for each in plan.settings):
            fitting = target in (None, setting.target) and specs.get(setting.label) in (None, _plain(setting.model))
            if fitting or not fits:
                last[setting.data, setting.label] = setting
    merged = [_merged(setting, plans) for setting in last.values()]
    if not protocol:
        return merged
    sets = [protocol["data"].get("label", ""), *(each.get("label", "") for each in protocol.get("also", ()))]
    known = [each for each in merged if each.label in specs and each.data in sets]
    labels = list(specs)
    return [
        _narrowed(each, protocol) for each in sorted(known, key=lambda s: (sets.index(s.data), labels.index(s.label)))
    ]


def _plain(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in model.items()}


def _merged(setting: Setting, plans: Iterable[RecordedPlan]) -> Setting:
    """Return a setting with everything that was ever planned for the same identity."""
    same = [each for plan in plans for each in plan.settings if each.identity == setting.identity]
    same = [each for each in same if (each.label, each.data) == (setting.label, setting.data)]
    methods = {name: how for each in [*same, setting] for name, how in each.methods.items()}
    marks = {name: how for each in [*same, setting] for name, how in each.marks.items()}
    metrics = {name: how for each in [*same, setting] for name, how in each.metrics.items()}
    metric_marks = {name: each.metric_mark(name) for each in [*same, setting] for name in each.metrics}
    modes = tuple(sorted({mode for each in same for mode in each.modes}))
    return replace(setting, methods=methods, marks=marks, metrics=metrics, metric_marks=metric_marks, modes=modes)


def _narrowed(setting: Setting, protocol: Mapping[str, Any]) -> Setting:
    """Return a setting with the rows and columns that the protocol asks for now, in its order."""
    spec = next(each for each in protocol["models"] if each["label"] == setting.label)
    data = next(each for each in (protocol["data"], *protocol.get("also", ())) if each.get("label", "") == setting.data)
    rows = [name for name in protocol["methods"] if not spec.get("methods") or name in spec["methods"]]
    beside = [name for name in BASELINES if protocol["judge"].get("baselines", True) and name not in rows]
    names = [name for name in (*rows, *beside) if name in setting.methods]
    columns = [name for name in (data.get("metrics") or protocol["judge"]["metrics"]) if name in setting.metrics]
    return replace(
        setting,
        methods={name: setting.methods[name] for name in names},
        marks={name: setting.marks[name] for name in names},
        metrics={name: setting.metrics[name] for name in columns},
        metric_marks={name: setting.metric_mark(name) for name in columns},
    )
