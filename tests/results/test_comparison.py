"""Several explanations of one picture, side by side."""

from __future__ import annotations

import base64
import io
import re
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from families import FAMILIES
from vitreous.errors import VitreousError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](), name="tiny", class_names=["zero", "one", "two", "three", "four"])


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (75, 110, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def compared(model: vt.VisionModel, photo: Image.Image) -> vt.Comparison:
    return vt.compare(
        model, photo, ["rollout", vt.get_method("ixg"), "skipplus(ixg)"], ["one", 4], output="prob", seed=9
    )


def test_one_row_per_target_one_column_per_method(compared: vt.Comparison) -> None:
    methods = ["rollout", "ixg", "skipplus(ixg)"]
    assert [[(item.target, item.method) for item in row] for row in compared.rows] == [
        [(target, method) for method in methods] for target in (1, 4)
    ]
    assert {(item.output, item.seed) for item in compared} == {("prob", 9)}


def test_comparing_is_explaining_each(model: vt.VisionModel, photo: Image.Image, compared: vt.Comparison) -> None:
    for item in compared:
        alone = vt.explain(model, photo, item.method, item.target, output="prob", seed=9)
        torch.testing.assert_close(item.map, alone.map)
        assert item.probability == pytest.approx(alone.probability, abs=1e-6)


def test_indexing(compared: vt.Comparison) -> None:
    flat = [item for row in compared.rows for item in row]
    assert len(compared) == 6
    assert list(compared) == flat
    assert [compared[i] for i in range(-1, 6)] == [flat[5], *flat]
    assert compared[1:3] == flat[1:3]
    assert compared["ixg"] is flat[1]
    with pytest.raises(KeyError, match="generic"):
        compared["generic"]
    with pytest.raises(IndexError):
        compared[6]


@pytest.mark.parametrize("tile", [48, 120])
def test_panel(model: vt.VisionModel, photo: Image.Image, compared: vt.Comparison, tile: int) -> None:
    """The picture itself and one tile per method, side by side; every target adds one row."""
    gap = max(8, tile // 12)
    two = compared.panel(tile=tile)
    one = vt.compare(model, photo, ["rollout", "ixg", "skipplus(ixg)"], "one", output="prob").panel(tile=tile)
    assert two.width == one.width == gap + 4 * (tile + gap)
    assert two.height >= one.height + tile


def test_saving_a_panel(compared: vt.Comparison, tmp_path: Path) -> None:
    path = compared.save(tmp_path / "deep" / "panel.png", tile=60)
    assert Image.open(path).tobytes() == compared.panel(tile=60).tobytes()
    before = path.read_bytes()
    with pytest.raises(VitreousError, match=r"panel\.png is there already"):
        compared.save(path)
    assert path.read_bytes() == before
    compared.save(path, overwrite=True, tile=70)
    assert Image.open(path).tobytes() == compared.panel(tile=70).tobytes()
    with pytest.raises(VitreousError, match=r"could not write .*panel\.nonsense"):
        compared.save(tmp_path / "panel.nonsense")
    assert not (tmp_path / "panel.nonsense").exists()


def test_comparison_in_a_notebook(compared: vt.Comparison) -> None:
    html = compared._repr_html_()
    assert html.count("data:image/png;base64,") == 1
    assert "tiny" in html


def test_a_wide_panel_is_broken_into_lines(model: vt.VisionModel, photo: Image.Image) -> None:
    result = vt.compare(model, photo, ["ixg", "generic", "rollout", "gradcam"])
    landscape, narrow = result.panel(tile=64), result.panel(tile=64, columns=2)
    assert narrow.width < landscape.width
    assert narrow.height > landscape.height
    for columns in (1, 9):
        assert [item.size for _, _, item in result.sheet(columns=columns).pictures][:5] == [(320, 320)] * 5
    with pytest.raises(VitreousError, match="columns=0 must be at least 1"):
        result.panel(columns=0)


@pytest.mark.parametrize(
    ("look", "messages"),
    [
        ({"scale": "row"}, "scale must be 'each', 'group' or 'panel', not 'row'"),
        ({"scale": 2}, "not 2; zoom=2 multiplies all sizes"),
        ({"tile": 10}, "at least 48 pixels, not 10"),
        ({"zoom": 0}, "zoom must be between"),
        ({"percentile": 0}, "percentile must be above 0"),
    ],
)
def test_a_look_that_makes_no_sense(compared: vt.Comparison, look: dict[str, Any], messages: str) -> None:
    with pytest.raises(VitreousError, match=messages):
        compared.panel(**look)


def info(result: vt.Comparison, **look: Any) -> list[str]:
    return [line.text for line in result.sheet(**look).lines]


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_rows_ask_and_tiles_name_what_they_explain(model: vt.VisionModel, photo: Image.Image) -> None:
    """Each method's own quantity; a method that knows no class has none, and no class in its tile."""
    methods = ["rollout", "ixg", "smooth(logprob(ixg), samples=2)", "vtranm", "eigencam", "eigengradcam"]
    result = vt.compare(model, photo, methods, ["one", 4])
    assert [item.title.split("?")[0] for item in result.rows[0]][:2] == [
        "What does the model look at, whatever the class",
        "Why one",
    ]
    lines = info(result, columns=9, tile=400)
    for label, row in zip(("one", "four"), result.rows, strict=True):
        assert f"Why {label}? {row[1].probability:.2f}" in lines
    notes = {title: note for title, note in pairwise(lines) if title in methods}
    assert notes["rollout"].startswith("the same for every class")
    assert notes["ixg"].startswith("logit")
    assert notes["smooth(logprob(ixg), samples=2)"].startswith("log-probability")
    assert notes["vtranm"].startswith("probability")
    assert notes["eigencam"].startswith("the same for every class")
    assert notes["eigengradcam"].startswith("logit; the sign is a convention")


def test_maps_without_for_and_against(model: vt.VisionModel, photo: Image.Image) -> None:
    for name, words in (("eigencam", "little"), ("eigengradcam", "little"), ("ixg", "against")):
        result = vt.compare(model, photo, [name])
        assert (result[0].map < 0).any()
        assert words in info(result)
        assert ("for" in info(result)) is (words == "against")
        assert result[0].scale.signed is (words == "against")


@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_pages_for_papers_hold_text_as_text(compared: vt.Comparison, tmp_path: Path, ending: str) -> None:
    path = compared.save(tmp_path / f"panel.{ending}", tile=60)
    data = path.read_bytes()
    page = compared.sheet(tile=60)
    if ending == "svg":
        root = ElementTree.fromstring(data)
        names = {"s": "http://www.w3.org/2000/svg", "x": "http://www.w3.org/1999/xlink"}
        assert [item.text for item in root.findall("s:text", names)] == [line.text for line in page.lines]
        image_of_map = [item.get(f"{{{names['x']}}}href") for item in root.findall("s:image", names)]
        embedded = [Image.open(io.BytesIO(base64.b64decode(str(item).partition(",")[2]))) for item in image_of_map]
        assert [item.tobytes() for item in embedded] == [item.tobytes() for _, _, item in page.pictures]
        return
    start = int(data.split(b"startxref\n")[1].split()[0])
    assert data[start : start + 4] == b"xref"
    places = [int(entry.split()[0]) for entry in data[start:].split(b"\n")[3:] if entry.endswith(b"n ")]
    assert len(places) == 6 + len(page.pictures)
    for number, place in enumerate(places, 1):
        assert data[place:].startswith(f"{number} 0 obj".encode())
    streams = [zlib.decompress(part.split(b"\nendstream")[0]) for part in data.split(b"stream\n")[1::2]]
    written = re.findall(rb"\((.*)\) Tj", streams[0])
    unescaped = [re.sub(rb"\\(.)", rb"\1", item).decode("cp1252") for item in written]
    assert unescaped == [line.text for line in page.lines]
    assert streams[1:] == [item.convert("RGB").tobytes() for _, _, item in page.pictures]


@pytest.mark.parametrize(("methods", "target"), [([], None), (["ixg"], [])])
def test_nothing_to_compare(model: vt.VisionModel, photo: Image.Image, methods: list[str], target: Any) -> None:
    with pytest.raises(VitreousError):
        vt.compare(model, photo, methods, target)
