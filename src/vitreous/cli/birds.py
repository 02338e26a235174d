"""``vitreous birds``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.words import defaults
from vitreous.words.defaults import STEPS

__all__ = ["birds"]

_MOST = 100_000


def birds(
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
    baselines: Annotated[bool, typer.Option(help="Random, constant and centre maps for comparison.")] = True,
    out: Annotated[Optional[Path], typer.Option(help="Write the results as .json or .csv.")] = None,  # noqa: UP045
    batch_size: options.BatchSize = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    device: options.Device = "auto",
    memory: options.Memory = None,
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
        if not os.path.isdir(each) and each not in STEPS:
            vt.method(each)
    options.check_out(out, overwrite, ".json", ".csv")
    if folder is not None and not os.path.isdir(folder):
        raise VitreousError(f"no such folder of birds: {folder}")
    source: Any = folder or vt.world.World(n=scenes, start=start, shortcut=shortcut)
    name = model or word or "world"
    view = options.load(name, checkpoint, pretrained, img_size, num_classes, None, device, "float32", quiet)
    chosen = asked_for or ["quick", *defaults.judged(view.stream)]
    methods = {each: vt.effort(each, view) if each in STEPS else each for each in chosen}
    asked: dict[str, Any] = {"fixed": fixed, "dilation": dilation, "oracle": oracle, "baselines": baselines}
    asked |= {"batch": batch_size, "memory": memory, "seed": seed}
    with options.progress_bar("states", quiet or as_json) as bar:
        found = vt.funnybirds(view, methods, source, progress=bar, **asked)
    if as_json:
        options.print_json(found.to_json())
    elif not quiet:
        options.say(str(found))
        options.say(f"{found.plan['states']} states, dilation {found.plan['dilation']}, batch {found.plan['batch']}")
    if out is not None:  # what could not be written has been printed
        found.save(out, overwrite=overwrite)
        if not (quiet or as_json):
            options.say(f"saved in {out}")
