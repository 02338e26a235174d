"""How faithful every method is: one table of all of them, on DeiT-Tiny and on DINOv2-S with a linear head.

Run ``python benchmarks/faithful.py --data FOLDER --device cuda --out faithful.json``, with a folder as ``ladder.py``
has it. Metrics: insertion - deletion (CoIBA's baselines and grid), token deletion and insertion AOPC (SkipPLUS), the
predicted class explained and scored, means with 95 % bootstrap intervals. Beside them the cost (counted where there are
forwards only) and the seconds per image of the method alone. On a GPU states are scored in float16 (audited), and TIS'
samples and CoIBA's replicas run so too.

A group of methods is one evaluation, whose methods share passes and states. The file is written after every group, and
groups that are in it are not run again; ``--limit-seconds`` starts no group that would not end in time. Groups named
``some`` and ``few`` are evaluated on fewer images, which their rows say. ``--markdown`` makes the table of such a file;
it is sorted by insertion - deletion, by the mean of the ranks on both models. ``--small`` runs every row with small
counts.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from known_answers import read_photos
from ladder import MODELS, read
from systems import METRICS
from torch import Tensor

import vitreous as vt
from vitreous.methods import compute_attributions
from vitreous.tracing import Context, Target

GROUPS: dict[str, tuple[str, ...]] = {
    "attention": (
        *("raw_attention", "rollout", "generic", "grad_rollout", "attgrad", "attcam", "gradsam", "legrad", "inflow"),
        *("attin", "attin_rollout", "globenc", "alti", "vtranm"),
    ),
    "gradient": (
        *("gradient", "ixg", "attixg", "attcat", "cat", "decompx", "fullgrad", "fullgrad_plus", "saliency"),
        *("input_x_gradient", "gradcam", "hirescam", "gradcam_pp", "xgradcam", "xgradcam_plus", "layercam"),
        *("gradcam_elementwise", "eigencam", "eigengradcam"),
    ),
    "lrp": (
        *("transatt", "transatt@eval", "partial_lrp", "lrp_rollout", "full_lrp", "cp_lrp", "cp_lrp@lxt", "attnlrp"),
        *("lrp", 'lrp(rules="linear=zplus")', 'lrp(rules="attention=uniform")', 'lrp(rules="linear=epsilon")'),
    ),
    "combined": (
        *("plus(decompx)", "skipplus(decompx)", "logprob(plus(decompx))", "consensus(plus(decompx), generic)"),
        *("var@sharp(skipplus(decompx))", "witness(plus(decompx), generic)", "smooth(generic)"),
    ),
    "path": ("tam", "bt_h", "bt_t", "iia", "integrated_gradients", "gradient_shap", "guided_ig(steps=50)"),
    "blur": ("blur_ig",),
    "bottleneck": ("coiba(samples=10{half})", "iba"),
    "perturbation": ("scorecam", "ablationcam", "occlusion", "occlusion(drop=true)", "atman", "vit_cx"),
    "sampling": ("tis(masks=1024{half})", "refine(plus(decompx){half})"),
    "some lime": ("lime", "hsic"),
    "some rise": ("rise(masks=2000)",),
    "some shap": ("kernel_shap(samples=2000)", "kernel_shap(samples=2000, drop=true)"),
    "few": ("xrai(steps=20)", "iba_star"),
    "controls": ("random", "centre", "edges"),
}
LAST = GROUPS["controls"]
SOME, FEW = 100, 50
"""Images of the groups that take long."""
COLUMNS = ("insdel", "insertion", "deletion", "token del AOPC", "token ins AOPC")
STATES = 72
"""What these take for each method and image."""
RATES = {"deit": (40_000, 20_000), "dinov2": (8_000, 4_000)}
"""Forwards in a second on an H200, in float16 and in float32."""
EXTRA_SECONDS = {"xrai": 0.5, "alti": 0.01, "vit_cx": 0.02, "guided_ig": 0.03}
"""Seconds per image beside the passes."""
SHORTER = {"ablationcam": 0.1, "tis": 0.25, "refine": 0.25, "tam": 0.4, "bt_h": 0.4, "bt_t": 0.4, "coiba": 0.5}
"""The share of a full pass that their passes take: fewer blocks or tokens, or float16."""
SMALL = {"masks": 12, "samples": 6, "steps": 3, "channels": 4}


# -- rows ------------------------------------------------------------------------------------------------------


def label(text: str) -> str:
    """Return what the row of a method is called."""
    return text.replace("coiba(samples=10{half})", "coiba").replace("{half}", "")


def counted(group: str, images: int) -> int:
    """Return how many images a group is evaluated on."""
    return min(images, SOME if group.startswith("some") else FEW if group == "few" else images)


def smaller(method: Any) -> Any:
    """Return the method with small counts."""
    own = {f.name: getattr(method, f.name) for f in fields(method)}
    inner = {name: smaller(value) for name, value in own.items() if isinstance(value, vt.Method)}
    less = {n: SMALL[n] for n, v in own.items() if n in SMALL and isinstance(v, int) and v > SMALL[n]}
    return replace(method, **inner, **less)


def equivalents(method: vt.Method, model: vt.VisionModel) -> float:
    """Return what a method costs per image, in forwards; a backward is two."""
    forward, backward = method.cost
    few = max(method.num_forwards(model), 100 if method.info.name == "vit_cx" else 1)  # its clusters are not known yet
    return (forward + 2 * backward if backward else few) * SHORTER.get(method.info.name, 1)


def estimated(model: str, vision_model: vt.VisionModel, methods: Mapping[str, vt.Method], images: int) -> float:
    """Return the seconds that a group will take on an H200."""
    half, single = RATES[model]
    explaining = sum(
        equivalents(method, vision_model) / single + EXTRA_SECONDS.get(method.info.name, 0)
        for method in methods.values()
    )
    return images * (explaining + len(methods) * STATES / half)


def cost(method: vt.Method, ran: float) -> str:
    """Return forwards and backwards per image in words; forwards alone are those that were counted."""
    forward, backward = method.cost
    if not backward:
        return f"{ran:.0f} F" if method.info.family != "control" else "0"
    return f"{forward:.3g} F + {backward:.3g} B"


def alone(model: vt.VisionModel, method: vt.Method, inputs: Tensor) -> tuple[float, float]:
    """Return seconds and inputs run per image of a method by itself, and raise what it raises."""

    def explained(images: Tensor) -> int:
        run: list[int] = []
        compute_attributions(Context(model, images, Target.of(model, len(images)), on_progress=run.append), [method])
        return sum(run)

    explained(inputs[:1])
    images = inputs[: int(max(1, min(32, 4000 // method.num_forwards(model))))]
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    ran = explained(images)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / len(images), ran / len(images)


# -- evaluation ------------------------------------------------------------------------------------------------


def evaluate_group(model: vt.VisionModel, photos: Any, methods: Mapping[str, vt.Method], batch: int) -> dict[str, Any]:
    """Return the rows of one group, and how it went."""
    timed, refused = {}, {}
    for name, method in methods.items():
        try:
            timed[name] = alone(model, method, photos.inputs)
        except Exception as error:  # one method must not take the others with it
            refused[name] = f"{type(error).__name__}: {error}"[:300]
            print(f"  {name} is left out: {error}", flush=True)
    applicable = {name: method for name, method in methods.items() if name in timed}
    half = model.device.type == "cuda"
    asked = {METRICS[name]: name for name in COLUMNS}
    table = vt.evaluate(
        model,
        photos.inputs.cpu(),
        applicable,
        list(asked),
        controls=False,
        precision="float16" if half else "float32",
        batch_size=batch,
    )
    rows = {}
    for name, method in applicable.items():
        seconds, ran = timed[name]
        rows[name] = {
            "spec": method.spec,
            "images": len(photos),
            "cost": cost(method, ran),
            "seconds": seconds,
            "degenerate": dict(table.degenerate[name]),
            "scores": {
                short: {"mean": table.mean(name, long), "interval": list(table.interval(name, long))}
                for long, short in asked.items()
            },
        }
        mean = "  ".join(f"{rows[name]['scores'][short]['mean']:8.3f}" for short in COLUMNS)
        print(f"  {mean}  {seconds:8.4f} s  {rows[name]['cost']:>14s}  {name}", flush=True)
    return {"rows": rows, "refused": refused, "audit": table.plan["audit"], "states": table.plan["states"]}


class Run:
    """Evaluates group by group, keeps the results, and stops in time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.perf_counter()
        self.results: dict[str, Any] = (
            json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
        )
        self.slower = 1.0  # by how much this machine has missed the estimates

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", flush=True)

    def all(self) -> None:
        for model in self.options.models:
            todo = [g for g in self.options.groups if g not in self.results.get(model, {}).get("groups", {})]
            if todo and not self.model(model, todo):
                return

    def model(self, model: str, groups: list[str]) -> bool:
        """Evaluate on one model; return whether there was time for all of it."""
        options, (spec, result, weights) = self.options, MODELS[model]
        vision_model = vt.load(
            spec, pretrained=False, checkpoint=options.data / weights, device=options.device, **result
        )
        vision_model.module.requires_grad_(False)
        photos = read_photos(vision_model, options.data, options.images, options.batch)
        self.say(f"{model}: {len(photos)} photographs")
        values: Callable[[vt.Method], vt.Method] = smaller if options.small else lambda method: method
        for group in groups:
            methods = {label(text): values(read(text, vision_model)) for text in GROUPS[group]}
            count = counted(group, len(photos))
            expected = estimated(model, vision_model, methods, count)
            self.say(f"{model}, {group}: {len(methods)} methods, {count} images, about {expected:.0f} s on an H200")
            began = time.perf_counter()
            if options.limit_seconds and began - self.began + expected * self.slower > options.limit_seconds:
                self.say("there is no time for it: run again to go on")
                return False
            rows = evaluate_group(vision_model, photos[:count], methods, options.batch)
            taken = time.perf_counter() - began
            self.slower = max(self.slower, taken / max(expected, 1.0))
            groups_of_model = self.results.setdefault(model, {}).setdefault("groups", {})
            groups_of_model[group] = {**rows, "seconds": taken, "estimate": expected}
            self.results[model]["torch"], self.results[model]["device"] = torch.__version__, str(vision_model.device)
            if options.out:
                options.out.write_text(json.dumps(self.results, indent=1) + "\n")
            self.say(f"{model}, {group}: {taken:.0f} s")
        return True


# -- the table for the pages -----------------------------------------------------------------------------------


def ranked(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of all models by method, the best mean rank first and the controls last."""
    rows = {
        model: {n: r for g in item["groups"].values() for n, r in g["rows"].items()} for model, item in results.items()
    }
    positions: dict[str, list[float]] = {}
    for row in rows.values():
        order = sorted((n for n in row if n not in LAST), key=lambda n: -row[n]["scores"]["insdel"]["mean"])
        for position, name in enumerate(order):
            positions.setdefault(name, []).append(position / len(order))
    names = sorted(positions, key=lambda name: sum(positions[name]) / len(positions[name]))
    names += [name for name in LAST if any(name in row for row in rows.values())]
    return {name: {model: row.get(name) for model, row in rows.items()} for name in names}


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table of a file."""
    models = list(results)
    most = max(row["images"] for item in ranked(results).values() for row in item.values() if row)
    values = ("insertion − deletion", "token deletion AOPC", "token insertion AOPC", "s per image")
    head = ["method", "cost", *(f"{model}: {what}" for model in models for what in values)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, element in ranked(results).items():
        subset = next(row for row in element.values() if row)
        counts = list(dict.fromkeys(row["images"] for row in element.values() if row))
        fewer = "" if counts == [most] else f", {' and '.join(map(str, counts))} images"
        cells = [f"`{name}`{fewer}", subset["cost"]]
        for model in models:
            cells += cells_of(element[model])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cells_of(row: Mapping[str, Any] | None) -> list[str]:
    """Return the cells of one method on one model."""
    if row is None:
        return ["refused", "", "", ""]
    insdel, *tokens = (row["scores"][name] for name in ("insdel", "token del AOPC", "token ins AOPC"))
    low, upper = insdel["interval"]
    texts = [f"{one['mean']:.1f} [{one['interval'][0]:.1f}, {one['interval'][1]:.1f}]" for one in tokens]
    return [f"{insdel['mean']:.3f} [{low:.3f}, {upper:.3f}]", *texts, f"{row['seconds']:.2g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--groups", type=lambda text: text.split(","), default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--batch", type=int, help="states at once; 16 on a CPU, 1024 on a GPU")
    parser.add_argument("--limit-seconds", type=float, help="start no group that would not end in time")
    parser.add_argument("--small", action="store_true", help="small counts, to see that every row works")
    parser.add_argument("--out", type=Path, help="write the results as JSON, and go on from there")
    parser.add_argument("--markdown", action="store_true", help="print the table of --out, and run nothing")
    options = parser.parse_args()
    unknown = [*{*options.groups} - {*GROUPS}, *{*options.models} - {*MODELS}]
    if unknown or (options.markdown and not options.out) or not (options.markdown or options.data):
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "--markdown needs --out, all else --data")
    if options.markdown:
        print(markdown(json.loads(options.out.read_text())))
        return
    warnings.simplefilter("ignore", vt.VitreousWarning)
    options.batch = options.batch or (16 if options.device == "cpu" else 1024)
    Run(options).all()


if __name__ == "__main__":
    main()
