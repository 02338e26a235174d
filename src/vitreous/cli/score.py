"""``vitreous score``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from vitreous import disk
from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.words import defaults

__all__ = ["score"]


def score(
    model: Annotated[str, typer.Argument(help="A name such as timm/vit_base_patch16_224.", show_default=False)],
    images: Annotated[list[Path], typer.Argument(help="Pictures or folders of pictures.", show_default=False)],
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
        typer.Option(help="True classes, JSON: {file: class}, a list in order, or a list of {file, label}."),
    ] = None,
    target: Annotated[str, typer.Option(help="The explained class: pred, label, an index or a name.")] = "pred",
    classes: options.Classes = None,
    baselines: Annotated[bool, typer.Option(help="Random, constant and centre maps for comparison.")] = True,
    out: Annotated[Optional[Path], typer.Option(help="Write the table as .json or .csv.")] = None,  # noqa: UP045
    half: Annotated[bool, typer.Option(help="Half precision, audited against float32.")] = False,
    batch: Annotated[Optional[int], typer.Option(min=1, help="States at once.")] = None,  # noqa: UP045
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    names: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Class names: a text file with one per line, or a JSON list."),
    ] = None,
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
    methods, metrics = _asked(method), _asked(metric, *defaults.METRICS)
    judges = [vt.metric(each) for each in metrics]
    for each in methods:
        if not Path(each).is_dir():
            vt.method(each)
    if out is not None:
        if out.suffix not in (".json", ".csv"):
            raise VitreousError(f"--out {out} must end in .json or .csv")
        if options.is_there(out) and not overwrite:
            raise VitreousError(f"{out} is there already; choose another --out or add --overwrite")
        disk.check_file(out, overwrite)
    files = [each for path in images for each in vt.image_files(path)]
    truth = None if labels is None else _labels(labels)
    wanting = [name for name, judge in zip(metrics, judges, strict=True) if judge.needs_labels]
    if truth is None and (wanting or target == "label"):
        raise VitreousError(f"{wanting[0] if wanting else 'target label'} needs the true classes: give --labels")
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, names, device, "float32", quiet, prompt)
    methods = methods or [vt.effort("quick", view), *defaults.JUDGED]
    precision = "float16" if half else "float32"
    asked: dict[str, Any] = {"precision": precision, "batch": batch, "seed": seed, "baselines": baselines}
    asked |= {"classes": options.classes(classes), "memory": memory}
    with options.progress_bar("states", quiet or as_json) as bar:
        table = vt.evaluate(view, files, methods, metrics, labels=truth, target=target, progress=bar, **asked)
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


def _asked(given: list[str] | None, *default: str) -> list[str]:
    """Return the spellings meant; each option may hold several, separated by commas."""
    return [each for one in given or default for each in options.split(one)]


def _labels(path: Path) -> Any:
    """Return true classes in order or by file name."""
    text = options.read_text(path, "labels")
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VitreousError(f"labels {path} cannot be read: {error}") from None
    if (
        isinstance(labels, list)
        and labels
        and all(isinstance(each, dict) and {"file", "label"} <= set(each) for each in labels)
    ):
        labels = {each["file"]: each["label"] for each in labels}
    values = list(labels.values()) if isinstance(labels, dict) else labels
    if not isinstance(values, list) or not all(isinstance(each, int | str) for each in values):
        raise VitreousError(f"labels {path} must hold one class for each picture")
    return labels
