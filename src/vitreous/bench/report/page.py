"""The page of a report: what was measured, how sure it is, what it looks like, and how to make it again."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vitreous.bench.protocol import Protocol, read, shipped
from vitreous.bench.report.drawn import drawings
from vitreous.bench.report.finding import Finding
from vitreous.bench.report.ledger import Ledger
from vitreous.bench.report.parts import card, document, escape, note, section
from vitreous.bench.report.pictures import Sight, pictures
from vitreous.bench.report.scores import overview, ranks, scores, tests
from vitreous.bench.report.sections import agreement, cost, flags, provenance, seeds, unreadable

__all__ = ["commands", "lead", "page", "state"]

_MOST_SHOWN = 6
"""Parts of a report that have pictures: a page must open on a phone."""


def page(
    findings: Sequence[Finding],
    wanted: Mapping[str, Any],
    sight: Sight,
    ledger: Ledger | None,
    *,
    folder: str,
    version: str,
    files: Sequence[str] = (),
) -> str:
    """Return the whole page."""
    title = findings[0].protocol.title
    several = len(findings) > 1
    parts = [_part(each, sight, number, several) for number, each in enumerate(findings, 1)]
    whole = [
        overview(findings),
        "" if ledger is None else ledger.html(),
        *parts,
        unreadable(findings),
        provenance(findings, wanted, version),
        _again(findings[0], wanted, folder, files),
    ]
    links = [("overview", "whole table"), ("ledger", "beside the paper"), *_links(findings)]
    links += [(each, each) for each in ("unreadable", "settings", "again")]
    there = [(anchor, word) for anchor, word in links if any(f'id="{anchor}"' in each for each in whole)]
    bar = "".join(f'<a href="#{anchor}">{escape(word)}</a>' for anchor, word in there)
    said = f"{lead(findings)} {state(findings)}".strip()
    top = f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(said)}</p>\n<nav>{bar}</nav>'
    return document(title, "\n".join([top, *(each for each in whole if each)]))


def _links(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    if len(findings) > 1:
        return [(f"m{number}", each.name) for number, each in enumerate(findings, 1)]
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
    methods = {name for each in findings for name in each.rows}
    metrics = {name for each in findings for name in each.gathered.setting.metrics}
    models = list(dict.fromkeys(each.gathered.label for each in findings))
    protocol = findings[0].protocol
    sets = [each.label or each.source for each in (protocol.data, *protocol.also)]
    largest = max(findings, key=lambda each: len(each.table.images)).table
    count = _count(len(largest.images), "picture")
    count += f" in {_count(len(set(largest.groups)), 'group')}" if largest.groups is not None else ""
    explained = {"pred": "the predicted class", "label": "the true class"}.get(protocol.judge.target, "a given class")
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
    for each in findings:
        for _, _, _, _, said in each.gathered.facts["done"]:
            counts[said.get("versions", {}).get("vitreous", "unknown")] += 1
    if len(counts) < 2:
        return ""
    told = ", ".join(f"{count} of Vitreous {version}" for version, count in counts.most_common())
    return f"Units are from several versions: {told}; units.csv says which."


def _unfinished(findings: Sequence[Finding]) -> str:
    wanted, missing = (sum(getattr(each.gathered.missing, what) for each in findings) for what in ("wanted", "cells"))
    if not missing:
        return ""
    lost = sorted({name for each in findings for name in each.gathered.missing.metrics})
    more = f" Nothing yet of {', '.join(lost)}." if lost else ""
    share = f"{missing} of {wanted} cells ({100 * missing / wanted:.0f} %)"
    return f"Unfinished: {share} are missing, and this is what is there.{more}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def commands(protocol: Protocol, wanted: Mapping[str, Any], folder: str, threads: int = 1) -> list[str]:
    """Return the commands that make the run and its report again."""
    known = protocol.name in shipped()
    words = ["vitreous", "bench", "run", protocol.name if known else f"{protocol.name}.toml", "--out", folder]
    given = wanted.get("data") or {}
    pairs = given.items() if isinstance(given, Mapping) else [("", str(given))]
    for place in [f"{label}={place}" if label else place for label, place in pairs]:
        words += ["--data", place]
    words += _changed(protocol, read(protocol.name)) if known else []
    if wanted.get("images") is not None:
        words += ["--images", str(wanted["images"])]
    for label, file in (wanted.get("checkpoint") or {}).items():
        words += ["--checkpoint", f"{label}={file}"]
    words += ["--threads", str(threads)] if threads != 1 else []
    return [shlex.join(words), shlex.join(["vitreous", "bench", "report", folder])]


def _changed(ran: Protocol, usual: Protocol) -> list[str]:
    """Return the options that make the protocol that was run of the one that comes along."""
    words = []
    if not {model.label for model in ran.models} <= {model.label for model in usual.models}:
        words += ["--model", ran.models[0].name]
        words += ["--img-size", str(ran.models[0].size)] if ran.models[0].size else []
    words += _options("--method", list(ran.methods), list(usual.methods))
    words += _options("--metric", list(ran.judge.metrics), list(usual.judge.metrics))
    if ran.judge.seeds != usual.judge.seeds:
        words += [word for seed in ran.judge.seeds for word in ("--seed", str(seed))]
    words += ["--precision", ran.judge.precision] if ran.judge.precision != usual.judge.precision else []
    return words


def _options(option: str, ran: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Name what was run, or with a plus what was added."""
    added = [f"+{each}" for each in ran if each not in usual]
    named = added if set(usual) <= set(ran) else ran
    return [word for each in named for word in (option, each)]


def _again(finding: Finding, wanted: Mapping[str, Any], folder: str, files: Sequence[str]) -> str:
    told = "\n".join(commands(finding.protocol, wanted, folder, finding.gathered.setting.threads))
    named = ", ".join(f'<a href="{escape(name)}">{escape(name)}</a>' for name in files)
    beside = f'<div><p class="note">Beside this page: {named}.</p></div>' if files else ""
    return section("again", "Again", "", f"<pre>{escape(told)}</pre>{beside}")
