"""``vitreous evaluate --figures``, and a folder of figures from Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import vitreous as vt
from commands import MODEL, NAME, photographs, run
from score_tables import table
from vitreous.errors import VitreousError

pytest.importorskip("matplotlib", reason="figures need matplotlib")

FAST = ("--method", "ixg", "--metric", "deletion(steps=4)", "--metric", "average_drop")
DRAWN = ["deletion-steps=4-bars.svg", "deletion-steps=4-curves.svg", "average_drop-bars.svg"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return photographs(tmp_path)


def score(*arguments: object) -> object:
    return run("evaluate", NAME, "more", *arguments, *MODEL[2:])


def test_one_file_for_each_figure(here: Path) -> None:
    done = score(*FAST, "--figures", "drawn")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"drawn in drawn: {', '.join(DRAWN)}"
    assert sorted(path.name for path in Path("drawn").iterdir()) == sorted([*DRAWN, "manifest.json"])
    for name in DRAWN:
        assert ElementTree.parse(here / "drawn" / name).getroot().tag.endswith("svg")
    manifest = json.loads((here / "drawn" / "manifest.json").read_text())
    assert manifest["schema"] == "vitreous.figures/1"
    assert [item["kind"] for item in manifest["figures"]] == ["bars", "curves", "bars"]
    again = score(*FAST, "--figures", "drawn")
    assert (again.code, again.out) == (2, "")
    assert "drawn is there already" in again.err
    assert len(again.err.strip().splitlines()) == 1
    quiet = score(*FAST, "--figures", "drawn", "--overwrite", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_what_is_not_ours_stays(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("years")
    for more, info in (((), "there already"), (("--overwrite",), "holds thesis.txt, which was not written here")):
        done = score(*FAST, "--figures", "mine", *more)
        assert (done.code, done.out) == (2, "")
        assert info in done.err
        assert len(done.err.strip().splitlines()) == 1
    assert [path.name for path in (here / "mine").iterdir()] == ["thesis.txt"]


def test_matplotlib_is_missed_before_the_work(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = score(*FAST, "--figures", "drawn")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'vitreous[plot]'" in done.err
    assert not (here / "drawn").exists()


def test_bins_where_there_are_enough_images(tmp_path: Path) -> None:
    assert table(n=39).save_figures(tmp_path / "few") == ["insdel-steps=4-bars.svg", "insdel-steps=4-curves.svg"]
    assert table(n=40).save_figures(tmp_path / "enough")[-1] == "insdel-steps=4-bins.svg"
    with pytest.raises(VitreousError, match="there already"):
        table().save_figures(tmp_path / "few")


def test_specs_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    benchmark: vt.ScoreTable = table(metrics=("insdel(steps=4)", "insdel( steps=4 )"), curves=False, n=3)
    assert benchmark.save_figures(tmp_path / "d") == ["insdel-steps=4-bars.svg", "insdel-steps=4-bars-2.svg"]
