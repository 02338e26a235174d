"""What the library warns about while it works, told to whoever asked for that work."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vitreous.errors import VitreousWarning, one_line

__all__ = ["listening"]

_local = threading.local()


@contextmanager
def listening() -> Iterator[list[str]]:
    """Give a list that fills with the warnings of this thread, each once.

    Filters of warnings belong to all threads, so they are not put back here: another thread may be listening too.
    """
    before = warnings.showwarning
    if not isinstance(before, _Ear):
        warnings.showwarning = _Ear(before)
    if not any(kind is VitreousWarning and action == "always" for action, _, kind, *_ in warnings.filters):
        warnings.simplefilter("always", VitreousWarning)
    heard: list[str] = []
    _local.heard = heard
    try:
        yield heard
    finally:
        _local.heard = None


class _Ear:
    """Keeps what is warned about in a thread that listens; everything else goes where it went before."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        heard = getattr(_local, "heard", None)
        if heard is None or not issubclass(category, VitreousWarning):
            self.before(message, category, *place, **more)
        elif (text := one_line(str(message))) not in heard:
            heard.append(text)
