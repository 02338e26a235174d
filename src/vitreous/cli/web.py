"""``vitreous explore``: a page on this machine to look at explanations and benchmark runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from vitreous.cli import options
from vitreous.errors import VitreousError

__all__ = ["explore"]

_MODELS = ("world", "world-shortcut", "world-cnn", "world-cnn-shortcut")
_Several = Optional[list[str]]  # noqa: UP045


def explore(
    runs: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Argument(metavar="[RUN_FOLDER]...", help="Folders of benchmark runs to look at.", show_default=False),
    ] = None,
    model: Annotated[
        _Several, typer.Option("--model", "-m", help="A model; may be repeated.", show_default=", ".join(_MODELS))
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8017,
    host: Annotated[
        str, typer.Option(help="Where to listen; elsewhere than on this machine a token is asked for.")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    data: Annotated[
        _Several, typer.Option(help="Where the pictures of the runs are; LABEL=PATH, repeated, if there are several.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    class_names: options.ClassNames = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    memory_gb: options.MemoryGb = None,
    quiet: options.Quiet = False,
) -> None:
    """Open a page on this machine to look at explanations, and at benchmark runs.

    It listens on this machine alone unless told otherwise, reads no folder but those given here, and keeps nothing:
    what was uploaded or made is gone when it stops. Ctrl-C stops it.
    """
    try:
        from vitreous.web.serve import Server, listen, named_runs
    except ImportError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise VitreousError(f"the explorer needs {error.name}: pip install 'vitreous[web]'") from None
    options.caching(True)  # what is learnt about a model is not to outlive the explorer
    wanted = list(dict.fromkeys(model or _MODELS))
    given = {
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "pretrained": None if pretrained else False,
        "img_size": img_size,
        "num_classes": num_classes,
        "class_names": None if class_names is None else str(class_names),
        "prompts": prompt or None,
        "dtype": None if dtype == "float32" else dtype,
    }
    own = {name: value for name, value in given.items() if value is not None}
    if len(wanted) > 1 and (several := set(own) - {"dtype", "pretrained"}):
        raise VitreousError(f"--{min(several).replace('_', '-')} is for one model; give one --model with it")
    found, places, socket = named_runs(runs or []), options.places(data), listen(host, port)
    how = checkpoint, pretrained, img_size, num_classes, class_names, device, dtype, quiet, prompt
    models = {name: options.load(name, *how) for name in wanted}
    server = Server(socket, host, models, found, memory_gb, own, places)
    options.say(f"the explorer is at {server.address}")
    if not quiet:
        options.say("Ctrl-C stops it")
    if not no_browser:
        server.open()
    try:
        server.run()
    finally:
        if not server.explorer.close():  # a pass is under way that nobody waits for
            options.ERR.print("vitreous: stopped", markup=False)
            os._exit(130)
