"""Runs that are killed at random moments, each time resumed: nothing is lost, nothing counts twice, no bit differs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tiny_benchmark import TOML, assert_same, ran
from vitreous.benchmark.protocol import read
from vitreous.benchmark.store import Store, status

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals as on POSIX")
IMAGES = 12


def started(file: Path, out: Path, workers: int = 1) -> subprocess.Popen[Any]:
    arguments = ("bench", "run", str(file), "--out", str(out), "--device", "cpu", "--workers", str(workers))
    return subprocess.Popen(
        [sys.executable, "-m", "vitreous", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def finished(file: Path, out: Path, workers: int = 1) -> None:
    process = started(file, out, workers)
    outcome, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "units are done" in outcome


def at_work(process: subprocess.Popen[Any]) -> bool:
    """Wait until the process has planned and begins with units; false where it ended before."""
    assert process.stderr is not None
    return any(" units" in line for line in process.stderr)


def check(out: Path, complete: Path) -> None:
    store = Store(out)
    result = status(store)
    assert (result.done, result.damaged) == (result.total, ())
    assert len(store.plans()) == 1
    assert len(store.finished()) == result.total
    assert not list(out.rglob(".vitreous-*"))
    assert_same(out, complete)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("protocol") / "tiny.toml"
    path.write_text(TOML.format(images=IMAGES, steps=2, unit=2))
    return path


@pytest.fixture(scope="module")
def complete(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    ran(read(file), out)
    return out


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_at_random_moments(file: Path, complete: Path, tmp_path: Path, kills: int) -> None:
    draw, killed, number = random.Random(kills), 0, 0
    while killed < kills:
        out = tmp_path / str(number)
        while killed < kills:
            process = started(file, out, workers=1 + killed % 2)
            if draw.random() < 0.2:
                time.sleep(draw.uniform(0, 4))  # anywhere, also before the first unit
            elif at_work(process):
                time.sleep(draw.uniform(0, 0.6 if killed % 2 == 0 else 4))  # several workers have to start first
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=60)
            if process.returncode == 0:  # it was done before; the next one begins anew
                break
            assert process.returncode == -signal.SIGKILL
            killed += 1
        finished(file, out)
        check(out, complete)
        number += 1


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_interrupted_from_the_keyboard(file: Path, complete: Path, tmp_path: Path, workers: int) -> None:
    process = started(file, tmp_path / "run", workers)
    assert at_work(process)
    time.sleep(0.3 if workers == 1 else 3)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped: what was finished is kept" in errors
    assert "Traceback" not in errors
    assert len(Store(tmp_path / "run").finished()) < IMAGES
    finished(file, tmp_path / "run", workers)
    check(tmp_path / "run", complete)
