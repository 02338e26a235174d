"""Which libraries an import loads."""

from __future__ import annotations

import json
import subprocess
import sys

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
