"""Processes of this machine, one for each GPU or some on the CPU; they share the work by claims in the folder alone.

The parent gives out nothing. It counts finished units, starts another process where one was killed, and takes all of
them along when it goes.

Who does the units of a run: processes here, or the actors of a Ray cluster. None of them changes a number.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

import torch

from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.ray_executor import run_ray
from vitreous.benchmark.run import BenchmarkRun, UnitsFailed
from vitreous.errors import VitreousError, one_line
from vitreous.progress import Progress
from vitreous.registry import check_at_least, check_choice

__all__ = [
    "ENGINES",
    "run",
    "run_local",
    "usual_workers",
]

RESTARTS = 5
"""How many processes may be killed before a run gives up."""
_REFUSED, _FAILED = 3, 4  # exit codes of a process that has said why; after the second one others may go on
_MOST_WORKERS = 8
_LOOK = 0.5  # seconds between two looks at the folder


def run_local(
    bench: BenchmarkRun,
    workers: int | None = None,
    shard: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> None:
    """Do what is left with some processes; with one, here."""
    left = len(bench.tasks(shard))
    count = min(usual_workers(bench) if workers is None else workers, max(left, 1))
    if progress is not None:
        progress(*bench.counts())
    if count == 1:
        bench.work(shard, progress)
    elif left:
        _Several(bench, shard, progress).run(count)


def usual_workers(bench: BenchmarkRun) -> int:
    """Return how many processes there are unless it is said: one per GPU, or as many as have cores of their own."""
    devices = {setting.device for plan in bench.store.plans() for setting in plan.settings}
    if devices != {"cpu"}:
        return max(_gpus(bench.options), 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // bench.options.threads, _MOST_WORKERS))


def _gpus(options: Options) -> int:
    """Return how many GPUs there are to choose from."""
    return torch.cuda.device_count() if options.device in ("auto", "cuda") else 0


@dataclass
class _Member:
    """One process, the line on which it says where it is, and the unit that it said last."""

    number: int
    process: Any
    line: Any
    unit: str | None = None
    said: str = "it did not say why"

    def listen(self) -> None:
        """Take in what it has said."""
        with suppress(EOFError, OSError):
            while self.line.poll():
                what, text = self.line.recv()
                if what == "unit":
                    self.unit = text
                else:
                    self.said = text


class _Several:
    """Some processes, and what to do when one of them ends."""

    def __init__(self, bench: BenchmarkRun, shard: tuple[int, int] | None, progress: Progress | None) -> None:
        self.bench, self.shard, self.progress = bench, shard, progress
        self.members: list[_Member] = []
        self.lost = 0
        self.failed: str | None = None

    def run(self, count: int) -> None:
        try:
            for number in range(count):
                self.members.append(self._started(number))
            while self.members:
                connection.wait([each.process.sentinel for each in self.members], _LOOK)
                for member in list(self.members):
                    member.listen()
                    if member.process.exitcode is not None:
                        self._ended(member)
                if self.progress is not None:
                    self.progress(*self.bench.counts())
        finally:
            self._stop()
        if self.failed is not None:
            raise UnitsFailed(self.failed)

    def _started(self, number: int) -> _Member:
        bench, context = self.bench, multiprocessing.get_context("spawn")
        gpus = _gpus(bench.options)
        options = bench.options
        if gpus > 1:
            options = dataclasses.replace(options, device=f"cuda:{number % gpus}")
        here, there = context.Pipe(duplex=False)
        arguments = (bench.protocol, bench.store.path, options, self.shard, there)
        process = context.Process(target=_member, args=arguments, name=f"vitreous-bench-{number}", daemon=True)
        with _without_interrupts():
            process.start()
        there.close()
        return _Member(number, process, here)

    def _ended(self, member: _Member) -> None:
        self.members.remove(member)
        code = member.process.exitcode
        member.listen()
        member.line.close()
        if code == _REFUSED:
            raise VitreousError(member.said)
        if code == _FAILED:
            self.failed = member.said
        elif code != 0:
            self._lose(member, code)

    def _lose(self, member: _Member, code: int) -> None:
        """Note that a process was killed, perhaps since memory ran out, and start another one in its place."""
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if member.unit is not None and member.unit not in self.bench.store.finished():
            self.bench.store.note_failure(member.unit, f"its process was ended by {how}")
        self.lost += 1
        if self.lost > RESTARTS:
            raise VitreousError(
                f"{self.lost} processes were ended from outside, the last one by {how}: is there enough memory? "
                "what was finished is kept"
            )
        self.members.append(self._started(member.number))

    def _stop(self) -> None:
        """End what still runs; a unit in flight is all that is lost."""
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            member.process.join(5)
            if member.process.exitcode is None:
                member.process.kill()
                member.process.join()
            member.line.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C: it is for the parent, which hears it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which lets signals through again when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _member(protocol: Protocol, out: Path, options: Options, shard: tuple[int, int] | None, line: Any) -> None:
    """What a process does: units, until none is left for it."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(options.threads)
    try:
        BenchmarkRun(protocol, out, options).work(shard, began=lambda unit: line.send(("unit", unit)))
    except VitreousError as error:
        line.send(("error", one_line(str(error))))
        sys.exit(_FAILED if isinstance(error, UnitsFailed) else _REFUSED)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


ENGINES = ("local", "ray")


def run(
    bench: BenchmarkRun,
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
        check_at_least("wait", wait, 0)
    if engine == "ray":
        run_ray(bench, workers, shard, address, progress, wait)
    elif address is not None or wait is not None:
        named = f"address={address}" if address is not None else f"wait={wait:g}"
        raise VitreousError(f"{named} belongs to the engine ray")
    else:
        run_local(bench, workers, shard, progress)
    bench.refuse_unreadable()
