"""The actors of a Ray cluster: each keeps a model loaded and gets units, with the maps that they read, one at a time.

The driver alone has the folder of the run. It holds the claim of every unit that is on its way, writes down what comes
back, and hands out again what was lost with an actor or a node. Nodes may join and leave: there are as many actors as
the cluster has room for at the moment. While it has room for none the driver says what it waits for, and after a while
it gives up. Pictures and weights are found on each node as on the driver's.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import socket
import time
import warnings
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.run import TRIES, BenchmarkRun, UnitsFailed
from vitreous.benchmark.store import in_words
from vitreous.benchmark.unit_file import packed, unpacked
from vitreous.benchmark.worker import Job
from vitreous.errors import VitreousError, VitreousWarning, one_line
from vitreous.progress import Progress

__all__ = ["WAIT", "run_ray"]

WAIT = 600.0
"""Seconds that a run waits for a first worker, or for another one after the last was lost."""
_STARTING = 20.0  # seconds that workers may take to start before anything is said about it
_LOOK = 0.5  # seconds between two looks at the cluster
_PATIENCE = 10.0  # seconds to reach a cluster
_SPARE = 32  # units to look at beyond those that are needed: other processes may have some
_MOST_LOST = 10  # times that one unit may be lost with its actor: nodes that leave are no fault of a unit
_MOST_STILLBORN = 5  # actors in a row that may end before they are ready


def run_ray(
    bench: BenchmarkRun,
    workers: int | None = None,
    shard: tuple[int, int] | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    wait: float | None = None,
) -> None:
    """Do what is left on the cluster at ``address``, or on one of this machine; at most so many workers.

    Where the cluster has no room for any worker for ``wait`` seconds (``WAIT``), an error says so.
    """
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        try:
            if address is None:
                cpus = None if workers is None else max(workers * bench.options.threads, 1)
                ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            else:
                _knock(address)
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (Exception, SystemExit) as error:  # Ray has no type of its own for what goes wrong at the start
            where = "could not be started here" if address is None else f"could not be reached at {address}"
            raise VitreousError(one_line(f"a Ray cluster {where}: {error}")[:400]) from None
    try:
        _Driver(ray, bench, workers, shard, progress, WAIT if wait is None else wait).run()
    finally:
        if own:
            ray.shutdown()


def _knock(address: str) -> None:
    """Find out at once whether anybody is there: Ray itself keeps trying for many minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise VitreousError("the engine ray needs Ray: pip install 'vitreous[ray]'") from None


class _Actor:
    """Does units wherever it is; it sees no folder of a run."""

    def __init__(self, protocol: Protocol, options: Options) -> None:
        torch.set_num_threads(options.threads)
        self.bench = BenchmarkRun(protocol, os.devnull, options)

    def ready(self) -> str:
        """Say where it is."""
        return str(_ray().get_runtime_context().get_node_id())

    def found(self, job: Job, earlier: dict[str, bytes]) -> tuple[str, Any]:
        """Return what a unit found as the bytes of its file, or what went wrong: on purpose, or by surprise."""
        try:
            found = self.bench.worker.found(job, lambda unit: unpacked(earlier[unit]))
        except VitreousError as error:
            return "refused", one_line(str(error))
        except Exception as error:
            return "failed", one_line(f"{type(error).__name__}: {error}")
        return "found", packed(*found)


@dataclass
class _Flight:
    """A unit on its way, and the claim that is held meanwhile."""

    job: Job
    actor: Any
    node: str
    claim: ExitStack


class _Driver:
    """Hands out units and takes in what they found."""

    def __init__(
        self,
        ray: Any,
        bench: BenchmarkRun,
        workers: int | None,
        shard: tuple[int, int] | None,
        progress: Progress | None,
        wait: float,
    ) -> None:
        self.ray, self.bench, self.workers, self.shard, self.progress = ray, bench, workers, shard, progress
        self.wait, self.since, self.message = wait, time.monotonic(), ""
        self.starting: dict[Any, Any] = {}
        self.idle: list[tuple[Any, str]] = []
        self.flights: dict[Any, _Flight] = {}
        self.lost: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.stillborn = 0
        self.last = "no reason was given"

    def run(self) -> None:
        try:
            while True:
                self._tell()
                self._hand_out()
                if not self.flights and not self._open(1):
                    break
                self._grow()
                self._wait()
                self._take_in()
        finally:
            self._leave()
        bad = [unit for unit, tries in self.failed.items() if tries >= TRIES]
        if bad:
            raise UnitsFailed(f"{len(bad)} units failed {TRIES} times, such as {self.last}")

    # -- actors ------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Have as many actors as the cluster has room for, and no more than there is work."""
        there = len(self.starting) + len(self.idle) + len(self.flights)
        gpus, room = self._room()
        wanted = room if self.workers is None else min(room, self.workers)
        more = min(wanted, there + len(self._open(wanted))) - there
        how = {"num_cpus": 0 if gpus else self.bench.options.threads, "num_gpus": int(gpus), "max_restarts": 0}
        for _ in range(more):
            options = dataclasses.replace(self.bench.options, device="cuda" if gpus else "cpu")
            made = self.ray.remote(_Actor).options(**how, scheduling_strategy="SPREAD")
            actor = made.remote(self.bench.protocol, options)
            self.starting[actor.ready.remote()] = actor

    def _room(self) -> tuple[bool, int]:
        """Return whether workers get a GPU each, and how many there can be."""
        total, device = self.ray.cluster_resources(), self.bench.options.device
        gpus = device.startswith("cuda") or (device == "auto" and total.get("GPU", 0) >= 1)
        return gpus, int(total.get("GPU", 0) if gpus else total.get("CPU", 0) // self.bench.options.threads)

    def _wait(self) -> None:
        """Say what is waited for while no worker is ready, and give up when that takes too long."""
        if self.idle or self.flights:
            self.since, self.message = time.monotonic(), ""
            return
        passed = time.monotonic() - self.since
        if not self.starting or passed >= min(_STARTING, self.wait):
            message = self._missing()
            if message != self.message:
                self.message = message
                warnings.warn(f"waiting for {message}", VitreousWarning, stacklevel=4)
        if passed >= self.wait:
            raise VitreousError(
                f"no worker of the Ray cluster was ready for {in_words(passed)}, waiting for {self._missing()}; "
                "what is finished is kept, and the same command goes on"
            )

    def _missing(self) -> str:
        """Return what the cluster lacks."""
        gpus, _ = self._room()
        kind, needed = ("GPU", 1) if gpus else ("CPU", self.bench.options.threads)
        known = (self.ray.cluster_resources(), self.ray.available_resources())
        there, free = (f"{each.get(kind, 0):g}" for each in known)
        what = f"a {kind}" if needed == 1 else f"{needed} {kind}s on one node"
        if self.starting:
            return f"a worker to start on {what}: the cluster has {there}, of which {free} are free beside it"
        return f"{what}: the cluster has {there}, of which {free} are free"

    def _leave(self) -> None:
        for flight in self.flights.values():
            flight.claim.close()
        for actor in [*self.starting.values(), *(a for a, _ in self.idle), *(f.actor for f in self.flights.values())]:
            self.ray.kill(actor)

    # -- units -------------------------------------------------------------------------------------------

    def _open(self, most: int) -> list[Job]:
        """Return some units that could run now: not on their way, what they read is there."""
        finished, found = self.bench.store.finished(), list[Job]()
        flying = {flight.job.unit.id for flight in self.flights.values()}
        for plan, task in self.bench.tasks(self.shard):
            for piece in task.units:
                if len(found) == most:
                    return found
                if piece.id not in flying and self.failed[piece.id] < TRIES:
                    job = self.bench.job(plan, piece)
                    if job.reads <= finished:
                        found.append(job)
        return found

    def _hand_out(self) -> None:
        for job in self._open(len(self.idle) + _SPARE) if self.idle else []:
            if not self.idle:
                return
            claim = ExitStack()
            if not claim.enter_context(self.bench.store.claim(job.unit.id)):
                claim.close()
                continue
            earlier = {unit: self.bench.store.content(unit) for unit in job.reads}
            actor, node = self.idle.pop()
            self.flights[actor.found.remote(job, earlier)] = _Flight(job, actor, node, claim)

    def _take_in(self) -> None:
        refs = [*self.starting, *self.flights]
        if not refs:  # other processes are at what is left, or the cluster has no room
            time.sleep(_LOOK)
            return
        for ref in self.ray.wait(refs, num_returns=1, timeout=_LOOK)[0]:
            if ref in self.starting:
                self._started(ref, self.starting.pop(ref))
            else:
                flight = self.flights.pop(ref)
                with flight.claim:
                    self._landed(ref, flight)

    def _started(self, ref: Any, actor: Any) -> None:
        try:
            node = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self.stillborn += 1
            if self.stillborn >= _MOST_STILLBORN:
                raise VitreousError(one_line(f"no worker of the cluster becomes ready: {error}")[:600]) from None
        else:
            self.stillborn = 0
            self.idle.append((actor, node))

    def _landed(self, ref: Any, flight: _Flight) -> None:
        unit, store = flight.job.unit.id, self.bench.store
        try:
            what, content = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self.ray.kill(flight.actor)  # one that is only out of reach must not come back and hold its place
            self.lost[unit] += 1
            store.note_failure(
                unit, one_line(f"lost with its worker on node {flight.node[:12]}: {type(error).__name__}: {error}")
            )
            if self.lost[unit] > _MOST_LOST:
                raise VitreousError(f"unit {unit} was lost with its worker {_MOST_LOST} times") from None
            return
        self.idle.append((flight.actor, flight.node))
        if what == "refused":
            raise VitreousError(content)
        if what == "failed":
            store.note_failure(unit, content)
            self.failed[unit] += 1
            self.last = content
        else:
            self.bench.keep(flight.job, unpacked(content))

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(*self.bench.counts())
