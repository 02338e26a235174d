"""The one way to cut a stream into batches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

__all__ = ["cut"]

T = TypeVar("T")


def cut(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of ``size`` items, the last one shorter; nothing is read before it is asked for."""
    source = iter(items)
    while part := list(islice(source, min(size, sys.maxsize))):
        yield part
