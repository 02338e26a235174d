"""Running commands inside the test process, in a folder with a few photographs."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from PIL import Image

from vitreous.cli import main

__all__ = ["FILES", "MODEL", "WITH_LAYERS", "Result", "photographs", "result", "run", "tree"]

NAME = "timm/test_vit"
MODEL = ("--model", NAME, "--no-pretrained", "--img-size", "32", "--device", "cpu")
"""timm's own toy: six blocks of width 64, a thousand classes."""
FILES = {"map.npy", "heatmap.png", "overlay.png", "image.png", "manifest.json"}
"""What one explanation leaves in its folder."""
WITH_LAYERS = FILES | {"extras.npz"}
"""The same where the method gives its layers too, as the default does."""


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: Any) -> Result:
    """Run ``vitreous`` with these arguments; an untrained model is the same each time."""
    torch.manual_seed(0)
    out, err = io.StringIO(), io.StringIO()
    code: Any = None
    with (
        mock.patch.object(sys, "argv", ["vitreous", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code
    assert isinstance(code, int), "main did not leave through sys.exit"
    return Result(code, out.getvalue(), err.getvalue())


def result(out: str | Path, name: str) -> Path:
    """The only result about a picture, by the folder of the picture."""
    (actual,) = (path.parent for path in Path(out, name).glob("*/*/manifest.json"))
    return actual


def photographs(folder: Path) -> Path:
    """Put five pictures and one that is none into a folder."""
    (folder / "more").mkdir()
    for seed, name in enumerate(("a.png", "b.png", "a.bmp", "more/c.png", "more/b.png")):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "text.png").write_text("not a picture")
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder: files with their content, folders with None."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}
