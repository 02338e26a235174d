"""Two one-thread workers against one: they should take at most 0.6 of its time.

    python benchmarks/engines.py [--images 48] [--workers 2]

The same plan is run from nothing by one process and by several, each with one thread. Starting a process, which takes
a few seconds, belongs to the time, so that the run has to be long enough: a minute for one worker is.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

from vitreous.benchmark.data import Options
from vitreous.benchmark.executors import _ProcessPool, run
from vitreous.benchmark.protocol import Protocol, read
from vitreous.benchmark.run import BenchmarkRun

GOAL = 0.6


def timed(protocol: Protocol, out: Path, workers: int, images: int) -> float:
    """Return the seconds of a whole run but its planning; one worker is a process of its own as well."""
    bench = BenchmarkRun(protocol, out, Options(device="cpu", threads=1, images=images))
    bench.prepare()
    began = time.perf_counter()
    if workers == 1:
        _ProcessPool(bench, None, None).run(1)
    else:
        run(bench, workers=workers)
    took = time.perf_counter() - began
    done, total = bench.counts()
    assert done == total, (done, total)
    return took


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--images", type=int, default=48)
    arguments.add_argument("--workers", type=int, default=2)
    options = arguments.parse_args()
    quick = read("quick")
    protocol = dataclasses.replace(quick, evaluation=dataclasses.replace(quick.evaluation, images_per_unit=4))
    with tempfile.TemporaryDirectory() as folder:
        alone = timed(protocol, Path(folder) / "one", 1, options.images)
        print(f"1 worker: {alone:.1f} s")
        together = timed(protocol, Path(folder) / "several", options.workers, options.images)
    share = together / alone
    goal = f", goal at most {GOAL}" if options.workers == 2 else ""
    print(f"{options.workers} workers: {together:.1f} s, {share:.2f} of the time of one{goal}")


if __name__ == "__main__":
    main()
