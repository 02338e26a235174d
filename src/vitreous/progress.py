"""How far a long run is.

How far a long run is, as a bar on standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Union

from vitreous.errors import VitreousError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Followed",
    "Progress",
    "bar",
    "followed",
]

Progress = Callable[[float, Union[int, None]], None]  # noqa: UP007 - evaluated at run time on Python 3.10
"""Called with how much is done (images, of which parts count, or states) and how much there is, if that is known."""

Tick = Callable[[float, Union[int, None]], None]  # noqa: UP007 - evaluated at run time on Python 3.10
Followed = Union[Tick, bool, None]  # noqa: UP007
"""What users may pass as ``progress``: a function of done and total, or ``True`` for a bar."""


@contextmanager
def bar(what: str, console: Console | None = None, hidden: bool = False) -> Iterator[Tick]:
    """Give a function that moves a bar. A terminal shows it until the work is done; elsewhere its last state stays."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.1f}/{task.total}"))
    where = Console(stderr=True, highlight=False) if console is None else console
    with Progress(
        *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=where, transient=where.is_terminal, disable=hidden
    ) as drawn:
        task = drawn.add_task(what, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total)


@contextmanager
def followed(progress: Followed, what: str) -> Iterator[Tick | None]:
    """Give the function to call on the way: the user's own, that of a bar, or none."""
    if isinstance(progress, bool):
        if progress:
            with bar(what) as on_progress:
                yield on_progress
        else:
            yield None
    elif progress is None or callable(progress):
        yield progress
    else:
        raise VitreousError(f"progress={progress!r:.60} is neither True nor a function of done and total")
