"""Are the five systems any good? Real photographs, one table after the other, and the world whose answers are known.

Run ``python benchmarks/systems.py --data FOLDER --device cuda --images 1000 --out table.json``. The folder has
``imagenet-val-1k/`` and ``imagenet-val-1k.json`` (per image ``file``, ``label`` and ``boxes`` as fractions) and
DeiT-Tiny's weights. Each option that counts images switches a part off with 0:

``--slow-images``  systems, candidates for the default and yardsticks, judged on the same images; gains are paired
``--images``       the same without what takes more than a few passes, on all of the images there shall be
``--seeds``        rank correlation of the maps of two seeds, for the systems that draw
``--boxes``        of the top fifth of the patches, the share inside the box over that of all patches; random is 1
``--world``        the same on the bundled world, for the creature and for the part that tells its class

A method is a spelling, with ``:logprob`` or ``:prob`` behind it where it shall explain that instead of the logit. On a
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
RIVALS = ("generic", "rollout", "random")
"""What combinators are judged with; the others take ``plus(decompx)`` and, if they need two, ``generic``."""
STABLE = {"coiba(stats=own)": 0.9, "tis": 0.95}
"""The least rank correlation of two seeds."""
MANY = 10  # forwards from which on a method counts as expensive
WEIGHTS = "deit_tiny_patch16_224.fp16.safetensors"


class How(NamedTuple):
    """A method and the value of the class that it explains."""

    method: vt.Method
    value: str = "logit"

    @classmethod
    def of(cls, text: str, device: str) -> How:
        spec, colon, value = text.rpartition(":")
        valued = bool(colon) and value in VALUES  # there are colons in spellings too
        method = vt.get_method(spec if valued else text)
        if method.info.name == "tis" and device != "cpu":
            method = replace(method, half=True)  # type: ignore[call-arg, type-var]
        return cls(method, value if valued else "logit")

    def maps(self, model: vt.VisionModel, inputs: Tensor, classes: Tensor, seed: int = 0) -> Tensor:
        asked: dict[str, Any] = {"value": self.value, "grid": "token", "seed": seed}
        return self.method.attribute(model, inputs, classes.tolist(), **asked)


# -- judging --------------------------------------------------------------------------------------------------


def judged(model: vt.VisionModel, photos: Photos, hows: Mapping[str, How], precision: str, batch: int) -> vt.ScoreTable:
    """Return one table of all methods, each with a value of its own: one evaluation per value, put together."""
    tables = {}
    for value in dict.fromkeys(method.value for method in hows.values()):
        tables[value] = vt.evaluate(
            model,
            photos.inputs,
            {name: method.method for name, method in hows.items() if method.value == value},
            list(METRICS.values()),
            labels=photos.labels.tolist(),
            controls=False,
            output=value,
            precision=precision,
            batch_size=batch,
        )
    subset = next(iter(tables.values()))
    return replace(
        subset,
        methods=tuple(hows),
        metrics=tuple(METRICS),
        parts={(n, m): tables[h.value].parts[n, long] for n, h in hows.items() for m, long in METRICS.items()},
        definitions={short: subset.definitions[long] for short, long in METRICS.items()},
        curves={},
        degenerate={name: tables[method.value].degenerate[name] for name, method in hows.items()},
        plan={"by value": {value: table.plan for value, table in tables.items()}},
    )


def gains(table: vt.ScoreTable, methods: Iterable[str], rivals: Iterable[str]) -> dict[str, Any]:
    """Return by how much each method is better than each rival, image by image; above zero is better in all metrics."""
    cells = [(m, r, c) for m in methods for r in rivals if m != r and r in table.methods for c in table.metrics]
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


def told(table: vt.ScoreTable, hows: Mapping[str, How]) -> dict[str, Any]:
    """Return a table as plain data, without the scores of single images."""
    plan = table.plan["by value"]
    return {
        "images": len(table.images),
        "metrics": METRICS,
        "methods": {
            name: {
                "spelling": method.method.spec,
                "value": method.method.fixed_output or method.output,
                "degenerate": dict(table.degenerate[name]),
                "scores": {
                    m: {"mean": table.mean(name, m), "interval": list(table.interval(name, m))} for m in table.metrics
                },
            }
            for name, method in hows.items()
        },
        "gains": gains(table, table.methods, RIVALS),
        "audit": {value: item["audit"] for value, item in plan.items()},
        "seconds": {value: item["seconds"] for value, item in plan.items()},
    }


def print_gains(found: Mapping[str, Any]) -> None:
    """Print gains; a sign behind the interval says that zero is outside."""
    if not found:
        return
    marks = {"better": "+", "worse": "-", "open": " "}
    print(f"{'gain over':24s}" + "".join(f"{metric:>29s}" for metric in METRICS))
    for method, contrasts in found.items():
        print(method)
        for rival, cells in contrasts.items():
            texts = [
                f"{c['mean']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}] {marks[c['verdict']]}" for c in cells.values()
            ]
            print(f"  {rival:22s}" + "".join(f"{text:>29s}" for text in texts))


# -- all of it ------------------------------------------------------------------------------------------------


class BenchmarkRun:
    """Runs the parts one after the other and writes down what each found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.given, self.device, self.began = options, options.device, time.perf_counter()
        self.precision = options.precision or ("float32" if self.device == "cpu" else "float16")
        self.batch = options.batch or (16 if self.device == "cpu" else 1024)
        reference = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        self.record: dict[str, Any] = {"options": reference, "torch": torch.__version__}
        self.systems = {text: How.of(text, self.device) for text in options.methods}
        self.candidates = {text: How.of(text, self.device) for text in options.candidates}
        self.rivals = {text: How.of(text, self.device) for text in (*RIVALS, "centre", "edges")}

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", flush=True)

    def keep(self, part: str, found: Mapping[str, Any]) -> None:
        self.record[part] = found
        if self.given.out:
            self.given.out.write_text(json.dumps(self.record, indent=1) + "\n")
        self.say(f"{part}: done")

    def table(self, part: str, photos: Photos, hows: Mapping[str, How], compared: Iterable[str]) -> None:
        self.say(f"{part}: {len(hows)} methods on {len(photos)} images")
        result = judged(self.view, photos, hows, self.precision, self.batch)
        summary = told(result, hows)
        print(result)
        print_gains({name: item for name, item in summary["gains"].items() if name in set(compared)})
        self.keep(part, summary)

    def run(self) -> None:
        options = self.given
        self.view = vt.load("timm/deit_tiny_patch16_224", checkpoint=options.data / WEIGHTS, device=self.device)
        self.view.module.requires_grad_(False)
        slow = min(options.slow_images, options.images)
        every = read_photos(self.view, options.data, max(options.images, slow + options.statistics), self.batch)
        photos = every[: options.images]
        right = (photos.predicted == photos.labels).float().mean().item()
        self.say(f"{len(photos)} photographs, {right:.1%} of them classified correctly")
        self.with_statistics(every[slow : slow + options.statistics])
        everyone = {**self.systems, **self.candidates, **self.rivals}
        explain: dict[str, Explain] = {name: method.maps for name, method in everyone.items()}
        compared = {**self.systems, **self.candidates}
        if slow:
            self.table("systems", photos[:slow], everyone, compared)
        if len(photos) > slow:
            few = {n: h for n, h in everyone.items() if self.forwards(h) < MANY and n not in self.informed}
            self.table("more images", photos, few, compared)
        if options.seeds:
            self.say(f"seeds: rank correlation of two, on {len(photos[: options.seeds])} images")
            least = {n: STABLE[h.method.info.name] for n, h in self.systems.items() if h.method.info.name in STABLE}
            self.keep("seeds", seeds(self.view, photos[: options.seeds], explain, least))
        if options.boxes:
            self.say("boxes: share of the top fifth inside over that of all patches")
            self.keep("boxes", boxes(self.view, photos, options.boxes, explain, self.systems))
        if options.world:
            self.say("world: the same for the creature and for its telling part")
            reference = {name: item for name, item in explain.items() if name not in self.informed}
            self.keep("world", world(options.world, reference, vt.load("world", device=self.device)))

    def forwards(self, how: How) -> float:
        return how.method.num_forwards(self.view)

    def with_statistics(self, others: Photos) -> None:
        """Add CoIBA with statistics of photographs that are not among those of the first table."""
        self.informed: set[str] = set()
        if len(others) < 2:
            return
        usual = vt.collect_activation_stats(self.view, others.inputs)
        for name, options in list(self.systems.items()):
            if options.method.info.name == "coiba":
                text = f"{name}, {len(others)} images"
                method = replace(options.method, stats=usual)  # type: ignore[call-arg, type-var]
                self.systems[text] = How(method, options.value)
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
    parser.add_argument("--out", type=Path, help="write what was found as JSON")
    BenchmarkRun(parser.parse_args()).run()


if __name__ == "__main__":
    main()
