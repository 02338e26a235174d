"""``vitreous doctor``."""

from __future__ import annotations

from typing import Annotated, Optional

import typer
from rich.text import Text

from vitreous.cli import options
from vitreous.errors import VitreousError

__all__ = ["doctor"]

_STYLES = {"ok": "green", "failed": "bold red", "-": "dim"}


def doctor(
    word: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="MODEL", help="A name such as timm/vit_base_patch16_224.", show_default=False),
    ] = None,
    model: options.NamedModel = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    names: options.Names = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Examine a model: is it seen right, and which methods apply? Exit code 1 if a check fails.

    The checks need no particular weights: --no-pretrained examines the architecture without fetching any.
    """
    import vitreous as vt

    model, more = options.model_first(model, [] if word is None else [word])
    if more:
        raise VitreousError(f"there are two models: {more[0]} and --model {model}")
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, names, device, dtype, quiet, prompt)
    diagnosis = vt.doctor(view, seed=seed)
    if as_json:
        options.print_json({"schema": "vitreous.doctor/1", **diagnosis.to_json()})
    elif not quiet:
        table = options.table("check", "", "")
        for check in diagnosis.checks:
            table.add_row(check.name, Text(check.verdict, style=_STYLES[check.verdict]), Text(check.sentence))
        options.say(table)
        options.say("")
        table = options.table("method", "", "")
        for check in diagnosis.methods:
            verdict = {"ok": "applies", "failed": "no"}.get(check.verdict, check.verdict)
            table.add_row(check.name, Text(verdict, style=_STYLES[check.verdict]), Text(check.sentence))
        options.say(table)
        options.say(diagnosis.verdict)
    if not diagnosis.healthy:
        raise typer.Exit(1)
