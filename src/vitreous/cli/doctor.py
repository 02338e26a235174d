"""``vitreous doctor``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer
from rich.text import Text

from vitreous.cli import options

__all__ = ["doctor"]

_STYLES = {"ok": "green", "failed": "bold red", "-": "dim"}


def doctor(
    model: Annotated[str, typer.Argument(help="A name such as timm/vit_base_patch16_224.", show_default=False)],
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
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

    view = options.load(model, checkpoint, pretrained, img_size, num_classes, labels, device, dtype, quiet, prompt)
    diagnosis = vt.doctor(view, seed=seed)
    if as_json:
        options.print_json(
            {"schema": "vitreous.doctor/1", **dataclasses.asdict(diagnosis), "healthy": diagnosis.healthy}
        )
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
        options.say(f"{diagnosis.model}: {'healthy' if diagnosis.healthy else 'some checks failed'}")
    if not diagnosis.healthy:
        raise typer.Exit(1)
