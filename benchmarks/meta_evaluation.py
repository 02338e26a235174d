"""The full meta-evaluation of all metrics, whose verdicts are shipped.

python benchmarks/meta_evaluation.py --device cuda --out assessments.json --verdicts src/vitreous/metrics/verdicts.json

Needs torch, timm, numpy, pillow and safetensors, and nothing else. A long one may be cut by its metrics and joined:

python benchmarks/meta_evaluation.py --metrics insertion deletion insdel --out one.json
python benchmarks/meta_evaluation.py --join one.json two.json --out assessments.json
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError
from vitreous.evaluation.meta_evaluation import meta_evaluate
from vitreous.results.diagnostics import MetaEvaluation

SAME = ("scenes", "left_out", "model", "output", "start", "shortcut", "seeds", "baselines", "precision", "strengths")
"""What results must have in common to be joined."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", nargs="*", help="specs; all metrics, if none is named")
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--baselines", type=int, default=2)
    parser.add_argument("--model", default="world", help="world or world-cnn; those that cheat end in -shortcut")
    parser.add_argument("--shortcut", action="store_true", help="scenes with a marker")
    parser.add_argument("--output", default="logit", help="what the oracle measures: logit or prob")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch-size", type=int, help="states that run at once")
    parser.add_argument("--memory-gb", type=float, help="budget in GiB")
    parser.add_argument("--out", type=Path, default=Path("assessments.json"))
    parser.add_argument("--join", nargs="+", type=Path, help="run nothing, join these results")
    parser.add_argument("--verdicts", type=Path, help="also write what the package ships")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    result = join([MetaEvaluation.load(path) for path in options.join]) if options.join else run(options)
    result.save(options.out, overwrite=True)
    if options.verdicts is not None:  # verdicts of other metrics stay
        verdicts = verdicts_of(result)
        if options.verdicts.exists():
            stored = json.loads(options.verdicts.read_text(encoding="utf-8"))
            verdicts["metrics"] = stored["metrics"] | verdicts["metrics"]
        options.verdicts.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    print(result)


def run(options: argparse.Namespace) -> MetaEvaluation:
    return meta_evaluate(
        options.metrics or None,
        model=options.model,
        scenes=options.scenes,
        seeds=options.seeds,
        baselines=options.baselines,
        output=options.output,
        shortcut=options.shortcut,
        device=options.device,
        batch_size=options.batch_size,
        memory_gb=options.memory_gb,
        precision=options.precision,
        progress=report_progress(),
    )


def report_progress() -> Callable[[float, int | None], None]:
    """Return a progress callback that prints a line every ten seconds."""
    start = latest = time.perf_counter()

    def follow(done: float, total: int | None) -> None:
        nonlocal latest
        if total and time.perf_counter() - latest > 10:
            latest = time.perf_counter()
            print(f"{done / total:.0%} of {total:,} states, {latest - start:.0f} s", file=sys.stderr, flush=True)

    return follow


def join(results: Sequence[MetaEvaluation]) -> MetaEvaluation:
    """Return several results on the same scenes as one; of a metric that is in two of them, the last one counts."""
    first = results[0]
    for other in results[1:]:
        for name in SAME:
            one, two = (result.plan.get(name, getattr(result, name, None)) for result in (first, other))
            if one != two:
                raise VitreousError(f"results of different {name} cannot be joined: {one} and {two}")
    rows = {row.metric: row for result in results for row in result.assessments}
    total = {name: sum(result.plan.get(name, 0) for result in results) for name in ("states", "seconds")}
    return MetaEvaluation(tuple(rows.values()), first.scenes, first.left_out, first.closeness, {**first.plan, **total})


def verdicts_of(result: MetaEvaluation) -> dict[str, Any]:
    """Return what ``vitreous.metrics.verdicts`` reads: a line for each metric."""
    numbers = ("error_rate", "truth", "smallest_share")
    rows = {
        row.metric: {
            "verdict": row.verdict,
            "why": row.why,
            "images": row.images,
            "model": result.plan.get("model"),
            "seeds": result.plan.get("seeds"),
            **{name: None if math.isnan(getattr(row, name)) else getattr(row, name) for name in numbers},
        }
        for row in result.assessments
    }
    return {"schema": "vitreous.verdicts/1", "versions": result.plan.get("versions"), "metrics": rows}


if __name__ == "__main__":
    main()
