"""VAR on mosaics of the world: does a map of one cell's class lie in that cell, with VAR and without?

Run ``python benchmarks/mosaics.py --mosaics 200 --out mosaics.json``; ``--folder`` and ``--networks`` for those that
``convnets.py`` has trained. A mosaic is 2 x 2 scenes of distinct classes, each rendered at half the size. As in VAR's
Table 1, each cell's class is explained and compared with those of the other three; RA is the share of the positive
relevance that lies in the cell, IoU the overlap of the cell with what is above zero. The bootstrap draws whole mosaics.
Every network is evaluated twice, as it is and with its logits centred, which no probability sees. ``--markdown FILE``
prints the table of a file that is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from convnets import BUNDLED, OTHERS, centred, load

import vitreous as vt
from vitreous.metrics import intervals
from vitreous.world import make_mosaics

METRICS = {"RA": "region_attribution@var", "IoU": "region_iou@var"}
BASES = {
    "Grad-CAM": "gradcam",
    "IxG": "input_x_gradient",
    "guided backprop": "guided_backprop",
    "LRP": "lrp@epsilon_plus_flat",
}
PRESETS = ("paper", "sharp", "released")
PUBLISHED = {
    "Grad-CAM": {"RA": 25, "IoU": 64},
    "IxG": {"RA": 37, "IoU": 0},
    "guided backprop": {"RA": 144, "IoU": 32},
    "LRP": {"RA": 56, "IoU": 97},
}
"""The gains in percent that VAR's Table 1 prints for ResNet-50 on Quad-ImageNet."""


def evaluate_model(model: vt.VisionModel, count: int) -> dict[str, Any]:
    """Return the scores of every base that is for this model, with and without VAR, and the paired gains."""
    values = make_mosaics(count, size=model.preprocess.size[0])
    images = values.images.repeat_interleave(4, dim=0) * 2 - 1
    cells = [cell.numpy() for cell in values.cells] * count
    labels = values.labels.tolist()
    aims = [item for group in labels for item in group]
    compare_classes = [group for group in labels for _ in group]
    groups = torch.arange(count).repeat_interleave(4).tolist()
    bases = {
        name: method for name, method in BASES.items() if model.is_relu_only or vt.get_method(method).models != "ReLU"
    }
    methods = bases | {
        f"{name}, {preset}": f"var@{preset}({method})" for name, method in bases.items() for preset in PRESETS
    }
    table = vt.evaluate(
        model,
        images,
        methods,
        list(METRICS.values()),
        target=aims,
        compare_classes=compare_classes,
        annotations=[vt.Annotation(mask=cell) for cell in cells],
        groups=groups,
    )
    result: dict[str, Any] = {"constant": {short: table.mean("constant", long) for short, long in METRICS.items()}}
    for name in methods:
        result[name] = {}
        for short, long in METRICS.items():
            result[name][short] = {"mean": table.mean(name, long), "interval": list(table.interval(name, long))}
            base = name.split(",")[0]
            if base != name:
                gap = (table[name, long] - table[base, long]).reshape(count, 4).mean(axis=1)
                ((low, upper),) = intervals(gap[:, None])
                result[name][short] |= {"gain": float(gap.mean()), "gain interval": [low, upper]}
    return {"mosaics": count, "accuracy": named_first(model, values), "scores": result}


def named_first(model: vt.VisionModel, mosaics: Any) -> float:
    """Return how many of the four classes of a mosaic are among its four most probable ones, as a share."""
    top = model.logits(model.cast(mosaics.images * 2 - 1)).topk(4, dim=1).indices.cpu()
    return float((top[:, :, None] == mosaics.labels.cpu()[:, None]).any(dim=1).float().mean())


def rows(tables: dict[str, Any]) -> Iterator[str]:
    """The table of the manual."""
    yield "| network | method | | plain | with VAR | gain | gain of `sharp` | the paper's gain |"
    yield "|---|---|---|---|---|---|---|---|"
    for network, table in tables.items():
        for name in (base for base in BASES if base in table["scores"]):
            for short in METRICS:
                reference, *others = (
                    table["scores"][item][short] for item in (name, *(f"{name}, {p}" for p in PRESETS[:2]))
                )
                cells = [
                    network,
                    name,
                    short,
                    *(between(item["mean"], item["interval"], ".3f") for item in (reference, others[0])),
                ]
                for other in others:
                    gain, *ends = (item / reference["mean"] for item in (other["gain"], *other["gain interval"]))
                    cells.append(between(gain, ends, "+.0%"))
                yield f"| {' | '.join([*cells, f'{PUBLISHED[name][short]:+d}%'])} |"


def between(mean: float, ends: Sequence[float], form: str) -> str:
    low, upper = (format(end, form) for end in ends)
    return f"{mean:{form}} [{low}, {upper}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mosaics", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="of the networks that convnets.py has trained")
    parser.add_argument("--networks", nargs="*", choices=[BUNDLED, *OTHERS], default=[BUNDLED])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if options.markdown is not None:
        print("\n".join(rows(json.loads(options.markdown.read_text()))))
        return
    tables: dict[str, Any] = {}
    for name in options.networks:
        model = load(name, options.folder, options.device)
        for label, seen in ((name, model), (f"{name}, centred", centred(model))):
            tables[label] = evaluate_model(seen, options.mosaics)
            print(label, f"{tables[label]['accuracy']:.3f} of the classes are among the four most probable ones")
            if options.out is not None:
                options.out.write_text(json.dumps(tables, indent=1) + "\n")
    print("\n".join(rows(tables)))


if __name__ == "__main__":
    main()
