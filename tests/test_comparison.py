"""Several explanations of one picture, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from families import FAMILIES
from vitreous.errors import VitreousError


@pytest.fixture(scope="module")
def view() -> vt.View:
    return vt.view(FAMILIES["vit"](), name="tiny", labels=["zero", "one", "two", "three", "four"])


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (75, 110, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def compared(view: vt.View, photo: Image.Image) -> vt.Comparison:
    return vt.compare(view, photo, ["rollout", vt.method("ixg"), "skipplus(ixg)"], ["one", 4], value="prob", seed=9)


def test_one_row_per_target_one_column_per_method(compared: vt.Comparison) -> None:
    methods = ["rollout", "ixg", "skipplus(ixg)"]
    assert [[(each.target, each.method) for each in row] for row in compared.rows] == [
        [(target, method) for method in methods] for target in (1, 4)
    ]
    assert {(each.value, each.seed) for each in compared} == {("prob", 9)}


def test_comparing_is_explaining_each(view: vt.View, photo: Image.Image, compared: vt.Comparison) -> None:
    for each in compared:
        alone = vt.explain(view, photo, each.method, each.target, value="prob", seed=9)
        torch.testing.assert_close(each.map, alone.map)
        assert each.probability == pytest.approx(alone.probability, abs=1e-6)


def test_indexing(compared: vt.Comparison) -> None:
    flat = [each for row in compared.rows for each in row]
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
def test_panel(view: vt.View, photo: Image.Image, compared: vt.Comparison, tile: int) -> None:
    """The picture itself and one tile per method, side by side; every target adds one row."""
    gap = max(8, tile // 12)
    two = compared.panel(tile=tile)
    one = vt.compare(view, photo, ["rollout", "ixg", "skipplus(ixg)"], "one", value="prob").panel(tile=tile)
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


def test_a_wide_panel_is_broken_into_lines(view: vt.View, photo: Image.Image) -> None:
    found = vt.compare(view, photo, ["ixg", "generic", "rollout", "gradcam"])
    wide, narrow = found.panel(tile=64), found.panel(tile=64, columns=3)
    assert narrow.width < wide.width
    assert narrow.height > wide.height


@pytest.mark.parametrize(("methods", "target"), [([], None), (["ixg"], [])])
def test_nothing_to_compare(view: vt.View, photo: Image.Image, methods: list[str], target: Any) -> None:
    with pytest.raises(VitreousError):
        vt.compare(view, photo, methods, target)
