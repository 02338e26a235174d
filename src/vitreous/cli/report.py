"""``vitreous bench report`` and ``vitreous reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from vitreous.cli import bench, options
from vitreous.errors import VitreousError

if TYPE_CHECKING:
    from vitreous.bench.report import Report

__all__ = ["report", "reproduce"]

_Several = Optional[list[str]]  # noqa: UP045
_Reference = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="The row that others are tested against.", show_default="the protocol's"),
]
_Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run, finished or not.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Where to write the report; one of ours is replaced.", show_default="DIR/report"),
    ] = None,
    reference: _Reference = None,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Where the pictures are now, if not where the run had them."),
    ] = None,
    open_it: _Open = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn what a run has found so far into one page and its tables.

    Means with intervals, tests, ranks, curves, costs, best and worst pictures, settings; as HTML, CSV, Markdown, LaTeX
    and Parquet. Of an unfinished run it shows what is there, and says how much is missing.
    """
    from vitreous.bench.report import report as write

    with options.telling(quiet):
        written = write(folder, out, reference=reference, data=data)
    _tell(written, open_it, quiet)


def reproduce(
    protocol: Annotated[str, typer.Argument(help="A name of `vitreous bench list`, or a TOML file.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The folder of the run.", show_default="runs/PROTOCOL"),
    ] = None,
    data: Annotated[
        _Several, typer.Option(help="Where the pictures are; LABEL=PATH, repeated, if there are several data sets.")
    ] = None,
    model: options.NamedModel = None,
    img_size: options.ImgSize = None,
    method: Annotated[_Several, typer.Option(help="Only these rows of the paper; may be repeated.")] = None,
    images: Annotated[Optional[int], typer.Option(min=1, help="How many pictures.")] = None,  # noqa: UP045
    checkpoint: Annotated[_Several, typer.Option(help="LABEL=FILE: weights of a model; may be repeated.")] = None,
    device: options.Device = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker, part of the plan.")] = 1,
    precision: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of perturbed images on a GPU: float32, float16 or bfloat16.", show_default="the protocol's"),
    ] = None,
    memory: options.Memory = None,
    workers: Annotated[Optional[int], typer.Option(min=1, help="Processes.")] = None,  # noqa: UP045
    reference: _Reference = None,
    open_it: _Open = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a paper's table and set every printed cell beside ours, with the named causes of a deviation.

    The same as `bench run` and `bench report`: it goes on where it stopped.
    """
    from vitreous.bench.protocol import read
    from vitreous.bench.report import report as write

    known = read(protocol)
    if not known.cells:
        told = f"; run it with `vitreous bench run {protocol}`"
        raise VitreousError(f"{known.name} carries no printed numbers to set ours beside{told}")
    folder = Path("runs") / known.name if out is None else out
    bench.run(
        protocol,
        folder,
        data=data,
        model=[model] if model is not None else None,
        img_size=img_size,
        method=method,
        images=images,
        checkpoint=checkpoint,
        device=device,
        threads=threads,
        precision=precision,
        memory=memory,
        workers=workers,
        quiet=quiet,
    )
    with options.telling(quiet):
        written = write(folder, reference=reference)
    _tell(written, open_it, quiet)


def _tell(written: Report, open_it: bool, quiet: bool) -> None:
    if not quiet:
        options.say(" ".join(filter(None, (written.lead, written.state))))
        for each in written.findings:
            if not each.empty:
                options.say(each.name)
                options.say(str(each.table))
        if written.ledger is not None:
            options.say(written.ledger.summary)
        for note in written.notes:
            options.say(note)
        options.say(f"report in {written.page}")
    if open_it:
        typer.launch(str(written.page))
