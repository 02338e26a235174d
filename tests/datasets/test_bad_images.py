"""Pictures as they come: broken, huge, tiny, odd. Each is read as it should be, or refused by name in one line."""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from commands import MODEL, run, tree
from families import FAMILIES, images
from vitreous.datasets.images import image_files, open_image
from vitreous.errors import ImageError, ModelError, VitreousError

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (40, 60, 3), dtype=np.uint8)
RAMP = np.linspace(0, 255, 64 * 64).astype(np.uint8).reshape(64, 64)


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


def refused(path: Path, model: vt.VisionModel) -> str:
    """The one line that a picture is refused with."""
    with pytest.raises(ImageError) as caught:
        vt.explain(model, path)
    text = str(caught.value)
    assert str(path) in text
    assert len(text.splitlines()) == 1
    return text


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, kind, **options)
    return held.getvalue()


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG that claims a size; its content may be missing."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# -- broken --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_truncated(tmp_path: Path, model: vt.VisionModel, kind: str) -> None:
    full = encoded(Image.fromarray(COLOURS), kind)
    for share in (0.05, 0.3, 0.6, 0.9):
        path = tmp_path / f"cut-{share}.{kind.lower()}"
        path.write_bytes(full[: int(len(full) * share)])
        refused(path, model)


def test_a_truncated_picture_already_opened(tmp_path: Path, model: vt.VisionModel) -> None:
    """PIL reads when it must: the file is opened well and breaks later."""
    full = encoded(Image.fromarray(COLOURS), "PNG")
    path = tmp_path / "cut.png"
    path.write_bytes(full[: len(full) // 2])
    with Image.open(path) as opened, pytest.raises(ImageError, match=r"the image cannot be read: .*truncated"):
        vt.explain(model, opened)
    closed = Image.open(io.BytesIO(full))
    closed.close()
    with pytest.raises(ImageError, match="the image cannot be read"):
        vt.explain(model, closed)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"hello", "is not an image"),
        (b"\x89PNG\r\n\x1a\n", "is not an image|cannot be read"),
        (b"GIF89a", "is not an image|cannot be read"),
        (png(0, 0), "cannot be read|is not an image|empty"),
        (png(4, 4), "cannot be read"),
    ],
    ids=["empty", "text", "PNG magic", "GIF magic", "no size", "no pixels"],
)
def test_no_pictures(tmp_path: Path, model: vt.VisionModel, content: bytes, named: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    assert re.search(named, refused(path, model))


def test_places_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="is not a file"):
        open_image(tmp_path)
    for name in ("x" * 5000, "nul\0nul"):
        with pytest.raises(ImageError, match="no such file"):
            open_image(tmp_path / name)
        with pytest.raises(ImageError, match="no such file"):
            image_files(tmp_path / name)


# -- sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 3)])
def test_tiny(tmp_path: Path, model: vt.VisionModel, shape: tuple[int, int]) -> None:
    path = tmp_path / "tiny.png"
    Image.fromarray(RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(path)
    actual = vt.explain(model, path, "ixg", 1)
    assert actual.image.size == (32, 32)
    assert torch.isfinite(actual.map).all()
    assert actual.overlay(original=True).size == shape[::-1]


@pytest.mark.parametrize(
    ("width", "height", "named"),
    [
        (20_000, 20_000, "has 400000000 pixels, over 89478485"),  # PIL refuses by itself
        (12_000, 12_000, "has 12000 x 12000 pixels, over 89478485"),  # PIL would warn, and read 400 MB
    ],
)
def test_huge(tmp_path: Path, model: vt.VisionModel, width: int, height: int, named: str) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png(width, height))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert named in refused(path, model)
    assert Image.MAX_IMAGE_PIXELS == 89_478_485


def test_the_limit_is_pils(tmp_path: Path, model: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(COLOURS).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    assert "60 x 40 pixels, over 2000" in refused(path, model)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert vt.explain(model, path, "ixg").image.size == (32, 32)


def test_long_and_thin(tmp_path: Path, model: vt.VisionModel) -> None:
    path = tmp_path / "thin.png"
    Image.new("RGB", (40_000, 1)).save(path)
    assert "40000 x 1 pixels is too long and thin" in refused(path, model)


# -- modes ---------------------------------------------------------------------------------------------


def _transparent_palette() -> bytes:
    """A palette with one alpha for each colour: PIL warns about the direct conversion."""
    image = Image.fromarray(RAMP).convert("P")
    return encoded(image, "PNG", transparency=bytes(range(256)))


def _frames(kind: str) -> bytes:
    others = [Image.fromarray(255 - RAMP).convert("RGB"), Image.new("RGB", (64, 64), "red")]
    return encoded(Image.fromarray(RAMP).convert("RGB"), kind, save_all=True, append_images=others, lossless=True)


def _tiff(values: np.ndarray) -> bytes:
    return encoded(Image.fromarray(values), "TIFF")


# how a grey ramp is stored, and by how much it may be off
MODES: dict[str, tuple[Callable[[], bytes], int]] = {
    "grey": (lambda: encoded(Image.fromarray(RAMP), "PNG"), 0),
    "grey jpeg": (lambda: encoded(Image.fromarray(RAMP), "JPEG", quality=95), 4),
    "grey with alpha": (lambda: encoded(Image.fromarray(np.dstack([RAMP, 255 - RAMP])), "PNG"), 0),
    "alpha": (lambda: encoded(Image.fromarray(np.dstack([RAMP, RAMP, RAMP, 255 - RAMP])), "PNG"), 0),
    "cmyk jpeg": (lambda: encoded(Image.fromarray(RAMP).convert("CMYK"), "JPEG", quality=95), 8),
    "cmyk tiff": (lambda: encoded(Image.fromarray(RAMP).convert("CMYK"), "TIFF"), 1),
    "palette": (lambda: encoded(Image.fromarray(RAMP).convert("P"), "PNG"), 0),
    "palette with one transparent colour": (
        lambda: encoded(Image.fromarray(RAMP).convert("P"), "PNG", transparency=7),
        0,
    ),
    "palette with alphas": (_transparent_palette, 0),
    "16 bits": (lambda: encoded(Image.fromarray(RAMP.astype(np.uint16) * 257), "PNG"), 1),
    "16 bits tiff": (lambda: _tiff(RAMP.astype(np.uint16) * 257), 1),
    "32 bits tiff": (lambda: _tiff(RAMP.astype(np.int32) * 257), 1),
    "floats to 1": (lambda: _tiff(RAMP.astype(np.float32) / 255), 1),
    "floats to 255": (lambda: _tiff(RAMP.astype(np.float32)), 1),
    "floats to 65535": (lambda: _tiff(RAMP.astype(np.float32) * 257), 1),
    "moving gif": (lambda: _frames("GIF"), 2),
    "moving png": (lambda: _frames("PNG"), 0),
    "moving webp": (lambda: _frames("WEBP"), 2),
}


@pytest.mark.parametrize("mode", MODES)
def test_modes(tmp_path: Path, model: vt.VisionModel, mode: str) -> None:
    content, tolerance = MODES[mode]
    path = tmp_path / "ramp.png"
    path.write_bytes(content())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = open_image(path)
        assert (actual.mode, actual.size) == ("RGB", (64, 64))
        assert np.abs(np.asarray(actual, int) - RAMP[..., None]).max() <= tolerance
        with Image.open(path) as opened:
            held = vt.explain(model, opened, "ixg", 1)
    assert torch.equal(held.map, vt.explain(model, path, "ixg", 1).map)


def test_premultiplied_alpha_and_black_and_white() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    for mode in ("RGBa", "La", "PA", "1", "HSV", "YCbCr"):
        image = Image.fromarray(COLOURS).convert("RGBA" if mode == "RGBa" else "LA" if mode == "La" else "RGB")
        actual = vt.explain(model, image.convert(mode) if mode != "PA" else image.convert("P").convert("PA"), "ixg", 1)
        assert torch.isfinite(actual.map).all(), mode


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e9])
def test_floats_that_are_no_picture(tmp_path: Path, model: vt.VisionModel, bad: float) -> None:
    values = RAMP.astype(np.float32)
    values[3, 4] = bad
    path = tmp_path / "odd.tiff"
    path.write_bytes(_tiff(values))
    assert "holds values from" in refused(path, model)


def test_exif_rotation_of_a_jpeg(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(COLOURS).save(tmp_path / "turned.jpg", exif=exif)
    assert open_image(tmp_path / "turned.jpg").size == (40, 60)


# -- one bad picture among many ------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """a good, b cut, c good, d empty, e good, f thin."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for number, name in enumerate("ace"):
        Image.fromarray(np.roll(COLOURS, number, axis=0)).save(folder / f"{name}.png")
    full = (folder / "a.png").read_bytes()
    (folder / "b.png").write_bytes(full[: len(full) // 2])
    (folder / "d.png").touch()
    Image.new("RGB", (40_000, 1)).save(folder / "f.png")
    return folder


@pytest.mark.parametrize("batch", [1, 2, 32])
@pytest.mark.parametrize("form", ["folder", "list", "nested", "generator"])
def test_on_error(mixed: Path, model: vt.VisionModel, form: str, batch: int) -> None:
    files = image_files(mixed)
    sources = {
        "folder": mixed,
        "list": [str(file) for file in files],
        "nested": [files[0], [files[1], mixed / "c.png"], *files[3:]],
        "generator": (file for file in files),
    }
    with pytest.raises(ImageError, match=r"b\.png"):
        list(vt.iter_explanations(model, mixed, "ixg", batch_size=batch))
    bad: list[tuple[Path, ImageError]] = []
    done: list[float] = []
    target = None if form == "nested" else [0, 1, 2, 3, 4, 0]
    actual = vt.iter_explanations(
        model,
        sources[form],
        "ixg",
        target,
        batch_size=batch,
        progress=lambda count, total: done.append(count),
        on_error=lambda path, error: bad.append((path, error)),
    )
    explained = list(actual)
    assert [item.name for item in explained] == ["a.png", "c.png", "e.png"]
    if target:
        assert [item.target for item in explained] == [0, 2, 4]  # each its own, not that of its new place
    assert [path.name for path, _ in bad] == ["b.png", "d.png", "f.png"]
    assert all(isinstance(error, ImageError) and path.name in str(error) for path, error in bad)
    assert done[-1] == 5
    for item in explained:
        torch.testing.assert_close(item.map, vt.explain(model, mixed / item.name, "ixg", item.target).map)


def test_on_error_with_nothing_left(mixed: Path, model: vt.VisionModel) -> None:
    bad: list[Path] = []
    for source in (mixed / "b.png", [mixed / "b.png", mixed / "no.png"]):
        assert not list(vt.iter_explanations(model, source, "ixg", on_error=lambda path, error: bad.append(path)))
    assert [path.name for path in bad] == ["b.png", "b.png", "no.png"]
    with pytest.raises(ImageError, match="no images"):
        list(vt.iter_explanations(model, [], "ixg", on_error=lambda path, error: bad.append(path)))


def test_a_folder_on_the_command_line(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mixed.parent)
    done = run("explain", "mixed", *MODEL, "--method", "ixg", "--out", "out")
    assert done.code == 1
    lines = done.err.splitlines()
    assert [line.split(": ")[2] for line in lines] == [f"skipped mixed/{name}.png" for name in "bdf"]
    assert all(line.startswith("vitreous: warning: skipped mixed/") for line in lines)
    assert {path.name for path in Path("out").iterdir()} == set("ace")
    again = run("explain", "mixed", *MODEL, "--method", "ixg", "--out", "out", "--resume")
    assert again.code == 2  # what is left cannot be read
    assert again.err.splitlines()[-1] == "vitreous: error: none of the 3 images can be read"


# -- models --------------------------------------------------------------------------------------------


def test_weights_that_are_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(COLOURS).save("a.png")
    model = vt.load(MODEL[1], pretrained=False, img_size=32).module
    model.blocks[1].mlp.fc1.weight.data[0, 0] = float("nan")
    torch.save(model.state_dict(), "nan.pth")
    before = tree(tmp_path)
    done = run("explain", "a.png", *MODEL, "--checkpoint", "nan.pth", "--out", "out", "--quiet")
    assert (done.code, done.out) == (2, "")
    assert "not finite" in done.err
    assert len(done.err.splitlines()) == 1
    assert tree(tmp_path) == before


def test_training_mode_and_empty_batches() -> None:
    model = FAMILIES["vit"]()
    vision_model = vt.wrap(model)
    expected = vt.explain(model, images(model, 1), "ixg", 1)[0].map
    model.train()
    assert torch.equal(vt.explain(model, images(model, 1), "ixg", 1)[0].map, expected)
    assert model.training
    with pytest.raises(ModelError, match="empty"):
        vt.explain(vision_model, torch.zeros(0, 3, 32, 32))
    with pytest.raises(VitreousError, match="no images"):
        vt.explain(vision_model, np.zeros((0, 32, 32, 3), np.uint8))
