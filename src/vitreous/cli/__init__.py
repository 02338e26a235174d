"""The command line: thin commands over the public API; torch is imported only when a command needs it.

An error becomes one line and an exit code here: 2 for bad input, 130 after Ctrl-C.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from vitreous import __version__
from vitreous.cli import benchmark, catalog, evaluate, explain, options, web, world
from vitreous.errors import VitreousError, VitreousWarning

__all__ = ["app", "main"]

app = typer.Typer(
    name="vitreous",
    help="Look inside a vision transformer, unmodified, and see what made it decide.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    **options.TYPER,
)
for _command in (
    explain.why,
    explain.explain,
    explain.compare,
    evaluate.evaluate,
    evaluate.funnybirds,
    catalog.methods,
    catalog.metrics,
    catalog.models,
    catalog.cite,
    catalog.demo,
    web.explore,
    catalog.diagnose,
    catalog.stats,
    evaluate.meta_evaluate,
    benchmark.reproduce,
):
    app.command()(_command)
app.add_typer(world.app, name="world")
app.add_typer(benchmark.app, name="bench")


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
    _prepare_streams()
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    warnings.showwarning = _WarningPrinter()
    try:
        _refuse_empty(arguments)
        code = app(arguments, prog_name="vitreous", standalone_mode=False)
        if code == 130:  # typer turns Ctrl-C into this
            raise KeyboardInterrupt
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read what is printed, such as head, has read enough
        code = 2
        _drop_output()
    except (KeyboardInterrupt, typer.Abort):
        code = 130
        options.print_line("stopped", "what was finished is kept")
    except Exception as error:
        message = _describe(error)
        if message is None or debug:
            raise
        code = 2
        options.print_line("error", message)
        if isinstance(error, OSError):
            _drop_output()
    sys.exit(code if isinstance(code, int) else 0)


def _prepare_streams() -> None:
    if sys.stdout is None:  # closed by whoever started this: print nothing, and give no file its number
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may hold what a terminal cannot show


def _describe(error: Exception) -> str | None:
    """Return what to say about an error that users can mend; ``None`` for one of programming."""
    if isinstance(error, VitreousError):
        return str(error)
    if isinstance(error, OSError):  # a name that no file system takes, a full disk
        return ": ".join(map(str, filter(None, (error.filename, error.strerror or error))))
    message = getattr(error, "format_message", None)  # typer's own complaint about the arguments
    return None if message is None else f"{message()} (see --help)"


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


class _WarningPrinter:
    """Prints each warning of the library once, in one line; keeps other libraries' warnings to themselves."""

    def __init__(self) -> None:
        self.lines: set[str] = set()

    def __call__(self, message: Warning | str, category: type[Warning], *source: Any, **more: Any) -> None:
        text = str(message)
        if issubclass(category, VitreousWarning) and text not in self.lines:
            self.lines.add(text)
            options.print_line("warning", text)
