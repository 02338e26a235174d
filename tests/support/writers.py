"""Two processes that write one result, and a reader: `python writers.py FOLDER COUNT [without-exchange]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

import vitreous as vt
from families import FAMILIES
from faults import ended, forked
from vitreous.io import atomic as disk


def main(folder: Path, count: int) -> None:
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    both = {item.name: item for item in vt.explain(FAMILIES["vit"](), inputs, "plus(ixg)", 1)}
    place = folder / "result"
    next(iter(both.values())).save(place)

    def write(which: str) -> None:
        for _ in range(count):
            both[which].save(place, overwrite=True)

    children = [forked(lambda which=which: write(which)) for which in both]
    seen = dict.fromkeys(both, 0)
    for _ in range(count):
        explanation = vt.Explanation.load(place)
        assert explanation.map.equal(both[explanation.name].map), "the manifest of one with the map of the other"
        seen[explanation.name] += 1
    assert [ended(child) for child in children] == [0, 0]
    explanation = vt.Explanation.load(place)
    assert explanation.map.equal(both[explanation.name].map)
    assert os.listdir(folder) == ["result"], os.listdir(folder)
    sys.stdout.write(f"read {seen}\n")


if __name__ == "__main__":
    if sys.argv[3:]:
        disk._exchanged = lambda one, other: False
    main(Path(sys.argv[1]), int(sys.argv[2]))
