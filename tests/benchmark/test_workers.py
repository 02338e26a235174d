"""Runs of a benchmark by several processes, with foreign methods, and from the command line."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from commands import run as command
from tiny_benchmark import TOML, arrays, assert_same, bench, copied, of_folder, photos, ran, tiny
from vitreous import io as disk
from vitreous.benchmark.executors import run as run_engine
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store, status
from vitreous.errors import VitreousError
from vitreous.progress import Pace, duration_in_words

pytestmark = pytest.mark.usefixtures("one_thread")

# -- methods from elsewhere --------------------------------------------------------------------------------


def test_folders_of_maps_and_callables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, maps = photos(tmp_path / "photos", 2), tmp_path / "maps"
    maps.mkdir()
    for number in range(2):
        np.save(maps / f"{number:04d}.npy", np.random.default_rng(number).random((8, 8), dtype=np.float32))
    (tmp_path / "elsewhere.py").write_text("def brightness(model, inputs, classes):\n    return inputs.sum(dim=1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    rows = {"stored": str(maps), "bright": "elsewhere:brightness"}
    store = ran(of_folder(folder, methods=rows), tmp_path / "run")
    result = store.read(store.plans()[0].units[0].id)
    assert result is not None
    assert store.plans()[0].units[0].methods == ("bright", "stored")
    assert result[0]["maps/1"].tolist() == [np.load(maps / f"{number:04d}.npy").tolist() for number in range(2)]
    np.save(maps / "0000.npy", np.ones((8, 8), np.float32))  # other maps are another method
    assert len(bench(of_folder(folder, methods=rows), tmp_path / "run").store.plans()) == 2


# -- several processes -------------------------------------------------------------------------------------


def test_several_workers_and_one_that_is_killed(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(done: float, total: int | None) -> None:
        children = [
            active_child
            for active_child in multiprocessing.active_children()
            if active_child.name.startswith("vitreous-bench")
        ]
        if done >= 1 and not killed and children:
            killed.append(children[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    protocol = tiny(images=8)
    created = bench(protocol, tmp_path / "run")
    run_engine(created, workers=2, progress=kill)
    assert killed
    assert created.counts() == (8, 8)
    assert not [
        active_child
        for active_child in multiprocessing.active_children()
        if active_child.name.startswith("vitreous-bench")
    ]
    ran(protocol, tmp_path / "alone")
    assert_same(tmp_path / "run", tmp_path / "alone")


def test_a_unit_that_fails_in_one_worker_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photos(tmp_path / "photos", 4)
    pixels = np.zeros((40, 40, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "0000.png")
    code = "def dark(model, inputs, classes):\n    return inputs.sum(dim=1) / (1 // int(inputs.std() > 0))\n"
    (tmp_path / "fragile.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    created = bench(of_folder(folder, methods={"dark": "fragile:dark"}, images_per_unit=1), tmp_path / "run")
    with pytest.raises(VitreousError, match=r"^1 units failed 3 times, such as ZeroDivisionError"):
        run_engine(created, workers=2)
    assert created.counts() == (6, 8)


def test_what_a_worker_refuses_is_reported_by_the_parent(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 4)
    created = bench(of_folder(folder), tmp_path / "run")
    (folder / "0003.png").write_bytes((folder / "0002.png").read_bytes())
    with pytest.raises(VitreousError, match=r"^0003\.png of folder has changed"):
        run_engine(created, workers=2)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"engine": "slurm"}, "slurm"),
        ({"workers": 0}, "workers=0"),
        ({"shard": (2, 2)}, "no shard 3 of 2"),
        ({"address": "auto"}, "belongs to the engine ray"),
    ],
)
def test_bad_engines_are_refused(tmp_path: Path, more: Any, text: str) -> None:
    with pytest.raises(VitreousError, match=text):
        run_engine(BenchmarkRun(tiny(), tmp_path / "run"), **more)


# -- the command line --------------------------------------------------------------------------------------


def test_commands(tmp_path: Path) -> None:
    file, out = tmp_path / "tiny.toml", tmp_path / "run"
    file.write_text(TOML.format(images=2, steps=2, unit=2))
    first = command("bench", "run", file, "--out", out, "--device", "cpu", "--workers", 1)
    assert first.code == 0, first
    assert f"2 of 2 units are done in {out}" in first.out
    more = ("--method", "+rollout", "--metric", "+gini", "--seed", 0, "--seed", 1, "--images", 3, "-q")
    again = command("bench", "run", file, "--out", out, "--device", "cpu", "--workers", 1, *more)
    assert (again.code, again.out) == (0, "")
    plan = Store(out).plans()[-1]
    assert set(plan.configs[0].methods) >= {"raw_attention", "saliency", "rollout", "random"}
    assert list(plan.configs[0].metrics) == ["deletion(steps=2)", "gini"]
    assert {unit.seed for unit in plan.units} == {0, 1}
    outcome = command("bench", "status", out)
    assert "plan 2: extended" in outcome.out
    assert "MiB on disk" in outcome.out
    only = command("bench", "run", file, "--out", tmp_path / "only", "--method", "rollout", "--shard", "1/1", "-q")
    assert only.code == 0, only
    assert "saliency" not in Store(tmp_path / "only").plans()[0].configs[0].methods


def test_commands_that_are_wrong(tmp_path: Path) -> None:
    out = ("--out", tmp_path / "run")
    for arguments, text in (
        (("run", "quick", *out, "--shard", "3/2"), "--shard 3/2"),
        (("run", "quick", *out, "--checkpoint", "x"), "LABEL=FILE"),
        (("run", "quick", *out, "--engine", "slurm"), "slurm"),
        (("run", "quik", *out), "did you mean quick"),
        (("run", "quick", *out, "--method", "no_such_method"), "no_such_method"),
        (("status", tmp_path), "is no run"),
    ):
        done = command("bench", *arguments)
        assert done.code == 2, arguments
        assert text in done.err, done.err
        assert done.err.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert "quick" in command("bench", "list").out


def test_paces_and_times_in_words() -> None:
    assert [duration_in_words(item) for item in (0.4, 59, 60, 3725, 90000)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "1 h 2 min",
        "1 d 1 h",
    ]
    pace = Pace()
    assert pace.line(4, 10) == "4/10 units"
    pace.began -= 60
    assert pace.line(7, 10).startswith("7/10 units, 3.0 per minute, 1 min")


def test_status_estimates_what_is_left(complete: Path, tmp_path: Path) -> None:
    out = copied(complete, tmp_path / "run")
    store = bench(tiny(images=8), out).store
    result = status(store)
    assert result.models == {"world": (4, 8)}
    assert result.left == pytest.approx(result.seconds)  # as much again
    assert result.size == sum(file.stat().st_size for file in (out / "units").glob("*.npz"))
    assert result.to_json()["done"] == 4
    assert dataclasses.asdict(result)["damaged"] == ()
    disk.discard(out / "units" / f"{next(iter(store.finished()))}.npz")
    assert status(store).done == 3
    assert len(arrays(out)) == 3
