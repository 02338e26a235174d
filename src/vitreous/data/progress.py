"""How far a long run is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

__all__ = ["Progress"]

Progress = Callable[[float, Union[int, None]], None]  # noqa: UP007 - evaluated at run time on Python 3.10
"""Called with how much is done (images, of which parts count, or states) and how much there is, if that is known."""
