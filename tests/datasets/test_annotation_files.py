"""Regions from files: folders of masks, tables of boxes and masks, scenes; in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from commands import MODEL, NAME, run
from families import FAMILIES
from vitreous.datasets import LoadedImage, load_images
from vitreous.errors import ImageError

MODEL = (NAME, *MODEL[2:])


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two photographs whose object is white, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for name, left in (("a.jpg", 20), ("b.jpg", 50)):
        Image.fromarray(np.repeat(draw_mask(left)[..., None] * np.uint8(255), 3, axis=2)).save(
            tmp_path / "photos" / name, quality=95
        )
    return tmp_path


def draw_mask(left: int) -> Any:
    numbers = np.zeros((80, 120), np.uint8)
    numbers[20:60, left : left + 40] = 1
    return numbers


def seen(model: vt.VisionModel) -> list[LoadedImage]:
    return list(load_images(Path("photos"), model))


def close(truth: vt.Annotation, picture: LoadedImage) -> bool:
    """Whether the region is where the picture is white."""
    bright = np.asarray(picture.image)[..., 0] > 127
    return bool((truth.region(size=bright.shape) == bright).mean() > 0.95 and bright.any())


@pytest.mark.parametrize(
    "write",
    [
        lambda mask: Image.fromarray(mask * 255),
        lambda mask: Image.fromarray(mask),
        lambda mask: Image.fromarray(mask.astype(bool)),
        lambda mask: Image.fromarray(mask, mode="P"),
        lambda mask: Image.fromarray(mask.astype(np.uint16) * 700),
        lambda mask: Image.fromarray(np.stack([mask * 0, mask * 3, mask * 0], axis=2)),
        lambda mask: Image.fromarray(np.stack([mask, mask, mask, mask * 0 + 255], axis=2)),
    ],
    ids=["255", "1", "bit", "palette", "16 bits", "colour", "alpha"],
)
def test_masks_named_like_the_pictures(here: Path, model: vt.VisionModel, write: Any) -> None:
    (here / "masks").mkdir()
    for name, left in (("a", 20), ("b", 50)):
        write(draw_mask(left)).save(here / "masks" / f"{name}.png")
    names_seen = vt.load_annotations("masks")
    for picture in seen(model):
        truth = names_seen(picture)
        assert close(truth, picture)
        assert truth.ignore is None


def test_trimaps_are_recognised_beside_their_pictures(here: Path, model: vt.VisionModel) -> None:
    """As the pets have them: in the folder of the photographs, and named in a table."""
    for name, left in (("a", 20), ("b", 50)):
        numbers = 2 - draw_mask(left)
        numbers[:10] = 3
        Image.fromarray(numbers).save(here / "photos" / f"{name}.png")
    table = [{"file": f"{name}.jpg", "mask": f"{name}.png", "label": 3} for name in "ab"]
    (here / "photos.json").write_text(json.dumps(table))
    for names_seen in (
        vt.load_annotations("photos"),
        vt.load_annotations("photos.json"),
        vt.load_annotations("photos", trimap=True),
    ):
        for picture in load_images(["photos/a.jpg", "photos/b.jpg"], model):
            truth = names_seen(picture)
            assert close(truth, picture)
            assert truth.ignore[0].all()
            assert not truth.ignore[-1].any()
    reference = vt.load_annotations("photos", trimap=False)
    assert all(reference(picture).mask.all() for picture in load_images(["photos/a.jpg"], model))


def test_ignored_numbers(here: Path, model: vt.VisionModel) -> None:
    """ImageNet-S writes 1000 as a colour: 232 + 3 * 256."""
    (here / "masks").mkdir()
    for name, left in (("a", 20), ("b", 50)):
        colours = np.zeros((80, 120, 3), np.uint8)
        colours[..., 0] = draw_mask(left) * 17
        colours[:10] = (232, 3, 0)
        Image.fromarray(colours).save(here / "masks" / f"{name}.png")
    for picture in seen(model):
        truth = vt.load_annotations("masks", ignore=1000)(picture)
        assert close(truth, picture)
        assert truth.ignore[0].all()
        assert vt.load_annotations("masks")(picture).mask[0].all()


BOXES = {"a.jpg": [[20, 20, 60, 60]], "b.jpg": [[50, 20, 70, 60], [60, 20, 90, 60]]}


def fractions(boxes: Any) -> Any:
    return [[a / 120, b / 80, c / 120, d / 80] for a, b, c, d in boxes]


@pytest.mark.parametrize(
    "reported",
    [
        BOXES,
        {name: fractions(boxes) for name, boxes in BOXES.items()},
        {name.removesuffix(".jpg"): boxes for name, boxes in BOXES.items()},
        [{"file": name, "boxes": boxes} for name, boxes in BOXES.items()],
        [{"file": f"val/{name}", "boxes": fractions(boxes), "label": 7} for name, boxes in BOXES.items()],
        {name: {"boxes": boxes} for name, boxes in BOXES.items()},
    ],
    ids=["pixels", "shares", "stems", "list", "list of shares", "objects"],
)
def test_boxes(here: Path, model: vt.VisionModel, reported: Any) -> None:
    (here / "boxes.json").write_text(json.dumps(reported))
    names_seen = vt.load_annotations("boxes.json")
    for picture in seen(model):
        assert close(names_seen(picture), picture)


def test_scenes_know_their_creatures(here: Path) -> None:
    """What is read from the files is what the world says."""
    assert run("world", "render", "--out", "rendered", "--n", 3, "-q").code == 0
    model = vt.load("world")
    names_seen = vt.load_annotations("rendered/scenes.json")
    owners = json.loads(Path("rendered/scenes.json").read_text())["owners"]
    for picture in load_images(Path("rendered"), model):
        numbers = np.asarray(Image.open(picture.path.with_name(picture.path.stem + "-mask.png")))
        truth = names_seen(picture)
        creature = np.isin(numbers, [owners[name] for name in ("body", "horn", "eyes", "coat", "legs", "tail")])
        assert truth.mask.mean() == pytest.approx(creature.mean(), abs=0.02)
        assert set(truth.parts) == {"body", "horn", "eyes", "coat", "legs", "tail"}


@pytest.mark.parametrize(
    ("reported", "message"),
    [
        ("{", "annotations: boxes.json is no JSON"),
        ("[]", "a line for each image, but there is none"),
        ("3", "a line for each image, but there is none"),
        (
            '{"a.jpg": [[1, 2, 3]]}',
            r"boxes as .left, top, right, bottom., but those of a.jpg are \[\[1, 2, 3\]\]",
        ),
        ('{"a.jpg": [["x", 2, 3, 4]]}', "those of a.jpg are"),
        ('[{"boxes": []}]', "a list of tables with file"),
        ('{"c.jpg": []}', "boxes.json has no annotation of a.jpg"),
        ('{"a.jpg": "nowhere.png"}', "the mask nowhere.png of a.jpg is neither beside boxes.json nor beside"),
        ('{"a.jpg": [[9, 2, 3, 4]]}', "those of a.jpg are"),
    ],
)
def test_bad_tables(here: Path, model: vt.VisionModel, reported: str, message: str) -> None:
    (here / "boxes.json").write_text(reported)
    with pytest.raises(ImageError, match=message):
        vt.load_annotations("boxes.json")(seen(model)[0])


def test_bad_folders(here: Path, model: vt.VisionModel) -> None:
    with pytest.raises(ImageError, match="no masks in the folder photos"):
        vt.load_annotations("photos")
    (here / "masks").mkdir()
    (here / "masks" / "b.png").write_bytes(b"nothing")
    first, second = seen(model)
    with pytest.raises(ImageError, match=r"of the masks in masks, none is named like a\.jpg"):
        vt.load_annotations("masks")(first)
    with pytest.raises(ImageError, match=r"the mask masks/b\.png cannot be read"):
        vt.load_annotations("masks")(second)
    (here / "masks" / "b.bmp").write_bytes(b"nothing")
    with pytest.raises(ImageError, match=r"b\.bmp and b\.png both are named like b\.jpg"):
        vt.load_annotations("masks")(second)
    with pytest.raises(ImageError, match=r"annotations: none\.json cannot be read: No such file"):
        vt.load_annotations("none.json")


# -- the command line --------------------------------------------------------------------------------------


def score(*arguments: object) -> Any:
    return run("evaluate", MODEL[0], "photos", "--method", "ixg", "--no-controls", *arguments, *MODEL[1:])


def test_score_with_regions(here: Path) -> None:
    (here / "boxes.json").write_text(json.dumps(BOXES))
    done = score("--metric", "iou", "--metric", "miou", "--annotations", "boxes.json", "--json")
    assert (done.code, done.err) == (0, "")
    actual = json.loads(done.out)["methods"][0]["scores"]
    import torch

    torch.manual_seed(0)
    model = vt.load(NAME, pretrained=False, img_size=32)
    truth = vt.load_annotations("boxes.json")
    table = vt.evaluate(model, "photos", "ixg", ["iou", "miou"], annotations=truth, controls=False)
    for metric in ("iou", "miou"):
        np.testing.assert_allclose(actual[metric]["per_image"], table["ixg", metric], atol=1e-4)


def test_one_clear_line_where_regions_are_missing(here: Path) -> None:
    done = score("--metric", "insdel", "--metric", "ap")
    assert (done.code, done.out) == (2, "")
    assert "ap needs to know where the objects are: give --annotations" in done.err
    assert len(done.err.strip().splitlines()) == 1
    done = score("--metric", "ap", "--annotations", "none.json")
    assert done.code == 2
    assert "annotations: none.json cannot be read" in done.err
