"""``vitreous stats``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from vitreous.cli import options
from vitreous.errors import VitreousError

__all__ = ["stats"]


def stats(
    words: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[MODEL] IMAGES", help="A model, and pictures or folders of them.", show_default=False),
    ] = None,
    model: options.NamedModel = None,
    out: Annotated[Path, typer.Option(help="The file that is written.")] = Path("statistics.safetensors"),
    noise: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, max=1_000_000, help="Take so many images of uniform noise instead of pictures."),
    ] = None,
    checkpoint: options.Checkpoint = None,
    pretrained: options.Pretrained = True,
    img_size: options.ImgSize = None,
    num_classes: options.NumClasses = None,
    prompt: options.Prompts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    batch_size: options.BatchSize = None,
    memory: options.Memory = None,
    seed: options.Seed = 0,
    overwrite: options.Overwrite = False,
    resume: Annotated[bool, typer.Option(help="Go on where an earlier run over the same pictures stopped.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write down what a model's activations are usually like: the noise of coiba and iba is drawn from it.

    Ten photographs are nearly enough, two hundred are plenty. A picture that cannot be read is named and skipped, and
    the exit code is 1.
    """
    import vitreous as vt

    model, images = options.model_first(model, words or [])
    if options.is_there(out) and not overwrite and not resume:
        raise VitreousError(f"{out} is there already; choose another --out, or add --overwrite or --resume")
    files = [each for path in images for each in vt.image_files(path)] or None
    if (files is None) == (noise is None):
        raise VitreousError("give either pictures or --noise N")
    view = options.load(model, checkpoint, pretrained, img_size, num_classes, None, device, dtype, quiet, prompt)
    with options.progress_bar("statistics", quiet or as_json) as bar:
        written = vt.statistics(
            view,
            files,
            noise=noise,
            out=out,
            overwrite=overwrite,
            resume=resume,
            seed=seed,
            batch_size=batch_size,
            memory=memory,
            progress=bar,
            on_error=options.skipped,
        )
    facts = {"model": written.model, "input_size": list(written.size), "source": written.told, "file": str(out)}
    if as_json:
        options.print_json({"schema": "vitreous.statistics/1", **facts})
    elif not quiet:
        options.say(f"{written.told} at {written.size[0]} x {written.size[1]} in {written.model}, written to {out}")
    if written.count < written.taken:
        raise typer.Exit(1)
