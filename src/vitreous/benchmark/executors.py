"""Who does the units of a run: processes of this machine, or actors of a Ray cluster. Neither changes a number.

*Local* processes, one for each GPU or some on the CPU, share the work by claims in the folder alone. The parent gives
out nothing. It counts finished units, starts another process where one was killed, and takes all of them along when it
goes.

*Ray* actors each keep a model loaded and get units, with the maps that they read, one at a time. The driver alone has
the folder of the run. It holds the claim of every unit that is on its way, writes down what comes back, and hands out
again what was lost with an actor or a node. Nodes may join and leave: there are as many actors as the cluster has room
for at the moment. While it has room for none the driver says what it waits for, and after a while it gives up. Images
and weights are found on each node as on the driver's.
"""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

import torch

from vitreous.benchmark.data import Options
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.run import TRIES, BenchmarkRun, UnitsFailed
from vitreous.benchmark.unit_file import pack_unit, unpack_unit
from vitreous.benchmark.worker import Job
from vitreous.errors import VitreousError, VitreousWarning, one_line
from vitreous.progress import Progress, duration_in_words
from vitreous.registry import check_at_least, check_choice

EXECUTORS = ("local", "ray")
RESTARTS = 5
"""How many local processes may be killed before a run gives up."""
WAIT = 600.0
"""Seconds that a run waits for a first actor, or for another one after the last was lost."""
_REFUSED, _FAILED = 3, 4  # exit codes of a process that has said why; after the second one others may go on
_MOST_WORKERS = 8
_POLL = 0.5  # seconds between two looks at the folder, or at the cluster
_STARTING = 20.0  # seconds that actors may take to start before anything is said about it
_PATIENCE = 10.0  # seconds to reach a cluster
_SPARE = 32  # units to look at beyond those that are needed: other processes may have some
_MOST_LOST = 10  # times that one unit may be lost with its actor: nodes that leave are no fault of a unit
_MOST_STILLBORN = 5  # actors in a row that may end before they are ready

Shard = tuple[int, int] | None


def run(
    bench: BenchmarkRun,
    engine: str = "local",
    *,
    workers: int | None = None,
    shard: Shard = None,
    address: str | None = None,
    progress: Progress | None = None,
    wait: float | None = None,
) -> None:
    """Do what is left of a run that is prepared; ``shard`` (i, n) is counted from 0, ``address`` is that of a cluster.

    ``wait`` are the seconds after which it gives up on a cluster that has no room for any worker.
    It returns when nothing is left that no other process is at.
    """
    check_choice("engine", engine, EXECUTORS)
    if workers is not None:
        check_at_least("workers", workers, 1)
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise VitreousError(f"there is no shard {shard[0] + 1} of {shard[1]}")
    if wait is not None:
        check_at_least("wait", wait, 0)
    if engine == "ray":
        ray, cpus = _import_ray(), None if workers is None else max(workers * bench.options.threads, 1)
        with _cluster(ray, address, cpus):
            _RayDriver(ray, bench, workers, shard, progress, WAIT if wait is None else wait).run()
    elif address is not None or wait is not None:
        option = f"address={address}" if address is not None else f"wait={wait:g}"
        raise VitreousError(f"{option} belongs to the engine ray")
    else:
        _run_local(bench, workers, shard, progress)
    bench.refuse_unreadable()


# -- processes here ------------------------------------------------------------------------------------------


def _run_local(bench: BenchmarkRun, workers: int | None, shard: Shard, progress: Progress | None) -> None:
    """Do what is left with some processes, no more than there are groups of images; with one, here."""
    left = {(plan.revision, unit.config, unit.seed, unit.images) for plan, unit in bench.open_units(shard)}
    count = min(default_workers(bench) if workers is None else workers, max(len(left), 1))
    bench.report(progress)
    if count == 1:
        bench.work(shard, progress)
    elif left:
        _ProcessPool(bench, shard, progress).run(count)


def default_workers(bench: BenchmarkRun) -> int:
    """Return how many processes there are unless it is said: one per GPU, or as many as have cores of their own."""
    if {config.device for plan in bench.store.plans() for config in plan.configs} != {"cpu"}:
        return max(_count_gpus(bench.options), 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores // bench.options.threads, _MOST_WORKERS))


def _count_gpus(options: Options) -> int:
    """Return how many GPUs there are to choose from."""
    return torch.cuda.device_count() if options.device in ("auto", "cuda") else 0


@dataclass
class _Process:
    """A process, the pipe on which it reports, and the unit and message that it reported last."""

    number: int
    process: Any
    pipe: Any
    unit: str | None = None
    message: str = "it did not say why"

    def receive(self) -> None:
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                kind, text = self.pipe.recv()
                if kind == "unit":
                    self.unit = text
                else:
                    self.message = text


class _ProcessPool:
    """Some processes, and what to do when one of them ends."""

    def __init__(self, bench: BenchmarkRun, shard: Shard, progress: Progress | None) -> None:
        self.bench, self.shard, self.progress = bench, shard, progress
        self.processes: list[_Process] = []
        self.lost = 0
        self.failure: str | None = None

    def run(self, count: int) -> None:
        try:
            for number in range(count):
                self.processes.append(self._start(number))
            while self.processes:
                connection.wait([member.process.sentinel for member in self.processes], _POLL)
                for member in list(self.processes):
                    member.receive()
                    if member.process.exitcode is not None:
                        self._on_end(member)
                self.bench.report(self.progress)
        finally:
            self._stop()
        if self.failure is not None:
            raise UnitsFailed(self.failure)

    def _start(self, number: int) -> _Process:
        bench, context = self.bench, multiprocessing.get_context("spawn")
        gpus, options = _count_gpus(bench.options), bench.options
        if gpus > 1:
            options = dataclasses.replace(options, device=f"cuda:{number % gpus}")
        receiver, sender = context.Pipe(duplex=False)
        arguments = (bench.protocol, bench.store.path, options, self.shard, sender)
        process = context.Process(target=_work_in_process, args=arguments, name=f"vitreous-bench-{number}", daemon=True)
        with _without_interrupts():
            process.start()
        sender.close()
        return _Process(number, process, receiver)

    def _on_end(self, member: _Process) -> None:
        self.processes.remove(member)
        code = member.process.exitcode
        member.receive()
        member.pipe.close()
        if code == _REFUSED:
            raise VitreousError(member.message)
        if code == _FAILED:
            self.failure = member.message
        if code in (0, _FAILED):
            return
        # it was killed, perhaps since memory ran out: another one takes its place
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        if member.unit is not None and member.unit not in self.bench.store.finished():
            self.bench.store.note_failure(member.unit, f"its process was ended by {reason}")
        self.lost += 1
        if self.lost > RESTARTS:
            advice = "is there enough memory? what was finished is kept"
            raise VitreousError(f"{self.lost} processes were ended from outside, the last one by {reason}: {advice}")
        self.processes.append(self._start(member.number))

    def _stop(self) -> None:
        """End what still runs; a unit in flight is all that is lost."""
        for member in self.processes:
            member.process.terminate()
        for member in self.processes:
            member.process.join(5)
            if member.process.exitcode is None:
                member.process.kill()
                member.process.join()
            member.pipe.close()


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


def _work_in_process(protocol: Protocol, out: Path, options: Options, shard: Shard, pipe: Any) -> None:
    """Do units until none is left for this process."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(options.threads)
    try:
        BenchmarkRun(protocol, out, options).work(shard, on_begin=lambda unit: pipe.send(("unit", unit)))
    except VitreousError as error:
        pipe.send(("error", one_line(str(error))))
        sys.exit(_FAILED if isinstance(error, UnitsFailed) else _REFUSED)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


# -- Ray -----------------------------------------------------------------------------------------------------


@contextmanager
def _cluster(ray: Any, address: str | None, cpus: int | None) -> Iterator[None]:
    """Join the cluster at ``address``, or start one on this machine, unless this process is in one already."""
    is_own = not ray.is_initialized()
    if is_own:
        try:
            if address is None:
                ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            else:
                _knock(address)
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (Exception, SystemExit) as error:  # Ray has no type of its own for what goes wrong at the start
            where = "could not be started here" if address is None else f"could not be reached at {address}"
            raise VitreousError(one_line(f"a Ray cluster {where}: {error}")[:400]) from None
    try:
        yield
    finally:
        if is_own:
            ray.shutdown()


def _knock(address: str) -> None:
    """Find out at once whether anybody is there: Ray itself keeps trying for many minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


def _import_ray() -> Any:
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
        """Return the node where it is."""
        return str(_import_ray().get_runtime_context().get_node_id())

    def run(self, job: Job, earlier: dict[str, bytes]) -> tuple[str, Any]:
        """Return the result of a unit as the bytes of its file, or what went wrong: on purpose, or by surprise."""
        try:
            result = self.bench.worker.run(job, lambda unit: unpack_unit(earlier[unit]))
        except VitreousError as error:
            return "refused", one_line(str(error))
        except Exception as error:
            return "failed", one_line(f"{type(error).__name__}: {error}")
        return "result", pack_unit(*result)


@dataclass
class _Flight:
    """A unit on its way, and the claim that is held meanwhile."""

    job: Job
    actor: Any
    node: str
    claim: ExitStack


@dataclass
class _RayDriver:
    """Hands out units and takes in their results; where there is no room for ``wait`` seconds, it gives up."""

    ray: Any
    bench: BenchmarkRun
    workers: int | None
    shard: Shard
    progress: Progress | None
    wait: float
    message: str = ""
    starting: dict[Any, Any] = field(default_factory=dict)
    idle: list[tuple[Any, str]] = field(default_factory=list)
    flights: dict[Any, _Flight] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    stillborn: int = 0
    last_reason: str = "no reason was given"
    waiting_since: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        try:
            while True:
                self.bench.report(self.progress)
                self._hand_out()
                if not self.flights and not self._ready_jobs(1):
                    break
                self._grow()
                self._check_wait()
                self._take_in()
        finally:
            self._leave()
        failed = [unit for unit, tries in self.failed.items() if tries >= TRIES]
        if failed:
            raise UnitsFailed(f"{len(failed)} units failed {TRIES} times, such as {self.last_reason}")

    def _grow(self) -> None:
        """Have as many actors as the cluster has room for, and no more than there is work."""
        actors = len(self.starting) + len(self.idle) + len(self.flights)
        gpus, room = self._room()
        wanted = room if self.workers is None else min(room, self.workers)
        more = min(wanted, actors + len(self._ready_jobs(wanted))) - actors
        resources = {"num_cpus": 0 if gpus else self.bench.options.threads, "num_gpus": int(gpus), "max_restarts": 0}
        for _ in range(more):
            options = dataclasses.replace(self.bench.options, device="cuda" if gpus else "cpu")
            actor_class = self.ray.remote(_Actor).options(**resources, scheduling_strategy="SPREAD")
            actor = actor_class.remote(self.bench.protocol, options)
            self.starting[actor.ready.remote()] = actor

    def _room(self) -> tuple[bool, int]:
        """Return whether workers get a GPU each, and how many there can be."""
        total, device = self.ray.cluster_resources(), self.bench.options.device
        if device.startswith("cuda") or (device == "auto" and total.get("GPU", 0) >= 1):
            return True, int(total.get("GPU", 0))
        return False, int(total.get("CPU", 0) // self.bench.options.threads)

    def _check_wait(self) -> None:
        """Say what is waited for while no worker is ready, and give up when that takes too long."""
        if self.idle or self.flights:
            self.waiting_since, self.message = time.monotonic(), ""
            return
        passed = time.monotonic() - self.waiting_since
        message = self._missing()
        if (not self.starting or passed >= min(_STARTING, self.wait)) and message != self.message:
            self.message = message
            warnings.warn(f"waiting for {message}", VitreousWarning, stacklevel=4)
        if passed >= self.wait:
            raise VitreousError(
                f"no worker of the Ray cluster was ready for {duration_in_words(passed)}, waiting for {message}; "
                "what is finished is kept, and the same command goes on"
            )

    def _missing(self) -> str:
        """Return what the cluster lacks."""
        gpus, _ = self._room()
        kind, needed = ("GPU", 1) if gpus else ("CPU", self.bench.options.threads)
        resources = (self.ray.cluster_resources(), self.ray.available_resources())
        total, free = (f"{amounts.get(kind, 0):g}" for amounts in resources)
        what = f"a {kind}" if needed == 1 else f"{needed} {kind}s on one node"
        start, where = ("a worker to start on ", " beside it") if self.starting else ("", "")
        return f"{start}{what}: the cluster has {total}, of which {free} are free{where}"

    def _leave(self) -> None:
        for flight in self.flights.values():
            flight.claim.close()
        flying = [flight.actor for flight in self.flights.values()]
        for actor in [*self.starting.values(), *(actor for actor, _ in self.idle), *flying]:
            self.ray.kill(actor)

    def _ready_jobs(self, most: int) -> list[Job]:
        """Return some units that could run now: not on their way, what they read is there."""
        finished, jobs = self.bench.store.finished(), list[Job]()
        flying = {flight.job.unit.id for flight in self.flights.values()}
        for plan, unit in self.bench.open_units(self.shard):
            if len(jobs) == most:
                break
            if unit.id not in flying and self.failed[unit.id] < TRIES:
                job = self.bench.job(plan, unit)
                jobs += [job] if job.reads <= finished else []
        return jobs

    def _hand_out(self) -> None:
        for job in self._ready_jobs(len(self.idle) + _SPARE) if self.idle else []:
            if not self.idle:
                return
            claim = ExitStack()
            if not claim.enter_context(self.bench.store.claim(job.unit.id)):
                claim.close()
                continue
            earlier = {unit: self.bench.store.content(unit) for unit in job.reads}
            actor, node = self.idle.pop()
            self.flights[actor.run.remote(job, earlier)] = _Flight(job, actor, node, claim)

    def _take_in(self) -> None:
        pending = [*self.starting, *self.flights]
        if not pending:  # other processes are at what is left, or the cluster has no room
            time.sleep(_POLL)
            return
        for ref in self.ray.wait(pending, num_returns=1, timeout=_POLL)[0]:
            if ref in self.starting:
                self._on_ready(ref, self.starting.pop(ref))
            else:
                flight = self.flights.pop(ref)
                with flight.claim:
                    self._on_result(ref, flight)

    def _on_ready(self, ref: Any, actor: Any) -> None:
        try:
            node = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self.stillborn += 1
            if self.stillborn >= _MOST_STILLBORN:
                raise VitreousError(one_line(f"no worker of the cluster becomes ready: {error}")[:600]) from None
        else:
            self.stillborn = 0
            self.idle.append((actor, node))

    def _on_result(self, ref: Any, flight: _Flight) -> None:
        unit, store = flight.job.unit.id, self.bench.store
        try:
            kind, content = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            self.ray.kill(flight.actor)  # one that is only out of reach must not come back and hold its place
            self.lost[unit] += 1
            reason = f"lost with its worker on node {flight.node[:12]}: {type(error).__name__}: {error}"
            store.note_failure(unit, one_line(reason))
            if self.lost[unit] > _MOST_LOST:
                raise VitreousError(f"unit {unit} was lost with its worker {_MOST_LOST} times") from None
            return
        self.idle.append((flight.actor, flight.node))
        if kind == "refused":
            raise VitreousError(content)
        if kind == "failed":
            store.note_failure(unit, content)
            self.failed[unit] += 1
            self.last_reason = content
        else:
            self.bench.keep(flight.job, unpack_unit(content))
