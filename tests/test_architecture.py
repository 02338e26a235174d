"""The architecture: which package imports which. Import statements anywhere, and modules that are named in strings."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitreous

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOURCE = Path(vitreous.__file__).parent
PUBLIC = ("__init__", "__main__")
"""What may know every package: it is what users import, and it imports nothing before it is used."""
PACKAGES = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
NAMED = re.compile(r"vitreous(\.\w+)+(:\w+)?")


def layers(root: Path) -> list[set[str]]:
    """The packages as the import contract has them, lowest first; those side by side together."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (order,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [{package.strip(" ()") for package in layer.split("|")} for layer in reversed(order)]


def imports(text: str, parent: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the package of everything that a module takes from Vitreous, however it says so.

    ``parent`` is the dotted name of the package that the module is in.
    """
    for node in ast.walk(ast.parse(text)):
        actual: list[str] = []
        if isinstance(node, ast.Import):
            actual = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parent.split(".")[: len(parent.split(".")) - node.level + 1] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            actual = [_home(alias.name) for alias in node.names] if home == "vitreous" else [home]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            actual = [node.value.partition(":")[0]]
        elif isinstance(node, ast.JoinedStr) and node.values and isinstance(node.values[0], ast.Constant):
            start = str(node.values[0].value)
            actual = [start + "anything"] if start.startswith("vitreous.") and " " not in start else []
        message = not isinstance(node, ast.Import | ast.ImportFrom)  # a string may also name a group of entry points
        for name in actual:
            package = name.split(".")[1] if name.startswith("vitreous.") else ""
            if package and not (message and package not in PACKAGES):
                yield node.lineno, package


def _home(name: str) -> str:
    """Where ``from vitreous import name`` leads."""
    if name.startswith("__"):
        return "vitreous"
    is_object = name in vitreous.__all__ and name not in PACKAGES
    return f"vitreous.{vitreous._MODULE_OF.get(name, 'results' if is_object else name)}"


def climbing(text: str, parent: str, package: str, order: list[set[str]]) -> list[str]:
    """Return what a module takes from above its own package, or from beside it."""
    level = {name: number for number, layer in enumerate(order) for name in layer}
    return [
        f"line {line}: {other}"
        for line, other in imports(text, parent)
        if other != package and (other not in level or level[other] >= level[package])
    ]


def modules() -> list[Path]:
    """Everything but the public interface."""
    every = {path: path.relative_to(SOURCE).with_suffix("").parts[0] for path in SOURCE.rglob("*.py")}
    return sorted(path for path, package in every.items() if package not in PUBLIC)


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_package_knows_one_above_it(path: Path, root: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    package = ".".join(["vitreous", *parts[:-1]])
    assert not climbing(path.read_text(), package, parts[0], layers(root))


@pytest.mark.parametrize(
    "planted",
    [
        "from vitreous.evaluation import evaluate",
        "import vitreous.evaluation.runner",
        "def late():\n    from vitreous.evaluation.runner import unit",
        "def late():\n    from vitreous import evaluate",
        "def late():\n    from ..evaluation import runner",
        'HOME = "vitreous.evaluation.runner"',
        'HOME = "vitreous.evaluation.runner:unit"',
        "import importlib\ndef late(name):\n    importlib.import_module(f'vitreous.evaluation.{name}')",
        "from vitreous import world",
        'ADAPTERS = ["vitreous.world.models:Adapter"]',
        "from vitreous.nowhere import thing",
    ],
)
def test_what_climbs_is_seen(planted: str, root: Path) -> None:
    """In an import statement, inside a function, through the public interface, in a string."""
    assert len(climbing(planted, "vitreous.models", "models", layers(root))) == 1
    assert not climbing(planted, "vitreous.cli", "cli", layers(root)) or "nowhere" in planted or ".." in planted


@pytest.mark.parametrize(
    "fine",
    [
        "from vitreous.errors import ModelError",
        "from .base import VisionModel",
        "from vitreous import __version__",
        'SCHEMA = "vitreous.evaluate/2"',
        '"""See vitreous.evaluation.runner for more."""',
        "import numpy",
    ],
)
def test_what_does_not_climb_is_not(fine: str, root: Path) -> None:
    assert not climbing(fine, "vitreous.models", "models", layers(root))


def test_every_package_has_its_place(root: Path) -> None:
    assert {package for package in PACKAGES if package not in PUBLIC} <= set().union(*layers(root))


def test_the_manual_lists_these_packages(root: Path) -> None:
    """The table of packages in the manual: the same ones in the same order, lowest first."""
    text = (root / "docs" / "architecture.md").read_text()
    table = text[text.index("## Packages") : text.index("## Five ideas")]
    picture = [re.findall(r"`(\w+)/?`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]
    place = {package: number for number, layer in enumerate(layers(root)) for package in layer if package in PACKAGES}
    packages = [package for row in picture for package in row]
    assert sorted(packages) == sorted(place)
    assert [place[package] for package in packages] == sorted(place.values())


def test_files_stay_small() -> None:
    """No file over 500 lines: sources and tests."""
    sizes = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    tests = {path: len(path.read_text().splitlines()) for path in Path(__file__).parent.rglob("*.py")}
    assert not {path.name: lines for path, lines in {**sizes, **tests}.items() if lines > 500}
