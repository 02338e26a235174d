"""``vitreous evaluate``, ``vitreous funnybirds`` and ``vitreous meta-evaluate``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import vitreous as vt
from vitreous import io as disk
from vitreous.cli import options
from vitreous.cli.options import LimitOptions, ModelOptions, QueryOptions, ResultOptions, with_options
from vitreous.errors import VitreousError
from vitreous.registry import defaults
from vitreous.registry.defaults import EFFORT_LEVELS

_MAX_SCENES = 100_000


@with_options("dtype", "contrast", "output")
def evaluate(
    words: Annotated[list[str], options.ModelAndImages],
    model: options.NamedModel = None,
    method: Annotated[
        list[str] | None, Option(help="A spec, or a folder of .npy maps named like the images; may be repeated.")
    ] = None,
    metric: Annotated[
        list[str] | None, Option(help="A spec such as insertion or deletion@coiba; may be repeated.")
    ] = None,
    labels: Annotated[
        Path | None,
        Option(
            help="True classes, JSON: {file: class}, a list in order, or a list of {file, label}; or a scenes.json."
        ),
    ] = None,
    annotations: Annotated[
        Path | None,
        Option(help="Where the objects are: a folder of masks named like the images, or a JSON of boxes."),
    ] = None,
    target: Annotated[str, Option(help="The explained class: pred, label, an index or a name.")] = "pred",
    controls: options.Controls = True,
    out: Annotated[Path | None, Option(help="Write the table as .json or .csv.")] = None,
    figures: Annotated[
        Path | None, Option(metavar="DIR", help="Draw bars, curves and bins of every metric into a new folder, as SVG.")
    ] = None,
    half: Annotated[bool, Option(help="Half precision, audited against float32.")] = False,
    no_cache: options.NoCache = False,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    limit_options: LimitOptions,
    result_options: ResultOptions,
) -> None:
    """Evaluate methods by metrics over images: a table of means with 95 % intervals.

    Random, constant and centre maps stand in every table: a method that does not beat them explains nothing.
    """
    from vitreous.viz.plots import require as require_plots

    model, images = options.model_first(model, words)
    if not images:
        raise VitreousError(f"there are no images to evaluate with, only the model {model}")
    methods = _check_methods(options.read_specs(method, "method"))
    metrics = options.read_specs(metric or defaults.METRICS, "metric")
    _check_requirements(metrics, labels, annotations, target)
    result_options.check(out, ".json", ".csv")
    if figures is not None:
        require_plots()
        disk.check_folder(figures, result_options.overwrite)
    files = options.find_images(images)
    settings: dict[str, Any] = {"target": target, "controls": controls, "precision": "float16" if half else "float32"}
    settings |= {**query_options.chosen(), **limit_options.chosen()}
    settings["labels"] = None if labels is None else _read_labels(labels)
    settings["annotations"] = None if annotations is None else vt.load_annotations(annotations)
    vision_model = model_options.load(model, result_options.quiet)
    usual = defaults.evaluation_methods(vision_model.has_residual_stream)
    methods = methods or [vt.recommended_method("quick", vision_model), *usual]
    with result_options.progress_bar("states") as bar:
        table = vt.evaluate(vision_model, files, methods, metrics, progress=bar, **settings)
    result_options.print(table, _cost_notes(table), out)
    if figures is not None:
        names = table.save_figures(figures, overwrite=result_options.overwrite)
        result_options.say(f"drawn in {figures}: {', '.join(names)}")


def _check_methods(specs: list[str], allowed: Sequence[str] = ()) -> list[str]:
    """Refuse specs that are wrong, before the work; folders of maps and levels of effort are none."""
    for spec in specs:
        if not os.path.isdir(spec) and spec not in allowed:
            vt.get_method(spec)
    return specs


def _check_requirements(specs: Sequence[str], labels: Path | None, annotations: Path | None, target: str) -> None:
    """Refuse metrics that need what was not given."""
    metrics = {spec: vt.get_metric(spec) for spec in specs}
    by_label = [spec for spec, metric in metrics.items() if metric.needs_labels]
    by_label += ["--target label"] if target == "label" else []
    if labels is None and by_label:
        raise VitreousError(f"{by_label[0]} needs the true classes: give --labels")
    by_annotation = [spec for spec, metric in metrics.items() if metric.annotation_kinds]
    if annotations is None and by_annotation:
        raise VitreousError(f"{by_annotation[0]} needs to know where the objects are: give --annotations")


def _cost_notes(table: vt.ScoreTable) -> list[str]:
    plan = table.plan
    batch = f"batch {plan['forward_batch']}, {plan['precision']}"
    notes = [f"{plan['images']} images, {plan['states']} states, {batch}"]
    if (audit := plan["audit"]) is not None:
        notes.append(
            f"audit of {audit['states']} states against float32: log p differs by at most "
            f"{audit['log_probability']:.2g}, p by {audit['probability']:.2g}, "
            f"arg-max agrees on {audit['agreement']:.1%}"
        )
    return notes


def _read_labels(path: Path) -> Any:
    """Return true classes in order or by file name."""
    labels = disk.read_json(path, what="labels ")
    if isinstance(labels, dict) and "scenes" in labels:
        labels = _by_file(labels["scenes"], "class")
    labels = _by_file(labels, "label")
    values = list(labels.values()) if isinstance(labels, dict) else labels
    if not isinstance(values, list) or not {type(value) for value in values} <= {int, str}:
        raise VitreousError(f"labels {path} must hold one class for each image")
    return labels


def _by_file(rows: Any, key: str) -> Any:
    """Return a list of tables as one value by file; anything else as it is."""
    if not rows or not isinstance(rows, list):
        return rows
    is_table = all(isinstance(row, dict) and {"file", key} <= set(row) for row in rows)
    return {row["file"]: row[key] for row in rows} if is_table else rows


@with_options("class_names", "prompts", "dtype", "contrast", "output", "class_subset")
def funnybirds(
    word: Annotated[
        str | None,
        Argument(metavar="[MODEL]", help="A model that knows the classes of the scenes.", show_default="world"),
    ] = None,
    model: options.NamedModel = None,
    method: Annotated[
        list[str] | None, Option(help="A spec, or a folder of .npy maps named like the scenes; may be repeated.")
    ] = None,
    scenes: Annotated[int, Option(help="How many test scenes of the world.")] = 50,
    start: Annotated[int, Option(min=0, help="The first of them.")] = 0,
    shortcut: Annotated[bool, Option(help="Scenes in which a marker gives half of the classes away.")] = False,
    folder: Annotated[
        Path | None, Option(help="A folder in the layout of FunnyBirds instead of scenes.", show_default=False)
    ] = None,
    fixed: Annotated[float, Option(help="The threshold that is reported beside the best one.")] = 0.1,
    dilation: Annotated[
        int | None, Option(min=1, help="Width of the dilation of masks in pixels, odd.", show_default="5 at 256 pixels")
    ] = None,
    oracle: Annotated[bool, Option(help="Maps made of the interventions themselves: what can be had.")] = False,
    controls: options.Controls = True,
    out: Annotated[Path | None, Option(help="Write the results as .json or .csv.")] = None,
    *,
    query_options: QueryOptions,
    model_options: ModelOptions,
    limit_options: LimitOptions,
    result_options: ResultOptions,
) -> None:
    """Evaluate methods by known parts, as FunnyBirds does: completeness, correctness, contrastivity.

    Every part subset of every scene is rendered anew and run once, for all methods.
    """
    if word is not None and model is not None:
        raise VitreousError(f"the model is named twice: {word} and {model}")
    if not 1 <= scenes <= _MAX_SCENES:
        raise VitreousError(f"--scenes {scenes} must be from 1 to {_MAX_SCENES}")
    if folder is not None and shortcut:
        raise VitreousError("give --folder or --shortcut, not both: the shortcut is one of the world's scenes")
    if folder is not None and not os.path.isdir(folder):
        raise VitreousError(f"no such folder of birds: {folder}")
    specs = _check_methods(options.read_specs(method, "method"), EFFORT_LEVELS)
    result_options.check(out, ".json", ".csv")
    source: Any = folder or vt.world.World(n=scenes, start=start, shortcut=shortcut)
    vision_model = model_options.load(model or word or "world", result_options.quiet)
    specs = specs or ["quick", *defaults.evaluation_methods(vision_model.has_residual_stream)]
    methods = {spec: vt.recommended_method(spec, vision_model) if spec in EFFORT_LEVELS else spec for spec in specs}
    settings: dict[str, Any] = {"fixed": fixed, "dilation": dilation, "oracle": oracle, "controls": controls}
    settings |= {**query_options.chosen(), **limit_options.chosen()}
    with result_options.progress_bar("states") as bar:
        result = vt.funnybirds(vision_model, methods, source, progress=bar, **settings)
    plan = result.plan
    note = f"{plan['states']} states, dilation {plan['dilation']}, batch {plan['forward_batch']}"
    result_options.print(result, [note], out)


@with_options()
def meta_evaluate(
    metric: Annotated[
        list[str] | None, Option(help="A spec such as insertion; may be repeated.", show_default="all metrics")
    ] = None,
    scenes: Annotated[int, Option(min=2, help="How many scenes of the test split; 500 for a verdict.")] = 24,
    seeds: Annotated[int, Option(min=1, help="Runs that differ in ties, masks and noise.")] = 2,
    baselines: Annotated[int, Option(min=0, help="Further baselines for metrics that have one.")] = 2,
    model: Annotated[
        str, Option("--model", "-m", help="world or world-cnn; those that cheat end in -shortcut.")
    ] = "world",
    shortcut: Annotated[bool, Option("--shortcut", help="Scenes with a marker that gives the class away.")] = False,
    output: Annotated[str, Option(help="What the oracle measures the loss of: logit or prob.")] = "logit",
    out: Annotated[Path | None, Option(help="Write the result as .json.")] = None,
    half: Annotated[bool, Option(help="Half precision.")] = False,
    device: options.Device = "auto",
    *,
    limit_options: LimitOptions,
    result_options: ResultOptions,
) -> None:
    """Evaluate metrics where the truth is known: which of them see it, and how small a difference.

    Each metric scores the same maps of scenes: what removing every part really costs the model (the oracle), the oracle
    made worse in known ways, the centre, and random maps. A metric that does not see that order is marked.
    """
    metrics = options.read_specs(metric, "metric") or None
    for spec in metrics or ():
        vt.get_metric(spec)
    result_options.check(out, ".json")
    settings: dict[str, Any] = {"model": model, "scenes": scenes, "seeds": seeds, "baselines": baselines}
    settings |= {"shortcut": shortcut, "output": output, "device": device, **limit_options.chosen()}
    settings["precision"] = "float16" if half else "float32"
    with options.log_messages(result_options.is_silent), result_options.progress_bar("states") as bar:
        result = vt.meta_evaluate(metrics, progress=bar, **settings)
    result_options.print(result, out=out)
