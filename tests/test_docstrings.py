"""Docstrings of the public surface: numpy style, equal to the signatures, with examples that run."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt

SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def public_objects() -> dict[str, Any]:
    """Every name that users see: what the package exports, every method and every metric."""
    exported = {f"vt.{name}": getattr(vt, name) for name in vt.__all__ if not name.startswith("__")}
    methods = {f"method {info.name}": info.factory for info in vt.list_methods()}
    metrics = {f"metric {info.name}": info.factory for info in vt.list_metrics()}
    return {name: value for name, value in (exported | methods | metrics).items() if callable(value)}


PUBLIC = public_objects()
INFO = {f"method {info.name}": info for info in vt.list_methods()} | {
    f"metric {info.name}": info for info in vt.list_metrics()
}


def sections(text: str) -> dict[str, str]:
    """Split a numpy docstring into its sections; the text above the first one is called ``summary``."""
    parts = SECTION.split(inspect.cleandoc(text))
    return {"summary": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def documented(text: str) -> list[str]:
    """Return the names that a section lists."""
    lines = re.findall(r"^(\*{0,2}\w[\w, *]*?)(?: : .*)?$", text, re.MULTILINE)
    return [name.strip().lstrip("*") for line in lines for name in line.split(",")]


def parameters(value: Any) -> list[str]:
    try:
        signature = inspect.signature(value)
    except ValueError:
        return []
    return [name for name in signature.parameters if name not in ("self", "args", "kwargs")]


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_are_those_of_the_signature(name: str) -> None:
    text = sections(PUBLIC[name].__doc__ or "")
    assert text["summary"].strip(), f"{name} has no docstring"
    is_made_by_users = not (inspect.isclass(PUBLIC[name]) and issubclass(PUBLIC[name], Exception))
    if is_made_by_users:
        assert documented(text.get("Parameters", text.get("Attributes", ""))) == parameters(PUBLIC[name])


@pytest.mark.parametrize("name", [name for name in PUBLIC if " " in name])
def test_methods_and_metrics_state_formula_cost_and_reference(name: str) -> None:
    text, info = PUBLIC[name].__doc__ or "", INFO[name]
    assert ".. math::" in text
    assert {"Notes", "Examples", *(("References",) if info.papers else ())} <= sections(text).keys()


def public_members(value: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(value).items():
        is_code = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
        if is_code and not name.startswith("_"):
            yield name, member


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if inspect.isclass(value) and " " not in name])
def test_members_have_docstrings(name: str) -> None:
    missing = [member for member, value in public_members(PUBLIC[name]) if not inspect.getdoc(value)]
    assert not missing


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What examples may use without an import."""
    folder_of_scenes = Path(__file__).parent / "data" / "world"
    images = [Image.open(path).convert("RGB") for path in sorted(folder_of_scenes.glob("[0-9].png"))[:4]]
    folder = tmp_path_factory.mktemp("examples")
    return {"vt": vt, "np": np, "torch": torch, "model": vt.load("world"), "image": images[0], "images": images,
            "tmp_path": folder}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_run(name: str, names: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(names["tmp_path"])
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    lines: list[str] = []
    example = doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__ or "", dict(names), name, None, None)
    assert example.examples or inspect.isclass(PUBLIC[name]), f"{name} has no example"
    doctest.DocTestRunner(optionflags=options).run(example, out=lines.append)
    assert not lines, "".join(lines)
