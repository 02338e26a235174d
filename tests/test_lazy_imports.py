"""Importing Vitreous and asking the command line for help loads none of the heavy libraries."""

from __future__ import annotations

import pytest

from imports import COMMAND, loaded

IMPORT = """
import json, sys
import vitreous
print(json.dumps(sorted(sys.modules)))
"""


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
