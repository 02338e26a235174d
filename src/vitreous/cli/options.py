"""Options that several commands share, how they are read, and how results are printed."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous import io as disk
from vitreous.errors import VitreousError, one_line, reason
from vitreous.registry import check_choice, check_memory
from vitreous.registry.defaults import EFFORT_LEVELS
from vitreous.registry.spec import split_specs

if TYPE_CHECKING:
    from vitreous.models import VisionModel

TYPER: dict[str, Any] = {"rich_markup_mode": None, "context_settings": {"help_option_names": ["-h", "--help"]}}
"""How every group of commands prints its help."""
STDERR = Console(stderr=True, highlight=False)
_MAX_TEXT = 2**26  # bytes of a file of names or labels


def _checked_memory(memory_gb: float | None) -> float | None:
    check_memory(memory_gb)
    return memory_gb


Model = Annotated[str, typer.Option("--model", "-m", help="A name such as timm/vit_base_patch16_224.")]
NamedModel = Annotated[
    str | None, typer.Option("--model", "-m", help="The model, if it does not stand first.", show_default=False)
]
ImgSize = Annotated[int | None, typer.Option(min=1, help="Input size, if not the model's own.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one.")]
Image = Annotated[Path, typer.Argument(help="An image.", show_default=False)]
ModelAndImages = typer.Argument(
    metavar="[MODEL] IMAGES", help="A model, and images or folders of them.", show_default=False
)
Targets = Annotated[
    list[str] | None,
    typer.Option("--target", help="Class index or label; may be repeated.", show_default="the prediction"),
]
Contrast = Annotated[list[str] | None, typer.Option(help="Explain the target rather than this class; may be repeated.")]
ClassSubset = Annotated[
    str | None,
    typer.Option(help="Restrict the softmax: indices or labels, separated by commas, or a text or JSON file of such."),
]
Effort = Annotated[
    str | None,
    typer.Option(
        help=f"How much it may cost where no method is named: {', '.join(EFFORT_LEVELS)}.", show_default="quick"
    ),
]
Output = Annotated[str, typer.Option(help="What is explained: logit, prob or logprob.")]
Controls = Annotated[bool, typer.Option(help="Random, constant and centre maps for comparison.")]
MemoryGb = Annotated[float | None, typer.Option(callback=_checked_memory, help="Memory budget in GiB.")]
BatchSize = Annotated[int | None, typer.Option(min=1, max=65_536, help="Images or states at once.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and warnings.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep no statistics of models in the user's cache folder.")]
Html = Annotated[
    Path | None, typer.Option("--html", help="Also write a page to read, a .html file.", show_default=False)
]
Overwrite = Annotated[bool, typer.Option(help="Replace what is there already.")]


# -- models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOptions:
    """The options of every command that loads a model."""

    checkpoint: Annotated[Path | None, typer.Option(help="Weights: .safetensors, or a torch file.")] = None
    pretrained: Annotated[bool, typer.Option(help="Fetch the hub's weights if there is no checkpoint.")] = True
    img_size: ImgSize = None
    num_classes: Annotated[int | None, typer.Option(min=1, help="Number of classes, if not the model's own.")] = None
    class_names: Annotated[
        Path | None,
        typer.Option(help="Names of the classes: a text file with one per line, or a JSON list or table."),
    ] = None
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="A class in words, for zero-shot models; repeated, one class each."),
    ] = None
    device: Device = "auto"
    dtype: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32"

    def chosen(self) -> dict[str, Any]:
        """Return the keywords of ``vitreous.load`` that were chosen."""
        options = {
            "checkpoint": self.checkpoint,
            "pretrained": None if self.pretrained else False,
            "img_size": self.img_size,
            "num_classes": self.num_classes,
            "class_names": self.class_names,
            "prompts": self.prompt or None,
            "dtype": None if self.dtype == "float32" else self.dtype,
        }
        return {name: value for name, value in options.items() if value is not None}

    def load(self, model: str, quiet: bool) -> VisionModel:
        """Build the model that the options describe."""
        import vitreous

        status = STDERR.status(f"loading {model}") if STDERR.is_terminal and not quiet else nullcontext()
        with log_messages(quiet or self.checkpoint is None), status:
            return vitreous.load(model, **{**self.chosen(), "device": self.device, "dtype": self.dtype})


def with_model_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a model, ``without`` some, in the place of its parameter ``model_options``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(ModelOptions, include_extras=True)
        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != "model_options":
                parameters.append(parameter)
                continue
            for item in fields(ModelOptions):
                if item.name not in without:
                    default, hint = item.default, hints[item.name]
                    parameters.append(inspect.Parameter(item.name, keyword, default=default, annotation=hint))

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            names = [item.name for item in fields(ModelOptions) if item.name in values]
            model_options = ModelOptions(**{name: values.pop(name) for name in names})
            command(**values, model_options=model_options)

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapper

    return decorate


ANY_MODEL = ModelOptions()
"""The default of the parameter that ``with_model_options`` fills in."""


# -- reading arguments -------------------------------------------------------------------------------------


def check_output(
    path: Path | None, overwrite: bool, *suffixes: str, choose: str = "choose another or add --overwrite"
) -> None:
    """Refuse, before the work, a file where the result could not be written."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise VitreousError(f"{path} must end in {' or '.join(suffixes)}")
    if exists(path) and not overwrite:
        raise VitreousError(f"{path} is there already; {choose}")
    disk.check_file(path, overwrite=True)


def exists(path: Path) -> bool:
    """Whether a place for results is taken; a name that no file system takes is an error before any work."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise VitreousError(f"could not write {path}: {reason(error)}") from None
    return True


def switch_cache_off(is_off: bool) -> None:
    """Look at and leave nothing in the cache folder for the rest of this process, if that was asked for."""
    if is_off:
        os.environ[disk.CACHE_VARIABLE] = ""


def read_specs(texts: Sequence[str] | None, noun: str) -> list[str]:
    """Return the specs of an option, each of which may hold several, separated by commas."""
    for text in texts or ():
        if not split_specs(text):
            raise VitreousError(f"--{noun} {text!r} names no {noun}: expected a {noun} name")
    return [spec for text in texts or () for spec in split_specs(text)]


def model_first(model: str | None, words: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the model and the other words: it is given as --model, or else the first of them."""
    words = words or []
    if model is not None:
        return model, list(words)
    if not words:
        raise VitreousError("there is no model: give --model NAME")
    return words[0], list(words[1:])


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


def read_class_subset(text: str | None) -> list[str | int] | None:
    """Return the classes that the softmax is restricted to: separated by commas, or those of a file."""
    if text is None:
        return None
    path = Path(text)
    classes: Any = text.split(",")
    if path.suffix == ".json":
        classes = read_json(path, "class_subset")
    elif path.suffix == ".txt":
        classes = disk.read_text(path, _MAX_TEXT, what="class_subset ").split("\n")
    if not isinstance(classes, list) or not all(isinstance(name, str | int) for name in classes):
        raise VitreousError(f"class_subset {text} must be a list of indices or labels")
    names = [name.strip() if isinstance(name, str) else name for name in classes]
    return [name for name in names if name != ""]


def read_json(path: Path, what: str) -> Any:
    """Return what a JSON file holds."""
    return disk.read_json(path, _MAX_TEXT, what=f"{what} ")


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


def print_result(result: Any, quiet: bool, as_json: bool, notes: Sequence[str] = ()) -> None:
    """Print a result and its notes, or its JSON."""
    if as_json:
        print_json(result.to_json())
    elif not quiet:
        for text in (str(result), *notes):
            say(text)


def save_result(result: Any, out: Path | None, overwrite: bool, quiet: bool) -> None:
    """Save a result that was printed already: what could not be written is not lost."""
    if out is not None:
        result.save(out, overwrite=overwrite)
        if not quiet:
            say(f"saved in {out}")
