"""Pictures to whose true class a model gives too little: left out of a run, counted and named."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import vitreous as vt
from commands import run as command
from tiny_benchmark import photos, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import DataSpec, read
from vitreous.benchmark.report import report
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store, status
from vitreous.errors import VitreousError


@pytest.fixture(scope="module")
def probabilities() -> dict[str, float]:
    """The probability of the true class of some scenes, by the model alone."""
    model = vt.load("world", device="cpu")
    source = BenchmarkRun(tiny(images=6), "nowhere").datasets[0].images.source
    samples = [source.sample(model, number) for number in range(6)]
    inputs = torch.stack([sample.image.tensor for sample in samples])
    with torch.no_grad():
        rows = model.module(inputs).softmax(dim=1)
    return {sample.image.name: float(row[sample.label]) for sample, row in zip(samples, rows, strict=True)}


def scenes(least: float | None, images: int = 6) -> DataSpec:
    return DataSpec("world", images=images, split="test", least_confidence=least)


def test_pictures_below_it_are_left_out_and_named(tmp_path: Path, probabilities: dict[str, float]) -> None:
    least = float(np.mean(sorted(probabilities.values())[2:4]))  # three of six are below
    below = {name for name, chance in probabilities.items() if chance < least}
    assert len(below) == 3
    store = ran(tiny(data=scenes(least)), tmp_path / "run")
    result = status(store)
    assert set(result.uncertain) == below
    assert (result.done, result.unreadable) == (result.total, {})
    (part,) = collect(store)
    assert set(part.table.images) == set(probabilities) - below
    assert set(part.uncertain) == below
    assert part.missing.cells == 0
    outcome = command("bench", "status", tmp_path / "run")
    assert "3 images are left out since the model gives their class too little:" in outcome.out
    name = min(below)
    assert f"{name}: " in outcome.out
    assert f"has {probabilities[name]:.2g}, less than {least:g}" in outcome.out
    written = report(tmp_path / "run")
    assert "3 pictures to whose true class the model gives less than" in written.page.read_text()
    rows = list(csv.DictReader((written.folder / "uncertain.csv").read_text().splitlines()))
    assert {(row["model"], row["image"]) for row in rows} == {("world", item) for item in below}


def test_all_or_none_may_be_left_out(tmp_path: Path, probabilities: dict[str, float]) -> None:
    ran(tiny(data=scenes(1.0, 2)), tmp_path / "none")
    (part,) = collect(Store.open(tmp_path / "none"))
    assert (part.table.images, len(part.uncertain)) == ((), 2)
    assert report(tmp_path / "none").page.exists()
    ran(tiny(data=scenes(min(probabilities.values()) / 2, 2)), tmp_path / "all")
    (part,) = collect(Store.open(tmp_path / "all"))
    assert (len(part.table.images), part.uncertain) == (2, {})


def test_another_limit_is_another_number(tmp_path: Path) -> None:
    """Which pictures count is part of what a cell is: nothing is taken over from a run with another limit."""
    ids = []
    for number, least in enumerate([None, 0.1, 0.2]):
        bench = BenchmarkRun(tiny(data=scenes(least, 2)), tmp_path / str(number), Options(device="cpu"))
        ids.append({unit.id for plan in bench.prepare().plans() for unit in plan.units})
    assert not ids[0] & ids[1]
    assert not ids[1] & ids[2]


def test_it_needs_true_classes(tmp_path: Path) -> None:
    data = DataSpec("folder", path=str(photos(tmp_path / "photos", 2)), least_confidence=0.5)
    with pytest.raises(VitreousError, match=r"least_confidence needs the true class of 0000\.png"):
        ran(tiny(data=data), tmp_path / "run")


@pytest.mark.parametrize("arguments", ["0.0", "1.5", "-0.1", '"high"'])
def test_what_is_no_probability_is_refused(tmp_path: Path, arguments: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'schema = "vitreous.protocol/1"\ntitle = "x"\nmodels = [{{label = "m", name = "world"}}]\n'
        f'[data]\nsource = "world"\nleast_confidence = {arguments}\n'
        f'[evaluation]\nmetrics = ["gini"]\n[methods]\na = "rollout"\n'
    )
    with pytest.raises(VitreousError, match=r"mine\.toml: data\.least_confidence = "):
        read(path)


def test_the_papers_rule_for_objects_of_coco() -> None:
    for name in ("var-table1", "var-table3"):
        wanted = read(name)
        limits = {item.source: item.least_confidence for item in (wanted.data, *wanted.also)}
        assert limits == {"quad-imagenet": None, "part-quad-imagenet": None, "coco": 1e-4}
