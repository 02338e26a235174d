"""Every map and score as it is now, to be compared with what it is after a change that should change none.

Run ``python benchmarks/goldens.py record FILE`` before the change and ``python benchmarks/goldens.py compare FILE``
after it. Both take small random models of every family, the bundled models and, where ``../shared/data`` is there,
photographs on a real model: the map of every method and preset, the score of every metric and preset, the scores and
unit ids of a benchmark run, and one saved result. Numbers are compared bit for bit, so both runs must be made on one
machine with the same libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitreous as vt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from families import images
from tiny_benchmark import tiny
from zoo import ALL

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data"
CHEAP = {"masks": 64, "samples": 16, "steps": 4, "evaluations": 64, "mosaics": 1, "images": 4}
"""Parameters that say how often a model is run: a fraction of the usual number shows a change as well."""
MOST_STEPS = 28
CLOCK = {"created"}
"""What a manifest says of the time when it was written."""
Entry = tuple[str, Any]


def specs(infos: list[Any]) -> list[str]:
    return [spec for info in infos for spec in (info.name, *(f"{info.name}@{preset}" for preset in info.presets))]


def method_of(spec: str, name: str, needs_base: int) -> Any:
    base = {0: "", 1: "(ixg)", 2: "(ixg, generic)"}[needs_base]
    method = vt.get_method(spec + base)
    cheap = {
        key: value
        for key, value in CHEAP.items()
        if isinstance(method.settings.get(key), int) and method.settings[key] > value
    }
    return type(method)(**{**method._fields(), **cheap})


def maps_of(label: str, model: Any, inputs: torch.Tensor, most: int | None = None) -> Iterator[Entry]:
    for info in vt.list_methods():
        for spec in specs([info])[:most]:
            key = f"map/{label}/{spec}"
            try:
                method = method_of(spec, info.name, info.num_bases)
                maps, extras = method.attribute(model, inputs, target=1, extras=True, seed=3)
            except vt.VitreousError as error:
                yield key, f"{type(error).__name__}"
                continue
            yield key, maps.numpy()
            for name, extra in sorted(extras.items()):
                yield f"{key}/{name}", extra.numpy()


def scores_of(label: str, model: Any, data: Any, labels: list[int], truth: Any) -> Iterator[Entry]:
    for spec in specs(vt.list_metrics()):
        metric = vt.get_metric(spec)
        if metric.settings.get("steps", 0) > MOST_STEPS:
            metric = type(metric)(**{**metric.settings, "steps": MOST_STEPS})
        try:
            table = vt.evaluate(
                model,
                data,
                ["ixg", "rollout"],
                [metric],
                labels=labels,
                annotations=truth,
                n_bootstrap=50,
                controls=False,
            )
        except vt.VitreousError as error:
            yield f"score/{label}/{spec}", f"{type(error).__name__}"
            continue
        for (method, _), parts in table.parts.items():
            yield f"score/{label}/{spec}/{method}", parts


def families() -> Iterator[Entry]:
    for family, make in ALL.items():
        torch.manual_seed(0)
        model = make()
        yield from maps_of(family, model, images(model, 2), most=None if family in ("vit", "resnet") else 1)


def metrics() -> Iterator[Entry]:
    torch.manual_seed(0)
    model = ALL["vit"]()
    corner = np.tri(32, 32, -14) > 0
    parts = {"marker": np.tri(32, 32, -24) > 0, "top": np.flipud(corner), "right": np.fliplr(corner)}
    yield from scores_of("vit", model, images(model, 4), [0, 3, 1, 4], [vt.Annotation(corner, parts=parts)] * 4)


def explained(label: str, model: Any, source: Any, names: tuple[str, ...]) -> Iterator[Entry]:
    """Yield the maps of what ``explain`` returns for images, preprocessing included."""
    for spec in names:
        try:
            for number, explanation in enumerate(vt.explain(model, source, spec, target=1)):
                yield f"map/{label}/{spec}/{number}", explanation.map.numpy()
        except vt.VitreousError as error:
            yield f"map/{label}/{spec}", type(error).__name__


def bundled() -> Iterator[Entry]:
    scenes = [ROOT / "tests" / "data" / "world" / f"{number}.png" for number in range(2)]
    for name in ("world", "world-cnn"):
        model = vt.load(name)
        efforts = tuple(vt.recommended_method(effort, model) for effort in ("quick", "careful"))
        yield from explained(
            name, model, scenes, (*efforts, "saliency", "gradcam", "lrp", "integrated_gradients(steps=4)")
        )


def photographs() -> Iterator[Entry]:
    checkpoint = DATA / "deit_tiny_patch16_224.fp16.safetensors"
    if not checkpoint.is_file():
        return
    model = vt.load("timm/deit_tiny_patch16_224", checkpoint=checkpoint)
    photos = sorted((DATA / "photos").iterdir())[:2]
    specs = ("ixg", "skipplus(decompx)", "generic", "vtranm", "tis(tokens=32)", "coiba(steps=2)", "var(ixg)", "lrp")
    yield from explained("deit_tiny", model, photos, specs)


def benchmark() -> Iterator[Entry]:
    from vitreous.benchmark.data import Options
    from vitreous.benchmark.run import BenchmarkRun

    with tempfile.TemporaryDirectory() as folder:
        bench = BenchmarkRun(tiny(metrics=("deletion(steps=2)", "insdel(steps=2)")), Path(folder) / "run", Options())
        store = bench.prepare()
        bench.work()
        for plan in store.plans():
            for unit in plan.units:
                arrays, _ = store.read(unit.id) or ({}, {})
                yield f"unit/{unit.seed}/{','.join(unit.methods)}/{','.join(unit.metrics)}/{unit.images[0]}", unit.id
                for name, array in sorted(arrays.items()):
                    yield f"unit/{unit.images[0]}/{','.join(unit.metrics)}/{name}", array


def result() -> Iterator[Entry]:
    torch.manual_seed(0)
    model = ALL["vit"]()
    explanation = vt.explain(model, images(model, 1), "ixg")
    explanation = explanation[0] if isinstance(explanation, list) else explanation
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        explanation.save(path)
        for file in sorted(Path(folder).rglob("*")):
            if file.name == "manifest.json":
                manifest = json.loads(file.read_text())
                yield from ((f"result/manifest/{name}", json.dumps(manifest[name])) for name in set(manifest) - CLOCK)
            elif file.is_file():
                yield f"result/{file.name}", hashlib.sha256(file.read_bytes()).hexdigest()


SECTIONS = {section.__name__: section for section in (families, metrics, bundled, photographs, benchmark, result)}


def record(names: list[str]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name in names:
        began = time.perf_counter()
        entries.update(SECTIONS[name]())
        print(f"{name}: {len(entries)} entries so far, {time.perf_counter() - began:.0f} s", flush=True)
    return entries


def difference(before: Any, now: Any) -> str:
    """Return in words how two entries differ; an empty text if they do not."""
    if isinstance(before, str) or isinstance(now, str):
        return "" if isinstance(now, str) and str(before) == now else f"{_text(before)} is now {_text(now)}"
    if before.shape != now.shape or before.dtype != now.dtype:
        return f"{before.shape} {before.dtype} is now {now.shape} {now.dtype}"
    if before.tobytes() == now.tobytes():
        return ""
    scale = float(np.nanmax(np.abs(before))) if before.size else 0.0
    return f"largest difference {float(np.nanmax(np.abs(before - now))):.3g} of {scale:.3g}"


def _text(entry: Any) -> str:
    return str(entry) if isinstance(entry, str) else f"an array {entry.shape}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["VITREOUS_CACHE"] = tempfile.mkdtemp()  # statistics of earlier runs differ by rounding
    now = record(arguments.sections)
    if arguments.verb == "record":
        texts = {key: entry for key, entry in now.items() if isinstance(entry, str)}
        arrays = {key: entry for key, entry in now.items() if not isinstance(entry, str)}
        np.savez_compressed(arguments.file, texts=np.array(json.dumps(texts)), **arrays)
        return
    with np.load(arguments.file) as stored:
        before: dict[str, Any] = {key: stored[key] for key in stored.files if key != "texts"}
        before |= json.loads(str(stored["texts"]))
    wanted = {key for key in before if key.split("/")[0] in {name.split("/")[0] for name in now}}
    changes = {key: difference(before[key], now[key]) for key in now if key in before}
    changes = {key: text for key, text in changes.items() if text}
    for key, text in sorted(changes.items()):
        print(f"{key}: {text}")
    for key in sorted(now.keys() ^ wanted):
        print(f"{key}: {'new' if key in now else 'gone'}")
    print(f"{len(now)} entries, {len(changes)} changed, {len(now.keys() ^ wanted)} new or gone")
    sys.exit(bool(changes or now.keys() ^ wanted))


if __name__ == "__main__":
    main()
