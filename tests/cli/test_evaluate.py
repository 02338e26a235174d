"""``vitreous evaluate`` and ``vitreous metrics`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import vitreous as vt
from commands import MODEL, NAME, photographs, run

MODEL = (NAME, *MODEL[2:])
FAST = ("--method", "ixg", "--metric", "deletion(steps=4)")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    photographs(tmp_path)
    (tmp_path / "text.png").unlink()
    return tmp_path


def score(*arguments: object) -> object:
    return run("evaluate", MODEL[0], *arguments, *MODEL[1:])


def test_table_on_standard_output(here: Path) -> None:
    done = score(
        "a.png", "more", "--method", "ixg,rollout", "--metric", "deletion(steps=4)", "--metric", "srg(steps=4)"
    )
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[:1] == ["method"]
    assert "deletion(steps=4) ↓" in lines[0]
    assert [line.split()[0] for line in lines[1:6]] == ["ixg", "rollout", "random", "constant", "centre"]
    assert "3 images" in lines[-1]


def test_the_numbers_are_the_librarys(here: Path) -> None:
    done = score("more", *FAST, "--out", "t.json", "--batch-size", 9, "--no-controls", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")
    result = json.loads((here / "t.json").read_text())
    assert result["images"] == ["b.png", "c.png"]
    assert result["plan"]["forward_batch"] == 9
    assert [item["name"] for item in result["methods"]] == ["ixg"]
    import torch

    torch.manual_seed(0)
    model = vt.load(NAME, pretrained=False, img_size=32)
    expected = vt.evaluate(model, here / "more", "ixg", "deletion(steps=4)", controls=False)
    scores = result["methods"][0]["scores"]["deletion(steps=4)"]["per_image"]
    np.testing.assert_allclose(scores, expected["ixg", "deletion(steps=4)"], atol=1e-5)


@pytest.mark.parametrize(
    "truth",
    [{"b.png": 3, "c": "tabby"}, [3, 281], [{"file": "b.png", "label": 3}, {"file": "c.png", "label": 281}]],
)
def test_labels(here: Path, truth: object) -> None:
    (here / "truth.json").write_text(json.dumps(truth))
    asked = ("--method", "ixg", "--metric", "deletion(steps=4, score_class=label)", "--target", "label")
    done = score("more", *asked, "--labels", "truth.json", "--json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert result["plan"]["target"] == "label"
    assert len(result["confidence"]["label"]) == 2


def test_half_precision_prints_its_audit(here: Path) -> None:
    done = score("a.png", *FAST, "--half")
    assert done.code == 0
    assert "float16" in done.out
    assert "states against float32: log p differs by at most" in done.out


def test_folder_of_maps(here: Path) -> None:
    (here / "maps").mkdir()
    for name in "bc":
        np.save(here / "maps" / f"{name}.npy", np.random.default_rng(1).normal(size=(2, 2)))
    done = score("more", "--method", "maps", "--metric", "deletion(steps=4)")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].startswith("maps ")
    (here / "maps" / "c.npy").unlink()
    assert "there is no map" in score("more", "--method", "maps", "--metric", "deletion(steps=4)").err


@pytest.mark.parametrize(
    ("arguments", "description"),
    [
        (("a.png", "--method", "rollot"), "unknown method 'rollot'"),
        (("a.png", "--metric", "insrtion"), "unknown metric 'insrtion'"),
        (("a.png", "--metric", "deletion(baseline=snow)"), "unknown baseline 'snow'"),
        (("nowhere.png",), "no such file: nowhere.png"),
        (("a.png", "--metric", "positive_perturbation"), "positive_perturbation needs the true classes: give --labels"),
        (("a.png", "--target", "label"), "needs the true classes: give --labels"),
        (("a.png", "--labels", "nowhere.json"), "labels nowhere.json cannot be read"),
        (("a.png", "--labels", "bad.json"), "labels bad.json must hold one class for each image"),
        (("a.png", "--labels", "other.json", *FAST), "there is no label for a.png"),
        (("a.png", "--out", "table.txt"), "must end in .json or .csv"),
        (("a.png", "--out", "there.json"), "there.json is there already"),
        (("a.png", "--batch-size", 0), "batch"),
        (("a.png", "--target", "dragon", *FAST), "dragon"),
    ],
)
def test_bad_input_is_one_line(here: Path, arguments: tuple[object, ...], description: str) -> None:
    (here / "bad.json").write_text('{"a.png": [1]}')
    (here / "other.json").write_text('{"b.png": 1}')
    (here / "there.json").write_text("")
    done = score(*arguments)
    assert (done.code, done.out) == (2, "")
    assert description in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_metrics_are_listed() -> None:
    done = run("metrics")
    assert done.code == 0
    for info in vt.list_metrics():
        assert info.name in done.out
        assert all(paper.venue in done.out for paper in info.papers[:1])
    one = run("metrics", "abpc")
    assert "Symmetric relevance gain" in one.out
    assert "better" in one.out
    assert "@coiba" in run("metrics", "insdel").out
    rows = json.loads(run("metrics", "token", "--json").out)
    assert {row["name"] for row in rows} == {info.name for info in vt.list_metrics() if "token" in info.name}
    assert rows[0]["forwards"] == 9
    assert rows[0]["higher_is_better"] is False
    wrong = run("metrics", "insrtion")
    assert (wrong.code, wrong.out) == (2, "")
    assert "no metric fits 'insrtion'; did you mean insertion" in wrong.err
