"""ImageNet in its layouts: small versions of each, and what is read out of them."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitreous as vt
from data_files import labels, noise
from families import FAMILIES
from imagenet_files import VAL, as_table, imagenet_s, segments, write_segments
from vitreous.datasets import load_images, open_source
from vitreous.datasets.class_tables import table, wnids
from vitreous.datasets.grids import GridSource
from vitreous.datasets.imagenet import _Segments
from vitreous.errors import ImageError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](num_classes=1000))


def devkit(folder: Path, truth: list[int], order: dict[int, str]) -> None:
    """A devkit: numbers of classes in an order of their own, and inner nodes of the tree after them."""
    io = pytest.importorskip("scipy.io")
    kind = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object), ("num_children", object)]
    rows = np.zeros((len(order) + 1, 1), kind)
    for place, (number, wnid) in enumerate([*order.items(), (1001, "n00001740")]):
        rows[place, 0] = (number, wnid, "a word", 0 if number <= 1000 else 3)
    folder.mkdir(parents=True)
    io.savemat(folder / "meta.mat", {"synsets": rows})
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(map(str, truth)) + "\n")


def test_devkit_labels_follow_the_order_of_the_synsets(tmp_path: Path, model: vt.VisionModel) -> None:
    """Slowly: the line of the image, the WordNet id of that number, its place among all ids in alphabetical order."""
    order = dict(enumerate(reversed(wnids()), 1))
    order[1], order[7] = order[7], order[1]
    truth = [7, 1000, 1, 490, 7]
    devkit(tmp_path / "ILSVRC2012_devkit_t12" / "data", truth, order)
    for number in (1, 2, 3, 5):
        noise(tmp_path / "val" / VAL.format(number))
    slow = {}
    for number in (1, 2, 3, 5):
        wnid = order[truth[number - 1]]
        slow[VAL.format(number)] = sum(other < wnid for other in order.values())
    assert labels(open_source("imagenet-val", tmp_path)) == slow
    assert labels(open_source("imagenet-val", tmp_path / "val")) == slow, "the devkit beside the images"
    assert slow[VAL.format(2)] == 0, "the devkit's number 1000 is not class 999 here"
    assert [sample.label for sample in open_source("imagenet-val", tmp_path).samples(model)] == list(slow.values())
    noise(tmp_path / "val" / VAL.format(6))
    with pytest.raises(ImageError, match=rf"should hold a line for {VAL.format(6)}, but it has 5"):
        open_source("imagenet-val", tmp_path)


def test_devkit_without_meta_or_with_a_wrong_number_is_reported(tmp_path: Path) -> None:
    noise(tmp_path / VAL.format(1))
    with pytest.raises(ImageError, match=r"^imagenet-val: .*there are 1 images and no labels"):
        open_source("imagenet-val", tmp_path)
    devkit(tmp_path / "data", [1001], {1: wnids()[0]})
    with pytest.raises(ImageError, match=r"a number of a class in every line, but line 1 is '1001'"):
        open_source("imagenet-val", tmp_path)
    (tmp_path / "data" / "meta.mat").write_bytes(b"broken")
    with pytest.raises(ImageError, match=r"meta\.mat cannot be read"):
        open_source("imagenet-val", tmp_path)
    (tmp_path / "data" / "meta.mat").unlink()
    with pytest.raises(ImageError, match=r"should hold meta\.mat beside ILSVRC2012_validation_ground_truth\.txt"):
        open_source("imagenet-val", tmp_path)


def test_layouts_of_the_same_images_give_the_same(tmp_path: Path) -> None:
    """Folders of WordNet ids and Kaggle's table; the random choice too."""
    kinds = {number: (number * 37) % 1000 for number in range(1, 9)}
    lines = ["ImageId,PredictionString"]
    for number, kind in kinds.items():
        noise(tmp_path / "folders" / "val" / wnids()[kind] / VAL.format(number))
        noise(tmp_path / "kaggle" / "ILSVRC" / "Data" / "CLS-LOC" / "val" / VAL.format(number))
        lines.append(f"{VAL.format(number)[:-5]},{wnids()[kind]} 1 2 30 31 {wnids()[kind]} 4 5 6 7 ")
    (tmp_path / "kaggle" / "LOC_val_solution.csv").write_text("\n".join(lines))
    noise(tmp_path / "folders" / "logo.png")
    one, two = (open_source("imagenet-val", tmp_path / name) for name in ("folders", "kaggle"))
    assert labels(one) == labels(two) == {VAL.format(number): kind for number, kind in kinds.items()}
    assert two.entries[0].boxes == ((1, 2, 30, 31), (4, 5, 6, 7))
    assert not two.entries[0].is_relative
    drawn_of_each = [
        [
            entry.name
            for entry in open_source("imagenet-val", tmp_path / path, images=4, choose="random", seed=3).entries
        ]
        for path in ("folders", "folders/val", "kaggle")
    ]
    assert drawn_of_each[0] == drawn_of_each[1] == drawn_of_each[2]


def test_boxes_of_annotations_are_read_when_they_are_asked_for(tmp_path: Path, model: vt.VisionModel) -> None:
    noise(tmp_path / "val" / wnids()[3] / VAL.format(1))
    noise(tmp_path / "val" / wnids()[3] / VAL.format(2))
    xml = "<annotation><object><name>{}</name><bndbox><xmin>4</xmin><ymin>0</ymin><xmax>36</xmax><ymax>32</ymax>"
    (tmp_path / "boxes").mkdir()
    other = xml.format(wnids()[4]) + "</bndbox></object>"
    own = "<object><name>{}</name><bndbox><xmin>20</xmin><ymin>0</ymin><xmax>36</xmax><ymax>32</ymax></bndbox></object>"
    text = other + own.format(wnids()[3]) + "</annotation>"
    (tmp_path / "boxes" / "ILSVRC2012_val_00000001.xml").write_text(text)
    reported: dict[str, str] = {}
    source = open_source("imagenet-val", tmp_path, boxes=tmp_path / "boxes")
    (sample,) = source.samples(model, reported.__setitem__)
    assert sample.annotation is not None
    ((left, top, right, bottom),) = sample.annotation.boxes
    assert 15 < left < 17
    assert (top, right, bottom) == (0, 32, 32)
    assert "00000002.xml cannot be read" in reported[VAL.format(2)]


@pytest.mark.parametrize(("word", "count"), [("imagenet-a", 200), ("imagenet-r", 200)])
def test_the_harder_sets_bring_their_classes(tmp_path: Path, model: vt.VisionModel, word: str, count: int) -> None:
    chosen = table("imagenet.json")[word]
    assert len(chosen) == len(set(chosen)) == count
    for kind in chosen[:3]:
        noise(tmp_path / wnids()[kind] / "0.001_fox_0.9.jpg", kind)
    (tmp_path / "README.txt").write_text("about it")
    source = open_source(word, tmp_path)
    assert [entry.label for entry in source.entries] == chosen[:3]
    assert source.classes == tuple(chosen)
    options_passed = source.evaluate_options(model)
    assert options_passed["class_subset"] == tuple(chosen)
    outside = next(kind for kind in range(1000) if kind not in chosen)
    noise(tmp_path / wnids()[outside] / "x.jpg")
    with pytest.raises(ImageError, match=rf"^{word}: .*{wnids()[outside]} is not one of its classes"):
        open_source(word, tmp_path)


@pytest.mark.parametrize("kinds", [[5, 2, 9], list(range(0, 600, 2))])
def test_imagenet_s_masks_number_classes_by_their_folders(
    tmp_path: Path, model: vt.VisionModel, kinds: list[int]
) -> None:
    full = len(kinds) == 300
    imagenet_s(tmp_path, kinds, several=full)
    source = open_source("imagenet-s", tmp_path, images=0)
    assert sorted(entry.label for entry in source.entries) == sorted(kinds)
    places = [0, 1, 255, 256, 299] if full else range(3)
    samples = list(source.samples(model, indices=places))
    assert len(samples) == len(places)
    for sample in samples:
        assert sample.annotation is not None
        assert sample.annotation.mask is not None
        assert sample.annotation.ignore is not None
        (photo,) = load_images(source.entries[sample.index].path, model)
        left, _, right, _ = photo.box or (0, 0, 0, 0)
        middles = left + (np.arange(32) + 0.5) * (right - left) / 32
        assert np.array_equal(sample.annotation.mask, np.tile(middles < 20, (32, 1)))
        assert np.array_equal(sample.annotation.ignore, np.tile((middles >= 20) & (middles < 24), (32, 1)))


def test_a_part_of_imagenet_s_cannot_tell_several_classes_apart(tmp_path: Path, model: vt.VisionModel) -> None:
    imagenet_s(tmp_path, [5, 2, 9], several=True)
    reported: dict[str, str] = {}
    assert list(open_source("imagenet-s", tmp_path).samples(model, reported.__setitem__)) == []
    assert len(reported) == 3
    assert all("only the whole data set tells" in reason for reason in reported.values())


def check_segments(entries: Any, visible: Any, masks: Any, model: vt.VisionModel) -> None:
    assert [item.label for item in entries] == [0, "n00000001"]
    assert [item.name for item in entries] == ["0000-n01440764_12", "0001-n00000001_3"]
    for entry, image, mask in zip(entries, visible, masks, strict=True):
        assert np.array_equal(np.asarray(entry.open()), image)
        (picture,) = load_images(entry.open(), model)
        expected = vt.Annotation.of_photo(picture, mask != 0)
        assert np.array_equal(entry.annotation(picture).mask, expected.mask)


def test_imagenet_segmentation_turns_the_arrays(model: vt.VisionModel) -> None:
    result: dict[str, Any] = {}
    visible, masks = segments(lambda *parts: result.update(as_table(*parts)))
    check_segments(_Segments(result).entries(), visible, masks, model)


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs h5py")
def test_imagenet_segmentation_file(tmp_path: Path, model: vt.VisionModel) -> None:
    visible, masks = segments(partial(write_segments, tmp_path / "gtsegs_ijcv.mat"))
    check_segments(open_source("imagenet-segmentation", tmp_path).entries, visible, masks, model)
    with pytest.raises(ImageError, match="it is no HDF5 file"):
        open_source("imagenet-segmentation", noise(tmp_path / "x.jpg"))


@pytest.mark.skipif(importlib.util.find_spec("h5py") is not None, reason="h5py is here")
def test_h5py_is_named_where_it_is_missing(tmp_path: Path) -> None:
    (tmp_path / "gtsegs_ijcv.mat").write_bytes(b"anything")
    with pytest.raises(ImageError, match=r"^imagenet-segmentation: .*pip install h5py"):
        open_source("imagenet-segmentation", tmp_path)


def test_quads_are_grids_of_different_classes(tmp_path: Path, model: vt.VisionModel) -> None:
    for number in range(1, 14):
        noise(tmp_path / "val" / wnids()[number % 5] / VAL.format(number), number)
    (tmp_path / "val" / wnids()[0] / VAL.format(99)).write_bytes(b"broken")
    reported: dict[str, str] = {}
    source = open_source("quad-imagenet", tmp_path, images=2, seed=4)
    assert isinstance(source, GridSource)
    assert len(source) == 8
    assert source.groups == (0, 0, 0, 0, 1, 1, 1, 1)
    samples = list(source.samples(model, reported.__setitem__))
    assert set(reported) == {VAL.format(99)}
    assert [sample.index for sample in samples] == list(range(8))
    for sample in samples:
        assert sample.target == sample.label
        assert sample.compare_classes is not None
        assert sample.label in sample.compare_classes
        assert len(sample.compare_classes) == 4
        assert sample.annotation is not None
        assert np.mean(sample.annotation.mask) == 0.25  # type: ignore[arg-type]
    assert sum(np.asarray(sample.annotation.mask, int) for sample in samples[:4]).min() == 1  # type: ignore[union-attr]
    more = open_source("quad-imagenet", tmp_path, images=3, seed=4)
    assert [sample.label for sample in more.samples(model, reported.__setitem__)][:8] == [
        sample.label for sample in samples
    ]
    assert more.digest != source.digest
    table_of = vt.evaluate(
        model, methods=["ixg"], metrics=["pointing_game"], controls=False, **source.evaluate_options(model)
    )
    assert table_of.groups == source.groups
    with pytest.raises(ImageError, match="14 images make at most 3 grids of 2 x 2"):
        open_source("quad-imagenet", tmp_path, images=4)
    assert len(open_source("quad-imagenet", tmp_path, pool=8, seed=1)) <= 8


def test_part_quads_show_the_object_in_its_cell(tmp_path: Path, model: vt.VisionModel) -> None:
    imagenet_s(tmp_path, [5, 2, 9, 7])
    samples = list(open_source("part-quad-imagenet", tmp_path).samples(model))
    assert len(samples) == 4
    for sample in samples:
        assert sample.annotation is not None
        assert 0.08 < np.mean(sample.annotation.mask) < 0.16  # type: ignore[arg-type]
        assert sample.annotation.ignore is not None
        assert sample.annotation.ignore.any()
