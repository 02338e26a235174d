"""A benchmark of a model whose pictures are prepared by its library's own transform."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from tiny_benchmark import bench, of_folder, photos
from vitreous.benchmark.collect import collect
from vitreous.benchmark.data import ImageSource
from vitreous.benchmark.protocol import ModelSpec
from vitreous.benchmark.report import report
from vitreous.models.preprocess import Transform

hf = pytest.importorskip("transformers")
from families_hf import FAMILIES  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved model and its image processor."""
    model: Any = FAMILIES["hf_vit"]()
    model.save_pretrained(tmp_path / "vit")
    sides = {"height": 32, "width": 32}
    hf.ViTImageProcessor(size=sides).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def test_a_run_records_and_draws_a_librarys_transform(folder: Path, tmp_path: Path) -> None:
    pictures = photos(tmp_path / "photos", 2, side=60)
    protocol = of_folder(pictures, name=f"hf/{folder}", metrics=("insertion",))
    created = bench(protocol, tmp_path / "run")
    created.work()
    mode = vt.load(f"hf/{folder}").preprocess
    (scores,) = collect(created.store, {part.protocol.data.label: part.images for part in created.datasets})
    setting = scores.config
    assert setting.preprocess["mode"] == "squash"
    assert isinstance(mode, Transform) == ("digest" in setting.preprocess)
    wanted = {setting.data: created.datasets[0].images}
    for digest in scores.digests:
        photo = created.datasets[0].images.entry(digest).open()
        expected = np.asarray(mode.resize_and_crop(photo)[0]).astype(int)
        rendered = np.asarray(ImageSource(wanted).image(setting, digest)).astype(int)
        assert np.abs(rendered - expected).max() <= 3  # without the model: the same crop, colours rounded otherwise
        own = replace(setting, preprocess={**setting.preprocess, "mode": "own"})
        exact = ImageSource(wanted, lambda _: vt.load(f"hf/{folder}")).image(own, digest)
        assert np.array_equal(np.asarray(exact), expected)
    assert "Best and worst pictures" in report(tmp_path / "run").page.read_text()


def test_a_protocols_own_numbers_are_data(folder: Path, tmp_path: Path) -> None:
    """What a protocol says of its pictures holds, whatever transform its model came with."""
    pictures = photos(tmp_path / "photos", 1)
    protocol = of_folder(pictures, name=f"hf/{folder}")
    spec = ModelSpec("vit", f"hf/{folder}", resize=40, crop="center", interpolation="bicubic")
    created = bench(replace(protocol, models=(spec,)), tmp_path / "run")
    result = created._load(spec).preprocess
    assert result == vt.Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3, "bicubic", 0.8, "center")
    module = ModelSpec("vit", f"hf/{folder}", size=32)
    assert created._load(module).preprocess == vt.load(f"hf/{folder}").preprocess
    photo = Image.new("RGB", (50, 40))
    assert result.resize_and_crop(photo)[1] == pytest.approx((9, 4, 41, 36))
