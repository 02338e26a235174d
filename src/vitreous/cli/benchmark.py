"""``vitreous bench``: run a protocol, see how far it is, list those that come along.

``vitreous bench report`` and ``vitreous reproduce``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from vitreous.cli import options
from vitreous.errors import VitreousError, one_line

if TYPE_CHECKING:
    from vitreous.benchmark.data import Options
    from vitreous.benchmark.protocol import Protocol
    from vitreous.benchmark.report import Report
    from vitreous.benchmark.store import Status

__all__ = [
    "app",
    "report",
    "reproduce",
]

app = typer.Typer(
    help="Many images, methods and metrics by one small file: run, resume, extend, report.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_EVERY = 15.0  # seconds between two lines where there is no terminal for a bar
_SHOWN = 20  # names of pictures and units that status lists
_Several = Optional[list[str]]  # noqa: UP045
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]


@app.callback(invoke_without_command=True)
def _bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_() -> None:
    """List the protocols that come along, and what each needs."""
    from vitreous.benchmark.protocol import read, shipped

    table = options.table("protocol", "pictures", "needs", "title")
    for name in shipped():
        known = read(name)
        data = known.data
        many = f"{data.source}{f' ({data.images})' if data.images else ''}"
        table.add_row(name, many, ", ".join(known.missing), known.title)
    options.say(table)


@app.command()
def run(
    protocol: Annotated[str, typer.Argument(help="A name of `vitreous bench list`, or a TOML file.")],
    out: Annotated[Path, typer.Option(help="The folder of the run; one that is there is resumed or extended.")],
    data: Annotated[
        _Several, typer.Option(help="Where the pictures are; LABEL=PATH, repeated, if there are several data sets.")
    ] = None,
    model: Annotated[
        _Several,
        typer.Option(
            "--model",
            "-m",
            help="Another model instead of the run's; +NAME adds one, -NAME removes one. May be repeated.",
        ),
    ] = None,
    img_size: options.ImgSize = None,
    method: Annotated[
        _Several,
        typer.Option(
            help="Only these rows: a label of the protocol, a spelling, a folder of maps or package.module:callable. "
            "+NAME adds a row to those that the run has, --method=-NAME removes one. May be repeated."
        ),
    ] = None,
    metric: Annotated[
        _Several,
        typer.Option(
            help="Only these metrics; +NAME adds one to those of the run, -NAME removes one. May be repeated."
        ),
    ] = None,
    images: Annotated[Optional[int], typer.Option(min=1, help="How many pictures.")] = None,  # noqa: UP045
    seed: Annotated[
        _Several,
        typer.Option(help="Only these seeds; +N adds one to those of the run, -N removes one. May be repeated."),
    ] = None,
    checkpoint: Annotated[_Several, typer.Option(help="LABEL=FILE: weights of a model; may be repeated.")] = None,
    device: options.Device = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each worker, part of the plan.")] = 1,
    precision: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of perturbed images on a GPU: float32, float16 or bfloat16.", show_default="the protocol's"),
    ] = None,
    memory_gb: options.MemoryGb = None,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Processes, or actors.", show_default="one per GPU, or per core up to 8"),
    ] = None,
    shard: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="I/N", help="Only part I of N, counted from 1: one for each job of a cluster."),
    ] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The Ray cluster to use, with --engine ray.", show_default="one of this machine"),
    ] = None,
    wait: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long to wait for a first worker of a cluster without room, with --engine ray.",
            show_default="600",
        ),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Run a protocol, go on where it stopped, or add what is new in it.

    Ctrl-C loses the units in flight and nothing else; the same command goes on. Several runs may share a folder. A run
    keeps what it has: methods, metrics, seeds, models, pictures. A plain list replaces what was there.
    """
    part = _shard(shard)
    places = options.places(data)
    from vitreous.benchmark.changes import Changes, apply_changes, refuse_unnamed_code, resume_protocol
    from vitreous.benchmark.data import Options, check_labels
    from vitreous.benchmark.executors import EXECUTORS
    from vitreous.benchmark.executors import run as work
    from vitreous.benchmark.run import BenchmarkRun
    from vitreous.benchmark.store import Store
    from vitreous.registry import check_choice

    check_choice("engine", engine, EXECUTORS)
    how = Options(
        data=places,
        device=device,
        threads=threads,
        memory_gb=memory_gb,
        images=images,
        checkpoint=options.pairs(checkpoint, "checkpoint"),
    )
    named, manifest = _read(protocol), Store(out).manifest()
    seen: Mapping[str, Any] = {} if manifest is None else manifest["wanted"]
    start, told = resume_protocol(named, seen or None)
    changes = Changes(method or (), metric or (), seed or (), model or (), img_size, precision)
    changed, dropped = apply_changes(start, changes, named, Store(out).plans())
    refuse_unnamed_code(changed, named, changes)
    check_labels(how, [changed, named])
    if seen:
        how, fewer = _resumed(how, seen)
        told += [*dropped, *fewer]
    bench = BenchmarkRun(changed, out, how, named=named, previous=seen)
    for line in () if quiet else told:
        options.say(line)
    with options.telling(quiet):
        bench.prepare()
        with _progress(quiet) as progress:
            work(bench, engine, workers=workers, shard=part, address=address, progress=progress, wait=wait)
    if not quiet:
        _end(bench.store, out)


@app.command()
def status(folder: _Folder, as_json: options.AsJson = False) -> None:
    """Say how far a run is, what went wrong, and how long the rest will take."""
    from vitreous.benchmark.store import Store
    from vitreous.benchmark.store import status as read_status

    found = read_status(Store.open(folder))
    if as_json:
        options.print_json(found.to_json())
    else:
        _show(found)


@app.command()
def pack(
    folder: _Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, such as run.zip.")],
    maps: Annotated[bool, typer.Option(help="With the maps; without them it is small.")] = True,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a run into one file, to report it, or go on with it, on another machine."""
    from vitreous.benchmark.pack import pack as write

    written = write(folder, file, maps=maps, overwrite=overwrite)
    options.say(f"{folder} is packed in {written}, {written.stat().st_size / 2**20:.1f} MiB")


@app.command()
def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A packed run.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put it: a new folder, or the same run.")],
) -> None:
    """Put a packed run into a folder; units that the same run already has there stay."""
    from vitreous.benchmark.pack import unpack as put
    from vitreous.benchmark.store import status as read_status

    found = read_status(put(file, folder))
    options.say(f"{found.protocol}: {found.done} of {found.total} units are done in {folder}")


def _show(found: Status) -> None:
    from vitreous.progress import duration_in_words

    table = options.table("model", "done", "left")
    for label, (done, total) in found.models.items():
        table.add_row(label, str(done), str(total - done))
    options.say(f"{found.protocol}: {found.done} of {found.total} units are done")
    options.say(table)
    options.say(f"{duration_in_words(found.seconds)} of work so far, {found.size / 2**20:.1f} MiB on disk")
    if found.done < found.total:
        told = "not known yet" if found.left is None else f"about {duration_in_words(found.left)} for one worker"
        options.say(f"time left: {told}")
    for revision, why in found.revisions.items():
        options.say(f"plan {revision}: {why}")
    if len(found.versions) > 1:
        told = ", ".join(f"{count} of Vitreous {version}" for version, count in found.versions.items())
        options.say(f"units are from several versions: {told}")
    for words, names in _left_out(found):
        _list(f"{words}:", names)
    _list(
        f"{len(found.failures)} units failed at first or were lost with their worker:",
        {unit: f"{len(tries)} times, at last: {tries[-1]}" for unit, tries in found.failures.items()},
    )
    _list(f"{len(found.damaged)} unit files are damaged, and will be made again:", dict.fromkeys(found.damaged, ""))


def _list(title: str, lines: dict[str, str] | Any) -> None:
    if not lines:
        return
    options.say(title)
    for name, why in list(lines.items())[:_SHOWN]:
        options.say(f"  {name}: {why}" if why else f"  {name}")
    if len(lines) > _SHOWN:
        options.say(f"  and {len(lines) - _SHOWN} more; --json has them all")


def _left_out(found: Status) -> list[tuple[str, Mapping[str, str]]]:
    """Return which pictures do not count, and why, in words; nothing where all do."""
    told = [
        ("pictures cannot be read and are left out", found.unreadable),
        ("pictures are left out since the model gives their class too little", found.uncertain),
    ]
    told += [
        (f"pictures have no map of {one_line(name)}, which failed on them", why) for name, why in found.failed.items()
    ]
    return [(f"{len(names)} {words}", names) for words, names in told if names]


def _end(store: Any, out: Path) -> None:
    from vitreous.benchmark.store import status as read_status

    found = read_status(store)
    for words, names in _left_out(found):
        some = ", ".join(map(one_line, list(names)[:3]))
        options.say(f"{words}: {some}{', …' if len(names) > 3 else ''}")
    for revision, why in found.revisions.items():
        if revision > 1:
            options.say(f"plan {revision}: {why}")
    left = found.total - found.done
    rest = f"; {left} are left to other processes or to the next run" if left else ""
    options.say(f"{found.done} of {found.total} units are done in {out}{rest}")


def _read(name: str) -> Protocol:
    """Read a protocol; the files that it names are found wherever its run is resumed."""
    from vitreous.benchmark.protocol import read

    known = read(name)

    def found(data: Any) -> Any:
        paths = {key: getattr(data, key) for key in ("path", "names")}
        return dataclasses.replace(data, **{key: path and options.place(path) for key, path in paths.items()})

    models = [
        dataclasses.replace(model, checkpoint=model.checkpoint and options.place(model.checkpoint))
        for model in known.models
    ]
    return dataclasses.replace(known, data=found(known.data), also=tuple(map(found, known.also)), models=tuple(models))


def _resumed(given: Options, wanted: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """Return where pictures and weights are and how many pictures: what is not given is as the run has it."""
    data, known = given.data, wanted.get("data")
    if isinstance(data, dict) and isinstance(known, dict):
        data = {**known, **data}
    images, before = given.images, wanted.get("images")
    fewer = images is not None and before is not None and images < before
    told = [f"pictures dropped: {images} instead of {before}"] if fewer else []
    resumed = dataclasses.replace(
        given,
        data=known if data is None else data,
        images=before if images is None else images,
        checkpoint={**(wanted.get("checkpoint") or {}), **(given.checkpoint or {})},
    )
    return resumed, told


def _shard(given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    part, _, of = given.partition("/")
    if not (part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        raise VitreousError(f"--shard {given} is no part such as 2/8")
    return int(part) - 1, int(of)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """Give a callback that draws a bar, or writes a line from time to time where there is no terminal."""
    if quiet or options.ERR.is_terminal:
        with options.progress_bar("units", quiet) as on_progress:
            yield on_progress
        return
    from vitreous.progress import Pace

    pace, told = Pace(), [time.monotonic() - _EVERY]

    def line(done: float, total: int | None) -> None:
        text = pace.line(done, total)
        if time.monotonic() - told[0] >= _EVERY:
            told[0] = time.monotonic()
            options.ERR.print(f"vitreous: {text}", markup=False, emoji=False, soft_wrap=True)

    yield line


_Reference = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="The row that others are tested against.", show_default="the protocol's"),
]
_Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


@app.command()
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
    from vitreous.benchmark.report import report as write

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
    memory_gb: options.MemoryGb = None,
    workers: Annotated[Optional[int], typer.Option(min=1, help="Processes.")] = None,  # noqa: UP045
    reference: _Reference = None,
    open_it: _Open = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a paper's table and set every printed cell beside ours, with the named causes of a deviation.

    The same as `bench run` and `bench report`: it goes on where it stopped.
    """
    from vitreous.benchmark.protocol import read
    from vitreous.benchmark.report import report as write

    known = read(protocol)
    if not known.cells:
        told = f"; run it with `vitreous bench run {protocol}`"
        raise VitreousError(f"{known.name} carries no printed numbers to set ours beside{told}")
    folder = Path("runs") / known.name if out is None else out
    run(
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
        memory_gb=memory_gb,
        workers=workers,
        quiet=quiet,
    )
    with options.telling(quiet):
        written = write(folder, reference=reference)
    _tell(written, open_it, quiet)


def _tell(written: Report, open_it: bool, quiet: bool) -> None:
    if not quiet:
        options.say(" ".join(filter(None, (written.lead, written.state))))
        for finding in written.results:
            if not finding.is_empty:
                options.say(finding.name)
                options.say(str(finding.table))
        if written.reproduction is not None:
            options.say(written.reproduction.summary)
        for note in written.notes:
            options.say(note)
        options.say(f"report in {written.page}")
    if open_it:
        typer.launch(str(written.page))
