"""Work that takes long: one thread for it, a queue with an end, and a way to stop what nobody waits for any more."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

from vitreous.errors import VitreousError, one_line
from vitreous.web import Refused

MOST_QUEUED = 96
"""Tasks of everyone that may wait."""
_PROGRESS_SECONDS = 0.1  # between two reports of progress
_NICE = 10
_BEAT = 1.0  # seconds after which a stream says that it is still there
_log = logging.getLogger(__name__)

Event = dict[str, Any]
IsGone = Callable[[], Awaitable[bool]]
"""Whether the client has left."""


class Stopped(BaseException):
    """Raised inside a job that nobody waits for any more; no ``except Exception`` of a library may keep it."""


class Work(NamedTuple):
    """What is to be done: ``run`` gets its job, and calls the job's ``on_progress`` as often as it can.

    ``is_ready`` says whether the answer is there already, so that it need not wait for its turn.
    """

    run: Callable[[QueuedWork], Any]
    is_ready: Callable[[], bool] = lambda: False


class QueuedWork:
    """Some work, and where to send what happens to it. Jobs of one ``request`` were asked for together."""

    def __init__(self, work: Work, send: Callable[[Event], None], request: object = None) -> None:
        self.work, self.send, self.request = work, send, request
        self.done, self.start, self._last_report = 0.0, 0.0, 0.0
        self.is_stopped = False
        """Whether it is to end at its next report of progress."""

    def on_progress(self, done: float, total: float | None = None) -> None:
        """Say how far it is; here a job ends that has been stopped."""
        if self.is_stopped:
            raise Stopped
        self.done = max(self.done, min(1.0, done / total if total else done))
        now = time.monotonic()
        if now - self._last_report >= _PROGRESS_SECONDS:
            self._last_report = now
            self.send(self.progress)

    @property
    def progress(self) -> Event:
        return {"event": "progress", "done": self.done, "seconds": time.monotonic() - self.start}

    def part(self, first: float, last: float) -> Callable[[float, float | None], None]:
        """Return the ``on_progress`` of a part of the work."""
        return lambda done, total: self.on_progress(first + (last - first) * (done / total if total else done))

    def run(self) -> None:
        """Do the work and tell how it ended; what goes wrong is one line."""
        self.start = time.monotonic()
        try:
            self.on_progress(0.0)
            self.send({**self.work.run(self), "event": "result"})
        except Stopped:
            self.fail("stopped", 503)
        except VitreousError as error:
            self.fail(one_line(str(error)), getattr(error, "status", 422))
        except MemoryError:
            self.fail("there is not enough memory for this", 503)
        except Exception as error:
            _log.exception("a job failed")
            self.fail(one_line(f"this went wrong inside: {type(error).__name__}"), 500)

    def fail(self, message: str, status: int) -> None:
        """Tell that there will be no result, and why."""
        self.send({"event": "error", "message": message, "status": status})


class WorkQueue:
    """One thread that does one job after the other; at most ``most`` may wait.

    Requests take turns, so that whoever asks for much does not keep the others waiting. ``low_priority``: other threads
    of this process go first where both want a processor.
    """

    def __init__(self, name: str, most: int, low_priority: bool = False) -> None:
        self._most, self._low_priority = most, low_priority
        self._waiting: list[QueuedWork] = []
        self._running: QueuedWork | None = None
        self._changed = threading.Condition()
        self._closed = False
        # a daemon: a pass that takes minutes must not keep a process that was told to end
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, jobs: Sequence[QueuedWork]) -> None:
        """Queue all of these jobs, or none of them."""
        with self._changed:
            self.check_room(len(jobs))
            self._waiting.extend(jobs)
            self._send_positions()
            self._changed.notify()

    def check_room(self, jobs: int) -> None:
        """Refuse what would be too much."""
        if self._closed:
            raise Refused(503, "the explorer is ending")
        if len(self._waiting) + jobs > self._most:
            raise Refused(503, f"{len(self._waiting)} tasks are waiting already, at most {self._most}; try again later")

    def drop(self, jobs: Sequence[QueuedWork]) -> None:
        """Forget those that wait, and stop the one that runs."""
        with self._changed:
            self._waiting = [job for job in self._waiting if job not in jobs]
            for job in jobs:
                job.is_stopped = True
            self._send_positions()

    @property
    def num_jobs(self) -> int:
        """How many jobs wait or run."""
        with self._changed:
            return len(self._waiting) + (self._running is not None)

    def end(self) -> None:
        """Take no more jobs, and drop those there are."""
        with self._changed:
            self._closed = True
            jobs = [job for job in (*self._waiting, self._running) if job is not None]
            self._changed.notify()
        self.drop(jobs)
        for job in jobs:
            job.fail("the explorer is ending", 503)

    def join(self, seconds: float) -> bool:
        """Wait so long for the thread, and return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _send_positions(self) -> None:
        for position, job in enumerate(self._waiting, int(self._running is not None)):
            job.send({"event": "queued", "before": position})

    def _next(self) -> QueuedWork:
        """Take a job whose answer is there, or else the first; others of the same request go to the end."""
        job = next((job for job in self._waiting if job.work.is_ready()), self._waiting[0])
        others = [other for other in self._waiting if other is not job]
        self._waiting = sorted(others, key=lambda other: other.request is job.request)
        return job

    def _work(self) -> None:
        if self._low_priority and sys.platform == "linux":  # there a thread has a priority of its own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self._changed:
                self._running = None
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                job = self._running = self._next()
                self._send_positions()
            job.run()
            del job  # what it holds must not wait for the next one


async def run_soon(worker: WorkQueue, run: Callable[[QueuedWork], Any], is_gone: IsGone) -> Any:
    """Do a piece of work in a worker's thread and return its result; it is dropped if the client leaves."""
    async with aclosing(_follow(worker, [Work(lambda job: {"content": run(job)})], is_gone)) as events:
        async for event in events:
            if event["event"] == "result":
                return event["content"]
            if event["event"] == "error":
                raise Refused(event["status"], event["message"])
    raise Refused(499, "nobody waits for this any more")


async def stream_events(worker: WorkQueue, works: Sequence[Work], is_gone: IsGone) -> AsyncIterator[bytes]:
    """Yield what happens to these tasks, one JSON a line. However this ends, no task is left behind."""
    async with aclosing(_follow(worker, works, is_gone)) as events:
        async for event in events:
            yield json.dumps(event, separators=(",", ":")).encode() + b"\n"


async def _follow(worker: WorkQueue, works: Sequence[Work], is_gone: IsGone) -> AsyncGenerator[Event, None]:
    """Do some work in a worker's thread; yield what happens to it until all has ended, or the client has left."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def send(task: int, event: Event) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, {"task": task, **event})
        except RuntimeError:  # the loop has ended, and with it whoever waited
            _log.debug("nobody is left to hear of it")

    jobs = [QueuedWork(work, functools.partial(send, task), events) for task, work in enumerate(works)]
    left = set(range(len(jobs)))
    try:
        worker.put(jobs)
    except Refused as error:  # others were faster, and the answer has begun
        for job in jobs:
            job.fail(str(error), error.status)
    try:
        while left:
            try:
                news = [await asyncio.wait_for(events.get(), _BEAT)]
            except asyncio.TimeoutError:  # what runs is still there
                news = [{"task": task, **jobs[task].progress} for task in sorted(left) if jobs[task].start]
            if await is_gone():
                return
            for event in news:
                if event["task"] in left:
                    left -= {event["task"]} if event["event"] in ("result", "error") else set()
                    yield event
        yield {"event": "end"}
    finally:
        worker.drop(jobs)
