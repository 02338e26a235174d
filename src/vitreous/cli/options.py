"""Options that several commands share, and small helpers to read them."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous import io as disk
from vitreous.errors import VitreousError, one_line
from vitreous.registry import check_choice, check_memory
from vitreous.registry.defaults import EFFORT_LEVELS
from vitreous.registry.spec import split_specs

if TYPE_CHECKING:
    from vitreous.models import VisionModel


def _checked_memory(memory_gb: Optional[float]) -> Optional[float]:  # noqa: UP045
    check_memory(memory_gb)
    return memory_gb


# typer reads these at run time, on Python 3.10 too, hence Optional
Model = Annotated[str, typer.Option("--model", "-m", help="A name such as timm/vit_base_patch16_224.")]
Checkpoint = Annotated[
    Optional[Path], typer.Option(help="Weights: .safetensors, or a torch file.")  # noqa: UP045
]
Pretrained = Annotated[bool, typer.Option(help="Fetch the hub's weights if there is no checkpoint.")]
ImgSize = Annotated[Optional[int], typer.Option(min=1, help="Input size, if not the model's own.")]  # noqa: UP045
NumClasses = Annotated[Optional[int], typer.Option(min=1, help="Number of classes, if not the model's own.")]  # noqa: UP045
ClassNames = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="Names of the classes: a text file with one per line, or a JSON list or table."),
]
Prompts = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--prompt", help="A class in words, for zero-shot models; repeated, one class each."),
]
Targets = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--target", help="Class index or label; may be repeated.", show_default="the prediction"),
]
Contrast = Annotated[
    Optional[list[str]], typer.Option(help="Explain the target rather than this class; may be repeated.")  # noqa: UP045
]
ClassSubset = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Restrict the softmax: indices or labels, separated by commas, or a text or JSON file of such."),
]
Effort = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help=f"How much it may cost where no method is named: {', '.join(EFFORT_LEVELS)}.", show_default="quick"
    ),
]
Output = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="What is explained: logit, prob or logprob.", show_default="logit"),
]
NamedModel = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--model", "-m", help="The model, if it does not stand first.", show_default=False),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")]
MemoryGb = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option(callback=_checked_memory, help="Memory budget in GiB."),
]
BatchSize = Annotated[Optional[int], typer.Option(min=1, max=65_536, help="Pictures or states at once.")]  # noqa: UP045
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors and warnings.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep no statistics of models in the user's cache folder.")]
Html = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--html", help="Also write a page to read, a .html file.", show_default=False),
]
Overwrite = Annotated[bool, typer.Option(help="Replace what is there already.")]

ERR = Console(stderr=True, highlight=False)
_MOST_TEXT = 2**26  # bytes of a file of names or labels


def load(
    model: str,
    checkpoint: Path | None,
    pretrained: bool,
    img_size: int | None,
    num_classes: int | None,
    class_names: Path | None,
    device: str,
    dtype: str,
    quiet: bool,
    prompts: list[str] | None = None,
) -> VisionModel:
    """Build the model that the options describe."""
    import vitreous

    given = {"checkpoint": checkpoint, "img_size": img_size, "num_classes": num_classes, "prompts": prompts or None}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not pretrained:
        options["pretrained"] = False
    status = ERR.status(f"loading {model}") if ERR.is_terminal and not quiet else _nothing()
    with telling(quiet or checkpoint is None), status:
        return vitreous.load(model, class_names=class_names, device=device, dtype=dtype, **options)


class _Lines(logging.Handler):
    """Prints each note of the library as one line on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        ERR.print(one_line(f"vitreous: {record.getMessage()}"), markup=False, emoji=False, soft_wrap=True)


@contextmanager
def telling(quiet: bool) -> Iterator[None]:
    """Print what the library notes meanwhile, such as where weights came from."""
    log, lines = logging.getLogger("vitreous"), _Lines(logging.INFO)
    level = log.level
    if not quiet:
        log.addHandler(lines)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)


def check_page(path: Path | None, overwrite: bool) -> None:
    """Refuse a page that could not be written, before the work."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", ".htm"):
        raise VitreousError(f"{path} must end in .html")
    if is_there(path) and not overwrite:
        raise VitreousError(f"{path} is there already; choose another or add --overwrite")
    disk.check_file(path, overwrite)


def caching(switched_off: bool) -> None:
    """Look at and leave nothing in the cache folder for the rest of this process, if that was asked for."""
    if switched_off:
        os.environ[disk.CACHE_VARIABLE] = ""


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Any]:
    """Give a callback that draws a bar on standard error, where that is a terminal."""
    from vitreous.progress import bar

    with bar(what, ERR, hidden=quiet or not ERR.is_terminal) as on_progress:
        yield on_progress


def spelled(given: Sequence[str], noun: str) -> list[str]:
    """Return the spellings meant; each option may hold several, separated by commas."""
    for one in given:
        if not split_specs(one):
            raise VitreousError(f"--{noun} {one!r} names no {noun}: expected a {noun} name")
    return [word for one in given for word in split_specs(one)]


def model_first(model: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the model and the other words: it is given as --model, or else the first of them."""
    if model is not None:
        return model, list(words)
    if not words:
        raise VitreousError("there is no model: give --model NAME")
    return words[0], list(words[1:])


def check_out(out: Path | None, overwrite: bool, *endings: str) -> None:
    """Refuse, before the work, a place where the result could not be written."""
    if out is None:
        return
    if out.suffix not in endings:
        raise VitreousError(f"--out {out} must end in {' or '.join(endings)}")
    if is_there(out) and not overwrite:
        raise VitreousError(f"{out} is there already; choose another --out or add --overwrite")
    disk.check_file(out, overwrite)


def is_there(place: Path) -> bool:
    """Whether a place for results is taken; a name that no file system takes is an error before any work."""
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise VitreousError(f"could not write {place}: {getattr(error, 'strerror', None) or error}") from None
    return True


def say(content: Any, style: str | None = None) -> None:
    """Print on standard output: no markup, no control characters, and no wrapping where that is not a terminal."""
    wide = None if sys.stdout.isatty() else 10_000
    if isinstance(content, str):
        content = "\n".join(map(one_line, content.split("\n")))
    Console(highlight=False, markup=False, emoji=False, width=wide).print(content, style=style)


class Rows(Table):
    """A table of plain text: names of files and classes may hold anything, and a terminal obeys some of it."""

    def add_row(self, *cells: Any, **look: Any) -> None:
        super().add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in cells), **look)


def table(*columns: str) -> Rows:
    """Return an empty table whose first column is never cut."""
    made = Rows(box=None, pad_edge=False)
    for place, column in enumerate(columns):
        made.add_column(column, no_wrap=place == 0, overflow="fold")
    return made


def check_effort(effort: str | None, methods: Sequence[str] = ()) -> None:
    """Refuse a step that is none, and one beside a method, before anything is loaded."""
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
    if path.suffix in (".json", ".txt"):
        content = read_text(path, "class_subset")
        try:
            classes = json.loads(content) if path.suffix == ".json" else content.split("\n")
        except (ValueError, RecursionError) as error:
            raise VitreousError(f"class_subset {path} cannot be read: {error}") from None
    if not isinstance(classes, list) or not all(isinstance(name, str | int) for name in classes):
        raise VitreousError(f"class_subset {text} must be a list of indices or labels")
    names = [name.strip() if isinstance(name, str) else name for name in classes]
    return [name for name in names if name != ""]


def skipped(path: Path, error: VitreousError) -> None:
    """Say which picture is left out, and why, in one line."""
    reason = str(error).removeprefix(str(path)).lstrip(": ")
    line = one_line(f"vitreous: warning: skipped {path}: {reason}")
    ERR.print(line, markup=False, emoji=False, soft_wrap=True)


def print_json(content: Any) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def read_text(path: Path, what: str) -> str:
    """Return the text of a small file; one that has no end, such as a device, is not read to it."""
    try:
        with disk.open_file(path) as file:
            data = file.read(_MOST_TEXT + 1)
        if len(data) > _MOST_TEXT:
            raise VitreousError(f"{what} {path} cannot be read: it has more than {_MOST_TEXT // 2**20} MiB")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise VitreousError(f"{what} {path} cannot be read: {said}") from None


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def places(given: Sequence[str] | None) -> str | dict[str, str] | None:
    """Read ``--data``: one place, or LABEL=PATH for each of several data sets."""
    if not given or ("=" in given[0] and not Path(given[0]).exists()):
        return pairs(given, "data") or None
    if len(given) > 1:
        raise VitreousError("--data is given twice: with several data sets write LABEL=PATH")
    return place(given[0])


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read an option that is given as LABEL=PATH, once or several times."""
    found = {}
    for each in given or ():
        label, sign, value = each.partition("=")
        if not sign or not label or not value:
            raise VitreousError(f"--{option} {each} is not of the form LABEL={'FILE' if option != 'data' else 'PATH'}")
        found[label] = place(value)
    return found


def place(given: str) -> str:
    """Return a path that holds wherever a run is resumed; what is no path, such as a name on a hub, as it is."""
    return os.path.realpath(given) if os.path.exists(given) else given
