"""What a command adds to the protocol of a run, removes from it, or puts in its place.

``+x`` adds x to what the run has, ``-x`` removes it, and a plain list replaces all. A run's folder holds its whole
protocol, so that what was added once stays until it is removed: the protocol that a later command names only says which
one the run was begun with. The other way round, the commands that make a run again are those of its protocol.

And what is planned again: units of methods, metrics and models whose code, files or parameters have changed.
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import compress
from operator import ne
from typing import Any

from vitreous.benchmark.data import explainer_digest, is_import, parse_explainer
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.protocol import (
    EvaluationSpec,
    Protocol,
    add_model,
    read,
    replace_model,
    shipped,
    with_models,
)
from vitreous.benchmark.protocol_io import protocol_from_json
from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit
from vitreous.code_digest import is_external, is_unknown
from vitreous.errors import VitreousError, nearest, one_line
from vitreous.evaluation.plan import ExternalExplainer
from vitreous.methods import get_method
from vitreous.metrics import EvaluationConfig, get_metric
from vitreous.registry import check_choice, choices_of
from vitreous.registry.defaults import CONTROLS
from vitreous.registry.spec import split_specs


@dataclass(frozen=True)
class Changes:
    """Options of a command as they were typed; ``size`` is the input size of the models in it."""

    methods: Sequence[str] = ()
    metrics: Sequence[str] = ()
    seeds: Sequence[str] = ()
    models: Sequence[str] = ()
    size: int | None = None
    precision: str | None = None

    def to_arguments(self) -> list[str]:
        """Return the options in words; a value that begins with a minus is joined to its option."""
        lists = {"--model": self.models, "--method": self.methods, "--metric": self.metrics, "--seed": self.seeds}
        words: list[str] = []
        for option, texts in lists.items():
            for text in texts:
                words += [f"{option}={text}"] if text.startswith("-") else [option, text]
            if option == "--model" and self.size is not None:
                words += ["--img-size", str(self.size)]
        return words if self.precision is None else [*words, "--precision", self.precision]


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
    run = protocol_from_json(wanted["protocol"])
    if run.name != named.name:
        return named, [f"this was a run of {run.name}, and is one of {named.name} now", *_differences(run, named)]
    begun = protocol_from_json(wanted["named"]) if "named" in wanted else run
    if begun.to_json() == named.to_json():
        return run, []
    merged = _merge(_runnable_models(begun), run, _runnable_models(named))
    differences = _differences(run, merged)
    return merged, [f"{named.name} has changed since this run was begun", *differences] if differences else []


def apply_changes(
    protocol: Protocol, changes: Changes, named: Protocol | None = None, plans: Sequence[RecordedPlan] = ()
) -> tuple[Protocol, list[str]]:
    """Return the protocol with the changes, and what they drop of it, in words.

    Labels of ``named``, the protocol as it comes, mean its rows and models also where the run has left them out. What
    it has, or an earlier of the ``plans`` had, may be removed again: the same command can be given twice.
    """
    changed, original = protocol, protocol if named is None else named
    if changes.precision is not None:
        check_choice("precision", changes.precision, choices_of(EvaluationConfig)["precision"])
        changed = replace(changed, evaluation=replace(changed.evaluation, precision=changes.precision))
    for change in (_change_models, _change_methods, _change_metrics, _change_seeds):
        changed = change(changed, original, changes, plans)
    return changed, _differences(protocol, changed, dropped_only=True)


def refuse_unnamed_code(protocol: Protocol, named: Protocol, changes: Changes) -> None:
    """Refuse rows whose code only the files of the run name: they may be from anybody, and importing runs code."""
    texts = {part for text in changes.methods for part in (text.lstrip("+"), *split_specs(text.lstrip("+")))}
    for label, spec in protocol.methods.items():
        if is_import(spec) and spec not in named.methods.values() and not texts & {label, spec}:
            text = one_line(label)
            raise VitreousError(
                f"the run has the row {text}, which imports {one_line(spec)}, and this command does not name it: "
                f"add --method '+{text}' if you trust that code, or --method='-{text}' to go on without"
            )


# -- one option at a time ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Edit:
    """An option that was given several times: what is named plainly, what with a plus, and what with a minus."""

    noun: str
    replacing: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def parse(
        cls, noun: str, texts: Iterable[str], label_of: Callable[[str], str], labels: Iterable[str] = ()
    ) -> _Edit:
        """Read the texts; ``label_of`` gives the name that is meant. ``labels`` are not cut at commas."""
        by_sign: dict[str, list[str]] = {"": [], "+": [], "-": []}
        uncut = set(labels)
        for text in texts:
            sign = text[:1] if text[:1] in ("+", "-") else ""
            value = text[len(sign) :].strip()
            values = [value] if value in uncut else split_specs(value)
            if not any(values):
                raise VitreousError(f"--{noun} {one_line(repr(text))} names no {noun}")
            by_sign[sign] += map(label_of, values)
        return cls(noun, *(tuple(dict.fromkeys(names)) for names in by_sign.values()))

    def apply(self, current: Sequence[str], where: str, past: Collection[str] = ()) -> list[str]:
        """Return the list with these changes; what is not there may be removed if it was there in the past."""
        names = list(self.replacing or current)
        for name in self.removed:
            if name in self.added:
                raise VitreousError(f"--{self.noun} both adds and removes {one_line(name)}")
            if name not in names and name not in past:
                text = f"{where} has no {self.noun} {one_line(repr(name))} that could be removed"
                raise VitreousError(text + nearest(name, names))
        left = [name for name in names if name not in self.removed]
        left += [name for name in self.added if name not in left]
        if not left:
            raise VitreousError(f"no {self.noun} of {where} would be left")
        return left

    def apply_to_part(self, current: Sequence[str], where: str) -> tuple[str, ...]:
        """Return a list that a model or data set has for itself; empty, which means all, where others are named."""
        if not current or self.replacing:
            return ()
        own = replace(self, removed=tuple(name for name in self.removed if name in current))
        return tuple(own.apply(current, where))


def _planned(plans: Sequence[RecordedPlan], kind: str) -> set[str]:
    """Return the labels of all models, methods or metrics that were ever planned."""
    values = [getattr(config, kind) for plan in plans for config in plan.configs]
    return {name for value in values for name in ([value] if isinstance(value, str) else value)}


def _change_methods(protocol: Protocol, named: Protocol, changes: Changes, plans: Sequence[RecordedPlan]) -> Protocol:
    rows = {**named.methods, **protocol.methods}
    edit = _Edit.parse("method", changes.methods, _labels_by_meaning(rows, lambda spec: get_method(spec).spec), rows)
    past = {*named.methods, *_planned(plans, "methods")} - set(CONTROLS)
    names = edit.apply(list(protocol.methods), protocol.name, past)
    if names == list(protocol.methods):
        return protocol
    reference = protocol.evaluation.reference if protocol.evaluation.reference in names else None
    return replace(
        protocol,
        methods={name: rows.get(name, name) for name in names},
        evaluation=replace(protocol.evaluation, reference=reference),
        models=tuple(replace(m, methods=edit.apply_to_part(m.methods, m.label)) for m in protocol.models),
    )


def _change_metrics(protocol: Protocol, named: Protocol, changes: Changes, plans: Sequence[RecordedPlan]) -> Protocol:
    current = protocol.evaluation.metrics
    past = {*named.evaluation.metrics, *_planned(plans, "metrics")}
    columns = dict.fromkeys([*current, *named.evaluation.metrics, *sorted(past)], "")
    label_of = _labels_by_meaning(columns, lambda spec: get_metric(spec).spec)
    edit = _Edit.parse("metric", changes.metrics, label_of, columns)
    names = tuple(edit.apply(current, protocol.name, past))
    if names == current:
        return protocol
    data, *also = (replace(d, metrics=edit.apply_to_part(d.metrics, d.label or d.source)) for d in protocol.datasets)
    return replace(protocol, evaluation=replace(protocol.evaluation, metrics=names), data=data, also=tuple(also))


def _change_seeds(protocol: Protocol, named: Protocol, changes: Changes, plans: Sequence[RecordedPlan]) -> Protocol:
    def seed(text: str) -> str:
        if not (text.isascii() and text.isdecimal()):
            raise VitreousError(f"--seed {one_line(text)} is no whole number from 0 on")
        return str(int(text))

    current = list(map(str, protocol.evaluation.seeds))
    past = {*map(str, named.evaluation.seeds), *(str(unit.seed) for plan in plans for unit in plan.units)}
    seeds = _Edit.parse("seed", changes.seeds, seed).apply(current, protocol.name, past)
    return replace(protocol, evaluation=replace(protocol.evaluation, seeds=tuple(map(int, seeds))))


def _change_models(protocol: Protocol, named: Protocol, changes: Changes, plans: Sequence[RecordedPlan]) -> Protocol:
    texts, size = changes.models, changes.size
    if size is not None and all(text.startswith("-") for text in texts):
        raise VitreousError("--img-size is that of another model: give --model too")
    if not texts:
        return protocol
    edit = _Edit.parse("model", texts, str, [text.lstrip("+-").strip() for text in texts])  # names may have commas
    labels = edit.apply(_labels(protocol), protocol.name, {*_labels(named), *_planned(plans, "label")})
    models = {model.label: model for model in (*_runnable_models(named).models, *protocol.models)}
    specs = models if size is None else {}
    changed = protocol
    for label in edit.replacing[:1]:
        if label not in specs:
            changed = replace_model(changed, label, size)
            continue
        if specs[label] not in changed.models:  # the run has left it out before, perhaps with its data
            changed = replace(changed, data=named.data, also=named.also)
        changed = with_models(changed, (specs[label],))
    for label in (*edit.replacing[1:], *edit.added):
        if label not in _labels(changed):
            changed = add_model(changed, specs.get(label, label), size)
    left = tuple(model for model in changed.models if model.label in labels)
    return changed if left == changed.models else with_models(changed, left)


def _labels(protocol: Protocol) -> list[str]:
    return [model.label for model in protocol.models]


def _labels_by_meaning(rows: dict[str, str], canonical: Callable[[str], str]) -> Callable[[str], str]:
    """Return what gives the label of a text: itself, or the row that means the same in another spec."""

    def meaning(text: str) -> str:
        try:
            return canonical(text)
        except VitreousError:  # a folder of maps, a callable; or a mistake, which the run refuses by name
            return text

    labels = {meaning(spec or label): label for label, spec in reversed(rows.items())}  # the first of equal ones
    return lambda text: text if text in rows else labels.get(meaning(text), text)


# -- protocols beside each other ---------------------------------------------------------------------------


def _merge(begun: Protocol, run: Protocol, named: Protocol) -> Protocol:
    """Return the named protocol with what the run has changed of the one that it was begun with."""
    methods = _merge_lists(list(begun.methods), list(run.methods), list(named.methods))
    evaluation = _merge_evaluation(begun.evaluation, run.evaluation, named.evaluation)
    source = named if (begun.models, begun.datasets) == (run.models, run.datasets) else run
    data, *also = (replace(d, metrics=_only(d.metrics, evaluation.metrics)) for d in source.datasets)
    rows = {**run.methods, **named.methods}
    return replace(
        named,
        methods={label: rows[label] for label in methods},
        evaluation=evaluation if evaluation.reference in methods else replace(evaluation, reference=None),
        models=tuple(replace(model, methods=_only(model.methods, methods)) for model in source.models),
        data=data,
        also=tuple(also),
    )


def _only(names: Sequence[str], wanted: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in wanted)


def _merge_evaluation(begun: EvaluationSpec, run: EvaluationSpec, named: EvaluationSpec) -> EvaluationSpec:
    values = {f.name: [getattr(spec, f.name) for spec in (begun, run, named)] for f in fields(EvaluationSpec)}
    merged = {name: old[1] if old[0] != old[1] else old[2] for name, old in values.items()}
    lists = {name: tuple(_merge_lists(*map(list, values[name]))) for name in ("metrics", "seeds")}
    return EvaluationSpec(**{**merged, **lists})


def _merge_lists(begun: list[Any], run: list[Any], named: list[Any]) -> list[Any]:
    merged = [item for item in named if item in run or item not in begun]
    return [*merged, *(item for item in run if item not in begun and item not in merged)] or named


def _runnable_models(protocol: Protocol) -> Protocol:
    """Return a protocol without the models that cannot run, as a run has it; all of them where none can."""
    models = tuple(model for model in protocol.models if not model.requires)
    return with_models(protocol, models) if models else protocol


def _differences(before: Protocol, after: Protocol, dropped_only: bool = False) -> list[str]:
    """Return what one protocol lacks of another, and has more, in words."""
    lines = []
    old, new = (
        {"models": _labels(p), "methods": p.methods, "metrics": p.evaluation.metrics, "seeds": p.evaluation.seeds}
        for p in (before, after)
    )
    for noun in old:
        lines += _missing_names(f"{noun} dropped", old[noun], new[noun])
        lines += [] if dropped_only else _missing_names(f"{noun} added", new[noun], old[noun])
    other = {label: spec for label, spec in after.methods.items() if before.methods.get(label, spec) != spec}
    lines += _missing_names("methods with another meaning", other, ())
    if before.evaluation.reference is not None and after.evaluation.reference is None:
        lines.append(f"reference dropped: {one_line(before.evaluation.reference)}")
    return lines


def _missing_names(title: str, names: Iterable[Any], others: Collection[Any]) -> list[str]:
    missing = [one_line(str(name)) for name in names if name not in others]
    return [f"{title}: {', '.join(missing)}"] if missing else []


# -- the commands of a protocol ----------------------------------------------------------------------------


def commands(protocol: Protocol, wanted: Mapping[str, Any], folder: str, threads: int, file: str) -> list[str]:
    """Return the commands that make the run and its report again, also in another folder.

    A protocol that comes along is named, with what was changed of it as options; any other one, and changes that no
    options can say, are read from ``file``, where the report has the whole protocol.
    """
    changes = _changes_of(protocol)
    words = ["vitreous", "bench", "run", file if changes is None else protocol.name, "--out", folder]
    data = wanted.get("data") or {}
    for label, place in data.items() if isinstance(data, Mapping) else [("", str(data))]:
        words += ["--data", f"{label}={place}" if label else place]
    words += [] if changes is None else changes.to_arguments()
    if wanted.get("images") is not None:
        words += ["--images", str(wanted["images"])]
    for label, weights in (wanted.get("checkpoint") or {}).items():
        words += ["--checkpoint", f"{label}={weights}"]
    words += ["--threads", str(threads)] if threads != 1 else []
    return [shlex.join(words), shlex.join(["vitreous", "bench", "report", folder])]


def _changes_of(run: Protocol) -> Changes | None:
    """Return the changes that make a protocol of the one that comes along; ``None`` where none do."""
    if run.name not in shipped():
        return None
    usual = read(run.name)
    models = _labels(run) if set(_labels(run)) - set(_labels(usual)) else []
    size = next((model.size for model in run.models if model.label in models), None)
    seeds = [] if run.evaluation.seeds == usual.evaluation.seeds else list(map(str, run.evaluation.seeds))
    precision = None if run.evaluation.precision == usual.evaluation.precision else run.evaluation.precision
    candidates = (
        Changes(methods, metrics, seeds, models, size, precision)
        for methods in _edits(list(run.methods), list(usual.methods))
        for metrics in _edits(list(run.evaluation.metrics), list(usual.evaluation.metrics))
    )
    return next((changes for changes in candidates if _gives(usual, changes, run)), None)


def _edits(run: list[str], usual: list[str]) -> list[list[str]]:
    """Return what may make one list of another: nothing, what was added and removed, or all of it by name."""
    added, removed = [name for name in run if name not in usual], [name for name in usual if name not in run]
    edit = [*(f"-{name}" for name in removed), *(f"+{name}" for name in added)]
    return [edit, run] if len(removed) < len(usual) else [run]


def _gives(usual: Protocol, changes: Changes, run: Protocol) -> bool:
    """Whether these changes of a protocol give just what was run, in its order."""
    try:
        changed = apply_changes(usual, changes)[0].runnable()
    except VitreousError:
        return False
    return json.dumps(changed.to_json()) == json.dumps(run.runnable().to_json())


# -- code, files and models that changed -------------------------------------------------------------------


def stale_units(configs: Sequence[RunConfig], plans: Sequence[RecordedPlan], finished: Collection[str]) -> list[str]:
    """Return the units that are left and were planned with other code than is here: nobody can do them any more."""
    digests = {spec: config.method_digests[label] for config in configs for label, spec in config.methods.items()}
    models = {config.label: config.fingerprint for config in configs}

    @cache
    def is_changed(spec: str, planned: str, is_metric: bool) -> bool:
        try:
            code = get_metric(spec).code if is_metric else digests.get(spec)
            return (explainer_digest(spec, parse_explainer(spec)) if code is None else code) != planned
        except VitreousError:  # it is gone: whoever tries to do a unit of it says so
            return False

    def is_stale(config: RunConfig, unit: Unit) -> bool:
        codes = [(*config.made_of(label), False) for label in unit.methods]
        codes += [(config.metrics[label], config.metric_digest(label), True) for label in unit.metrics]
        return models.get(config.label) not in (None, config.fingerprint) or any(is_changed(*code) for code in codes)

    left = ((plan, unit) for plan, unit in wanted_units(plans) if unit.id not in finished)
    return [unit.id for plan, unit in left if is_stale(plan.config_of(unit), unit)]


def change_messages(configs: Sequence[RunConfig], units: Iterable[Unit], plans: Iterable[RecordedPlan]) -> list[str]:
    """Say in a line for each thing that has changed how many of the new ``units`` there are because of it."""
    before = {
        cell: digests
        for plan in plans
        for unit in plan.units
        for cell, digests, *_ in _digested_cells(plan.config_of(unit), unit)
    }
    again: dict[str, set[str]] = defaultdict(set)
    for unit in units:
        config = configs[unit.config]
        for cell, digests, method, metric in _digested_cells(config, unit):
            old = before.get(cell, digests)
            if old == digests:
                continue
            _, method_digest, metric_digest = digests
            subjects = (
                f"your model {config.label} changed",
                f"{_owner(config.methods[method])} method {method} {_may(method_digest)}changed",
                f"your metric {metric} {_may(metric_digest)}changed",
            )
            for subject in compress(subjects, map(ne, old, digests)):
                again[subject].add(unit.id)
    return [
        f"{subject}: {len(ids)} {'unit is' if len(ids) == 1 else 'units are'} computed again"
        for subject, ids in again.items()
    ]


def _digested_cells(config: RunConfig, unit: Unit) -> Iterator[tuple[tuple[Any, ...], tuple[str, str, str], str, str]]:
    """Yield each cell, the digests of its model, method and metric, and the labels of the last two."""
    columns = [(label, config.metrics[label], config.metric_digest(label)) for label in unit.metrics]
    for method in unit.methods:
        for metric, column, digest in columns or [("", mode, "") for mode in unit.modes]:
            digests = (config.fingerprint, config.method_digests[method], digest)
            for image in unit.images:
                key = config.label, config.data, image, unit.seed, config.methods[method], column
                yield key, digests, method, metric


def _may(digest: str) -> str:
    return "may have " if is_unknown(digest) else ""


@cache
def _owner(spec: str) -> str:
    explainer = parse_explainer(spec, [spec])  # of a configuration that was just decided, by what the user names
    if isinstance(explainer, ExternalExplainer):
        return "your"
    return "your" if any(is_external(type(component)) for component in explainer.components()) else "the"
