"""How fast scenes are drawn and rendered, and how far two devices differ.

python benchmarks/world.py [--size 128] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from vitreous.world import World, draw, render


def speed(device: str, size: int, batch: int, seconds: float = 3.0) -> float:
    """Scenes per second, drawing included, after a warm-up."""
    seeds = torch.arange(batch, device=device)
    render(draw(seeds), size)
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        done += batch
        render(draw(seeds + done), size)
        if device != "cpu":
            torch.cuda.synchronize()
    return done / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    found: dict[str, object] = {"size": given.size, "threads": torch.get_num_threads()}
    found["cpu scenes/s"] = round(speed("cpu", given.size, 64))
    if given.device != "cpu":
        found["device scenes/s"] = round(speed(given.device, given.size, 2048))
        scenes = draw(torch.arange(256))
        here, there = render(scenes, given.size), render(scenes, given.size, given.device)
        found["largest difference, of 255"] = float((here.images - there.images.cpu()).abs().max()) * 255
        found["owners that differ"] = int((here.owner != there.owner.cpu()).sum())
    world = World(n=64, size=given.size)
    begun = time.perf_counter()
    render(world.scenes(), given.size)
    found["cpu scenes/s from Scene values"] = round(64 / (time.perf_counter() - begun))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
