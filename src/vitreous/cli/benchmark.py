"""``vitreous bench``: run a protocol, see how far it is, pack and report it; and ``vitreous reproduce``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from vitreous.cli import options
from vitreous.cli.options import OptionGroup, with_options
from vitreous.errors import VitreousError, one_line

if TYPE_CHECKING:
    from vitreous.benchmark.data import Options
    from vitreous.benchmark.protocol import Protocol
    from vitreous.benchmark.report import Report
    from vitreous.benchmark.store import Status

app = typer.Typer(
    help="Many images, methods and metrics by one small file: run, resume, extend, report.", **options.TYPER
)
_INTERVAL = 15.0  # seconds between two lines where there is no terminal for a bar
_MAX_LISTED = 20  # names of images and units that status lists
_ProtocolName = Annotated[str, Argument(help="A name of `vitreous bench list`, or a TOML file.")]
_Folder = Annotated[Path, Argument(metavar="DIR", help="The folder of a run.")]
_Reference = Annotated[
    str | None, Option(help="The row that others are tested against.", show_default="the protocol's")
]
_Open = Annotated[bool, Option("--open", help="Open the page in a browser.")]


@dataclass(frozen=True)
class _RunOptions(OptionGroup):
    """Where a run has its images and weights, and what it runs on."""

    data: Annotated[
        list[str] | None, Option(help="Where the images are; LABEL=PATH, repeated, if there are several data sets.")
    ] = None
    images: Annotated[int | None, Option(min=1, help="How many images.")] = None
    checkpoint: Annotated[list[str] | None, Option(help="LABEL=FILE: weights of a model; may be repeated.")] = None
    img_size: options.ImgSize = None
    precision: Annotated[
        str | None,
        Option(help="Of perturbed images on a GPU: float32, float16 or bfloat16.", show_default="the protocol's"),
    ] = None
    device: options.Device = "auto"
    threads: Annotated[int, Option(min=1, help="Threads of each worker, part of the plan.")] = 1
    memory_gb: options.MemoryGb = None
    workers: Annotated[
        int | None, Option(min=1, help="Processes, or actors.", show_default="one per GPU, or per core up to 8")
    ] = None
    quiet: options.Quiet = False


_ROWS = "labels of the protocol, specs, folders of maps or package.module:callable"


def _editing(noun: str, *names: str) -> Any:
    """Return an option that edits a list of the run."""
    text = f"Only these {noun}; +NAME adds one to those of the run, -NAME (after a =) removes one. May be repeated."
    return Option(*names, help=text)


@app.callback(invoke_without_command=True)
def _bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("list")
def list_() -> None:
    """List the protocols that come along, and what each needs."""
    from vitreous.benchmark.protocol import read, shipped

    table = options.table("protocol", "images", "needs", "title")
    for protocol in map(read, shipped()):
        data = protocol.data
        source = f"{data.source} ({data.images})" if data.images else data.source
        table.add_row(protocol.name, source, ", ".join(protocol.missing), protocol.title)
    options.say(table)


@app.command()
@with_options()
def run(
    protocol: _ProtocolName,
    out: Annotated[Path, Option(help="The folder of the run; one that is there is resumed or extended.")],
    model: Annotated[list[str] | None, _editing("models", "--model", "-m")] = None,
    method: Annotated[list[str] | None, _editing(f"rows ({_ROWS})")] = None,
    metric: Annotated[list[str] | None, _editing("metrics")] = None,
    seed: Annotated[list[str] | None, _editing("seeds")] = None,
    shard: Annotated[
        str | None, Option(metavar="I/N", help="Only part I of N, counted from 1: one for each job of a cluster.")
    ] = None,
    engine: Annotated[str, Option(help="local or ray.")] = "local",
    address: Annotated[
        str | None, Option(help="The Ray cluster to use, with --engine ray.", show_default="one of this machine")
    ] = None,
    wait: Annotated[
        float | None,
        Option(min=0, help="Seconds to wait for a first worker of a full Ray cluster.", show_default="600"),
    ] = None,
    *,
    run_options: _RunOptions,
) -> None:
    """Run a protocol, go on where it stopped, or add what is new in it.

    Ctrl-C loses the units in flight and nothing else; the same command goes on. Several runs may share a folder. A run
    keeps what it has: methods, metrics, seeds, models, images. A plain list replaces what was there.
    """
    changes = {"models": model, "methods": method, "metrics": metric, "seeds": seed}
    _run(protocol, out, run_options, changes, engine=engine, shard=_read_shard(shard), address=address, wait=wait)


def _run(protocol: str, out: Path, run_options: _RunOptions, lists: Mapping[str, Any], **execution: Any) -> None:
    """Run a protocol with the ``lists`` that are to change."""
    paths = options.read_data_paths(run_options.data)
    from vitreous.benchmark.changes import Changes, apply_changes, refuse_unnamed_code, resume_protocol
    from vitreous.benchmark.data import Options, check_labels
    from vitreous.benchmark.executors import EXECUTORS
    from vitreous.benchmark.executors import run as execute
    from vitreous.benchmark.run import BenchmarkRun
    from vitreous.benchmark.store import Store
    from vitreous.registry import check_choice

    check_choice("engine", execution.get("engine", "local"), EXECUTORS)
    weights, quiet = options.read_pairs(run_options.checkpoint, "checkpoint"), run_options.quiet
    limits = run_options.threads, run_options.memory_gb, run_options.images
    settings = Options(paths, run_options.device, *limits, weights)
    named, previous = _read_protocol(protocol), Store(out).wanted
    start, notes = resume_protocol(named, previous or None)
    edits = {name: texts or () for name, texts in lists.items()}
    changes = Changes(**edits, size=run_options.img_size, precision=run_options.precision)
    changed, dropped = apply_changes(start, changes, named, Store(out).plans())
    refuse_unnamed_code(changed, named, changes)
    check_labels(settings, [changed, named])
    if previous:
        settings, fewer = _resume_options(settings, previous)
        notes += [*dropped, *fewer]
    benchmark = BenchmarkRun(changed, out, settings, named=named, previous=previous)
    for note in () if quiet else notes:
        options.say(note)
    with options.log_messages(quiet):
        benchmark.prepare()
        with _progress(quiet) as progress:
            execute(benchmark, workers=run_options.workers, progress=progress, **execution)
    if not quiet:
        _print_end(benchmark.store, out)


def _read_protocol(name: str) -> Protocol:
    """Read a protocol; the files that it names are found wherever its run is resumed."""
    from vitreous.benchmark.protocol import read

    def resolve(record: Any, *keys: str) -> Any:
        paths = {key: value and options.resolve_path(value) for key in keys if (value := getattr(record, key))}
        return replace(record, **paths)

    protocol = read(name)
    also = tuple(resolve(data, "path", "names") for data in protocol.also)
    models = tuple(resolve(model, "checkpoint") for model in protocol.models)
    return replace(protocol, data=resolve(protocol.data, "path", "names"), also=also, models=models)


def _resume_options(settings: Options, previous: Mapping[str, Any]) -> tuple[Options, list[str]]:
    """Return where images and weights are and how many images: what is not given is as the run has it."""
    data, before = settings.data, previous.get("data")
    if isinstance(data, dict) and isinstance(before, dict):
        data = {**before, **data}
    images, images_before = settings.images, previous.get("images")
    is_fewer = images is not None and images_before is not None and images < images_before
    resumed = replace(
        settings,
        data=before if data is None else data,
        images=images_before if images is None else images,
        checkpoint={**(previous.get("checkpoint") or {}), **(settings.checkpoint or {})},
    )
    return resumed, [f"images dropped: {images} instead of {images_before}"] if is_fewer else []


def _read_shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    part, _, count = text.partition("/")
    if not (part.isdecimal() and count.isdecimal() and 1 <= int(part) <= int(count)):
        raise VitreousError(f"--shard {text} is no part such as 2/8")
    return int(part) - 1, int(count)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """Give a callback that draws a bar, or writes a line from time to time where there is no terminal."""
    if quiet or options.STDERR.is_terminal:
        with options.progress_bar("units", quiet) as on_progress:
            yield on_progress
        return
    from vitreous.progress import Pace

    pace, last = Pace(), time.monotonic() - _INTERVAL

    def print_pace(done: float, total: int | None) -> None:
        nonlocal last
        text = pace.line(done, total)
        if time.monotonic() - last >= _INTERVAL:
            last = time.monotonic()
            options.print_line("", text)

    yield print_pace


@app.command()
def status(folder: _Folder, as_json: options.AsJson = False) -> None:
    """Say how far a run is, what went wrong, and how long the rest will take."""
    from vitreous.benchmark.store import Store
    from vitreous.benchmark.store import status as read_status

    state = read_status(Store.open(folder))
    if as_json:
        options.print_json(state.to_json())
    else:
        _print_status(state)


@app.command()
def pack(
    folder: _Folder,
    file: Annotated[Path, Argument(metavar="FILE", help="The file to write, such as run.zip.")],
    maps: Annotated[bool, Option(help="With the maps; without them it is small.")] = True,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a run into one file, to report it, or go on with it, on another machine."""
    from vitreous.benchmark.pack import pack as write

    path = write(folder, file, maps=maps, overwrite=overwrite)
    options.say(f"{folder} is packed in {path}, {path.stat().st_size / 2**20:.1f} MiB")


@app.command()
def unpack(
    file: Annotated[Path, Argument(metavar="FILE", help="A packed run.")],
    folder: Annotated[Path, Argument(metavar="DIR", help="Where to put it: a new folder, or the same run.")],
) -> None:
    """Put a packed run into a folder; units that the same run already has there stay."""
    from vitreous.benchmark.pack import unpack as extract
    from vitreous.benchmark.store import status as read_status

    state = read_status(extract(file, folder))
    options.say(f"{state.protocol}: {state.done} of {state.total} units are done in {folder}")


def _print_status(state: Status) -> None:
    from vitreous.progress import duration_in_words

    table = options.table("model", "done", "left")
    for label, (done, total) in state.models.items():
        table.add_row(label, str(done), str(total - done))
    options.say(f"{state.protocol}: {state.done} of {state.total} units are done")
    options.say(table)
    options.say(f"{duration_in_words(state.seconds)} of work so far, {state.size / 2**20:.1f} MiB on disk")
    if state.done < state.total:
        left = "not known yet" if state.left is None else f"about {duration_in_words(state.left)} for one worker"
        options.say(f"time left: {left}")
    for revision, why in state.revisions.items():
        options.say(f"plan {revision}: {why}")
    if len(state.versions) > 1:
        versions = ", ".join(f"{count} of Vitreous {version}" for version, count in state.versions.items())
        options.say(f"units are from several versions: {versions}")
    for title, names in _left_out(state):
        _print_list(f"{title}:", names)
    failures = {unit: f"{len(tries)} times, at last: {tries[-1]}" for unit, tries in state.failures.items()}
    _print_list(f"{len(failures)} units failed at first or were lost with their worker:", failures)
    damaged = dict.fromkeys(state.damaged, "")
    _print_list(f"{len(damaged)} unit files are damaged, and will be made again:", damaged)


def _print_list(title: str, lines: Mapping[str, str]) -> None:
    if not lines:
        return
    options.say(title)
    for name, why in list(lines.items())[:_MAX_LISTED]:
        options.say(f"  {name}: {why}" if why else f"  {name}")
    if len(lines) > _MAX_LISTED:
        options.say(f"  and {len(lines) - _MAX_LISTED} more; --json has them all")


def _left_out(state: Status) -> list[tuple[str, Mapping[str, str]]]:
    """Return which images do not count, and why, in words; nothing where all do."""
    groups: list[tuple[str, Mapping[str, str]]] = [
        ("images cannot be read and are left out", state.unreadable),
        ("images are left out since the model gives their class too little", state.uncertain),
        *((f"images have no map of {one_line(name)}, which failed on them", why) for name, why in state.failed.items()),
    ]
    return [(f"{len(names)} {title}", names) for title, names in groups if names]


def _print_end(store: Any, out: Path) -> None:
    from vitreous.benchmark.store import status as read_status

    state = read_status(store)
    for title, names in _left_out(state):
        first = ", ".join(map(one_line, list(names)[:3]))
        options.say(f"{title}: {first}{', …' if len(names) > 3 else ''}")
    for revision, why in state.revisions.items():
        if revision > 1:
            options.say(f"plan {revision}: {why}")
    left = state.total - state.done
    note = f"; {left} are left to other processes or to the next run" if left else ""
    options.say(f"{state.done} of {state.total} units are done in {out}{note}")


@app.command()
def report(
    folder: Annotated[Path, Argument(metavar="DIR", help="The folder of a run, finished or not.")],
    out: Annotated[
        Path | None, Option(help="Where to write the report; one of ours is replaced.", show_default="DIR/report")
    ] = None,
    reference: _Reference = None,
    data: Annotated[str | None, Option(help="Where the images are now, if not where the run had them.")] = None,
    open_it: _Open = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn what a run has so far into one page and its tables.

    Means with intervals, tests, ranks, curves, costs, best and worst images, settings; as HTML, CSV, Markdown, LaTeX
    and Parquet. Of an unfinished run it shows what is there, and says how much is missing.
    """
    from vitreous.benchmark.report import report as write

    with options.log_messages(quiet):
        written = write(folder, out, reference=reference, data=data)
    _print_report(written, open_it, quiet)


@with_options()
def reproduce(
    protocol: _ProtocolName,
    out: Annotated[Path | None, Option(help="The folder of the run.", show_default="runs/PROTOCOL")] = None,
    model: options.NamedModel = None,
    method: Annotated[list[str] | None, Option(help="Only these rows of the paper; may be repeated.")] = None,
    reference: _Reference = None,
    open_it: _Open = False,
    *,
    run_options: _RunOptions,
) -> None:
    """Run a paper's table and set every printed cell beside ours, with the named causes of a deviation.

    The same as `bench run` and `bench report`: it goes on where it stopped.
    """
    from vitreous.benchmark.protocol import read
    from vitreous.benchmark.report import report as write

    read_protocol = read(protocol)
    if not read_protocol.cells:
        advice = f"; run it with `vitreous bench run {protocol}`"
        raise VitreousError(f"{read_protocol.name} carries no printed numbers to set ours beside{advice}")
    folder = Path("runs") / read_protocol.name if out is None else out
    _run(protocol, folder, run_options, {"models": model and [model], "methods": method})
    with options.log_messages(run_options.quiet):
        written = write(folder, reference=reference)
    _print_report(written, open_it, run_options.quiet)


def _print_report(written: Report, open_it: bool, quiet: bool) -> None:
    if not quiet:
        lines = [" ".join(filter(None, (written.lead, written.state)))]
        for results in written.results:
            if not results.is_empty:
                lines += [results.name, str(results.table)]
        if written.reproduction is not None:
            lines.append(written.reproduction.summary)
        for line in (*lines, *written.notes, f"report in {written.page}"):
            options.say(line)
    if open_it:
        typer.launch(str(written.page))
