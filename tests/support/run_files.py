"""Stores of a benchmark written by hand, with numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, ModelSpec, Protocol
from vitreous.benchmark.store import Store
from vitreous.benchmark.units import RecordedPlan, RunConfig, Unit
from vitreous.evaluation.runner import Cost

METHODS = {"generic": "generic", "ours": "rollout", "random": "random"}
METRICS = {"insertion": "insertion", "deletion": "deletion"}
SETTING = RunConfig(
    label="net",
    model={"label": "net", "name": "world"},
    fingerprint="f" * 32,
    dtype="float32",
    device="cpu",
    size=(32, 32),
    preprocess={
        "size": [32, 32],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "interpolation": "bicubic",
        "crop": 1.0,
        "mode": "center",
    },
    methods=METHODS,
    method_digests=dict.fromkeys(METHODS, "m"),
    metrics=METRICS,
)


def score(picture: str, method: str, metric: str, seed: int = 0, shift: float = 0.0) -> float:
    """A number for every cell: what it is can be said without any file."""
    return (ord(picture[0]) % 16 + 3 * len(method) + 10 * len(metric) + 100 * seed) / 1000 + shift


def save_unit(store: Store, unit: Unit, arrays: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write the file of a unit as numpy alone would."""
    info = np.frombuffer(json.dumps({"unit": unit.to_json(), **metadata}).encode(), np.uint8)
    (store.path / "units").mkdir(exist_ok=True)
    np.savez(store.path / "units" / f"{unit.id}.npz", **arrays, **{"info.json": info})


def save_scores(store: Store, unit: Unit, bad: Sequence[str] = (), shift: float = 0.0, flags: Any = None) -> None:
    readable = [image for image in unit.images if image not in bad]
    arrays: dict[str, Any] = {"confidence/pred": np.array([ord(element[0]) % 16 / 100 for element in readable])}
    for i, method in enumerate(unit.methods):
        arrays[f"flags/{i}/given"] = np.array([1 if (entry, method) == flags else 0 for entry in readable])
        for j, metric in enumerate(unit.metrics):
            values = np.array([[score(item, method, metric, unit.seed, shift)] for item in readable])
            arrays[f"parts/{i}/{j}"] = values
            arrays[f"curve/{i}/{j}/0/{metric}/x"] = np.array([0.0, 0.5, 1.0])
            arrays[f"curve/{i}/{j}/0/{metric}/y"] = values + np.array([0, 1, 2])
    facts = {"images": readable, "unreadable": dict.fromkeys(bad, "cut short"), "seconds": 2.0}
    more = {"device": "cpu", "threads": 1, "versions": {"vitreous": "0", "torch": "1"}}
    save_unit(store, unit, arrays, {**facts, **more})


def save_maps(store: Store, unit: Unit, costs: Mapping[str, Cost] | None = None) -> None:
    arrays: dict[str, Any] = {}
    for i, method in enumerate(unit.methods):
        arrays[f"maps/{i}"] = np.stack(
            [np.full((2, 2), 10 * len(method) + ord(image[0]) % 16) for image in unit.images]
        )
        arrays[f"rows/{i}/given"] = np.arange(len(unit.images))
    text: dict[str, Any] = {"images": list(unit.images), "unreadable": {}, "seconds": 6.0, "explaining": 5.0}
    if costs is not None:
        text["costs"] = [asdict(costs[method]) for method in unit.methods]
    save_unit(store, unit, arrays, text)


def score_unit(pictures: str, seed: int = 0, setting: RunConfig = SETTING, number: int = 0, **which: Any) -> Unit:
    methods, metrics = which.get("methods", list(setting.methods)), which.get("metrics", list(setting.metrics))
    return Unit.of(setting, number, seed, [image * 8 for image in pictures], methods, metrics=metrics)


def create_store(path: Path, wanted: Mapping[str, Any] | None = None) -> Store:
    return Store.create(path / "run", wanted or {"protocol": protocol().to_json()})


def add_plan(store: Store, units: Sequence[Unit], setting: RunConfig = SETTING, replaces: Sequence[str] = ()) -> None:
    names = {image: f"picture {image[0]}" for unit in units for image in unit.images}
    revision = len(store.plans()) + 1
    store.add_plan(RecordedPlan(revision, (setting,), tuple(units), "wanted", names, tuple(replaces)))


def protocol(methods: Mapping[str, str] = METHODS, **more: Any) -> Protocol:
    settings: dict[str, Any] = {
        "name": "mine",
        "title": "A title with <b>",
        "models": (ModelSpec("net", "world"),),
        "data": DataSpec("folder", path="nowhere"),
        "evaluation": EvaluationSpec(tuple(METRICS), reference="generic"),
        "methods": {name: options for name, options in methods.items() if name != "random"},
    }
    return Protocol(**{**settings, **more})


def create_run(
    tmp_path: Path,
    benchmark_protocol: Protocol,
    pictures: str = "abcdefgh",
    setting: RunConfig = SETTING,
    **wanted: Any,
) -> Path:
    """Create a finished run of one unit of scores."""
    options = {
        "protocol": benchmark_protocol.to_json(),
        "data": None,
        "images": None,
        "checkpoint": {},
        "sources": [],
        **wanted,
    }
    store, unit = create_store(tmp_path, options), score_unit(pictures, setting=setting)
    add_plan(store, [unit], setting)
    save_scores(store, unit)
    return store.path
