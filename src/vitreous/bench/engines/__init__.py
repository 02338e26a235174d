"""Who does the units of a run: processes here, or the actors of a Ray cluster. None of them changes a number."""

from __future__ import annotations

from vitreous.bench.engines.local import run_local
from vitreous.bench.engines.rays import run_ray
from vitreous.bench.run import Bench
from vitreous.data.progress import Progress
from vitreous.errors import VitreousError
from vitreous.words import at_least, check_choice

__all__ = ["ENGINES", "run"]

ENGINES = ("local", "ray")


def run(
    bench: Bench,
    engine: str = "local",
    *,
    workers: int | None = None,
    shard: tuple[int, int] | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    wait: float | None = None,
) -> None:
    """Do what is left of a run that is prepared; ``shard`` (i, n) is counted from 0, ``address`` is that of a cluster.

    ``wait`` are the seconds after which it gives up on a cluster that has no room for any worker.
    It returns when nothing is left that no other process is at.
    """
    check_choice("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise VitreousError(f"workers={workers} must be at least 1")
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise VitreousError(f"there is no shard {shard[0] + 1} of {shard[1]}")
    if wait is not None:
        at_least("wait", wait, 0)
    if engine == "ray":
        run_ray(bench, workers, shard, address, progress, wait)
    elif address is not None or wait is not None:
        named = f"address={address}" if address is not None else f"wait={wait:g}"
        raise VitreousError(f"{named} belongs to the engine ray")
    else:
        run_local(bench, workers, shard, progress)
    bench.refuse_unreadable()
