"""What CoIBA costs: its time over the bare passes it cannot do without, and over plain forwards.

Run ``python benchmarks/bottleneck.py``. The bare passes are one forward of every image, and nine forwards and backwards
of ten replicas from the first bottleneck on, in the same parts, weights frozen, nothing damped. Rounds are interleaved;
the figures that matter are the ratios of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import timm
import torch

import vitreous as vt
from vitreous.passes import Session, Target

STEPS, SAMPLES = 9, 10


def bare(view: vt.View, images: torch.Tensor, start: int, part: int) -> None:
    """The passes alone."""
    with torch.no_grad():
        tokens = view.run(view.embed(images), 0, start)
        view.finish(view.run(tokens, start))
    replicas = tokens.repeat_interleave(SAMPLES, dim=0)
    for _ in range(STEPS):
        for first in range(0, len(replicas), part):
            leaf = replicas[first : first + part].detach().requires_grad_()
            logits = view.finish(view.run(leaf, start))
            torch.autograd.grad(logits[:, 0].sum(), leaf)


def timed(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--memory", type=float)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(given.model).to(given.device, getattr(torch, given.dtype)).eval().requires_grad_(False)
    view = vt.view(model)
    images = view.cast(torch.randn(given.batch, 3, *view.preprocess.size))
    part = Session(view, images, Target.of(view, given.batch), memory=given.memory).batch
    part = max(SAMPLES, min(part, given.batch * SAMPLES) // SAMPLES * SAMPLES)
    coiba = vt.method("coiba")
    start = coiba.layers(view)[0]  # type: ignore[attr-defined]
    works: dict[str, Callable[[], object]] = {
        "forward": lambda: view.logits(images),
        "bare passes": lambda: bare(view, images, start, part),
        "coiba": lambda: coiba.attribute(view, images, target=0, internal_batch_size=part),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(given.rounds + 1):
        for name, work in works.items():
            taken = timed(work, given.device)
            if turn:  # the first turn warms up
                seconds[name].append(taken)
    median = {name: statistics.median(each) for name, each in seconds.items()}
    found = {
        "model": given.model,
        "device": given.device,
        "dtype": given.dtype,
        "images": given.batch,
        "replicas at once": part,
        "seconds": {name: round(each, 4) for name, each in median.items()},
        "coiba / bare passes": round(median["coiba"] / median["bare passes"], 3),
        "coiba in forwards per image": round(median["coiba"] / median["forward"], 1),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
