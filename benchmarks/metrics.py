"""What evaluation costs: the time of ``evaluate`` over that of the forwards that it needs.

Run ``python benchmarks/metrics.py`` (a small run on a CPU) or ``python benchmarks/metrics.py --device cuda --model
vit_base_patch16_224 --images 256``. Maps and images, rendered scenes, are on the device beforehand. The reference is
the unmodified model on as many inputs as there are states, at the same batch size and precision; token states at their
own lengths. Total and reference are timed in turn, and the overhead is the ratio of medians minus one. Asking for AOPC,
LOdds and SRG on top must cost next to nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor

import vitreous as vt

PIXELS = ["insertion", "deletion"]
PERTURBATION = ["positive_perturbation", "negative_perturbation"]
TOKENS = ["token_deletion_accuracy", "token_insertion_accuracy", "token_deletion_aopc", "token_insertion_aopc"]
GROUPS = {
    "insertion + deletion": PIXELS,
    "perturbation AUC": PERTURBATION,
    "token removal": TOKENS,
    "all of these": PIXELS + PERTURBATION + TOKENS,
    "… + AOPC, LOdds, SRG": PIXELS + PERTURBATION + TOKENS + ["aopc", "lodds", "srg"],
    "ROAD": ["road_morf", "road_lerf"],
}


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


class ReferenceForwards:
    """The unmodified model, its inputs already on the device."""

    def __init__(self, model: torch.nn.Module, images: Tensor, batch: int, precision: str) -> None:
        self.model, self.batch, self.device = model, batch, images.device.type
        self.images = images[torch.arange(batch) % len(images)].contiguous()
        half = None if precision == "float32" else getattr(torch, precision)
        self.cast = (lambda: torch.autocast(self.device, dtype=half)) if half else nullcontext
        with torch.no_grad(), self.cast():
            self.tokens = model._pos_embed(model.patch_embed(self.images))

    def run(self, states: dict[int, int]) -> None:
        """Run this many states by the number of tokens kept; 0 stands for whole images."""
        with torch.no_grad(), self.cast():
            for selected, count in states.items():
                for start in range(0, count, self.batch):
                    self.forward(selected, min(self.batch, count - start))

    def forward(self, num_tokens: int, batch: int) -> None:
        if not num_tokens:
            self.model(self.images[:batch])
            return
        tokens = self.tokens[:batch, : self.model.num_prefix_tokens + num_tokens].contiguous()
        self.model.forward_head(self.model.norm(self.model.blocks(tokens)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--methods", type=int, default=3)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--precision", default="float32", help="float32, float16 or bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", type=int, nargs="*", help="only these, counted from 0")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = timm.create_model(options.model, pretrained=False).eval().to(options.device).requires_grad_(False)
    vision_model = vt.wrap(model)
    scenes = vt.world.draw(torch.arange(options.images, device=options.device))
    images = vt.world.render(scenes, vision_model.preprocess.size[0]).images * 2 - 1
    grid = vision_model.grid(images)
    maps = {f"maps {i}": torch.randn(options.images, *grid, device=options.device) for i in range(options.methods)}
    labels = [0] * options.images
    evaluation = {"labels": labels, "controls": False, "batch_size": options.batch, "precision": options.precision}
    threads = torch.get_num_threads()
    print(
        f"{options.model}, {options.images} images, {options.methods} methods, {options.precision} on {options.device}"
    )
    print(f"torch {torch.__version__}, {threads} threads")
    print(f"{'group':24s} {'states':>8s} {'model s':>9s} {'total s':>9s} {'overhead':>9s}")
    names = list(GROUPS)
    chosen = names if options.groups is None else [names[i] for i in options.groups]
    figures: dict[str, Any] = {}
    for name in chosen:
        metrics = GROUPS[name]

        def evaluate(metrics: list[str] = metrics) -> vt.ScoreTable:
            return vt.evaluate(vision_model, images, maps, metrics, **evaluation)

        table = evaluate()  # warm up, and learn what was run
        states = {int(selected): count for selected, count in table.plan["states_by_kept_tokens"].items()}
        reference = ReferenceForwards(model, images, table.plan["forward_batch"], options.precision)
        reference.run({selected: min(count, table.plan["forward_batch"]) for selected, count in states.items()})
        times: dict[str, list[float]] = {"reference": [], "total": []}
        for _ in range(options.rounds):
            times["reference"].append(
                timed(lambda states=states, reference=reference: reference.run(states), options.device)[0]
            )
            times["total"].append(timed(evaluate, options.device)[0])
        medians = {key: statistics.median(values) for key, values in times.items()}
        overhead = medians["total"] / medians["reference"] - 1
        count = sum(states.values())
        print(f"{name:24s} {count:8d} {medians['reference']:9.3f} {medians['total']:9.3f} {overhead:+9.1%}", flush=True)
        figures[name] = {
            "states": count,
            **medians,
            "overhead": overhead,
            "batch": table.plan["forward_batch"],
            "times": times,
        }
        figures[name]["audit"] = table.plan["audit"]
    if set(names[3:5]) <= set(chosen):
        extra = figures[names[4]]["total"] / figures[names[3]]["total"] - 1
        print(f"AOPC, LOdds, SRG on top: {extra:+.1%} (at most +2 %)")
    print("at most +5 % on a data-centre GPU, +10 % on a CPU; ROAD +15 %")
    if options.out:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": None}, "groups": figures}, indent=1))


if __name__ == "__main__":
    main()
