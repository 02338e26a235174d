"""Kill -9 and Ctrl-C: nothing outside our own folders touched, every result whole or absent, every resume complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAULTS = Path(__file__).parent.parent / "support" / "faults.py"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def long(scenario: str) -> Any:
    return pytest.param(scenario, marks=pytest.mark.slow)


def die(schedule: str, scenario: str, folder: Path, count: int) -> str:
    done = subprocess.run(
        [sys.executable, str(FAULTS), schedule, scenario, str(folder / "here"), str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("scenario", ["Overwrite", *map(long, ["Save", "OverwriteWithoutExchange", "Cache"])])
def test_a_writer_may_die_before_any_operation(scenario: str, tmp_path: Path) -> None:
    assert "deaths at" in die("every", scenario, tmp_path, 1)


@pytest.mark.parametrize(("scenario", "stride"), [("Explain", 41), ("Stats", 11), ("Score", 11)])
def test_a_command_may_die_before_any_operation(scenario: str, stride: int, tmp_path: Path) -> None:
    assert "deaths at" in die("every", scenario, tmp_path, stride)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["Explain", "Stats", "Score"])
def test_a_command_may_die_before_every_operation(scenario: str, tmp_path: Path) -> None:
    assert "deaths at" in die("every", scenario, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["Overwrite", "Explain", "Stats", "Score"])
def test_a_thousand_signals(scenario: str, tmp_path: Path) -> None:
    assert "250 signals" in die("random", scenario, tmp_path, 250)


@pytest.mark.parametrize("scenario", ["Overwrite", long("Explain")])
def test_a_few_signals(scenario: str, tmp_path: Path) -> None:
    assert "6 signals" in die("random", scenario, tmp_path, 6)
