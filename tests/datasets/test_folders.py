"""Folders and tables of pictures as sources of data."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from data_files import names, shade
from families import FAMILIES
from vitreous.datasets import open_source
from vitreous.errors import ImageError, TargetError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


# -- folders -----------------------------------------------------------------------------------------------


def test_a_folder_is_listed_in_order_without_opening_anything(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.JPG", "ü ö.png", "two\nlines.jpg", "sp ace.JPEG"):
        shade(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "._b.jpg").write_bytes(b"what some systems leave beside a file")
    (tmp_path / "broken.jpg").write_bytes(b"never opened here")
    (tmp_path / "inside").mkdir()
    (tmp_path / "folder.jpg").mkdir()
    source = open_source("folder", tmp_path)
    assert names(source) == sorted(["b.jpg", "a.JPG", "ü ö.png", "two\nlines.jpg", "sp ace.JPEG", "broken.jpg"])
    assert len(source) == 6
    assert all(entry.label is None and entry.group is None for entry in source.entries)
    assert source.entries[0].open().size == (12, 10)


def test_links_are_followed_and_those_that_lead_nowhere_are_reported(tmp_path: Path, model: vt.VisionModel) -> None:
    shade(tmp_path / "far" / "real.jpg")
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link.jpg").symlink_to(tmp_path / "far" / "real.jpg")
    (tmp_path / "near" / "gone.jpg").symlink_to(tmp_path / "far" / "nothing.jpg")
    (tmp_path / "near" / "itself.jpg").symlink_to(tmp_path / "near" / "itself.jpg")
    reported: list[tuple[str, str]] = []
    source = open_source("folder", tmp_path / "near")
    actual = [sample.image.name for sample in source.samples(model, lambda name, why: reported.append((name, why)))]
    assert actual == ["link.jpg"]
    assert [name for name, _ in reported] == ["gone.jpg", "itself.jpg"]


def test_names_that_are_no_text(tmp_path: Path, model: vt.VisionModel) -> None:
    try:
        shade(tmp_path / "a.jpg").rename(tmp_path / os.fsdecode(b"bad\xff.jpg"))
    except OSError:
        pytest.skip("this file system wants names that are text")
    source = open_source("folder", tmp_path, images=1, choose="random")
    assert source.digest == open_source("folder", tmp_path).digest
    assert len(list(source.samples(model))) == 1


def test_class_folders_may_go_round_in_a_circle(tmp_path: Path) -> None:
    shade(tmp_path / "cat" / "deeper" / "a.jpg")
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat", target_is_directory=True)
    (tmp_path / "dog").symlink_to(tmp_path / "cat", target_is_directory=True)
    source = open_source("imagefolder", tmp_path)
    assert names(source) == ["cat/deeper/a.jpg", "dog/deeper/a.jpg"]


def test_labels_of_class_folders(tmp_path: Path, model: vt.VisionModel) -> None:
    """Words the model knows, indices, WordNet ids for a thousand classes, else the order of the folders."""
    for name in ("b", "a", "e", "d", "c"):
        shade(tmp_path / "words" / name / "x.jpg")
        shade(tmp_path / "digits" / str("abcde".index(name)) / "x.jpg")
    assert [sample.label for sample in open_source("imagefolder", tmp_path / "words").samples(model)] == [0, 1, 2, 3, 4]
    assert [sample.label for sample in open_source("imagefolder", tmp_path / "digits").samples(model)] == [
        0,
        1,
        2,
        3,
        4,
    ]
    (tmp_path / "words" / "b" / "x.jpg").unlink()
    left = [sample.label for sample in open_source("imagefolder", tmp_path / "words").samples(model)]
    assert left == [0, 2, 3, 4], "an empty folder is a class too"
    shade(tmp_path / "words" / "b" / "x.jpg")
    named = vt.wrap(FAMILIES["vit"](), class_names=["e, fifth", "d", "c", "b", "a"])
    assert [sample.label for sample in open_source("imagefolder", tmp_path / "words").samples(named)] == [4, 3, 2, 1, 0]
    shade(tmp_path / "wnids" / "n01443537" / "x.jpg")
    with pytest.raises(TargetError, match=r"n01443537.*the source has 1 classes, the model 5"):
        next(open_source("imagefolder", tmp_path / "wnids").samples(model))
    thousand = vt.wrap(FAMILIES["vit"](num_classes=1000))
    assert [sample.label for sample in open_source("imagefolder", tmp_path / "wnids").samples(thousand)] == [1]
    shade(tmp_path / "words" / "zebra" / "x.jpg")
    with pytest.raises(TargetError, match="the source has 6 classes, the model 5"):
        next(open_source("imagefolder", tmp_path / "words").samples(model))


@pytest.mark.parametrize("apart", [True, False])
def test_masks_beside_images(tmp_path: Path, model: vt.VisionModel, apart: bool) -> None:
    inside = np.zeros((10, 12), np.uint8)
    inside[2:8, 3:9] = 255
    for name in ("one", "two"):
        shade(tmp_path / ("images" if apart else "") / f"{name}.jpg")
        place = tmp_path / ("masks" if apart else "") / f"{name}{'' if apart else '_mask'}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(inside).save(place)
    source = open_source("masks", tmp_path)
    assert names(source) == ["one.jpg", "two.jpg"]
    assert [entry.mask is not None and entry.mask.stem[:3] for entry in source.entries] == ["one", "two"]
    truths = [sample.annotation for sample in source.samples(model)]
    assert all(
        truth is not None and truth.mask is not None and truth.mask.any() and not truth.mask.all() for truth in truths
    )
    shade(tmp_path / ("images" if apart else "") / "bare.jpg")
    with pytest.raises(ImageError, match=r"masks: .* should hold images with a mask each.*bare\.jpg has none"):
        open_source("masks", tmp_path)


# -- tables ------------------------------------------------------------------------------------------------


def test_csv(tmp_path: Path, model: vt.VisionModel) -> None:
    shade(tmp_path / "photos" / "a, b.jpg")
    shade(tmp_path / "c.jpg")
    Image.fromarray(np.eye(10, 12, dtype=np.uint8)).save(tmp_path / "c.png")
    with open(tmp_path / "table.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "label", "boxes", "unit", "mask", "group"])
        rows.writerow(["photos/a, b.jpg", 3, "0 0 .5 1; .5 .5 1 1", "fractions", "", 7])
        rows.writerow(["c.jpg", "2", "[[3, 2, 9, 8]]", "pixels", "c.png", 8])
    source = open_source("csv", tmp_path / "table.csv")
    one, two = source.entries
    assert (one.label, one.boxes, one.is_relative, one.group) == (3, ((0, 0, 0.5, 1), (0.5, 0.5, 1, 1)), True, 7)
    assert (two.label, two.boxes, two.is_relative, two.mask) == (2, ((3, 2, 9, 8),), False, tmp_path / "c.png")
    assert source.groups == (7, 8)
    first, second = source.samples(model)
    assert (first.label, second.label) == (3, 2)
    assert first.annotation is not None
    left = first.annotation.boxes[0]
    larger = model.preprocess.size[1]
    assert left[0] == 0
    assert left[2] == pytest.approx(larger / 2, abs=1)  # the crop moves it by less than a pixel
    assert second.annotation is not None
    assert second.annotation.mask is not None
    assert second.annotation.boxes


def test_boxes_without_a_unit_are_fractions_only_if_none_is_above_one(tmp_path: Path) -> None:
    shade(tmp_path / "a.jpg")
    shade(tmp_path / "b.jpg")
    for box, shares in (([0, 0, 1, 1], True), ([0, 0, 1, 2], False)):
        table = [{"file": "a.jpg", "boxes": [[0, 0, 1, 1]]}, {"file": "b.jpg", "boxes": [box]}]
        (tmp_path / "t.json").write_text(json.dumps(table))
        assert [entry.is_relative for entry in open_source("json", tmp_path / "t.json").entries] == [shares, shares]
    (tmp_path / "t.json").write_text(
        json.dumps({"unit": "pixels", "images": [{"file": "a.jpg", "boxes": [[0, 0, 1, 1]]}]})
    )
    assert [entry.is_relative for entry in open_source("json", tmp_path / "t.json").entries] == [False]


@pytest.mark.parametrize(
    ("word", "text", "message"),
    [
        ("json", '{"a": 1}', "a list of tables with file"),
        ("json", "[", "is no JSON"),
        ("json", "[]", "a line for each image, but there is none"),
        ("json", '[{"file": "a.jpg", "boxes": [[3, 0, 1, 1]]}]', "boxes as .left, top, right, bottom."),
        ("json", '[{"file": "a.jpg", "unit": "miles"}]', "a unit of pixels or fractions, but that of a.jpg is 'miles'"),
        ("json", '[{"file": "a.jpg", "label": 1.5}]', "a class index or a word"),
        ("json", '[{"file": "a.jpg"}, {"file": "a.jpg"}]', "a.jpg is there twice"),
        ("csv", "image,label\na.jpg,1\n", "columns file.* but its columns are image, label"),
        ("csv", "file,boxes\na.jpg,1 2 3\n", "boxes as .left, top, right, bottom."),
        ("csv", "file,boxes\na.jpg,[1 2\n", "those of a.jpg are '.1 2'"),
        ("csv", "", "it is empty"),
    ],
)
def test_tables_that_do_not_fit_are_reported(tmp_path: Path, word: str, text: str, message: str) -> None:
    place = tmp_path / f"table.{word}"
    place.write_text(text)
    with pytest.raises(ImageError, match=rf"^{word}: .*{message}") as reported:
        open_source(word, place)
    assert "\n" not in str(reported.value)
