"""Sources of data: one interface, what is chosen, what is told when a picture or a layout is broken."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from data_files import names, shade
from families import FAMILIES
from vitreous.datasets import Entry, Listing, open_source, register_source, source_names
from vitreous.datasets.catalog import FORMATS
from vitreous.errors import ImageError, SpecError, TargetError, VitreousWarning


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


# -- choosing ----------------------------------------------------------------------------------------------


@pytest.fixture
def twelve(tmp_path: Path) -> Path:
    for kind, count in (("cat", 6), ("dog", 4), ("owl", 2)):
        for number in range(count):
            shade(tmp_path / "set" / kind / f"{number}.jpg", 20 * number)
    return tmp_path / "set"


def test_random_is_the_smallest_digests(twelve: Path) -> None:
    """Slowly: every name's digest by itself, the smallest first."""
    every = names(open_source("imagefolder", twelve))

    def digest(name: str) -> bytes:
        return hashlib.blake2b(f"5 {name.removesuffix('.jpg')}".encode(), digest_size=16).digest()

    slow = sorted(every, key=digest)
    assert names(open_source("imagefolder", twelve, images=7, choose="random", seed=5)) == slow[:7]
    assert names(open_source("imagefolder", twelve, choose="random", seed=5)) == slow
    assert names(open_source("imagefolder", twelve, choose="random", seed=6)) != slow


def test_random_does_not_depend_on_where_the_folder_is_or_what_else_is_there(twelve: Path, tmp_path: Path) -> None:
    before = open_source("imagefolder", twelve, images=5, choose="random", seed=1)
    moved = shutil.move(twelve, tmp_path / "another name")
    after = open_source("imagefolder", moved, images=5, choose="random", seed=1)
    assert names(after) == names(before)
    assert after.digest == before.digest
    for number in range(40):
        shade(Path(moved) / "cat" / f"new-{number}.jpg")
    full = names(open_source("imagefolder", moved, choose="random", seed=1))
    old = [name for name in full if "new-" not in name]
    assert old[:5] == names(before), "what is added takes places, and moves nobody"


def test_per_class_takes_turns(twelve: Path) -> None:
    counts = {}
    for images in (3, 6, 7, 9, 12):
        source = open_source("imagefolder", twelve, images=images, choose="per-class", seed=2)
        kinds = [str(entry.label) for entry in source.entries]
        counts[images] = sorted(kinds.count(kind) for kind in ("cat", "dog", "owl"))
    assert counts == {3: [1, 1, 1], 6: [2, 2, 2], 7: [2, 2, 3], 9: [2, 3, 4], 12: [2, 4, 6]}
    more, fewer = (names(open_source("imagefolder", twelve, images=n, choose="per-class")) for n in (7, 6))
    assert more[:6] == fewer


def test_listed_takes_names_in_their_order(twelve: Path, tmp_path: Path) -> None:
    wanted = ["owl/1.jpg", "cat/5.jpg"]
    assert names(open_source("imagefolder", twelve, choose="listed", listed=wanted)) == wanted
    (tmp_path / "list.txt").write_text("cat/5.jpg\n\nowl/1.jpg\n")
    assert names(open_source("imagefolder", twelve, choose="listed", listed=tmp_path / "list.txt")) == wanted[::-1]
    (tmp_path / "list.json").write_text(json.dumps([{"file": "4.jpg"}, "5.jpg"]))
    assert names(open_source("folder", twelve / "cat", choose="listed", listed=str(tmp_path / "list.json"))) == [
        "4.jpg",
        "5.jpg",
    ]
    assert names(open_source("folder", twelve / "cat", choose="listed", listed=["3", "2"], images=1)) == ["3.jpg"]
    for wrong, message in (
        (["1.jpg"], "is the name of 3 images"),
        (["cat/5.jpg", "no.jpg", "nor.jpg"], "2 of 3 names .* such as no.jpg, nor.jpg"),
        (["cat/5.jpg", "cat/5.jpg"], "twice"),
        ([], "empty"),
    ):
        with pytest.raises(ImageError, match=message):
            open_source("imagefolder", twelve, choose="listed", listed=wrong)


def test_bad_choices_are_refused_by_name(twelve: Path) -> None:
    for wrong, message in (
        ({"choose": "best"}, "choose='best'"),
        ({"images": -1}, "images=-1"),
        ({"images": True}, "images=True"),
        ({"seed": "x"}, "seed='x'"),
        ({"choose": "listed"}, "listed=None"),
        ({"listed": ["a"]}, "choose='first'"),
        ({"size": 64}, "imagefolder takes no size"),
        ({"spilt": "val"}, "imagefolder takes no spilt"),
    ):
        with pytest.raises(SpecError, match=message):
            open_source("imagefolder", twelve, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="there are 12 images, not 13"):
        open_source("imagefolder", twelve, images=13)
    with pytest.raises(ImageError, match=r"folder: 0\.jpg has no label"):
        open_source("folder", twelve / "cat", choose="per-class")


def test_a_digest_tells_what_was_chosen(twelve: Path) -> None:
    digests = {
        open_source("imagefolder", twelve, images=n, choose=c).digest for n in (3, 4) for c in ("first", "random")
    }
    assert len(digests) == 4
    assert open_source("imagefolder", twelve, images=3).digest in digests


# -- what cannot be read -----------------------------------------------------------------------------------


def test_a_hundred_broken_files_among_a_thousand_are_reported_by_name(tmp_path: Path, model: vt.VisionModel) -> None:
    good = shade(tmp_path / "x.jpg").read_bytes()
    broken: set[str] = set()
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(1000):
        name = f"{number:04d}.jpg"
        data = good
        if number % 10 == 3:
            broken.add(name)
            data = (b"", good[:200], b"not a picture", bytes(500))[number // 10 % 4]
        (folder / name).write_bytes(data)
    reported: dict[str, str] = {}
    source = open_source("folder", folder)
    seen = [sample.image.name for sample in source.samples(model, reported.__setitem__)]
    assert set(reported) == broken
    assert len(broken) == 100
    assert all(reported.values())
    assert seen == [name for name in names(source) if name not in broken]
    with pytest.warns(VitreousWarning, match=r"folder: 5 images were left out: 0003\.jpg .* and 2 more"):
        assert sum(1 for _ in source.samples(model, indices=range(50))) == 45
    places = [sample.index for sample in source.samples(model, reported.__setitem__, indices=[4, 3, 2])]
    assert places == [4, 2], "places are those in the source"


def test_a_mask_that_cannot_be_read_leaves_its_picture_out(tmp_path: Path, model: vt.VisionModel) -> None:
    for name in ("a", "b", "c"):
        shade(tmp_path / f"{name}.jpg")
        Image.fromarray(np.eye(10, 12, dtype=np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    Image.fromarray(np.eye(5, dtype=np.uint8)).save(tmp_path / "c.png")
    reported: dict[str, str] = {}
    assert [sample.image.name for sample in open_source("masks", tmp_path).samples(model, reported.__setitem__)] == [
        "a.jpg"
    ]
    assert set(reported) == {"b.jpg", "c.jpg"}
    assert "[5, 5]" in reported["c.jpg"]


def test_labels_the_model_does_not_have_are_an_error_before_anything_is_read(
    tmp_path: Path, model: vt.VisionModel
) -> None:
    (tmp_path / "a.jpg").write_bytes(b"broken")
    (tmp_path / "t.json").write_text(json.dumps([{"file": "a.jpg", "label": 5}]))
    with pytest.raises(TargetError, match=r"class index 5 is outside 0\.\.4"):
        next(open_source("json", tmp_path / "t.json").samples(model))


# -- evaluate ----------------------------------------------------------------------------------------------


def test_a_source_is_what_evaluate_takes(tmp_path: Path, model: vt.VisionModel) -> None:
    rows = []
    for number in range(4):
        noise = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
        rows.append({"file": f"{number}.png", "label": number, "boxes": [[0, 0, 20, 20]], "group": number // 2})
    (tmp_path / "2.png").write_bytes(b"broken")
    (tmp_path / "t.json").write_text(json.dumps(rows))
    reported: dict[str, str] = {}
    options = open_source("json", tmp_path / "t.json").evaluate_options(model, reported.__setitem__)
    assert set(reported) == {"2.png"}
    assert options["labels"] == [0, 1, 3]
    assert options["groups"] == [0, 0, 1]
    table = vt.evaluate(model, methods=["ixg"], metrics=["pointing_game"], target="label", controls=False, **options)
    assert table.images == ("0.png", "1.png", "3.png")
    assert table.groups == (0, 0, 1)
    assert table.parts["ixg", "pointing_game"].shape[0] == 3


def test_a_source_of_ones_own_is_one_function() -> None:
    model = vt.wrap(FAMILIES["vit"](num_classes=len(vt.world.CLASSES)))
    world = vt.world.World(n=6, size=32)
    annotations = list(world.annotations())

    def opened(path: Path | None, size: int = 32) -> Listing:
        images = list(vt.world.World(n=6, size=size).images())
        return Listing(
            [
                Entry(
                    f"{i}",
                    label=world.labels[i],
                    opener=lambda i=i: images[i],
                    annotate=lambda image, i=i: annotations[i],
                )
                for i in range(6)
            ],
            names=vt.world.NAMES,
        )

    with pytest.raises(SpecError, match="unknown source 'drawn'"):
        open_source("drawn")
    register_source("drawn", needs_path=False)(opened)
    try:
        source = open_source("drawn", images=3)
        assert "drawn" in source_names()
        assert [entry.label for entry in source.entries] == world.labels[:3]
        assert source.entries[0].open().size == (32, 32)
        assert open_source("drawn", size=64).entries[0].open().size == (64, 64)
        samples = list(source.samples(model))
        assert [sample.label for sample in samples] == world.labels[:3]
        assert all(a.annotation is b for a, b in zip(samples, annotations[:3], strict=True))
        with pytest.raises(SpecError, match="two sources are called 'drawn'"):
            register_source("drawn")(opened)
    finally:
        del FORMATS["drawn"]


def test_words_that_are_unknown_or_at_home_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown source 'imagenet-vla'; did you mean imagenet-val"):
        open_source("imagenet-vla", tmp_path)
    with pytest.raises(ImageError, match=r"^coco: where is it"):
        open_source("coco")


@pytest.mark.parametrize("word", [word for word in source_names() if word not in ("hf", "world")])
def test_every_word_says_in_one_line_what_it_expected_and_found(word: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "read\nme.txt").write_text("nothing of interest")
    for place in ("empty", "other", "absent"):
        base = "part-quad-imagenet" if word == "part-quad-imagenet" else word
        with pytest.raises(ImageError) as reported:
            open_source(word, tmp_path / place)
        message = str(reported.value)
        heard = {"part-quad-imagenet": "imagenet-s", "quad-imagenet": "imagenet-val"}.get(base, base)
        assert message.startswith(f"{heard}: ")
        assert "should hold" in message
        assert ", but " in message
        assert "\n" not in message


# -- real data ---------------------------------------------------------------------------------------------


def test_real_imagenet_labels_agree_with_their_table(shared: Path) -> None:
    rows = {row["file"]: row for row in json.loads((shared / "imagenet-val-1k.json").read_text())}
    for word, path in (("imagenet-val", "imagenet-val-1k"), ("json", "imagenet-val-1k.json")):
        source = open_source(word, shared / path)
        assert len(source) == len(rows) == 1000
        for entry in source.entries:
            assert entry.label == rows[entry.name]["label"]
            assert [list(box) for box in entry.boxes or ()] == rows[entry.name]["boxes"]
            assert entry.is_relative
            assert entry.path is not None
            assert entry.path.is_file()


def test_real_pets_agree_with_their_table(shared: Path) -> None:
    rows = {row["file"]: row for row in json.loads((shared / "pets-200.json").read_text())}
    source = open_source("pets", shared / "pets-200")
    assert len(source) == len(rows) == 200
    assert all(entry.label == rows[entry.name]["label"] for entry in source.entries)
    assert all(entry.mask is not None and entry.mask.name == rows[entry.name]["mask"] for entry in source.entries)
    model = vt.wrap(FAMILIES["vit"](num_classes=1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subset = list(source.samples(model, indices=range(0, 200, 20)))
    assert len(subset) == 10
    for item in subset:
        assert item.annotation is not None
        trimap = np.asarray(Image.open(source.entries[item.index].mask or ""))
        assert np.mean(item.annotation.mask) == pytest.approx((trimap == 1).mean(), abs=0.25)  # type: ignore[arg-type]
        assert item.annotation.ignore is not None


def test_classes_table_is_imagenet_s(shared: Path) -> None:
    from vitreous.datasets.class_tables import wnids

    rows = json.loads((shared / "imagenet-val-1k.json").read_text())
    assert [row["wnid"] for row in sorted(rows, key=lambda row: row["label"])] == list(wnids())


def test_the_world_is_a_source_once_it_is_imported() -> None:
    """In a process of its own: elsewhere the benchmark has imported it already."""
    code = (
        "from vitreous.datasets import open_source\n"
        "try:\n    open_source('world')\nexcept Exception as error:\n    print(error)\n"
        "import vitreous.world\n"
        "source = open_source('world', images=2)\nprint(len(source), source.entries[0].open().size)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["unknown source 'world'", "2 (128, 128)"]
