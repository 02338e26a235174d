"""Tables of three papers on two real models: CoIBA's Table 1, SkipPLUS' figures and TIS' Table 2, with intervals.

Run ``python benchmarks/tables.py --data FOLDER --device cuda --out runs``, with a folder as ``ladder.py`` has it and,
beside the photographs, ``pets-200`` with its JSON. Every run is a shipped protocol with another model, fewer images
and, where the paper's grid is too fine, a coarser one; each is a folder of ``vitreous bench``. Several
processes share a GPU. ``--only`` names some, ``--limit-seconds`` begins none later, ``--small`` tries all with two
images. ``--pack FOLDER`` leaves there one small file per run (scores without maps); ``--markdown FOLDER`` makes the
tables of such files, and needs nothing else.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from known_answers import FOLDER
from ladder import MODELS

from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import Options
from vitreous.benchmark.executors import run
from vitreous.benchmark.pack import pack, unpack
from vitreous.benchmark.protocol import DataSpec, Protocol, read, replace_model
from vitreous.benchmark.protocol_io import protocol_from_json
from vitreous.benchmark.reproduction import Reproduction
from vitreous.benchmark.run import BenchmarkRun
from vitreous.results.storage import markdown

PETS = "pets-200"
NAMES = {"deit": "DeiT-Tiny", "dinov2": "DINOv2-S"}
COARSE = 'insertion@tis(steps=28, baseline="mean_scalar")', 'deletion@tis(steps=28, baseline="mean_scalar")'


@dataclass(frozen=True)
class Table:
    """A protocol, how many images, and which rows (all but some) and columns of it."""

    protocol: str
    images: int
    without: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    instead: tuple[tuple[str, str], ...] = ()
    """Rows with other settings."""


def tis(baseline: str) -> tuple[str, ...]:
    """Return TIS' own columns of one baseline: 224 steps."""
    return f"insertion@tis(baseline={baseline})", f"deletion@tis(baseline={baseline})"


TABLES = {
    "skipplus": Table("skipplus", 1000),
    "coiba": Table("coiba-table1", 1000),
    "tis": Table("tis-table2", 1000, ("RISE",), COARSE, (("TIS", "tis(half=true)"),)),
    "tis-fine": Table("tis-table2", 100, (), tis("mean_scalar"), (("RISE", "rise@tis(masks=2000)"),)),
}


def protocol_of(table: Table, model: str) -> Protocol:
    """Return the protocol that a run has."""
    size = MODELS[model][1].get("img_size")
    values = replace_model(read(table.protocol), MODELS[model][0], size)
    methods = {name: method for name, method in values.methods.items() if name not in table.without} | dict(
        table.instead
    )
    metrics = table.metrics or values.evaluation.metrics
    evaluation = dataclasses.replace(values.evaluation, metrics=metrics, precision="float16")
    also = tuple(_pets(item) for item in values.also if item.label == "ImageNet-S")
    return dataclasses.replace(values, methods=methods, evaluation=evaluation, also=also)


def _pets(data: DataSpec) -> DataSpec:
    """Return pets with masks in the place of ImageNet-S."""
    return dataclasses.replace(data, label="pets", source="pets", images=0, split=None)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--out", type=Path, default=Path("runs"))
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--memory", type=float, default=12.0)
    arguments.add_argument("--only", default=",".join(f"{table}/{model}" for table in TABLES for model in MODELS))
    arguments.add_argument("--limit-seconds", type=float, default=float("inf"))
    arguments.add_argument("--pack", type=Path)
    arguments.add_argument("--markdown", type=Path)
    arguments.add_argument("--small", action="store_true")
    options = arguments.parse_args()
    if options.markdown is not None:
        print(markdown_tables(options.markdown))
        return
    if options.data is None:
        arguments.error("--data is needed")
    began = time.perf_counter()
    for name in options.only.split(","):
        if time.perf_counter() - began > options.limit_seconds:
            print(f"{name}: not begun, there is no time left")
            continue
        run_table(name, options)


def run_table(name: str, arguments: argparse.Namespace) -> None:
    """Run one table to its end, and print how long it took."""
    table_name, model = name.split("/")
    table, began = TABLES[table_name], time.perf_counter()
    protocol, label = protocol_of(table, model), MODELS[model][0]
    data = {set_.label: str(arguments.data / (PETS if set_.label == "pets" else FOLDER)) for set_ in _sets(protocol)}
    options = Options(
        data=data,
        device=arguments.device,
        memory_gb=arguments.memory,
        images=2 if arguments.small else None,
        checkpoint={label: str(arguments.data / MODELS[model][2])},
    )
    wanted = dataclasses.replace(protocol.data, images=table.images)
    bench = BenchmarkRun(dataclasses.replace(protocol, data=wanted), arguments.out / table_name / model, options)
    bench.prepare()
    ready = time.perf_counter()
    run(bench, workers=arguments.workers)
    done, total = bench.counts()
    print(
        f"{name}: {done} of {total} units, {time.perf_counter() - ready:.0f} s after {ready - began:.0f} s", flush=True
    )
    if arguments.pack is not None:
        arguments.pack.mkdir(parents=True, exist_ok=True)
        pack(bench.store.path, arguments.pack / f"{table_name}-{model}.zip", maps=False, overwrite=True)


def _sets(protocol: Protocol) -> tuple[DataSpec, ...]:
    return (protocol.data, *protocol.also)


# -- results ---------------------------------------------------------------------------------------------------


def markdown_tables(folder: Path) -> str:
    """Return all tables of a folder of packed runs, and how their orders agree with the papers'."""
    parts = []
    for table in TABLES:
        result = {model: read_run(folder / f"{table}-{model}.zip") for model in MODELS}
        parts.append(f"### {table}\n\n{scores(result)}\n{agreements(result)}")
    return "\n".join(parts)


def read_run(file: Path) -> tuple[list[ModelResult], Reproduction | None]:
    """Return the results of a packed run."""
    with tempfile.TemporaryDirectory() as folder:
        store = unpack(file, Path(folder) / "run")
        wanted = (store.manifest() or {})["wanted"]
        protocol = protocol_from_json(wanted["protocol"])
        results = [ModelResult.of(item, protocol, None) for item in collect(store)]
    return results, Reproduction.of(results, wanted) if protocol.cells else None


def scores(results: dict[str, tuple[list[ModelResult], Reproduction | None]]) -> str:
    """Return one row for each method, one column for each metric of each model; wide ones as a table per model."""
    columns = [
        (model, own, name) for model, (every, _) in results.items() for own in every for name in own.table.metrics
    ]
    if len(columns) > 6 and len(results) > 1:
        return "\n".join(scores({model: own}) for model, own in results.items())
    head = ["method", *(f"{NAMES[model]}: {name}" for model, _, name in columns)]
    rows = []
    for method in dict.fromkeys(m for _, own, _ in columns for m in own.table.methods):
        cells = []
        for _, own, name in columns:
            low, upper = own.table.interval(method, name)
            digits = 1 if own.table.mean(method, name) > 2 else 3
            cells.append(f"{own.table.mean(method, name):.{digits}f} [{low:.{digits}f}, {upper:.{digits}f}]")
        rows.append([method, *cells])
    return markdown([head, *rows])


def agreements(results: dict[str, tuple[list[ModelResult], Reproduction | None]]) -> str:
    """Return the rank correlation of our order with every column that the paper printed."""
    values: dict[tuple[str, str], dict[str, str]] = {}
    for model, (_, reproduction) in results.items():
        for item in () if reproduction is None else reproduction.agreements:
            values.setdefault((item.model, item.metric), {})[model] = f"{item.value:.2f} ({item.methods})"
    if not values:
        return ""
    rows = [[*key, *(own.get(model, "") for model in results)] for key, own in values.items()]
    return markdown([["the paper's model", "metric", *(NAMES[model] for model in results)], *rows])


if __name__ == "__main__":
    main()
