"""``vitreous evaluate``, ``vitreous funnybirds`` and ``vitreous meta-evaluate``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from vitreous import io as disk
from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.registry import defaults
from vitreous.registry.defaults import EFFORT_LEVELS

__all__ = [
    "evaluate",
    "funnybirds",
    "meta_evaluate",
]


def evaluate(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[MODEL] IMAGES", help="A model, and pictures or folders of them.", show_default=False),
    ],
    model: options.NamedModel = None,
    method: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="A spelling, or a folder of .npy maps named like the pictures; may be repeated."),
    ] = None,
    metric: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="A spelling such as insertion or deletion@coiba; may be repeated."),
    ] = None,
    labels: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="True classes, JSON: {file: class}, a list in order, or a list of {file, label}; or a scenes.json."
        ),
    ] = None,
    annotations: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where the objects are: a folder of masks named like the pictures, or a JSON of boxes."),
    ] = None,
    target: Annotated[str, typer.Option(help="The explained class: pred, label, an index or a name.")] = "pred",
    class_subset: options.ClassSubset = None,
    controls: Annotated[bool, typer.Option(help="Random, constant and centre maps for comparison.")] = True,
    out: Annotated[Optional[Path], typer.Option(help="Write the table as .json or .csv.")] = None,  # noqa: UP045
    figures: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="DIR", help="Draw bars, curves and bins of every metric into a new folder, as SVG."),
    ] = None,
    half: Annotated[bool, typer.Option(help="Half precision, audited against float32.")] = False,
    batch_size: options.BatchSize = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    class_names: options.ClassNames = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Judge methods by metrics over pictures: a table of means with 95 % intervals.

    Random, constant and centre maps stand in every table: a method that does not beat them explains nothing.
    """
    import vitreous as vt

    options.caching(no_cache)
    model, images = options.model_first(model, words)
    if not images:
        raise VitreousError(f"there are no pictures to judge with, only the model {model}")
    methods, metrics = options.spelled(method or (), "method"), options.spelled(metric or defaults.METRICS, "metric")
    judges = [vt.get_metric(each) for each in metrics]
    for each in methods:
        if not os.path.isdir(each):
            vt.get_method(each)
    options.check_out(out, overwrite, ".json", ".csv")
    if figures is not None:
        _check_figures(figures, overwrite)
    files = [image_file for path in images for image_file in vt.image_files(path)]
    true_classes = None if labels is None else _read_labels(labels)
    wanting = [name for name, judge in zip(metrics, judges, strict=True) if judge.needs_labels]
    if true_classes is None and (wanting or target == "label"):
        raise VitreousError(f"{wanting[0] if wanting else '--target label'} needs the true classes: give --labels")
    regions = None if annotations is None else vt.load_annotations(annotations)
    lost = next((name for name, judge in zip(metrics, judges, strict=True) if judge.annotation_kinds), None)
    if regions is None and lost is not None:
        raise VitreousError(f"{lost} needs to know where the objects are: give --annotations")
    vision_model = options.load(
        model, checkpoint, pretrained, img_size, num_classes, class_names, device, "float32", quiet, prompt
    )
    methods = methods or [
        vt.recommended_method("quick", vision_model),
        *defaults.evaluation_methods(vision_model.has_residual_stream),
    ]
    precision = "float16" if half else "float32"
    asked: dict[str, Any] = {"precision": precision, "batch_size": batch_size, "seed": seed, "controls": controls}
    asked |= {"class_subset": options.read_class_subset(class_subset), "memory_gb": memory_gb}
    with options.progress_bar("states", quiet or as_json) as bar:
        table = vt.evaluate(
            vision_model,
            files,
            methods,
            metrics,
            labels=true_classes,
            annotations=regions,
            target=target,
            progress=bar,
            **asked,
        )
    if as_json:
        options.print_json(table.to_json())
    elif not quiet:
        options.say(str(table))
        plan = table.plan
        options.say(f"{plan['images']} pictures, {plan['states']} states, batch {plan['forward_batch']}, {precision}")
        if plan["audit"] is not None:
            audit = plan["audit"]
            options.say(
                f"audit of {audit['states']} states against float32: log p differs by at most "
                f"{audit['log_probability']:.2g}, p by {audit['probability']:.2g}, "
                f"arg-max agrees on {audit['agreement']:.1%}"
            )
    if out is not None:  # what could not be written has been printed
        table.save(out, overwrite=overwrite)
        if not (quiet or as_json):
            options.say(f"saved in {out}")
    if figures is not None:
        drawn = table.save_figures(figures, overwrite=overwrite)
        if not (quiet or as_json):
            options.say(f"drawn in {figures}: {', '.join(drawn)}")


def _check_figures(folder: Path, overwrite: bool) -> None:
    """Refuse figures that could not be drawn, before the work."""
    from vitreous.viz.plots import require

    require()
    options.is_there(folder)
    disk.check_folder(folder, overwrite)


def _read_labels(path: Path) -> Any:
    """Return true classes in order or by file name."""
    text = options.read_text(path, "labels")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitreousError(f"labels {path} cannot be read: {error}") from None
    scenes = isinstance(told, dict) and isinstance(told.get("scenes"), list)
    rows, key = (told["scenes"], "class") if scenes else (told, "label")
    if isinstance(rows, list) and rows and all(isinstance(row, dict) and {"file", key} <= set(row) for row in rows):
        told = {row["file"]: row[key] for row in rows}
    values = list(told.values()) if isinstance(told, dict) else told
    if not isinstance(values, list) or not all(isinstance(value, int | str) for value in values):
        raise VitreousError(f"labels {path} must hold one class for each picture")
    return told


_MOST = 100_000


def funnybirds(
    word: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[MODEL]", help="A model that knows the classes of the scenes.", show_default="world"),
    ] = None,
    model: options.NamedModel = None,
    method: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="A spelling, or a folder of .npy maps named like the scenes; may be repeated."),
    ] = None,
    scenes: Annotated[int, typer.Option(help="How many test scenes of the world.")] = 50,
    start: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    shortcut: Annotated[bool, typer.Option(help="Scenes in which a marker betrays half of the classes.")] = False,
    folder: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="A folder in the layout of FunnyBirds instead of scenes.", show_default=False),
    ] = None,
    fixed: Annotated[float, typer.Option(help="The threshold that is reported beside the best one.")] = 0.1,
    dilation: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Width of the dilation of masks in pixels, odd.", show_default="5 at 256 pixels"),
    ] = None,
    oracle: Annotated[bool, typer.Option(help="Maps made of the interventions themselves: what can be had.")] = False,
    controls: Annotated[bool, typer.Option(help="Random, constant and centre maps for comparison.")] = True,
    out: Annotated[Optional[Path], typer.Option(help="Write the results as .json or .csv.")] = None,  # noqa: UP045
    batch_size: options.BatchSize = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    device: options.Device = "auto",
    memory_gb: options.MemoryGb = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Judge methods by known parts, as FunnyBirds does: completeness, correctness, contrastivity.

    Every part subset of every scene is rendered anew and run once, for all methods.
    """
    import vitreous as vt

    if word is not None and model is not None:
        raise VitreousError(f"the model is named twice: {word} and {model}")
    if not 1 <= scenes <= _MOST:
        raise VitreousError(f"--scenes {scenes} must be from 1 to {_MOST}")
    if folder is not None and shortcut:
        raise VitreousError("give --folder or --shortcut, not both: the shortcut is one of the world's scenes")
    asked_for = options.spelled(method or (), "method")
    for each in asked_for:
        if not os.path.isdir(each) and each not in EFFORT_LEVELS:
            vt.get_method(each)
    options.check_out(out, overwrite, ".json", ".csv")
    if folder is not None and not os.path.isdir(folder):
        raise VitreousError(f"no such folder of birds: {folder}")
    source: Any = folder or vt.world.World(n=scenes, start=start, shortcut=shortcut)
    name = model or word or "world"
    vision_model = options.load(name, checkpoint, pretrained, img_size, num_classes, None, device, "float32", quiet)
    chosen = asked_for or ["quick", *defaults.evaluation_methods(vision_model.has_residual_stream)]
    methods = {each: vt.recommended_method(each, vision_model) if each in EFFORT_LEVELS else each for each in chosen}
    asked: dict[str, Any] = {"fixed": fixed, "dilation": dilation, "oracle": oracle, "controls": controls}
    asked |= {"batch_size": batch_size, "memory_gb": memory_gb, "seed": seed}
    with options.progress_bar("states", quiet or as_json) as bar:
        found = vt.funnybirds(vision_model, methods, source, progress=bar, **asked)
    if as_json:
        options.print_json(found.to_json())
    elif not quiet:
        options.say(str(found))
        options.say(
            f"{found.plan['states']} states, dilation {found.plan['dilation']}, batch {found.plan['forward_batch']}"
        )
    if out is not None:  # what could not be written has been printed
        found.save(out, overwrite=overwrite)
        if not (quiet or as_json):
            options.say(f"saved in {out}")


def meta_evaluate(
    metric: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="A spelling such as insertion; may be repeated.", show_default="all metrics"),
    ] = None,
    scenes: Annotated[int, typer.Option(min=2, help="How many scenes of the test split; 500 for a verdict.")] = 24,
    seeds: Annotated[int, typer.Option(min=1, help="Runs that differ in ties, masks and noise.")] = 2,
    baselines: Annotated[int, typer.Option(min=0, help="Further substrates for metrics that have one.")] = 2,
    model: Annotated[
        str, typer.Option("--model", "-m", help="world or world-cnn; those that cheat end in -shortcut.")
    ] = "world",
    shortcut: Annotated[bool, typer.Option("--shortcut", help="Scenes with a marker that betrays the class.")] = False,
    output: Annotated[str, typer.Option(help="What the oracle measures the loss of: logit or prob.")] = "logit",
    out: Annotated[Optional[Path], typer.Option(help="Write the trial as .json.")] = None,  # noqa: UP045
    half: Annotated[bool, typer.Option(help="Half precision.")] = False,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    memory_gb: options.MemoryGb = None,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Put metrics on trial where the truth is known: which of them see it, and how small a difference.

    Each metric judges the same maps of scenes: what removing every part really costs the model (the oracle), the oracle
    made worse in known ways, the centre, and random maps. A metric that does not see that order is marked.
    """
    import vitreous as vt

    metrics = options.spelled(metric or (), "metric") or None
    for each in metrics or ():
        vt.get_metric(each)
    options.check_out(out, overwrite, ".json")
    with options.telling(quiet or as_json), options.progress_bar("states", quiet or as_json) as bar:
        found = vt.meta_evaluate(
            metrics,
            model=model,
            scenes=scenes,
            seeds=seeds,
            baselines=baselines,
            shortcut=shortcut,
            output=output,
            device=device,
            batch_size=batch_size,
            memory_gb=memory_gb,
            precision="float16" if half else "float32",
            progress=bar,
        )
    if as_json:
        options.print_json(found.to_json())
    elif not quiet:
        options.say(str(found))
    if out is not None:
        found.save(out, overwrite=overwrite)
        if not (quiet or as_json):
            options.say(f"saved in {out}")
