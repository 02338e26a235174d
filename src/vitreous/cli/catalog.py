"""``vitreous methods``, ``metrics``, ``models``, ``cite``, ``demo``, ``diagnose`` and ``stats``."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.table import Table
from rich.text import Text

from vitreous.cli import options
from vitreous.errors import VitreousError, nearest
from vitreous.registry import credit
from vitreous.registry.registry import normalize_name

__all__ = [
    "cite",
    "demo",
    "diagnose",
    "methods",
    "metrics",
    "models",
    "stats",
]

_Pattern = Annotated[Optional[str], typer.Argument(help="Part of a name, or a pattern with *.")]  # noqa: UP045


def methods(pattern: _Pattern = None, as_json: options.AsJson = False) -> None:
    """List the methods: class-specific or not, cost in forwards and backwards, models, paper; or describe one."""
    import vitreous as vt

    infos = _chosen("method", vt.list_methods(), pattern)
    if as_json:
        options.print_json([_method(info) for info in infos])
        return
    if len(infos) == 1:
        _describe(infos[0])
        return
    table = options.table("method", "class-\nspecific", "cost", "models", "paper")
    if sys.stdout.isatty():  # leaves room for papers; elsewhere each method keeps to one line
        table.columns[2].max_width = 24
    _by_family(table, infos, lambda info: (_short(_specific(info)), info.cost_text, _short(info.models_text)))
    options.say(table)
    options.say(
        "F: forward passes, B: backward passes. No CNN: for transformers. ViT: not where attention stays inside "
        "windows, either. ReLU: where there are no other activations. `vitreous methods NAME` tells more.",
        style="dim",
    )


def metrics(pattern: _Pattern = None, as_json: options.AsJson = False) -> None:
    """List the metrics: direction, what they need and cost, what a trial found, paper; or describe one."""
    import vitreous as vt

    infos = _chosen("metric", vt.list_metrics(), pattern)
    if as_json:
        options.print_json([_metric(info) for info in infos])
        return
    if len(infos) == 1:
        _describe_metric(infos[0])
        return
    table = options.table("metric", "better", "needs", "cost", "on trial", "paper")
    _by_family(table, infos, lambda info: (_better(info), _needs(info), _cost(info), _trial(info)))
    options.say(table)
    options.say(
        "F: forwards per image and method, at 224 pixels, S: those that all methods share, M: maps to be made again. "
        "Equal questions are asked once for all metrics. On trial: see `vitreous meta-evaluate`.",
        style="dim",
    )


def models(pattern: _Pattern = None, as_json: options.AsJson = False) -> None:
    """List the models that can be loaded by name, with the weights the hub has for them."""
    import vitreous as vt

    infos = [info for info in vt.list_models() if _fits(pattern, info.name)]
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


def cite(method: Annotated[str, typer.Argument(help="A name or a whole spelling.", show_default=False)]) -> None:
    """Print the BibTeX of the papers behind a method and everything it is composed of."""
    import vitreous as vt

    name = normalize_name(method.strip())
    bare = [info for info in vt.list_methods() if name in map(normalize_name, (info.name, *info.aliases))]
    infos = bare or [part.info for part in vt.get_method(method).components()]
    papers = {paper.key: paper for info in infos for paper in info.papers}
    found = [paper.bibtex() for paper in papers.values()]
    for info in infos:
        ideas = {paper.key: paper for paper in info.builds_on if paper.key not in papers}
        if ideas:  # BibTeX ignores what is between entries
            lead = f"% {info.name} has no paper of its own; it builds on"
            found.append("\n".join([lead, *(paper.bibtex() for paper in ideas.values())]))
            papers |= ideas
    if not found:
        raise VitreousError(f"{method} has no paper behind it")
    typer.echo("\n\n".join(found))


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and the report.")] = Path("demo"),
    quiet: options.Quiet = False,
) -> None:
    """Explain scenes of the bundled world and catch a model that cheats; leaves pictures and a report."""
    from vitreous.demo import write

    files = write(out, (lambda line: None) if quiet else options.say)
    if not quiet:
        options.say(f"{len(files)} files; open {files[-1]}")


def _specific(info: Any) -> str:
    return "as its base" if info.is_combinator else "yes" if info.class_specific else "no"


def _short(words: str) -> str:
    return words.replace("as its base", "as base").replace("transformers", "no CNN")


def _chosen(noun: str, infos: list[Any], pattern: str | None) -> list[Any]:
    """Return what is called so, or else everything whose name fits."""
    found = [info for info in infos if pattern in (info.name, *info.aliases)]
    found = found or [
        info for info in infos if normalize_name(pattern or "") in map(normalize_name, (info.name, *info.aliases))
    ]
    found = found or [info for info in infos if _fits(pattern, info.name, *info.aliases)]
    if not found:
        raise VitreousError(f"no {noun} fits {pattern!r}{nearest(pattern or '', (info.name for info in infos))}")
    return found


def _by_family(table: Table, infos: list[Any], facts: Callable[[Any], tuple[str, ...]]) -> None:
    """Fill a table: each family's name, then one row each with its facts and its first paper."""
    family = ""
    for info in infos:
        if info.family != family:
            family = info.family
            table.add_row(Text(family, style="bold"))
        table.add_row(f"  {info.name}", *facts(info), credit(info.papers, info.builds_on))


def _describe(info: Any) -> None:
    """Print one method: its docstring, parameters, presets and papers."""
    needed = "a method" if info.num_bases == 1 else "two methods or more"
    _print(info, needed, {"cost": info.cost_text, "class-specific": _specific(info), "models": info.models_text})


def _describe_metric(info: Any) -> None:
    """Print one metric: its docstring, parameters, presets and papers."""
    cost = [
        f"{info.default.num_forwards()} forwards per image and method" if info.default.num_forwards() else "",
        f"{info.default.num_shared_forwards()} forwards per image for all methods"
        if info.default.num_shared_forwards()
        else "",
        "a forward per known part and image for all methods" if info.default.needs_parts else "",
        f"{info.default.num_reattributions()} further maps per image and method"
        if info.default.num_reattributions()
        else "",
    ]
    facts = {"better": _better(info), "cost": ", ".join(filter(None, cost)) or "nothing but the map"}
    facts["needs"] = _needs(info) or "nothing but pictures"
    _print(info, "", facts | {"on trial": str(info.verdict or "not tried")})


def _print(info: Any, needed: str, facts: dict[str, str]) -> None:
    options.say(f"{', '.join([info.name, *info.aliases])}  ({info.family})", style="bold")
    options.say(inspect.cleandoc(info.factory.__doc__ or ""))
    table = Table(box=None, pad_edge=False, show_header=False)
    for parameter in info.parameters:
        table.add_row(parameter.name, needed if parameter.required else f"default {parameter.default}")
    for name, values in info.presets.items():
        table.add_row(f"@{name}", ", ".join(f"{key}={value}" for key, value in values.items()) or "the defaults")
    for name, fact in facts.items():
        table.add_row(name, fact)
    for paper in info.papers:
        table.add_row("paper", f"{paper.title} ({paper})")
    for paper in info.builds_on:
        table.add_row("builds on", f"{paper.title} ({paper})")
    options.say("")
    options.say(table)


def _needs(info: Any) -> str:
    return ", ".join([*(["labels"] if info.default.needs_labels else []), *info.default.annotation_kinds])


def _cost(info: Any) -> str:
    costs = {
        "F": info.default.num_forwards(),
        "S": info.default.num_shared_forwards(),
        "M": info.default.num_reattributions(),
    }
    told = [f"{count} {unit}" for unit, count in costs.items() if count] + (
        ["S per part"] if info.default.needs_parts else []
    )
    return " + ".join(told) or "0"


def _trial(info: Any) -> str:
    return info.verdict.verdict if info.verdict else ""


def _better(info: Any) -> str:
    return "higher" if info.default.higher_is_better else "lower"


def _fits(pattern: str | None, *names: str) -> bool:
    if pattern is None:
        return True
    wild = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return any(fnmatch.fnmatch(name.lower(), wild.lower()) for name in names)


def _method(info: Any) -> dict[str, Any]:
    return {
        "name": info.name,
        "aliases": list(info.aliases),
        "family": info.family,
        "summary": info.summary,
        "class_specific": None if info.is_combinator else info.class_specific,
        "cost": info.cost_text,
        "models": info.models_text,
        "papers": [paper.key for paper in info.papers],
        "builds_on": [paper.key for paper in info.builds_on],
        "presets": {name: dict(values) for name, values in info.presets.items()},
        "parameters": [
            {"name": p.name, "required": p.required, "default": None if p.required else p.default}
            for p in info.parameters
        ],
    }


def _metric(info: Any) -> dict[str, Any]:
    return {
        "name": info.name,
        "aliases": list(info.aliases),
        "family": info.family,
        "summary": info.summary,
        "higher_is_better": info.default.higher_is_better,
        "forwards": info.default.num_forwards(),
        "shared_forwards": info.default.num_shared_forwards(),
        "per_part": info.default.needs_parts,
        "explanations": info.default.num_reattributions(),
        "needs_labels": info.default.needs_labels,
        "truth": list(info.default.annotation_kinds),
        "trial": None if info.verdict is None else dataclasses.asdict(info.verdict),
        "papers": [paper.key for paper in info.papers],
        "builds_on": [paper.key for paper in info.builds_on],
        "presets": {name: dict(values) for name, values in info.presets.items()},
        "parameters": [{"name": p.name, "default": p.default} for p in info.parameters],
    }


_STYLES = {"ok": "green", "failed": "bold red", "-": "dim"}


def diagnose(
    word: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="MODEL", help="A name such as timm/vit_base_patch16_224.", show_default=False),
    ] = None,
    model: options.NamedModel = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    class_names: options.ClassNames = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Examine a model: is it seen right, and which methods apply? Exit code 1 if a check fails.

    The checks need no particular weights: --no-pretrained examines the architecture without fetching any.
    """
    import vitreous as vt

    model, more = options.model_first(model, [] if word is None else [word])
    if more:
        raise VitreousError(f"there are two models: {more[0]} and --model {model}")
    vision_model = options.load(
        model, checkpoint, pretrained, img_size, num_classes, class_names, device, dtype, quiet, prompt
    )
    diagnosis = vt.diagnose(vision_model, seed=seed)
    if as_json:
        options.print_json({"schema": "vitreous.diagnose/1", **diagnosis.to_json()})
    elif not quiet:
        table = options.table("check", "", "")
        for check in diagnosis.checks:
            table.add_row(check.name, Text(check.verdict, style=_STYLES[check.verdict]), Text(check.sentence))
        options.say(table)
        options.say("")
        table = options.table("method", "", "")
        for check in diagnosis.methods:
            verdict = {"ok": "applies", "failed": "no"}.get(check.verdict, check.verdict)
            table.add_row(check.name, Text(verdict, style=_STYLES[check.verdict]), Text(check.sentence))
        options.say(table)
        options.say(diagnosis.verdict)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def stats(
    words: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[MODEL] IMAGES", help="A model, and pictures or folders of them.", show_default=False),
    ] = None,
    model: options.NamedModel = None,
    out: Annotated[Path, typer.Option(help="The file that is written.")] = Path("statistics.safetensors"),
    noise: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, max=1_000_000, help="Take so many images of uniform noise instead of pictures."),
    ] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.BatchSize = None,
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run over the same pictures stopped.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write down what a model's activations are usually like: the noise of coiba and iba is drawn from it.

    Ten photographs are nearly enough, two hundred are plenty. A picture that cannot be read is named and skipped, and
    the exit code is 1.
    """
    import vitreous as vt

    model, images = options.model_first(model, words or [])
    if options.is_there(out) and not overwrite and not resume:
        raise VitreousError(f"{out} is there already; choose another --out, or add --overwrite or --resume")
    files = [image_file for path in images for image_file in vt.image_files(path)] or None
    if (files is None) == (noise is None):
        raise VitreousError("give either pictures or --noise N")
    vision_model = options.load(
        model, checkpoint, pretrained, img_size, num_classes, None, device, dtype, quiet, prompt
    )
    with options.progress_bar("statistics", quiet or as_json) as bar:
        written = vt.collect_activation_stats(
            vision_model,
            files,
            noise=noise,
            out=out,
            overwrite=overwrite,
            resume=resume,
            seed=seed,
            batch_size=batch_size,
            memory_gb=memory_gb,
            progress=bar,
            on_error=options.skipped,
        )
    facts = {"model": written.model, "input_size": list(written.size), "source": written.description, "file": str(out)}
    if as_json:
        options.print_json({"schema": "vitreous.statistics/1", **facts})
    elif not quiet:
        options.say(
            f"{written.description} at {written.size[0]} x {written.size[1]} in {written.model}, written to {out}"
        )
    if written.count < written.num_seen:
        raise typer.Exit(1)
