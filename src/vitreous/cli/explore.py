"""``vitreous explore``: a page on this machine to look at explanations and benchmark runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from vitreous.cli import options
from vitreous.errors import VitreousError

__all__ = ["explore"]

_MODELS = ("world", "world-shortcut")


def explore(
    runs: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Argument(metavar="[RUN_FOLDER]...", help="Folders of benchmark runs to look at.", show_default=False),
    ] = None,
    model: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--model", "-m", help="A model; may be repeated.", show_default=", ".join(_MODELS)),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8017,
    host: Annotated[str, typer.Option(help="Where to listen; elsewhere than on this machine a token is asked for.")] = (
        "127.0.0.1"
    ),
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    names: options.Names = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    memory: options.Memory = 1.0,
    quiet: options.Quiet = False,
) -> None:
    """Open a page on this machine to look at explanations, and at benchmark runs.

    It listens on this machine alone unless told otherwise, reads no folder but those given here, and keeps nothing:
    what was uploaded or made is gone when it stops. Ctrl-C stops it.
    """
    try:
        import uvicorn  # noqa: F401

        from vitreous.explorer.serve import Server, named_runs
    except ImportError as error:
        if error.name not in ("fastapi", "uvicorn"):
            raise
        raise VitreousError(f"the explorer needs {error.name}: pip install 'vitreous[web]'") from None
    options.caching(True)  # what a method learns about a model is not to outlive the explorer
    found = named_runs(runs or [])
    how = checkpoint, pretrained, img_size, num_classes, names, device, dtype, quiet, prompt
    models = {name: options.load(name, *how) for name in dict.fromkeys(model or _MODELS)}
    server = Server(models, found, host, port, memory)
    options.say(f"the explorer is at {server.address}")
    if not quiet:
        options.say("Ctrl-C stops it")
    if not no_browser:
        server.open()
    try:
        server.run()
    finally:
        ended = server.explorer.close()
    if not ended:
        os._exit(130)
