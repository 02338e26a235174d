"""The full trial of all metrics, whose verdicts are shipped.

python benchmarks/trial.py --device cuda --out trial.json --verdicts src/vitreous/metrics/verdicts.json

Needs torch, timm, numpy, pillow and safetensors, and nothing else. A long trial may be cut by its metrics and joined:

python benchmarks/trial.py --metrics insertion deletion insdel --out one.json
python benchmarks/trial.py --join one.json two.json --out trial.json --verdicts src/vitreous/metrics/verdicts.json
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from vitreous.evaluation.meta_evaluation import meta_evaluate
from vitreous.results.diagnostics import MetaEvaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", nargs="*", help="spellings; all metrics, if none is named")
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--baselines", type=int, default=2)
    parser.add_argument("--model", default="world", help="world or world-cnn; those that cheat end in -shortcut")
    parser.add_argument("--shortcut", action="store_true", help="scenes with a marker")
    parser.add_argument("--value", default="logit", help="what the oracle measures: logit or prob")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch", type=int, help="states at once")
    parser.add_argument("--memory", type=float, help="budget in GiB")
    parser.add_argument("--out", type=Path, default=Path("trial.json"))
    parser.add_argument("--join", nargs="+", type=Path, help="run nothing, join these trials")
    parser.add_argument("--verdicts", type=Path, help="also write what the package ships")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    begun, told = time.perf_counter(), 0.0

    def follow(done: float, total: int | None) -> None:
        nonlocal told
        if total and time.perf_counter() - told > 10:
            told = time.perf_counter()
            print(f"{done / total:.0%} of {total:,} states, {told - begun:.0f} s", file=sys.stderr, flush=True)

    joined = (
        MetaEvaluation.joined([MetaEvaluation.load(item) for item in options.join])
        if options.join
        else _run(options, follow)
    )
    joined.save(options.out, overwrite=True)
    if options.verdicts is not None:  # what other trials have found about other metrics stays
        told = joined.verdicts()
        if options.verdicts.exists():
            told["metrics"] = json.loads(options.verdicts.read_text(encoding="utf-8"))["metrics"] | told["metrics"]
        options.verdicts.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(joined)


def _run(given: argparse.Namespace, follow: Callable[[float, int | None], None]) -> MetaEvaluation:
    return meta_evaluate(
        given.metrics or None,
        model=given.model,
        scenes=given.scenes,
        seeds=given.seeds,
        baselines=given.baselines,
        output=given.value,
        shortcut=given.shortcut,
        device=given.device,
        batch_size=given.batch,
        memory_gb=given.memory,
        precision=given.precision,
        progress=follow,
    )


if __name__ == "__main__":
    main()
