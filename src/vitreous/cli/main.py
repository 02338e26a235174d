"""One vocabulary on the command line: what older options are called now, and the library's words as options.

``vitreous``: the commands, and how errors become one line and an exit code.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console

from vitreous import __version__
from vitreous.cli import (
    benchmark as bench,
)
from vitreous.cli import (
    benchmark as report,
)
from vitreous.cli import (
    catalog as doctor,
)
from vitreous.cli import (
    catalog as lists,
)
from vitreous.cli import (
    catalog as stats,
)
from vitreous.cli import (
    evaluate as birds,
)
from vitreous.cli import (
    evaluate as score,
)
from vitreous.cli import (
    evaluate as trial,
)
from vitreous.cli import (
    explain,
    world,
)
from vitreous.cli import (
    explain as why,
)
from vitreous.cli import (
    web as explore,
)
from vitreous.errors import VitreousError, VitreousWarning, one_line

__all__ = [
    "app",
    "current",
    "in_options",
    "main",
]

_OLDER = {
    "explain": {"--labels": "--names"},
    "compare": {"--labels": "--names", "--methods": "--method"},
    "doctor": {"--labels": "--names"},
    "score": {"--labels": "--truth", "--batch": "--batch-size"},
}

_OPTIONS = {
    "target": "--target",
    "against": "--against",
    "value": "--value",
    "effort": "--effort",
    "memory": "--memory",
    "batch_size": "--batch-size",
    "batch": "--batch-size",
    "seed": "--seed",
    "labels": "--names",
    "prompts": "--prompt",
    "img_size": "--img-size",
    "num_classes": "--num-classes",
    "checkpoint": "--checkpoint",
    "device": "--device",
    "dtype": "--dtype",
    "noise": "--noise",
    "size": "--size",
    "overwrite": "--overwrite",
    "resume": "--resume",
    "pretrained": "--pretrained",
}
"""By the name of an argument in Python. ``classes`` is not here: methods have a parameter of that name."""

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|inf|nan)"
_VALUE = rf"'[^']*'|\"[^\"]*\"|{_NUMBER}|None|True|False|N|FILE|\[…\]"
_ARGUMENT = re.compile(rf"(?<![\w./\\'\"=▸-])(?P<name>{'|'.join(_OPTIONS)})=(?P<value>{_VALUE})?(?=[,;:]?(?:\s|$))")


def current(arguments: Sequence[str]) -> list[str]:
    """Return a command line with older options as they are called now."""
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    older, done = _OLDER.get(command, {}), list(arguments)
    for place, each in enumerate(done):
        if each == "--":
            break
        name, sign, rest = each.partition("=")
        done[place] = older.get(name, name) + sign + rest
    return done


def in_options(text: str, arguments: Sequence[str]) -> str:
    """Return a message of the library with options for the arguments that it names.

    Spellings, what stands in brackets or quotes, and whatever the user typed stay as they are.
    """
    if "▸" in text:
        return text
    typed = [argument.partition("=")[2] if argument.startswith("--") else argument for argument in arguments]

    def option(found: re.Match[str]) -> str:
        before = found.string[: found.start()]
        if before.count("(") > before.count(")") or any(found[0] in each for each in typed):
            return found[0]
        name, value = _OPTIONS[found["name"]], found["value"]
        if value == "False":
            return name.replace("--", "--no-", 1)
        return name if value in (None, "True", "[…]") else f"{name} {value}"

    return _ARGUMENT.sub(option, text.replace("true classes: give labels", "true classes: give --truth"))


app = typer.Typer(
    name="vitreous",
    help="Look inside a vision transformer, unmodified, and see what made it decide.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(why.why)
app.command()(explain.explain)
app.command()(explain.compare)
app.command()(score.score)
app.command()(birds.birds)
app.command()(lists.methods)
app.command()(lists.metrics)
app.command()(lists.models)
app.command()(lists.cite)
app.command()(lists.demo)
app.command()(explore.explore)
app.command()(doctor.doctor)
app.command()(stats.stats)
app.command()(trial.trial)
app.add_typer(world.app, name="world")
bench.app.command()(report.report)
app.add_typer(bench.app, name="bench")
app.command()(report.reproduce)

_ERRORS = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vitreous {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    pass  # both options act before any command: see main


def main() -> None:
    """Run the command line: 0 when all went well, 2 for bad input, 130 after Ctrl-C."""
    if sys.stdout is None:  # closed by whoever started this: print nothing, and give no file its number
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may hold what a terminal cannot show
    debug = "--debug" in sys.argv
    arguments = current([each for each in sys.argv[1:] if each != "--debug"])
    warnings.showwarning = _Told(arguments)
    try:
        _refuse_empty(arguments)
        code = app(arguments, prog_name="vitreous", standalone_mode=False)
        if code == 130:  # typer turns Ctrl-C into this
            raise KeyboardInterrupt
        sys.stdout.flush()
    except VitreousError as error:
        if debug:
            raise
        code = _tell("error", in_options(str(error), arguments), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _tell("stopped", "what was finished is kept", 130)
    except BrokenPipeError:  # whoever read what is printed, such as head, has read enough
        code = 2
        _drop_output()
    except OSError as error:  # a name that no file system takes, a full disk
        if debug:
            raise
        code = _tell("error", ": ".join(map(str, filter(None, (error.filename, error.strerror or error)))), 2)
        _drop_output()
    except Exception as error:
        message = getattr(error, "format_message", None)  # typer's own complaint about the arguments
        if message is None or debug:
            raise
        code = _tell("error", f"{message()} (see --help)", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """Let the interpreter not fail again when it ends, on what is still to be printed."""
    with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Refuse empty arguments, such as variables of a shell that are not set: as a path they are the current folder."""
    for before, argument in zip(["vitreous", *arguments], arguments, strict=False):
        if not argument:
            raise VitreousError(f"the argument after {before} is empty")
        if argument.startswith("--") and argument.endswith("=") and argument.count("=") == 1:
            raise VitreousError(f"there is nothing after {argument}")


def _tell(kind: str, text: str, code: int) -> int:
    _ERRORS.print(one_line(f"vitreous: {kind}: {text}"), markup=False)
    return code


class _Told:
    """Says what concerns the user in one line, and each line once; keeps other libraries' warnings to themselves."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments, self.lines = arguments, set[str]()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: object = None,
        line: object = None,
    ) -> None:
        text = in_options(str(message), self.arguments)
        if issubclass(category, VitreousWarning) and text not in self.lines:
            self.lines.add(text)
            _tell("warning", text, 0)
