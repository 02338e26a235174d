"""Anything at all: bytes that claim to be pictures, and arguments nobody would type.

Only ``VitreousError`` and the documented exit codes may come of it: never a traceback, never a half-written folder.
Specs of methods have their own in ``test_spec.py``.
"""

from __future__ import annotations

import io
import os
import shutil
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import typer.main
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import vitreous as vt
from commands import FILES, MODEL, WITH_LAYERS, Result, photographs, run
from vitreous.datasets.images import open_image
from vitreous.errors import ImageError

OFTEN = settings(max_examples=2_000, suppress_health_check=list(HealthCheck))
EVERYTHING = settings(max_examples=20_000, suppress_health_check=list(HealthCheck))


# -- bytes ---------------------------------------------------------------------------------------------


def _files() -> list[bytes]:
    """Small pictures of many formats and modes, as bytes."""
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8))
    grey = colours.convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    forms: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (colours, "PNG", {}),
        (grey.convert("P"), "PNG", {"transparency": bytes(range(256))}),
        (deep, "PNG", {"exif": exif}),
        (colours, "PNG", {"save_all": True, "append_images": [colours.rotate(90)]}),
        (colours, "JPEG", {"exif": exif}),
        (colours.convert("CMYK"), "JPEG", {}),
        (colours, "JPEG", {"progressive": True}),
        (colours, "GIF", {"save_all": True, "append_images": [colours.rotate(90)]}),
        (colours.convert("RGBA"), "WEBP", {}),
        (colours, "TIFF", {}),
        (Image.fromarray(np.asarray(grey, np.float32) / 255), "TIFF", {}),
        (deep, "TIFF", {}),
        (colours, "BMP", {}),
        (grey, "PPM", {}),
    ]
    result = []
    for image, kind, options in forms:
        held = io.BytesIO()
        image.save(held, kind, **options)
        result.append(held.getvalue())
    return result


WHOLE = _files()


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A real file with some bytes changed, cut off, put in, or taken from another file."""
    content = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        change = draw(st.sampled_from(["flip", "header", "cut", "put", "splice", "double"]))
        if change == "flip" and content:
            content[place] ^= draw(st.integers(1, 255))
        elif change == "header" and content:  # where sizes and offsets stand
            content[place % min(64, len(content))] = draw(st.sampled_from([0, 1, 127, 128, 255]))
        elif change == "cut":
            del content[place:]
        elif change == "put":
            content[place:place] = draw(st.binary(min_size=1, max_size=8))
        elif change == "splice":
            other = draw(st.sampled_from(WHOLE))
            content[place:] = other[draw(st.integers(0, len(other))) :]
        else:
            content += content[place:]
    return bytes(content)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mock.patch.object(Image, "MAX_IMAGE_PIXELS", 500_000):  # a wild size in a header shall not cost a second
        yield tmp_path_factory.mktemp("bytes") / "picture.png"


LOOK = vt.Preprocess(size=(32, 32))


def read_or_refuse(content: bytes, place: Path) -> None:
    place.write_bytes(content)
    refusal = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, about broken EXIF and the like
        try:
            photo = open_image(place)
            seen, box = LOOK.resize_and_crop(photo)
        except ImageError as error:
            refusal = str(error)
    if refusal is not None:
        assert len(refusal.splitlines()) == 1
        assert refusal.isprintable()
        return
    assert photo.mode == "RGB"
    assert seen.size == (32, 32)
    assert box[0] < box[2]
    assert torch.isfinite(LOOK.to_tensor(seen)).all()


BYTES = spoilt() | st.binary(max_size=200) | st.sampled_from(WHOLE)


@OFTEN
@given(content=BYTES)
def test_any_bytes(content: bytes, place: Path) -> None:
    read_or_refuse(content, place)


@pytest.mark.slow
@EVERYTHING
@given(content=BYTES)
def test_any_bytes_at_length(content: bytes, place: Path) -> None:
    read_or_refuse(content, place)


# -- arguments -----------------------------------------------------------------------------------------

WORDS = st.text(max_size=8).filter(lambda text: "\0" not in text) | st.sampled_from(
    [
        "",
        "-",
        "--",
        "-1",
        "0",
        "1e309",
        "nan",
        "inf",
        "{}",
        "[red]",
        ":cat:",
        "a" * 300,
        "\n",
        "é",
        "🙂",
        "%s",
        "*",
        "[",
    ]
)
NUMBERS = st.integers(-2, 3).map(str) | st.sampled_from(["1e3", "nan", "inf", "-inf", "0x10", "1_0", "9" * 40, "2.5"])
PATHS = st.sampled_from(["a.png", "b.png", "more", "text.png", "no.png", ".", "", "a.png/x", "x" * 300, "names.txt"])
PLACES = st.sampled_from(
    ["out", "out/in/it", "a.png", "text.png/x", "", ".", "/dev/null/x", "x" * 300, "p.png", "p.zzz"]
)
MODELS = st.sampled_from(
    ["timm/test_vitt", "timm/", "/", "x/y", "hf/", "torchvision/vit_b_61", "timm", "timm/regnetx_002"]
)
SPECS = st.sampled_from(["ixg", "rollout", "random", "generic(", "ixg(layer=9)", "plus(ixg)", "rolout", ",", "edges"])

VALUES: dict[str, st.SearchStrategy[str]] = {
    "--method": SPECS | WORDS,
    "--target": NUMBERS | WORDS,
    "--contrast": NUMBERS | WORDS,
    "--output": st.sampled_from(["prob", "logprob", "logits"]) | WORDS,
    "--checkpoint": PATHS,
    "--labels": PATHS,
    "--class-names": PATHS,
    "--img-size": st.sampled_from(["16", "33", "7", "0", "-3", "x", "48"]),
    "--num-classes": st.sampled_from(["1", "3", "0", "x", "9" * 15]),
    "--device": st.sampled_from(["cpu", "cuda:99", "meta", "banana", ""]) | WORDS,
    "--dtype": st.sampled_from(["float64", "bfloat16", "int8", "float33"]) | WORDS,
    "--batch-size": NUMBERS,
    "--memory-gb": NUMBERS | st.sampled_from(["1e-300", "0.001"]),
    "--seed": NUMBERS,
    "--tile": NUMBERS | st.just("48"),
    "--out": PLACES,
    "--model": MODELS | WORDS,
}
FLAGS = ["--json", "--quiet", "-q", "--overwrite", "--resume", "--original", "--no-pretrained", "--help", "--nonsense"]


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with some options; mostly one that fails before a model is built, sometimes one that runs."""
    command = draw(st.sampled_from(["explain"] * 4 + ["compare"] * 2 + ["methods", "models", "cite", "", "explian"]))
    full = [command]
    if command in ("methods", "models", "cite"):
        return [*full, *draw(st.lists(WORDS | SPECS, max_size=2)), *draw(st.sampled_from([[], ["--json"]]))]
    works = draw(st.integers(0, 9)) == 0  # one in ten has a model that can be built
    full += draw(st.lists(PATHS if not works else st.sampled_from(["a.png", "b.png", "more"]), max_size=3))
    full += MODEL if works else ["--model", draw(MODELS | WORDS)]
    for name in draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True)):
        if not (works and name == "--model"):
            full += [name, draw(VALUES[name])]
    full += draw(st.lists(st.sampled_from(FLAGS), max_size=2, unique=True))
    return full


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with photographs to be in; typer builds its parser once instead of each time."""
    folder, before = tmp_path_factory.mktemp("arguments"), Path.cwd()
    photographs(folder)
    (folder / "names.txt").write_text("cat\ndog\n")
    os.chdir(folder)
    with mock.patch.object(typer.main, "get_command", cache(typer.main.get_command)):
        yield folder
    os.chdir(before)


def content(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def run_cleanly(arguments: list[str], here: Path) -> None:
    before = content(here)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = run(*arguments)
    told_well(done)
    new = content(here) - before
    assert content(here) >= before, "a file of the user is gone"
    assert not any("partial" in str(path) for path in here.rglob("*partial*"))
    if done.code == 2:
        assert not {item for item in new if item.name not in WITH_LAYERS | {"original.png"}}
    for element in {entry.parent for entry in new if entry.name in FILES}:
        assert {file.name for file in element.iterdir()} >= FILES, "a folder is half-written"
    for element in new:
        element.unlink()
    for path in sorted(here.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            shutil.rmtree(path)


def told_well(done: Result) -> None:
    assert done.code in (0, 1, 2)
    assert "Traceback" not in done.err
    assert all(line.startswith("vitreous: ") and line.isprintable() for line in done.err.splitlines())
    if done.code == 2:
        assert done.out == ""
        assert done.err.splitlines()[-1].startswith("vitreous: error: ")


@OFTEN
@given(arguments=lines())
def test_any_arguments(arguments: list[str], here: Path) -> None:
    run_cleanly(arguments, here)


@pytest.mark.slow
@EVERYTHING
@given(arguments=lines())
def test_any_arguments_at_length(arguments: list[str], here: Path) -> None:
    run_cleanly(arguments, here)
