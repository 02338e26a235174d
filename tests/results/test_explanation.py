"""What an explanation knows, how it is drawn, written and read again."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import ImageError, VitreousError

LABELS = ["zero", "one", "two", "three <b>&amp;</b>", "four"]
FILES = {"map.npy", "heatmap.png", "overlay.png", "image.png", "manifest.json"}
MANIFEST = {
    "schema", "created", "model", "method", "settings", "seed", "requested_output", "contrast", "contrast_classes",
    "class_subset", "compare_classes", "target", "label", "probability", "output", "prediction", "name", "source",
    "box", "grid", "input_size", "extras", "class_names", "identity", "check", "picture", "versions",
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"](), name="tiny", class_names=LABELS)


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (75, 110, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def created(model: vt.VisionModel, photo: Image.Image) -> vt.Explanation:
    result = vt.explain(model, photo, "gradcam(layer=1)", "two", contrast=[0, "four"], output="prob", seed=5)
    return dataclasses.replace(result, extras={"layers": torch.arange(48, dtype=torch.float64).view(3, 4, 4) / 7})


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# -- fields --------------------------------------------------------------------------------------------


def test_fields(model: vt.VisionModel, photo: Image.Image, created: vt.Explanation) -> None:
    seen, box = model.preprocess.resize_and_crop(photo)
    logits = model.logits(model.preprocess.to_tensor(seen)[None])[0].double()
    probabilities = (logits - logits.logsumexp(dim=0)).exp()
    best = max(range(5), key=lambda i: float(probabilities[i]))
    assert (created.target, created.label, created.output, created.request.contrast) == (2, "two", "prob", (0, 4))
    assert created.probability == pytest.approx(float(probabilities[2]), abs=1e-6)
    assert (created.prediction.target, created.prediction.label) == (best, LABELS[best])
    assert created.prediction.probability == pytest.approx(float(probabilities[best]), abs=1e-6)
    assert (created.method, created.request.settings, created.seed) == (
        "gradcam(layer=1)",
        vt.get_method("gradcam(layer=1)").settings,
        5,
    )
    assert (created.model, created.name, created.source, created.box) == ("tiny", "image", None, box)
    assert (tuple(created.map.shape), created.map.dtype, created.map.requires_grad) == ((4, 4), torch.float32, False)
    assert created.image.tobytes() == seen.tobytes()


def test_the_prediction_is_the_default_target(model: vt.VisionModel) -> None:
    inputs = images(model.module, 6)
    result = vt.explain(model, inputs, "ixg")
    assert [item.target for item in result] == model.logits(inputs).argmax(dim=1).tolist()
    assert all((item.target, item.label) == (item.prediction.target, item.prediction.label) for item in result)
    assert len({item.target for item in result}) > 1


def test_a_callable_target_has_a_name_and_no_class(model: vt.VisionModel) -> None:
    def spread(logits: torch.Tensor) -> torch.Tensor:
        return logits.amax(dim=1) - logits.amin(dim=1)

    result = vt.explain(model, images(model.module, 1)[0], "ixg", spread)
    assert (result.target, result.label, result.probability) == (None, "spread", None)


def test_second_results_travel_along(model: vt.VisionModel) -> None:
    result = vt.explain(model, images(model.module, 2), "skipplus(ixg)")
    _, extras = vt.get_method("skipplus(ixg)").attribute(model, images(model.module, 2), extras=True)
    for i, item in enumerate(result):
        assert item.extras.keys() == extras.keys()
        assert all(item.extras[name].equal(extras[name][i]) for name in extras)


def test_seeds_are_recorded_and_decide(model: vt.VisionModel) -> None:
    image = images(model.module, 1)[0]
    first, again, other = (vt.explain(model, image, "random", seed=seed) for seed in (3, 3, 4))
    assert (first.seed, other.seed) == (3, 4)
    assert first.manifest()["seed"] == 3
    assert first.map.equal(again.map)
    assert not first.map.equal(other.map)


def test_grids(model: vt.VisionModel) -> None:
    image = images(model.module, 1)[0]
    tokens, pixels = (vt.explain(model, image, "ixg", 1, grid=grid).map for grid in ("token", "pixel"))
    assert (tokens.shape, pixels.shape) == ((4, 4), (32, 32))
    with pytest.raises(VitreousError, match="'hexagon' is not one of token, pixel"):
        vt.explain(model, image, "ixg", grid="hexagon")
    fine = vt.explain(model, image, "edges", 1)
    coarse = vt.explain(model, image, "edges", 1, grid="token")
    assert fine.map.shape == (32, 32)
    by_hand = torch.stack([torch.stack([cell.sum() for cell in row.split(8, 1)]) for row in fine.map.split(8, 0)])
    torch.testing.assert_close(coarse.map, by_hand)


# -- pictures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, (32, 32), (75, 110), (3, 2)])
def test_upsample_is_torchs(created: vt.Explanation, size: tuple[int, int] | None) -> None:
    wanted = size or (32, 32)
    expected = torch.nn.functional.interpolate(created.map[None, None], wanted, mode="bilinear", align_corners=False)
    assert created.upsample(size).equal(expected[0, 0])


def test_sizes_of_pictures(created: vt.Explanation, photo: Image.Image) -> None:
    assert created.heatmap().size == (32, 32)
    assert created.overlay().size == (32, 32)
    assert created.overlay(photo).size == photo.size
    assert created.overlay(original=True).size == photo.size
    assert created.overlay(opacity=0).tobytes() == created.image.tobytes()
    assert created.overlay().tobytes() != created.image.tobytes()


def test_the_original_comes_from_its_file(
    model: vt.VisionModel, photo: Image.Image, created: vt.Explanation, tmp_path: Path
) -> None:
    photo.save(tmp_path / "photo.png")
    read = vt.explain(model, tmp_path / "photo.png", "gradcam(layer=1)", 2, contrast=[0, 4], output="prob")
    assert read.source == str(tmp_path / "photo.png")
    assert read.overlay(original=True).tobytes() == created.overlay(original=True).tobytes()
    (tmp_path / "photo.png").unlink()
    with pytest.raises(ImageError, match=r"no such file.*photo\.png"):
        read.overlay(original=True)


def test_a_tensor_has_no_original(model: vt.VisionModel) -> None:
    with pytest.raises(ImageError, match="no original photograph"):
        vt.explain(model, images(model.module, 1)[0], "ixg").overlay(original=True)


def test_html(model: vt.VisionModel) -> None:
    result = vt.explain(model, images(model.module, 1)[0], "ixg", 3)
    html = result._repr_html_()
    data = re.search(r'src="data:image/png;base64,([^"]+)"', html)
    assert data is not None
    embedded = Image.open(io.BytesIO(base64.b64decode(data[1])))
    assert embedded.size == (320, 320)  # large enough to look at
    assert embedded.convert("RGB").tobytes() == result.overlay(size=320).tobytes()
    assert "<b>" not in html
    assert "three &lt;b&gt;&amp;amp;&lt;/b&gt;" in html


def test_caption_says_what_is_shown(created: vt.Explanation) -> None:
    for part in ("gradcam(layer=1)", "two", f"{created.probability:.3f}", "rather than", "prob of tiny"):
        assert part in created.caption


# -- files ---------------------------------------------------------------------------------------------


def test_saved_and_loaded_again(created: vt.Explanation, tmp_path: Path) -> None:
    folder = created.save(tmp_path / "deep" / "inside")
    assert folder == tmp_path / "deep" / "inside"
    assert {file.name for file in folder.iterdir()} == FILES | {"extras.npz"}
    again = vt.Explanation.load(str(folder))
    assert again.map.dtype == created.map.dtype
    assert again.map.equal(created.map)
    assert {name: value.tolist() for name, value in again.extras.items()} == {
        "layers": created.extras["layers"].tolist()
    }
    apart = ("map", "image", "extras", "original_image", "origin", "key")  # the last three stay in their process
    assert again.identity == created.identity
    for field in dataclasses.fields(created):
        assert field.name in apart or getattr(again, field.name) == getattr(created, field.name), field.name
    assert again.image.tobytes() == created.image.tobytes()
    assert Image.open(folder / "overlay.png").tobytes() == created.overlay(size="photo", caption=True).tobytes()
    assert Image.open(folder / "heatmap.png").tobytes() == created.heatmap().tobytes()
    assert again.overlay().tobytes() == created.overlay().tobytes()
    with pytest.raises(ImageError, match="not kept"):
        again.overlay(original=True)


def test_tensors_and_double_precision_survive(tmp_path: Path) -> None:
    model = FAMILIES["vit"]().double()
    result = vt.explain(model, images(model, 1)[0], "ixg")
    again = vt.Explanation.load(result.save(tmp_path / "e"))
    assert {file.name for file in (tmp_path / "e").iterdir()} == FILES
    assert (again.map.dtype, again.box, again.extras) == (torch.float64, None, {})
    assert again.map.equal(result.map)


def test_manifest(created: vt.Explanation, tmp_path: Path) -> None:
    manifest = json.loads((created.save(tmp_path / "e") / "manifest.json").read_text(encoding="utf-8"))
    assert manifest.keys() == MANIFEST | {"files"}
    assert manifest == {**created.manifest(), "created": manifest["created"], "files": manifest["files"]}
    assert sorted(manifest["files"]) == sorted(file.name for file in (tmp_path / "e").iterdir())
    assert manifest["identity"].keys() == {"request", "image", "weights"}
    assert manifest["schema"] == "vitreous.explanation/1"
    assert manifest["prediction"].keys() == {"target", "label", "probability"}
    assert (manifest["grid"], manifest["input_size"], manifest["extras"]) == ([4, 4], [32, 32], ["layers"])
    assert (manifest["seed"], manifest["contrast"], manifest["settings"]["layer"]) == (5, [0, 4], 1)
    assert manifest["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert {"python", "vitreous", "timm", "numpy", "pillow"} < manifest["versions"].keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", manifest["created"])


def test_overwriting(model: vt.VisionModel, created: vt.Explanation, tmp_path: Path) -> None:
    folder = created.save(tmp_path / "e")
    before = content(folder)
    other = vt.explain(model, images(model.module, 1)[0], "random")
    with pytest.raises(VitreousError, match="e is there already"):
        other.save(folder)
    assert content(folder) == before
    (folder / "stray.txt").write_text("not mine")
    with pytest.raises(VitreousError, match=r"e is not replaced: it holds stray\.txt"):
        other.save(folder, overwrite=True)
    assert content(folder) == before | {"stray.txt": b"not mine"}
    (folder / "stray.txt").unlink()
    other.save(folder, overwrite=True)
    assert {file.name for file in folder.iterdir()} == FILES  # the extras of the first are gone
    assert vt.Explanation.load(folder).map.equal(other.map)
    assert [file.name for file in tmp_path.iterdir()] == ["e"]


def test_a_file_in_the_way(created: vt.Explanation, tmp_path: Path) -> None:
    (tmp_path / "e").write_text("a file")
    for overwrite in (False, True):
        with pytest.raises(VitreousError, match="it is a file, and not replaced"):
            created.save(tmp_path / "e", overwrite=overwrite)
    with pytest.raises(VitreousError, match="could not write"):
        created.save(tmp_path / "e" / "inside")
    assert content(tmp_path) == {"e": b"a file"}


@pytest.mark.parametrize("broken", ["numpy.save", "numpy.savez", "PIL.Image.Image.save", "vitreous.io.atomic._open"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("odd")])
def test_all_or_nothing(
    created: vt.Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, error: BaseException
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    stored = dataclasses.replace(created, extras={}).save(tmp_path / "kept")
    before = content(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(broken, fail)
        messages = VitreousError if isinstance(error, OSError) else type(error)
        with pytest.raises(messages, match="No space left" if isinstance(error, OSError) else None):
            created.save(tmp_path / "new")
        with pytest.raises(messages):
            created.save(stored, overwrite=True)
    assert content(tmp_path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    "damage",
    [
        {"map.npy": None},
        {"map.npy": b"nonsense"},
        {"map.npy": b""},
        {"image.png": b"nonsense"},
        {"manifest.json": None},
        {"manifest.json": b"{"},
        {"manifest.json": b"[]"},
        {"manifest.json": b"\xff\xfe"},
        {"manifest.json": b'{"schema": "vitreous.explanation/1", "extras": []}'},
        {"manifest.json": b'{"schema": "vitreous.explanation/99", "extras": []}'},
        {"extras.npz": None},
        {"extras.npz": b"nonsense"},
        {"extras.npz": b"PK\x03\x04nonsense"},
    ],
)
def test_broken_folders(created: vt.Explanation, tmp_path: Path, damage: dict[str, bytes | None]) -> None:
    folder = created.save(tmp_path / "e")
    for name, data in damage.items():
        (folder / name).unlink()
        if data is not None:
            (folder / name).write_bytes(data)
    with pytest.raises(VitreousError, match="e "):
        vt.Explanation.load(folder)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="absent holds no explanation"):
        vt.Explanation.load(tmp_path / "absent")
