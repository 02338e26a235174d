"""What every test finds: no network, no clocks, one torch thread per worker, real data where there is any."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "agg")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers and subprocesses have this one too
    os.environ["VITREOUS_CACHE"] = tempfile.mkdtemp(prefix="vitreous-cache-")

# Neither may depend on how fast the machine is.
settings.register_profile("vitreous", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vitreous")

if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # subprocesses too
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["VITREOUS_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _cache_of_this_run() -> Iterator[None]:
    """The command line switches the cache off for its process: here that is one test."""
    before = os.environ["VITREOUS_CACHE"]
    yield
    os.environ["VITREOUS_CACHE"] = before


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser; a test that asks for it is skipped where there is none."""
    from browser import launch

    with launch() as opened:
        yield opened


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real pictures and weights; a test that asks for it is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip("needs real data in ../shared/data, which is not here")
    return DATA


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Torch has one thread in a module that asks for it, as the workers of a benchmark have."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small benchmark that nobody interrupted."""
    from tiny_benchmark import ran, tiny

    out = tmp_path_factory.mktemp("complete") / "run"
    ran(tiny(), out)
    return out


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scenes of the world went through a model at once, each time that some did."""
    from vitreous.tracing import statistics_collect as scenes

    counted: list[int] = []
    real = scenes.statistics_of

    def counting(model: Any, inputs: Any, *args: Any) -> Any:
        counted.append(len(inputs))
        return real(model, inputs, *args)

    monkeypatch.setattr(scenes, "statistics_of", counting)
    return counted
