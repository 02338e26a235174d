"""How commands fail: one line, an exit code, and nothing left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from commands import MODEL, NAME, WITH_LAYERS, photographs, result, run, tree
from vitreous.errors import ImageError, VitreousError
from vitreous.models import registry as hub
from vitreous.results import Explanation


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


def only_line(arguments: tuple[Any, ...], here: Path) -> str:
    """Run a command that must fail: one line on standard error, exit code 2, not a file more or less."""
    before = tree(here)
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("vitreous: error: ")
    assert done.err.endswith("\n")
    assert done.err.count("\n") == 1
    assert tree(here) == before
    return done.err


# what is wrong: the arguments that replace or follow those of a good command, and what the line must name
WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "class index": (("--target", "1000"), r"1000 is outside 0\.\.999"),
    "negative index": (("--target=-1",), r"-1 is outside 0\.\.999"),
    "almost an index": (("--target", "+-3"), r"'\+-3'"),
    "label": (("--target", "tabbi"), r"'tabbi'; did you mean tabby"),
    "ambiguous label": (("--target", "crane"), r"'crane' names several classes: \d+ \(crane.*\d+ \(crane"),
    "rival": (("--contrast", "tabbi"), r"'tabbi'; did you mean tabby"),
    "value": (("--output", "logits"), r"'logits' is not one of logit, prob, logprob"),
    "device": (("--device", "banana"), r"'banana'"),
    "absent device": (("--device", "xpu:7"), r"'xpu:7'"),
    "device without memory": (("--device", "meta"), r"no weights yet: it is on the meta device"),
    "memory": (("--memory-gb", "inf"), r"memory_gb=inf is not a number of GiB"),
    "dtype": (("--dtype", "float33"), r"'float33' is not one of float64, float32, bfloat16, float16"),
    "unusable dtype": (("--dtype", "float8_e4m3fn"), r"'float8_e4m3fn' is not one of"),
    "model": (("--model", "timm/test_vitt"), r"'timm/test_vitt'; did you mean timm/test_vit"),
    "model without family": (("--model", "test_vit"), r"'test_vit'; did you mean timm/test_vit"),
    "no classes": (("--num-classes", "0"), r"'--num-classes'"),
    "missing labels": (("--class-names", "no.txt"), r"labels no\.txt cannot be read"),
    "too few labels": (("--class-names", "two.txt"), r"1000 classes but 2 labels"),
    "labels with gaps": (("--class-names", "map.json"), r"map\.json hold no name for class 0"),
    "missing checkpoint": (("--checkpoint", "no.pth"), r"no checkpoint at no\.pth"),
    "checkpoint that is a folder": (("--checkpoint", "more"), r"no checkpoint at more"),
    "checkpoint that is text": (("--checkpoint", "two.txt"), r"two\.txt"),
    "checkpoint of another model": (
        ("--checkpoint", "other.pth"),
        r"missing \(cls_token, .*1 unexpected \(odd\); 1 of another shape \(head\.bias \(3,\) for \(1000,\)\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("command", ["explain", "compare"])
def test_wrong_options(here: Path, case: str, command: str) -> None:
    Path("two.txt").write_text("cat\ndog\n")
    Path("map.json").write_text('{"cat": 1}')
    torch.save({"head.bias": torch.zeros(3), "odd": torch.zeros(1)}, "other.pth")
    options, named = WRONG[case]
    line = only_line((command, "a.png", *MODEL, *options), here)
    assert re.search(named, line), line


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("rolout", r"'rolout'; did you mean rollout"),
        ("skipplus(ixg", r"at character 13"),
        ("gradcam(layer=)", r"at character 15"),
        ("gradcam(layer=99)", r"99"),
        ("gradcam(nonsense=1)", r"nonsense"),
        ("ixg)", r"at character 4"),
        ("", r"the argument after --method is empty"),
    ],
)
def test_wrong_methods(here: Path, spec: str, named: str) -> None:
    line = only_line(("explain", "a.png", *MODEL, "--method", spec), here)
    assert re.search(named, line), line
    if spec:
        line = only_line(("compare", "a.png", *MODEL, "--method", f"rollout,{spec}"), here)
        assert re.search(named, line), line


@pytest.mark.parametrize(
    ("pictures", "named"),
    [
        (("no.png",), r"no such file: no\.png"),
        (("a.png", "no.png"), r"no such file: no\.png"),
        (("text.png",), r"text\.png is not an image"),
        (("empty",), r"no images in the folder empty"),
        (("line\nbreak.png",), r"break\.png"),
    ],
)
def test_wrong_pictures(here: Path, pictures: tuple[str, ...], named: str) -> None:
    Path("empty").mkdir()
    assert re.search(named, only_line(("explain", *pictures, *MODEL, "--out", "out"), here))
    if len(pictures) == 1:
        assert re.search(named, only_line(("compare", *pictures, *MODEL), here))


def test_places_that_cannot_be_written(here: Path) -> None:
    assert run("explain", "a.png", *MODEL, "--method", "rollout", "--out", "done").code == 0
    again = ("explain", "b.png", "a.png", *MODEL, "--method", "rollout", "--out", "done")
    assert "done/a/rollout" in only_line(again, here)
    assert "b.png is there already" in only_line(("compare", "a.png", *MODEL, "--out", "b.png"), here)
    for out in ("text.png", "text.png/inside"):
        assert "could not write text.png" in only_line(("explain", "a.png", *MODEL, "--out", out), here)
        assert "text.png" in only_line(("demo", "--out", out), here)
    few = (*MODEL, "--method", "rollout", "--tile", "48")
    assert "could not write" in only_line(("compare", "a.png", *few, "--out", "text.png/x.png"), here)
    assert "could not write" in only_line(("compare", "a.png", *few, "--out", "panel.nonsense"), here)


@pytest.mark.parametrize("original", [False, True])
def test_a_full_disk(here: Path, monkeypatch: pytest.MonkeyPatch, original: bool) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    Path("out").mkdir()
    with monkeypatch.context() as patched:
        if original:
            show = "vitreous.viz.on_photo"
            patched.setattr(show, lambda *args, **kwargs: type("Unwritable", (), {"save": full})())
        else:
            patched.setattr(np, "save", full)
        line = only_line(("explain", "a.png", *MODEL, "--out", "out", *["--original"][: int(original)]), here)
    assert "No space left on device" in line


@pytest.mark.parametrize("batch", [1, 32])
def test_a_bad_picture_among_good_ones_is_skipped(here: Path, batch: int) -> None:
    """Named in one line; the others are explained, each into its own folder; the exit code tells."""
    settings = ("explain", "a.png", "text.png", "b.png", "a.png", *MODEL, "--batch-size", batch)
    done = run(*settings, "--out", "out")
    assert done.code == 1
    assert done.err == "vitreous: warning: skipped text.png: is not an image that can be read\n"
    assert {path.name for path in Path("out").iterdir()} == {"a", "b"}  # the same picture twice is one result
    for name in ("a", "b"):
        place = result("out", name)
        assert {path.name for path in place.iterdir()} == WITH_LAYERS
        assert Explanation.load(place).source == f"{name[0]}.png"
    outcome = run(*settings, "--json", "--quiet")
    assert (outcome.code, outcome.err) == (1, done.err)
    assert [row["source"] for row in json.loads(outcome.out)["explanations"]] == ["a.png", "b.png", "a.png"]


def test_nothing_but_bad_pictures(here: Path) -> None:
    Path("zero.png").touch()
    before = tree(here)
    done = run("explain", "text.png", "zero.png", *MODEL, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [
        "vitreous: warning: skipped text.png: is not an image that can be read",
        "vitreous: warning: skipped zero.png: is empty (0 bytes)",
        "vitreous: error: none of the 2 images can be read",
    ]
    assert tree(here) == before


@pytest.mark.parametrize("command", ["explain", "compare"])
def test_offline(here: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    for _ in range(2):  # told to stay offline, as tests are; then with a network that does not answer
        line = only_line((command, "a.png", "--model", NAME), here)
        assert f"could not fetch the weights of {NAME}" in line
        monkeypatch.setattr("socket.create_connection", refuse)
        monkeypatch.setattr(hub, "getproxies", dict)
        monkeypatch.setattr(hub.hub, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub.hub, "HF_HUB_CACHE", str(here))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("methods", "rolout"), "'rolout'; did you mean rollout"),
        (("models", "timm/test_vitt"), "'timm/test_vitt'; did you mean timm/test_vit"),
        (("cite", "rolout"), "'rolout'; did you mean rollout"),
        (("cite", "random"), "random has no paper"),
        (("compare", "a.png", "--method", ","), "names no method"),
    ],
)
def test_wrong_words_to_lists(here: Path, arguments: tuple[str, ...], named: str) -> None:
    assert named in only_line(arguments, here)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nonsense",), "nonsense"),
        (("explain",), "images"),
        (("explain", "a.png", "--seed", "x"), "--seed"),
        (("explain", "a.png", "--nonsense"), "--nonsense"),
    ],
)
def test_usage_errors(here: Path, arguments: tuple[str, ...], named: str) -> None:
    assert named in only_line(arguments, here).lower()  # some versions of typer write arguments in capitals


@pytest.mark.parametrize("option", ["--img-size", "--batch-size"])
def test_numbers_that_make_no_sense(here: Path, option: str) -> None:
    before = tree(here)
    done = run("explain", "a.png", *MODEL, option, "0")
    assert (done.code, done.out) == (2, "")
    assert re.search(r"error:", done.err, re.IGNORECASE)
    assert tree(here) == before


def test_debug_shows_where(here: Path) -> None:
    for arguments in (("--debug", "explain", "no.png"), ("explain", "no.png", "--debug")):
        with pytest.raises(ImageError, match=r"no\.png"):
            run(*arguments)
    with pytest.raises(VitreousError, match="rolout"):
        run("cite", "rolout", "--debug")


def test_warnings_are_one_line(here: Path) -> None:
    """A grey picture has no edges: a warning, and still a result."""
    Image.new("RGB", (40, 40), (9, 9, 9)).save("flat.png")
    done = run("explain", "flat.png", *MODEL, "--method", "edges", "--json")
    assert done.code == 0
    assert done.err.startswith("vitreous: warning: edges: the map of image 0 is ")
    assert done.err.count("\n") == 1


def test_programming_errors_are_not_hidden(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        raise ZeroDivisionError

    monkeypatch.setattr("vitreous.api.iter_explanations", broken)
    with pytest.raises(ZeroDivisionError):
        run("explain", "a.png", *MODEL)
