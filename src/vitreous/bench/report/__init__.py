"""Reports of a run: one page and its tables, from whatever is finished. ``docs/bench.md`` shows how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import disk
from vitreous.bench.gather import gather
from vitreous.bench.protocol import Protocol
from vitreous.bench.report.files import contents
from vitreous.bench.report.finding import Finding
from vitreous.bench.report.ledger import Ledger
from vitreous.bench.report.page import lead, page, state
from vitreous.bench.report.pictures import Sight
from vitreous.bench.run import Bench, Options
from vitreous.bench.store import Store
from vitreous.errors import VitreousError, one_line

__all__ = ["SCHEMA", "Ledger", "Report", "findings_of", "report"]

SCHEMA = "vitreous.report/1"


@dataclass(frozen=True)
class Report:
    """What was written: the folder, its files, and what it says in short."""

    folder: Path
    files: tuple[str, ...]
    lead: str
    state: str
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    ledger: Ledger | None

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def report(
    run: str | Path,
    out: str | Path | None = None,
    *,
    reference: str | None = None,
    data: str | None = None,
    overwrite: bool = True,
) -> Report:
    """Write the report of a run, finished or not, into ``out`` (by default, ``report`` inside the run's folder).

    ``reference`` is the row that others are tested against, if not the protocol's. ``data`` is where the pictures are
    now; where they cannot be opened, the report has no pictures in it, and says so. A report of ours that is there
    already is replaced, anything else is not.
    """
    store = Store.open(run)
    folder = Path(run) / "report" if out is None else Path(out)
    disk.check_folder(folder, overwrite)
    manifest = store.manifest()
    assert manifest is not None
    wanted = manifest["wanted"]
    findings, sight = findings_of(store, reference=reference, data=data)
    ledger = Ledger.of(findings, wanted) if findings[0].protocol.cells else None
    files = contents(findings, ledger)
    notes = (
        []
        if "scores.parquet" in files
        else ["no scores.parquet: pyarrow is not installed (pip install 'vitreous[bench]')"]
    )
    notes += [f"no pictures in the report: {sight.why}"] if sight.why else []
    names = tuple(files)
    where = {"folder": str(run), "place": str(folder)}
    html = page(findings, wanted, sight, ledger, **where, version=manifest["vitreous"], files=names)
    with disk.folder(folder, overwrite=overwrite) as draft:
        draft.write("report.html", html.encode(errors="replace"))
        for name, content in files.items():
            draft.write(name, content)
        draft.finish({"schema": SCHEMA, "run": str(run)})
    return Report(folder, ("report.html", *names), lead(findings), state(findings), tuple(notes), findings, ledger)


def findings_of(
    store: Store, *, reference: str | None = None, data: str | None = None
) -> tuple[tuple[Finding, ...], Sight]:
    """Read what a run has found so far, and open its pictures if they are at hand; arguments as for ``report``."""
    wanted = (store.manifest() or {})["wanted"]
    protocol = store.protocol()
    sight = _sight(store, protocol, wanted, data)
    findings = tuple(Finding.of(each, protocol, reference) for each in gather(store, sight.known))
    if not findings:
        raise VitreousError(f"{store.path} has no plan for what its run.json asks for: start it again")
    return findings, sight


def _sight(store: Store, protocol: Protocol, wanted: Mapping[str, Any], data: str | None) -> Sight:
    """Open the pictures of a run, if they are at hand and still the same."""
    images, checkpoint = wanted.get("images"), wanted.get("checkpoint")
    options = Options(data=data or wanted.get("data"), device="cpu", images=images, checkpoint=checkpoint)
    try:
        bench = Bench(protocol, store.path, options)
        known = {part.protocol.data.label: part.pictures for part in bench.parts}
        planned = {picture for plan in store.plans() for unit in plan.units for picture in unit.pictures}
        for each in known.values():
            if planned.isdisjoint(each.digests):
                return Sight({}, None, f"the pictures of {each.source.word} are not those that the run had")
    except (VitreousError, OSError) as error:
        return Sight({}, None, one_line(str(error)))
    return Sight(known, bench.worker.view)
