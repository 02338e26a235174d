"""Pictures with hostile names, and results known by what was asked and not by a name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from commands import MODEL, photographs, result, run, tree
from families import FAMILIES, images


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "outside.txt").write_text("outside")
    monkeypatch.chdir(tmp_path / "work")
    return photographs(tmp_path / "work")


def explained(out: str = "out") -> set[str]:
    return {vt.Explanation.load(path.parent).name for path in Path(out).glob("*/*/*/manifest.json")}


@pytest.mark.parametrize("name", ["...jpg", "..jpg", "....png", " .png", "-.png", "con.png"])
@pytest.mark.parametrize("flag", [(), ("--overwrite",)])
def test_a_picture_called_dots_empties_nothing(here: Path, name: str, flag: tuple[str, ...]) -> None:
    Image.open("a.png").convert("RGB").save(name, format="PNG")
    (here / "out").mkdir()
    (here / "out" / "mine.txt").write_text("mine")
    before = tree(here.parent)
    done = run("explain", "./" + name, *MODEL, "--method", "ixg", "--out", "out", *flag)
    assert done.code == 0, done
    after = tree(here.parent)
    assert {path: content for path, content in after.items() if path in before} == before
    assert explained() == {name}


def test_saving_to_the_parent_is_refused(here: Path) -> None:
    e = vt.explain(FAMILIES["vit"](), images(FAMILIES["vit"](), 1)[0], "ixg", 1)
    before = tree(here.parent)
    for overwrite in (False, True):
        with pytest.raises(vt.VitreousError, match="not the name of something new"):
            e.save("new/..", overwrite=overwrite)
    assert tree(here.parent) == before


def test_the_users_own_folder_and_file_stay(here: Path) -> None:
    """Results beside the pictures: neither a folder called like a picture nor a picture without an ending is lost."""
    (here / "a").mkdir()
    (here / "a" / "thesis.tex").write_text("three years")
    Image.open("b.png").save("plain", format="PNG")
    before = tree(here)
    assert run("explain", "a.png", "plain", *MODEL, "--method", "ixg", "--out", ".", "--overwrite").code == 0
    after = tree(here)
    assert {path: content for path, content in after.items() if path in before} == before
    assert explained(".") == {"a.png", "plain"}


def test_a_long_name_does_not_stop_a_folder(here: Path) -> None:
    (here / "long").mkdir()
    for number, name in enumerate(("x" * 250 + ".png", "x" * 249 + "y.png", "short.png")):
        Image.fromarray(np.full((32, 32, 3), 40 * number, np.uint8)).save(here / "long" / name)
    assert run("explain", "long", *MODEL, "--method", "ixg", "--out", "out").code == 0
    assert explained() == set(os.listdir("long"))
    assert run("compare", "long/" + "x" * 250 + ".png", *MODEL, "--method", "ixg", "--tile", "48").code == 0


def test_two_pictures_of_one_stem_are_two_results_whenever_they_come(here: Path) -> None:
    value = (*MODEL, "--method", "ixg", "--out", "out", "--resume")
    assert run("explain", "a.png", *value).code == 0
    done = run("explain", "a.png", "a.bmp", *value)
    assert "1 left out" in done.out
    assert explained() == {"a.png", "a.bmp"}
    assert "2 left out" in run("explain", "a.bmp", "a.png", *value).out


# -- identity ----------------------------------------------------------------------------------------------------------


def test_another_question_is_another_result(here: Path) -> None:
    """Method, class, rivals, value, seed, weights, precision: each asks something else; the same again does not."""
    torch.save(vt.load(MODEL[1], pretrained=False, img_size=32).module.state_dict(), "other.pth")
    base = ("explain", "a.png", *MODEL, "--out", "out", "--resume")
    questions: list[tuple[str, ...]] = [
        ("--method", "ixg"),
        ("--method", "generic"),
        ("--method", "ixg", "--target", "7"),
        ("--method", "ixg", "--target", "7", "--contrast", "8"),
        ("--method", "ixg", "--target", "7", "--output", "prob"),
        ("--method", "ixg", "--seed", "1"),
        ("--method", "ixg", "--checkpoint", "other.pth"),
        ("--method", "ixg", "--dtype", "float64"),
        ("--method", "ixg(layer=1)"),
    ]
    for count, asked in enumerate(questions, 1):
        done = run(*base, *asked)
        assert done.code == 0
        assert "left out" not in done.out, asked
        assert len(list(Path("out/a").glob("*/*/manifest.json"))) == count
    for asked in questions:
        assert "1 left out" in run(*base, *asked).out, asked
    Image.open("b.png").save("a.png")  # another picture of that name
    assert "left out" not in run(*base, "--method", "ixg").out


def test_the_predicted_class_by_name_is_the_same_question(here: Path) -> None:
    run("explain", "a.png", *MODEL, "--out", "out", "--method", "ixg")
    target = vt.Explanation.load(result("out", "a")).target
    assert "1 left out" in run("explain", "a.png", *MODEL, "--out", "out", "--method", "ixg", "--target", target,
                               "--resume").out  # fmt: skip


def test_folders_that_a_person_can_read(here: Path) -> None:
    run("explain", "a.png", *MODEL, "--out", "out", "--target", "tiger cat")
    assert result("out", "a") == Path("out/a/quick/tiger-cat")
    run("explain", "b.png", *MODEL, "--out", "out", "--method", "ixg", "--target", "281", "--contrast", "lynx",
        "--output", "prob")  # fmt: skip
    assert result("out", "b") == Path("out/b/ixg-prob/tabby-not-lynx")


def test_statistics_are_not_mixed(here: Path) -> None:
    """Two models of one name, and pictures that changed under their names."""
    stats = ("stats", MODEL[1], "more", *MODEL[2:], "--out", "s.safetensors")
    assert run(*stats).code == 0
    before = Path("s.safetensors").read_bytes()
    torch.save(vt.load(MODEL[1], pretrained=False, img_size=32).module.state_dict(), "other.pth")
    Image.open("a.png").save("more/d.png")
    refused = run(*stats, "--resume", "--checkpoint", "other.pth")
    assert refused.code == 2
    assert "other weights" in refused.err
    pixels = Path("more/b.png").read_bytes()
    Image.open("a.png").save("more/b.png")
    refused = run(*stats, "--resume")
    assert (refused.code, "other images" in refused.err) == (2, True)
    assert Path("s.safetensors").read_bytes() == before
    Path("more/b.png").write_bytes(pixels)
    assert run(*stats, "--resume").code == 0
    assert vt.ActivationStats.load("s.safetensors").count == 3
    used = ("explain", "a.png", *MODEL, "--method", "coiba(steps=3, stats='s.safetensors')", "--json")
    assert run(*used).code == 0
    refused = run(*used, "--checkpoint", "other.pth")
    assert (refused.code, "other weights" in refused.err) == (2, True)


def test_too_few_pictures_do_not_replace_good_statistics(here: Path) -> None:
    good = ("stats", MODEL[1], "more", *MODEL[2:], "--out", "s.safetensors")
    assert run(*good).code == 0
    before = Path("s.safetensors").read_bytes()
    assert run("stats", MODEL[1], "a.png", *MODEL[2:], "--out", "s.safetensors", "--overwrite").code == 2
    assert Path("s.safetensors").read_bytes() == before
    assert run(*good, "--overwrite").code == 0
    Path("mine.safetensors.partial").write_text("not yours")
    assert run(*good[:-1], "mine.safetensors", "--overwrite").code == 2
    assert Path("mine.safetensors.partial").read_text() == "not yours"


def test_a_table_is_printed_even_if_it_cannot_be_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = ("evaluate", MODEL[1], "more", *MODEL[2:], "--method", "ixg", "--metric", "deletion(steps=2)")
    assert run(*value, "--out", "missing/t.json").code == 0
    before = Path("missing/t.json").read_bytes()
    refused = run(*value, "--out", "missing/t.json")
    assert (refused.code, refused.out, "is there already" in refused.err) == (2, "", True)
    refused = run(*value, "--out", "a.png/t.json")
    assert (refused.code, refused.out) == (2, "")

    def full(*_: object, **__: object) -> None:
        raise vt.VitreousError("could not write t.json: No space left on device")

    monkeypatch.setattr("vitreous.io.write_file", full)
    result = run(*value, "--out", "t.json")
    assert result.code == 2
    assert "deletion" in result.out
    assert Path("missing/t.json").read_bytes() == before


def test_a_manifest_is_json_for_everyone(here: Path) -> None:
    run("explain", "a.png", *MODEL, "--out", "out", "--method", "ixg")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads((result("out", "a") / "manifest.json").read_text(), parse_constant=refuse)
