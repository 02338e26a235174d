"""Which method by default? Candidates for each effort level, on two real models and on the world.

Run ``python benchmarks/ladder.py --data FOLDER --device cuda --images 1000 --out ladder.json``. The folder has
``imagenet-val-1k/`` with its JSON, and the weights of DeiT-Tiny and of DINOv2-S with a linear head. The photographs are
in a random order; the first half is to choose on, the second to report. For every method and metric (CoIBA's and
SkipPLUS' protocols, explained and scored is the predicted class): the mean on both halves, and on the second half the
paired difference to some others with its 95 % interval. ``--methods`` takes specs and effort levels,
separated by ``;``, with ``{careful}`` for that level inside. On a GPU, states are scored in float16 (audited), and so
are samples and CoIBA's replicas.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from known_answers import Photos, read_photos, world
from systems import METRICS
from torch.nn.functional import adaptive_avg_pool2d

import vitreous as vt
from vitreous.evaluation.checks import rank_agreement
from vitreous.metrics import intervals
from vitreous.registry.defaults import EFFORT_LEVELS

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "deit": ("timm/deit_tiny_patch16_224", {}, "deit_tiny_patch16_224.fp16.safetensors"),
    "dinov2": (
        "timm/vit_small_patch14_dinov2",
        {"img_size": 224, "num_classes": 1000},
        "dinov2_small_patch14_224.fp16.safetensors",
    ),
}
METHODS = (
    *EFFORT_LEVELS,
    "coiba(samples=10{half})",
    "tis(masks=1024{half})",
    "skipplus(decompx)",
    "logprob(plus(decompx))",
    "logprob(plus(decompx, combine=scaled))",
    "logprob(skipplus(decompx, skip=0.25, combine=rank))",
    "logprob(witness(decompx, grad_rollout))",
    "logprob(grad_rollout)",
    "logprob(attcat)",
    "generic",
)
COIBA = METHODS[3]
REFERENCES = ("quick", "careful", COIBA, "tis(masks=1024{half})", "skipplus(decompx)", "logprob(plus(decompx))")
PHOTOGRAPHS = 200
FROM_PHOTOGRAPHS = f"coiba, statistics of {PHOTOGRAPHS} photographs"


def read(text: str, model: vt.VisionModel) -> vt.Method:
    """Return the method, or that of an effort level; fill in that of a level in braces, and float16."""
    half = model.device.type == "cuda"
    spec = vt.recommended_method(text, model) if text in EFFORT_LEVELS else text
    for step in EFFORT_LEVELS:
        spec = spec.replace(f"{{{step}}}", vt.recommended_method(step, model) if f"{{{step}}}" in spec else "")
    return vt.get_method(spec.replace("{half}", ", half=true" if half else ""))


def evaluate_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the table of one model."""
    spec, result, weights = MODELS[name]
    model = vt.load(spec, pretrained=False, checkpoint=options.data / weights, device=options.device, **result)
    photos = read_photos(model, options.data, options.images, options.batch)
    methods: dict[str, Any] = {method: read(method, model) for method in options.methods}
    like = None
    if COIBA in methods and len(photos) > 2 * PHOTOGRAPHS:  # the same with statistics of photographs
        statistics = vt.collect_activation_stats(model, photos.inputs[:PHOTOGRAPHS].cpu())
        methods[FROM_PHOTOGRAPHS] = like = replace(methods[COIBA], stats=statistics)
    began = time.perf_counter()
    table = vt.evaluate(
        model,
        photos.inputs.cpu(),
        methods,
        list(METRICS.values()),
        labels=photos.labels.tolist(),
        controls=False,
        precision="float16" if options.device == "cuda" else "float32",
        batch_size=options.batch,
    )
    seconds = time.perf_counter() - began
    half = len(photos) // 2
    rows = halves(table, METRICS, half, [item for item in REFERENCES if item in methods])
    same = None if like is None else agreement_of(model, photos[half:], methods[COIBA], like)
    return {
        "methods": {name: str(method) for name, method in methods.items()},
        "spearman": same,
        "rows": rows,
        "seconds": seconds,
        "explaining": table.plan["seconds"]["explaining"],
        "audit": table.plan["audit"],
    }


def on_world(model: vt.VisionModel, methods: Iterable[str], count: int) -> dict[str, Any]:
    """Return how much of the top fifth of each method lies on the creature and on its distinctive part."""
    by_name = {method: read(method, model) for method in methods}

    def explaining(method: vt.Method) -> Any:
        def explain(model: vt.VisionModel, inputs: Any, classes: Any) -> Any:
            parts = zip(inputs.split(64), classes.split(64), strict=True)
            maps = torch.cat([method.attribute(model, one, target=goal.tolist(), grid="token") for one, goal in parts])
            return adaptive_avg_pool2d(maps, model.grid())  # some of a convolutional network are finer

        return explain

    return world(count, {name: explaining(method) for name, method in by_name.items()}, model)


def halves(table: vt.ScoreTable, metrics: Mapping[str, str], half: int, others: Sequence[str]) -> dict[str, Any]:
    """Return for every method and metric the mean of both halves, and on the second the interval and the gains."""
    rows: dict[str, Any] = {method: {} for method in table.methods}
    for method, cells in rows.items():
        for short, metric in metrics.items():
            scores = table[method, metric]
            ((low, upper),) = intervals(scores[half:, None])
            cells[short] = {
                "choose": float(np.nanmean(scores[:half])),
                "report": float(np.nanmean(scores[half:])),
                "interval": [low, upper],
                "gain": gains(table, method, metric, half, [other for other in others if other != method]),
            }
    return rows


def gains(table: vt.ScoreTable, method: str, metric: str, half: int, others: list[str]) -> dict[str, Any]:
    """Return the paired difference to other methods on the second half, with its interval; all in one product."""
    if not others:
        return {}
    gaps = np.stack([(table[method, metric] - table[other, metric])[half:] for other in others], axis=1)
    means = np.nanmean(gaps, axis=0).tolist()
    return {
        other: {"mean": mean, "low": low, "high": upper}
        for other, mean, (low, upper) in zip(others, means, intervals(gaps), strict=True)
    }


def agreement_of(model: vt.VisionModel, photos: Photos, one: vt.Method, other: vt.Method) -> float:
    """Return the mean rank correlation of the maps of two methods."""
    correlations = []
    for start in range(0, len(photos), 64):
        part = photos[start : start + 64]
        options = {"target": part.predicted.tolist(), "grid": "token"}
        pair = zip(*(method.attribute(model, part.inputs, **options) for method in (one, other)), strict=True)
        correlations += [rank_agreement(first[None].cpu(), second[None].cpu()) for first, second in pair]
    return float(np.mean(correlations))


def show(name: str, table: dict[str, Any]) -> None:
    """Print one line for each method."""
    print(f"\n{name}: {table['seconds']:.0f} s, of which explaining {table['explaining']:.0f} s; {table['spearman']}")
    print("  ".join(f"{short:>15}" for short in METRICS))
    for method, cells in table["rows"].items():
        line = "  ".join(f"{cell['choose']:7.4f}/{cell['report']:7.4f}" for cell in cells.values())
        print(f"{line}  {method}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--methods", type=lambda text: tuple(text.split(";")), default=METHODS)
    parser.add_argument("--world", type=int, default=400, help="scenes; 0 for none")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tables: dict[str, Any] = {}
    if options.world:
        tables["world"] = on_world(vt.load("world", device=options.device), options.methods, options.world)
    for name in options.models:
        tables[name] = evaluate_model(name, options)
        show(name, tables[name])
        if options.out is not None:
            options.out.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
