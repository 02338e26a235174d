"""What a command adds to the protocol of a run, removes from it, or puts in its place.

``+x`` adds x to what the run has, ``-x`` removes it, and a plain list replaces all. A run's folder holds its whole
protocol, so that what was added once stays until it is removed: the protocol that a later command names only says which
one the run was begun with.

What is not as it was planned with: methods, metrics and models whose code, files or parameters have changed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from vitreous.benchmark.methods import is_code, mark_of, method_of
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.protocol import (
    DataSpec,
    EvaluationSpec,
    ModelSpec,
    Protocol,
    add_model,
    protocol_of_json,
    replace_model,
    shipped,
    with_models,
)
from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit
from vitreous.code_digest import is_external, is_unknown
from vitreous.errors import VitreousError, nearest, one_line
from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.methods import get_method
from vitreous.metrics import get_metric
from vitreous.models import ModelIdentity
from vitreous.registry.defaults import CONTROLS
from vitreous.registry.spec import split_specs

__all__ = [
    "Changes",
    "apply_changes",
    "change_messages",
    "check_code",
    "check_model",
    "refuse_other_model",
    "refuse_unnamed_code",
    "resume_protocol",
    "stale_units",
]


@dataclass(frozen=True)
class Changes:
    """Options of a command as they were typed; ``size`` is the input size of the models in it."""

    methods: Sequence[str] = ()
    metrics: Sequence[str] = ()
    seeds: Sequence[str] = ()
    models: Sequence[str] = ()
    size: int | None = None
    precision: str | None = None


def resume_protocol(named: Protocol, wanted: Mapping[str, Any] | None) -> tuple[Protocol, list[str]]:
    """Return the protocol that a command starts from, and what has to be said about it.

    ``named`` is the protocol that the command names, ``wanted`` what the manifest of the run says, if there is one. The
    run's own protocol counts. Where the named one has changed since the run was begun (its file was edited), it counts
    instead, with what was added to the run, and without what was removed from it, in the meantime.
    """
    if wanted is None:
        return named, []
    if "protocol" not in wanted:
        raise VitreousError("run.json: wanted.protocol is missing")
    run = protocol_of_json(wanted["protocol"])
    if run.name != named.name:
        return named, [f"this was a run of {run.name}, and is one of {named.name} now", *_differences(run, named)]
    if "named" not in wanted:  # a run of an older version
        began = named if named.name in shipped() else run
    else:
        began = protocol_of_json(wanted["named"])
    if _plain(began) == _plain(named):
        return run, []
    merged = _merged(_usable(began), run, _usable(named))
    differences = _differences(run, merged)
    return merged, [f"{named.name} has changed since this run was begun", *differences] if differences else []


def apply_changes(
    protocol: Protocol, changes: Changes, named: Protocol | None = None, plans: Sequence[RecordedPlan] = ()
) -> tuple[Protocol, list[str]]:
    """Return the protocol with the changes, and what they drop of it, in words.

    Labels of ``named``, the protocol as it comes, mean its rows and models also where the run has left them out. What
    it has, or an earlier of the ``plans`` had, may be removed again: the same command can be given twice.
    """
    known = protocol if named is None else named
    changed = _with_precision(protocol, changes.precision)
    changed = _change_models(changed, known, changes, plans)
    changed = _change_methods(changed, known, changes.methods, plans)
    changed = _change_metrics(changed, known, changes.metrics, plans)
    changed = _change_seeds(changed, known, changes.seeds, plans)
    return changed, _differences(protocol, changed, dropped_only=True)


def refuse_unnamed_code(protocol: Protocol, named: Protocol, changes: Changes) -> None:
    """Refuse rows whose code only the files of the run name: they may be from anybody, and importing runs code."""
    texts = {part for text in changes.methods for part in (text.lstrip("+"), *split_specs(text.lstrip("+")))}
    for label, spec in protocol.methods.items():
        if is_code(spec) and spec not in named.methods.values() and not texts & {label, spec}:
            text = one_line(label)
            raise VitreousError(
                f"the run has the row {text}, which imports {one_line(spec)}, and this command does not name it: "
                f"add --method '+{text}' if you trust that code, or --method='-{text}' to go on without"
            )


# -- one option at a time ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Listed:
    """An option that was given several times: what is named plainly, what with a plus, and what with a minus."""

    noun: str
    named: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, noun: str, texts: Iterable[str], meaning: Callable[[str], str], labels: Iterable[str] = ()) -> _Listed:
        """Read the texts; ``meaning`` gives the name that is meant. ``labels`` are not cut at commas."""
        found: dict[str, list[str]] = {"": [], "+": [], "-": []}
        whole = set(labels)
        for text in texts:
            sign = text[:1] if text[:1] in ("+", "-") else ""
            rest = text[len(sign) :].strip()
            several = [rest] if rest in whole else split_specs(rest)
            if not several:
                raise VitreousError(f"--{noun} {one_line(repr(text))} names no {noun}")
            found[sign] += map(meaning, several)
        return cls(noun, *(tuple(dict.fromkeys(each)) for each in found.values()))

    def applied(self, own: Sequence[str], where: str, past: Collection[str] = ()) -> list[str]:
        """Return the list with these changes; what is not there may be removed if it was there in the past."""
        names = list(self.named or own)
        for each in self.removed:
            if each in self.added:
                raise VitreousError(f"--{self.noun} both adds and removes {one_line(each)}")
            if each not in names and each not in past:
                told = f"{where} has no {self.noun} {one_line(repr(each))} that could be removed"
                raise VitreousError(told + nearest(each, names))
        kept = [name for name in names if name not in self.removed]
        kept += [each for each in self.added if each not in kept]
        if not kept:
            raise VitreousError(f"no {self.noun} of {where} would be left")
        return kept

    def narrowed(self, own: Sequence[str], where: str) -> tuple[str, ...]:
        """Return a list that a model or data set has for itself; empty, which means all, where others are named."""
        if not own or self.named:
            return ()
        here = replace(self, removed=tuple(each for each in self.removed if each in own))
        return tuple(here.applied(own, where))


def _change_methods(
    protocol: Protocol, known: Protocol, texts: Sequence[str], plans: Sequence[RecordedPlan]
) -> Protocol:
    rows = {**known.methods, **protocol.methods}
    meant = _meanings(rows, lambda spec: get_method(spec).spec)
    listed = _Listed.of("method", texts, meant, rows)
    past = {*known.methods, *(name for plan in plans for setting in plan.settings for name in setting.methods)}
    names = listed.applied(list(protocol.methods), protocol.name, past - set(CONTROLS))
    if names == list(protocol.methods):
        return protocol
    reference = protocol.evaluation.reference if protocol.evaluation.reference in names else None
    return replace(
        protocol,
        methods={name: rows.get(name, name) for name in names},
        evaluation=replace(protocol.evaluation, reference=reference),
        models=tuple(replace(model, methods=listed.narrowed(model.methods, model.label)) for model in protocol.models),
    )


def _change_metrics(
    protocol: Protocol, known: Protocol, texts: Sequence[str], plans: Sequence[RecordedPlan]
) -> Protocol:
    own = protocol.evaluation.metrics
    past = {
        *known.evaluation.metrics,
        *(name for plan in plans for setting in plan.settings for name in setting.metrics),
    }
    columns = dict.fromkeys([*own, *known.evaluation.metrics, *sorted(past)], "")
    listed = _Listed.of("metric", texts, _meanings(columns, lambda each: get_metric(each).spec), columns)
    names = tuple(listed.applied(own, protocol.name, past))
    if names == own:
        return protocol
    sets = [_narrowed_data(each, listed) for each in (protocol.data, *protocol.also)]
    return replace(protocol, evaluation=replace(protocol.evaluation, metrics=names), data=sets[0], also=tuple(sets[1:]))


def _narrowed_data(data: DataSpec, listed: _Listed) -> DataSpec:
    return replace(data, metrics=listed.narrowed(data.metrics, data.label or data.source))


def _change_seeds(protocol: Protocol, known: Protocol, texts: Sequence[str], plans: Sequence[RecordedPlan]) -> Protocol:
    def seed(text: str) -> str:
        if not (text.isascii() and text.isdecimal()):
            raise VitreousError(f"--seed {one_line(text)} is no whole number from 0 on")
        return str(int(text))

    own = list(map(str, protocol.evaluation.seeds))
    past = {*map(str, known.evaluation.seeds), *(str(unit.seed) for plan in plans for unit in plan.units)}
    seeds = _Listed.of("seed", texts, seed).applied(own, protocol.name, past)
    return replace(protocol, evaluation=replace(protocol.evaluation, seeds=tuple(map(int, seeds))))


def _change_models(protocol: Protocol, known: Protocol, changes: Changes, plans: Sequence[RecordedPlan]) -> Protocol:
    texts, size = changes.models, changes.size
    if not any(text[:1] != "-" for text in texts) and size is not None:
        raise VitreousError("--img-size is that of another model: give --model too")
    if not texts:
        return protocol
    specs = {model.label: model for model in (*_usable(known).models, *protocol.models)}
    listed = _Listed.of("model", texts, str, [text.lstrip("+-").strip() for text in texts])  # names may have commas
    past = {*(model.label for model in known.models), *(setting.label for plan in plans for setting in plan.settings)}
    labels = listed.applied([model.label for model in protocol.models], protocol.name, past)
    changed = protocol
    for place, label in enumerate(listed.named):
        spec = None if size is not None else specs.get(label)
        if place:
            changed = add_model(changed, spec or label, size)
        else:
            changed = replace_model(changed, label, size) if spec is None else _only_model(known, changed, spec)
    for label in listed.added:
        if label not in [model.label for model in changed.models]:
            changed = add_model(changed, specs.get(label, label) if size is None else label, size)
    left = tuple(model for model in changed.models if model.label in labels)
    return changed if left == changed.models else with_models(changed, left)


def _only_model(known: Protocol, protocol: Protocol, spec: ModelSpec) -> Protocol:
    """Return the protocol with one of its own models alone, also where the run has left it out before."""
    if spec in protocol.models:
        return with_models(protocol, (spec,))
    return with_models(replace(protocol, data=known.data, also=known.also), (spec,))


def _with_precision(protocol: Protocol, precision: str | None) -> Protocol:
    return (
        protocol
        if precision is None
        else replace(protocol, evaluation=replace(protocol.evaluation, precision=precision))
    )


def _meanings(rows: Mapping[str, str], canonical: Callable[[str], str]) -> Callable[[str], str]:
    """Return what gives the label of a text: itself, or the row that means the same in another spelling."""

    def spec(text: str) -> str:
        try:
            return canonical(text)
        except VitreousError:  # a folder of maps, a callable; or a mistake, which the run refuses by name
            return text

    by_meaning: dict[str, str] = {}
    for label, how in rows.items():
        by_meaning.setdefault(spec(how or label), label)
    return lambda text: text if text in rows else by_meaning.get(spec(text), text)


# -- protocols beside each other ---------------------------------------------------------------------------


def _merged(began: Protocol, run: Protocol, named: Protocol) -> Protocol:
    """Return the named protocol with what the run has changed of the one that it was begun with."""
    methods = _merged_list(list(began.methods), list(run.methods), list(named.methods))
    rows = {**run.methods, **named.methods}
    judge = _merged_fields(began.evaluation, run.evaluation, named.evaluation)
    lists: dict[str, Any] = {
        name: tuple(_merged_list(*(list(getattr(each.evaluation, name)) for each in (began, run, named))))
        for name in ("metrics", "seeds")
    }
    reference = judge.reference if judge.reference in methods else None
    own = [(each.models, each.data, each.also) for each in (began, run, named)]
    models, data, also = own[2] if own[0] == own[1] else own[1]
    return replace(
        named,
        methods={label: rows[label] for label in methods},
        evaluation=replace(judge, reference=reference, **lists),
        models=tuple(replace(model, methods=tuple(m for m in model.methods if m in methods)) for model in models),
        data=replace(data, metrics=tuple(m for m in data.metrics if m in lists["metrics"])),
        also=tuple(replace(each, metrics=tuple(m for m in each.metrics if m in lists["metrics"])) for each in also),
    )


def _merged_list(began: list[Any], run: list[Any], named: list[Any]) -> list[Any]:
    removed = [each for each in began if each not in run]
    added = [each for each in run if each not in began]
    kept = [each for each in named if each not in removed]
    return [*kept, *(each for each in added if each not in kept)] or named


def _merged_fields(began: EvaluationSpec, run: EvaluationSpec, named: EvaluationSpec) -> EvaluationSpec:
    changed = [field.name for field in fields(EvaluationSpec) if getattr(run, field.name) != getattr(began, field.name)]
    return replace(named, **{name: getattr(run, name) for name in changed})


def _usable(protocol: Protocol) -> Protocol:
    """Return a protocol without the models that cannot run, as a run has it; all of them where none can."""
    models = tuple(model for model in protocol.models if not model.requires)
    return with_models(protocol, models) if models else protocol


def _plain(protocol: Protocol) -> Any:
    return json.loads(json.dumps(protocol.to_json()))


def _differences(before: Protocol, after: Protocol, dropped_only: bool = False) -> list[str]:
    """Return what one protocol lacks of another, and has more, in words."""
    told = []
    for noun, old, new in (
        ("models", [model.label for model in before.models], [model.label for model in after.models]),
        ("methods", list(before.methods), list(after.methods)),
        ("metrics", list(before.evaluation.metrics), list(after.evaluation.metrics)),
        ("seeds", list(map(str, before.evaluation.seeds)), list(map(str, after.evaluation.seeds))),
    ):
        for word, some in (
            ("dropped", [each for each in old if each not in new]),
            ("added", [] if dropped_only else [each for each in new if each not in old]),
        ):
            if some:
                told.append(f"{noun} {word}: {', '.join(map(one_line, some))}")
    other = [each for each, how in after.methods.items() if before.methods.get(each, how) != how]
    if other:
        told.append(f"methods with another meaning: {', '.join(map(one_line, other))}")
    if before.evaluation.reference is not None and after.evaluation.reference is None:
        told.append(f"reference dropped: {one_line(before.evaluation.reference)}")
    return told


def stale_units(settings: Sequence[RunConfig], plans: Sequence[RecordedPlan], finished: Collection[str]) -> list[str]:
    """Return the units that are left and were planned with other code than is here: nobody can do them any more."""
    marks = {spec: each.method_digests[name] for each in settings for name, spec in each.methods.items()}
    models = {each.label: each.fingerprint for each in settings}

    @cache
    def is_changed(noun: str, spec: str, planned: str) -> bool:
        try:
            if noun == "metric":
                return get_metric(spec).code != planned
            return (marks.get(spec) or mark_of(spec, method_of(spec))) != planned
        except VitreousError:  # what is not there any more is reported by whoever tries to do the unit
            return False

    def is_stale(setting: RunConfig, unit: Unit) -> bool:
        return (
            models.get(setting.label, setting.fingerprint) != setting.fingerprint
            or any(is_changed("method", setting.methods[name], setting.method_digests[name]) for name in unit.methods)
            or any(is_changed("metric", setting.metrics[name], setting.metric_digest(name)) for name in unit.metrics)
        )

    left = [(plan.settings[unit.setting], unit) for plan, unit in wanted_units(plans) if unit.id not in finished]
    return [unit.id for setting, unit in left if is_stale(setting, unit)]


def change_messages(settings: Sequence[RunConfig], units: Iterable[Unit], plans: Iterable[RecordedPlan]) -> list[str]:
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
        for key, marks, name, column in _cells(setting, unit):
            model, how, judge = before.get((setting.label, setting.data, key), marks)
            if model != marks[0]:
                again[f"your model {setting.label} changed"].add(unit.id)
            if how != marks[1]:
                subject = f"{_owner(setting.methods[name])} method {name} {_may(marks[1])}changed"
                again[subject].add(unit.id)
            if judge != marks[2]:
                again[f"your metric {column} {_may(marks[2])}changed"].add(unit.id)
    return [
        f"{subject}: {len(ids)} {'unit is' if len(ids) == 1 else 'units are'} computed again"
        for subject, ids in again.items()
    ]


def _cells(setting: RunConfig, unit: Unit) -> Iterator[tuple[Any, tuple[str, str, str], str, str]]:
    """Yield every cell of a unit, the digests of model, method and metric, and the labels of the last two."""
    columns = [(name, setting.metrics[name], setting.metric_digest(name)) for name in unit.metrics]
    for label in unit.methods:
        for name, what, mark in columns or [("", mode, "") for mode in unit.modes]:
            marks = (setting.fingerprint, setting.method_digests[label], mark)
            for picture in unit.pictures:
                yield (picture, unit.seed, setting.methods[label], what), marks, label, name


def _may(mark: str) -> str:
    return "may have " if is_unknown(mark) else ""


@cache
def _owner(spec: str) -> str:
    how = method_of(spec, [spec])  # of a setting that was just decided, by what the user names
    return (
        "your"
        if isinstance(how, ExternalExplainer) or any(is_external(type(part)) for part in how.components())
        else "the"
    )


def check_code(setting: RunConfig, unit: Unit, method: Callable[[RunConfig, str], Any]) -> None:
    """Refuse to do a unit with another method or metric than it was planned with, such as on a machine of a cluster."""
    for name in unit.methods:
        _refuse(name, setting.method_digests[name], mark_of(setting.methods[name], method(setting, name)))
    for name in unit.metrics:
        _refuse(name, setting.metric_digest(name), get_metric(setting.metrics[name]).code)


def _refuse(name: str, planned: str, here: str) -> None:
    if here != planned and not is_unknown(planned):
        text = "is not what this run was planned with: its code, files or parameters are others here"
        raise VitreousError(f"{name} {text}; give every worker the same ones, or start the run again")


def check_model(setting: RunConfig, identity: ModelIdentity) -> None:
    """Refuse a model that is not the one a unit was planned with."""
    planned = ModelIdentity.parse(setting.fingerprint)
    refuse_other_model(setting, identity, "give every worker the same model, or start the run again")
    if not planned.has_unknown_code:
        _refuse(setting.label, planned.code, identity.code)


def refuse_other_model(setting: RunConfig, identity: ModelIdentity, advice: str) -> None:
    """Refuse a model that differs in more than its code from the one that a run has under this label."""
    planned = ModelIdentity.parse(setting.fingerprint)
    different = identity.differences(planned, code=False)
    if different and not planned.structure:
        different = "another identity (an earlier version of Vitreous knew less of a model)"
    if different:
        raise VitreousError(f"{setting.label} has {different} than this run was begun with; {advice}")
