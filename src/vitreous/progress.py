"""How far a long run is: a callback, or a bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Union

from vitreous.errors import VitreousError

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[float, Union[int, None]], None]  # noqa: UP007 - evaluated at run time on Python 3.10
"""Called with how much is done (images, of which fractions count, or states) and how much there is, if known."""


@contextmanager
def bar(title: str, console: Console | None = None, hidden: bool = False) -> Iterator[Progress]:
    """Give a function that moves a bar. A terminal shows it until the work is done; elsewhere its last state stays."""
    from rich import progress as rich_progress
    from rich.console import Console

    console = console or Console(stderr=True, highlight=False)
    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.TextColumn("{task.completed:.1f}/{task.total}"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    with rich_progress.Progress(*columns, console=console, transient=console.is_terminal, disable=hidden) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def track_progress(progress: Progress | bool | None, title: str) -> Iterator[Progress | None]:
    """Give the function to call on the way: the user's own, that of a bar, or none."""
    if isinstance(progress, bool):
        if progress:
            with bar(title) as on_progress:
                yield on_progress
        else:
            yield None
    elif progress is None or callable(progress):
        yield progress
    else:
        raise VitreousError(f"progress={progress!r:.60} is neither True nor a function of done and total")
