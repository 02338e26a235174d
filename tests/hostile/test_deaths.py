"""Kill -9 and Ctrl-C: nothing outside our own folders touched, every result whole or absent, every resume complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS = Path(__file__).with_name("faults.py")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def die(how: str, scenario: str, folder: Path, count: int) -> str:
    done = subprocess.run(
        [sys.executable, str(FAULTS), how, scenario, str(folder / "here"), str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("scenario", ["Save", "Overwrite", "OverwriteWithoutExchange", "Cache"])
def test_a_writer_may_die_before_any_operation(scenario: str, tmp_path: Path) -> None:
    assert "deaths at" in die("every", scenario, tmp_path, 1)


@pytest.mark.parametrize(("scenario", "stride"), [("Explain", 23), ("Stats", 7), ("Score", 5)])
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


@pytest.mark.parametrize("scenario", ["Overwrite", "Explain"])
def test_a_few_signals(scenario: str, tmp_path: Path) -> None:
    assert "6 signals" in die("random", scenario, tmp_path, 6)
