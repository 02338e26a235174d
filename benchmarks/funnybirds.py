"""The FunnyBirds protocol on the world, for the methods of ``other_metrics.py`` and an oracle.

Run ``python benchmarks/funnybirds.py --scenes 300 --device cuda --out funnybirds.json``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ladder import read
from other_metrics import METHODS

import vitreous as vt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", type=lambda text: text.split(";"), default=list(METHODS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model = vt.load("world", device=options.device)
    methods = {method.replace("{half}", ""): read(method, model) for method in options.methods}
    began = time.perf_counter()
    funnybirds = vt.funnybirds(model, methods, vt.world.World(n=options.scenes), oracle=True)
    print(funnybirds)
    print(f"{time.perf_counter() - began:.0f} s")
    if options.out is not None:
        funnybirds.save(options.out, overwrite=True)


if __name__ == "__main__":
    main()
