"""Methods by other metrics than insertion and deletion: boxes, trimaps, ROAD, noise, sparseness, randomised models.

Run ``python benchmarks/other_metrics.py --data FOLDER --device cuda --out other_metrics.json``. The folder has
``imagenet-val-1k/`` and ``pets-200/`` with their JSON files, and the weights of DeiT-Tiny and of DINOv2-S with a linear
head. Explained is the true class; every cell is the score of all images with its 95 % interval. ``--only boxes``
(``pets``, ``noise``, ``randomisation``) runs one part, ``--images`` and ``--random-images`` set the sizes, ``--models``
one model.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from ladder import MODELS, read

import vitreous as vt

METHODS = (
    "quick",
    "coiba(samples=2{half})",
    "tis(masks=1024{half})",
    "skipplus(decompx)",
    "vtranm",
    "var(skipplus(decompx))",
    "generic",
    "grad_rollout",
    "rollout",
    "raw_attention",
    "attcat",
    "ixg",
    "gradcam",
    "saliency",
)
BASELINES = ("edges", "centre", "random")
LOCALISATION = (
    "pointing_game(largest=0.5)",
    "energy_pointing_game",
    "average_precision",
    "pixel_accuracy",
    "mean_iou",
    "relevance_mass",
)
PARTS = {
    "boxes": (*LOCALISATION, "road_morf", "road_lerf", "road", "gini"),
    "pets": LOCALISATION,
    "noise": ("max_sensitivity", "max_sensitivity(standardise=true)", "rank_sensitivity"),
    "randomisation": ("mprt(seeds=3)", "mprt(seeds=3, similarity=ssim)", "random_logit"),
}
LEFT_OUT = {"noise": ("coiba", "tis"), "randomisation": ("coiba", "tis", "saliency", "edges")}
"""Methods of so many forwards, or maps of so many pixels, that making them again takes too long."""


def evaluate_part(model: vt.VisionModel, part: str, options: argparse.Namespace) -> vt.ScoreTable:
    """Return the table of one part."""
    folder = "pets-200" if part == "pets" else "imagenet-val-1k"
    rows = json.loads((options.data / f"{folder}.json").read_text())
    most = {"boxes": options.images, "pets": 200, "noise": options.noisy_images}.get(part, options.random_images)
    rows = rows[:: max(1, len(rows) // most)][:most]
    half = model.device.type == "cuda"
    asked = [method for method in (*options.methods, *BASELINES) if not method.startswith(LEFT_OUT.get(part, "none"))]
    methods: dict[str, Any] = {item.replace("{half}", ""): read(item, model) for item in asked}
    return vt.evaluate(
        model,
        [options.data / folder / row["file"] for row in rows],
        methods,
        list(PARTS[part]),
        labels=[row["label"] for row in rows],
        annotations=vt.load_annotations(options.data / f"{folder}.json"),
        target="label",
        controls=False,
        precision="float16" if half and part == "boxes" and options.half else "float32",
        batch_size=options.batch,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--methods", type=lambda text: text.split(";"), default=list(METHODS))
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--noisy-images", type=int, default=200)
    parser.add_argument("--random-images", type=int, default=100)
    parser.add_argument("--half", action="store_true", help="score the states in float16, audited")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for name in options.models:
        spec, value, weights = MODELS[name]
        model = vt.load(spec, pretrained=False, checkpoint=options.data / weights, device=options.device, **value)
        for part in options.only:
            began = time.perf_counter()
            table = evaluate_part(model, part, options)
            seconds = time.perf_counter() - began
            explaining = table.plan["seconds"]["explaining"]
            print(f"\n{name}, {part}: {len(table.images)} images, {seconds:.0f} s, {explaining:.0f} s of it explaining")
            print(table, flush=True)
            result[f"{name} {part}"] = {
                "images": len(table.images),
                "seconds": seconds,
                "explaining": explaining,
                "rows": {
                    method: {
                        metric: [table.mean(method, metric), *table.interval(method, metric)]
                        for metric in table.metrics
                    }
                    for method in table.methods
                },
                "curves": {
                    method: table.curve(method, metric).mean.tolist()
                    for method in table.methods
                    for metric in table.metrics[:1]
                    if part == "randomisation"
                },
            }
            if options.out is not None:
                options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
