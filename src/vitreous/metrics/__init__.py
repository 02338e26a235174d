"""Metrics: what judges the maps. Third parties offer theirs under the entry-point group ``vitreous.metrics``."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from vitreous.rooms import listed_by

__all__ = ["metrics"]


def metrics() -> list[Any]:
    """Return the metrics there are: so far only those that other packages bring."""
    return [entry.load() for entry in entry_points(group="vitreous.metrics")]


listed_by(__name__, metrics)
