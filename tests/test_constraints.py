"""The locked versions that ``make`` installs: complete, plain, and within what pyproject.toml allows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
EXTRAS = ("dev", "hf", "plot", "bench", "ray", "web", "docs")


def read_project(root: Path) -> dict[str, object]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


def requirements(root: Path, python: str) -> list[Requirement]:
    """Return what an installation with all extras asks for directly, for one Python."""
    project = read_project(root)
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    every = [Requirement(line) for line in lines if not line.startswith("vitreous")]
    return [item for item in every if item.marker is None or item.marker.evaluate({"python_version": python})]


@pytest.mark.parametrize("python", PYTHONS)
def test_locked_versions_are_plain_complete_and_allowed(root: Path, python: str) -> None:
    lines = (root / "constraints" / f"python{python}.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines)
    versions = dict(line.split("==") for line in lines)
    assert len(versions) == len(lines)
    for requirement in requirements(root, python):
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} does not allow {version}"
    assert {"torch", "torchvision", "hatchling", "editables"} <= versions.keys()


def test_every_dependency_has_a_lower_bound_to_try(root: Path) -> None:
    """``make test-oldest`` installs the lowest versions that are allowed: without a bound, the first one ever."""
    project = read_project(root)
    extras = ("hf", "plot", "bench", "ray", "web")
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    for requirement in map(Requirement, lines):
        operators = {item.operator for item in requirement.specifier}
        assert operators == {">="}, f"{requirement}: one lower bound, no upper one"


def test_make_takes_the_locked_versions_of_the_interpreter_and_says_where_there_are_none(root: Path) -> None:
    def install(*options: str) -> str:
        command = ["make", "--dry-run", "--always-make", "demo", f"PYTHON={sys.executable}", "VENV=.venv-new", *options]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout

    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version in PYTHONS:
        assert f"--constraint constraints/python{version}.txt" in install()
    assert "--constraint" not in install("CONSTRAINTS=")
    assert "No locked versions" in install("CONSTRAINTS=")
