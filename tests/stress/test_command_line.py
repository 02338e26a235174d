"""The command line in bad company: values that nobody means, streams that are closed or full, no rights, Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer.main

import vitreous
from commands import MODEL, photographs, run

NUMBERS = ("0", "-1", "1e300", "nan", "inf", "9" * 40, "x")
PATHS = (
    "x" * 300,
    "x" * 300 + ".json",
    "x" * 300 + ".html",
    "a/" * 3000,
    "\udcff.png",
    "a\0b",
    "/dev/null",
    "/proc/x/x.json",
    "a.png/x.json",
    "=",
    "LABEL=" + "x" * 300,
)
GOOD: dict[str, tuple[str, ...]] = {
    "explain": ("a.png", *MODEL, "--method", "random", "--json"),
    "compare": ("a.png", *MODEL, "--method", "random", "--tile", "48", "--overwrite"),
    "why": ("a.png", "--model", "nonsense"),
    "evaluate": ("world", "a.png", "--method", "random", "--metric", "sparseness", "--no-controls"),
    "funnybirds": ("nonsense", "--method", "random", "--scenes", "1", "--no-controls"),
    "methods": ("lrp",),
    "metrics": ("ehr",),
    "models": ("world",),
    "cite": ("lrp",),
    "diagnose": ("nonsense",),
    "stats": ("nonsense", "--noise", "2"),
    "meta-evaluate": ("--metric", "nonsense"),
    "explore": ("--host", "nonsense", "--no-browser"),
    "bench run": ("nonsense", "--out", "run"),
    "bench status": ("run",),
    "bench pack": ("run", "file.zip"),
    "bench unpack": ("a.png", "run"),
    "bench report": ("run",),
    "reproduce": ("nonsense",),
}
"""Commands that end soon, whether or not they can work."""
OPTIONS = {
    "explain": "--memory-gb --seed --batch-size --img-size --num-classes --out --html --class-names --checkpoint "
    "--class-subset --target --contrast --prompt --device --dtype --effort --output",
    "compare": "--memory-gb --tile --out --html --class-subset",
    "why": "--out --target --effort --memory-gb",
    "evaluate": "--memory-gb --out --labels --annotations --target --method --metric --batch-size --seed",
    "funnybirds": "--scenes --start --fixed --dilation --out --folder --method --batch-size --seed --memory-gb",
    "diagnose": "--seed --class-names --checkpoint",
    "stats": "--out --noise --seed --memory-gb --batch-size",
    "meta-evaluate": "--scenes --seeds --baselines --out --model --memory-gb --batch-size",
    "explore": "--port --host --data --class-names --memory-gb",
    "bench run": "--out --data --images --threads --workers --shard --engine --wait --memory-gb --precision "
    "--checkpoint",
    "bench report": "--out --reference",
    "reproduce": "--out --data --memory-gb",
}
NUMERIC = {
    *(
        "--memory-gb",
        "--seed",
        "--batch-size",
        "--img-size",
        "--num-classes",
        "--tile",
        "--scenes",
        "--start",
        "--fixed",
    ),
    *("--dilation", "--noise", "--seeds", "--baselines", "--port", "--images", "--threads", "--workers", "--wait"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with photographs to be in; typer builds its parser once instead of each time."""
    folder, before = tmp_path_factory.mktemp("hostile"), Path.cwd()
    photographs(folder)
    os.chdir(folder)
    with mock.patch.object(typer.main, "get_command", cache(typer.main.get_command)):
        yield folder
    os.chdir(before)


def ends_in_one_line(*arguments: str) -> None:
    done = run(*arguments)
    assert done.code in (0, 1, 2), (arguments, done)
    assert "Traceback" not in done.err
    assert done.code != 2 or [line[:17] for line in done.err.splitlines()][-1] == "vitreous: error: ", (arguments, done)
    assert all(line.startswith("vitreous: ") for line in done.err.splitlines()), (arguments, done)


@pytest.mark.parametrize("command", OPTIONS)
def test_no_value_of_an_option_is_a_traceback(here: Path, command: str) -> None:
    for option in OPTIONS[command].split():
        for value in NUMBERS if option in NUMERIC else PATHS:
            ends_in_one_line(*command.split(), *GOOD[command], option, value)


@pytest.mark.parametrize("command", GOOD)
def test_no_argument_is_a_traceback(here: Path, command: str) -> None:
    for value in PATHS:
        ends_in_one_line(*command.split(), value, *GOOD[command][1:])


@pytest.mark.parametrize("command", GOOD)
def test_an_empty_argument_is_an_error(here: Path, command: str) -> None:
    """As a path it would be the current folder."""
    for arguments in (["", *GOOD[command][1:]], [*GOOD[command], "--out", ""], [*GOOD[command], "--out="]):
        done = run(*command.split(), *arguments)
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert "is empty" in done.err or "nothing after --out=" in done.err


@pytest.mark.parametrize("value", ["0", "-1", "1e300", "nan", "inf"])
@pytest.mark.parametrize(
    "command", ["explain", "compare", "evaluate", "funnybirds", "stats", "meta-evaluate", "explore", "bench run"]
)
def test_a_budget_that_is_none_is_refused_before_any_work(here: Path, command: str, value: str) -> None:
    done = run(*command.split(), *GOOD[command], "--memory-gb", value)
    assert done.code == 2
    assert "is not a number of GiB" in done.err
    assert "memory_gb" in done.err


# -- processes ---------------------------------------------------------------------------------------------------------

START = [sys.executable, "-m", "vitreous"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(vitreous.__file__).parent.parent)}


def started(*arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*START, *arguments], stderr=subprocess.PIPE, env=environment(), **more)


def clean(process: subprocess.Popen[bytes], *codes: int) -> bytes:
    assert process.stderr is not None
    outcome = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) in codes, outcome
    assert b"Traceback" not in outcome
    assert b"Exception" not in outcome
    assert outcome.count(b"\n") <= 1
    return outcome


@pytest.mark.parametrize("arguments", [("models",), ("methods", "--json"), ("cite", "lrp"), ("--help",)])
def test_whoever_reads_may_stop(arguments: tuple[str, ...]) -> None:
    process = started(*arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    clean(process, 0, 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [("models",), ("methods", "--json"), ("cite", "lrp")])
def test_a_full_disk_behind_standard_output(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        assert b"No space left on device" in clean(started(*arguments, stdout=full), 2)


@pytest.mark.skipif(os.name == "nt", reason="a closed stream has another meaning there")
def test_a_closed_standard_output() -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *START, "cite", "lrp"]
    clean(subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()), 0, 2)


@pytest.mark.skipif(os.name == "nt", reason="there is no such signal")
@pytest.mark.parametrize("delay", [0.1, 0.3, 0.6, 1.0])
def test_ctrl_c_while_it_starts(tmp_path: Path, delay: float) -> None:
    """At any time after Python itself has started: what is imported then is one of many libraries."""
    script = f"""
import _thread, sys, threading, runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer({delay}, _thread.interrupt_main).start()
sys.argv = ["vitreous", "diagnose", "world"]
runpy.run_module("vitreous", run_name="__main__", alter_sys=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment()
    )
    outcome = clean(process, 130)
    assert outcome.startswith(b"vitreous: stopped")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be someone else")
@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "a.png", "--method", "random", "--model", "world", "--out", "out"),
        ("compare", "a.png", "--method", "random", "--model", "world"),
    ],
)
def test_without_the_right_to_write(arguments: tuple[str, ...]) -> None:
    """Once as root, so that everything is imported, whoever may read it; then as nobody in the same place."""
    code = f"""
import os, runpy, shutil, sys
sys.argv = {["vitreous", *arguments]!r}
try:
    runpy.run_module("vitreous", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
for name in set(os.listdir()) - {{"a.png"}}:
    shutil.rmtree(name) if os.path.isdir(name) else os.unlink(name)
os.setgroups([]), os.setgid(65534), os.setuid(65534)
runpy.run_module("vitreous", run_name="__main__")
"""
    alien = {**environment(), "HOME": "/nonexistent", "VITREOUS_CACHE": ""}
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder))
        os.chmod(folder, 0o755)
        process = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=folder, env=alien
        )
        assert b"Permission denied" in clean(process, 2)
