"""Two writers of one result, and real signals while a method runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous as vt
from vitreous import io as disk

SUPPORT = Path(__file__).parent.parent / "support"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def script(name: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(SUPPORT / name), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def long(method: str) -> Any:
    return pytest.param(method, marks=pytest.mark.slow)


@pytest.mark.parametrize("options", [(), pytest.param(("without-exchange",), marks=pytest.mark.slow)])
def test_two_writers_leave_one_whole_result(options: tuple[str, ...], tmp_path: Path) -> None:
    assert "read" in script("writers.py", tmp_path, 40, *options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("without-exchange",)])
def test_two_writers_three_hundred_times(options: tuple[str, ...], tmp_path: Path) -> None:
    assert "read" in script("writers.py", tmp_path, 300, *options)


def test_a_second_writer_gets_a_clear_line(tmp_path: Path) -> None:
    place = tmp_path / "s.safetensors"
    with disk.lock(place), pytest.raises(vt.VitreousError, match="another process is writing"), disk.lock(place, 0):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["coiba(steps=4)", long("tis(masks=64)"), long("skipplus(decompx)")])
def test_interrupts_leave_nothing_behind(method: str) -> None:
    assert "12 interrupts" in script("signal_process.py", method, 12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["coiba", "tis", "skipplus(decompx)", "smooth(generic)", "scorecam"])
def test_five_hundred_interrupts_leave_nothing_behind(method: str) -> None:
    assert "500 interrupts" in script("signal_process.py", method, 500)
