"""``vitreous world`` and ``vitreous demo`` as a user types them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import run, tree
from vitreous.world import World, render
from vitreous.world.dataset import read as read_scenes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_demo(here: Path) -> None:
    done = run("demo", "--out", "shown")
    assert (done.code, done.err) == (0, "")
    creatures = ("feelered-bimble", "fan-tailed-mossop", "webbed-fennet")
    assert {path.name for path in (here / "shown").iterdir()} == {
        *("manifest.json", "report.html", "why.html", "world.png", "shortcut.png"),
        *(f"{name}{end}.png" for name in creatures for end in ("", "-panel", "-siblings", "-owners")),
    }
    assert all(Image.open(here / "shown" / f"{name}-panel.png").size > (176 * 4, 176 * 2) for name in creatures)
    report = (here / "shown" / "report.html").read_text(encoding="utf-8")
    assert report.count("data:image/png;base64,") == 6 + 1 + 3 * (8 + 2) + 1  # why, creatures, scenes, shortcut
    assert "report.html" in done.out
    table = re.findall(r"<tr><td>(world[-a-z]*)</td>(.*?)</tr>", report)
    shares = {name: [float(share) for share in re.findall(r">([\d.]+) %<", row)] for name, row in table}
    honest, cheat = shares["world"], shares["world-shortcut"]
    assert honest[0] < 2 < 40 < cheat[0]  # on the marker
    assert cheat[1] < honest[1]  # on the creature
    assert (honest[2], cheat[2]) == (100, 100)
    assert cheat[3] < 40 < 97 < honest[3]  # right with a false marker


@pytest.mark.slow
def test_demo_is_the_same_each_time(here: Path) -> None:
    assert run("demo", "--out", "shown", "--quiet") == (0, "", "")
    before = tree(here)
    assert run("demo", "--out", "shown", "--quiet") == (0, "", "")
    assert tree(here) == before


def test_world(here: Path) -> None:
    done = run("world", "render", "--n", "3", "--size", "32", "--out", "scenes")
    assert (done.code, done.err) == (0, "")
    assert {path.name for path in (here / "scenes").iterdir()} == {
        "scenes.json",
        *(f"scene-000{i}{end}.png" for i in range(3) for end in ("", "-mask")),
    }
    outcome = json.loads((here / "scenes" / "scenes.json").read_text(encoding="utf-8"))
    scenes = read_scenes(here / "scenes" / "scenes.json")
    assert [item["class"] for item in outcome["scenes"]] == [scene.name for scene in scenes]
    assert scenes == World(n=3).scenes()
    result = render(scenes, 32)
    for i, scene in enumerate(outcome["scenes"]):
        mask = np.asarray(Image.open(here / "scenes" / scene["mask"]))
        assert (mask == result.owner[i].numpy()).all()
        seen = np.asarray(Image.open(here / "scenes" / scene["file"])).transpose(2, 0, 1)
        assert (seen == (result.images[i] * 255).round().numpy()).all()
    assert run("world", "show", "--n", "5", "--columns", "3", "--size", "32", "--kind", "pairs").code == 0
    assert Image.open(here / "world.png").size[0] > 3 * 96


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("render", "--out", "there"), "there"),
        (("render", "--out", "x", "--n", "0"), "0"),
        (("render", "--out", "x", "--size", "0"), "0"),
        (("render", "--out", "x", "--start", "-1"), "-1"),
        (("render", "--out", "x", "--split", "tset"), "'tset'"),
        (("render", "--out", "x", "--kind", "odd"), "odd"),
        (("show", "--out", "there"), "there"),
    ],
)
def test_bad_worlds(here: Path, arguments: tuple[str, ...], named: str) -> None:
    (here / "there").mkdir()
    (here / "there" / "mine.txt").touch()
    done = run("world", *arguments)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert named in done.err
