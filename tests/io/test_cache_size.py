"""The cache folder has an upper size: what was not used for longest leaves, and nobody who reads is disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous as vt
from families import FAMILIES
from statistics_cache import SCRIPT, TESTS, explained, only
from vitreous import io as disk
from vitreous.tracing import statistics_collect as scenes
from vitreous.tracing.statistics import ActivationStats


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing in memory, and a cache folder of its own that is not there yet."""
    scenes._cached.clear()
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    scenes._cached.clear()


def entry(folder: Path, digit: str, age: float, size: int = 1000) -> Path:
    """What looks like an entry that was used some seconds ago."""
    path = folder / f"world-{digit * 32}.safetensors"
    path.write_bytes(bytes(size))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_the_folder_has_an_upper_size(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not used for longest leaves, and nothing that is not of the cache."""
    fresh.mkdir(parents=True)
    others = [fresh / name for name in ("world.safetensors", "mine.safetensors", f"world-{'A' * 32}.safetensors")]
    others += [fresh / f".vitreous-{'b' * 16}-{'c' * 8}"]  # a writer is at work
    for other in others:
        other.write_bytes(bytes(5000))
    (fresh / f"world-{'d' * 32}.safetensors").mkdir()
    (fresh / f"world-{'e' * 32}.safetensors").symlink_to(others[0])
    left_behind = fresh / f".vitreous-{'0' * 16}-{'1' * 8}"
    left_behind.write_bytes(bytes(1000))
    os.utime(left_behind, (0, 0))
    entries = [entry(fresh, str(place), age=1000 - place) for place in range(6)]
    before = {*fresh.iterdir()}
    disk.mark_used(entries[0])
    monkeypatch.setenv("VITREOUS_CACHE_SIZE", str(3500 / 2**30))
    disk.trim_cache()
    assert before - {*fresh.iterdir()} == {left_behind, *entries[1:4]}
    monkeypatch.setenv("VITREOUS_CACHE_SIZE", "0")
    disk.trim_cache()
    assert before - {*fresh.iterdir()} == {left_behind, *entries}
    assert all(other.read_bytes() == bytes(5000) for other in others)


def test_the_entries_of_many_models_are_bounded(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FAMILIES["vit"]()
    explained(first)
    size = only(fresh).stat().st_size
    monkeypatch.setenv("VITREOUS_CACHE_SIZE", str(2.5 * size / 2**30))
    names = {only(fresh).name}
    for shift in range(1, 5):
        other = FAMILIES["vit"]()
        with torch.no_grad():
            other.head.bias += shift
        explained(other)
        explained(first)  # used again and again
        assert names <= {path.name for path in fresh.iterdir()}
        assert len([*fresh.iterdir()]) <= 2


def test_an_entry_that_leaves_while_it_is_read_is_made_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["vit"]()
    expected = explained(model)
    load = ActivationStats.load

    def late(path: Any) -> ActivationStats:
        monkeypatch.setenv("VITREOUS_CACHE_SIZE", "0")
        disk.trim_cache()
        monkeypatch.delenv("VITREOUS_CACHE_SIZE")
        return load(path)

    monkeypatch.setattr(ActivationStats, "load", late)
    assert torch.equal(explained(model), expected)
    only(fresh)


def test_processes_that_trim_and_read_at_once(fresh: Path) -> None:
    """There is room for less than one entry: each process removes what the other may be reading."""
    command = [sys.executable, "-W", "error::vitreous.VitreousWarning", "-c", SCRIPT, str(TESTS)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    small = {**os.environ, "OMP_NUM_THREADS": "1", "VITREOUS_CACHE_SIZE": "0.00000001"}
    both = [subprocess.Popen(command, text=True, env=small, **pipes) for _ in range(2)]
    report = [item.communicate("go\n") for item in both]
    assert [item.returncode for item in both] == [0, 0], report
    assert report[0][0] == report[1][0] != ""
    assert [*fresh.iterdir()] == []


@pytest.mark.parametrize("provided", ["much", "nan", "-1"])
def test_a_size_that_is_none_is_reported(fresh: Path, provided: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.mkdir(parents=True)
    remaining = entry(fresh, "0", age=10)
    monkeypatch.setenv("VITREOUS_CACHE_SIZE", provided)
    with pytest.warns(vt.VitreousWarning, match=f"VITREOUS_CACHE_SIZE={provided} is not a number of GiB"):
        disk.trim_cache()
    assert remaining.exists()
