"""The page of a report: what was measured, how sure it is, what it looks like, and how to make it again.

Reports of a run: one page and its tables, from whatever is finished. ``docs/bench.md`` shows how.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.benchmark.changes import Changes, apply_changes
from vitreous.benchmark.collect import gather
from vitreous.benchmark.data import Options
from vitreous.benchmark.export import PROTOCOL, contents
from vitreous.benchmark.protocol import Protocol, read, shipped
from vitreous.benchmark.report_images import Sight, drawings, pictures
from vitreous.benchmark.report_parts import card, document, escape, note, section
from vitreous.benchmark.report_sections import (
    agreement,
    cost,
    flags,
    overview,
    provenance,
    ranks,
    scores,
    seeds,
    tests,
    unreadable,
)
from vitreous.benchmark.reproduction import Ledger
from vitreous.benchmark.run import BenchmarkRun
from vitreous.benchmark.store import Store
from vitreous.benchmark.summary import Finding
from vitreous.errors import VitreousError, one_line

__all__ = [
    "Ledger",
    "Report",
    "SCHEMA",
    "commands",
    "findings_of",
    "lead",
    "page",
    "report",
    "state",
]

_MOST_SHOWN = 6
"""Parts of a report that have pictures: a page must open on a phone."""


def page(
    findings: Sequence[Finding],
    wanted: Mapping[str, Any],
    sight: Sight,
    ledger: Ledger | None,
    *,
    folder: str,
    place: str,
    version: str,
    files: Sequence[str] = (),
) -> str:
    """Return the whole page; ``folder`` is that of the run, ``place`` that of the report."""
    title = findings[0].protocol.title
    several = len(findings) > 1
    parts = [_part(finding, sight, number, several) for number, finding in enumerate(findings, 1)]
    whole = [
        overview(findings),
        "" if ledger is None else ledger.html(),
        *parts,
        unreadable(findings),
        provenance(findings, wanted, version),
        _again(findings[0], wanted, folder, files, place),
    ]
    links = [("overview", "whole table"), ("ledger", "beside the paper"), *_links(findings)]
    links += [(name, name) for name in ("unreadable", "settings", "again")]
    there = [(anchor, word) for anchor, word in links if any(f'id="{anchor}"' in each for each in whole)]
    bar = "".join(f'<a href="#{anchor}">{escape(word)}</a>' for anchor, word in there)
    said = f"{lead(findings)} {state(findings)}".strip()
    top = f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(said)}</p>\n<nav>{bar}</nav>'
    return document(title, "\n".join([top, *(each for each in whole if each)]))


def _links(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    if len(findings) > 1:
        return [(f"m{number}", finding.name) for number, finding in enumerate(findings, 1)]
    words = ("scores", "ranks", "figures", "differences", "metrics", "cost", "pictures")
    return [] if findings[0].empty else [(f"m1-{word}", word) for word in words]


def _part(finding: Finding, sight: Sight, number: int, several: bool) -> str:
    at = f"m{number}"
    if finding.empty:
        inside = card(note(f"{finding.name}: nothing is finished yet."))
    else:
        shown = pictures(finding, sight, f"{at}-pictures") if number <= _MOST_SHOWN else ""
        inside = "\n".join(
            [
                scores(finding, f"{at}-scores"),
                ranks(finding, f"{at}-ranks"),
                drawings(finding, f"{at}-figures"),
                tests(finding, f"{at}-differences"),
                agreement(finding, f"{at}-metrics"),
                flags(finding, f"{at}-flags"),
                cost(finding, f"{at}-cost"),
                seeds(finding, f"{at}-seeds"),
                shown,
            ]
        )
    return f'<div class="part" id="{at}"><h2>{escape(finding.name)}</h2>\n{inside}</div>' if several else inside


def lead(findings: Sequence[Finding]) -> str:
    """Return in one sentence what was measured."""
    methods = {name for finding in findings for name in finding.rows}
    metrics = {name for finding in findings for name in finding.gathered.setting.metrics}
    models = list(dict.fromkeys(finding.gathered.label for finding in findings))
    protocol = findings[0].protocol
    sets = [each.label or each.source for each in (protocol.data, *protocol.also)]
    largest = max(findings, key=lambda each: len(each.table.images)).table
    count = _count(len(largest.images), "picture")
    count += f" in {_count(len(set(largest.groups)), 'group')}" if largest.groups is not None else ""
    explained = {"pred": "the predicted class", "label": "the true class"}.get(
        protocol.evaluation.target, "a given class"
    )
    many = f"{len(findings[0].gathered.seeds)} seeds" if len(findings[0].gathered.seeds) > 1 else "one seed"
    seen = f"{explained} of {count} ({', '.join(sets)})"
    who = models[0] if len(models) == 1 else _count(len(models), "model")
    judges = f"{_count(len(metrics), 'metric')} judge{'s' * (len(metrics) == 1)} them"
    return f"{_count(len(methods), 'method')} explain {seen} as seen by {who}, and {judges}; {many}."


def state(findings: Sequence[Finding]) -> str:
    """Return how much of it is finished and whether versions are mixed, in words; nothing where all is as it should."""
    return " ".join(filter(None, (_unfinished(findings), _mixed(findings))))


def _mixed(findings: Sequence[Finding]) -> str:
    """Name the versions of Vitreous that the numbers are from, where there are several."""
    counts: Counter[str] = Counter()
    for finding in findings:
        for _, _, _, _, said in finding.gathered.facts["done"]:
            counts[said.get("versions", {}).get("vitreous", "unknown")] += 1
    if len(counts) < 2:
        return ""
    told = ", ".join(f"{count} of Vitreous {version}" for version, count in counts.most_common())
    return f"Units are from several versions: {told}; units.csv says which."


def _unfinished(findings: Sequence[Finding]) -> str:
    wanted, missing = (
        sum(getattr(finding.gathered.missing, what) for finding in findings) for what in ("wanted", "cells")
    )
    if not missing:
        return ""
    lost = sorted({name for finding in findings for name in finding.gathered.missing.metrics})
    more = f" Nothing yet of {', '.join(lost)}." if lost else ""
    share = f"{missing} of {wanted} cells ({100 * missing / wanted:.0f} %)"
    return f"Unfinished: {share} are missing, and this is what is there.{more}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def commands(
    protocol: Protocol, wanted: Mapping[str, Any], folder: str, threads: int = 1, file: str = PROTOCOL
) -> list[str]:
    """Return the commands that make the run and its report again, also in another folder.

    A protocol that comes along is named, with what was changed of it as options; any other one, and changes that no
    options can say, are read from ``file``, where the report has the whole protocol.
    """
    changes = _options_of(protocol)
    words = ["vitreous", "bench", "run", file if changes is None else protocol.name, "--out", folder]
    given = wanted.get("data") or {}
    pairs = given.items() if isinstance(given, Mapping) else [("", str(given))]
    for place in [f"{label}={place}" if label else place for label, place in pairs]:
        words += ["--data", place]
    words += changes or []
    if wanted.get("images") is not None:
        words += ["--images", str(wanted["images"])]
    for label, weights in (wanted.get("checkpoint") or {}).items():
        words += ["--checkpoint", f"{label}={weights}"]
    words += ["--threads", str(threads)] if threads != 1 else []
    return [shlex.join(words), shlex.join(["vitreous", "bench", "report", folder])]


def _options_of(ran: Protocol) -> list[str] | None:
    """Return the options that make a protocol of the one that comes along; ``None`` where none do."""
    if ran.name not in shipped():
        return None
    usual = read(ran.name)
    models = [] if set(_labels(ran)) <= set(_labels(usual)) and _labels(ran) else _labels(ran)
    size = next((model.size for model in ran.models if model.label in models), None)
    seeds = [] if ran.evaluation.seeds == usual.evaluation.seeds else list(map(str, ran.evaluation.seeds))
    precision = None if ran.evaluation.precision == usual.evaluation.precision else ran.evaluation.precision
    for methods in _ways(list(ran.methods), list(usual.methods)):
        for metrics in _ways(list(ran.evaluation.metrics), list(usual.evaluation.metrics)):
            tried = Changes(methods, metrics, seeds, models, size, precision)
            if _makes(usual, tried, ran):
                return _in_words(tried)
    return None


def _labels(protocol: Protocol) -> list[str]:
    return [model.label for model in protocol.models]


def _ways(ran: list[str], usual: list[str]) -> list[list[str]]:
    """Return what may make one list of another: nothing, what was added and removed, or all of it by name."""
    added, removed = ([each for each in one if each not in other] for one, other in ((ran, usual), (usual, ran)))
    ways = [[*(f"-{each}" for each in removed), *(f"+{each}" for each in added)], ran]
    return ways if len(removed) < len(usual) else ways[1:]


def _makes(usual: Protocol, changes: Changes, ran: Protocol) -> bool:
    """Whether these changes of a protocol give just what was run, in its order."""
    try:
        made = apply_changes(usual, changes)[0].runnable()
    except VitreousError:
        return False
    return json.dumps(made.to_json()) == json.dumps(ran.runnable().to_json())


def _in_words(changes: Changes) -> list[str]:
    """Return changes as options; a value that begins with a minus is joined to its option."""
    words = []
    for option, texts in (
        ("--model", changes.models),
        ("--method", changes.methods),
        ("--metric", changes.metrics),
        ("--seed", changes.seeds),
    ):
        for text in texts:
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
        if option == "--model" and changes.size is not None:
            words += ["--img-size", str(changes.size)]
    return [*words, "--precision", changes.precision] if changes.precision is not None else words


def _again(finding: Finding, wanted: Mapping[str, Any], folder: str, files: Sequence[str], place: str) -> str:
    file = str(Path(place).resolve() / PROTOCOL)
    told = "\n".join(commands(finding.protocol, wanted, folder, finding.gathered.setting.threads, file))
    named = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in files)
    beside = f'<div><p class="note">Beside this page: {named}.</p></div>' if files else ""
    return section("again", "Again", "", f"<pre>{escape(told)}</pre>{beside}")


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
        bench = BenchmarkRun(protocol, store.path, options)
        known = {part.protocol.data.label: part.pictures for part in bench.parts}
        planned = {picture for plan in store.plans() for unit in plan.units for picture in unit.pictures}
        for each in known.values():
            if planned.isdisjoint(each.digests):
                return Sight({}, None, f"the pictures of {each.source.word} are not those that the run had")
    except (VitreousError, OSError) as error:
        return Sight({}, None, one_line(str(error)))
    return Sight(known, bench.worker.view)
