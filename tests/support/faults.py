"""Writers that die: at every operation on the disk, one after the other, or at random moments.

Run as a script, in a process of its own: `python faults.py every|random SCENARIO FOLDER COUNT`. It loads the model once
and forks for each death, so that a death costs milliseconds. What must hold afterwards is asserted here.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch
from PIL import Image

import vitreous as vt
from commands import run
from families import FAMILIES
from vitreous.io import atomic as disk
from vitreous.tracing import statistics_collect as scenes

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}


class Counter:
    """Counts what a process does to the disk, and ends it before operation number ``last``."""

    def __init__(self, last: int | None) -> None:
        self.count, self.last = 0, last

    def step(self) -> None:
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
            self.step()

    def install(self) -> None:
        sys.addaudithook(self.hear)
        opened, exchanged = disk._open, disk._exchanged

        def watched(path: Path) -> BinaryIO:
            file = opened(path)
            return Slow(file, self)  # type: ignore[return-value]

        def exchange(one: Path, other: Path) -> bool:
            self.step()
            return exchanged(one, other)

        disk._open, disk._exchanged = watched, exchange


class Slow:
    """A file that takes every write in two halves; the process may end between them."""

    def __init__(self, file: BinaryIO, counter: Counter) -> None:
        self.file, self.counter = file, counter

    def write(self, content: Any) -> int:
        data = bytes(content)
        half = len(data) // 2
        self.file.write(data[:half])
        self.file.flush()
        self.counter.step()
        self.file.write(data[half:])
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Slow:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class Scenario:
    """Something that writes into ``folder / "ours"``, beside things that are not ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self) -> None:
        """Lay out everything anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "ours").mkdir(parents=True)
        (self.folder / "mine.txt").write_text("not yours")
        (self.folder / "ours" / "mine.txt").write_text("not yours either")

    def work(self, again: bool = False) -> None:
        """Write; ``again`` after it was cut short."""
        raise NotImplementedError

    def check(self) -> None:
        """Everything is whole or absent."""

    def finished(self) -> None:
        """All of it is there."""

    def check_bystanders(self) -> None:
        assert (self.folder / "mine.txt").read_text() == "not yours"
        assert (self.folder / "ours" / "mine.txt").read_text() == "not yours either"


class Save(Scenario):
    """``Explanation.save``: new, or over an older one."""

    overwrite = False
    exchange = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        model = FAMILIES["vit"]()
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        self.old, self.new = vt.explain(model, x, "plus(ixg)", 1)
        self.place = folder / "ours" / "result"
        if not self.exchange:
            disk._exchanged = lambda one, other: False

    def prepare(self) -> None:
        super().prepare()
        if self.overwrite:
            self.old.save(self.place)

    def work(self, again: bool = False) -> None:
        if again and not self.overwrite and self.place.exists():
            vt.Explanation.load(self.place)  # a reader clears up too
            return
        self.new.save(self.place, overwrite=self.overwrite)

    def check(self) -> None:
        if not self.overwrite and not self.place.exists():
            return
        stored = vt.Explanation.load(self.place)
        which = self.new if stored.name == self.new.name else self.old
        assert stored.map.equal(which.map)
        assert stored.extras["layers"].equal(which.extras["layers"])
        assert which is self.new or self.overwrite

    def finished(self) -> None:
        assert vt.Explanation.load(self.place).map.equal(self.new.map)
        assert sorted(os.listdir(self.folder / "ours")) == ["mine.txt", "result"]


class Overwrite(Save):
    overwrite = True


class OverwriteWithoutExchange(Overwrite):
    """As on systems that cannot exchange two names."""

    exchange = False


class Command(Scenario):
    """A command of the command line, on the bundled model."""

    arguments: tuple[str, ...]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.set_num_threads(1)
        self.view = vt.load("world")  # what it imports and reads, the children have
        vt.list_methods(), vt.list_metrics()
        self.view.logits(torch.zeros(1, 3, 128, 128))

    def prepare(self) -> None:
        super().prepare()
        pictures = self.folder / "pictures"
        pictures.mkdir()
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 256, (40, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(pictures / f"{number}.png")

    def work(self, again: bool = False) -> None:
        os.chdir(self.folder)
        done = run(*self.arguments, *(["--resume"] if again else []))
        assert done.code == 0, done

    @property
    def ours(self) -> Path:
        return self.folder / "ours"


class Explain(Command):
    arguments = ("explain", "pictures", "-m", "world", "--out", "ours", "--method", "rollout", "-q")

    def check(self) -> None:
        for manifest in self.ours.glob("*/*/*/manifest.json"):
            assert vt.Explanation.load(manifest.parent).method == "rollout"

    def finished(self) -> None:
        actual = [vt.Explanation.load(path.parent).name for path in self.ours.glob("*/*/*/manifest.json")]
        assert sorted(actual) == [f"{number}.png" for number in range(4)]
        assert not list(self.ours.rglob(".vitreous*"))


class Stats(Command):
    arguments = ("stats", "world", "pictures", "--out", "ours/s.safetensors", "--batch-size", "1", "-q")

    def check(self) -> None:
        for path in self.ours.glob("s.safetensors*"):
            assert vt.ActivationStats.load(path).source == "images"

    def finished(self) -> None:
        model = vt.ActivationStats.load(self.ours / "s.safetensors")
        assert model.count == model.num_seen == 4
        assert sorted(os.listdir(self.ours)) == ["mine.txt", "s.safetensors"]


class Score(Command):
    arguments = ("evaluate", "world", "pictures", "--out", "ours/t.json", "--method", "rollout", "--metric",
                 "deletion(steps=2)", "-q", "--overwrite")  # fmt: skip

    def work(self, again: bool = False) -> None:
        super().work()

    def check(self) -> None:
        if (self.ours / "t.json").exists():
            self.finished()

    def finished(self) -> None:
        import json

        assert len(json.loads((self.ours / "t.json").read_text())["images"]) == 4


class Cache(Scenario):
    """Statistics of the world, left in the cache folder for later runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        torch.set_num_threads(1)
        os.environ["VITREOUS_CACHE"] = ""
        self.model, self.x = FAMILIES["vit"](), torch.zeros(1, 3, 32, 32)
        self.expected = self.map()  # in memory too, and that is forgotten
        os.environ["VITREOUS_CACHE"] = str(folder / "ours" / "cache")

    def map(self) -> torch.Tensor:
        scenes._cached.clear()
        return vt.get_method("coiba(steps=2, samples=1)").attribute(self.model, self.x, 1)

    def work(self, again: bool = False) -> None:
        assert self.map().equal(self.expected)

    def check(self) -> None:
        for path in (self.folder / "ours" / "cache").glob("*.safetensors"):
            assert vt.ActivationStats.load(path).description == "world:64"

    def finished(self) -> None:
        self.check()
        (name,) = os.listdir(self.folder / "ours" / "cache")
        assert name.startswith("world-")


_ALL = (Save, Overwrite, OverwriteWithoutExchange, Explain, Stats, Score, Cache)
SCENARIOS = {scenario.__name__: scenario for scenario in _ALL}


def forked(work: Callable[[], None]) -> int:
    """Run something in a child; return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """Wait for a child: its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def operations(scenario: Scenario) -> int:
    """Return how many operations on the disk the work takes."""
    scenario.prepare()
    reading, writing = os.pipe()

    def work() -> None:
        counter = Counter(None)
        counter.install()
        scenario.work()
        os.write(writing, str(counter.count).encode())

    assert ended(forked(work)) == 0
    return int(os.read(reading, 100))


def survives(scenario: Scenario) -> None:
    """After a death: nothing of others touched, results whole or absent, and the next run completes them."""
    scenario.check_bystanders()
    scenario.check()
    assert ended(forked(lambda: scenario.work(again=True))) == 0
    scenario.check_bystanders()
    scenario.finished()


def every(scenario: Scenario, stride: int) -> None:
    """Die before every operation (or every ``stride``-th)."""
    total = operations(scenario)
    assert total > 5, total

    def work(last: int) -> None:
        Counter(last).install()
        scenario.work()

    deaths = range(0, total, stride)
    for last in deaths:
        scenario.prepare()
        code = ended(forked(lambda last=last: work(last)))
        assert code == -signal.SIGKILL, (last, code)
        survives(scenario)
    sys.stdout.write(f"{len(deaths)} deaths at {total} operations\n")


def at_random(scenario: Scenario, count: int) -> None:
    """Die, or be interrupted, at random moments of the work."""
    draw = random.Random(0)
    scenario.prepare()
    began = time.monotonic()
    assert ended(forked(scenario.work)) == 0
    length, message = time.monotonic() - began, {}
    for _ in range(count):
        scenario.prepare()
        child = forked(scenario.work)
        time.sleep(draw.uniform(0, 1.1 * length))
        options = draw.choice([signal.SIGKILL, signal.SIGINT])
        os.kill(child, options)
        code = ended(child)
        message[code] = message.get(code, 0) + 1
        survives(scenario)
    sys.stdout.write(f"{count} signals, exit codes {message}\n")


if __name__ == "__main__":
    schedule, name, folder, count = sys.argv[1:]
    (every if schedule == "every" else at_random)(SCENARIOS[name](Path(folder)), int(count))
