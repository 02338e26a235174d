"""What every test finds: no network, no clocks, one torch thread per worker, real data where there is any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "agg")

# Neither may depend on how fast the machine is.
settings.register_profile("vitreous", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vitreous")

if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # subprocesses too
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real pictures and weights; a test that asks for it is skipped where it is absent."""
    if not DATA.is_dir():
        pytest.skip("needs real data in ../shared/data, which is not here")
    return DATA
