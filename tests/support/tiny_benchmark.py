"""Benchmarks of a few seconds, and what to compare of them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.benchmark.data import Options
from vitreous.benchmark.plan import map_cell, score_cell, wanted_units
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store

METHODS = ("raw_attention", "rollout")
METRICS = ("deletion(steps=2)",)

TOML = """
schema = "vitreous.protocol/1"
title = "Tiny"

[[models]]
label = "world"
name = "world"

[data]
source = "world"
split = "test"
images = {images}

[evaluation]
metrics = ["deletion(steps={steps})"]
images_per_unit = {unit}

[methods]
"raw_attention" = "raw_attention"
"saliency" = "saliency"

[layout]
rows = "methods"
columns = ["metrics"]
"""


def tiny(images: int = 4, methods: Any = METHODS, metrics: Any = METRICS, **more: Any) -> Protocol:
    """Two cheap methods, one cheap metric and a few scenes, two in a unit."""
    options = {"images_per_unit": 2, "controls": False, **more}
    rows = dict(methods) if isinstance(methods, dict) else {name: name for name in methods}
    return Protocol(
        name="tiny",
        title="Tiny",
        models=(ModelSpec("world", options.pop("name", "world")),),
        data=options.pop("data", DataSpec("world", images=images, split="test")),
        evaluation=EvaluationSpec(metrics=tuple(metrics), **options),
        methods=rows,
    )


def photos(folder: Path, count: int, side: int = 40) -> Path:
    """Put some pictures of noise into a folder."""
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    return folder


def of_folder(folder: Path, **more: Any) -> Protocol:
    return tiny(data=DataSpec("folder", path=str(folder)), **more)


def bench(protocol: Protocol, out: Path, **more: Any) -> BenchmarkRun:
    created = BenchmarkRun(protocol, out, Options(device="cpu", threads=1, **more))
    created.prepare()
    return created


def ran(protocol: Protocol, out: Path, **more: Any) -> Store:
    """Run it to the end, here."""
    created = bench(protocol, out, **more)
    created.work()
    return created.store


def copied(run: Path, out: Path) -> Path:
    shutil.copytree(run, out)
    return out


def arrays(out: Path) -> dict[str, dict[str, Any]]:
    """What every unit found, by its id; times and such are left out."""
    store = Store(out)
    result = {}
    for unit in store.finished():
        read = store.read(unit)
        assert read is not None, unit
        result[unit] = read[0]
    return result


def assert_same(one: Path, other: Path) -> None:
    """Two runs of one plan have the same units and, bit for bit, the same numbers."""
    left, right = arrays(one), arrays(other)
    assert left.keys() == right.keys()
    assert left
    for unit, result in left.items():
        assert result.keys() == right[unit].keys()
        for name, values in result.items():
            other_values = right[unit][name]
            assert values.dtype == other_values.dtype, (unit, name)
            assert values.tobytes() == other_values.tobytes(), (unit, name)


def cells(out: Path) -> dict[tuple[str, ...], Any]:
    """Every map and every score of a run by what it is of, whatever the units."""
    store, result = Store(out), {}
    for plan, unit in wanted_units(store.plans()):
        setting, read = plan.config_of(unit), store.read(unit.id)
        assert read is not None, unit
        values, info = read
        for place, picture in enumerate(info["images"]):
            for i, name in enumerate(unit.methods):
                for mode in unit.modes:
                    row = values[f"rows/{i}/{mode}"][place]
                    result[map_cell(setting, unit.seed, picture, name, mode)] = values[f"maps/{i}"][row]
                for j, label in enumerate(unit.metrics):
                    result[score_cell(setting, unit.seed, picture, name, label)] = values[f"parts/{i}/{j}"][place]
    return result


def assert_close(one: Path, other: Path) -> None:
    """Two runs have the same cells, and the same numbers but for rounding."""
    left, right = cells(one), cells(other)
    assert left.keys() == right.keys()
    for cell, values in left.items():
        np.testing.assert_allclose(values, right[cell], rtol=1e-5, atol=1e-5, err_msg=str(cell))


QUICK = ("--device", "cpu", "--workers", 1)


def two_sets() -> Protocol:
    wanted = tiny(methods=("rollout", "ixg"), metrics=("gini", "pointing_game"))
    data = DataSpec("world", label="one", images=2, split="test", metrics=("gini",))
    models = (ModelSpec("world", "world"), ModelSpec("cnn", "world-cnn", methods=("ixg",)))
    also = (DataSpec("world", label="two", images=2, split="train"),)
    return dataclasses.replace(wanted, data=data, also=also, models=models)
