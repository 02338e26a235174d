"""``vitreous trial``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vitreous.cli import options

__all__ = ["trial"]


def trial(
    metric: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="A spelling such as insertion; may be repeated.", show_default="all metrics"),
    ] = None,
    scenes: Annotated[int, typer.Option(min=2, help="How many scenes of the test split; 500 for a verdict.")] = 24,
    seeds: Annotated[int, typer.Option(min=1, help="Runs that differ in ties, masks and noise.")] = 2,
    substrates: Annotated[int, typer.Option(min=0, help="Further substrates for metrics that have one.")] = 2,
    model: Annotated[
        str, typer.Option("--model", "-m", help="world or world-cnn; those that cheat end in -shortcut.")
    ] = "world",
    shortcut: Annotated[bool, typer.Option("--shortcut", help="Scenes with a marker that betrays the class.")] = False,
    value: Annotated[str, typer.Option(help="What the oracle measures the loss of: logit or prob.")] = "logit",
    out: Annotated[Optional[Path], typer.Option(help="Write the trial as .json.")] = None,  # noqa: UP045
    half: Annotated[bool, typer.Option(help="Half precision.")] = False,
    batch_size: options.BatchSize = None,
    device: options.Device = "auto",
    memory: options.Memory = None,
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
        vt.metric(each)
    options.check_out(out, overwrite, ".json")
    with options.telling(quiet or as_json), options.progress_bar("states", quiet or as_json) as bar:
        found = vt.trial(
            metrics,
            model=model,
            scenes=scenes,
            seeds=seeds,
            substrates=substrates,
            shortcut=shortcut,
            value=value,
            device=device,
            batch=batch_size,
            memory=memory,
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
