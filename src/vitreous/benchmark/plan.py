"""From what is wanted and what is there to the units that are missing.

A *cell* is one image, method and seed (its map), or one image, method, metric and seed (its score), under one identity
of model and configuration. What a recorded plan has a cell in is never planned again: a run that is extended by
images, methods or metrics gets new units, and none of the old ones changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit
from vitreous.errors import VitreousError, one_line

CellKey = tuple[str, ...]
Gaps = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]


def map_cell(config: RunConfig, seed: int, image: str, method: str, mode: str) -> CellKey:
    """Return the key of one map."""
    return image, config.identity, str(seed), *config.made_of(method), mode


def score_cell(config: RunConfig, seed: int, image: str, method: str, metric: str) -> CellKey:
    """Return the key of one score."""
    made_of = config.made_of(method)
    return image, config.identity, str(seed), *made_of, "", config.metrics[metric], config.metric_digest(metric)


def missing_units(
    config: RunConfig,
    number: int,
    seeds: Sequence[int],
    images: Sequence[str],
    plans: Sequence[RecordedPlan],
    stale: Collection[str] = (),
) -> list[Unit]:
    """Return the units of one model that no plan has yet: for each group of images its maps, then its scores.

    Images that miss the same things go together, in their order, ``images_per_unit`` at a time. What ``stale`` units
    were to make counts as missing.
    """
    counting = [(plan.config_of(unit), unit) for plan, unit in wanted_units(plans) if unit.id not in stale]
    planned = {cell for planned_config, unit in counting for cell in _cells(planned_config, unit)}
    units: list[Unit] = []
    for seed in seeds:
        groups: dict[Gaps, list[str]] = {}
        for image in images:
            groups.setdefault(_gaps(config, seed, image, planned), []).append(image)
        size = config.evaluation.images_per_unit
        for gaps, group in groups.items():
            for at in range(0, len(group), size):
                units += _units_of_group(config, number, seed, group[at : at + size], gaps)
    return units


def _gaps(config: RunConfig, seed: int, image: str, planned: set[CellKey]) -> Gaps:
    """Return each method with the modes and the metrics that an image misses."""

    def missing(cell: Callable[..., CellKey], method: str, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if cell(config, seed, image, method, name) not in planned)

    return tuple(
        (method, missing(map_cell, method, config.modes), missing(score_cell, method, config.metrics))
        for method in config.methods
    )


def _units_of_group(config: RunConfig, number: int, seed: int, images: Sequence[str], gaps: Gaps) -> list[Unit]:
    """Return the units of images with the same gaps: methods that miss the same modes or metrics go together."""
    modes: dict[tuple[str, ...], list[str]] = {}
    metrics: dict[tuple[str, ...], list[str]] = {}
    for method, no_map, no_score in gaps:
        modes.setdefault(no_map, []).append(method)
        metrics.setdefault(no_score, []).append(method)
    return [
        *(Unit.of(config, number, seed, images, names, modes=missing) for missing, names in modes.items() if missing),
        *(Unit.of(config, number, seed, images, names, metrics=labels) for labels, names in metrics.items() if labels),
    ]


def _cells(config: RunConfig, unit: Unit) -> list[CellKey]:
    pairs = [(image, name) for image in unit.images for name in unit.methods]
    if unit.is_scoring:
        return [score_cell(config, unit.seed, *pair, metric) for pair in pairs for metric in unit.metrics]
    return [map_cell(config, unit.seed, *pair, mode) for pair in pairs for mode in unit.modes]


def units_by_cell(plans: Sequence[RecordedPlan]) -> dict[CellKey, str]:
    """Return which unit has each cell; the first plan that has it counts, unless a later one replaces that unit."""
    units: dict[CellKey, str] = {}
    for plan in plans:
        replaced = _replaced(plans, plan)
        for unit in plan.units:
            if unit.id not in replaced:
                for cell in _cells(plan.config_of(unit), unit):
                    units.setdefault(cell, unit.id)
    return units


def units_of_maps(
    by_cell: Mapping[CellKey, str], config: RunConfig, unit: Unit, modes: Sequence[str]
) -> dict[CellKey, str]:
    """Return which unit has each map that a scoring unit reads; ``by_cell`` are the units of all plans."""
    names = product(unit.images, unit.methods, modes)
    cells = [map_cell(config, unit.seed, *name) for name in names]
    missing = next((cell for cell in cells if cell not in by_cell), None)
    if missing is not None:
        raise VitreousError(f"unit {unit.id} reads maps of {one_line(missing[3])} that no unit of the run makes")
    return {cell: by_cell[cell] for cell in cells}


def wanted_units(plans: Sequence[RecordedPlan]) -> list[tuple[RecordedPlan, Unit]]:
    """Return every unit that counts: those that no later plan replaces."""
    units: dict[str, tuple[RecordedPlan, Unit]] = {}
    for plan in plans:
        replaced = _replaced(plans, plan)
        for unit in plan.units:
            if unit.id not in replaced:
                units.setdefault(unit.id, (plan, unit))
    return list(units.values())


def _replaced(plans: Sequence[RecordedPlan], plan: RecordedPlan) -> set[str]:
    """Return the units of a plan that a later one runs in smaller batches, since memory ran out."""
    return {unit for later in plans if later.revision > plan.revision for unit in later.replaces}


def open_units(
    plans: Sequence[RecordedPlan], finished: set[str], shard: tuple[int, int] | None = None
) -> list[tuple[RecordedPlan, Unit]]:
    """Return what is left; of a ``shard`` (i, n), counted from 0, its part: units of the same images stay together.

    Who has which images is decided by where a plan first names them, not by what is left: it stays as it is when a
    run is resumed or extended.
    """
    left = [(plan, unit) for plan, unit in wanted_units(plans) if unit.id not in finished]
    if shard is None:
        return left
    part, parts = shard
    numbers = _group_numbers(plans)
    return [(plan, unit) for plan, unit in left if numbers[unit.images[0]] % parts == part]


def _group_numbers(plans: Sequence[RecordedPlan]) -> dict[str, int]:
    """Return the number of the group in which each image is first named."""
    numbers: dict[str, int] = {}
    groups: dict[tuple[str, ...], int] = {}
    for unit in (unit for plan in plans for unit in plan.units):
        number = groups.setdefault(unit.images, len(groups))
        for image in unit.images:
            numbers.setdefault(image, number)
    return numbers


def keep_batch_sizes(config: RunConfig, plans: Sequence[RecordedPlan]) -> RunConfig:
    """Keep the sizes of an earlier plan of the same model, so that a machine with more memory changes nothing."""
    for earlier in (earlier for plan in reversed(plans) for earlier in plan.configs):
        if earlier.identity == config.identity and earlier.device == config.device:
            return replace(config.with_batch_sizes(**earlier.batch_sizes), threads=earlier.threads)
    return config


def has_new_rows(configs: Iterable[RunConfig], plans: Iterable[RecordedPlan]) -> bool:
    """Whether no plan has all these rows and columns under these labels: what is the same may be called otherwise.

    What was planned last under a label counts: code may be what it was before.
    """
    last: dict[tuple[str, str], str] = {}
    rows: dict[tuple[str, str, str], dict[Any, str]] = {}
    for config in (config for plan in plans for config in plan.configs):
        last[config.label, config.data] = config.identity
        rows.setdefault((config.label, config.data, config.identity), {}).update(_rows_and_columns(config))
    return any(
        last.get((config.label, config.data)) != config.identity
        or not _rows_and_columns(config).items() <= rows[config.label, config.data, config.identity].items()
        for config in configs
    )


def _rows_and_columns(config: RunConfig) -> dict[tuple[str, str, str], str]:
    """Return the digest of each method and metric by its label and spec."""
    rows = {("method", label, spec): config.method_digests[label] for label, spec in config.methods.items()}
    return rows | {("metric", label, spec): config.metric_digest(label) for label, spec in config.metrics.items()}
