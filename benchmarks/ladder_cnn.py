"""Which method by default on a convolutional network? Candidates for each effort level, on three networks of the world.

Run ``python benchmarks/ladder_cnn.py --folder nets --scenes 400 --out ladder_cnn.json``, with a folder as
``convnets.py`` fills it. For every method: insertion, deletion and their difference (CoIBA's protocol, explained and
scored is the predicted class) on both halves of the scenes, the first to choose on, the second to report; and, on as
many other scenes, how much of the distinctive part lies in the top fifth of the cells, over what a random map
would give. ``--methods`` as for ``ladder.py``: "quick;careful;best" for the three steps.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from convnets import BUNDLED, OTHERS, load
from ladder import halves, on_world, read
from systems import METRICS as ALL

import vitreous as vt
from vitreous.registry.defaults import EFFORT_LEVELS
from vitreous.world import World

METRICS = {short: ALL[short] for short in ("insdel", "insertion", "deletion")}
_WALK, _CAM, _PIXELS = "lrp@epsilon_plus", "logprob(layercam)", "logprob(input_x_gradient)"
_PATH = "logprob(integrated_gradients(steps=10))"
METHODS = (
    "quick",
    "logprob(gradcam)",
    _CAM,
    _WALK,
    _PIXELS,
    _PATH,
    f"consensus({_WALK}, {_CAM}, {_PIXELS}, combine=scaled)",
    f'consensus({_WALK}, {_CAM}, {_PIXELS}, combine=scaled, weights="4,1,1")',
    f"consensus({_WALK}, {_PIXELS}, combine=scaled)",
    f"consensus({_WALK}, {_CAM}, {_PATH}, combine=scaled)",
)


def evaluate_model(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the table of one network."""
    model = load(name, options.folder, options.device)
    images = torch.cat([seen.images * 2 - 1 for _, seen in World(n=options.scenes, start=options.start).batches(64)])
    methods: dict[str, Any] = {}
    for element in options.methods:
        try:
            read(element, model).attribute(model, images[:1])
            methods[element] = read(element, model)
        except vt.VitreousError as error:
            print(f"{element} is left out: {error}", flush=True)
    began = time.perf_counter()
    table = vt.evaluate(model, images, methods, list(METRICS.values()), controls=False, batch_size=options.batch)
    reference = on_world(model, methods, options.scenes)["telling part"]
    rows = halves(table, METRICS, len(images) // 2, [step for step in EFFORT_LEVELS if step in methods])
    for method, cells in rows.items():
        cells["telling part"] = reference[method]
    return {
        "methods": {name: str(item) for name, item in methods.items()},
        "rows": rows,
        "seconds": time.perf_counter() - began,
    }


def show(name: str, table: dict[str, Any]) -> None:
    """Print one line for each method."""
    print(f"\n{name}: {table['seconds']:.0f} s")
    print("  ".join(f"{short:>15}" for short in METRICS), " telling part")
    for method, cells in table["rows"].items():
        line = "  ".join(f"{cells[short]['choose']:7.4f}/{cells[short]['report']:7.4f}" for short in METRICS)
        part = cells["telling part"]
        print(f"{line}  {part['ratio']:.2f} [{part['low']:.2f}, {part['high']:.2f}]  {method}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scenes", type=int, default=400)
    parser.add_argument("--start", type=int, default=1000, help="the first scene")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--networks", nargs="*", choices=[BUNDLED, *OTHERS], default=[BUNDLED, *OTHERS])
    parser.add_argument("--methods", type=lambda text: tuple(text.split(";")), default=METHODS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tables: dict[str, Any] = {}
    for name in options.networks:
        tables[name] = evaluate_model(name, options)
        show(name, tables[name])
        if options.out is not None:
            options.out.write_text(json.dumps(tables, indent=1) + "\n")


if __name__ == "__main__":
    main()
