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
    options = parser.parse_args()
    result: dict[str, object] = {"size": options.size, "threads": torch.get_num_threads()}
    result["cpu scenes/s"] = round(speed("cpu", options.size, 64))
    if options.device != "cpu":
        result["device scenes/s"] = round(speed(options.device, options.size, 2048))
        scenes = draw(torch.arange(256))
        here, there = render(scenes, options.size), render(scenes, options.size, options.device)
        result["largest difference, of 255"] = float((here.images - there.images.cpu()).abs().max()) * 255
        result["owners that differ"] = int((here.owner != there.owner.cpu()).sum())
    world = World(n=64, size=options.size)
    begun = time.perf_counter()
    render(world.scenes(), options.size)
    result["cpu scenes/s from Scene values"] = round(64 / (time.perf_counter() - begun))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
