"""What methods cost: time over the reference passes of the same model, and peak memory on a GPU.

Run ``python benchmarks/methods.py --quick`` on a CPU, ``python benchmarks/methods.py --device cuda`` on a GPU. Weights
and images are random. Every figure is a ratio of medians, all works of a part interleaved round by round; a forward is
the unmodified model without gradients, its attention fused. Two figures have references of their own: CoIBA is compared
with one forward of every image and nine forwards and backwards of ten replicas from the first bottleneck on, TIS with
forwards of as many different samples as it runs, at their length, embedded once; both in the same inner batches, with
nothing damped, clustered or selected. ``--parts every`` (not among the parts that run if none is named) compares every
method with its reference passes (``reference_passes.py``): one F, or F and B to where its definition ends, or as many
as it runs, with *a forward whose attention is written out* wherever the definition reads attention weights; the line
says so. Long ones take small counts, which ratios do not depend on.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from reference_passes import (
    REFERENCE_PASSES,
    TIMED_ALONE,
    PassConfig,
    ReferenceModel,
    ReferencePasses,
    from_first,
    missing,
    samples,
)
from torch import Tensor

import vitreous as vt
from vitreous.methods import compute_attributions
from vitreous.tracing import Context, Target

PARTS = ("ladder", "skipplus", "vtranm", "var", "plus", "coiba", "tis", "memory")
EVERY = "every"
ENOUGH = 4.0  # seconds after which a long work is not run again
LAYERED = ("ixg", "decompx", "generic", "gradcam", "attin", "globenc", "alti", "fullgrad", "fullgrad_plus")
CLASSES = (3, 6)
MEMORY = (  # model, method, most GB, for a batch of 8
    ("vit_base_patch8_224", "skipplus(decompx)", 8.0),
    ("vit_base_patch16_224", "globenc", 6.0),
    ("vit_base_patch16_224", "alti", 6.0),
)
Work = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One figure and the most it may be; without a limit it is there for information."""

    what: str
    figure: float
    unit: str
    limit: float | None = None

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "ok" if self.figure <= self.limit else "MISSED"

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"at most {self.limit:g}"
        return f"{self.what:68s} {self.figure:8.2f} {self.unit:12s} {limit:14s} {self.verdict}"


def race(works: dict[str, Work], rounds: int, device: str) -> dict[str, float]:
    """Return the median seconds of every work; the first turn warms up, and every other one goes backwards."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name in list(works)[:: 1 if turn % 2 else -1]:
            taken = timed(works[name], device)
            if turn:
                seconds[name].append(taken)
    return {name: statistics.median(second) for name, second in seconds.items()}


def timed(work: Work, device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def built(name: str, device: str) -> vt.VisionModel:
    model = timm.create_model(name, pretrained=False).eval().to(device).requires_grad_(False)
    return vt.wrap(model)


def noise(model: vt.VisionModel, count: int) -> Tensor:
    sample = torch.randn(count, 3, *model.preprocess.size, generator=torch.Generator().manual_seed(0))
    return model.cast(sample)


def forward(model: vt.VisionModel, images: Tensor) -> None:
    with torch.no_grad():
        model.module(images)


def explain(
    model: vt.VisionModel,
    images: Tensor,
    method: str | vt.Method,
    batch: int,
    on_progress: Callable[[int], None] | None = None,
) -> None:
    context = Context(model, images, Target.of(model, len(images)), batch=batch, on_progress=on_progress)
    compute_attributions(context, [vt.get_method(method)])


# -- one pass or a few: skipplus, vtranm, var, plus ------------------------------------------------------------


def lowest(name: str) -> vt.Method:
    """Return a base as the sum of ``plus`` begins with it: reading block 0, where its default reads the last."""
    base = vt.get_method(name)
    if getattr(base, "layer", 0) == 0:
        return base
    return replace(base, layer=0, **({"point": "resid_pre"} if hasattr(base, "point") else {}))


def few_passes(model: vt.VisionModel, images: Tensor, parts: set[str], rounds: int, device: str) -> Iterator[Line]:
    """Everything that takes a few passes, in one race with the forward."""
    steps = {vt.recommended_method(step, model): step for step in ("quick", "careful")}
    names: list[str] = list(steps) if "ladder" in parts else []
    names += ["skipplus(decompx)"] if "skipplus" in parts else []
    names += ["vtranm"] if "vtranm" in parts else []
    var = {(base, k): f"var({base}, classes=top:{k - 1})" for base in ("generic", "ixg") for k in CLASSES}
    names += var.values() if "var" in parts else ()
    pairs = {name: (vt.get_method(name).spec, lowest(name).spec) for name in LAYERED}
    if "plus" in parts:
        names += [item for name, pair in pairs.items() for item in (*pair, f"plus({name})")]
    if not names:
        return
    works: dict[str, Work] = {"forward": partial(forward, model, images)}
    works |= {name: partial(explain, model, images, name, len(images)) for name in dict.fromkeys(names)}
    result = race(works, rounds, device)
    for name, limit in (*((name, None) for name in steps), ("skipplus(decompx)", 4.0), ("vtranm", 5.0)):
        if name in result:
            yield Line(steps.get(name, name), result[name] / result["forward"], "forwards", limit)
    for (base, k), name in var.items() if "var" in parts else ():
        yield Line(f"var({base}) over {k} classes", result[name] / result["forward"], "forwards", 1 + 2.2 * k)
    for name, (usual, same) in pairs.items() if "plus" in parts else ():
        plus = result[f"plus({name})"]
        yield Line(f"plus({name}) over {same}", plus / result[same], "x", 1.1)
        if usual != same:  # it reads the last block alone, and its backward ends there
            yield Line(f"plus({name}) over {usual}", plus / result[usual], "x")


# -- CoIBA and TIS ---------------------------------------------------------------------------------------------


def coiba(model: vt.VisionModel, images: Tensor, rounds: int, device: str) -> Iterator[Line]:
    method: Any = vt.get_method("coiba")
    fits = Context(model, images, Target.of(model, len(images))).batch
    batch = max(method.samples, min(fits, len(images) * method.samples) // method.samples * method.samples)
    works: dict[str, Work] = {
        "forward": partial(forward, model, images),
        "reference": partial(from_first, PassConfig(ReferenceModel(model), images, method, batch, 0)),
        "coiba": partial(explain, model, images, method, batch),
    }
    result = race(works, rounds, device)
    note = f"{len(images)} image{'s' * (len(images) > 1)}, {batch} replicas at once"
    yield Line(f"coiba, {note}", result["coiba"] / result["forward"], "forwards", 150.0)
    limit = 1.3 if device != "cpu" else None  # promised for a GPU and 32 images
    yield Line("coiba over its reference passes", result["coiba"] / result["reference"], "x", limit)


def tis(model: vt.VisionModel, images: Tensor, masks: int, rounds: int, device: str) -> Iterator[Line]:
    batch = Context(model, images, Target.of(model, len(images))).batch
    reference = ReferenceModel(model)
    ways = {"float32": False} if device == "cpu" else {"float32": False, "half": True}
    works: dict[str, Work] = {"forward": partial(forward, model, images)}
    counts = {}
    for name, half in ways.items():
        method = vt.get_method(f"tis(masks={masks}, half={str(half).lower()})")
        run: list[int] = []
        explain(model, images, method, batch, run.append)
        counts[name] = sum(run) - len(images)  # one forward of every image is no sample
        works[f"reference {name}"] = partial(samples, PassConfig(reference, images, method, batch, sum(run)), half)
        works[name] = partial(explain, model, images, method, batch)
    result = race(works, rounds, device)
    for name in ways:
        note = f"{name}, {len(images)} x {counts[name] / len(images):.0f} samples, {batch} at once"
        yield Line(f"tis over its reference forwards ({note})", result[name] / result[f"reference {name}"], "x", 1.3)
        yield Line(f"tis, {name}", result[name] / result["forward"], "forwards")


# -- every method ----------------------------------------------------------------------------------------------


def every(model: vt.VisionModel, images: Tensor, rounds: int, device: str, only: str = "") -> Iterator[Line]:
    """Every method over its reference passes, or some of them; a line as soon as it is measured."""
    if missing():
        raise SystemExit(f"there are no reference passes for {', '.join(missing())}")
    reference = ReferenceModel(model)
    wanted = only.split(",") if only else [*REFERENCE_PASSES, *TIMED_ALONE]
    few = {name: passes for name, passes in REFERENCE_PASSES.items() if not passes.is_long and name in wanted}
    works: dict[str, Work] = {}
    for name, passes in few.items():
        works[passes.description] = partial(
            passes.work, PassConfig(reference, images, vt.get_method(name), len(images), len(images))
        )
        works[name] = partial(explain, model, images, name, len(images))
    result = race(works, rounds, device)
    for name, passes in few.items():
        yield Line(
            f"{name} over {passes.description}",
            result[name] / result[passes.description],
            "x",
            promised(passes, device),
        )
    batch = Context(model, images, Target.of(model, len(images))).batch
    for name, passes in REFERENCE_PASSES.items():
        if passes.is_long and name in wanted:
            yield long(model, reference, images, passes.spec or name, passes, min(batch, 4096), rounds, device)
    for name, spec in TIMED_ALONE.items():
        if name not in wanted:
            continue
        yield timed_alone(model, images[:2], name, spec, device)


def promised(passes: ReferencePasses, device: str) -> float | None:
    return passes.limit if device != "cpu" else None  # promised for a GPU and 32 images


def long(
    model: vt.VisionModel,
    reference: ReferenceModel,
    images: Tensor,
    name: str,
    passes: ReferencePasses,
    batch: int,
    rounds: int,
    device: str,
) -> Line:
    """One method and its reference passes by turns, as often as there is time for."""
    method: Any = vt.get_method(name)
    if method.info.family == "bottleneck":
        batch = max(method.samples, batch // method.samples * method.samples)
    explain(model, images[:1], method, batch)  # what is computed once for a model is not the cost of an image
    seconds, reference_seconds = list[float](), list[float]()
    while len(seconds) < rounds and sum(seconds) < ENOUGH:
        run: list[int] = []
        seconds.append(timed(partial(explain, model, images, method, batch, run.append), device))
        reference_seconds.append(
            timed(partial(passes.work, PassConfig(reference, images, method, batch, sum(run))), device)
        )
    ratio = statistics.median(seconds) / statistics.median(reference_seconds)
    text = f"{sum(run) / len(images):.0f} an image, {batch} at once, {statistics.median(seconds):.2f} s"
    return Line(f"{name} over {passes.description} ({text})", ratio, "x", promised(passes, device))


def timed_alone(vision_model: vt.VisionModel, images: Tensor, name: str, spec: str, device: str) -> Line:
    """Seconds per image; max-flows on a small grid, since they take minutes on a large one, and only with scipy."""
    note = ""
    if name == "attention_flow":
        model = timm.create_model("vit_small_patch16_224", pretrained=False, img_size=80).eval().to(device)
        vision_model, note = vt.wrap(model), ", 5 x 5 patches"
        images = noise(vision_model, 1)
    if name == "xrai":  # noise has a region at every pixel, images have not
        size = images.shape[2:]
        images = torch.nn.functional.interpolate(images[:, :, ::16, ::16], size, mode="bicubic", align_corners=False)
    try:
        seconds = timed(partial(explain, vision_model, images, spec, len(images)), device)
    except vt.VitreousError as error:
        return Line(f"{name}: {error}", math.nan, "s per image")
    return Line(f"{spec}{note}", seconds / len(images), "s per image")


# -- memory ----------------------------------------------------------------------------------------------------


def memory(batch: int = 8) -> Iterator[Line]:
    models: dict[str, vt.VisionModel] = {}
    for model, name, limit in MEMORY:
        if model not in models:
            models.clear()  # one model at a time, and only its own weights count
            torch.cuda.empty_cache()
            models[model] = built(model, "cuda")
        vision_model = models[model]
        images = noise(vision_model, batch)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        explain(vision_model, images, name, batch)
        torch.cuda.synchronize()
        yield Line(f"{name}, {model}, batch {batch}", torch.cuda.max_memory_allocated() / 1e9, "GB", limit)


def lines(options: argparse.Namespace) -> Iterator[Line]:
    parts, device = set(options.parts), options.device
    if device != "cpu" and "memory" in parts:
        yield from memory()  # first: nothing else lies about
        torch.cuda.empty_cache()
    model = built(options.model, device)
    yield from few_passes(model, noise(model, options.batch), parts, options.rounds, device)
    if EVERY in parts:
        yield from every(model, noise(model, options.batch), options.rounds, device, options.methods)
    slow = max(1, options.rounds // 2)
    if "coiba" in parts:
        yield from coiba(model, noise(model, options.coiba), slow, device)
    if "tis" in parts:
        yield from tis(model, noise(model, options.tis), options.masks, slow, device)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", help="vit_small_patch16_224 on a CPU, vit_base_patch16_224 on a GPU")
    parser.add_argument("--batch", type=int, help="images of whatever takes a few passes; 8 on a CPU, 32 on a GPU")
    parser.add_argument("--coiba", type=int, help="images of CoIBA; 2 on a CPU, 32 on a GPU")
    parser.add_argument("--tis", type=int, help="images of TIS; 1 on a CPU, 4 on a GPU")
    parser.add_argument("--masks", type=int, help="samples of TIS; 1024")
    parser.add_argument("--rounds", type=int, help="5; CoIBA and TIS take half as many")
    choices = (*PARTS, EVERY)
    parser.add_argument(
        "--parts", "--only", nargs="+", choices=choices, default=list(PARTS), metavar="PART", help=", ".join(choices)
    )
    parser.add_argument("--quick", action="store_true", help="batches of 2, 1 image and 128 samples, 3 rounds")
    parser.add_argument("--methods", default="", help="of the part every: some of them, separated by commas")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    cpu = options.device == "cpu"
    usual = {"batch": 8 if cpu else 32, "coiba": 2 if cpu else 32, "tis": 1 if cpu else 4, "masks": 1024, "rounds": 5}
    quick = {"batch": 2, "coiba": 1, "tis": 1, "masks": 128, "rounds": 3}
    for name, value in (quick if options.quick else usual).items():
        setattr(options, name, getattr(options, name) or value)
    options.model = options.model or ("vit_small_patch16_224" if cpu else "vit_base_patch16_224")
    return options


def main() -> None:
    options = parse_options()
    warnings.simplefilter("ignore", vt.VitreousWarning)  # random weights explain nothing, and alti says so
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"{torch.get_num_threads()} threads"
    print(f"{options.model}, batch {options.batch}, float32 on {options.device} ({where}), torch {torch.__version__}")
    began, result = time.perf_counter(), []
    for line in lines(options):
        result.append(line)
        print(line, flush=True)
        if options.json:
            reference = {**vars(options), "json": None, "where": where, "torch": torch.__version__}
            rows = [{**asdict(item), "verdict": item.verdict} for item in result]
            options.json.write_text(json.dumps({"options": reference, "lines": rows}, indent=1) + "\n")
    if options.device == "cpu" and "memory" in options.parts:
        print("memory is measured on a GPU only")
    missed = sum(line.verdict == "MISSED" for line in result)
    print(f"{missed} of {sum(line.limit is not None for line in result)} limits missed", end="; ")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
