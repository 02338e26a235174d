"""Importing Vitreous and asking the command line for help loads none of the heavy libraries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

IMPORT = """
import json, sys
import vitreous
print(json.dumps(sorted(sys.modules)))
"""

COMMAND = """
import contextlib, io, json, sys
from vitreous.cli import main

sys.argv = ["vitreous", *sys.argv[1:]]
code, out = 0, io.StringIO()
with contextlib.redirect_stdout(out):
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
assert not code, f"exit status {code}"
assert out.getvalue().strip(), "nothing was printed"
print(json.dumps(sorted(sys.modules)))
"""


def loaded(code: str, *arguments: str) -> set[str]:
    """The modules a fresh interpreter holds after running `code`."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_import() -> None:
    assert not loaded(IMPORT) & {"torch", "timm", "numpy", "transformers", "torchvision", "PIL"}


@pytest.mark.parametrize("line", ["--help", "--version", "explain --help"])
def test_command_line(line: str) -> None:
    assert not loaded(COMMAND, *line.split()) & {"torch", "timm", "transformers", "torchvision"}


def test_what_was_imported_by_its_own_name_knows_the_rest() -> None:
    """A room that is imported before the others still lists the bundled models."""
    code = "import vitreous.models, json; import vitreous as vt; "
    code += "print(json.dumps([info.name for info in vt.list_models()]))"
    assert "world" in loaded(code)
