"""Arguments that mean nothing are refused in one line, before any work and wherever they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import vitreous as vt
from families import FAMILIES, images
from vitreous.datasets import image_files
from vitreous.errors import ImageError, ModelError, VitreousError
from vitreous.evaluation.funnybirds import dilation_width
from vitreous.tracing.memory import budget_bytes

NO_BUDGETS = [0, 0.0, -1, float("nan"), float("inf"), 1e300, 2**40, "2", True]


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.mark.parametrize("memory_gb", NO_BUDGETS)
def test_a_budget_is_a_number_of_gib_above_zero(model: Any, memory_gb: Any) -> None:
    x = images(model, 1)
    photo = np.zeros((40, 40, 3), np.uint8)
    for ask in (
        lambda: vt.explain(model, x, "random", memory_gb=memory_gb),
        lambda: vt.compare(model, x, "random", memory_gb=memory_gb),
        lambda: vt.evaluate(model, x, "random", "sparseness", memory_gb=memory_gb, controls=False),
        lambda: vt.why(model, photo, memory_gb=memory_gb),
        lambda: vt.check(vt.explain(model, photo, "random"), model, memory_gb=memory_gb),
        lambda: budget_bytes(torch.device("cpu"), memory_gb),
    ):
        with pytest.raises(VitreousError, match="is not a number of GiB"):
            ask()


def test_budgets_of_any_kind_of_number_are_taken() -> None:
    for memory_gb in (1, 0.5, np.float32(0.5), np.int64(2), 2**20):
        assert budget_bytes(torch.device("cpu"), memory_gb) == float(memory_gb) * 2**30


@pytest.mark.parametrize("memory_gb", NO_BUDGETS)
def test_the_explorer_refuses_the_same_budgets(memory_gb: Any) -> None:
    pytest.importorskip("fastapi")
    from vitreous.web.session import Session

    with pytest.raises(VitreousError, match="is not a number of GiB"):
        Session({}, memory_gb)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"std": (0.0, 1, 1)}, "std"),
        ({"std": (0.2, -0.2, 0.2)}, "std"),
        ({"std": (float("nan"),) * 3}, "std"),
        ({"std": (float("inf"),) * 3}, "std"),
        ({"std": 0.5}, "std"),
        ({"mean": (float("inf"), 0, 0)}, "mean"),
        ({"mean": ("a", 0, 0)}, "mean"),
        ({"mean": (0.5,)}, "1 values of mean do not go with 3 of std"),
        ({"size": (0, 224)}, "size"),
        ({"size": (224, -1)}, "size"),
        ({"size": (2.5, 2)}, "size"),
        ({"size": (10**9, 10**9)}, "size"),
        ({"size": 224}, "size"),
        ({"size": (224,)}, "size"),
        ({"crop": 0.0}, "crop"),
        ({"crop": -1.0}, "crop"),
        ({"crop": float("nan")}, "crop"),
    ],
)
def test_preprocessing_that_makes_no_input_is_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        vt.Preprocess(**arguments)


def test_what_is_on_the_meta_device_has_no_values() -> None:
    module = timm.create_model("test_vit", img_size=32)
    model = vt.wrap(module)
    inputs = torch.zeros(1, 3, 32, 32)
    for ask in (
        lambda: vt.explain(model, inputs.to("meta"), "random"),
        lambda: vt.evaluate(model, inputs.to("meta"), "random", "sparseness"),
        lambda: model.logits(inputs.to("meta")),
    ):
        with pytest.raises(ModelError, match="the inputs have no values: they are on the meta device"):
            ask()
    module.to("meta")
    for asked in (model, module):
        for ask in (
            lambda asked=asked: vt.explain(asked, inputs, "ixg"),
            lambda asked=asked: vt.evaluate(asked, inputs, "random", "insertion(steps=2)"),
        ):
            with pytest.raises(ModelError, match="on the meta device"):
                ask()


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_models_of_other_than_three_channels_are_refused(name: str, channels: int) -> None:
    size = {"img_size": 32} if name == "test_vit" else {}
    module = timm.create_model(name, in_chans=channels, **size)
    for picture in (torch.zeros(1, channels, 32, 32), np.zeros((40, 40, 3), np.uint8)):
        with pytest.raises(ModelError, match=f"{channels} channels"):
            vt.explain(module, picture, "random")


def test_an_empty_path_is_not_the_current_folder(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 40)).save("a.png")
    for source in ("", [""]):
        with pytest.raises(ImageError, match="the path of an image is empty"):
            vt.explain(model, source, "random")
    with pytest.raises(ImageError, match="the path of an image is empty"):
        image_files("")
    assert len(vt.explain(model, ".", "random")) == 1


def test_a_dilation_wider_than_the_image_is_refused() -> None:
    assert dilation_width(64, 129) == 129
    with pytest.raises(VitreousError, match="dilation=131 is wider than images of 64 pixels"):
        dilation_width(64, 131)
