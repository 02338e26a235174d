"""MURA, CIFAR, COCO and Hugging Face data sets: small versions of their layouts, and what is read out of them."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from coco_files import coco
from data_files import labels, noise
from families import FAMILIES
from vitreous.datasets import open_source
from vitreous.datasets.class_tables import table
from vitreous.datasets.coco import decode_rle, decode_segmentation, unpack_counts
from vitreous.datasets.public import read_pickle
from vitreous.errors import ImageError, SpecError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](num_classes=1000))


# -- MURA, CIFAR -------------------------------------------------------------------------------------------


def test_mura_reads_the_names_of_studies(tmp_path: Path) -> None:
    root = tmp_path / "MURA-v1.1"
    noise(root / "valid" / "XR_WRIST" / "patient11185" / "study1_positive" / "image1.png")
    noise(root / "valid" / "XR_WRIST" / "patient11185" / "study2_negative" / "image1.png")
    noise(root / "train" / "XR_HAND" / "patient00007" / "study1_negative" / "image3.png")
    (root / "valid" / "XR_WRIST" / "patient11185" / "study1_positive" / "._image1.png").write_bytes(b"left behind")
    for path in (tmp_path, root, root / "valid"):
        source = open_source("mura", path)
        assert [entry.label for entry in source.entries] == [1, 0]
        assert source.groups == (11185, 11185)
    assert [entry.group for entry in open_source("mura", root, split="train").entries] == [7]
    assert labels(open_source("mura", root / "train")) == {"XR_HAND/patient00007/study1_negative/image3.png": 0}
    with pytest.raises(ImageError, match=r"^mura: .*test/XR_.* but it holds train/, valid/"):
        open_source("mura", root, split="test")
    noise(root / "valid" / "odd.png")
    with pytest.raises(ImageError, match=r"but it holds odd\.png"):
        open_source("mura", root)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("word", ["cifar10", "cifar100"])
def test_cifar_pickles_and_bytes_are_the_same(tmp_path: Path, word: str, protocol: int) -> None:
    ten = word == "cifar10"
    visible = np.random.default_rng(1).integers(0, 255, (3, 32, 32, 3), dtype=np.uint8)
    data, own = visible.transpose(0, 3, 1, 2).reshape(3, -1), [3, 9, 0]
    reported = {b"data": data, b"labels" if ten else b"fine_labels": own, b"filenames": [b"x.png"] * 3}
    pickles = tmp_path / "p" / ("cifar-10-batches-py" if ten else "cifar-100-python")
    bytes_ = tmp_path / "b" / ("cifar-10-batches-bin" if ten else "cifar-100-binary")
    pickles.mkdir(parents=True)
    bytes_.mkdir(parents=True)
    (pickles / ("test_batch" if ten else "test")).write_bytes(pickle.dumps(reported, protocol))
    words = [f"kind {number}".encode() for number in range(10 if ten else 100)]
    meta = {b"label_names" if ten else b"fine_label_names": words}
    (pickles / ("batches.meta" if ten else "meta")).write_bytes(pickle.dumps(meta, protocol))
    rows = [bytes([*([] if ten else [19]), label]) + row.tobytes() for label, row in zip(own, data, strict=True)]
    (bytes_ / ("test_batch.bin" if ten else "test.bin")).write_bytes(b"".join(rows))
    one, two = open_source(word, tmp_path / "p"), open_source(word, bytes_)
    assert labels(one) == labels(two) == {"test-00000": 3, "test-00001": 9, "test-00002": 0}
    assert one.digest == two.digest
    assert one.names[1] == "kind 1"
    for a, b, image in zip(one.entries, two.entries, visible, strict=True):
        assert np.array_equal(np.asarray(a.open()), image)
        assert np.array_equal(np.asarray(b.open()), image)
    with pytest.raises(ImageError, match=f"^{word}: .*but there is no {'data_batch_1' if ten else 'train'}"):
        open_source(word, tmp_path / "p", split="train")
    with pytest.raises(SpecError, match="split='val'"):
        open_source(word, tmp_path / "p", split="val")


class _Evil:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    place = tmp_path / "cifar-10-batches-py" / "test_batch"
    place.write_bytes(pickle.dumps({b"data": _Evil(tmp_path / "touched")}))
    with pytest.raises(ImageError, match=r"a pickle of plain arrays, but it wants"):
        open_source("cifar10", tmp_path)
    place.write_bytes(b"c_codecs\nencode\n(Vx\nVrot13\ntR.")
    with pytest.raises(ImageError, match="rot13"):
        read_pickle("cifar10", place)
    place.write_bytes(pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [0, 1]}))
    with pytest.raises(ImageError, match=r"data of \[n, 3072\] bytes and labels"):
        open_source("cifar10", tmp_path)
    assert not (tmp_path / "touched").exists()


# -- COCO --------------------------------------------------------------------------------------------------


def test_coco_entries_are_categories_of_images(tmp_path: Path, model: vt.VisionModel) -> None:
    coco(tmp_path)
    source = open_source("coco", tmp_path)
    cats = tuple(range(281, 286))
    one, two, three = source.entries
    assert [entry.name.partition("#")[2] for entry in source.entries] == ["cat", "zebra", "banana"]
    assert (one.label, two.label, three.label) == (cats, (340,), (954,))
    assert source.groups == (3, 3, 8)
    assert one.boxes == ((0, 0, 20, 32),)
    assert one.compare_classes == (cats, (340,))
    cat, zebra, _ = source.samples(model)
    logits = model.logits(model.cast(cat.image.tensor[None]))[0]
    assert cat.label == max(cats, key=lambda kind: float(logits[kind])), "the likeliest of the cats"
    assert zebra.label == 340
    assert cat.compare_classes == zebra.compare_classes == (cat.label, 340)
    assert cat.annotation is not None
    assert zebra.annotation is not None
    assert not (cat.annotation.mask & zebra.annotation.mask).any()  # type: ignore[operator]
    assert (cat.annotation.mask | zebra.annotation.mask).all()  # type: ignore[operator]
    assert cat.annotation.ignore is not None
    assert np.array_equal(cat.annotation.ignore, zebra.annotation.mask), "a crowd of cats where the zebra is"
    assert zebra.annotation.ignore is None
    assert len(open_source("coco", tmp_path, images=1)) == 2, "images are photographs"
    assert len(open_source("coco", tmp_path, least_area=0)) == 4
    named = open_source("coco", tmp_path, classes="coco")
    assert [entry.label for entry in named.entries] == ["cat", "zebra", "giraffe", "banana"]
    assert named.names == ("banana", "cat", "giraffe", "zebra")
    options_passed = open_source("coco", tmp_path, images=1).evaluate_options(model)
    assert options_passed["groups"] == [3, 3]
    assert options_passed["labels"] == [cat.label, 340]
    (tmp_path / "annotations" / "instances_val2017.json").write_text(
        '{"images": [], "annotations": [{}], "categories": []}'
    )
    with pytest.raises(ImageError, match=r"^coco: .*an entry cannot be read"):
        open_source("coco", tmp_path)


def test_the_table_of_coco_has_every_category_and_names_no_class_twice(shared: Path) -> None:
    rows = table("coco.json")
    classes = json.loads((shared / "imagenet-classes.json").read_text())
    every = [item for subset in rows.values() for item in subset]
    assert len(rows) == 80
    assert len(every) == len(set(every))
    assert sum(not subset for subset in rows.values()) == 21
    same = {"zebra", "banana", "broccoli", "pizza", "orange", "vase", "toaster", "umbrella", "backpack", "cup"}
    for word in same:
        assert word in [name.strip() for kind in rows[word] for name in classes[kind].split(",")]
    assert 21 not in rows["kite"]
    assert rows["bear"] == [kind for kind, name in enumerate(classes) if name.split(",")[0].endswith(" bear")]


def inside(polygon: list[float], x: float, y: float) -> bool:
    """Slowly: count the edges to the right of a point."""
    points = list(zip(polygon[::2], polygon[1::2], strict=True))
    odd = False
    for (a, b), (c, d) in zip(points, points[1:] + points[:1], strict=True):
        if (b > y) != (d > y) and x < a + (y - b) * (c - a) / (d - b):
            odd = not odd
    return odd


def test_polygons_are_filled_where_the_middle_of_a_pixel_is_inside() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        polygon = rng.uniform(-3, 20, 2 * int(rng.integers(3, 9))).tolist()
        slow = [[inside(polygon, x + 0.5, y + 0.5) for x in range(13)] for y in range(17)]
        assert np.array_equal(decode_segmentation([polygon], (17, 13)), slow)
    both = decode_segmentation([[0, 0, 4, 0, 4, 4, 0, 4], [2, 2, 6, 2, 6, 6, 2, 6]], (8, 8))
    assert both.sum() == 28, "several polygons are one region, not holes in each other"
    with pytest.raises(ValueError, match="a polygon of 5 numbers"):
        decode_segmentation([[1, 2, 3, 4, 5]], (8, 8))


def packed(runs: list[int]) -> str:
    """Slowly, the other way round: differences to the run two before, five bits a letter."""
    text = ""
    for place, run in enumerate(runs):
        value = run - runs[place - 2] if place > 2 else run
        while True:
            bits, value = value & 31, value >> 5
            done = value == (-1 if bits & 16 else 0)
            text += chr(48 + bits + (0 if done else 32))
            if done:
                break
    return text


def test_run_lengths() -> None:
    rng = np.random.default_rng(4)
    for height, width in ((7, 5), (60, 90), (1, 1)):
        mask = rng.random((height, width)) > 0.5
        mask[: height // 2] = True
        runs, last = [0], False
        for value in mask.T.ravel().tolist():  # down the columns
            if value != last:
                runs.append(0)
                last = value
            runs[-1] += 1
        assert np.array_equal(decode_rle(runs, (height, width)), mask)
        assert unpack_counts(packed(runs)) == runs
        assert np.array_equal(
            decode_segmentation({"counts": packed(runs), "size": [height, width]}, (height, width)), mask
        )
    for wrong, message in (
        ([3], "runs of 3 pixels"),
        ([-1, 5], "runs of 4"),
        ("é", "no letter"),
        ("P", "middle of a number"),
    ):
        with pytest.raises(ValueError, match=message):
            decode_rle(wrong, (2, 2))


@pytest.mark.skipif(importlib.util.find_spec("pycocotools") is None, reason="needs pycocotools")
def test_run_lengths_are_those_of_pycocotools() -> None:
    from pycocotools import mask as coco_mask  # type: ignore[import-not-found]

    rng = np.random.default_rng(5)
    mask = (rng.random((50, 70)) > 0.7).astype(np.uint8)
    reported = coco_mask.encode(np.asfortranarray(mask))
    assert np.array_equal(decode_rle(reported["counts"].decode(), (50, 70)), mask.astype(bool))
    corners = [[10.3, 4.2], [60.1, 12.7], [44.4, 45.5], [15.0, 30.9]]
    polygon = [value for corner in corners for value in corner]
    own = decode_segmentation([polygon], (50, 70))
    other = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects([polygon], 50, 70))).astype(bool)
    assert (own != other).sum() < 0.05 * other.sum()


# -- Hugging Face ------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is here")
def test_datasets_is_named_where_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"^hf: .*pip install datasets"):
        open_source("hf", tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs datasets")
def test_a_folder_of_datasets(tmp_path: Path, model: vt.VisionModel) -> None:
    import datasets  # type: ignore[import-not-found]
    import pyarrow  # type: ignore[import-not-found]

    files = [str(noise(tmp_path / f"{number}.png", number)) for number in range(3)]
    (tmp_path / "1.png").write_bytes(b"broken")
    rows = [{"bytes": Path(file).read_bytes(), "path": None} for file in files]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["b", "a"])})
    reference = pyarrow.Table.from_pydict({"image": rows, "label": [1, 0, 1]}, schema=kinds.arrow_schema)
    result = datasets.Dataset(reference, fingerprint="three")  # some versions cannot digest a table themselves
    result.save_to_disk(tmp_path / "saved")
    source = open_source("hf", tmp_path / "saved")
    assert labels(source) == {"000000": 1, "000001": 0, "000002": 1}
    assert source.names == ("b", "a")
    reported: dict[str, str] = {}
    samples = list(source.samples(model, reported.__setitem__))
    assert [sample.image.name for sample in samples] == ["000000", "000002"]
    assert set(reported) == {"000001"}
    assert np.array_equal(np.asarray(source.entries[2].open()), np.asarray(Image.open(files[2])))
    datasets.DatasetDict({"train": result, "test": result}).save_to_disk(tmp_path / "both")
    with pytest.raises(ImageError, match=r"^hf: .*one split, but it has train, test"):
        open_source("hf", tmp_path / "both")
    assert len(open_source("hf", tmp_path / "both", split="test")) == 3
    with pytest.raises(ImageError, match=r"^hf: .*nor can it be had by name"):
        open_source("hf", tmp_path / "nowhere")
