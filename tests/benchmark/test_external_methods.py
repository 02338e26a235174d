"""Methods of others that fail on some pictures, labels that no table should have, and links that lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import vitreous as vt
from commands import run as command
from run_files import create_run, protocol
from tiny_benchmark import of_folder, photos, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.protocol import DataSpec, EvaluationSpec, read
from vitreous.benchmark.report import report
from vitreous.benchmark.store import status
from vitreous.datasets import read_samples
from vitreous.errors import VitreousError

MODULE = """
def sometimes(model, inputs, classes):
    if (inputs[:, 0, 0, 0] > 0).any():
        raise ValueError("the corner is red\\nand that is bad")
    return inputs.sum(dim=1)

def always(model, inputs, classes):
    raise ValueError("never again")
"""
ROWS = {"bad": "faulty_ones:sometimes", "rollout": "rollout"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "faulty_ones.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return photos(tmp_path / "photos", 6)


def red_corners(folder: Path) -> set[str]:
    """The pictures on which it fails, by the very inputs of the model."""
    model = vt.load("world", device="cpu")
    paths = sorted(folder.iterdir())
    inputs = [sample.image.tensor for sample in read_samples([str(path) for path in paths], model)]
    return {path.name for path, input_ in zip(paths, inputs, strict=True) if input_[0, 0, 0] > 0}


def test_pictures_on_which_it_fails_have_no_map_of_it(folder: Path, tmp_path: Path) -> None:
    store = ran(of_folder(folder, methods=ROWS, images_per_unit=6), tmp_path / "run")
    bad = red_corners(folder)
    assert 0 < len(bad) < 6
    (result,) = collect(store)
    (metric,) = result.table.metrics
    scores = dict(zip(result.table.images, result.table["bad", metric], strict=True))
    lost = {name for name, score in scores.items() if np.isnan(score)}
    assert lost == bad
    assert not np.isnan(result.table["rollout", metric]).any(), "others are as they were"
    assert result.failed == {"bad": dict.fromkeys(bad, r"ValueError: the corner is red\nand that is bad")}
    assert result.table.degenerate["bad"]["nonfinite"] == len(bad)
    alone = ran(of_folder(folder, methods={"rollout": "rollout"}, images_per_unit=6), tmp_path / "alone")
    (other,) = collect(alone)
    assert other.table["rollout", metric].tolist() == pytest.approx(result.table["rollout", metric].tolist())


def test_it_is_said_by_name(folder: Path, tmp_path: Path) -> None:
    store = ran(of_folder(folder, methods=ROWS, images_per_unit=6), tmp_path / "run")
    bad = red_corners(folder)
    assert set(status(store).failed["bad"]) == bad
    outcome = command("bench", "status", tmp_path / "run")
    assert f"{len(bad)} images have no map of bad, which failed on them:" in outcome.out
    assert r"ValueError: the corner is red\nand that is bad" in outcome.out
    page = report(tmp_path / "run").page.read_text()
    assert re.search(rf"<td>bad</td><td>all</td><td>on {len(bad)} pictures, such as {min(bad)}: ValueError: the", page)


def test_where_it_fails_on_all_the_unit_fails(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match=r"1 units failed 3 times, such as ValueError: never again"):
        ran(of_folder(folder, methods={"bad": "faulty_ones:always"}, images_per_unit=6), tmp_path / "run")


def test_maps_of_a_folder_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    for number in range(6):
        np.save(maps / f"{number:04d}.npy", np.random.default_rng(number).random((8, 8), dtype=np.float32))
    (maps / "0003.npy").unlink()
    store = ran(of_folder(folder, methods={"stored": str(maps)}, images_per_unit=6), tmp_path / "run")
    (result,) = collect(store)
    assert set(result.failed["stored"]) == {"0003.png"}
    assert "there is no map" in result.failed["stored"]["0003.png"]


# -- labels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["two\nlines", "tab\there", "turned\u202earound", " "])
@pytest.mark.parametrize("where", ["methods", "models", "data"])
def test_labels_are_one_line_that_can_be_seen(tmp_path: Path, label: str, where: str) -> None:
    names = {"methods": "row", "models": "model", "data": "set"} | {where: label}
    row, model, data = (json.dumps(names[name]) for name in ("methods", "models", "data"))
    path = tmp_path / "mine.toml"
    path.write_text(
        f'schema = "vitreous.protocol/1"\ntitle = "x"\nmodels = [{{label = {model}, name = "world"}}]\n'
        f'[data]\nsource = "world"\nlabel = {data}\n[evaluation]\nmetrics = ["gini"]\n[methods]\n{row} = "rollout"\n'
    )
    with pytest.raises(VitreousError, match=r"mine\.toml: .*(can be seen|must be text)") as error:
        read(path)
    assert str(error.value).isprintable()


def test_a_label_out_of_range_is_named_with_its_picture(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 2)
    (folder / "list.csv").write_text("file,label\n0000.png,3\n0001.png,999\n")
    wanted = tiny(data=DataSpec("csv", path=str(folder / "list.csv")), target="label")
    with pytest.raises(VitreousError, match=r"^0001\.png: class index 999 is outside 0\.\.47"):
        ran(wanted, tmp_path / "run")


# -- links ---------------------------------------------------------------------------------------------------------


def test_every_link_of_the_page_leads_somewhere(tmp_path: Path) -> None:
    wanted = protocol(evaluation=EvaluationSpec(("insertion",)))
    page = report(create_run(tmp_path, wanted)).page.read_text()
    links = re.findall(r'<a href="#([^"]+)">', page)
    assert {"m1-scores", "m1-ranks", "settings", "again"} <= set(links)
    assert "m1-metrics" not in links
    assert all(f'id="{link}"' in page for link in links)
