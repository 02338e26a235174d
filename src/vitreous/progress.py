"""How far a long run is: a callback, or a bar on standard error."""

from __future__ import annotations

import time
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
    if progress is True:
        with bar(title) as on_progress:
            yield on_progress
    elif progress is None or progress is False or callable(progress):
        yield progress or None
    else:
        raise VitreousError(f"progress={progress!r:.60} is neither True nor a function of done and total")


class ProgressCounter:
    """Adds up inputs or states that were run, and calls a progress function with their sum and their total number.

    ``is_estimate`` says that there may be more of them than this total: what goes beyond it is not reported.
    """

    def __init__(self, progress: Progress | None, total: int | None, is_estimate: bool = False) -> None:
        self.progress, self.total, self.done = progress, total, 0
        self.limit = total if is_estimate and total is not None else float("inf")

    def __call__(self, count: int) -> None:
        self.done += count
        if self.progress is not None and count:
            self.progress(min(self.done, self.limit), self.total)


def duration_in_words(seconds: float) -> str:
    """Return a time as people say it: 42 s, 1 min 16 s, 2 h 5 min, 1 d 3 h."""
    total = round(seconds)
    for unit, size, smaller, divisor in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if total >= size:
            return f"{total // size} {unit} {total % size // divisor} {smaller}"
    return f"{total} s"


class Pace:
    """The rate of a run since it was first looked at, and the time that is left at this rate."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: float | None = None

    def line(self, done: float, total: float | None) -> str:
        """Return a line such as ``12/80 units, 0.9 per second, 1 min 16 s left``."""
        self.first = done if self.first is None else self.first
        passed, progress = time.monotonic() - self.began, done - self.first
        text = f"{done:.0f}/{total or 0:.0f} units"
        if progress <= 0 or passed <= 0:
            return text
        rate = progress / passed
        pace = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
        return f"{text}, {pace}, {duration_in_words(((total or 0) - done) / rate)} left"
