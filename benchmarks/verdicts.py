"""How often is each verdict given to a good map, and how often to an empty one? An evaluation of ``check``.

Run ``PYTHONPATH=src python benchmarks/verdicts.py --data FOLDER --device cuda --images 200 --json verdicts.json``. The
folder has ``imagenet-val-1k/`` with its JSON, and the weights of DeiT-Tiny, of DINOv2-S with a linear head and of
EfficientNet-Lite0; without ``--data`` only the bundled models and their scenes are used. The test itself is the
library's (``vitreous.evaluation.evidence``): the strongest fifth of the patches of a map is blurred away and left
alone, and
the probability of the predicted class is compared with that for the same patches in other places. Maps:

- ``quick``, and ``careful`` with ``--careful``: what ``explain`` makes
- ``truth``: for scenes, the distinctive part of the class, the rest of the creature far behind
- ``random``: a random number for every patch; ``smooth``: coarse noise, enlarged; ``centre``: nearness to the centre
- ``runner-up`` and ``other class``: ``quick`` for the next probable class, and for a random other one

Two kinds of controls: ``moved``, the map's own patches elsewhere, and ``scattered``, as many random patches.
Thresholds are chosen on the images with even numbers and reported on those with odd ones. The file has the
probabilities and counts of every image.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import torch
from known_answers import patches, read_photos
from ladder import MODELS
from torch import Tensor
from torch.nn.functional import interpolate

import vitreous as vt
from vitreous.evaluation.evidence import MAX_CONTROLS, Evidence, blurred, moved, on_pixels, strongest
from vitreous.html import printed
from vitreous.tracing import probabilities
from vitreous.tracing.prng import PRNGKey
from vitreous.world import PARTS, World, distinctive_part

PHOTOGRAPHS = {**MODELS, "lite0": ("timm/tf_efficientnet_lite0", {}, "tf_efficientnet_lite0.fp16.safetensors")}
SCENES = ("world", "world-cnn")
CONTROLS = ("moved", "scattered")
VERDICTS = ("good", "weak", "bad", "-")
FAIR = ("quick", "careful", "truth")
EMPTY = ("random", "smooth", "runner-up", "other class")


# -- maps ------------------------------------------------------------------------------------------------------


def explained(model: vt.VisionModel, inputs: Tensor, step: str, classes: Sequence[int]) -> Tensor:
    """Return the maps of one step of effort, in patches."""
    method = vt.get_method(vt.recommended_method(step, model))
    parts = zip(inputs.split(32), torch.tensor(classes).split(32), strict=True)
    return torch.cat([method.attribute(model, item, goal.tolist(), grid="token").cpu() for item, goal in parts])


def smooth(count: int, grid: tuple[int, int], draw: torch.Generator) -> Tensor:
    """Return noise of four by four numbers, enlarged: blobs like those of a real map, anywhere."""
    return interpolate(torch.randn(count, 1, 4, 4, generator=draw), grid, mode="bicubic", align_corners=False)[:, 0]


def centre(count: int, grid: tuple[int, int]) -> Tensor:
    down, horizontal = ((torch.arange(size) + 0.5) / size - 0.5 for size in grid)
    return -(down[:, None] ** 2 + horizontal**2).expand(count, -1, -1)


def maps_of(
    model: vt.VisionModel, inputs: Tensor, steps: Sequence[str], truth: Tensor | None, class_probabilities: Tensor
) -> dict[str, Tensor]:
    """Return every kind of map ``[n, h, w]`` for the predicted classes."""
    draw, order = torch.Generator().manual_seed(0), class_probabilities.argsort(dim=1, descending=True)
    count, grid = len(inputs), tuple(model.grid(inputs))
    best = order[:, 0].tolist()
    chosen = order.gather(1, torch.randint(2, order.shape[1], (count, 1), generator=draw))[:, 0].tolist()
    values = {step: explained(model, inputs, step, best) for step in steps}
    if truth is not None:
        values["truth"] = truth
    values |= {"random": torch.rand(count, *grid, generator=draw), "smooth": smooth(count, grid, draw)}
    values |= {"centre": centre(count, grid), "runner-up": explained(model, inputs, "quick", order[:, 1].tolist())}
    return values | {"other class": explained(model, inputs, "quick", chosen)}


# -- the test --------------------------------------------------------------------------------------------------


def outcomes(
    model: vt.VisionModel, inputs: Tensor, blur: Tensor, removed: Sequence[Tensor], classes: Tensor, batch: int
) -> Tensor:
    """Return for each image and selection of removed patches the probability of a class, and if it is predicted."""
    which = torch.tensor([image for image, masks in enumerate(removed) for _ in range(len(masks))])
    masks, rows_of_batches = torch.cat(list(removed)), []
    for start in range(0, len(which), batch):
        subset = which[start : start + batch]
        pixels = on_pixels(masks[start : start + batch].to(inputs.device), inputs.shape[-2:])[:, None]
        rows = subset.to(inputs.device)
        result = probabilities(model.logits(torch.where(pixels, blur[rows], inputs[rows]))).cpu()
        probability = result.gather(1, classes[subset][:, None])[:, 0]
        rows_of_batches.append(torch.stack([probability, (result.argmax(dim=1) == classes[subset]).float()], dim=1))
    return torch.cat(rows_of_batches)


def evaluate_maps(
    model: vt.VisionModel, inputs: Tensor, maps_by_name: Mapping[str, Tensor], class_probabilities: Tensor, batch: int
) -> list[dict[str, Any]]:
    """Return a row for every image, map and kind of controls."""
    with ThreadPoolExecutor() as pool:
        blurs = list(pool.map(lambda item: blurred(model.preprocess.to_image(item)), inputs.cpu()))
    blur = model.cast(torch.stack([*map(model.preprocess.to_tensor, blurs)]))
    classes = class_probabilities.argmax(dim=1)
    draws = PRNGKey.of_images(0, "check", inputs.cpu())
    own = {name: torch.stack([strongest(map_) for map_ in maps]) for name, maps in maps_by_name.items()}
    first = next(iter(own.values()))
    orders = torch.stack([draws.at(place + 1).permutation(first[0].numel()) for place in range(MAX_CONTROLS)], dim=1)
    scattered = torch.zeros_like(orders, dtype=torch.bool).scatter_(2, orders[..., : int(first[0].sum())], True)
    removed: list[Tensor] = []
    for image in range(len(inputs)):
        row = torch.tensor([image])
        masks = [scattered[image].view(MAX_CONTROLS, *first[0].shape)]
        for element in own.values():
            masks += [element[image][None], moved(element[image], draws.select(row))]
        both = torch.cat(masks)
        removed.append(torch.cat([both, ~both]))
    parts = outcomes(model, inputs, blur, removed, classes, batch).split([len(item) for item in removed])
    rows = []
    for image, result in enumerate(parts):
        now = float(class_probabilities[image, classes[image]])
        without, alone = result[:, 0].view(2, -1).tolist()
        same = (result[:, 1].view(2, -1)[1] > 0).tolist()
        at = MAX_CONTROLS
        for name in own:
            count = len(moved(own[name][image], draws.select(torch.tensor([image]))))
            spans = {"moved": slice(at + 1, at + 1 + count), "scattered": slice(MAX_CONTROLS)}
            for controls in CONTROLS:
                others = tuple(without[spans[controls]]), tuple(alone[spans[controls]])
                evidence = evidence_of(now, without[at], alone[at], others, same[at])
                rows.append(row_of(image, name, controls, evidence))
            at += 1 + count
    return rows


def evidence_of(
    now: float, without: float, alone: float, others: tuple[tuple[float, ...], tuple[float, ...]], same: bool
) -> Evidence:
    return Evidence(now, without, alone, ((0, 0.0), (0, 0.0)), *others, keeps_prediction=same)


def read(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a file with the counts and the verdict of today's rules."""
    others = tuple(row["others_without"]), tuple(row["others_alone"])
    result = evidence_of(row["now"], row["without"], row["alone"], others, row["keeps_prediction"])
    return {**row, **row_of(row["image"], row["map"], row["controls"], result)}


def row_of(image: int, name: str, controls: str, evidence: Evidence) -> dict[str, Any]:
    places = len(evidence.others_without)
    return {
        "image": image, "map": name, "controls": controls, "verdict": evidence.verdict, "now": evidence.now,
        "without": evidence.without, "alone": evidence.alone, "lower": evidence.lower, "higher": evidence.higher,
        "places": places, "moves": evidence.moves, "keeps_prediction": evidence.keeps_prediction,
        "others_without": [round(others_without, 5) for others_without in evidence.others_without],
        "others_alone": [round(others_alone, 5) for others_alone in evidence.others_alone],
    }  # fmt: skip


# -- tables ----------------------------------------------------------------------------------------------------


def shares(rows: Sequence[Mapping[str, Any]], verdict: Any = None) -> dict[str, dict[str, float]]:
    """Return how often each verdict is given, by the kind of map."""
    table: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(row["map"] for row in rows):
        options = [row["verdict"] if verdict is None else verdict(row) for row in rows if row["map"] == name]
        table[name] = {verdict: options.count(verdict) / len(options) for verdict in VERDICTS}
    return table


def lines(table: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for name, row in table.items():
        yield f"  {name:14s}" + "".join(f"{verdict} {100 * row[verdict]:5.1f} %   " for verdict in VERDICTS)


def thresholds(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say for several limits how often a fair and an empty map would be called good: both halves."""
    for controls, most, least in product(CONTROLS, (0.9, 0.95, 1.0), (0.5, 0.6, 0.75, 0.9)):

        def good(row: Mapping[str, Any], most: float = most, least: float = least) -> str:
            low, upper = sorted((row["lower"] / max(1, row["places"]), row["higher"] / max(1, row["places"])))
            now, without, alone = (printed(row[value]) for value in ("now", "without", "alone"))
            needed = row["lower"] >= most * row["places"] and 2 * without < now
            enough = row["higher"] >= most * row["places"] and 2 * alone >= now and row["keeps_prediction"]
            falls = row["moves"] and without < now and (needed or enough)
            return "good" if falls and upper >= most and low >= least else "bad"

        message = []
        for half in (0, 1):
            subset = [row for row in rows if row["controls"] == controls and row["image"] % 2 == half]
            message.append({name: share["good"] for name, share in shares(subset, good).items()})
        words = "  ".join(f"{name} {100 * message[0][name]:.0f}/{100 * message[1][name]:.0f}" for name in message[0])
        yield f"  {controls:9s} one {most:.2f} other {least:.2f}: {words}"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of the manual: good, weak and bad in percent, on the half of the images that chose nothing."""
    reported = [row for row in rows if row["controls"] == "moved" and row["image"] % 2]
    models = list(dict.fromkeys(row["model"] for row in reported))
    tables = [shares([row for row in reported if row["model"] == name]) for name in models]
    maps = list(dict.fromkeys(row["map"] for row in reported))
    lines = [f"| map | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for name in maps:
        cells = [
            " / ".join(f"{100 * t[name][verdict]:.0f}" for verdict in VERDICTS[:3]) if name in t else "" for t in tables
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def print_model(rows: Sequence[Mapping[str, Any]]) -> None:
    for controls in CONTROLS:
        print(f" {controls}, images with odd numbers", flush=True)
        odd = [row for row in rows if row["controls"] == controls and row["image"] % 2]
        print("\n".join(lines(shares(odd))), flush=True)
    print(" good in percent, chosen on / reported on", flush=True)
    print("\n".join(thresholds(rows)), flush=True)


# -- models and images -----------------------------------------------------------------------------------------


def scenes(model: vt.VisionModel, count: int) -> tuple[Tensor, Tensor]:
    """Return scenes in eight bits, and the annotation of their distinctive part."""
    inputs, truth = [], []
    for sample, seen in World(n=count, size=model.preprocess.size[0]).batches(64):
        part = torch.tensor([PARTS.index(distinctive_part(label)) for label in sample.label[:, 0].tolist()])
        distinctive = patches(seen.parts[torch.arange(len(part)), part], model.grid())
        truth.append(distinctive + 0.01 * patches(seen.creature, model.grid()))
        inputs += [model.preprocess.to_tensor(model.preprocess.to_image(image * 2 - 1)) for image in seen.images]
    return model.cast(torch.stack(inputs)), torch.cat(truth)


def evaluate_model(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one model."""
    began, truth = time.perf_counter(), None
    if name in SCENES:
        model = vt.load(name, device=options.device)
        inputs, truth = scenes(model, options.images)
    else:
        spec, method, weights = PHOTOGRAPHS[name]
        model = vt.load(spec, pretrained=False, checkpoint=options.data / weights, device=options.device, **method)
        inputs = read_photos(model, options.data, options.images, options.batch).inputs
    result = torch.cat([probabilities(model.logits(batch)).cpu() for batch in inputs.split(options.batch)])
    steps = ("quick", "careful") if options.has_careful_maps else ("quick",)
    rows = evaluate_maps(model, inputs, maps_of(model, inputs, steps, truth, result), result, options.batch)
    print(f"{name}: {len(inputs)} images, {time.perf_counter() - began:.0f} s", flush=True)
    print_model(rows)
    return [{"model": name, **row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with photographs and weights")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=200, help="photographs, and scenes")
    parser.add_argument("--models", type=lambda text: text.split(","), help=", ".join((*PHOTOGRAPHS, *SCENES)))
    parser.add_argument("--batch", type=int, help="pictures at once; 16 on a CPU, 512 on a GPU")
    parser.add_argument(
        "--careful", dest="has_careful_maps", action="store_true", help="also the maps of effort careful"
    )
    parser.add_argument("--json", type=Path, help="write every row")
    parser.add_argument("--read", type=Path, nargs="+", help="run nothing: the tables of such files, by today's rules")
    options = parser.parse_args()
    if options.read:
        read_rows = [read(row) for path in options.read for row in json.loads(path.read_text())]
        print_model(read_rows)
        print(markdown(read_rows))
        return
    models = options.models or [*(PHOTOGRAPHS if options.data else ()), *SCENES]
    unknown = {*models} - {*PHOTOGRAPHS, *SCENES}
    if unknown or (not options.data and {*models} & {*PHOTOGRAPHS}):
        parser.error(f"unknown: {', '.join(unknown)}" if unknown else "photographs and their models need --data")
    options.batch = options.batch or (16 if options.device == "cpu" else 512)
    warnings.simplefilter("ignore", vt.VitreousWarning)
    rows: list[dict[str, Any]] = []
    for name in models:
        rows += evaluate_model(name, options)
        if options.json:
            options.json.write_text(json.dumps(rows) + "\n")
    print("all models")
    print_model(rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()
