"""A folder in the layout of the data set: written here from scenes of the world, and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from funnybirds_folder import BIRD, LAYOUT, SCENES, part_map, picture, write_folder
from vitreous.benchmark.data import Options, digest_of_entry
from vitreous.benchmark.protocol import read, replace_model
from vitreous.benchmark.run import BenchmarkRun
from vitreous.datasets import open_source
from vitreous.datasets.funnybirds import Layout
from vitreous.evaluation.funnybirds_data import FunnyBirdsFolder, Intervention
from vitreous.world import NAMES, PARTS, render


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("funnybirds"))


def painted(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
    return torch.nn.functional.avg_pool2d(inputs.double(), 8).mean(dim=1) + classes[:, None, None] / 48


def test_a_folder_is_what_its_scenes_are(folder: Path) -> None:
    """The same numbers as from the scenes themselves, but for 8 bits, the order of parts, and halves that overlap."""
    model = vt.load("world")
    asked: dict[str, Any] = {"controls": False, "n_bootstrap": 5, "dilation": 1}
    read = vt.funnybirds(model, {"painted": painted}, folder, **asked)
    created = vt.funnybirds(model, {"painted": painted}, SCENES, **asked)
    np.testing.assert_array_equal(read.accuracy, created.accuracy)
    np.testing.assert_array_equal(read.background, created.background)
    np.testing.assert_allclose(read.checks["painted"].curves, created.checks["painted"].curves)
    np.testing.assert_allclose(read.checks["painted"].sd, created.checks["painted"].sd)
    assert read.plan["states"] == created.plan["states"]
    assert read.images == tuple(f"test/{s.label}/{k:06d}.png" for k, s in enumerate(SCENES))


def test_objects_that_no_map_shows_are_a_warning(folder: Path, tmp_path: Path) -> None:
    for place, scene in enumerate(SCENES):
        part_map(scene.without_objects(), tmp_path / f"{place}.png")
    hidden = FunnyBirdsFolder.of(folder, Layout(part_map=f"{tmp_path}/{{image}}.png"))
    with pytest.warns(vt.VitreousWarning, match="no background object is seen in any part map"):
        vt.funnybirds(vt.load("world"), {"painted": painted}, hidden, controls=False, n_bootstrap=1)


def test_instances_are_masks_of_their_own(folder: Path) -> None:
    source = FunnyBirdsFolder.of(folder)
    (seen,) = source.masks(range(1))
    assert set(seen.owners.tolist()) == set(range(5 + len(SCENES[0].objects)))
    rendered = render(SCENES[0])
    for part, own in BIRD.items():
        mine = seen.masks[seen.owners == LAYOUT.parts.index(part)]
        assert (mine.sum(axis=0) == rendered.parts[0, PARTS.index(own)].numpy()).all()
    assert source.size == 128
    assert source.images([Intervention(0, 31)]).shape == (1, 3, 128, 128)


def test_names_may_be_others(folder: Path) -> None:
    other = Layout(part_map="maps/{label}/{image}.png", nobody=((1, 2, 3),))
    with pytest.raises(vt.VitreousError, match=f"no such file: {folder}/maps/{SCENES[0].label}/0.png"):
        list(FunnyBirdsFolder.of(folder, other).masks(range(1)))
    with pytest.raises(vt.VitreousError, match=r"has the colour \(0, 0, 0\), which is nobody's"):
        list(FunnyBirdsFolder.of(folder, Layout(nobody=((1, 2, 3),))).masks(range(1)))
    with pytest.raises(vt.VitreousError, match="cannot be filled in"):
        FunnyBirdsFolder.of(folder, Layout(image="{colour}.png")).names  # noqa: B018
    with pytest.raises(vt.VitreousError, match="is of 'horn', but the parts are"):
        Layout(colours={(1, 1, 1): "horn"})
    with pytest.raises(vt.VitreousError, match="no colour of the part maps is of tail"):
        Layout(colours={c: p for c, p in LAYOUT.colours.items() if p != "tail"})


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("classes.json", None, "classes.json cannot be read: No such file"),
        ("classes.json", "{", "classes.json is no JSON"),
        ("classes.json", "{}", "must hold a list with one table for each class"),
        ("classes.json", '[{"parts": {}}, {}]', "class 0 of .* has no 'beak' among its parts"),
        ("classes.json", '[{"class_idx": 3}, {}]', "class 0 of .* calls itself 3"),
        ("dataset_test.json", "[]", "must hold a list with one table of parameters for each image"),
        ("dataset_test.json", '[{"class_idx": 48}]', "image 0 of .* has class_idx=48, outside 0..47"),
        ("dataset_test.json", '[{"class_idx": 1, "bg_objects": 3}]', "has bg_objects=3, neither"),
        ("dataset_test.json", '[{"class_idx": 1}]', "has bg_objects=None, neither"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, file: str, text: str | None, message: str) -> None:
    for name in ("classes.json", "dataset_test.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / file).unlink() if text is None else (tmp_path / file).write_text(text)
    with pytest.raises(vt.VitreousError, match=message):
        FunnyBirdsFolder.of(tmp_path)


def test_pictures_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    label = NAMES.index(SCENES[0].name)
    for name in ("classes.json", "dataset_test.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    source = FunnyBirdsFolder.of(tmp_path)
    with pytest.raises(vt.VitreousError, match="no such file"):
        source.size  # noqa: B018
    picture(SCENES[0], tmp_path / f"test/{label}/000000.png")
    with pytest.raises(vt.VitreousError, match=f"no such file: .*{label}/000000/body_beak_wing.png"):
        source.images([Intervention(0, 0b10001)])
    small = tmp_path / f"test_interventions/{label}/000000/body_.png"
    small.parent.mkdir(parents=True)
    Image.new("RGB", (20, 10)).save(small)
    with pytest.raises(vt.VitreousError, match="is 20 x 10 pixels, others are 128 x 128"):
        source.images([Intervention(0, 0)])
    Image.new("RGB", (20, 10)).save(tmp_path / f"test/{label}/000000.png")
    with pytest.raises(vt.VitreousError, match="is 20 x 10 pixels; birds are square"):
        FunnyBirdsFolder.of(tmp_path).size  # noqa: B018
    many = Image.new("RGB", (128, 128), (204, 204, 244))
    picture(SCENES[0], tmp_path / f"test/{label}/000000.png")
    (tmp_path / f"test_part_map/{label}").mkdir(parents=True)
    many.save(tmp_path / f"test_part_map/{label}/000000.png")
    with pytest.raises(vt.VitreousError, match="shows object 40, but the image has"):
        list(FunnyBirdsFolder.of(tmp_path, Layout(nobody=((0, 0, 0),))).masks(range(1)))


def test_part_maps_without_the_colour_of_any_part_are_refused(folder: Path, tmp_path: Path) -> None:
    for place in range(len(SCENES)):
        Image.new("RGB", (128, 128), (9, 9, 9)).save(tmp_path / f"{place}.png")
    other = FunnyBirdsFolder.of(folder, Layout(part_map=f"{tmp_path}/{{image}}.png"))
    with pytest.raises(vt.VitreousError, match=r"no part map of .* has the colour of a part"):
        list(other.masks(range(1)))


def test_a_benchmark_opens_the_folder_as_its_data(folder: Path) -> None:
    """The word ``funnybirds``: every image with its class, and each part where the part map has its colours."""
    source = open_source("funnybirds", folder, split="test")
    assert [entry.name for entry in source.entries] == [f"test/{s.label}/{k:06d}.png" for k, s in enumerate(SCENES)]
    samples = list(source.samples(vt.load("world")))
    assert [item.label for item in samples] == [scene.label for scene in SCENES]
    for sample, scene in zip(samples, SCENES, strict=True):
        assert sample.annotation is not None
        assert list(sample.annotation.parts) == ["beak", "eye", "foot", "tail", "wing"]
        rendered = render(scene)
        for part, own in BIRD.items():
            mask = rendered.parts[0, PARTS.index(own)]
            for k in range(len(scene.objects)):
                mask = mask & ~rendered.objects[0, k]
            np.testing.assert_array_equal(sample.annotation.parts[part], mask.numpy())
    digest = digest_of_entry(source.entries[0])
    path = folder / f"test_part_map/{SCENES[0].label}/000000.png"
    before = path.read_bytes()
    try:
        Image.new("RGB", (128, 128), (255, 255, 0)).save(path)
        assert digest_of_entry(source.entries[0]) != digest  # a run is not extended with other part maps
    finally:
        path.write_bytes(before)


def test_the_protocol_of_coiba_runs_on_the_folder(folder: Path, tmp_path: Path) -> None:
    protocol = replace_model(read("coiba-funnybirds"), "world")
    protocol = replace(
        protocol, methods={"Generic": "generic"}, evaluation=replace(protocol.evaluation, controls=False)
    )
    bench = BenchmarkRun(protocol, tmp_path / "run", Options(data=str(folder), device="cpu"))
    bench.prepare()
    bench.work()
    table = vt.load_run(tmp_path / "run").table()
    assert np.isfinite(table["Generic", "part_correlation"]).all()
    assert len(table.images) == len(SCENES)


def test_handing_in_weights_makes_a_protocol_run_that_requires_them(folder: Path, tmp_path: Path) -> None:
    """``--checkpoint LABEL=FILE``: the models that have one can run, and no others."""
    protocol = read("coiba-funnybirds")
    with pytest.raises(vt.VitreousError, match="coiba-funnybirds cannot run here, it requires weights"):
        BenchmarkRun(protocol, tmp_path / "none", Options(data=str(folder), device="cpu"))
    (spec,) = protocol.models
    world = replace(spec, name="world")  # a model that knows the classes of this folder
    protocol = replace(protocol, models=(world, replace(spec, label="other")), methods={"Generic": "generic"})
    weights = Path(vt.__file__).parent / "world" / "weights" / "world.safetensors"
    options = Options(data=str(folder), device="cpu", checkpoint={spec.label: str(weights)})
    bench = BenchmarkRun(protocol, tmp_path / "run", options)
    assert [model.label for model in bench.protocol.models] == [spec.label]
    bench.prepare()
    bench.work()
    assert np.isfinite(vt.load_run(tmp_path / "run").table()["Generic", "part_correlation"]).all()
    both = read("vtranm-table1").with_weights([model.label for model in read("vtranm-table1").models])
    assert both.missing == ()
    assert read("vtranm-table1").with_weights(["no such"]) == read("vtranm-table1")


@pytest.mark.parametrize("name", ["classes.json", "dataset_test.json", "test", "test_part_map"])
def test_a_folder_that_is_another_data_set_is_refused_in_a_line(folder: Path, tmp_path: Path, name: str) -> None:
    for path in folder.iterdir():
        if path.name != name:
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(vt.VitreousError, match=r"^funnybirds: .* should hold classes.json, dataset_test.json, test/"):
        open_source("funnybirds", tmp_path)
    with pytest.raises(vt.VitreousError, match="split='valid'"):
        open_source("funnybirds", tmp_path, split="valid")
