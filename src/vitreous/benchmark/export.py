"""The files of a report: one folder, written whole or not at all."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

from vitreous.benchmark.reproduction import Ledger
from vitreous.benchmark.summary import Finding
from vitreous.results.storage import plain
from vitreous.results.table import comma_separated

__all__ = ["PROTOCOL", "contents", "parquet"]

PROTOCOL = "protocol.json"
"""The whole protocol as it was run, which `vitreous bench run` takes."""


def contents(findings: Sequence[Finding], ledger: Ledger | None) -> dict[str, bytes]:
    """Return every file but the page, by name."""
    full = [finding for finding in findings if not finding.empty]
    texts = {
        "scores.csv": comma_separated(_scores(full)),
        "table.csv": comma_separated(_means(full)),
        "table.md": "\n".join(f"## {each.name}\n\n{each.table.to_markdown()}" for each in full),
        "table.tex": "\n".join(f"% {each.name}\n{each.table.to_latex()}" for each in full),
        PROTOCOL: json.dumps(findings[0].protocol.to_json(), indent=1, allow_nan=False) + "\n",
        "statistics.json": json.dumps([_statistics(each) for each in full], indent=1, allow_nan=False) + "\n",
    }
    bad = [
        [finding.gathered.data, name, why] for finding in findings for name, why in finding.gathered.unreadable.items()
    ]
    if bad:
        texts["unreadable.csv"] = comma_separated([["data", "image", "reason"], *_once(bad)])
    texts["units.csv"] = comma_separated(_units(findings))
    unsure = [
        [finding.gathered.data, finding.gathered.label, name, why]
        for finding in findings
        for name, why in finding.gathered.unsure.items()
    ]
    if unsure:
        texts["unsure.csv"] = comma_separated([["data", "model", "image", "reason"], *unsure])
    if ledger is not None:
        texts |= {"ledger.csv": comma_separated(ledger.rows), "ledger.md": ledger.to_markdown()}
    files = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
    packed = parquet(_scores(full))
    return files if packed is None else {**files, "scores.parquet": packed}


def _statistics(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = plain({"data": finding.gathered.data, "model": finding.gathered.label})
    return {**found, **finding.statistics.to_json()}


def _units(findings: Sequence[Finding]) -> list[list[str]]:
    """Return one row per unit: what it is of, and who did it."""
    rows = [["data", "model", "unit", "kind", "seed", "pictures", "methods", "metrics", "plan", "versions", "device"]]
    rows[0] += ["threads", "seconds", "tries"]
    for finding in findings:
        for unit, plan, versions, device, said in finding.gathered.facts["done"]:
            names = [finding.gathered.data, finding.gathered.label, unit.id, "scores" if unit.judges else "maps"]
            size = [str(unit.seed), str(len(unit.pictures)), "; ".join(unit.methods), "; ".join(unit.metrics)]
            how = [str(plan), versions, device, str(said.get("threads", "")), f"{said.get('seconds', 0.0):.3f}"]
            rows.append([*names, *size, *how, str(len(said.get("retried", ())) + 1)])
    return rows


def _once(rows: Sequence[list[str]]) -> list[list[str]]:
    return [list(row) for row in dict.fromkeys(tuple(row) for row in rows)]


def _scores(findings: Sequence[Finding]) -> list[list[str]]:
    """Return one row per picture, method, metric and seed, with a head; what is missing is empty."""
    rows = [["data", "model", "image", "method", "metric", "seed", "score"]]
    for finding in findings:
        names = [finding.gathered.data, finding.gathered.label]
        for seed, table in zip(finding.gathered.seeds, finding.gathered.tables, strict=True):
            for (method, metric), values in table.scores.items():
                for image, value in zip(table.images, values.tolist(), strict=True):
                    score = "" if math.isnan(value) else repr(value)
                    rows.append([*names, image, method, metric, str(seed), score])
    return rows


def _means(findings: Sequence[Finding]) -> list[list[str]]:
    several = any(finding.table.seed_sd for finding in findings)
    more = ["seed_sd"] if several else []
    rows = [["data", "model", "method", "metric", "mean", "low", "high", "images", "paper", *more]]
    for finding in findings:
        for (method, metric), values in finding.table.scores.items():
            numbers = (finding.table.mean(method, metric), *finding.table.interval(method, metric))
            told = ["" if math.isnan(value) else repr(value) for value in numbers]
            there = sum(not math.isnan(value) for value in values.tolist())
            cell = finding.published.get((method, metric))
            paper = "" if cell is None else repr(cell.value)
            rows.append([finding.gathered.data, finding.gathered.label, method, metric, *told, str(there), paper])
            deviation = finding.table.seed_sd.get((method, metric), math.nan)
            rows[-1] += ["" if math.isnan(deviation) else repr(deviation)] if several else []
    return rows


def parquet(rows: Sequence[Sequence[str]]) -> bytes | None:
    """Return the scores as Parquet; ``None`` where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow import parquet as format
    except ImportError:
        return None
    head, *body = rows
    columns: dict[str, Any] = {name: [row[at] for row in body] for at, name in enumerate(head)}
    columns["score"] = [float(column) if column else None for column in columns["score"]]
    columns["seed"] = [int(column) for column in columns["seed"]]
    typed = {name: pyarrow.string() for name in head} | {"score": pyarrow.float64(), "seed": pyarrow.int64()}
    table = pyarrow.table(columns, schema=pyarrow.schema(list(typed.items())))
    held = io.BytesIO()
    format.write_table(table, held, compression="zstd")
    return held.getvalue()
