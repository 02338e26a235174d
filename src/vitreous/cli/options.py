"""Options that several commands share, how they are read, and how results are printed."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import vitreous as vt
from vitreous import io as disk
from vitreous.errors import VitreousError, one_line
from vitreous.registry import check_choice, check_memory
from vitreous.registry.defaults import EFFORT_LEVELS
from vitreous.registry.spec import split_specs

TYPER: dict[str, Any] = {"rich_markup_mode": None, "context_settings": {"help_option_names": ["-h", "--help"]}}
"""How every group of commands prints its help."""
STDERR = Console(stderr=True, highlight=False)


def _checked_memory(memory_gb: float | None) -> float | None:
    check_memory(memory_gb)
    return memory_gb


def switch_cache_off(is_off: bool) -> None:
    """Look at and leave nothing in the cache folder for the rest of this process, if that was asked for."""
    if is_off:
        os.environ[disk.CACHE_VARIABLE] = ""


def _read_class_subset(text: str | None) -> list[str | int] | None:
    """Return the classes that the softmax is restricted to: separated by commas, or those of a file."""
    if text is None:
        return None
    path = Path(text)
    classes: Any = text.split(",")
    if path.suffix == ".json":
        classes = disk.read_json(path, what="class_subset ")
    elif path.suffix == ".txt":
        classes = disk.read_text(path, what="class_subset ").split("\n")
    if not isinstance(classes, list) or not all(isinstance(name, str | int) for name in classes):
        raise VitreousError(f"class_subset {text} must be a list of indices or labels")
    names = [name.strip() if isinstance(name, str) else name for name in classes]
    return [name for name in names if name != ""]


Model = Annotated[str, Option("--model", "-m", help="A name such as timm/vit_base_patch16_224.")]
NamedModel = Annotated[
    str | None, Option("--model", "-m", help="The model, if it does not stand first.", show_default=False)
]
ImgSize = Annotated[int | None, Option(min=1, help="Input size, if not the model's own.")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one.")]
Image = Annotated[Path, Argument(help="An image.", show_default=False)]
ModelAndImages = Argument(metavar="[MODEL] IMAGES", help="A model, and images or folders of them.", show_default=False)
Targets = Annotated[
    list[str] | None, Option("--target", help="Class index or label; may be repeated.", show_default="the prediction")
]
Effort = Annotated[
    str | None,
    Option(help=f"How much it may cost where no method is named: {', '.join(EFFORT_LEVELS)}.", show_default="quick"),
]
Controls = Annotated[bool, Option(help="Random, constant and centre maps for comparison.")]
MemoryGb = Annotated[float | None, Option(callback=_checked_memory, help="Memory budget in GiB.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON, and nothing else, on standard output.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print nothing but errors and warnings.")]
NoCache = Annotated[
    bool,
    Option("--no-cache", callback=switch_cache_off, help="Keep no statistics of models in the user's cache folder."),
]
Html = Annotated[Path | None, Option("--html", help="Also write a page to read, a .html file.", show_default=False)]
Overwrite = Annotated[bool, Option(help="Replace what is there already.")]


# -- options that belong together --------------------------------------------------------------------------


@dataclass(frozen=True)
class OptionGroup:
    """Options that several commands share: ``with_options`` gives a command one option for each field."""

    def chosen(self) -> dict[str, Any]:
        """Return the options that were chosen, as the keywords of a function with the same defaults."""
        values = {option.name: (getattr(self, option.name), option.default) for option in fields(self)}
        return {name: value for name, (value, default) in values.items() if value not in (None, [], default)}


@dataclass(frozen=True)
class ModelOptions(OptionGroup):
    """How a model is loaded: the keywords of ``vitreous.load``."""

    checkpoint: Annotated[Path | None, Option(help="Weights: .safetensors, or a torch file.")] = None
    pretrained: Annotated[bool, Option(help="Fetch the hub's weights if there is no checkpoint.")] = True
    img_size: ImgSize = None
    num_classes: Annotated[int | None, Option(min=1, help="Number of classes, if not the model's own.")] = None
    class_names: Annotated[
        Path | None, Option(help="Names of the classes: a text file with one per line, or a JSON list or table.")
    ] = None
    prompts: Annotated[
        list[str] | None, Option("--prompt", help="A class in words, for zero-shot models; repeated, one class each.")
    ] = None
    device: Device = "auto"
    dtype: Annotated[str, Option(help="float32, float64, bfloat16 or float16.")] = "float32"

    def load(self, model: str, quiet: bool) -> vt.VisionModel:
        """Build the model that the options describe."""
        status = STDERR.status(f"loading {model}") if STDERR.is_terminal and not quiet else nullcontext()
        with log_messages(quiet or self.checkpoint is None), status:
            return vt.load(model, **{"device": self.device, "dtype": self.dtype, **self.chosen()})


@dataclass(frozen=True)
class QueryOptions(OptionGroup):
    """What is asked about an image, beside methods and targets."""

    contrast: Annotated[
        list[str] | None, Option(help="Explain the target rather than this class; may be repeated.")
    ] = None
    output: Annotated[str, Option(help="What is explained: logit, prob or logprob.")] = "logit"
    class_subset: Annotated[
        str | None,
        Option(
            callback=_read_class_subset,
            help="Restrict the softmax: indices or labels, separated by commas, or a text or JSON file of such.",
        ),
    ] = None
    seed: Annotated[int, Option(help="Seed of everything random.")] = 0


@dataclass(frozen=True)
class LimitOptions(OptionGroup):
    """How much is done at once."""

    batch_size: Annotated[int | None, Option(min=1, max=65_536, help="Images or states at once.")] = None
    memory_gb: MemoryGb = None


@dataclass(frozen=True)
class ResultOptions(OptionGroup):
    """How a command hands over its result: printed, for people or as JSON, and written to files."""

    overwrite: Overwrite = False
    as_json: AsJson = False
    quiet: Quiet = False

    @property
    def is_silent(self) -> bool:
        """Whether nothing is printed but a result in JSON."""
        return self.quiet or self.as_json

    def say(self, content: Any, style: str | None = None) -> None:
        """Print for people, unless they want JSON or nothing."""
        if not self.is_silent:
            say(content, style)

    def progress_bar(self, title: str) -> AbstractContextManager[Any]:
        return progress_bar(title, self.is_silent)

    def check(self, path: Path | None, *suffixes: str) -> None:
        check_output(path, self.overwrite, *suffixes)

    def print(self, result: Any, notes: Sequence[str] = (), out: Path | None = None) -> None:
        """Print a result and its notes, or its JSON; then save it: what could not be written is not lost."""
        if self.as_json:
            print_json(result.to_json())
        for text in (str(result), *notes):
            self.say(text)
        if out is not None:
            result.save(out, overwrite=self.overwrite)
            self.say(f"saved in {out}")


def with_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of its groups, ``without`` some, in the place of the groups' parameters."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[type[OptionGroup], list[str]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            group = parameter.annotation
            if not (isinstance(group, type) and issubclass(group, OptionGroup)):
                parameters.append(parameter)
                continue
            hints = get_type_hints(group, include_extras=True)
            options = [option for option in fields(group) if option.name not in without]
            groups[parameter.name] = group, [option.name for option in options]
            for option in options:
                hint = hints[option.name]
                parameters.append(parameter.replace(name=option.name, default=option.default, annotation=hint))

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            by_group = {
                name: group(**{option: values.pop(option) for option in options})
                for name, (group, options) in groups.items()
            }
            command(**values, **by_group)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


# -- reading arguments -------------------------------------------------------------------------------------


def check_output(
    path: Path | None, overwrite: bool, *suffixes: str, choose: str = "choose another or add --overwrite"
) -> None:
    """Refuse, before the work, a file where the result could not be written."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise VitreousError(f"{path} must end in {' or '.join(suffixes)}")
    if os.path.lexists(path) and not overwrite:
        raise VitreousError(f"{path} is there already; {choose}")
    disk.check_file(path, overwrite=True)


def read_specs(texts: Sequence[str] | None, noun: str) -> list[str]:
    """Return the specs of an option, each of which may hold several, separated by commas."""
    for text in texts or ():
        if not split_specs(text):
            raise VitreousError(f"--{noun} {text!r} names no {noun}: expected a {noun} name")
    return [spec for text in texts or () for spec in split_specs(text)]


def model_first(model: str | None, words: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the model and the other words: it is given as --model, or else the first of them."""
    others = list(words or ())
    if model is None and not others:
        raise VitreousError("there is no model: give --model NAME")
    return others.pop(0) if model is None else model, others


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Return the image files at paths, those of a folder in order; a missing one is an error before any work."""
    from vitreous.datasets import image_files

    return [file for path in paths for file in image_files(path)]


def find_image(path: Path, command: str) -> Path:
    """Return the one image file at a path."""
    files = find_images([path])
    if len(files) != 1:
        raise VitreousError(f"{command} takes one image, {path} has {len(files)}")
    return files[0]


def check_effort(effort: str | None, methods: Sequence[str] = ()) -> None:
    """Refuse a level that is none, and one beside a method, before anything is loaded."""
    if effort is not None:
        check_choice("effort", effort, EFFORT_LEVELS)
        if methods:
            raise VitreousError(f"give --method or --effort, not both: {', '.join(methods)} and {effort}")


def read_data_paths(values: Sequence[str] | None) -> str | dict[str, str] | None:
    """Read ``--data``: one path, or LABEL=PATH for each of several data sets."""
    if not values or ("=" in values[0] and not Path(values[0]).exists()):
        return read_pairs(values, "data") or None
    if len(values) > 1:
        raise VitreousError("--data is given twice: with several data sets write LABEL=PATH")
    return resolve_path(values[0])


def read_pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read an option that is given as LABEL=PATH, once or several times."""
    pairs = {}
    for value in values or ():
        label, sign, path = value.partition("=")
        if not sign or not label or not path:
            raise VitreousError(f"--{option} {value} is not of the form LABEL={'FILE' if option != 'data' else 'PATH'}")
        pairs[label] = resolve_path(path)
    return pairs


def resolve_path(path: str) -> str:
    """Return a path that holds wherever a run is resumed; what is no path, such as a name on a hub, as it is."""
    return os.path.realpath(path) if os.path.exists(path) else path


# -- printing ----------------------------------------------------------------------------------------------


def print_line(kind: str, text: str) -> None:
    """Print one line on standard error."""
    line = one_line(f"vitreous: {kind}: {text}" if kind else f"vitreous: {text}")
    Console(stderr=True, highlight=False, emoji=False, soft_wrap=True).print(line, markup=False)


def print_skipped(path: Path, error: VitreousError) -> None:
    """Say which image is left out, and why, in one line."""
    print_line("warning", f"skipped {path}: {str(error).removeprefix(str(path)).lstrip(': ')}")


def print_json(content: Any) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def say(content: Any, style: str | None = None) -> None:
    """Print on standard output: no markup, no control characters, and no wrapping where that is not a terminal."""
    width = None if sys.stdout.isatty() else 10_000
    if isinstance(content, str):
        content = "\n".join(map(one_line, content.split("\n")))
    Console(highlight=False, markup=False, emoji=False, width=width).print(content, style=style)


class Rows(Table):
    """A table of plain text: names of files and classes may hold anything, and a terminal obeys some of it."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str) -> Rows:
    """Return an empty table whose first column is never cut."""
    rows = Rows(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        rows.add_column(column, no_wrap=index == 0, overflow="fold")
    return rows


class _LogPrinter(logging.Handler):
    """Prints each message of the library's log as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_line("", record.getMessage())


@contextmanager
def log_messages(quiet: bool) -> Iterator[None]:
    """Print what the library logs meanwhile, such as where weights came from."""
    log, printer = logging.getLogger("vitreous"), _LogPrinter(logging.INFO)
    level = log.level
    if not quiet:
        log.addHandler(printer)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(printer)
        log.setLevel(level)


@contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Any]:
    """Give a callback that draws a bar on standard error, where that is a terminal."""
    from vitreous.progress import bar

    with bar(title, STDERR, hidden=quiet or not STDERR.is_terminal) as on_progress:
        yield on_progress
