"""Are the five systems any good? Real photographs, one table after the other, and the world whose answers are known.

Run ``python benchmarks/systems.py --data FOLDER --device cuda --images 1000 --out table.json``. The folder has
``imagenet-val-1k/`` and ``imagenet-val-1k.json`` (per image ``file``, ``label`` and ``boxes`` as fractions) and
DeiT-Tiny's weights. Each option that counts images switches a part off with 0:

``--slow-images``  systems, candidates for the default and controls, evaluated on the same images; gains are paired
``--images``       the same without what takes more than a few passes, on all images
``--seeds``        rank correlation of the maps of two seeds, for the systems that draw random numbers
``--boxes``        of the top fifth of the patches, the share inside the box over that of all patches; random is 1
``--world``        the same on the bundled world, for the creature and for its distinctive part

A method is a spec, with ``:logprob`` or ``:prob`` behind it where it shall explain that instead of the logit. On a
GPU, states are scored in float16 (audited) and TIS scores its samples so too. The file is written after every part.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from known_answers import Explain, Photos, boxes, read_photos, seeds, world
from torch import Tensor

import vitreous as vt
from vitreous.metrics import intervals
from vitreous.tracing import VALUES

PRED = "explain_class=pred, score_class=pred"
METRICS = {
    "insdel": f"insdel@coiba({PRED})",
    "insertion": f"insertion@coiba({PRED})",
    "deletion": f"deletion@coiba({PRED})",
    "token del AOPC": f"token_deletion_aopc@skipplus({PRED})",
    "token ins AOPC": f"token_insertion_aopc@skipplus({PRED})",
    "token del acc": f"token_deletion_accuracy@skipplus({PRED})",
    "token ins acc": f"token_insertion_accuracy@skipplus({PRED})",
}
SYSTEMS = ("coiba(stats=own)", "tis", "skipplus(decompx)", "var@sharp(skipplus(decompx))", "vtranm")
CANDIDATES = (
    "decompx:logprob",
    "plus(decompx)",
    "plus(decompx):logprob",
    "skipplus(decompx):logprob",
    "plus(ixg):logprob",
    "generic:logprob",
    "consensus(plus(decompx), generic):logprob",
    "consensus(plus(decompx), vtranm):logprob",
)
REFERENCES = ("generic", "rollout", "random")
"""What gains are measured against."""
STABLE = {"coiba(stats=own)": 0.9, "tis": 0.95}
"""The least rank correlation of two seeds."""
MANY = 10  # forwards from which on a method counts as expensive
WEIGHTS = "deit_tiny_patch16_224.fp16.safetensors"


class MethodSpec(NamedTuple):
    """A method and the output of the class that it explains."""

    method: vt.Method
    output: str = "logit"

    @classmethod
    def of(cls, text: str, device: str) -> MethodSpec:
        spec, colon, output = text.rpartition(":")
        has_output = bool(colon) and output in VALUES  # there are colons in specs too
        method = vt.get_method(spec if has_output else text)
        if method.info.name == "tis" and device != "cpu":
            method = replace(method, half=True)  # type: ignore[call-arg, type-var]
        return cls(method, output if has_output else "logit")

    def maps(self, model: vt.VisionModel, inputs: Tensor, classes: Tensor, seed: int = 0) -> Tensor:
        options: dict[str, Any] = {"output": self.output, "grid": "token", "seed": seed}
        return self.method.attribute(model, inputs, classes.tolist(), **options)


# -- evaluation ------------------------------------------------------------------------------------------------


def evaluate_methods(
    model: vt.VisionModel, photos: Photos, methods: Mapping[str, MethodSpec], precision: str, batch: int
) -> vt.ScoreTable:
    """Return one table of all methods, each with an output of its own: one evaluation per output, put together."""
    tables = {}
    for output in dict.fromkeys(method.output for method in methods.values()):
        tables[output] = vt.evaluate(
            model,
            photos.inputs,
            {name: method.method for name, method in methods.items() if method.output == output},
            list(METRICS.values()),
            labels=photos.labels.tolist(),
            controls=False,
            output=output,
            precision=precision,
            batch_size=batch,
        )
    subset = next(iter(tables.values()))
    return replace(
        subset,
        methods=tuple(methods),
        metrics=tuple(METRICS),
        parts={
            (name, short): tables[method.output].parts[name, long]
            for name, method in methods.items()
            for short, long in METRICS.items()
        },
        definitions={short: subset.definitions[long] for short, long in METRICS.items()},
        curves={},
        degenerate={name: tables[method.output].degenerate[name] for name, method in methods.items()},
        plan={"by output": {output: table.plan for output, table in tables.items()}},
    )


def gains(table: vt.ScoreTable, methods: Iterable[str], references: Iterable[str]) -> dict[str, Any]:
    """Return by how much each method is better than each reference, image by image; above zero is better."""
    cells = [(m, r, c) for m in methods for r in references if m != r and r in table.methods for c in table.metrics]
    sign = {metric: 1 if up else -1 for metric, up in table.higher_is_better.items()}
    apart = [sign[metric] * (table[one, metric] - table[other, metric]) for one, other, metric in cells]
    if not apart:
        return {}
    result: dict[str, Any] = {}
    for (one, other, metric), item, (low, upper) in zip(cells, apart, intervals(np.stack(apart, axis=1)), strict=True):
        verdict = "better" if low > 0 else "worse" if upper < 0 else "open"
        figure = {"mean": float(np.nanmean(item)), "low": low, "high": upper, "verdict": verdict}
        result.setdefault(one, {}).setdefault(other, {})[metric] = figure
    return result


def summarize(table: vt.ScoreTable, methods: Mapping[str, MethodSpec]) -> dict[str, Any]:
    """Return a table as plain data, without the scores of single images."""
    plan = table.plan["by output"]
    return {
        "images": len(table.images),
        "metrics": METRICS,
        "methods": {
            name: {
                "spec": method.method.spec,
                "value": method.method.fixed_output or method.output,
                "degenerate": dict(table.degenerate[name]),
                "scores": {
                    m: {"mean": table.mean(name, m), "interval": list(table.interval(name, m))} for m in table.metrics
                },
            }
            for name, method in methods.items()
        },
        "gains": gains(table, table.methods, REFERENCES),
        "audit": {value: item["audit"] for value, item in plan.items()},
        "seconds": {value: item["seconds"] for value, item in plan.items()},
    }


def print_gains(by_method: Mapping[str, Any]) -> None:
    """Print gains; a sign behind the interval says that zero is outside."""
    if not by_method:
        return
    signs = {"better": "+", "worse": "-", "open": " "}
    print(f"{'gain over':24s}" + "".join(f"{metric:>29s}" for metric in METRICS))
    for method, contrasts in by_method.items():
        print(method)
        for reference, cells in contrasts.items():
            texts = [
                f"{c['mean']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}] {signs[c['verdict']]}" for c in cells.values()
            ]
            print(f"  {reference:22s}" + "".join(f"{text:>29s}" for text in texts))


# -- all of it -------------------------------------------------------------------------------------------------


class BenchmarkRun:
    """Runs the parts one after the other and writes the result of each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device, self.began = options, options.device, time.perf_counter()
        self.precision = options.precision or ("float32" if self.device == "cpu" else "float16")
        self.batch = options.batch or (16 if self.device == "cpu" else 1024)
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        self.record: dict[str, Any] = {"options": settings, "torch": torch.__version__}
        self.systems = {text: MethodSpec.of(text, self.device) for text in options.methods}
        self.candidates = {text: MethodSpec.of(text, self.device) for text in options.candidates}
        self.references = {text: MethodSpec.of(text, self.device) for text in (*REFERENCES, "centre", "edges")}

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", flush=True)

    def keep(self, part: str, result: Mapping[str, Any]) -> None:
        self.record[part] = result
        if self.options.out:
            self.options.out.write_text(json.dumps(self.record, indent=1) + "\n")
        self.say(f"{part}: done")

    def table(self, part: str, photos: Photos, methods: Mapping[str, MethodSpec], compared: Iterable[str]) -> None:
        self.say(f"{part}: {len(methods)} methods on {len(photos)} images")
        result = evaluate_methods(self.model, photos, methods, self.precision, self.batch)
        summary = summarize(result, methods)
        print(result)
        print_gains({name: item for name, item in summary["gains"].items() if name in set(compared)})
        self.keep(part, summary)

    def run(self) -> None:
        options = self.options
        self.model = vt.load("timm/deit_tiny_patch16_224", checkpoint=options.data / WEIGHTS, device=self.device)
        self.model.module.requires_grad_(False)
        slow = min(options.slow_images, options.images)
        every = read_photos(self.model, options.data, max(options.images, slow + options.statistics), self.batch)
        photos = every[: options.images]
        right = (photos.predicted == photos.labels).float().mean().item()
        self.say(f"{len(photos)} photographs, {right:.1%} of them classified correctly")
        self.with_statistics(every[slow : slow + options.statistics])
        everyone = {**self.systems, **self.candidates, **self.references}
        explain: dict[str, Explain] = {name: method.maps for name, method in everyone.items()}
        compared = {**self.systems, **self.candidates}
        if slow:
            self.table("systems", photos[:slow], everyone, compared)
        if len(photos) > slow:
            few = {n: m for n, m in everyone.items() if self.forwards(m) < MANY and n not in self.informed}
            self.table("more images", photos, few, compared)
        if options.seeds:
            self.say(f"seeds: rank correlation of two, on {len(photos[: options.seeds])} images")
            least = {n: STABLE[m.method.info.name] for n, m in self.systems.items() if m.method.info.name in STABLE}
            self.keep("seeds", seeds(self.model, photos[: options.seeds], explain, least))
        if options.boxes:
            self.say("boxes: share of the top fifth inside over that of all patches")
            self.keep("boxes", boxes(self.model, photos, options.boxes, explain, self.systems))
        if options.world:
            self.say("world: the same for the creature and for its distinctive part")
            reference = {name: item for name, item in explain.items() if name not in self.informed}
            self.keep("world", world(options.world, reference, vt.load("world", device=self.device)))

    def forwards(self, method: MethodSpec) -> float:
        return method.method.num_forwards(self.model)

    def with_statistics(self, others: Photos) -> None:
        """Add CoIBA with statistics of photographs that are not among those of the first table."""
        self.informed: set[str] = set()
        if len(others) < 2:
            return
        usual = vt.collect_activation_stats(self.model, others.inputs)
        for name, system in list(self.systems.items()):
            if system.method.info.name == "coiba":
                text = f"{name}, {len(others)} images"
                method = replace(system.method, stats=usual)  # type: ignore[call-arg, type-var]
                self.systems[text] = MethodSpec(method, system.output)
                self.informed.add(text)
        self.say(f"statistics of {len(others)} other images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--slow-images", type=int, default=300)
    parser.add_argument("--statistics", type=int, default=200, help="other images, for CoIBA's noise")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--boxes", type=int, default=100)
    parser.add_argument("--world", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=list(SYSTEMS), help="the systems")
    parser.add_argument("--candidates", nargs="*", default=list(CANDIDATES), help="for the default")
    parser.add_argument("--precision", help="float32 on a CPU, float16 on a GPU")
    parser.add_argument("--batch", type=int, help="states at once; 16 on a CPU, 1024 on a GPU")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    BenchmarkRun(parser.parse_args()).run()


if __name__ == "__main__":
    main()
