"""Data as people have it: loaders of tensors, tuples and tables, data sets, folders; addresses are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import vitreous as vt
from commands import run
from families import FAMILIES, images
from vitreous.datasets import count_images, load_images, read_samples
from vitreous.errors import ImageError, TargetError, VitreousWarning
from zoo import EVERY

LABELS = [3, 0, 1, 4, 2]


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def inputs(model: vt.VisionModel) -> Tensor:
    return images(model, 5)


class Table(Dataset[Any]):
    """A data set that knows its length and its items, and yields tables."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return self.rows[place]  # an index beyond the end is an error of its own kind


class Columns:
    """As the package datasets does it: rows by number, columns by name, iterable, a length."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {name: column[key] for name, column in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))


def rows(inputs: Tensor, image: str, label: str) -> list[dict[str, Any]]:
    return [{image: input_, label: one} for input_, one in zip(inputs, LABELS, strict=True)]


SOURCES: dict[str, Callable[[Tensor], Any]] = {
    "loader of tensors": lambda x: DataLoader(list(x), batch_size=2),
    "loader of tuples": lambda x: DataLoader(TensorDataset(x, torch.tensor(LABELS)), batch_size=2),
    "loader of pixel_values": lambda x: DataLoader(Table(rows(x, "pixel_values", "labels")), batch_size=2),
    "loader of images": lambda x: DataLoader(Table(rows(x, "images", "label")), batch_size=3),
    "loader of image": lambda x: DataLoader(Table(rows(x, "image", "label")), batch_size=5),
    "data set": lambda x: Table(rows(x, "pixel_values", "label")),
    "columns": lambda x: Columns(image=x, label=LABELS, id=list("abcde")),
    "list of tables": lambda x: rows(x, "image", "label"),
    "one table": lambda x: {"pixel_values": x, "labels": torch.tensor(LABELS)},
    "list of pairs": lambda x: list(zip(x, LABELS, strict=True)),
}
UNLABELLED = {"loader of tensors"}


@pytest.mark.parametrize("form", SOURCES)
def test_pictures_and_their_number(model: vt.VisionModel, inputs: Tensor, form: str) -> None:
    actual = list(load_images(SOURCES[form](inputs), model))
    assert torch.stack([picture.tensor for picture in actual]).equal(inputs)
    assert [picture.name for picture in actual] == [f"input-{place}" for place in range(5)]
    assert count_images(SOURCES[form](inputs)) == 5


@pytest.mark.parametrize("form", SOURCES)
def test_true_classes(model: vt.VisionModel, inputs: Tensor, form: str) -> None:
    samples = list(read_samples(SOURCES[form](inputs), model))
    assert torch.stack([sample.image.tensor for sample in samples]).equal(inputs)
    expected = [None] * 5 if form in UNLABELLED else LABELS
    assert [sample.label for sample in samples] == expected
    other = list(read_samples(SOURCES[form](inputs), model, labels=LABELS[::-1]))  # what is said beside comes first
    assert [sample.label for sample in other] == LABELS[::-1]


@pytest.mark.parametrize("form", SOURCES)
def test_explained(model: vt.VisionModel, inputs: Tensor, form: str) -> None:
    expected = vt.explain(model, inputs, "ixg", 2)
    actual = vt.explain(model, SOURCES[form](inputs), "ixg", 2)
    assert all(torch.equal(one.map, other.map) for one, other in zip(expected, actual, strict=True))


def test_a_table_of_one_picture_is_one(model: vt.VisionModel, inputs: Tensor) -> None:
    assert isinstance(vt.explain(model, {"image": inputs[0]}, "ixg"), vt.Explanation)


def test_rows_of_photographs(model: vt.VisionModel) -> None:
    photos = [Image.fromarray(np.full((40, 50, 3), 40 * n, np.uint8)) for n in range(5)]
    samples = list(read_samples(Columns(image=photos, label=LABELS), model))
    assert [sample.label for sample in samples] == LABELS
    assert samples[4].image.tensor.equal(model.preprocess.inputs(photos[4])[0])
    assert [sample.image.name for sample in samples] == [f"image-{n}" for n in range(5)]


def test_a_folder_of_classes(model: vt.VisionModel, tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    for name, colour in (("cat", 50), ("dog", 200)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 50), (colour, 0, 0)).save(tmp_path / name / "a.png")
    with pytest.raises(ImageError, match=r"no images in the folder .* itself, only in folders inside it such as cat"):
        vt.explain(model, tmp_path)
    samples = list(read_samples(ImageFolder(tmp_path), model))
    assert [sample.label for sample in samples] == [0, 1]
    assert samples[1].image.image.getpixel((0, 0)) == (200, 0, 0)
    ready = ImageFolder(tmp_path, lambda photo: model.preprocess.inputs(photo)[0])
    assert len(vt.explain(model, ready, "ixg")) == len(vt.explain(model, ImageFolder(tmp_path), "ixg")) == 2


def test_evaluate_reads_the_classes_of_tables(model: vt.VisionModel, inputs: Tensor) -> None:
    options: dict[str, Any] = {"controls": False, "n_bootstrap": 10}
    one = vt.evaluate(model, inputs, "ixg", "insertion(score_class=label)", labels=LABELS, **options)
    other = vt.evaluate(model, Columns(image=inputs, label=LABELS), "ixg", "insertion(score_class=label)", **options)
    (cell,) = one.scores
    assert np.array_equal(one.scores[cell], other.scores[cell])


def test_a_table_without_pictures(model: vt.VisionModel, inputs: Tensor) -> None:
    for source in ({"x": inputs}, [{"x": inputs[0]}], Table([{"x": inputs[0], "label": 1}])):
        with pytest.raises(ImageError, match=r"a table with 'x'.* holds no pixel_values or image or images or img"):
            list(load_images(source, model))
    with pytest.raises(TargetError, match="9 is outside"):
        list(read_samples([{"image": inputs[0], "label": 9}], model))


# -- addresses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["http", "https", "s3", "file", "gs"])
def test_addresses_are_refused(model: vt.VisionModel, kind: str) -> None:
    address = f"{kind}://example.org/cat.jpg"
    for source in (address, [address], Path(address), [{"image": address}]):
        with pytest.raises(ImageError, match=rf"{kind}:/.*cat\.jpg is an address.*nothing is fetched") as caught:
            vt.explain(model, source)
        assert "\n" not in str(caught.value)


def test_addresses_on_the_command_line() -> None:
    done = run("explain", "https://example.org/cat.jpg", "--model", "timm/test_vit", "--no-pretrained")
    assert done.code == 2
    assert "is an address" in done.err


def test_a_file_may_be_called_like_an_address(
    model: vt.VisionModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("http:").mkdir()
    Image.new("RGB", (40, 40)).save("http:/a.png")
    assert vt.explain(model, "http:/a.png", "ixg").name == "a.png"


# -- tensors that nobody normalised --------------------------------------------------------------------


def collect_warnings(source: Any, model: vt.VisionModel) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vt.explain(model, source, "ixg", 1)
    return [str(item.message) for item in caught if item.category is VitreousWarning]


@pytest.fixture(scope="module")
def photos() -> Tensor:
    """Colours from 0 to 1, as ``ToTensor`` gives them."""
    return torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def normalised(colours: Tensor, model: vt.VisionModel) -> Tensor:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (model.preprocess.mean, model.preprocess.std))
    return (colours - mean) / std


@pytest.mark.parametrize("name", ["vit", "tv_vit"] + [n for n in ("hf_vit", "hf_clip") if n in EVERY])
def test_tensors_that_look_unnormalised(photos: Tensor, name: str) -> None:
    result = EVERY[name]()
    model = result if isinstance(result, vt.VisionModel) else vt.wrap(result)
    (line,) = collect_warnings(photos * 255, model)
    assert "values from" in line
    assert "to 255 and look as if they were not normalised" in line
    (line,) = collect_warnings(photos, model)
    assert "to 1 and look as if they were not normalised" in line
    assert model.name in line
    assert collect_warnings(normalised(photos, model), model) == []


def test_one_warning_a_call_however_many_batches(model: vt.VisionModel, photos: Tensor) -> None:
    for source in (DataLoader(list(photos), batch_size=1), list(photos), Columns(image=photos, label=LABELS)):
        assert len(collect_warnings(source, model)) == 1
    assert len(collect_warnings(list(photos), model)) == 1  # and again in the next call
    with pytest.warns(VitreousWarning, match="not normalised") as caught:
        list(read_samples(DataLoader(TensorDataset(photos, torch.tensor(LABELS)), batch_size=1), model))
    assert len(caught) == 1


@pytest.mark.parametrize(
    "colours",
    [
        lambda x: torch.zeros_like(x),  # the mean colour
        lambda x: torch.full_like(x, 0.3),
        lambda x: torch.randn_like(x) * 3,
        lambda x: x * 0.4 + 0.1,  # bright, but a normalised picture may be
        lambda x: x * 8 - 4,
    ],
)
def test_no_warning_without_reason(model: vt.VisionModel, photos: Tensor, colours: Callable[[Tensor], Tensor]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert collect_warnings(colours(photos), model) == []


def test_models_without_normalisation_of_their_own(photos: Tensor) -> None:
    unnormalised = vt.wrap(FAMILIES["vit"](), preprocess=vt.Preprocess((32, 32), (0.0,) * 3, (1.0,) * 3))
    assert collect_warnings(photos, unnormalised) == collect_warnings(photos * 255, unnormalised) == []


def test_scenes_of_the_world_are_not_warned_about() -> None:
    world = vt.load("world")
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8))
    assert collect_warnings(world.preprocess.inputs(photo)[0], world) == collect_warnings(photo, world) == []
