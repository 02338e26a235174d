"""The entries of a data set of any kind are what is planned, counted, named and grouped, and what is iterated."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from coco_files import coco
from data_files import noise
from families import FAMILIES
from funnybirds_folder import write_folder
from imagenet_files import VAL, imagenet_s, segments, write_segments
from tiny_benchmark import bench, ran, tiny
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import DatasetRun, Options, digest_of_entry
from vitreous.benchmark.protocol import DataSpec, ModelSpec, Protocol, Published
from vitreous.benchmark.report import report
from vitreous.benchmark.store import status
from vitreous.datasets import open_source, source_names
from vitreous.datasets.class_tables import table, wnids
from vitreous.errors import ImageError, VitreousError, VitreousWarning
from vitreous.metrics.bootstrap import mean, resampled

# -- one small data set of every kind; each returns where it is --------------------------------------------


def folder(root: Path) -> Path:
    for number in range(3):
        noise(root / f"{number}.jpg", number)
    return root


def imagefolder(root: Path, kinds: tuple[int, ...] = (3, 7)) -> Path:
    for number, kind in enumerate((*kinds, *kinds)):
        noise(root / wnids()[kind] / f"{number}.jpg", number)
    return root


def as_csv(root: Path) -> Path:
    with open(root / "table.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "label", "boxes", "unit", "group"])
        for number in range(4):
            noise(root / f"{number}.jpg", number)
            rows.writerow([f"{number}.jpg", number, "0 0 .5 .5", "fractions", number // 2])
    return root / "table.csv"


def as_json(root: Path) -> Path:
    rows = [{"file": noise(root / f"{number}.jpg", number).name, "label": number} for number in range(3)]
    (root / "table.json").write_text(json.dumps(rows))
    return root / "table.json"


def masks(root: Path) -> Path:
    for number in range(2):
        noise(root / f"{number}.jpg", number)
        Image.fromarray(np.eye(32, 40, dtype=np.uint8)).save(root / f"{number}_mask.png")
    return root


def pets(root: Path) -> Path:
    rows = []
    for number in range(2):
        noise(root / "pets" / f"{number}.jpg", number)
        Image.fromarray(np.full((32, 40), 1, np.uint8)).save(root / "pets" / f"{number}.png")
        rows.append({"file": f"{number}.jpg", "mask": f"{number}.png", "label": number})
    (root / "pets.json").write_text(json.dumps(rows))
    return root / "pets"


def cifar(root: Path, ten: bool) -> Path:
    place = root / ("cifar-10-batches-py" if ten else "cifar-100-python")
    place.mkdir()
    data = np.random.default_rng(1).integers(0, 255, (3, 3072), dtype=np.uint8)
    reported = {b"data": data, b"labels" if ten else b"fine_labels": [3, 9, 0]}
    (place / ("test_batch" if ten else "test")).write_bytes(pickle.dumps(reported))
    words = [wnids()[number].encode() for number in range(10 if ten else 100)]
    meta = {b"label_names" if ten else b"fine_label_names": words}
    (place / ("batches.meta" if ten else "meta")).write_bytes(pickle.dumps(meta))
    return root


def mura(root: Path) -> Path:
    for study, patient in (("study1_positive", 11), ("study2_negative", 11), ("study1_negative", 12)):
        noise(root / "MURA-v1.1" / "valid" / "XR_WRIST" / f"patient{patient:05d}" / study / "image1.png")
    return root


def as_coco(root: Path) -> Path:
    coco(root)
    return root


def harder(word: str) -> Callable[[Path], Path]:
    return lambda root: imagefolder(root, tuple(table("imagenet.json")[word][:2]))


def imagenet(root: Path) -> Path:
    for number in range(1, 25):
        noise(root / "val" / wnids()[number % 8] / VAL.format(number), number)
    return root


def with_masks(root: Path) -> Path:
    imagenet_s(root, [5, 2, 9, 7, 100, 200, 300, 400])
    return root


def segmentation(root: Path) -> Path:
    pytest.importorskip("h5py")
    visible, masks = segments(lambda *parts: None)
    write_segments(root / "gtsegs_ijcv.mat", visible, masks, [f"{wnids()[number]}_{number}" for number in (3, 5)])
    return root


def hub(root: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    visible = [Image.open(noise(root / f"{number}.png", number)) for number in range(3)]
    datasets.Dataset.from_dict({"image": visible, "label": [0, 1, 2]}).save_to_disk(str(root / "saved"))
    return root / "saved"


def nothing(root: Path) -> None:
    return None


KINDS: dict[str, Callable[[Path], Path | None]] = {
    "cifar10": lambda root: cifar(root, True),
    "cifar100": lambda root: cifar(root, False),
    "coco": as_coco,
    "csv": as_csv,
    "folder": folder,
    "funnybirds": write_folder,
    "hf": hub,
    "imagefolder": imagefolder,
    "imagenet-a": harder("imagenet-a"),
    "imagenet-r": harder("imagenet-r"),
    "imagenet-s": with_masks,
    "imagenet-segmentation": segmentation,
    "imagenet-val": imagenet,
    "json": as_json,
    "masks": masks,
    "mura": mura,
    "part-quad-imagenet": with_masks,
    "pets": pets,
    "quad-imagenet": imagenet,
    "world": nothing,
}


def test_every_kind_of_data_set_is_here() -> None:
    assert set(source_names()) <= set(KINDS)


@pytest.mark.parametrize("word", KINDS)
def test_planned_entries_are_those_that_are_iterated(word: str, tmp_path: Path) -> None:
    where = KINDS[word](tmp_path)
    path = None if where is None else str(where)
    count = {"world": 3}.get(word, 0)
    part = DatasetRun(tiny(data=DataSpec(word, path=path, images=count)), Options(device="cpu"))
    classes = {"mura": 2, "cifar10": 10, "cifar100": 100}.get(word, 1000)
    model = vt.load("world") if word == "world" else vt.wrap(FAMILIES["vit"](num_classes=classes))
    source = part.images.source
    samples = list(source.samples(model, lambda name, why: pytest.fail(f"{name}: {why}")))
    planned, groups = part.listed
    assert len(planned) == len(set(planned)) == len(samples) == len(source) == len(source.entries) > 0
    assert [part.names[digest] for digest in planned] == [sample.image.name for sample in samples]
    assert [part.indices[sample.image.name] for sample in samples] == [sample.index for sample in samples]
    assert [part.images.entry(digest).group for digest in planned] == (groups or [None] * len(planned))
    assert list(source.groups or ()) == groups == list(source.evaluate_options(model).get("groups", ()))
    assert source.has_labels == (samples[0].label is not None)
    assert source.to_json()["entries"] == len(planned)
    for digest, sample in zip(planned, samples, strict=True):
        again = part.sample(sample.image.name, digest, model)
        assert again.image.tensor.equal(sample.image.tensor)
        assert (again.label, again.compare_classes) == (sample.label, sample.compare_classes)


# -- grids -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model with a thousand classes."""
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "vit.safetensors"
    save_file(timm.create_model("test_vit").state_dict(), path)
    return str(path)


@pytest.fixture
def quads(tmp_path: Path, weights: str) -> Callable[..., Protocol]:
    """A protocol on grids of 24 photographs of eight classes."""
    place = imagenet(tmp_path / "photos")

    def make_protocol(images: int = 3, word: str = "quad-imagenet", **more: Any) -> Protocol:
        data = DataSpec(word, path=str(place), images=images)
        options_passed = {"methods": ("raw_attention", "ixg"), "metrics": ("pointing_game",), "target": "given", **more}
        model = ModelSpec("vit", "timm/test_vit", checkpoint=weights, size=32)
        return dataclasses.replace(tiny(data=data, **options_passed), models=(model,))

    return make_protocol


def test_a_benchmark_on_grids_has_the_cells_as_rows(tmp_path: Path, quads: Any) -> None:
    store = ran(quads(), tmp_path / "run")
    names = [f"grid-{grid:05d}/{cell}" for grid in range(3) for cell in range(4)]
    planned = store.plans()[0]
    assert [planned.names[item] for item in dict.fromkeys(p for u in planned.units for p in u.images)] == names
    actual = status(store)
    assert (actual.unreadable, actual.done) == ({}, actual.total)
    written = report(store.path)
    (part,) = written.results
    assert part.table.images == tuple(names)
    assert part.table.groups == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    assert part.scores.missing.cells == 0
    assert "12 pictures in 3 groups" in written.lead
    assert "data:image/jpeg" in written.page.read_text(), "grids are drawn, by the model of the run"
    # scores are those of the same cells, evaluated without a benchmark
    source = open_source("quad-imagenet", tmp_path / "photos", images=3)
    model = vt.load("timm/test_vit", checkpoint=quads().models[0].checkpoint, img_size=32, device="cpu")
    expected = vt.evaluate(
        model, methods=["ixg"], metrics=["pointing_game"], controls=False, **source.evaluate_options(model)
    )
    assert part.table["ixg", "pointing_game"].tolist() == expected["ixg", "pointing_game"].tolist()
    # the bootstrap draws whole grids: of a grid all cells or none
    scores = part.table["ixg", "pointing_game"]
    slow = resampled([(scores.reshape(3, 4).mean(axis=1)[:, None], mean)], part.table.n_bootstrap, part.table.seed)
    assert part.table.interval("ixg", "pointing_game") == pytest.approx(tuple(np.quantile(slow, [0.025, 0.975])))


def test_more_grids_leave_those_that_are_there(tmp_path: Path, quads: Any) -> None:
    store = ran(quads(1), tmp_path / "run")
    before = store.finished()
    store = ran(quads(1), tmp_path / "run", images=2)
    assert before < store.finished()
    assert len(store.plans()[1].units) == len(before)
    (actual,) = collect(store)
    assert actual.table.images == tuple(f"grid-{grid:05d}/{cell}" for grid in range(2) for cell in range(4))
    assert actual.table.groups == (0,) * 4 + (1,) * 4, "also without the photographs at hand"


def test_cells_that_cannot_be_made_are_reported(tmp_path: Path, quads: Any) -> None:
    """Of 24 photographs 14 are broken: two grids are left of three, and the cells of the third are named."""
    for file in sorted((tmp_path / "photos").rglob("*.JPEG"), key=lambda item: item.name)[10:]:
        file.write_bytes(b"broken")
    with pytest.warns(VitreousWarning, match="14 images were left out"):
        store = ran(quads(), tmp_path / "run")
    reported = status(store).unreadable
    assert sorted(reported) == [f"grid-00002/{cell}" for cell in range(4)]
    assert set(reported.values()) == {
        "quad-imagenet: the images that can be used make 2 grids, so there is no grid-00002/" + str(cell)
        for cell in range(4)
    }
    (actual,) = collect(store)
    assert actual.table.groups == (0,) * 4 + (1,) * 4


def test_changed_ingredients_are_refused(tmp_path: Path, quads: Any) -> None:
    ran(quads(), tmp_path / "run")
    first = sorted((tmp_path / "photos").rglob("*.JPEG"))[0]
    noise(first, 99)
    with pytest.raises(VitreousError, match=r"grid-0000\d/\d of quad-imagenet has changed"):
        bench(quads(), tmp_path / "run")


def test_a_cell_is_not_opened_without_its_model(tmp_path: Path, quads: Any) -> None:
    entry = open_source("quad-imagenet", imagenet(tmp_path / "more")).entries[0]
    with pytest.raises(ImageError, match="grid-00000/0 is put together for one model"):
        entry.open()
    assert re.fullmatch("[0-9a-f]{32}", digest_of_entry(entry))


def test_the_reproduction_counts_grids(tmp_path: Path, quads: Any) -> None:
    printed = Published("pointing_game", "vit", "ixg", value=0.5, printed=50.0)
    names_seen = dataclasses.replace(quads(), published=(printed,))
    reproduction = report(ran(names_seen, tmp_path / "run").path).reproduction
    assert reproduction is not None
    assert reproduction.lines[0].images == 3
    assert "fewer images" not in reproduction.lines[0].words


def test_the_explorer_draws_grids_where_their_model_is_loaded(tmp_path: Path, quads: Any) -> None:
    pytest.importorskip("fastapi")
    from vitreous.web.run_view import RunFolder

    store = ran(quads(1), tmp_path / "run")
    model = vt.load("timm/test_vit", checkpoint=quads().models[0].checkpoint, img_size=32, device="cpu")
    (part,) = RunFolder(store.path, str(tmp_path / "photos"), {"vit": model}).opened().parts
    config, digest = part.result.scores.config, part.digests[2]
    assert not isinstance(part.images, str)
    with pytest.raises(ImageError, match="put together for one model"):
        part.images.png(config, digest)
    draws = Image.open(io.BytesIO(part.images.png(config, digest, part.model)))
    tensor = open_source("quad-imagenet", tmp_path / "photos", images=1).sample(model, 2).image.tensor
    assert np.abs(np.asarray(draws, float) - np.asarray(model.preprocess.to_image(tensor), float)).max() <= 1
