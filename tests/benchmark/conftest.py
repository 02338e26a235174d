"""One small finished run for all tests, and copies of it for those that change it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_benchmark import copied, ran, tiny


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two images and two units."""
    out = tmp_path_factory.mktemp("original") / "run"
    ran(tiny(images=2), out)
    return out


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """A finished run of one's own, of two units."""
    return copied(original, tmp_path / "run")
