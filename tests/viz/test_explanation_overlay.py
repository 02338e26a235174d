"""The overlay of an explanation: its size, colours and opacity, its caption, and the file it is written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from families import FAMILIES, images
from vitreous import viz as show
from vitreous.errors import ImageError, VitreousError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](), name="tiny", class_names=["zero", "one", "two", "three", "four"])


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def explained(model: vt.VisionModel, photo: Image.Image) -> vt.Explanation:
    explanation: vt.Explanation = vt.explain(model, photo, "ixg", "two")
    return explanation


def test_sizes(explained: vt.Explanation, photo: Image.Image) -> None:
    assert explained.box is not None
    left, top, right, bottom = explained.box
    seen = (round(right - left), round(bottom - top))
    assert explained.overlay(size=320).size == (320, 320)
    assert explained.overlay(size=(100, 50)).size == (100, 50)
    assert explained.overlay(photo, size=250).size == (250, 188)
    assert explained.overlay(original=True, size=250).size == (250, 188)
    assert explained.overlay(original=True, size="photo").size == photo.size
    assert explained.overlay(size="photo").size == seen
    assert max(seen) > 320, "the photograph has more than the model saw"


def test_the_photograph_is_not_blurred(explained: vt.Explanation, photo: Image.Image) -> None:
    """Without the map, the overlay at the photograph's resolution has the noise that the model's input lost."""
    reference = explained.overlay(size="photo", opacity=0)
    enlarged = explained.overlay(size=reference.size, opacity=0)
    assert np.asarray(reference, float).std() > 3 * np.asarray(enlarged, float).std()
    assert np.asarray(reference, float).std() > 0.5 * np.asarray(photo, float).std()


def test_a_smaller_photograph_keeps_the_place_of_the_map(explained: vt.Explanation) -> None:
    resize = explained.overlay(original=True).resize((250, 188), Image.Resampling.LANCZOS)
    small = explained.overlay(original=True, size=(250, 188))
    assert np.abs(np.asarray(resize, float) - np.asarray(small, float)).mean() < 8


def test_colours_and_opacity(explained: vt.Explanation) -> None:
    scale, map = explained.scale, explained.map.numpy()
    assert (
        explained.overlay(colours="jet", opacity=1).tobytes()
        == show.overlay(explained.image, map, scale, 1, "jet").tobytes()
    )
    assert explained.overlay(opacity=0.2).tobytes() != explained.overlay().tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colours": "viridis"}, "colours='viridis' is not one of sequential, diverging, jet"),
        ({"opacity": 1.5}, r"opacity=1\.5 must be between 0 and 1"),
        ({"opacity": float("nan")}, "opacity=nan"),
        ({"size": 0}, "at least one pixel"),
        ({"size": (4, -1)}, r"at least one pixel, not the size \(4, -1\)"),
    ],
)
def test_nonsense_is_named(explained: vt.Explanation, options: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        explained.overlay(**options)


def test_a_photograph_has_to_be_there(model: vt.VisionModel, explained: vt.Explanation, photo: Image.Image) -> None:
    with pytest.raises(ImageError, match="no original photograph"):
        vt.explain(model, images(model.module, 1)[0], "ixg").overlay(size="photo")
    with pytest.raises(VitreousError, match="not of another picture"):
        explained.overlay(photo, size="photo")


def test_a_caption_and_a_legend_stand_under_it(explained: vt.Explanation) -> None:
    reference, page = explained.overlay(size=400), explained.overlay(size=400, caption=True)
    assert page.crop((0, 0, 400, 400)).tobytes() == reference.tobytes()
    assert page.width == 400
    assert page.height > 400 + 2 * 12
    words = [line.text for line in show.captioned(reference, explained.scale, explained.caption).lines]
    assert words[:2] == ["against", "for"]
    assert " ".join(words[5:]) == explained.caption
    small = explained.overlay(caption=True)
    assert small.width == 320, "a line of text needs room"


@pytest.mark.parametrize("ending", ["png", "jpg", "svg", "pdf"])
def test_a_path_that_ends_like_a_picture_is_one(explained: vt.Explanation, tmp_path: Path, ending: str) -> None:
    path = explained.save(tmp_path / f"x.{ending}")
    assert path == tmp_path / f"x.{ending}"
    if ending == "png":
        assert Image.open(path).tobytes() == explained.overlay(size="photo", caption=True).tobytes()
        explained.save(path, overwrite=True, caption=False)
        assert Image.open(path).tobytes() == explained.overlay(size="photo").tobytes()
        explained.save(path, overwrite=True, caption=False, original=True)
        assert Image.open(path).tobytes() == explained.overlay(original=True).tobytes()
    elif ending == "svg":
        assert b">against</text>" in path.read_bytes()
    before = path.read_bytes()
    with pytest.raises(VitreousError, match="is there already"):
        explained.save(path)
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_a_huge_photograph_is_made_smaller(model: vt.VisionModel, tmp_path: Path) -> None:
    explanation = vt.explain(model, Image.new("RGB", (2600, 2500), "teal"), "ixg")
    explanation.save(tmp_path / "x.png", caption=False)
    assert max(Image.open(tmp_path / "x.png").size) == 2048
    assert max(explanation.overlay(size="photo").size) > 2048


def test_without_the_photograph_it_has_the_size_of_the_input(
    model: vt.VisionModel, explained: vt.Explanation, photo: Image.Image, tmp_path: Path
) -> None:
    tensor = vt.explain(model, images(model.module, 1)[0], "ixg")
    tensor.save(tmp_path / "tensor.png", caption=False)
    assert Image.open(tmp_path / "tensor.png").size == (32, 32)
    photo.save(tmp_path / "photo.png")
    read = vt.explain(model, tmp_path / "photo.png", "ixg", "two")
    read.save(tmp_path / "there.png", caption=False)
    assert Image.open(tmp_path / "there.png").tobytes() == explained.overlay(size="photo").tobytes()
    photo.rotate(180).save(tmp_path / "photo.png")  # another photograph in its place
    read.save(tmp_path / "other.png", caption=False)
    assert Image.open(tmp_path / "other.png").size == (32, 32)
    (tmp_path / "photo.png").unlink()
    read.save(tmp_path / "gone", caption=False)
    assert Image.open(tmp_path / "gone" / "overlay.png").size == (32, 32)


def test_a_class_called_like_a_file_is_filed_in_a_folder(photo: Image.Image, tmp_path: Path) -> None:
    model = vt.wrap(FAMILIES["vit"](), name="tiny", class_names=["a.png", "b.pdf", "c", "d", "e"])
    photo.save(tmp_path / "photo.png")
    saved = vt.Archive(tmp_path / "out").save(vt.explain(model, tmp_path / "photo.png", "ixg", 0))
    assert saved.is_dir()
    assert vt.Explanation.load(saved).label == "a.png"


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
@pytest.mark.parametrize("name", ["rollout", "eigencam", "raw_attention", "random"])
def test_what_knows_no_class_names_none(model: vt.VisionModel, photo: Image.Image, tmp_path: Path, name: str) -> None:
    explanation = vt.explain(model, photo, name, "two")
    again = vt.Explanation.load(explanation.save(tmp_path / "e"))
    for item in (explanation, again):
        assert "two" not in item.caption
        assert "logit" not in item.caption
        assert "two" not in item.title
        assert item.caption.startswith(f"{name}: the same for every class of tiny")
        assert not item.scale.signed


def test_titles(model: vt.VisionModel, photo: Image.Image, explained: vt.Explanation) -> None:
    assert explained.title == f"Why two? {explained.probability:.2f}"
    rather = vt.explain(model, photo, "ixg", "two", contrast=["one", "four"])
    assert rather.title == f"Why two rather than one, four? {rather.probability:.2f}"


def test_a_method_from_elsewhere_is_taken_at_its_word(explained: vt.Explanation, tmp_path: Path) -> None:
    """A loaded explanation whose method is not known here is drawn by its values."""
    folder = explained.save(tmp_path / "e")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"method": "ixg"', '"method": "from_elsewhere"'))
    again = vt.Explanation.load(folder)
    assert again._method is None
    assert again.class_specific
    assert again.scale == explained.scale
    assert again.overlay().tobytes() == explained.overlay().tobytes()
