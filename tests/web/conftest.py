"""One explorer and one browser for all tests that leave them as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser import launch
from web_server import Client, served


@pytest.fixture(scope="package")
def client() -> Iterator[Client]:
    """An explorer with three models; a module that changes or counts what is in it has its own."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    with served("world", "world-shortcut", "world-cnn") as shared:
        yield shared
        assert shared.get("/api/start").status == 200, "it is not up any more"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A real browser; a test that asks for it is skipped where there is none."""
    with launch() as opened:
        yield opened
