"""Write the exact versions that ``make`` installs, one file for each Python, and try them.

``make lock`` resolves the newest version of every dependency that has a wheel, for every supported Python, into
``constraints/python3.X.txt``. For each of these Pythons that is on this machine, the set is then installed into an
empty environment and imported; for the others, pip resolves it without installing. A set that fails is not written.

``--oldest FILE`` instead writes the lowest versions that pyproject.toml allows, for ``make test-oldest``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
IMPORTS = "import torch, torchvision, timm, transformers, ray, pyarrow, matplotlib, fastapi, vitreous"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", required=True, help="extras of pyproject.toml, separated by commas")
    parser.add_argument("--pythons", required=True, nargs="+", help="versions such as 3.11")
    parser.add_argument("--oldest", type=Path, help="write the lowest versions that are allowed to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lock-") as folder:
        uv = install_uv(Path(folder) / "uv")
        if options.oldest:
            options.oldest.write_text(resolve(uv, options.pythons[0], options.extras, "lowest-direct"))
            return
        for python in options.pythons:
            text = resolve(uv, python, options.extras, "highest")
            trial = Path(folder) / f"python{python}.txt"
            trial.write_text(text)
            print(f"Python {python}: {try_install(python, options.extras, trial, Path(folder) / python)}", flush=True)
            (ROOT / "constraints" / trial.name).write_text(text)


def install_uv(folder: Path) -> Path:
    """Install uv, which resolves for Pythons that are not on this machine, into an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return folder / "bin" / "uv"


def resolve(uv: Path, python: str, extras: str, resolution: str) -> str:
    """Return the lines ``name==version`` for one Python: no hashes, no addresses."""
    command = [uv, "pip", "compile", PROJECT, "--python-version", python, "--resolution", resolution]
    command += ["--only-binary", ":all:", "--no-header", "--no-annotate", "--quiet"]
    command += [f"--extra={extra}" for extra in extras.split(",")]
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    strange = [line for line in text.splitlines() if not re.fullmatch(r"[A-Za-z0-9._-]+==\S+", line)]
    if strange:
        sys.exit(f"Python {python}: these lines are no plain versions: {strange}")
    return text


def try_install(python: str, extras: str, constraints: Path, folder: Path) -> str:
    """Install a locked set into an empty environment and import it, or at least let pip find all of its files."""
    interpreter = f"python{python}"
    if not shutil.which(interpreter) or subprocess.run([interpreter, "-c", ""], capture_output=True).returncode:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python, "--target", str(folder)]
        subprocess.run([*command, "--requirement", constraints], check=True)
        return "resolved, not installed (this Python is not here)"
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints]
    subprocess.run([*pip, "hatchling", "editables"], check=True)
    subprocess.run([*pip, "--no-build-isolation", f"{ROOT}[{extras}]"], check=True)
    subprocess.run([folder / "bin" / "python", "-c", IMPORTS], check=True, cwd=folder)
    shutil.rmtree(folder)
    return "installed and imported"


if __name__ == "__main__":
    main()
