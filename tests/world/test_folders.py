"""Folders of scenes are folders of pictures: their masks are not photographs, and their true classes are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import run
from vitreous.datasets import image_files

SMALL = ("--method", "ixg", "--metric", "deletion(steps=4)", "--no-controls", "--device", "cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run("world", "render", "--n", 3, "--out", "scenes", "-q").code == 0
    return tmp_path


def test_masks_are_no_photographs(here: Path) -> None:
    assert [image_file.name for image_file in image_files("scenes")] == [f"scene-000{n}.png" for n in range(3)]
    assert [image_file.name for image_file in image_files("scenes/scene-0000-mask.png")] == ["scene-0000-mask.png"]
    (here / "scenes" / "scenes.json").write_text("{")  # then nobody says so
    assert len(image_files("scenes")) == 6


@pytest.mark.parametrize(
    "message", ['[{"mask": "a.png"}]', '{"scenes": [{"mask": "a.png"}]}', '{"schema": 3, "scenes": 1}']
)
def test_other_files_of_that_name_say_nothing(tmp_path: Path, message: str) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "scenes.json").write_text(message)
    assert [image_file.name for image_file in image_files(tmp_path)] == ["a.png"]


def test_scenes_are_scored_and_explained_as_they_are(here: Path) -> None:
    done = run(
        "evaluate",
        "scenes",
        "--model",
        "world",
        *SMALL,
        "--labels",
        "scenes/scenes.json",
        "--target",
        "label",
        "--json",
    )
    assert (done.code, done.err) == (0, "")
    message = json.loads(done.out)
    assert message["images"] == [f"scene-000{n}.png" for n in range(3)]
    assert len(message["confidence"]["label"]) == 3
    done = run("explain", "scenes", "--model", "world", "--method", "ixg", "--device", "cpu", "-q")
    assert (done.code, done.err) == (0, "")
    assert sorted(path.name for path in Path("explanations").iterdir()) == [f"scene-000{n}" for n in range(3)]
