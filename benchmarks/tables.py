"""Tables of three papers on two real models: CoIBA's Table 1, SkipPLUS' figures and TIS' Table 2, with intervals.

Run ``python benchmarks/tables.py --data FOLDER --device cuda --out runs``, with a folder as ``ladder.py`` has it and,
beside the photographs, ``pets-200`` with its JSON. Every run is a shipped protocol with another model, fewer images
and, where the paper's grid is too fine, a coarser one; each is a folder that ``vitreous bench`` understands. Several
processes share a GPU. ``--only`` names some, ``--limit-seconds`` begins none later, ``--small`` tries all with two
pictures. Beside each run lies its report; ``--pack FOLDER`` leaves there one small file per run (scores without maps)
and the tables.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from known import FOLDER
from ladder import MODELS

from vitreous.bench.engines import run
from vitreous.bench.pack import pack
from vitreous.bench.protocol import DataSpec, Protocol, read, replace_model
from vitreous.bench.report import report
from vitreous.bench.run import Bench, Options

PETS = "pets-200"
COARSE = 'insertion@tis(steps=28, substrate="mean_scalar")', 'deletion@tis(steps=28, substrate="mean_scalar")'


@dataclass(frozen=True)
class Table:
    """A protocol, how many images, and which rows (all but some) and columns of it."""

    protocol: str
    images: int
    without: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    instead: tuple[tuple[str, str], ...] = ()
    """Rows with other settings."""
    models: tuple[str, ...] = tuple(MODELS)


def tis(substrate: str) -> tuple[str, ...]:
    """Return TIS' own columns of one substrate: 224 steps."""
    return f"insertion@tis(substrate={substrate})", f"deletion@tis(substrate={substrate})"


TABLES = {
    "skipplus": Table("skipplus", 1000),
    "coiba": Table("coiba-table1", 1000),
    "tis": Table("tis-table2", 1000, ("RISE",), tis("mean_scalar"), models=("deit",)),
    "tis-coarse": Table("tis-table2", 1000, ("RISE",), COARSE, (("TIS", "tis(half=true)"),), ("dinov2",)),
    "tis-fine": Table("tis-table2", 100, (), tis("mean_scalar"), (("RISE", "rise@tis(masks=2000)"),)),
}


def protocol_of(table: Table, model: str) -> Protocol:
    """Return the protocol that a run has."""
    size = MODELS[model][1].get("img_size")
    made = replace_model(read(table.protocol), MODELS[model][0], size)
    methods = {name: how for name, how in made.methods.items() if name not in table.without} | dict(table.instead)
    metrics = table.metrics or made.judge.metrics
    judge = dataclasses.replace(made.judge, metrics=metrics, precision="float16")
    also = tuple(_pets(each) for each in made.also if each.label == "ImageNet-S")
    return dataclasses.replace(made, methods=methods, judge=judge, also=also)


def _pets(data: DataSpec) -> DataSpec:
    """Return pets with masks in the place of ImageNet-S."""
    return dataclasses.replace(data, label="pets", source="pets", images=0, split=None)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--out", type=Path, default=Path("runs"))
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--workers", type=int, default=3)
    arguments.add_argument("--memory", type=float, default=12.0)
    arguments.add_argument("--only", default=",".join(f"{t}/{m}" for t, each in TABLES.items() for m in each.models))
    arguments.add_argument("--limit-seconds", type=float, default=float("inf"))
    arguments.add_argument("--pack", type=Path)
    arguments.add_argument("--small", action="store_true")
    given = arguments.parse_args()
    began = time.perf_counter()
    for name in given.only.split(","):
        if time.perf_counter() - began > given.limit_seconds:
            print(f"{name}: not begun, there is no time left")
            continue
        one(name, given)


def one(name: str, given: argparse.Namespace) -> None:
    """Run one table to its end, report it and say how long it took."""
    called, model = name.split("/")
    table, began = TABLES[called], time.perf_counter()
    protocol, label = protocol_of(table, model), MODELS[model][0]
    data = {each.label: str(given.data / (PETS if each.label == "pets" else FOLDER)) for each in _sets(protocol)}
    options = Options(
        data=data,
        device=given.device,
        memory=given.memory,
        images=2 if given.small else None,
        checkpoint={label: str(given.data / MODELS[model][2])},
    )
    wanted = dataclasses.replace(protocol.data, images=table.images)
    bench = Bench(dataclasses.replace(protocol, data=wanted), given.out / called / model, options)
    bench.prepare()
    ready = time.perf_counter()
    run(bench, workers=given.workers)
    done, total = bench.counts()
    told = {"prepared": ready - began, "ran": time.perf_counter() - ready, "units": [done, total]}
    written = report(given.out / called / model)
    told["reported"] = time.perf_counter() - began - told["prepared"] - told["ran"]
    print(name, json.dumps(told), flush=True)
    for finding in written.findings:
        print(finding.name, finding.table, sep="\n", flush=True)
    if given.pack is not None:
        given.pack.mkdir(parents=True, exist_ok=True)
        pack(given.out / called / model, given.pack / f"{called}-{model}.zip", maps=False, overwrite=True)
        with zipfile.ZipFile(given.pack / "reports.zip", "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{called}/{model}/time.json", json.dumps(told))
            for file in written.files:
                archive.write(written.folder / file, f"{called}/{model}/{file}")


def _sets(protocol: Protocol) -> tuple[DataSpec, ...]:
    return (protocol.data, *protocol.also)


if __name__ == "__main__":
    main()
