"""``vitreous explore``: a page on this machine to look at explanations and benchmark runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitreous.cli import options
from vitreous.cli.options import ModelOptions, with_options
from vitreous.errors import VitreousError

_MODELS = ("world", "world-shortcut", "world-cnn", "world-cnn-shortcut")


@with_options()
def explore(
    runs: Annotated[
        list[Path] | None,
        Argument(metavar="[RUN_FOLDER]...", help="Folders of benchmark runs to look at.", show_default=False),
    ] = None,
    model: Annotated[
        list[str] | None,
        Option("--model", "-m", help="A model; may be repeated.", show_default=", ".join(_MODELS)),
    ] = None,
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any that is free.")] = 8017,
    host: Annotated[
        str, Option(help="Where to listen; elsewhere than on this machine a token is asked for.")
    ] = "127.0.0.1",
    no_browser: Annotated[bool, Option("--no-browser", help="Only print the address.")] = False,
    data: Annotated[
        list[str] | None, Option(help="Where the images of the runs are; LABEL=PATH, repeated, if there are several.")
    ] = None,
    memory_gb: options.MemoryGb = None,
    quiet: options.Quiet = False,
    *,
    model_options: ModelOptions,
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

    options.switch_cache_off(True)  # what is learnt about a model is not to outlive the explorer
    names = list(dict.fromkeys(model or _MODELS))
    chosen = {name: value for name, value in model_options.chosen().items() if name != "device"}
    load_options = {name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()}
    if len(names) > 1 and (specific := set(load_options) - {"dtype", "pretrained"}):
        name = min(specific).replace("_", "-").replace("prompts", "prompt")
        raise VitreousError(f"--{name} is for one model; give one --model with it")
    folders, paths, socket = named_runs(runs or []), options.read_data_paths(data), listen(host, port)
    models = {name: model_options.load(name, quiet) for name in names}
    server = Server(socket, host, models, folders, memory_gb, load_options, paths)
    options.say(f"the explorer is at {server.address}")
    if not quiet:
        options.say("Ctrl-C stops it")
    if not no_browser:
        server.open()
    try:
        server.run()
    finally:
        if not server.explorer.close():  # a pass is under way that nobody waits for
            options.print_line("", "stopped")
            os._exit(130)
