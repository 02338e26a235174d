"""``vitreous why``: one picture, one page."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from vitreous import disk
from vitreous.cli import options
from vitreous.errors import VitreousError
from vitreous.words import defaults

__all__ = ["why"]


def why(
    image: Annotated[Path, typer.Argument(help="A picture.", show_default=False)],
    model: options.Model = defaults.MODEL,
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Class index or label.", show_default="the prediction"),
    ] = None,
    effort: options.Effort = None,
    method: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A spelling such as generic.", show_default="that of --effort"),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The page, a .html file.", show_default="IMAGE-why.html"),
    ] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    names: options.Names = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    memory: options.Memory = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    no_cache: options.NoCache = False,
    quiet: options.Quiet = False,
) -> None:
    """Say why the model sees what it sees in a picture: one page to read, for anyone.

    The page has what the model says, where it saw it, what it says without that and with that alone, why not the next
    class, and how far all this can be trusted.
    """
    import vitreous as vt

    options.caching(no_cache)
    options.check_effort(effort, [] if method is None else [method])
    if method is not None:
        vt.method(method)
    place = out or Path(f"{disk.safe_name(image.stem)}-why.html")
    options.check_page(place, overwrite)
    files = vt.image_files(image)
    if len(files) != 1:
        raise VitreousError(f"why takes one picture, {image} has {len(files)}")
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, names, device, dtype, quiet, prompt)
    typed = shlex.join(["vitreous", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitreous", "__main__") else None
    found = vt.why(view, files[0], target, effort=effort, method=method, seed=seed, memory=memory, command=typed)
    saved = found.save(place, overwrite=overwrite)
    if not quiet:
        options.say(str(found))
        options.say(f"the page is {saved}")
