"""The page says how to make it again: the line that is printed, run, gives the same page, byte for byte."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from commands import MODEL, run
from families import FAMILIES

NAME = "timm/test_vit"
OPTIONS: dict[str, Any] = {"pretrained": False, "img_size": 32, "device": "cpu"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("a photo.png")
    return tmp_path


@pytest.fixture
def checkpoint(here: Path) -> Path:
    torch.manual_seed(7)
    path = here / "weights.pt"
    torch.save(vt.load(NAME, **OPTIONS).module.state_dict(), path)
    return path


def rerun(code: str, **names: Any) -> str:
    """Run the call on a page, with only what its comments say one must have; return the page it makes."""
    return eval(code, {"vt": vt, **names}).html()  # type: ignore[no-any-return]


def test_a_loaded_model_with_its_checkpoint(checkpoint: Path) -> None:
    model = vt.load(NAME, checkpoint=checkpoint, **OPTIONS)
    first = vt.why(model, "a photo.png", "ixg", 3, seed=5)
    assert f"checkpoint={str(checkpoint)!r}" in first.command
    assert "'a photo.png', target=3, method='ixg', seed=5" in first.command
    assert "#" not in first.command
    assert rerun(first.command) == first.html()


def test_labels_and_preprocess_are_loaded_again(checkpoint: Path, here: Path) -> None:
    (here / "names.txt").write_text("\n".join(f"kind {index}" for index in range(1000)))
    like = vt.Preprocess(size=(32, 32), mean=(0.4, 0.4, 0.4), crop=1.0)
    model = vt.load(NAME, checkpoint=checkpoint, class_names=here / "names.txt", preprocess=like, **OPTIONS)
    first = vt.why(model, "a photo.png", "ixg", "kind 7")
    assert "target='kind 7'" in first.command
    assert rerun(first.command) == first.html()
    names = [f"sort {index}" for index in range(1000)]
    named = vt.why(vt.load(NAME, checkpoint=checkpoint, class_names=names, **OPTIONS), "a photo.png", method="ixg")
    assert "# class_names: your own list of 1000" in named.command
    assert rerun(named.command, class_names=names) == named.html()


def test_the_step_of_effort_and_a_picture_in_hand() -> None:
    picture = Image.open("a photo.png").convert("RGB")
    first = vt.why(vt.load("world"), picture, effort="quick")
    assert first.command == "vt.why(vt.load('world'), image, effort='quick')\n# image: the image in hand"
    assert rerun(first.command, image=picture) == first.html()


def test_a_model_in_hand_is_identified_by_its_fingerprint() -> None:
    model = FAMILIES["vit"]()
    first = vt.why(model, "a photo.png", method="ixg")
    fingerprint = vt.wrap(model).fingerprint[:12]
    call, comment = first.command.splitlines()
    assert call == "vt.why(model, 'a photo.png', method='ixg')"
    assert comment == f"# model: a VisionTransformer of your own, fingerprint {fingerprint}"
    assert rerun(first.command, model=model) == first.html()
    assert f"weights {fingerprint}" in first.html()


def test_a_loaded_model_that_was_changed_is_one_in_hand(checkpoint: Path) -> None:
    model = vt.load(NAME, checkpoint=checkpoint, **OPTIONS)
    with torch.no_grad():
        model.module.head.weight.mul_(1.1)
    first = vt.why(model, "a photo.png", method="ixg")
    assert "vt.load" not in first.command
    assert "of your own, fingerprint" in first.command
    assert rerun(first.command, model=model) == first.html()


def test_random_weights_are_reported() -> None:
    first = vt.why(vt.load(NAME, **OPTIONS), "a photo.png", method="ixg")
    assert "# the weights are random: these have the fingerprint" in first.command


def test_a_target_in_a_list_and_a_method_that_has_no_spec(checkpoint: Path) -> None:
    model = vt.load(NAME, checkpoint=checkpoint, **OPTIONS)
    first = vt.why(model, "a photo.png", vt.get_method("ixg"), torch.tensor([4]))
    assert "target=4, method='ixg'" in first.command
    assert rerun(first.command) == first.html()


@pytest.mark.parametrize("options", [("--target", "3", "--method", "ixg", "--seed", "2"), ("--effort", "quick")])
def test_the_command_line_with_all_its_options(checkpoint: Path, options: tuple[str, ...]) -> None:
    done = run("why", "a photo.png", *MODEL, "--checkpoint", checkpoint, *options, "--out", "page.html")
    assert (done.code, done.err.count("error")) == (0, 0)
    page = Path("page.html").read_text()
    (printed,) = re.findall(r"<pre>(.*?)</pre>", page, flags=re.DOTALL)
    command = shlex.split(unescape(printed))
    assert command[0] == "vitreous"
    assert str(checkpoint) in command
    Path("page.html").unlink()
    assert run(*command[1:]).code == 0
    assert Path("page.html").read_text() == page
