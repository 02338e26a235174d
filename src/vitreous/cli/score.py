"""``vitreous score``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from vitreous import disk
from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.words import defaults

__all__ = ["score"]


def score(
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
    truth: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="True classes, JSON: {file: class}, a list in order, or a list of {file, label}; or a scenes.json."
        ),
    ] = None,
    regions: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where the objects are: a folder of masks named like the pictures, or a JSON of boxes."),
    ] = None,
    target: Annotated[str, typer.Option(help="The explained class: pred, label, an index or a name.")] = "pred",
    classes: options.Classes = None,
    baselines: Annotated[bool, typer.Option(help="Random, constant and centre maps for comparison.")] = True,
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
    names: options.Names = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    memory: options.Memory = None,
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
    judges = [vt.metric(each) for each in metrics]
    for each in methods:
        if not os.path.isdir(each):
            vt.method(each)
    options.check_out(out, overwrite, ".json", ".csv")
    if figures is not None:
        _check_figures(figures, overwrite)
    files = [each for path in images for each in vt.image_files(path)]
    labels = None if truth is None else _classes(truth)
    wanting = [name for name, judge in zip(metrics, judges, strict=True) if judge.needs_labels]
    if labels is None and (wanting or target == "label"):
        raise VitreousError(f"{wanting[0] if wanting else '--target label'} needs the true classes: give --truth")
    known = None if regions is None else vt.read_regions(regions)
    lost = next((name for name, judge in zip(metrics, judges, strict=True) if judge.truth), None)
    if known is None and lost is not None:
        raise VitreousError(f"{lost} needs to know where the objects are: give --regions")
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, names, device, "float32", quiet, prompt)
    methods = methods or [vt.effort("quick", view), *defaults.judged(view.stream)]
    precision = "float16" if half else "float32"
    asked: dict[str, Any] = {"precision": precision, "batch": batch_size, "seed": seed, "baselines": baselines}
    asked |= {"classes": options.classes(classes), "memory": memory}
    with options.progress_bar("states", quiet or as_json) as bar:
        table = vt.evaluate(
            view, files, methods, metrics, labels=labels, truth=known, target=target, progress=bar, **asked
        )
    if as_json:
        options.print_json(table.to_json())
    elif not quiet:
        options.say(str(table))
        plan = table.plan
        options.say(f"{plan['images']} pictures, {plan['states']} states, batch {plan['batch']}, {precision}")
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
    from vitreous.show.figures import require

    require()
    options.is_there(folder)
    disk.check_folder(folder, overwrite)


def _classes(path: Path) -> Any:
    """Return true classes in order or by file name."""
    text = options.read_text(path, "truth")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitreousError(f"truth {path} cannot be read: {error}") from None
    scenes = isinstance(told, dict) and isinstance(told.get("scenes"), list)
    rows, key = (told["scenes"], "class") if scenes else (told, "label")
    if isinstance(rows, list) and rows and all(isinstance(each, dict) and {"file", key} <= set(each) for each in rows):
        told = {each["file"]: each[key] for each in rows}
    values = list(told.values()) if isinstance(told, dict) else told
    if not isinstance(values, list) or not all(isinstance(each, int | str) for each in values):
        raise VitreousError(f"truth {path} must hold one class for each picture")
    return told
