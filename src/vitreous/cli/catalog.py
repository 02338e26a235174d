"""``vitreous methods``, ``metrics``, ``models``, ``cite``, ``demo``, ``diagnose`` and ``stats``."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import vitreous as vt
from vitreous.cli import options
from vitreous.cli.options import LimitOptions, ModelOptions, QueryOptions, ResultOptions, with_options
from vitreous.errors import VitreousError, nearest
from vitreous.registry import credit
from vitreous.registry.registry import normalize_name

_Pattern = Annotated[str | None, Argument(help="Part of a name, or a pattern with *.")]


_METHOD_LEGEND = (
    "F: forward passes, B: backward passes. No CNN: for transformers. ViT: not where attention stays inside "
    "windows, either. ReLU: where there are no other activations. `vitreous methods NAME` tells more."
)
_METRIC_LEGEND = (
    "F: forwards per image and method, at 224 pixels, S: those that all methods share, M: maps to be made again. "
    "Equal questions are asked once for all metrics. Verdict: see `vitreous meta-evaluate`."
)


def methods(pattern: _Pattern = None, as_json: options.AsJson = False) -> None:
    """List the methods: class-specific or not, cost in forwards and backwards, models, paper; or describe one."""
    infos = _find("method", vt.list_methods(), pattern)
    if as_json:
        options.print_json([_method_json(info) for info in infos])
    elif len(infos) == 1:
        (info,) = infos
        needed = "a method" if info.num_bases == 1 else "two methods or more"
        _describe(info, {"cost": info.cost_text, "class-specific": _specific(info), "models": info.models_text}, needed)
    else:
        table = options.table("method", "class-\nspecific", "cost", "models", "paper")
        if sys.stdout.isatty():  # leaves room for papers; elsewhere each method keeps to one line
            table.columns[2].max_width = 24
        facts = ((_short(_specific(info)), info.cost_text, _short(info.models_text)) for info in infos)
        _print_families(table, infos, facts, _METHOD_LEGEND)


def metrics(pattern: _Pattern = None, as_json: options.AsJson = False) -> None:
    """List the metrics: direction, what they need and cost, what meta-evaluation says, paper; or describe one."""
    infos = _find("metric", vt.list_metrics(), pattern)
    if as_json:
        options.print_json([_metric_json(info) for info in infos])
    elif len(infos) == 1:
        (info,) = infos
        facts = {"better": _better(info), "cost": _cost_in_words(info), "needs": _needs(info) or "nothing but images"}
        _describe(info, {**facts, "verdict": str(info.verdict or "not meta-evaluated")})
    else:
        table = options.table("metric", "better", "needs", "cost", "verdict", "paper")
        rows = ((_better(i), _needs(i), _cost(i), i.verdict.verdict if i.verdict else "") for i in infos)
        _print_families(table, infos, rows, _METRIC_LEGEND)


def models(pattern: _Pattern = None, as_json: options.AsJson = False) -> None:
    """List the models that can be loaded by name, with the weights the hub has for them."""
    infos = [info for info in vt.list_models() if _matches(pattern, info.name)]
    if not infos:
        names = [info.name if "/" in (pattern or "") else info.name.partition("/")[2] for info in vt.list_models()]
        raise VitreousError(f"no model fits {pattern!r}{nearest(pattern or '', names)}")
    if as_json:
        options.print_json([dataclasses.asdict(info) for info in infos])
        return
    table = options.table("model", "input", "weights")
    for info in infos:
        table.add_row(info.name, str(info.size or ""), ", ".join(info.pretrained))
    options.say(table)


def cite(method: Annotated[str, Argument(help="A name or a whole spec.", show_default=False)]) -> None:
    """Print the BibTeX of the papers behind a method and everything it is composed of."""
    infos = _named(vt.list_methods(), method.strip())
    infos = infos or [component.info for component in vt.get_method(method).components()]
    papers = {paper.key: paper for info in infos for paper in info.papers}
    entries = [paper.bibtex() for paper in papers.values()]
    for info in infos:
        ideas = {paper.key: paper for paper in info.builds_on if paper.key not in papers}
        if ideas:  # BibTeX ignores what is between entries
            lead = f"% {info.name} has no paper of its own; it builds on"
            entries.append("\n".join([lead, *(paper.bibtex() for paper in ideas.values())]))
            papers |= ideas
    if not entries:
        raise VitreousError(f"{method} has no paper behind it")
    typer.echo("\n\n".join(entries))


def demo(
    out: Annotated[Path, Option(help="Folder for the images and the report.")] = Path("demo"),
    quiet: options.Quiet = False,
) -> None:
    """Explain scenes of the bundled world and catch a model that cheats; leaves images and a report."""
    from vitreous.demo import write

    files = write(out, (lambda line: None) if quiet else options.say)
    if not quiet:
        options.say(f"{len(files)} files; open {files[-1]}")


# -- finding by name ---------------------------------------------------------------------------------------


def _find(noun: str, infos: list[Any], pattern: str | None) -> list[Any]:
    """Return what is called so, or else everything whose name matches."""
    matches = [info for info in infos if pattern in (info.name, *info.aliases)]
    matches = matches or _named(infos, pattern or "")
    matches = matches or [info for info in infos if _matches(pattern, info.name, *info.aliases)]
    if not matches:
        raise VitreousError(f"no {noun} fits {pattern!r}{nearest(pattern or '', (info.name for info in infos))}")
    return matches


def _named(infos: list[Any], name: str) -> list[Any]:
    name = normalize_name(name)
    return [info for info in infos if name in map(normalize_name, (info.name, *info.aliases))]


def _matches(pattern: str | None, *names: str) -> bool:
    if pattern is None:
        return True
    has_wildcards = any(sign in pattern for sign in "*?[")
    pattern = (pattern if has_wildcards else f"*{pattern}*").lower()
    return any(fnmatch.fnmatch(name.lower(), pattern) for name in names)


# -- facts about methods and metrics -----------------------------------------------------------------------


def _specific(info: Any) -> str:
    return "as its base" if info.is_combinator else "yes" if info.class_specific else "no"


def _short(words: str) -> str:
    return words.replace("as its base", "as base").replace("transformers", "no CNN")


def _needs(info: Any) -> str:
    return ", ".join([*(["labels"] if info.default.needs_labels else []), *info.default.annotation_kinds])


def _cost(info: Any) -> str:
    metric = info.default
    counts = {"F": metric.num_forwards(), "S": metric.num_shared_forwards(), "M": metric.num_reattributions()}
    parts = [f"{count} {unit}" for unit, count in counts.items() if count]
    return " + ".join(parts + (["S per part"] if metric.needs_parts else [])) or "0"


def _better(info: Any) -> str:
    return "higher" if info.default.higher_is_better else "lower"


def _cost_in_words(info: Any) -> str:
    counts = {
        "forwards per image and method": info.default.num_forwards(),
        "forwards per image for all methods": info.default.num_shared_forwards(),
        "forward per annotated part and image for all methods": "a" if info.default.needs_parts else 0,
        "further maps per image and method": info.default.num_reattributions(),
    }
    return ", ".join(f"{count} {unit}" for unit, count in counts.items() if count) or "nothing but the map"


def _print_families(table: Table, infos: list[Any], facts: Iterable[tuple[str, ...]], legend: str) -> None:
    """Print a table: each family's name, then one row each with its facts and its first paper; and what it means."""
    family = ""
    for info, cells in zip(infos, facts, strict=True):
        if info.family != family:
            family = info.family
            table.add_row(Text(family, style="bold"))
        table.add_row(f"  {info.name}", *cells, credit(info.papers, info.builds_on))
    options.say(table)
    options.say(legend, style="dim")


def _describe(info: Any, facts: dict[str, str], needed: str = "") -> None:
    """Print one method or metric: its docstring, parameters, presets, facts and papers."""
    options.say(f"{', '.join([info.name, *info.aliases])}  ({info.family})", style="bold")
    options.say(inspect.cleandoc(info.factory.__doc__ or ""))
    table = Table(box=None, pad_edge=False, show_header=False)
    for parameter in info.parameters:
        table.add_row(parameter.name, needed if parameter.required else f"default {parameter.default}")
    for name, values in info.presets.items():
        table.add_row(f"@{name}", ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults")
    for name, fact in facts.items():
        table.add_row(name, fact)
    for word, papers in (("paper", info.papers), ("builds on", info.builds_on)):
        for paper in papers:
            table.add_row(word, f"{paper.title} ({paper})")
    options.say("")
    options.say(table)


def _method_json(info: Any) -> dict[str, Any]:
    facts = {
        "class_specific": None if info.is_combinator else info.class_specific,
        "cost": info.cost_text,
        "models": info.models_text,
    }
    parameters = [
        {"name": p.name, "required": p.required, "default": None if p.required else p.default} for p in info.parameters
    ]
    return _to_json(info, facts, parameters)


def _metric_json(info: Any) -> dict[str, Any]:
    metric = info.default
    facts = {
        "higher_is_better": metric.higher_is_better,
        "forwards": metric.num_forwards(),
        "shared_forwards": metric.num_shared_forwards(),
        "per_part": metric.needs_parts,
        "explanations": metric.num_reattributions(),
        "needs_labels": metric.needs_labels,
        "annotations": list(metric.annotation_kinds),
        "verdict": None if info.verdict is None else dataclasses.asdict(info.verdict),
    }
    return _to_json(info, facts, [{"name": p.name, "default": p.default} for p in info.parameters])


def _to_json(info: Any, facts: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": info.name,
        "aliases": list(info.aliases),
        "family": info.family,
        "summary": info.summary,
        **facts,
        "papers": [paper.key for paper in info.papers],
        "builds_on": [paper.key for paper in info.builds_on],
        "presets": {name: dict(values) for name, values in info.presets.items()},
        "parameters": parameters,
    }


# -- models ------------------------------------------------------------------------------------------------

_STYLES = {"ok": "green", "failed": "bold red", "-": "dim"}


@with_options("contrast", "output", "class_subset", "overwrite")
def diagnose(
    word: Annotated[
        str | None, Argument(metavar="MODEL", help="A name such as timm/vit_base_patch16_224.", show_default=False)
    ] = None,
    model: options.NamedModel = None,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    result_options: ResultOptions,
) -> None:
    """Examine a model: is it seen right, and which methods apply? Exit code 1 if a check fails.

    The checks need no particular weights: --no-pretrained examines the architecture without fetching any.
    """
    model, others = options.model_first(model, [] if word is None else [word])
    if others:
        raise VitreousError(f"there are two models: {others[0]} and --model {model}")
    diagnosis = vt.diagnose(model_options.load(model, result_options.quiet), **query_options.chosen())
    if result_options.as_json:
        options.print_json({"schema": "vitreous.diagnose/1", **diagnosis.to_json()})
    elif not result_options.quiet:
        _print_findings("check", diagnosis.checks, {})
        options.say("")
        _print_findings("method", diagnosis.methods, {"ok": "applies", "failed": "no"})
        options.say(diagnosis.verdict)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _print_findings(title: str, findings: Any, words: dict[str, str]) -> None:
    table = options.table(title, "", "")
    for finding in findings:
        verdict = Text(words.get(finding.verdict, finding.verdict), style=_STYLES[finding.verdict])
        table.add_row(finding.name, verdict, Text(finding.sentence))
    options.say(table)


@with_options("class_names", "contrast", "output", "class_subset")
def stats(
    words: Annotated[list[str] | None, options.ModelAndImages] = None,
    model: options.NamedModel = None,
    out: Annotated[Path, Option(help="The file that is written.")] = Path("statistics.safetensors"),
    noise: Annotated[
        int | None, Option(min=2, max=1_000_000, help="Take so many images of uniform noise instead of real ones.")
    ] = None,
    resume: Annotated[bool, Option(help="Go on where an earlier run over the same images stopped.")] = False,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    limit_options: LimitOptions,
    result_options: ResultOptions,
) -> None:
    """Write down what a model's activations are usually like: the noise of coiba and iba is drawn from it.

    Ten photographs are nearly enough, two hundred are plenty. An image that cannot be read is named and skipped, and
    the exit code is 1.
    """
    model, images = options.model_first(model, words)
    advice = "choose another --out, or add --overwrite or --resume"
    overwrite = result_options.overwrite
    options.check_output(out, overwrite or resume, choose=advice)
    files = options.find_images(images) or None
    if (files is None) == (noise is None):
        raise VitreousError("give either images or --noise N")
    vision_model = model_options.load(model, result_options.quiet)
    settings: dict[str, Any] = {"noise": noise, "out": out, "overwrite": overwrite, "resume": resume}
    settings |= {**query_options.chosen(), **limit_options.chosen(), "on_error": options.print_skipped}
    with result_options.progress_bar("statistics") as bar:
        result = vt.collect_activation_stats(vision_model, files, progress=bar, **settings)
    height, width = result.size
    if result_options.as_json:
        facts = {"model": result.model, "input_size": [height, width], "source": result.description, "file": str(out)}
        options.print_json({"schema": "vitreous.statistics/1", **facts})
    result_options.say(f"{result.description} at {height} x {width} in {result.model}, written to {out}")
    if result.count < result.num_seen:
        raise typer.Exit(1)
