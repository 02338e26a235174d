"""Every form a picture may come in: the same picture gives the same explanation, and no picture is refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import vitreous as vt
from families import FAMILIES, images
from vitreous.datasets.images import image_files, load_images, open_image
from vitreous.errors import ImageError, TargetError

METHOD = "ixg"


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


def pixels(seed: int, height: int = 50, width: int = 70) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def photograph(seed: int) -> Image.Image:
    return Image.fromarray(pixels(seed))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    photograph(1).save(tmp_path / "one.png")
    return tmp_path / "one.png"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three pictures, written in another order than that of their names, and things that are no images."""
    place = tmp_path / "photos"
    (place / "inner.png").mkdir(parents=True)
    for seed, name in ((2, "b.PNG"), (1, "a.bmp"), (3, "c.tiff")):
        photograph(seed).save(place / name)
    (place / "notes.txt").write_text("not a picture")
    return place


def explained(model: vt.VisionModel, source: Any) -> Any:
    return vt.explain(model, source, METHOD, 2)


def tensor_of(model: vt.VisionModel, seed: int) -> torch.Tensor:
    return model.preprocess.to_tensor(model.preprocess.resize_and_crop(photograph(seed))[0])


def by_method(model: vt.VisionModel, tensor: torch.Tensor) -> torch.Tensor:
    return vt.get_method(METHOD).attribute(model, tensor[None], 2)[0]


# -- one picture, many forms ---------------------------------------------------------------------------


def test_every_form_gives_the_same_explanation(model: vt.VisionModel, path: Path) -> None:
    expected = by_method(model, tensor_of(model, 1))
    forms: dict[str, Any] = {
        "path": path,
        "str": str(path),
        "pil": photograph(1),
        "bytes": pixels(1),
        "float64": pixels(1) / 255,
        "float32": (pixels(1) / 255).astype(np.float32),
        "tensor": tensor_of(model, 1),
    }
    for name, form in forms.items():
        actual = explained(model, form)
        assert isinstance(actual, vt.Explanation), name
        torch.testing.assert_close(actual.map, expected, rtol=0, atol=1e-6, msg=name)
        assert actual.image.tobytes() == model.preprocess.resize_and_crop(photograph(1))[0].tobytes(), name


def test_where_a_picture_comes_from(model: vt.VisionModel, path: Path) -> None:
    box = model.preprocess.resize_and_crop(photograph(1))[1]
    (read,) = load_images(path, model)
    assert (read.name, read.path, read.box, read.original) == ("one.png", path, box, None)
    (held,) = load_images(photograph(1), model)
    assert (held.name, held.path, held.box) == ("image", None, box)
    assert held.original is not None
    assert held.original.tobytes() == photograph(1).tobytes()
    (minimal,) = load_images(tensor_of(model, 1), model)
    assert (minimal.name, minimal.path, minimal.box, minimal.original) == ("input-0", None, None, None)


# -- many pictures -------------------------------------------------------------------------------------


def test_forms_of_many(model: vt.VisionModel, folder: Path) -> None:
    stacked = torch.stack([tensor_of(model, seed) for seed in (1, 2, 3)])
    expected = [by_method(model, tensor) for tensor in stacked]
    forms: dict[str, Callable[[], Any]] = {
        "folder": lambda: folder,
        "folder as str": lambda: str(folder),
        "array": lambda: np.stack([pixels(seed) for seed in (1, 2, 3)]),
        "tensor": lambda: stacked,
        "list of tensors": lambda: list(stacked),
        "tuple": lambda: (folder / "a.bmp", photograph(2), pixels(3)),
        "mixed": lambda: [pixels(1), str(folder / "b.PNG"), stacked[2]],
        "nested": lambda: [[photograph(1), pixels(2)], stacked[2:]],
        "generator": lambda: (photograph(seed) for seed in (1, 2, 3)),
        "loader": lambda: DataLoader(TensorDataset(stacked), batch_size=2),
        "loader with labels": lambda: DataLoader(TensorDataset(stacked, torch.arange(3)), batch_size=2),
        "loader of tensors": lambda: DataLoader(list(stacked), batch_size=2),  # type: ignore[arg-type]
    }
    for name, form in forms.items():
        for batch_size in (None, 2):
            actual = vt.explain(model, form(), METHOD, 2, batch_size=batch_size)
            assert isinstance(actual, list), name
            assert len(actual) == 3, name
            for item, map in zip(actual, expected, strict=True):
                torch.testing.assert_close(item.map, map, rtol=0, atol=1e-5, msg=name)


def test_no_tensor_of_an_inner_list_is_lost(model: vt.VisionModel) -> None:
    """A loader's batch with labels is also a list that starts with a tensor; here every tensor is a picture."""
    inner = [tensor_of(model, 1), tensor_of(model, 2)]
    assert len(explained(model, [inner])) == 2


@pytest.mark.parametrize("form", ["list", "folder", "array", "tensor"])
def test_one_of_many_is_still_many(model: vt.VisionModel, path: Path, form: str) -> None:
    sources = {"list": [path], "folder": path.parent, "array": pixels(1)[None], "tensor": tensor_of(model, 1)[None]}
    actual = explained(model, sources[form])
    assert isinstance(actual, list)
    assert len(actual) == 1


def test_a_folder_is_read_in_order(model: vt.VisionModel, folder: Path) -> None:
    assert [file.name for file in image_files(folder)] == ["a.bmp", "b.PNG", "c.tiff"]
    assert image_files(str(folder / "b.PNG")) == [folder / "b.PNG"]
    assert [item.name for item in explained(model, folder)] == ["a.bmp", "b.PNG", "c.tiff"]


def test_targets_go_with_their_pictures(model: vt.VisionModel, folder: Path) -> None:
    actual = vt.explain(model, folder, METHOD, [4, 0, 1], batch_size=2)
    assert [item.target for item in actual] == [4, 0, 1]
    for item, seed in zip(actual, (1, 2, 3), strict=True):
        alone = vt.explain(model, photograph(seed), METHOD, item.target)
        torch.testing.assert_close(item.map, alone.map, rtol=0, atol=1e-5)
    with pytest.raises(TargetError, match="2 targets for 3 images"):
        vt.explain(model, folder, METHOD, [4, 0])


@pytest.mark.parametrize("target", [np.int64(3), torch.tensor(3), np.array([3, 3]), torch.tensor([3, 3]), (3, "3")])
def test_forms_of_a_target(model: vt.VisionModel, target: Any) -> None:
    actual = vt.explain(model, images(model.module, 2), METHOD, target, batch_size=1)
    assert [item.target for item in actual] == [3, 3]


def test_progress_counts_pictures(model: vt.VisionModel, folder: Path) -> None:
    reported: list[tuple[float, int | None]] = []
    vt.explain(model, folder, METHOD, batch_size=2, progress=lambda done, total: reported.append((done, total)))
    assert reported[-1] == (3, 3)
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert (2, 3) in reported


def test_pictures_are_read_when_they_are_needed(model: vt.VisionModel) -> None:
    def endless() -> Iterator[Image.Image]:
        yield photograph(1)
        raise ZeroDivisionError

    actual = vt.iter_explanations(model, endless(), METHOD, batch_size=1)
    assert next(actual).name == "image-0"
    with pytest.raises(ZeroDivisionError):
        next(actual)


# -- kinds of files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("opened", [True, False])
def test_pictures_are_turned_upright(model: vt.VisionModel, tmp_path: Path, orientation: int, opened: bool) -> None:
    """What each EXIF orientation means, from the standard: where the stored first row and column belong."""
    upright = pixels(1)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    place = tmp_path / "turned.png"
    Image.fromarray(np.ascontiguousarray(stored)).save(place, exif=exif)
    np.testing.assert_array_equal(np.asarray(open_image(place)), upright)
    expected = explained(model, upright)
    actual = explained(model, Image.open(place) if opened else place)
    torch.testing.assert_close(actual.map, expected.map)


RAMP = np.linspace(0, 255, 64 * 64).astype(np.uint8).reshape(64, 64)


@pytest.mark.parametrize(
    ("stored", "suffix", "tolerance"),
    [
        (Image.fromarray(RAMP), "png", 0),
        (Image.fromarray(RAMP).convert("P"), "png", 0),
        (Image.fromarray(RAMP).convert("LA"), "png", 0),
        (Image.fromarray(RAMP).convert("RGBA"), "png", 0),
        (Image.fromarray(RAMP).convert("RGBA"), "webp", 6),
        (Image.fromarray(RAMP).convert("RGB"), "jpg", 6),
        (Image.fromarray(RAMP).convert("CMYK"), "tiff", 1),
        (Image.fromarray(RAMP).convert("P"), "gif", 0),
        (Image.fromarray(RAMP.astype(np.uint16) * 257), "png", 1),  # sixteen bits, as microscopes and X-rays have
        (Image.fromarray(RAMP.astype(np.uint16) * 257), "tiff", 1),
    ],
    ids=lambda value: f"{value.mode}" if isinstance(value, Image.Image) else str(value),
)
def test_modes_of_files(tmp_path: Path, stored: Image.Image, suffix: str, tolerance: int) -> None:
    stored.save(tmp_path / f"ramp.{suffix}")
    actual = open_image(tmp_path / f"ramp.{suffix}")
    assert actual.mode == "RGB"
    off = np.abs(np.asarray(actual, int) - RAMP[..., None])
    assert off.max() <= tolerance


def test_forms_of_arrays(model: vt.VisionModel) -> None:
    grey = pixels(1)[..., 0]
    expected = explained(model, np.stack([grey] * 3, axis=-1)).map
    opaque = np.concatenate([np.stack([grey] * 3, axis=-1), np.full((*grey.shape, 1), 255, np.uint8)], axis=-1)
    for array in (grey, grey[..., None], opaque, grey / 255):
        torch.testing.assert_close(explained(model, array).map, expected)


# -- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (np.zeros((3, 40, 40), np.uint8), r"\(3, 40, 40\)"),
        (np.zeros((40, 40, 2), np.uint8), r"\(40, 40, 2\)"),
        (np.zeros(40, np.uint8), r"\(40,\)"),
        (np.zeros((1, 1, 40, 40, 3), np.uint8), r"\(1, 1, 40, 40, 3\)"),
        (np.zeros((40, 40, 3), np.int64), "int64"),
        (np.full((40, 40, 3), 1.5), "floats from 0 to 1"),
        (np.full((40, 40, 3), -0.5), "floats from 0 to 1"),
        (np.full((40, 40, 3), np.nan), "floats from 0 to 1"),
        (np.zeros((0, 0, 3), np.uint8), "empty"),
        (np.zeros((0, 32, 32, 3), np.uint8), "no images"),
        ([], "no images"),
        ((), "no images"),
        (iter([]), "no images"),
        (7, "a int is not an image"),
        (None, "a NoneType is not an image"),
        ([photograph(1), 7], "a int is not an image"),
        ("no/such.png", r"no such file: no/such\.png"),
        (Path("no/such/folder"), "no such file: no/such/folder"),
    ],
)
def test_no_picture(model: vt.VisionModel, source: Any, named: str) -> None:
    with pytest.raises(ImageError, match=named):
        explained(model, source)


def test_files_that_are_no_pictures(model: vt.VisionModel, path: Path) -> None:
    text, broken = path.with_name("text.png"), path.with_name("broken.png")
    text.write_text("hello")
    broken.write_bytes(path.read_bytes()[:200])
    for file in (text, broken, [path, text]):
        with pytest.raises(ImageError) as caught:
            explained(model, file)
        assert (file[1] if isinstance(file, list) else file).name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_empty_folder(model: vt.VisionModel, folder: Path) -> None:
    shutil.rmtree(folder / "inner.png")
    for file in image_files(folder):
        file.unlink()
    for use in (image_files, lambda place: explained(model, place)):
        with pytest.raises(ImageError, match=r"no images in the folder .*photos"):
            use(folder)
