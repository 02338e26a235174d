"""Rooms that answer when called: ``vitreous.methods`` is a package, ``vitreous.methods()`` lists what is in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["listed_by"]


def listed_by(room: str, listing: Callable[[], Any]) -> None:
    """Make the package ``room`` callable: the call returns ``listing()``."""

    class Room(ModuleType):
        def __call__(self) -> Any:
            sys.modules["vitreous"]._complete()  # the room may have been imported by its own name, before the rest
            return listing()

    sys.modules[room].__class__ = Room
