"""From what is wanted and what is there to the units that are missing.

A *cell* is one picture, method and seed (its map), or one picture, method, metric and seed (its score), under one
identity of model and settings. What a recorded plan has a cell in is never planned again: a run that is extended by
pictures, methods or metrics gets new units, and none of the old ones changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from vitreous.benchmark.units import RecordedPlan, RunConfig, Task, Unit
from vitreous.errors import VitreousError, one_line

__all__ = [
    "Cell",
    "as_before",
    "asks_more",
    "map_cell",
    "missing_units",
    "open_tasks",
    "places",
    "score_cell",
    "sources",
    "wanted_units",
]

Cell = tuple[str, ...]


def missing_units(
    setting: RunConfig,
    number: int,
    seeds: Sequence[int],
    pictures: Sequence[str],
    plans: Sequence[RecordedPlan],
    stale: Collection[str] = (),
) -> list[Unit]:
    """Return the units of one model that no plan has yet: for each group of pictures its maps, then its scores.

    Pictures that miss the same things go together, in their order, ``setting.images`` at a time. What ``stale`` units
    were to find counts as missing.
    """
    counting = [(plan.settings[unit.setting], unit) for plan, unit in wanted_units(plans) if unit.id not in stale]
    known = {cell for theirs, unit in counting for cell in _cells(theirs, unit)}
    units: list[Unit] = []
    for seed in seeds:
        for group in _groups(setting, seed, pictures, known):
            units += _of_group(setting, number, seed, group, known)
    return units


def _groups(setting: RunConfig, seed: int, pictures: Sequence[str], known: set[Cell]) -> list[list[str]]:
    """Return the pictures that miss something, those with the same gaps together."""
    gaps: dict[tuple[Cell, ...], list[str]] = {}
    for picture in pictures:
        missing = tuple(cell[1:] for cell in _wanted(setting, seed, picture) if cell not in known)
        if missing:
            gaps.setdefault(missing, []).append(picture)
    size = setting.images_per_unit
    return [some[at : at + size] for some in gaps.values() for at in range(0, len(some), size)]


def _of_group(setting: RunConfig, number: int, seed: int, group: Sequence[str], known: set[Cell]) -> list[Unit]:
    first = group[0]
    modes = {
        name: tuple(mode for mode in setting.modes if _map(setting, seed, first, name, mode) not in known)
        for name in setting.methods
    }
    metrics = {
        name: tuple(m for m in setting.metrics if _score(setting, seed, first, name, m) not in known)
        for name in setting.methods
    }
    return [
        *(Unit.of(setting, number, seed, group, names, modes=missing) for missing, names in _alike(modes)),
        *(Unit.of(setting, number, seed, group, names, metrics=missing) for missing, names in _alike(metrics)),
    ]


def _alike(missing: Mapping[str, tuple[str, ...]]) -> list[tuple[tuple[str, ...], list[str]]]:
    """Return what is missing, and the methods that miss just that."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, some in missing.items():
        if some:
            alike.setdefault(some, []).append(name)
    return list(alike.items())


def _wanted(setting: RunConfig, seed: int, picture: str) -> list[Cell]:
    maps = [_map(setting, seed, picture, name, mode) for name in setting.methods for mode in setting.modes]
    return maps + [_score(setting, seed, picture, name, m) for name in setting.methods for m in setting.metrics]


def _cells(setting: RunConfig, unit: Unit) -> list[Cell]:
    pairs = [(picture, name) for picture in unit.pictures for name in unit.methods]
    if unit.judges:
        return [_score(setting, unit.seed, *pair, metric) for pair in pairs for metric in unit.metrics]
    return [_map(setting, unit.seed, *pair, mode) for pair in pairs for mode in unit.modes]


def _map(setting: RunConfig, seed: int, picture: str, method: str, mode: str) -> Cell:
    return picture, setting.identity, str(seed), setting.methods[method], setting.method_digests[method], mode


def _score(setting: RunConfig, seed: int, picture: str, method: str, metric: str) -> Cell:
    return (
        picture,
        setting.identity,
        str(seed),
        setting.methods[method],
        setting.method_digests[method],
        "",
        setting.metrics[metric],
        setting.metric_digest(metric),
    )


def places(plans: Iterable[RecordedPlan]) -> dict[Cell, str]:
    """Return which unit has each cell; the first plan that has it counts, unless a later one replaces that unit."""
    some = list(plans)
    found: dict[Cell, str] = {}
    for plan in some:
        gone = _replaced(some, plan)
        for unit in plan.units:
            if unit.id not in gone:
                for cell in _cells(plan.settings[unit.setting], unit):
                    found.setdefault(cell, unit.id)
    return found


map_cell, score_cell = _map, _score


def sources(where: Mapping[Cell, str], setting: RunConfig, unit: Unit, modes: Sequence[str]) -> dict[Cell, str]:
    """Return which unit has each map that a judging unit reads; ``where`` are the ``places`` of all plans."""
    wanted = [
        _map(setting, unit.seed, picture, name, mode)
        for picture in unit.pictures
        for name in unit.methods
        for mode in modes
    ]
    missing = next((cell for cell in wanted if cell not in where), None)
    if missing is not None:
        raise VitreousError(f"unit {unit.id} reads maps of {one_line(missing[3])} that no unit of the run makes")
    return {cell: where[cell] for cell in wanted}


def wanted_units(plans: Sequence[RecordedPlan]) -> list[tuple[RecordedPlan, Unit]]:
    """Return every unit that counts: those that no later plan replaces."""
    found: dict[str, tuple[RecordedPlan, Unit]] = {}
    for plan in plans:
        gone = _replaced(plans, plan)
        for unit in plan.units:
            if unit.id not in gone:
                found.setdefault(unit.id, (plan, unit))
    return list(found.values())


def open_tasks(
    plans: Sequence[RecordedPlan], finished: set[str], shard: tuple[int, int] | None = None
) -> list[tuple[RecordedPlan, Task]]:
    """Return what is left, units of the same pictures together; of a ``shard`` (i, n), counted from 0, its part.

    Who has which pictures is decided by where a plan first names them, not by what is left: it stays as it is when a
    run is resumed or extended.
    """
    left = [(plan, unit) for plan, unit in wanted_units(plans) if unit.id not in finished]
    tasks = [
        (some[0][0], Task(tuple(unit for _, unit in some)))
        for some in (list(group) for _, group in groupby(left, key=_together))
    ]
    if shard is None:
        return tasks
    mine, of = shard
    numbers = _numbers(plans)
    return [(plan, task) for plan, task in tasks if numbers[task.pictures[0]] % of == mine]


def _together(one: tuple[RecordedPlan, Unit]) -> tuple[int, int, int, tuple[str, ...]]:
    plan, unit = one
    return plan.revision, unit.setting, unit.seed, unit.pictures


def _numbers(plans: Sequence[RecordedPlan]) -> dict[str, int]:
    """Return the number of the group in which each picture is first named."""
    found: dict[str, int] = {}
    groups: dict[tuple[str, ...], int] = {}
    for plan in plans:
        for unit in plan.units:
            number = groups.setdefault(unit.pictures, len(groups))
            for picture in unit.pictures:
                found.setdefault(picture, number)
    return found


def _replaced(plans: Sequence[RecordedPlan], plan: RecordedPlan) -> set[str]:
    """Return the units of a plan that a later one runs in smaller parts, since memory ran out."""
    return {unit for later in plans if later.revision > plan.revision for unit in later.replaces}


def as_before(setting: RunConfig, plans: Sequence[RecordedPlan]) -> RunConfig:
    """Keep the sizes of an earlier plan of the same model, so that a machine with more memory changes nothing."""
    for plan in reversed(plans):
        for known in plan.settings:
            if known.identity == setting.identity and known.device == setting.device:
                sizes = {
                    name: getattr(known, name)
                    for name in ("images_per_unit", "attribution_batch", "forward_batch", "threads", "memory_gb")
                }
                return replace(setting, **sizes)
    return setting


def asks_more(setting: RunConfig, plans: Sequence[RecordedPlan]) -> bool:
    """Whether no plan has all these rows and columns under these labels: what is the same may be called otherwise.

    What was planned last under a label counts: code may be what it was before.
    """
    there = [known for plan in plans for known in plan.settings if _who(known)[:2] == _who(setting)[:2]]
    known = dict(pair for each in there if _who(each) == _who(setting) for pair in _rows_and_columns(each))
    return not there or _who(there[-1]) != _who(setting) or not _rows_and_columns(setting) <= {*known.items()}


def _rows_and_columns(setting: RunConfig) -> set[tuple[Any, ...]]:
    rows = {(("method", name, how), setting.method_digests[name]) for name, how in setting.methods.items()}
    return rows | {(("metric", name, how), setting.metric_digest(name)) for name, how in setting.metrics.items()}


def _who(setting: RunConfig) -> tuple[str, str, str]:
    return setting.label, setting.data, setting.identity
